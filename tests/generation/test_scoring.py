"""The matrix of an answer, against each token explained on its own, and other literal versions."""

import copy
from functools import cache
from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import salience
from salience.core.prompts import Prompt
from salience.core.randomness import generators
from salience.core.settings import settings_of
from salience.core.text import Encoded
from salience.errors import BadInput
from salience.explanations.explainer import prepare
from salience.generation import ANSWER_METHODS, context_dependence, explain_answer, scoring
from salience.generation.citing import context_cite, lasso, log_odds
from salience.generation.dependence import above
from salience.generation.explaining import Request, explain_encoded, joined
from salience.generation.hops import hops
from salience.methods import find_method
from salience.models.huggingface.adapter import HuggingFace
from salience.models.huggingface.answering import Answer
from shapes import build

PROMPT, ANSWER = "The film was good. It was not bad.", " fine and good"
SHAPES = ("llama_lm", "gpt2_lm")


@cache
def model(shape: str) -> HuggingFace:
    result = build(shape, dtype=torch.float64)
    assert isinstance(result, HuggingFace)
    return result


def encoded(lm: HuggingFace, prompt: str = PROMPT, answer: str = ANSWER) -> tuple[Encoded, Encoded]:
    one = lm.encode_prompt(Prompt(text=prompt))
    return one, lm.encode_answer(one, answer)


def literal_values(lm: HuggingFace, prompt: Encoded, answer: Encoded) -> list[float]:
    """Step by step, without a cache: one pass per token of the answer."""
    values = list[float]()
    lm.module.eval()
    for t, token in enumerate(answer.ids):
        ids = torch.tensor([prompt.ids + answer.ids[:t]])
        with torch.no_grad():
            logits = lm.module(input_ids=ids).logits[0, -1]
        values.append(float(logits.log_softmax(-1)[token]))
    lm.module.train()
    return values


@pytest.mark.parametrize("shape", SHAPES)
def test_values_are_those_of_one_pass_per_token_without_a_cache(shape: str):
    lm = model(shape)
    e = explain_answer(lm, PROMPT, "input_x_gradient", answer=ANSWER)
    assert e.values == pytest.approx(literal_values(lm, *encoded(lm)), abs=1e-6)


ONE_BY_ONE = (
    ("gradient", {}),
    ("input_x_gradient", {}),
    ("lrp", {}),
    ("occlusion", {"erase": "zero"}),
    ("occlusion", {"erase": "zero", "unit": "word"}),
    ("attention", {}),
)
"""Methods whose scores for a token can be had from its prefix alone, as the next token of a text."""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("method", "own"), ONE_BY_ONE)
def test_every_row_is_the_explanation_of_the_next_token_of_its_prefix(shape: str, method: str, own: dict):
    lm = model(shape)
    prompt, answer = encoded(lm)
    e = explain_answer(lm, PROMPT, method, answer=ANSWER, **own)
    for t, token in enumerate(answer.ids):
        text = PROMPT + answer.text[: answer.offsets[t][0]]
        assert lm.encode([text])[0].ids == prompt.ids + answer.ids[:t]  # else another text would be explained
        (alone,) = salience.explain(lm, text, method, target=token, kind="log_probability", **own)
        row = [v for v in e.matrix[t] if v is not None]
        assert row == pytest.approx(list(alone.scores), abs=1e-5), t
        assert {name: gap[t] for name, gap in e.gaps.items()} == pytest.approx(dict(alone.gaps), abs=1e-4), t


@pytest.mark.parametrize("rules", ["attnlrp", "cp", "conservative"])
def test_relevance_of_a_probability_is_that_of_its_log_probability_times_p(rules: str):
    """∂p/∂z = p ∂log p/∂z; neither is a function of the model that rules apply to."""
    lm = model("llama_lm")
    p, log_p = (
        explain_answer(lm, PROMPT, "lrp", answer=ANSWER, kind=kind, rules=rules)
        for kind in ("probability", "log_probability")
    )
    for row, other, value in zip(p.matrix, log_p.matrix, log_p.values, strict=True):
        expected = [None if v is None else v * exp(value) for v in other]
        assert [v for v in row if v is not None] == pytest.approx([v for v in expected if v is not None], rel=1e-4)


