"""One table: every metric by erasure × every model shape, against slow literal versions. The list enrols them here."""

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from inspect import signature
from itertools import pairwise
from math import inf, log
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau, spearmanr
from sklearn import metrics as sklearn_metrics
from torch import Tensor

from salience.core.erasure import eraser, usual
from salience.core.passes import forward, resolve
from salience.core.randomness import generators
from salience.core.target import Target
from salience.core.types import Batch, Model, Targets
from salience.errors import BadInput
from salience.metrics import METRICS, Metric
from salience.metrics.agreement import kendall, overlap, spearman
from salience.metrics.erasing import Answers, by_erasure, measured
from salience.metrics.plausibility import auprc, average_precision, iou_f1, roc_auc, token_f1
from shapes import TEXTS, build

BY_ERASURE = [m for m in METRICS if m.needs == "erasure"]
AGAINST_RATIONALES = [m for m in METRICS if m.needs == "rationale"]
KINDS = ["bert", "roberta", "modernbert", "gpt2", "llama_lm", "bert_multi_label", "pooled_bilstm"]
"""Of all shapes, one of each kind: metrics pass them all in the same way."""
NAMES = [m.__name__ for m in BY_ERASURE]
SMALLER: dict[str, dict[str, Any]] = {"infidelity": {"samples": 5}}
BINS = (0.01, 0.05, 0.1, 0.2, 0.5)
"""The shares of tokens in ERASER (DeYoung et al. 2020), stated here and not imported: they are part of the metric."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "comprehensiveness": {"shares": BINS},
    "sufficiency": {"shares": BINS},
    "log_odds": {"shares": (0.2,)},
    **{f"{name}_area": {"points": 21} for name in ("deletion", "insertion", "hiding", "revealing")},
    "decision_flip": {},
    "infidelity": {"samples": 50, "chance": 0.2, "seed": 0},
    "token_f1": {"share": 0.2},
    "iou_f1": {"share": 0.2},
    **{name: {} for name in ("auprc", "average_precision", "roc_auc", "loo_spearman", "loo_kendall")},
    "max_sensitivity": {"radius": 0.02, "samples": 10, "seed": 0},
    "input_invariance": {"seed": 0},
    "parameter_randomisation": {"share": 1.0, "seed": 0},
}
"""The settings that a number without settings was computed with."""

ANY, SHARE, SIGNED, POSITIVE = (-inf, inf), (0, 1), (-1, 1), (0, inf)
DESCRIBED: dict[str, tuple[str, str, str, tuple[float, float]]] = {
    "comprehensiveness": ("faithfulness", "higher", "erasure", SIGNED),
    "sufficiency": ("faithfulness", "lower", "erasure", SIGNED),
    "log_odds": ("faithfulness", "lower", "erasure", ANY),
    "deletion_area": ("faithfulness", "lower", "erasure", SHARE),
    **{f"{name}_area": ("faithfulness", "higher", "erasure", SHARE) for name in ("insertion", "hiding", "revealing")},
    "decision_flip": ("faithfulness", "lower", "erasure", SHARE),
    "infidelity": ("faithfulness", "lower", "erasure", POSITIVE),
    **dict.fromkeys(("loo_spearman", "loo_kendall"), ("leave_one_out", "higher", "leave_one_out", SIGNED)),
    **dict.fromkeys(
        ("token_f1", "iou_f1", "auprc", "average_precision", "roc_auc"), ("plausibility", "higher", "rationale", SHARE)
    ),
    **dict.fromkeys(("max_sensitivity", "input_invariance"), ("robustness", "lower", "changed_model", POSITIVE)),
    "parameter_randomisation": ("robustness", "lower", "changed_model", SHARE),
}
"""What a metric measures, which direction is better, what it needs, and between which values it lies."""


@cache
def model_of(shape: str) -> Model:
    return build(shape, dtype=torch.float64)


def given(model: Model, texts: tuple[str, ...] = TEXTS) -> tuple[Batch, Tensor, Targets]:
    """A batch, scores that know nothing of it and depend on the text alone, and the predicted labels."""
    batch = model.batch(model.encode(texts))
    scores = torch.zeros(batch.ids.shape, dtype=torch.float64)
    for row, rng in enumerate(generators(batch, 7)):
        real = int(batch.mask[row].sum())
        scores[row, :real] = torch.randn(real, generator=rng, dtype=torch.float64).round(decimals=1)  # with ties
    return batch, scores, resolve(model, [Target(kind="probability")], forward(model, batch).logits)


# ------------------------------------------------------------------------------------------------------ oracles


class One:
    """One text, erased by hand: the slow and simple version of everything."""

    def __init__(self, model: Model, batch: Batch, scores: Tensor, target: Targets, row: int) -> None:
        self.model, self.batch = model, batch.take(slice(row, row + 1)).cut(slice(int(batch.mask[row].sum())))
        self.target, self.scores = target.take(slice(row, row + 1)), scores[row].tolist()
        self.content = [i for i, c in enumerate(self.batch.content[0].tolist()) if c]
        self.order = sorted(self.content, key=lambda i: -self.scores[i])  # sorted is stable
        self.n = len(self.content)
        self.known: dict[tuple[int, ...], tuple[float, int]] = {}

    def ask(self, erased: list[int]) -> tuple[float, int]:
        """Each question is put to the model once."""
        key = tuple(sorted(erased))
        if key not in self.known:
            self.known[key] = self._ask(erased)
        return self.known[key]

    def _ask(self, erased: list[int]) -> tuple[float, int]:
        where = torch.zeros_like(self.batch.mask)
        where[0, erased] = True
        rows, embeddings = eraser(self.model, usual(self.model))(self.batch, where)
        logits = forward(self.model, rows, embeddings=embeddings).logits
        decision = logits.argmax(1) if self.target.link == "softmax" else logits[0, self.target.labels] > 0
        return float(self.target(logits)), int(decision)

    def f(self, erased: list[int]) -> float:
        return self.ask(erased)[0]

    def count(self, share: float) -> int:
        return max(1, round(Fraction(str(share)) * self.n))

    def grid(self) -> list[int]:
        return [round(Fraction(q * self.n, 20)) for q in range(21)]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def trapezoids(values: list[float]) -> float:
    return mean([(a + b) / 2 for a, b in pairwise(values)])


def same(one: One, erased: list[int]) -> float:
    return float(one.ask(erased)[1] == one.ask([])[1])


def flip(one: One) -> float:
    for k in range(1, one.n + 1):
        if not same(one, one.order[:k]):
            return k / one.n
    return 1.0


def infidelity(one: One, samples: int = 5, chance: float = 0.2) -> float:
    (rng,) = generators(one.batch, 0)
    numbers = torch.rand(samples, one.n, generator=rng)
    sums, drops = [], []
    for row in numbers:
        chosen = [one.content[i] for i, x in enumerate(row.tolist()) if x < chance or x == float(row.min())]
        sums.append(sum(one.scores[i] for i in chosen))
        drops.append(one.f([]) - one.f(chosen))
    power = sum(s * s for s in sums)
    beta = sum(s * d for s, d in zip(sums, drops, strict=True)) / power if power else 0.0
    return mean([(beta * s - d) ** 2 for s, d in zip(sums, drops, strict=True)])


ORACLES: dict[str, Callable[[One], float]] = {
    "comprehensiveness": lambda o: mean([o.f([]) - o.f(o.order[: o.count(q)]) for q in BINS]),
    "sufficiency": lambda o: mean([o.f([]) - o.f(o.order[o.count(q) :]) for q in BINS]),
    "log_odds": lambda o: log(o.f(o.order[: o.count(0.2)])) - log(o.f([])),
    "decision_flip": flip,
    "deletion_area": lambda o: trapezoids([o.f(o.order[:k]) for k in o.grid()]),
    "insertion_area": lambda o: trapezoids([o.f(o.order[k:]) for k in o.grid()]),
    "hiding_area": lambda o: trapezoids([same(o, o.order[k:]) for k in reversed(o.grid())]),
    "revealing_area": lambda o: trapezoids([same(o, o.order[k:]) for k in o.grid()]),
    "infidelity": infidelity,
}


def run(metric: Metric, model: Model, *of: Any, **settings: Any) -> Tensor:
    return metric(model, *(of or given(model)), **SMALLER.get(metric.__name__, {}), **settings)


@pytest.mark.parametrize("shape", ["bert", "gpt2", "bert_multi_label", "pooled_lstm"])
def test_every_metric_is_what_its_formula_says(shape: str):
    model = model_of(shape)
    batch, scores, target = given(model)
    texts = [One(model, batch, scores, target, row) for row in range(len(batch))]
    for metric in BY_ERASURE:
        slow = [ORACLES[metric.__name__](one) for one in texts]
        assert run(metric, model).tolist() == pytest.approx(slow, abs=1e-5), metric


def test_defaults_are_those_of_the_papers_and_of_our_documentation():
    assert {m.name: {k: p.default for k, p in m.settings.items()} for m in METRICS} == DEFAULTS


def test_what_a_metric_says_of_itself():
    assert {m.name: (m.aspect, m.better, m.needs, m.limits) for m in METRICS} == DESCRIBED
    assert {m.name for m in METRICS if m.curve} == {
        f"{x}_area" for x in ("deletion", "insertion", "hiding", "revealing")
    }
    assert {m.name for m in METRICS if m.decides} == {"hiding_area", "revealing_area", "decision_flip"}
    assert {m.name for m in METRICS if m.until_flip} == {"decision_flip"}
    assert {m.name: repr(m) for m in METRICS} == {m.__name__: f"<metric {m.name}>" for m in METRICS}
    four = ["model", "batch", "scores", "target"]
    for metric in METRICS:
        names = list(signature(metric).parameters)
        assert metric.needs == "changed_model" or all(name in names for name in metric.settings)
        assert (names[:4] == four) == (names[-1:] == ["erase"]) == (metric.needs == "erasure"), metric
    (one,) = [m for m in METRICS if m.name == "deletion_area"]
    assert [p.kind.name for p in signature(one).parameters.values()] == ["POSITIONAL_ONLY"] * 4 + ["KEYWORD_ONLY"] * 2
    assert signature(one).parameters["erase"].default is None


@pytest.mark.parametrize("metric", [m for m in BY_ERASURE if m.name in ("comprehensiveness", "sufficiency")])
def test_a_long_text_has_five_bins(metric: Metric):
    """Of 100 tokens the bins are 1, 5, 10, 20 and 50; in short texts several of them are the same tokens."""
    model = model_of("pooled_embedding")
    batch, scores, target = given(model, ("a film of no heart " * 20,))
    (one,) = [One(model, batch, scores, target, 0)]
    assert one.n == 100
    drops = [
        one.f([]) - one.f(one.order[:k] if metric.name == "comprehensiveness" else one.order[k:])
        for k in (1, 5, 10, 20, 50)
    ]
    assert run(metric, model, batch, scores, target).tolist() == pytest.approx([mean(drops)], abs=1e-6)


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("comprehensiveness", [{"shares": ()}, {"shares": (0.0,)}, {"shares": (0.2, 1.01)}], {"shares": (1.0,)}),
        ("sufficiency", [{"shares": (-0.1,)}], {"shares": (0.001,)}),
        ("deletion_area", [{"points": 1}], {"points": 2}),
        ("infidelity", [{"samples": 0}, {"chance": -0.01}, {"chance": 1.01}], {"samples": 1, "chance": 1.0}),
    ],
)
def test_settings_out_of_range(name: str, wrong: list[dict[str, Any]], right: dict[str, Any]):
    (metric,) = [m for m in BY_ERASURE if m.name == name]
    model = model_of("pooled_embedding")
    for settings in wrong:
        with pytest.raises(BadInput, match=r"shares|points|infidelity"):
            metric(model, *given(model), **settings)
    assert metric(model, *given(model), **right).isfinite().all()


def test_scores_of_0_predict_no_effect():
    model = model_of("bert")
    batch, scores, target = given(model)
    (metric,) = [m for m in BY_ERASURE if m.name == "infidelity"]
    texts = [One(model, batch, 0 * scores, target, row) for row in range(len(batch))]
    assert metric(model, batch, 0 * scores, target, samples=5).tolist() == pytest.approx(
        [infidelity(one) for one in texts], abs=1e-6
    )


def all_of(model: Model, texts: tuple[str, ...] = TEXTS) -> Tensor:
    """Every metric of every text."""
    batch, scores, target = given(model, texts)
    chosen = [(m, SMALLER.get(m.__name__, {})) for m in BY_ERASURE]
    return torch.stack([result.value for result in measured(model, batch, [scores], target, chosen)[0]])


@pytest.mark.parametrize("shape", KINDS)
def test_other_texts_their_order_and_the_budget_change_nothing(shape: str):
    model = model_of(shape)
    together = all_of(model)
    assert together.isfinite().all()
    alone = torch.cat([all_of(model, (text,)) for text in TEXTS], 1)
    assert torch.allclose(together, alone, atol=1e-5)
    backwards = all_of(model, TEXTS[::-1])
    assert torch.allclose(together, backwards.flip(1), atol=1e-5)
    before, model.executor.budget = model.executor.budget, 24
    try:
        assert torch.allclose(together, all_of(model), atol=1e-5)
    finally:
        model.executor.budget = before


CONSTANT = {"hiding_area": 1.0, "revealing_area": 1.0, "decision_flip": 1.0}


@pytest.mark.parametrize("metric", BY_ERASURE, ids=NAMES)
def test_metrics_of_a_constant_model(metric: Metric):
    model = build("bert", dtype=torch.float64)
    with torch.no_grad():
        model.module.classifier.weight.zero_()
    batch, scores, target = given(model)
    if metric.__name__ in ("deletion_area", "insertion_area"):
        expected = target.value.tolist()
    else:
        expected = [CONSTANT.get(metric.__name__, 0.0)] * len(TEXTS)
    assert run(metric, model, batch, scores, target).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("metric", BY_ERASURE, ids=NAMES)
def test_important_tokens_score_better_than_unimportant_ones(metric: Metric):
    """A model that counts words: the average of the words' weights, so that the best explanation is known."""
    model = build("pooled_embedding", dtype=torch.float64)
    batch, _, target = given(model)
    from salience.methods import find_method

    right = find_method("occlusion")(model, batch, target).scores
    # The opposite of every score explains as well as the score, up to the sign that fits best.
    wrong = -right if metric.__name__ != "infidelity" else given(model)[1]
    good, bad = (float(run(metric, model, batch, s, target).mean()) for s in (right, wrong))
    assert good > bad if metric.better == "higher" else good < bad


