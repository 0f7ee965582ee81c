"""Generated answers: those of transformers, whatever shares the batch, on a model that stays as it was."""

from copy import deepcopy

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import salience
from salience.core.prompts import Prompt
from salience.errors import BadInput
from salience.models.huggingface.adapter import HuggingFace
from shapes import LANGUAGE_MODELS, build, tokenizer

TEXTS = ("A fine film.", "It is a truly, truly awful mess of a movie", "Good", "Not bad at all 👍")


def prompts(model: HuggingFace) -> list:
    return [model.encode_prompt(Prompt.of(text)) for text in TEXTS]


def ending(model: HuggingFace, token: int) -> HuggingFace:
    """A model whose answers end with this token."""
    model.module.generation_config.eos_token_id = token
    return model


@pytest.mark.parametrize("shape", LANGUAGE_MODELS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_answers_are_the_most_likely_tokens_the_same_in_company_as_alone(shape: str, side: str, monkeypatch):
    model = build(shape, dtype=torch.float64)
    monkeypatch.setattr(model.tokenizer, "padding_side", side)
    asked = prompts(model)
    together = model.generate(asked, max_new_tokens=6)
    model.module.eval()
    for prompt, answer in zip(asked, together, strict=True):
        assert model.generate([prompt], max_new_tokens=6) == [answer]
        ids = list(prompt.ids)
        for token in answer.ids:
            with torch.no_grad():
                assert int(model.module(torch.tensor([ids])).logits[0, -1].argmax()) == token
            ids.append(token)
        assert len(answer) == 6 or answer.ids[-1] == model.module.generation_config.eos_token_id


def test_the_token_that_ends_an_answer_is_special_and_has_no_text():
    model = build("gpt2_lm")
    asked = prompts(model)
    free = [answer.ids for answer in model.generate(asked, max_new_tokens=6)]
    end = next(t for t in free[0][1:] if t != free[0][0])
    at = free[0].index(end)
    (answer, *others) = ending(model, end).generate(asked, max_new_tokens=6)
    assert answer.ids == free[0][: at + 1]
    assert answer.special == (*[False] * at, True)
    assert answer.offsets[-1] == (len(answer.text),) * 2
    assert answer.tokens[-1] == model.tokenizer.convert_ids_to_tokens(end)
    for other, ids in zip(others, free[1:], strict=True):
        cut = ids.index(end) + 1 if end in ids else len(ids)
        assert other.ids == ids[:cut]


def test_an_answer_has_offsets_into_its_own_text_and_forces_the_same_tokens():
    model = build("llama_lm")
    for prompt, answer in zip(prompts(model), model.generate(prompts(model), max_new_tokens=6), strict=True):
        covered = {i for a, b in answer.offsets for i in range(a, b)}
        assert all(i in covered or c.isspace() for i, c in enumerate(answer.text))
        whole = model.tokenizer.decode([*prompt.ids, *answer.ids], skip_special_tokens=False)
        assert whole.endswith(answer.text)


@pytest.mark.parametrize("given", [{}, {"do_sample": True, "temperature": 2.0}, {"num_beams": 2}])
def test_the_model_and_the_state_of_chance_stay_as_they_were(given: dict):
    model = build("gpt2_lm")
    config, own = deepcopy(model.module.config), deepcopy(model.module.generation_config)
    learns = [p.requires_grad for p in model.module.parameters()]
    state, names = torch.get_rng_state(), set(vars(model.module))
    model.generate(prompts(model), max_new_tokens=3, **given)
    assert model.module.training
    assert [p.requires_grad for p in model.module.parameters()] == learns
    assert model.module.generation_config.to_dict() == own.to_dict()
    assert model.module.config.to_dict() == config.to_dict()
    assert torch.equal(torch.get_rng_state(), state)
    assert set(vars(model.module)) == names
    assert not any(m._forward_hooks for m in model.module.modules())


def test_samples_depend_on_the_seed_and_not_on_the_other_prompts():
    model = build("gpt2_lm")
    asked, given = prompts(model), {"max_new_tokens": 8, "do_sample": True, "temperature": 3.0}
    together = model.generate(asked, **given, seed=1)
    assert [model.generate([p], **given, seed=1)[0] for p in asked] == together
    assert model.generate(asked, **given, seed=2) != together


@pytest.mark.parametrize("given", [{"repetition_penalty": 0.2}, {"min_length": 9}])
def test_padding_is_no_part_of_the_prompt(given: dict):
    """The end of an answer is also the padding here: before a prompt, it would count as a word said before."""
    model = build("llama_lm", dtype=torch.float64)
    asked = prompts(model)
    if "min_length" in given:
        model = ending(model, model.generate(asked[2:3], max_new_tokens=8)[0].ids[0])
    together = model.generate(asked, max_new_tokens=8, **given)
    assert together == [model.generate([p], max_new_tokens=8, **given)[0] for p in asked]


def test_beams_are_those_of_transformers():
    model = build("gpt2_lm", dtype=torch.float64)
    together = model.generate(prompts(model), max_new_tokens=5, num_beams=3)
    model.module.eval()
    for prompt, answer in zip(prompts(model), together, strict=True):
        ids = torch.tensor([prompt.ids])
        alone = model.module.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, num_beams=3, pad_token_id=0
        )
        assert list(answer.ids) == alone[0, ids.shape[1] :].tolist()