@pytest.mark.parametrize("margin", [2.0, 12.0, 18.0, 30.0])
def test_the_log_probability_of_an_almost_certain_token_is_exact(margin: float):
    """In single precision, 1 − 1e-8 is 1, but its logarithm is not 0."""
    logits = torch.full((1, 1, 50), 20.0 - margin)
    logits[0, 0, 3] = 20.0
    value = float(Answer(torch.tensor([3]), ("a",))(logits)[0, 0])
    assert value == pytest.approx(-np.log1p(49 * exp(-margin)), rel=1e-5)
    assert float(log_odds(np.array([value]))[0]) == pytest.approx(margin - log(49), abs=1e-4)


FEW = {"samples": 8, "nodes": 3, "layer": 2, "max_evals": 20}


def cheap(method) -> dict:
    """Few samples and nodes, and a layer where there must be one."""
    taken = {*settings_of(method)} - ({"layer"} if "attention" in method.__name__ else set())
    return {name: value for name, value in FEW.items() if name in taken}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", ANSWER_METHODS, ids=lambda m: m.__name__)
def test_the_whole_answer_alone_is_the_total_of_all_tokens(shape: str, method):
    lm, own = model(shape), cheap(method)
    each = explain_answer(lm, PROMPT, method.__name__, answer=ANSWER, **own)
    whole = explain_answer(lm, PROMPT, method.__name__, answer=ANSWER, per="answer", **own)
    assert whole.matrix == ()
    assert whole.total == pytest.approx(each.total, abs=1e-5)


ADDITIVE = ("input_x_gradient", "integrated_gradients", "occlusion", "lrp", "kernel_shap", "gradient_shap")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", ADDITIVE)
def test_methods_that_are_linear_in_f_add_up_over_the_tokens_of_the_answer(shape: str, method: str):
    lm = model(shape)
    own = cheap(find_method(method))
    e = explain_answer(lm, PROMPT, method, answer=ANSWER, **own)
    summed = np.array([[v or 0.0 for v in row[: e.prompt_tokens]] for row in e.matrix]).sum(0)
    assert e.total[: e.prompt_tokens] == pytest.approx(summed.tolist(), abs=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_model_is_left_untouched(shape: str):
    lm = model(shape)

    def facts():
        module = lm.module
        hooks = [
            len(h)
            for m in module.modules()
            for h in (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks, m._backward_pre_hooks)
        ]
        modes = [m.training for m in module.modules()]
        flags = [(p.requires_grad, p.dtype, p.grad is None) for p in module.parameters()]
        return hooks, (modes, flags), module.config.to_dict(), {k: v.clone() for k, v in module.state_dict().items()}

    before = copy.deepcopy(facts())
    prompt, answer = encoded(lm)
    methods = prepare(["gradient", "lrp", "attention", "attention_rollout", "occlusion", context_cite], {"samples": 8})
    explain_encoded(lm, prompt, answer, None, Request(methods))
    lm.distributions(lm.batch([joined(prompt, answer, None)]), len(answer))
    after = facts()
    assert after[:3] == before[:3]
    assert all(torch.equal(after[3][k], before[3][k]) for k in before[3])


# ------------------------------------------------------------------------------------------------------ hops


def literal_hops(matrix: np.ndarray, prompt: int) -> np.ndarray:
    """r = A_t; for k = t−1..0: r ← r + r_{P+k} A_k, r_{P+k} = 0."""
    A = np.clip(matrix, 0, None)
    for t in range(len(A)):
        A[t, prompt + t :] = 0
        if A[t].sum() > 0:
            A[t] /= A[t].sum()
    rows = []
    for t in range(len(A)):
        r = A[t].copy()
        for k in range(t - 1, -1, -1):
            passed = r[prompt + k]
            r[prompt + k] = 0
            r = r + passed * A[k]
        rows.append(r[:prompt])
    return np.array(rows)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 10**6))
def test_hops_are_the_literal_recursion(prompt: int, answer: int, seed: int):
    matrix = np.random.default_rng(seed).normal(size=(answer, prompt + answer - 1))
    assert np.allclose(hops(matrix.tolist(), prompt), literal_hops(matrix, prompt))


def test_the_way_through_an_answer_is_the_recursion_on_its_matrix():
    lm = model("llama_lm")
    plain = explain_answer(lm, PROMPT, "input_x_gradient", answer=ANSWER)
    through = explain_answer(lm, PROMPT, "input_x_gradient", answer=ANSWER, through_answer=True)
    matrix = np.array([[v or 0.0 for v in row] for row in plain.matrix])
    expected = literal_hops(matrix, plain.prompt_tokens)
    assert np.allclose([row[: plain.prompt_tokens] for row in through.matrix], expected)
    assert through.total[: plain.prompt_tokens] == pytest.approx(expected.mean(0).tolist())


