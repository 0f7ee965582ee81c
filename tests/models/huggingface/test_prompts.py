"""Prompts and answers as tokens: what the model reads, where each token stands, and what is refused."""

from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

import salience
from salience.core.prompts import Message, Part, Prompt
from salience.core.text import Encoded
from salience.errors import BadInput, UnsupportedModel
from salience.models.huggingface.adapter import HuggingFace
from salience.models.huggingface.spelling import _growth, spelled
from shapes import build, tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start|>{{ m.role }}<|end|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|end|>\n\n{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHATML
)
SHOUTING = CHATML.replace("m.content", "m.content | upper")
FORGETFUL = CHATML.replace("for m in messages", "for m in messages[1:]")
READING = (  # what is around a message depends on it
    "{% for m in messages %}[{{ m.role }}{% if 'France' in m.content %}, of France{% endif %}] {{ m.content }}"
    "{% endfor %} [answer]"
)
WITH_TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHATML
MARKS = ["<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|eot|>"]
MESSAGES = [
    {"role": "system", "content": "Be terse."},
    {"role": "user", "content": " The capital of France? 👍\n"},
    {"role": "assistant", "content": "user"},
    {"role": "user", "content": "It is fine."},
]


def metaspace() -> PreTrainedTokenizerFast:
    """Like that of Llama 2: a space is put before the text, and unknown characters are bytes."""
    words = ["▁", "▁a", "▁fine", "▁film", "a", "fine", "film", ".", "▁Paris", "Par", "is", "▁is", "▁the"]
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *words, *"bcdeghijklmnoqrstuvwxyzP"]
    tok = Tokenizer(models.Unigram([(word, -float(len(vocabulary)) / len(word)) for word in vocabulary], 0, True))
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def words() -> PreTrainedTokenizerFast:
    tok = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "fine": 2, "film": 3, ".": 4}, unk_token="<unk>"))
    tok.normalizer = normalizers.Lowercase()
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tok, unk_token="<unk>")


def byte_level() -> PreTrainedTokenizerFast:
    tok = deepcopy(tokenizer("bare"))
    tok.add_special_tokens({"additional_special_tokens": MARKS})
    return tok


KINDS = {"metaspace": metaspace, "words": words, "byte_level": byte_level}


def model_of(tok: PreTrainedTokenizerFast, template: str | None = None) -> HuggingFace:
    tok.chat_template = template
    config = LlamaConfig(
        vocab_size=len(tok), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=256, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    return salience.wrap(AutoModelForCausalLM.from_config(config), tok, name="tiny")


def content(encoded: Encoded) -> str:
    """The characters of the tokens that are not special, each once."""
    spans = [s for s, special in zip(encoded.offsets, encoded.special, strict=True) if not special]
    return "".join(encoded.text[i] for i in sorted({i for a, b in spans for i in range(a, b)}))


# Chats


@pytest.mark.parametrize("template", [CHATML, LLAMA3, WITH_TOOLS])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_chat_is_what_the_template_renders_with_every_message_at_its_place(template: str, side: str):
    model = model_of(byte_level(), template)
    model.tokenizer.padding_side = model.tokenizer.truncation_side = side
    encoded = model.encode_prompt(Prompt.of(MESSAGES))
    tokenised = model.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=True)
    assert list(encoded.ids) == tokenised["input_ids"]
    assert encoded.text == model.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    expected = [m["content"].strip() if template is LLAMA3 else m["content"] for m in MESSAGES]
    assert [encoded.text[p.start : p.end] for p in encoded.parts] == expected
    assert [p.name for p in encoded.parts] == ["system", "user 1", "assistant", "user 2"]
    assert {p.kind for p in encoded.parts} == {"turn"}
    assert content(encoded) == "".join(expected)


def test_a_beginning_that_the_template_writes_is_not_doubled():
    model = model_of(metaspace(), "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")
    ids = model.encode_prompt(Prompt.of([{"role": "user", "content": "a fine film"}])).ids
    assert ids.count(model.tokenizer.bos_token_id) == 1


def test_a_token_of_both_content_and_template_is_content():
    model = model_of(byte_level(), "{% for m in messages %}th{{ m.content }}{% endfor %}")
    encoded = model.encode_prompt(Prompt.of([{"role": "user", "content": "e the"}]))
    joint = encoded.offsets.index(next(s for s in encoded.offsets if s[0] < 2 < s[1]))
    assert not encoded.special[joint]


