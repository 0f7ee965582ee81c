"""Answers of encoder-decoders, explained by every method, against literal versions."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

from salience.core.prompts import Prompt
from salience.core.text import Encoded
from salience.core.types import Attribution, Targets
from salience.errors import BadInput, UnsupportedModel
from salience.evaluation.answers import evaluate_answers, held_out
from salience.evaluation.cases import CONTROLS, Case
from salience.generation import (
    ANSWER_METHODS,
    AnswerExplanation,
    context_dependence,
    explain_answer,
    explain_answer_data,
    explain_answers,
)
from salience.generation.explaining import joined
from salience.models.huggingface import EncoderDecoder
from salience.models.huggingface.answering import Answer
from salience.trials.needle import Use, needle
from shapes import ENCODER_DECODERS, encoder_decoder
from untouched import budget, close, state

SOURCE, ANSWER = "A fine film of heart.", "a fine mess"

SMALLER: dict[str, dict[str, Any]] = {
    "smooth_grad": {"samples": 3},
    "gradient_shap": {"samples": 3},
    "lime": {"samples": 40},
    "kernel_shap": {"tolerance": 0.3, "max_samples": 160},
    "partition_shap": {"max_evals": 60, "tree": "balanced"},
}
REFUSED = {
    "attention_x_gradient": "gradients of the attention weights of .*, an encoder-decoder, are not supported",
    "attention_relevance": "gradients of the attention weights of .*, an encoder-decoder, are not supported",
    "value_zeroing": "value_zeroing runs single layers again, which .* cannot do",
    "layer_saliency": "a layer of .*, an encoder-decoder, holds states of the source or of the answer",
}
METHODS = [m for m in ANSWER_METHODS if m.__name__ not in REFUSED]


@cache
def model_of(shape: str) -> EncoderDecoder:
    return encoder_decoder(shape, torch.float64)


def given(model: EncoderDecoder, source: str = SOURCE, method: str = "input_x_gradient", **settings: Any) -> Any:
    return explain_answer(model, source, method, answer=ANSWER, **settings)


# ------------------------------------------------------------------------------------------------ every method


def run(method: Any, model: EncoderDecoder, sources: tuple[str, ...]) -> tuple[Attribution, Tensor]:
    """The method on one batch: why the whole of an answer, given to several sources."""
    prompts = [model.encode_prompt(Prompt.of(source)) for source in sources]
    answer = model.encode_answer(prompts[0], ANSWER)
    view = model.answering(Answer(torch.tensor(answer.ids), answer.tokens))
    batch = view.batch([joined(prompt, answer, None, kept=True) for prompt in prompts])
    target = Targets(torch.full((len(batch),), len(answer)), None, "logit", "identity", read_from=view.read_from(batch))
    result = method(view, batch, target, **SMALLER.get(method.__name__, {}))
    return result if isinstance(result, Attribution) else Attribution(result), batch.mask


ALIKE = ("marian", "mbart")
"""Built as BART is, so that they are tested with one method of every kind."""
KINDS = ("input_x_gradient", "integrated_gradients", "lrp", "occlusion", "attention_rollout", "context_cite")
CASES = [(m, shape) for shape in ENCODER_DECODERS for m in METHODS if shape not in ALIKE or m.__name__ in KINDS]


@pytest.mark.parametrize(("method", "shape"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_every_method_on_every_encoder_decoder(method: Any, shape: str):
    model, sources = model_of(shape), (SOURCE, "Good")
    before = state(model)
    many, mask = run(method, model, sources)
    assert state(model) == before, "the method changed the model"
    assert many.scores.shape == mask.shape
    assert many.scores.isfinite().all()
    assert (many.scores[~mask] == 0).all()
    assert torch.equal(run(method, model, sources)[0].scores, many.scores), "the same call gave other scores"
    with budget(model, 2 * mask.shape[1]):
        small, _ = run(method, model, sources)
    assert close(small.scores, many.scores, 1.0), "the budget changed the scores"
    for row, source in enumerate(sources):
        alone = run(method, model, (source,))[0].scores[0]
        assert close(many.scores[row, : len(alone)], alone, 1.0), "the company of other texts changed the scores"


@pytest.mark.parametrize("method", REFUSED)
def test_what_an_encoder_decoder_has_not_is_refused_by_name(method: str):
    before = state(model_of("bart"))
    with pytest.raises(UnsupportedModel, match=REFUSED[method]):
        given(model_of("bart"), method=method)
    assert state(model_of("bart")) == before


@pytest.mark.parametrize("method", ["input_x_gradient", "lrp", "attention", "occlusion"])
def test_the_model_is_untouched_after_an_exception(method: str):
    model = encoder_decoder("t5")
    before = state(model)

    def stop(*_: object) -> None:
        raise RuntimeError("stop")

    handle = model.module.lm_head.register_forward_hook(stop)
    with pytest.raises(RuntimeError, match="stop"):
        given(model, method=method)
    handle.remove()
    assert state(model) == before


# ------------------------------------------------------------------------------------------------ literal versions


@contextmanager
def hooked(layers: dict[str, Any], change: Callable[[str, Tensor], Tensor]) -> Iterator[None]:
    handles = [
        layer.register_forward_hook(lambda _, __, output, side=side: change(side, output))
        for side, layer in layers.items()
    ]
    yield
    for handle in handles:
        handle.remove()


def layers(model: EncoderDecoder) -> dict[str, Any]:
    module: Any = model.module
    return {
        "source": module.get_encoder().get_input_embeddings(),
        "decoder": module.get_decoder().get_input_embeddings(),
    }


def step(model: EncoderDecoder, e: AnswerExplanation, t: int) -> Tensor:
    """log p of token t of the answer, after a pass over the source and only the tokens before it."""
    prompt = model.encode_prompt(Prompt.of(e.prompt))
    starts = len(model.start)
    answer = model.tokenizer.convert_tokens_to_ids(list(e.answer_tokens))
    source, decoder = list(prompt.ids[:-starts]), [*prompt.ids[-starts:], *answer[:t]]
    module: Any = model.module
    logits = module(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([decoder])).logits
    return logits[0, -1].log_softmax(-1)[answer[t]]


@pytest.mark.parametrize("shape", ENCODER_DECODERS)
def test_gradients_are_those_of_each_step(shape: str):
    model = model_of(shape)
    e = given(model)
    for t, row in enumerate(e.matrix):
        seen: dict[str, Tensor] = {}

        def keep(side: str, output: Tensor, seen: dict[str, Tensor] = seen) -> Tensor:
            seen[side] = output.detach().requires_grad_()
            return seen[side]

        with hooked(layers(model), keep):
            f = step(model, e, t)
        slopes = torch.autograd.grad(f, [seen["source"], seen["decoder"]])
        expected = [v for g, x in zip(slopes, seen.values(), strict=True) for v in (g * x.detach())[0].sum(-1).tolist()]
        assert e.values[t] == pytest.approx(f.item(), abs=1e-5)
        assert list(row[: len(expected)]) == pytest.approx(expected, abs=1e-5, rel=1e-4)
        assert set(row[len(expected) :]) <= {None}
    assert e.total == pytest.approx([sum(v or 0.0 for v in column) for column in zip(*e.matrix, strict=True)], abs=1e-4)


@pytest.mark.parametrize("shape", ENCODER_DECODERS)
def test_occlusion_erases_one_token_of_either_side_at_a_time(shape: str):
    model = model_of(shape)
    e = given(model, method="occlusion", erase="mean")
    starts = len(model.start)
    own = e.prompt_tokens - starts
    with torch.no_grad():
        mean = layers(model)["source"](torch.arange(model.words.num_embeddings)).mean(0)
        for t in range(len(e.matrix)):
            for column in range(e.prompt_tokens + t):
                side, at = ("source", column) if column < own else ("decoder", column - own)

                def erase(which: str, output: Tensor, side: str = side, at: int = at) -> Tensor:
                    if which == side:
                        output[:, at] = mean
                    return output

                with hooked(layers(model), erase):
                    without = float(step(model, e, t))
                drop = 0.0 if e.source_special[column] else float(step(model, e, t)) - without
                assert e.matrix[t][column] == pytest.approx(drop, abs=1e-5)


def test_deleted_tokens_of_the_source_are_not_read():
    model = model_of("bart")
    e = given(model, method="occlusion", erase="delete")
    prompt = model.encode_prompt(Prompt.of(SOURCE))
    source = prompt.ids[: -len(model.start)]
    for column in range(1, len(source) - 1):
        shorter = explain_answer(model, source[:column] + source[column + 1 :], answer=ANSWER, method="uniform")
        assert e.total[column] == pytest.approx(sum(e.values) - sum(shorter.values), abs=1e-4)
    assert set(e.total[len(source) :]) == {0.0}  # the answer that is explained cannot be deleted


@pytest.mark.parametrize("shape", ENCODER_DECODERS)
def test_attention_is_half_cross_attention_and_half_self_attention(shape: str):
    model = model_of(shape)
    e = given(model, method="attention")
    prompt = model.encode_prompt(Prompt.of(SOURCE))
    ids = model.encode_answer(prompt, ANSWER).ids
    starts = len(model.start)
    other = encoder_decoder(shape, torch.float64)
    other.module.set_attn_implementation("eager")
    module: Any = other.module
    with torch.no_grad():
        output = module(
            input_ids=torch.tensor([prompt.ids[:-starts]]),
            decoder_input_ids=torch.tensor([prompt.ids[-starts:] + ids[:-1]]),
            output_attentions=True,
        )
    cross, own = output.cross_attentions[-1][0].mean(0), output.decoder_attentions[-1][0].mean(0)
    for t, row in enumerate(e.matrix):
        at = starts - 1 + t
        expected = [*(cross[at] / 2).tolist(), *(own[at, : at + 1] / 2).tolist()]
        assert list(row[: len(expected)]) == pytest.approx(expected, abs=1e-6)
        assert sum(expected) == pytest.approx(1)


@pytest.mark.parametrize("rules", ["conservative", "cp"])
def test_relevance_is_conserved_without_biases(rules: str):
    e = given(model_of("t5"), method="lrp", kind="logit", rules=rules, epsilon=0.0)
    assert e.gaps["conservation"] == pytest.approx([0.0] * len(e.matrix), abs=1e-4)


# ------------------------------------------------------------------------------------------------ can it be believed

SENTENCES = ("The film was good.", "It was not bad.", "We saw it twice.", "The end was sad.")


def logs(model: EncoderDecoder, source: Sequence[int], answer: Sequence[int]) -> Tensor:
    """log p of the whole vocabulary before each token of the answer, one pass per token."""
    module: Any = model.module
    with torch.no_grad():
        rows = [
            module(
                input_ids=torch.tensor([list(source)]), decoder_input_ids=torch.tensor([[*model.start, *answer[:t]]])
            ).logits[0, -1]
            for t in range(len(answer))
        ]
    return torch.stack(rows).log_softmax(-1)


def log_p(model: EncoderDecoder, source: Sequence[int], answer: Sequence[int]) -> float:
    return float(logs(model, source, answer).gather(1, torch.tensor(answer)[:, None]).sum())


def sides(model: EncoderDecoder, prompt: Prompt) -> tuple[Encoded, list[int], list[int]]:
    """A prompt, the tokens of the source, and those of the answer."""
    encoded = model.encode_prompt(prompt)
    return encoded, list(encoded.ids[: -len(model.start)]), list(model.encode_answer(encoded, ANSWER).ids)


@pytest.mark.parametrize("shape", ENCODER_DECODERS)
def test_evaluated_answers_are_forced_after_a_source_without_its_top_sentences(shape: str):
    model, text = model_of(shape), " ".join(SENTENCES)
    table = evaluate_answers(model, [text], ["input_x_gradient", "occlusion"], answers=[ANSWER], masks=8)
    prompt, source, answer = sides(model, Prompt.of(text))
    case = Case(model, prompt, model.encode_answer(prompt, ANSWER), "sentence")
    own = case.owners[: len(source)]
    whole = log_p(model, source, answer)
    without = [log_p(model, [i for i, n in zip(source, own, strict=True) if n != s], answer) for s in range(4)]
    e = given(model, text, "input_x_gradient", by="sentence", per="answer")
    tops = {
        "input_x_gradient": int(np.argmax([s.score for s in e.by("sentence")])),
        "occlusion": int(np.argmin(without)),
    }
    for method, top in tops.items():
        assert table.cells[method, "top_1_drop"].values[0] == pytest.approx(whole - without[top], abs=1e-4)
    kept = held_out(case, 8, 0)
    values = [log_p(model, [i for i, n in zip(source, own, strict=True) if n < 0 or row[n]], answer) for row in kept]
    expected = spearmanr(kept @ (whole - np.array(without)), values).statistic
    assert table.cells["occlusion", "lds"].values[0] == pytest.approx(expected, abs=1e-6)
    assert all(np.isfinite(cell.values).all() for key, cell in table.cells.items() if key[1] != "top_5_drop")


@pytest.mark.parametrize("shape", ENCODER_DECODERS)
def test_dependence_compares_the_source_with_and_without_its_context(shape: str):
    model, question, context = model_of(shape), "Was it good?", ["The film was bad.", "We saw it twice."]
    e = context_dependence(model, question, context, ANSWER, "occlusion", erase="mean")
    full, source, answer = sides(model, Prompt.with_context(question, context))
    _, bare, _ = sides(model, Prompt.of(question))
    p, q = (logs(model, ids, answer) for ids in (source, bare))
    kl = (p.exp() * (p - q)).sum(1)
    assert e.divergences == pytest.approx(kl.tolist(), abs=1e-5)
    assert [d.position for d in e.dependent] == (kl > kl.mean() + kl.std(correction=0)).nonzero()[:, 0].tolist()
    with torch.no_grad():
        mean = layers(model)["source"](torch.arange(model.words.num_embeddings)).mean(0)
    for d in e.dependent:
        token, other = answer[d.position], int(q[d.position].argmax())
        for column in range(len(source)):

            def erase(side: str, output: Tensor, column: int = column) -> Tensor:
                if side == "source":
                    output[:, column] = mean
                return output

            with hooked(layers(model), erase):
                less = logs(model, source, answer)[d.position]
            drop = (p[d.position, token] - p[d.position, other]) - (less[token] - less[other])
            assert d.scores[column] == pytest.approx(0.0 if full.special[column] else float(drop), abs=1e-5)
    assert all(
        e.prompt[c.start : c.end].strip() in "The film was bad. We saw it twice." for d in e.dependent for c in d.cues
    )


def test_needles_are_planted_in_the_source():
    result = needle(
        model_of("t5"), ["occlusion", "gradient"], items=2, tokens=60, use=Use(probability=0.0, drop=1e-9, decoy=1e9)
    )
    assert result.evaluation.texts == 2
    assert {m for m, _ in result.evaluation.cells} == {"occlusion", "gradient", *CONTROLS}


@pytest.mark.parametrize("method", ["context_cite", "lime"])
def test_a_source_without_special_tokens_is_never_deleted_whole(method: str):
    """Token ids need not end with the token that ends a source."""
    model = model_of("t5")
    _, source, _ = sides(model, Prompt.of("fine"))
    prompt = [i for i in source if i not in model.tokenizer.all_special_ids]
    e = explain_answer(
        model, prompt, method, answer=ANSWER, erase="delete", unit="token", per="answer", **SMALLER.get(method, {})
    )
    assert any(e.total)


# ------------------------------------------------------------------------------------------------ answers


def test_segments_contrasts_and_credit_through_the_answer():
    model = model_of("t5")
    e = given(model, "A fine film. Not bad.", "occlusion", by="sentence")
    assert [s.text for s in e.by("sentence")] == ["A fine film.", "Not bad."]
    assert sum(s.score for s in e.by("sentence")) + e.template == pytest.approx(sum(e.total))
    why = explain_answer(model, SOURCE, "occlusion", answer="good", against_answer="bad")
    one, other = (explain_answer(model, SOURCE, "occlusion", answer=a, erase="mask") for a in ("good", "bad"))
    size = why.prompt_tokens
    assert why.total == pytest.approx([a - b for a, b in zip(one.total[:size], other.total[:size], strict=True)])
    passed_on = given(model, through_answer=True)
    assert sum(passed_on.total[: passed_on.prompt_tokens]) == pytest.approx(1, abs=0.2)
    words = [word for word, _ in given(model).word_totals()]
    assert words == ["A", "fine", "film", "of", "heart", ".", "a", "fine", "mess"][: len(words)]


def test_words_of_source_and_answer_are_erased_apart():
    """The last word of the source and the first of the answer do not become one."""
    e = given(model_of("t5"), "A fine film", "occlusion", unit="word")
    size = e.prompt_tokens
    last = [n for n, (a, b) in enumerate(e.source_offsets[:size]) if e.prompt[a:b].strip() in "film" and a >= 6]
    first = [n + size for n, (a, b) in enumerate(e.answer_offsets[:-1]) if e.answer[a:b].strip() == "a"]
    assert {round(e.total[n], 6) for n in last}.isdisjoint({round(e.total[n], 6) for n in first})


def test_several_sources_are_explained_as_if_alone():
    model = model_of("mbart")
    both = explain_answers(model, [SOURCE, "Good"], "lrp", generate=5)
    for e, source in zip(both, (SOURCE, "Good"), strict=True):
        alone = explain_answer(model, source, "lrp", generate=5)
        assert e.answer_tokens == alone.answer_tokens
        assert e.total == pytest.approx(alone.total, abs=1e-6)


def test_a_long_source_leaves_as_much_room_for_the_answer_as_a_short_one(tmp_path: Path):
    """The window is 64 tokens, for the source and for the answer each."""
    model = model_of("bart")
    long = " ".join(["A fine film of heart."] * 4)
    assert len(model.encode_prompt(Prompt.of(long))) + 8 > model.window
    run_of = explain_answer_data(model, [long], tmp_path / "run", "input_x_gradient", generate=8, per="answer")
    assert len(run_of) == 1


def test_a_prediction_is_not_explained_instead_of_an_answer():
    import salience

    with pytest.raises(
        BadInput, match=r"no prediction but its answer; explain that with --generate .* or salience.explain_answer"
    ):
        salience.explain(model_of("t5"), SOURCE)