@pytest.mark.parametrize(
    ("method", "settings"),
    [("context_cite", {"samples": 8}), ("occlusion", {"by": "word"}), ("occlusion", {"erase": "delete"})],
)
def test_an_answer_that_is_never_erased_has_no_credit_to_pass_on(method: str, settings: dict):
    lm = model("llama_lm")
    with pytest.raises(BadInput, match="erases parts of the prompt only, so the answer's own tokens have no scores"):
        explain_answer(lm, PROMPT, method, answer=ANSWER, through_answer=True, **settings)
    with pytest.raises(BadInput, match="no scores to pass on"):
        explain_answer(lm, PROMPT, method, answer=ANSWER, **settings).through_answer()


# ------------------------------------------------------------------------------------------------------ contrasts


@pytest.mark.parametrize(("method", "gaps"), [("context_cite", set()), ("lrp", {"conservation"})])
def test_only_gaps_of_sums_are_subtracted(method: str, gaps: set[str]):
    """A difference of two sums misses the difference of what they miss, but one of two 1 − R² means nothing."""
    lm, own = model("llama_lm"), {"samples": 8} if method == "context_cite" else {}
    one, other = (explain_answer(lm, PROMPT, method, answer=a, per="answer", **own) for a in (" fine", " bad film"))
    e = explain_answer(lm, PROMPT, method, answer=" fine", against_answer=" bad film", **own)
    assert dict(e.total_gaps) == pytest.approx({g: one.total_gaps[g] - other.total_gaps[g] for g in gaps})


# ------------------------------------------------------------------------------------------------------ segments


@pytest.mark.parametrize("by", ["document", "sentence", "word"])
def test_segments_and_what_is_outside_of_them_add_up(by: Any):
    """The blank lines between passages are tokens that belong to none."""
    context = ["The film was bad.", "We saw it twice."]
    e = explain_answer(model("llama_lm"), "Was it good?", "lrp", answer=ANSWER, context=context, by=by)
    whole = sum(s.score for s in e.by(by)) + e.template + e.outside
    assert whole == pytest.approx(sum(e.total[: e.prompt_tokens]), abs=1e-4)
    assert e.outside != 0
    assert e.to_dict()["outside"] == e.outside


# ------------------------------------------------------------------------------------------------------ ContextCite


@pytest.mark.parametrize("alpha", [0.0, 0.01, 0.3])
def test_the_surrogate_is_that_of_scikit_learn(alpha: float):
    linear_model = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)
    z = rng.random((64, 7)) < 0.5
    y = z @ rng.normal(size=7) + 0.1 * rng.normal(size=64)
    x = (z - z.mean(0)) / z.std(0)
    ours = lasso(x, y - y.mean(), alpha)
    theirs = linear_model.LinearRegression() if alpha == 0 else linear_model.Lasso(alpha=alpha, tol=1e-12)
    assert ours == pytest.approx(theirs.fit(x, y).coef_, abs=1e-6)


def test_log_odds_are_those_of_the_probability_however_extreme():
    assert log_odds(np.log([0.2, 0.5, 0.9])) == pytest.approx([log(1 / 4), 0, log(9)])
    assert log_odds(np.array([-800.0])) == pytest.approx([-800])
    certain = log_odds(np.array([0.0, 1e-9]))  # a sum of rounded numbers may exceed 0
    assert np.isfinite(certain).all()
    assert (certain > 30).all()


def test_the_settings_of_context_cite_are_those_of_its_authors():
    usual = {name: p.default for name, p in settings_of(context_cite).items()}
    assert (usual["samples"], usual["regularization"]) == (64, 0.01)