def test_messages_may_have_named_parts_which_follow_what_the_template_removes():
    model = model_of(byte_level(), LLAMA3)
    message = Message("user", "  first second ", (Part("shot", 2, 7, "example"), Part("rest", 8, 15)))
    encoded = model.encode_prompt(Prompt(messages=(message,)))
    assert [(p.name, encoded.text[p.start : p.end], p.kind) for p in encoded.parts] == [
        ("shot", "first", "example"),
        ("rest", "second", ""),
    ]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "^tiny has no chat template; pass a plain prompt$"),
        (NO_SYSTEM, r"refuses these messages \(system, user, assistant, user\): System role not supported$"),
        (SHOUTING, r"changes or leaves out message 1 \(system\)"),
        (FORGETFUL, r"changes or leaves out message 1 \(system\)"),
        ("{% for %}", "refuses these messages"),
    ],
)
def test_a_chat_that_cannot_be_rendered_is_refused_in_one_line(template: str | None, message: str):
    with pytest.raises(BadInput, match=message) as error:
        model_of(byte_level(), template).encode_prompt(Prompt.of(MESSAGES))
    assert "\n" not in str(error.value)


def test_where_the_template_reads_a_message_it_is_found_if_it_occurs_once():
    model = model_of(byte_level(), READING)
    encoded = model.encode_prompt(Prompt.of([{"role": "user", "content": "In France?"}]))
    assert [encoded.text[p.start : p.end] for p in encoded.parts] == ["In France?"]
    with pytest.raises(BadInput, match=r"more than once the text of message 1 \(user\)"):
        model.encode_prompt(Prompt.of([{"role": "user", "content": "France"}]))