@pytest.mark.parametrize("metric", BY_ERASURE, ids=NAMES)
def test_special_tokens_and_padding_are_ignored_and_ties_are_broken_by_position(metric: Metric):
    model = model_of("bert")
    batch, scores, target = given(model)
    loud = scores.masked_fill(~batch.content, 99.0)
    if metric.__name__ != "infidelity":
        assert torch.equal(run(metric, model, batch, loud, target), run(metric, model, batch, scores, target))
        flat, falling = torch.zeros_like(scores), -torch.arange(batch.width).expand_as(scores).double()
        assert torch.equal(run(metric, model, batch, flat, target), run(metric, model, batch, falling, target))
    else:
        assert torch.allclose(
            run(metric, model, batch, scores * 1e6, target), run(metric, model, batch, scores, target), atol=1e-9
        )


@pytest.mark.parametrize("kind", ["mask", "delete", "zero", "mean"])
def test_every_kind_of_erasure(kind: str):
    model = model_of("bert")
    for metric in BY_ERASURE:
        assert run(metric, model, erase=kind).isfinite().all()


def test_metrics_computed_together_run_no_row_twice():
    model = model_of("bert")
    batch, scores, target = given(model)
    seen: list[int] = []
    counted = type(model).__call__

    def count(self: Any, batch: Batch, **options: Any) -> Any:
        seen.append(len(batch))
        return counted(self, batch, **options)

    chosen = [(m, SMALLER.get(m.__name__, {})) for m in BY_ERASURE]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model), "__call__", count)
        ((*together,),) = measured(model, batch, [scores], target, chosen)
        at_once, seen[:] = sum(seen), []
        alone = [run(metric, model) for metric in BY_ERASURE]
    assert all(torch.allclose(a.value, b, atol=1e-9) for a, b in zip(together, alone, strict=True))
    assert at_once < 0.6 * sum(seen)
    n = batch.content.sum(1)
    assert at_once <= int((2 * n + 1 + 5).sum()), "a text has so many beginnings and ends in its order, and 5 draws"