def test_context_cite_is_the_lasso_of_the_log_odds_on_the_same_masks():
    linear_model = pytest.importorskip("sklearn.linear_model")
    lm, prompt = model("llama_lm"), "The film was good. It was not bad. We saw it twice. The end was sad."
    e = explain_answer(lm, prompt, "context_cite", answer=ANSWER, by="sentence", samples=24, per="answer")
    one, answer = encoded(lm, prompt)
    text = joined(one, answer, "sentence", kept=True)
    batch = lm.batch([text])
    (rng,) = generators(batch, 0)
    z = (torch.rand(24, 4, generator=rng) < 0.5).numpy()
    units = np.array(text.units)
    log_p = []
    for kept in z:
        ids = [i for i, u in zip(text.ids, units, strict=True) if u < 0 or kept[u]]
        cut = len(ids) - len(answer.ids) + 1
        remaining = Encoded("", tuple(ids[:cut]), ("",) * cut, ((0, 0),) * cut, (False,) * cut)
        log_p.append(sum(literal_values(lm, remaining, answer)))
    y = np.array([log(exp(one) / (1 - exp(one))) for one in log_p]) / len(answer)
    scale = z.std(0)
    fitted = linear_model.Lasso(alpha=0.01, tol=1e-12).fit((z - z.mean(0)) / scale, y)
    expected = fitted.coef_ * len(answer) / scale
    assert [s.score for s in e.by("sentence")] == pytest.approx(expected.tolist(), abs=1e-5)


# ------------------------------------------------------------------------------------------------------ dependence


@pytest.mark.parametrize("method", ["context_cite", "lime"])
def test_no_random_prompt_is_empty(method: str):
    """A fourth of all masks would erase both sentences, and an answer needs something before its first token."""
    lm = model("llama_lm")
    settings = {"erase": "delete", "samples": 32, "by": "sentence", "per": "answer"}
    seen = list[int]()
    plain = type(lm.network).__call__

    def counting(self, batch, *args, **kwargs):
        seen.extend(batch.mask.sum(1).tolist())
        return plain(self, batch, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(lm.network), "__call__", counting)
        e = explain_answer(lm, PROMPT, method, answer=ANSWER, **settings)
    assert min(seen) >= len(e.answer_tokens)
    assert all(s.score for s in e.by("sentence"))


@pytest.mark.parametrize("method", ["occlusion", "context_cite", "kernel_shap"])
def test_a_prompt_that_would_be_deleted_whole_is_refused(method: str):
    settings = {"erase": "delete", "by": "sentence", "per": "answer"}
    with pytest.raises(BadInput, match="nothing would be left of a prompt before its answer; erase by replacing"):
        explain_answer(model("llama_lm"), "The film was good.", method, answer=ANSWER, **settings)


@pytest.mark.parametrize("shape", SHAPES)
def test_dependence_on_a_context_is_that_of_the_literal_version(shape: str):
    lm, question, context = model(shape), "Was it good?", ["The film was bad.", "We saw it twice."]
    answer = " fine and good film was not bad"
    e = context_dependence(lm, question, context, answer, "input_x_gradient")
    full = lm.encode_prompt(Prompt.with_context(question, context))
    bare = lm.encode_prompt(Prompt(text=question))
    said = lm.encode_answer(full, answer)
    lm.module.eval()
    logs = []
    for prompt in (full, bare):
        rows = [lm.module(input_ids=torch.tensor([prompt.ids + said.ids[:t]])).logits[0, -1] for t in range(len(said))]
        logs.append(torch.stack(rows).log_softmax(-1).detach())
    lm.module.train()
    p, q = logs
    kl = (p.exp() * (p - q)).sum(1).numpy()
    assert e.divergences == pytest.approx(kl.tolist(), abs=1e-5)
    chosen = [t for t in range(len(said)) if kl[t] > kl.mean() + kl.std()]
    assert [d.position for d in e.dependent] == chosen
    assert chosen
    for d in e.dependent:
        other = int(q[d.position].argmax())
        ids = torch.tensor([full.ids + said.ids[: d.position]])
        with torch.enable_grad():
            x = lm.module.get_input_embeddings()(ids).detach().requires_grad_(True)
            lm.module.eval()
            logits = lm.module(inputs_embeds=x).logits[0, -1].log_softmax(-1)
            lm.module.train()
            (slope,) = torch.autograd.grad(logits[said.ids[d.position]] - logits[other], x)
        scores = (slope * x).sum(-1)[0, : len(full)].detach().numpy()
        special = np.array(full.special)
        assert np.array(d.scores)[~special] == pytest.approx(scores[~special], abs=1e-5)
        documents = [part for part in full.parts if part.kind == "document"]
        inside = [n for n, (a, b) in enumerate(full.offsets) if any(s.start < b and a < s.end for s in documents)]
        own = scores[inside]
        cues = {full.offsets[n] for n in inside if scores[n] > own.mean() + own.std()}
        assert {(c.start, c.end) for c in d.cues} == cues
        assert [c.score for c in d.cues] == sorted((c.score for c in d.cues), reverse=True)