def test_tools_that_the_template_ignores_are_refused():
    prompt = Prompt.of({"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "look"}}]})
    assert "look" in model_of(byte_level(), WITH_TOOLS).encode_prompt(prompt).text
    with pytest.raises(BadInput, match="does not show tools"):
        model_of(byte_level(), CHATML).encode_prompt(prompt)


def test_context_is_one_message_where_there_is_a_template():
    prompt = Prompt.with_context("Who?", ["Ada did.", "Bob slept."])
    for template in (None, CHATML, LLAMA3):
        encoded = model_of(byte_level(), template).encode_prompt(prompt)
        assert [(p.name, encoded.text[p.start : p.end]) for p in encoded.parts] == [
            ("document 1", "Ada did."),
            ("document 2", "Bob slept."),
            ("question", "Who?"),
        ]
        assert content(encoded) == prompt.text


# Plain prompts and token ids


def test_a_text_that_begins_with_the_first_token_gets_no_second_one():
    model = model_of(metaspace())
    plain, written = (model.encode_prompt(Prompt.of(text)) for text in ("a fine film", "<s>a fine film"))
    assert written.ids.count(1) == plain.ids.count(1) == 1
    assert written.special[0]
    assert written.offsets[0] == (0, 3)
    assert model.encode(["<s>a fine film"])[0] == written
    assert model.encode(["a fine film"])[0] == plain


def test_a_prompt_is_never_cut_off():
    model = build("gpt2_lm")
    with pytest.raises(BadInput, match=r"the prompt has \d+ tokens, \d+ more than the 64 that tiny-gpt2_lm can read"):
        model.encode_prompt(Prompt.of("film " * 100))
    prompt = model.encode_prompt(Prompt.of("a film"))
    with pytest.raises(BadInput, match="the prompt with the answer has"):
        model.encode_answer(prompt, "film " * 100)
    with pytest.raises(BadInput, match=r"the prompt with max_new_tokens has .* more than the 64"):
        model.generate([prompt], max_new_tokens=64)


def test_control_tokens_of_a_plain_prompt_are_special_and_unknown_words_are_not():
    encoded = model_of(byte_level()).encode_prompt(Prompt.of("<|im_start|>user\nfilm"))
    assert encoded.special == (True, *[False] * (len(encoded) - 1))
    assert model_of(words()).encode_prompt(Prompt.of("a strange film")).special == (False,) * 3


def test_a_classifier_is_refused_by_name():
    for call in (
        lambda m: m.encode_prompt(Prompt.of("a")),
        lambda m: m.generate([], max_new_tokens=1),
        lambda m: m.generation_settings(max_new_tokens=1),
    ):
        with pytest.raises(UnsupportedModel, match="tiny-gpt2 does not generate text"):
            call(build("gpt2"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["a fine film .", "a fine 👍 film 我喜欢", "film"])
def test_ids_are_spelled_as_the_text_they_came_from(kind: str, text: str):
    tok = KINDS[kind]()
    encoded = model_of(tok).encode_prompt(Prompt.of(text))
    again = model_of(tok).encode_prompt(Prompt.of([i for i in encoded.ids if i != tok.bos_token_id]))
    assert again.ids == tuple(i for i in encoded.ids if i != tok.bos_token_id)
    if kind != "words" or "👍" not in text:  # an unknown word has no text of its own
        assert again.text == text
        assert again.offsets == encoded.offsets[-len(again) :]


def test_tokens_of_one_character_share_its_span_where_the_text_does_not_tokenise_back():
    tok = byte_level()
    (h,), thumb = tok.encode("h"), tok.encode("👍")
    ids = [*tok.encode("t"), h, *tok.encode("e"), *thumb, *tok.encode(".")]  # "the" has a token of its own
    encoded = spelled(tok, ids)
    assert tok.encode("the👍.") != ids
    assert encoded.text == "the👍."
    assert encoded.offsets == ((0, 1), (1, 2), (2, 3), *[(3, 4)] * len(thumb), (4, 5))
    halves = spelled(tok, ids[4:], ids[:4])  # the first byte belongs to what was before
    assert (halves.text, set(halves.offsets[: len(thumb) - 1])) == ("👍.", {(0, 1)})


def test_a_character_that_is_never_completed_is_one_span():
    tok = byte_level()
    encoded = spelled(tok, [*tok.encode("a"), *tok.encode("👍")[:3]])
    assert encoded.text == "a\ufffd"
    assert encoded.offsets == ((0, 1), (1, 2), (1, 2), (1, 2))


def test_growth_of_a_text():
    assert _growth("ab👍c", 0, ["a", "a", "ab", "ab\ufffd", "ab\ufffd\ufffd", "ab👍", "ab👍c"]) == [
        (0, 1), (1, 1), (1, 2), (2, 3), (2, 3), (2, 3), (3, 4),
    ]  # fmt: skip


@given(st.lists(st.integers(0, 258), min_size=1, max_size=12), st.lists(st.integers(0, 258), max_size=4))
@settings(deadline=None)
def test_any_ids_have_ordered_spans_that_cover_their_text(ids: list[int], before: list[int]):
    for tok in (byte_level(), metaspace()):
        encoded = spelled(tok, ids, before)
        assert len(encoded.ids) == len(encoded.tokens) == len(encoded.offsets) == len(encoded.special) == len(ids)
        assert all(0 <= a <= b <= len(encoded.text) for a, b in encoded.offsets)
        assert list(encoded.offsets) == sorted(encoded.offsets)
        covered = {i for a, b in encoded.offsets for i in range(a, b)}
        assert all(i in covered or c.isspace() for i, c in enumerate(encoded.text))


# Given answers


@pytest.mark.parametrize(
    ("prompt", "answer", "text"),
    [
        ("The capital is", "Paris", " Paris"),
        ("The capital is", " Paris", " Paris"),
        ("The capital is ", "Paris", "Paris"),
        ("The capital is (", "Paris", "Paris"),
        ('She said "', "Paris", "Paris"),
        ('She said "no"', "Paris", " Paris"),
        ("The capital is", ", of course, Paris", ", of course, Paris"),
        ("The capital is", "我喜欢", "我喜欢"),
        ("1 + 1 =", "2", " 2"),
    ],
)
@pytest.mark.parametrize("kind", ["byte_level", "metaspace"])
def test_a_space_separates_words_of_prompt_and_answer(kind: str, prompt: str, answer: str, text: str):
    model = model_of(KINDS[kind]())
    asked = model.encode_prompt(Prompt.of(prompt))
    encoded = model.encode_answer(asked, answer)
    assert encoded.text == text
    joined = model.tokenizer(prompt + text).input_ids
    if joined[: len(asked)] == list(asked.ids):
        assert [*asked.ids, *encoded.ids] == joined
    covered = {i for a, b in encoded.offsets for i in range(a, b)}
    assert all(i in covered or c.isspace() for i, c in enumerate(text))


def test_after_a_chat_the_answer_is_not_given_a_space():
    model = model_of(byte_level(), CHATML)
    prompt = model.encode_prompt(Prompt.of(MESSAGES))
    encoded = model.encode_answer(prompt, "the film")
    assert encoded.text == "the film"
    assert [*prompt.ids, *encoded.ids] == model.tokenizer.encode(prompt.text + "the film")
    assert encoded.offsets[0][0] == 0


def test_an_answer_that_would_change_the_prompt_is_tokenised_alone():
    model = model_of(byte_level())
    split = model.encode_prompt(Prompt.of([*model.tokenizer.encode("t"), *model.tokenizer.encode("h")]))
    encoded = model.encode_answer(split, " fine")
    assert list(encoded.ids) == model.tokenizer.encode(" fine")


@pytest.mark.parametrize(
    ("kind", "answer", "message"),
    [
        ("words", "strange", "reads the answer 'strange' as '<unk>'"),
        ("words", "Film", "reads the answer 'Film' as 'film'"),
        ("byte_level", " \n", "the answer is empty"),
    ],
)
def test_an_answer_that_the_tokenizer_changes_is_refused(kind: str, answer: str, message: str):
    model = model_of(KINDS[kind]())
    with pytest.raises(BadInput, match=message):
        model.encode_answer(model.encode_prompt(Prompt.of("a fine")), answer)