@pytest.mark.parametrize("decides", [1.0, 0.0])
def test_nothing_is_passed_after_the_decision_has_changed(decides: float):
    """What comes after has no value and counts as changed; a text that has no tokens left is not passed again."""
    model = build("bert", dtype=torch.float64)
    with torch.no_grad():
        model.module.classifier.weight.mul_(decides)
    batch, scores, target = given(model)
    assert not model.causal  # which is found out by a pass, the first time
    (flipped,) = [m for m in BY_ERASURE if m.until_flip]
    seen: list[Answers] = []

    @by_erasure(flipped.prepare, better="lower", limits=(0, 1), until_flip=True)
    def looked_at(answers: Answers) -> Tensor:
        seen.append(answers)
        return answers.whole

    rows: list[int] = []
    handle = model.module.register_forward_pre_hook(
        lambda _, __, given: rows.append(len(given["input_ids"])), with_kwargs=True
    )
    try:
        looked_at(model, batch, scores, target)
    finally:
        handle.remove()
    (answers,), passed = seen, len(batch)
    for row in range(len(batch)):
        one = One(model, batch, scores, target, row)
        kept = [bool(same(one, one.order[:k])) for k in range(1, one.n + 1)]
        steps = kept.index(False) + 1 if False in kept else one.n
        passed += steps
        expected = [one.f(one.order[:k]) for k in range(1, steps + 1)]
        assert answers.values[:steps, row].tolist() == pytest.approx(expected, abs=1e-6)
        assert answers.kept[:steps, row].tolist() == kept[:steps]
        if False in kept:
            assert answers.values[steps:, row].isnan().all()
            assert not answers.kept[steps:, row].any()
    assert bool(answers.kept.all()) == (decides == 0)
    assert passed == sum(rows)