def test_dependence_reads_well_and_checks_its_input():
    lm = model("llama_lm")
    e = context_dependence(lm, "Was it good?", ["The film was bad."], ANSWER)
    assert str(e).splitlines()[0] == f"{len(e.dependent)} of {len(e.answer_tokens)} tokens depend on the context"
    with pytest.raises(BadInput, match="by one method"):
        context_dependence(lm, "Was it good?", ["Bad."], ANSWER, ["lrp", "gradient"])
    with pytest.raises(BadInput, match="by one method"):
        context_dependence(lm, "Was it good?", ["Bad."], ANSWER, [])
    with pytest.raises(BadInput, match="at least one passage"):
        context_dependence(lm, "Was it good?", [], ANSWER)
    with pytest.raises(
        BadInput, match="context_cite explains the log-probability of an answer, and cues are those of a"
    ):
        context_dependence(lm, "Was it good?", ["Bad."], ANSWER, "context_cite")


@pytest.mark.parametrize("values", [[2.0], [0.1, 0.7], [0.7, 0.1], [8.0, 0.01], [3.0, 0.1, 0.1]])
def test_a_short_answer_can_depend_on_its_context(values: list[float]):
    """The larger of two numbers is their mean plus one standard deviation, up to rounding, and one number its mean."""
    assert np.flatnonzero(above(np.array(values))).tolist() == [int(np.argmax(values))]
    assert not above(np.zeros(len(values))).any()


def test_a_contrast_with_itself_has_no_cues():
    lm = model("llama_lm")
    prompt, answer = encoded(lm)
    view = lm.answering(Answer(torch.tensor(answer.ids), answer.tokens, against=torch.tensor(answer.ids)))
    assert float(view(lm.batch([joined(prompt, answer, None)])).logits.detach().abs().max()) == 0


@pytest.mark.parametrize("method", ["input_x_gradient", "attention", "attention_x_gradient", "layer_saliency"])
def test_as_many_tokens_are_explained_at_once_as_there_is_room_for(method: str, monkeypatch: pytest.MonkeyPatch):
    """In numbers of four bytes: gradients of the embeddings, weights that are read, states of all layers."""
    lm = model("llama_lm")
    settings = {"layer": 1} if method == "layer_saliency" else {}
    whole = explain_answer(lm, PROMPT, method, answer=ANSWER, **settings)
    n, config = len(whole.source_tokens), lm.module.config
    states = n * config.hidden_size
    numbers = {
        "input_x_gradient": states,
        "attention": states + n * n,
        "attention_x_gradient": states + lm.layers * config.num_attention_heads * n * n,
        "layer_saliency": states * (1 + lm.layers),
    }
    counts: list[int] = []
    look = scoring._look

    def counted(view: Any, batch: Any, targets: Any, group: Any) -> Any:
        counts.append(len(targets))
        return look(view, batch, targets, group)

    monkeypatch.setattr(scoring, "_look", counted)
    monkeypatch.setattr(scoring, "ROOM", 4 * 2 * numbers[method])
    again = explain_answer(lm, PROMPT, method, answer=ANSWER, **settings)
    assert set(counts[:-1]) == {2}
    assert sum(counts) == len(whole.answer_tokens) + 1  # and the whole answer
    assert again.total == pytest.approx(whole.total, abs=1e-5)


def test_the_gradients_of_the_whole_answer_are_the_sum_of_those_of_its_tokens(monkeypatch: pytest.MonkeyPatch):
    """So a matrix takes one backward pass per token, and the total of a norm is that of the sum."""
    lm, passes, grad = model("llama_lm"), list[int](), torch.autograd.grad

    def counted(*arguments: Any, **options: Any) -> Any:
        passes.append(1)
        return grad(*arguments, **options)

    monkeypatch.setattr(torch.autograd, "grad", counted)
    for method in ("gradient", "input_x_gradient", "lrp"):
        passes.clear()
        matrix = explain_answer(lm, PROMPT, method, answer=ANSWER)
        assert len(passes) == len(matrix.answer_tokens)
        alone = explain_answer(lm, PROMPT, method, answer=ANSWER, per="answer")
        assert matrix.total == pytest.approx(alone.total, rel=1e-4, abs=1e-5)