def test_a_stop_string_ends_an_answer_without_a_token_that_was_not_generated():
    model = build("gpt2_lm")
    asked = prompts(model)
    free = model.generate(asked, max_new_tokens=8)
    stop = free[0].text[1:3]
    answers = model.generate(asked, max_new_tokens=8, stop_strings=[stop])
    assert len(answers[0]) < len(free[0])
    assert stop in answers[0].text
    assert all(a.ids == b.ids[: len(a)] for a, b in zip(answers, free, strict=True))


def test_the_models_own_settings_apply_and_are_recorded_unless_they_only_concern_sampling():
    model = build("gpt2_lm")
    free = model.generate(prompts(model), max_new_tokens=8)
    own = model.module.generation_config
    own.repetition_penalty, own.do_sample, own.temperature = 5.0, True, 0.5
    recorded = model.generation_settings(max_new_tokens=8)
    assert recorded == {
        "do_sample": False, "num_beams": 1, "max_new_tokens": 8, "repetition_penalty": 5.0, "eos_token_id": 0,
    }  # fmt: skip
    assert model.generate(prompts(model), max_new_tokens=8) != free
    sampled = model.generation_settings(max_new_tokens=8, do_sample=True)
    assert (sampled["temperature"], sampled["seed"]) == (0.5, 0)
    assert model.generate(prompts(model), max_new_tokens=8, repetition_penalty=1.0) == free


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperture": 0.5}, "unknown setting 'temperture' of generate; did you mean temperature"),
        ({"num_return_sequences": 2}, "unknown setting 'num_return_sequences'"),
        ({"temperature": 0.5}, "temperature has an effect only if tokens are sampled; add do_sample=True"),
        ({"do_sample": True, "temperature": -1.0}, "cannot be used to generate: .*strictly positive"),
        ({"num_beams": "two"}, "num_beams takes a whole number"),
        ({"early_stopping": 3}, "cannot be used to generate: .*early_stopping"),
        ({"length_penalty": 2.0}, "cannot be used to generate: .*num_beams"),
        ({"seed": -1}, "seed takes a whole number"),
        ({"max_new_tokens": 0}, "max_new_tokens takes a whole number"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(given: dict, message: str):
    model = build("gpt2_lm")
    with pytest.raises(BadInput, match=message) as error:
        model.generate(prompts(model), **{"max_new_tokens": 2, **given})
    assert "\n" not in str(error.value)


def test_answers_of_a_chat():
    tok = deepcopy(tokenizer("bare"))
    tok.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    model = build("gpt2_lm")
    chat = salience.wrap(model.module, tok)
    prompt = chat.encode_prompt(Prompt.of([{"role": "user", "content": "A fine film."}]))
    plain = chat.encode_prompt(Prompt.of(prompt.text))
    assert chat.generate([prompt], max_new_tokens=4) == chat.generate([plain], max_new_tokens=4)


def test_no_prompts_have_no_answers():
    assert build("gpt2_lm").generate([], max_new_tokens=2) == []


def test_a_model_without_a_token_that_ends_answers_generates_as_many_as_allowed():
    config = GPT2Config(
        vocab_size=len(tokenizer("bare")), n_embd=16, n_layer=1, n_head=2, bos_token_id=None, eos_token_id=None
    )
    model = salience.wrap(GPT2LMHeadModel(config), tokenizer("bare"))
    assert [len(a) for a in model.generate(prompts(model), max_new_tokens=3)] == [3] * len(TEXTS)