def test_a_regression_model_makes_no_decisions():
    model = model_of("bert_regression")
    batch = model.batch(model.encode(TEXTS))
    target = resolve(model, [Target()], forward(model, batch).logits)
    scores = torch.randn(batch.ids.shape, dtype=torch.float64)
    for metric in BY_ERASURE:
        if metric.__name__ in ("hiding_area", "revealing_area", "decision_flip"):
            with pytest.raises(BadInput, match=f"{metric.__name__} needs decisions"):
                metric(model, batch, scores, target)
        elif metric.__name__ != "log_odds":
            assert metric(model, batch, scores, target).isfinite().all()


# ------------------------------------------------------------------------------------------------------ plausibility


def draws(count: int = 60) -> list[tuple[np.ndarray, np.ndarray]]:
    """Scores with ties, and marks."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 30, size=count)
    return [(rng.normal(size=n).round(1), rng.random(n) < rng.uniform(0.1, 0.9)) for n in sizes]


def test_plausibility_is_that_of_scikit_learn():
    for scores, marks in draws():
        if marks.any():
            precision, recall, _ = sklearn_metrics.precision_recall_curve(marks, scores)
            assert auprc(scores, marks) == pytest.approx(sklearn_metrics.auc(recall, precision))
            assert average_precision(scores, marks) == pytest.approx(
                sklearn_metrics.average_precision_score(marks, scores)
            )
            order = sorted(range(len(scores)), key=lambda i: -scores[i])[: max(1, round(0.3 * len(scores)))]
            chosen = np.isin(np.arange(len(scores)), order)
            assert token_f1(scores, marks, share=0.3) == pytest.approx(sklearn_metrics.f1_score(marks, chosen))
        if marks.any() and not marks.all():
            assert roc_auc(scores, marks) == pytest.approx(sklearn_metrics.roc_auc_score(marks, scores))


def test_nothing_marked_is_undefined():
    scores = np.array([1.0, 2.0])
    for metric in AGAINST_RATIONALES:
        assert np.isnan(metric(scores, np.array([False, False])))
    assert np.isnan(roc_auc(scores, np.array([True, True])))


def test_spans_match_by_half_of_their_union():
    marks = np.array([1, 1, 1, 0, 0, 0, 1, 0, 0, 0], dtype=bool)
    exact = np.array([9, 8, 7, 0, 0, 0, 6, 0, 0, 0.0])
    assert iou_f1(exact, marks, share=0.4) == 1
    shifted = np.array([0, 9, 8, 7, 0, 0, 0, 0, 0, 0.0])  # 2 of 4 in common with the first, none with the second
    assert iou_f1(shifted, marks, share=0.3) == pytest.approx(2 * 1 * 0.5 / 1.5)
    apart = np.array([0, 0, 9, 8, 7, 0, 0, 0, 0, 0.0])  # 1 of 5
    assert iou_f1(apart, marks, share=0.3) == 0


# ------------------------------------------------------------------------------------------------------ agreement


def test_correlations_are_those_of_scipy():
    rng = np.random.default_rng(1)
    for _ in range(30):
        a, b = (rng.integers(0, 6, size=9).astype(float) for _ in range(2))
        assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
        assert kendall(a, b) == pytest.approx(kendalltau(a, b).statistic)
    flat = np.ones(4)
    for a, b in ((flat, np.arange(4.0)), (np.arange(4.0), flat), (np.ones(1), np.ones(1))):
        assert spearman(a, b) == kendall(a, b) == 0
    assert spearman(np.arange(2.0), np.array([3.0, 2.0])) == kendall(np.arange(2.0), np.array([3.0, 2.0])) == -1


def test_overlap():
    assert overlap(np.arange(10.0), np.arange(10.0)) == 1
    assert overlap(np.arange(10.0), -np.arange(10.0)) == 0
    assert overlap(np.array([3.0, 2, 1, 0]), np.array([3.0, 0, 2, 1]), share=0.5) == 0.5
    one, other = np.arange(10.0), np.array([0.0, 0, 0, 0, 0, 0, 0, 2, 1, 3])
    assert overlap(one, other) == 0.5, "two of ten"
