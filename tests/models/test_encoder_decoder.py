"""Encoder-decoders of transformers: their prompts and answers, generation, loading, and what is refused."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

import salience
from salience.core.prompts import Prompt
from salience.data.pairs import Pair
from salience.dynamics.cross_attention import cross_attention
from salience.errors import BadInput, BadModel, UnsupportedModel
from salience.generation import explain_answer
from salience.models.huggingface import EncoderDecoder
from shapes import CORPUS, ENCODER_DECODERS, TEXTS, encoder_decoder, tokenizer


@cache
def model_of(shape: str) -> EncoderDecoder:
    return encoder_decoder(shape)


@pytest.mark.parametrize("shape", ENCODER_DECODERS)
def test_generated_answers_are_those_of_transformers(shape: str):
    model, module = model_of(shape), model_of(shape).module
    prompts = [model.encode_prompt(Prompt.of(text)) for text in TEXTS]
    answers = model.generate(prompts, max_new_tokens=7)
    starts = len(model.start)
    for text, answer in zip(TEXTS, answers, strict=True):
        ids = torch.tensor([tokenizer("bpe")(text).input_ids])
        said: Any = module.generate(ids, max_new_tokens=20, do_sample=False, num_beams=1)
        expected = said[0, starts : starts + 7].tolist()
        end = expected.index(2) + 1 if 2 in expected else 7
        assert list(answer.ids) == expected[:end]
        assert all(
            model.tokenizer.convert_ids_to_tokens(i) == t for i, t in zip(answer.ids, answer.tokens, strict=True)
        )


def test_a_prompt_ends_with_what_the_decoder_starts_with():
    prompt = model_of("bart").encode_prompt(Prompt.of("A fine film."))
    own = len(prompt) - 2
    assert prompt.ids[-2:] == (2, 0)  # BART is made to begin with <s>
    assert prompt.segments == (0,) * own + (1, 1)
    assert prompt.special[-2:] == (True, True)
    assert prompt.text == "A fine film."
    answer = model_of("bart").encode_answer(prompt, "a mess")
    assert answer.text == "a mess"
    assert answer.ids == tuple(tokenizer("bpe")("a mess", add_special_tokens=False).input_ids)
    assert model_of("bart").encode_answer(prompt, list(answer.ids)).text == "a mess"


@pytest.mark.parametrize("shape", ENCODER_DECODERS)
def test_a_saved_model_is_loaded_and_explained(shape: str, tmp_path: Path):
    model = model_of(shape)
    model.save(tmp_path)
    loaded = salience.load(tmp_path)
    assert isinstance(loaded, EncoderDecoder)
    ours, theirs = (explain_answer(m, "A fine film.", "occlusion", generate=4) for m in (model, loaded))
    assert theirs.answer_tokens == ours.answer_tokens
    assert theirs.total == pytest.approx(ours.total)
    assert theirs.generation["max_new_tokens"] == 4
    assert theirs.model == str(tmp_path)


def test_what_cannot_be_explained_is_refused():
    model = model_of("bart")
    prompt = model.encode_prompt(Prompt.of("A fine film."))
    with pytest.raises(BadInput, match=r"forced_bos_token_id .* set it in model.generation_config"):
        model.generate([prompt], max_new_tokens=3, forced_bos_token_id=5)
    with pytest.raises(BadInput, match="the answer has 92 tokens, 28 more than the 64"):
        model.encode_answer(prompt, [5] * 90)
    with pytest.raises(BadInput, match="has no chat template"):
        model.encode_prompt(Prompt.of([{"role": "user", "content": "Hi"}]))
    with pytest.raises(BadInput, match="would leave nothing of the source"):
        explain_answer(model, [5, 6], "occlusion", answer="a mess", erase="delete", window=2)
    other = encoder_decoder("bart")
    other.module.generation_config.decoder_start_token_id = None
    with pytest.raises(BadModel, match=r"set model\.generation_config\.decoder_start_token_id"):
        other.encode_prompt(Prompt.of("A fine film."))


def test_separate_word_embeddings_are_refused():
    sizes = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    config = MarianConfig(
        vocab_size=300,
        decoder_vocab_size=300,
        d_model=16,
        pad_token_id=1,
        share_encoder_decoder_embeddings=False,
        tie_word_embeddings=False,
        **sizes,
    )
    with pytest.raises(UnsupportedModel, match="by different word embeddings"):
        salience.wrap(MarianMTModel(config), tokenizer("bpe"), name="two")


# ------------------------------------------------------------------------------------------------ Marian's tokenizer


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> MarianTokenizer:
    """The tokenizer of OPUS-MT: SentencePiece, one model for sources and one for answers, and no fast version."""
    pieces = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("marian")
    for side, size in (("source", 70), ("target", 60)):
        pieces.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS),
            model_prefix=str(folder / side),
            vocab_size=size,
            character_coverage=1.0,
            minloglevel=2,
        )
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
    models = [pieces.SentencePieceProcessor(str(folder / f"{side}.spm")) for side in ("source", "target")]
    known = [model.id_to_piece(i) for model in models for i in range(3, model.get_piece_size())]
    names = ["</s>", "<unk>", *dict.fromkeys(known), ">>de<<", "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}), "utf-8")
    files = [str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")]
    with pytest.warns(UserWarning, match="sacremoses"):
        return MarianTokenizer(*files, source_lang="en", target_lang="de")


@pytest.fixture(scope="module")
def translator(marian: MarianTokenizer) -> EncoderDecoder:
    pad = marian.pad_token_id
    sizes = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    config = MarianConfig(
        vocab_size=len(marian),
        d_model=16,
        max_position_embeddings=64,
        pad_token_id=pad,
        decoder_start_token_id=pad,
        eos_token_id=0,
        init_std=0.3,
        **sizes,
    )
    torch.manual_seed(0)
    model = salience.wrap(MarianMTModel(config).eval(), marian, name="translator")
    assert isinstance(model, EncoderDecoder)
    return model


@pytest.mark.parametrize("text", [*TEXTS, "  the ½   plot ﬁlm… ", "naïve 👍 我喜欢", ">>de<< A fine film."])
def test_the_tokens_of_marian_have_their_characters(translator: EncoderDecoder, marian: MarianTokenizer, text: str):
    prompt = translator.encode_prompt(Prompt.of(text))
    assert list(prompt.ids[:-1]) == marian(text).input_ids
    assert list(prompt.special[-2:]) == [True, True]  # </s>, and what the decoder starts with
    spans = [span for span, special in zip(prompt.offsets, prompt.special, strict=True) if not special]
    assert spans == sorted(spans)
    read = {at for a, b in spans for at in range(a, b)}
    assert {at for at, character in enumerate(text) if not character.isspace()} <= read
    for token, (a, b) in zip(prompt.tokens, prompt.offsets, strict=True):
        if token.isascii() and token.isalpha():
            assert text[a:b].strip() in (token, "ﬁlm")


def test_cross_attention_reads_answers_in_their_own_tokens(translator: EncoderDecoder, marian: MarianTokenizer):
    text = "the plot drags on and on"
    source, answer, weights = cross_attention(translator, Pair("0", text, text))
    assert list(source.ids) == marian(text).input_ids[:-1]
    assert list(answer.ids) == marian(text_target=text).input_ids[:-1]
    assert source.ids != answer.ids
    assert weights.shape[-2:] == (len(answer), len(source))


def test_marian_explains_generated_and_given_answers(translator: EncoderDecoder):
    e = explain_answer(translator, "A fine film.", "input_x_gradient", generate=5)
    assert len(e.matrix) == len(e.answer_tokens) <= 5
    given = explain_answer(translator, "A fine film.", "occlusion", answer="the plot drags on")
    assert given.answer == "the plot drags on"
    assert "".join(given.answer[a:b] for a, b in given.answer_offsets).split() == given.answer.split()
    with pytest.raises(BadInput, match="cannot be matched to its characters"):
        explain_answer(translator, "A fine </s> film.", "occlusion", generate=2)
