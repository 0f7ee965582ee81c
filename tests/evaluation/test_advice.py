"""The recommendation: equal methods are not told apart, chance is not recommended, and a better method is found."""

from dataclasses import replace

import numpy as np
import pytest

from salience.evaluation.advice import advice, verdict
from salience.evaluation.table import Evaluation, compared
from salience.metrics import find_metric
from salience.views.evaluation import headline

METRICS = (
    "comprehensiveness",
    "sufficiency",
    "hiding_area",
    "decision_flip",
    "log_odds",
    "deletion_area",
    "insertion_area",
)
ROWS = ("a", "b", "c", "d", "random", "uniform", "position")


def table(values: np.ndarray, metrics: tuple[str, ...] = METRICS, draws: int = 199, seed: int = 0) -> Evaluation:
    """A table of values, texts × rows × metrics, all of which are better if higher."""
    chosen = [find_metric(name) for name in metrics[: values.shape[2]]]
    sign = [1 if m.better == "higher" else -1 for m in chosen]
    each = {m.name: sign[i] * values[:, :, i] for i, m in enumerate(chosen)}
    cells = {(c.method, c.metric): c for c in compared(ROWS, chosen, each, draws=draws, seed=seed)}
    names = tuple(m.name for m in chosen)
    return Evaluation("m", len(values), 0, (), ROWS, names, cells, {}, {}, {"erase": "mask"})


def drawn(rng: np.random.Generator, n: int, metrics: int, methods: float = 0.0, first: float = 0.0) -> np.ndarray:
    """Values of variance 1: half of it of the text, a quarter of the text and the method, a quarter of everything.

    ``methods`` is how much better the methods are than the controls, ``first`` how much the first is than the others.
    """
    text, method, rest = (rng.normal(size=(n, rows, k)) for rows, k in ((1, 1), (7, 1), (7, metrics)))
    values = np.sqrt(0.5) * text + 0.5 * method + 0.5 * rest
    values[:, :4] += methods
    values[:, :1] += first
    return values


SIZES = [(15, 7), (50, 4)]
"""Texts and metrics. 200 tables tell an error rate of 4 % from one of 10 %."""


@pytest.mark.parametrize(("n", "metrics"), SIZES)
def test_equal_methods_are_named_together(n: int, metrics: int):
    rng = np.random.default_rng(99)
    told = [advice(table(drawn(rng, n, metrics, methods=1.5)))[0] for _ in range(200)]
    assert sum("use a, b, c or d: each is best or" in sentence for sentence in told) >= 190


@pytest.mark.parametrize(("n", "metrics"), SIZES)
def test_methods_no_better_than_random_are_not_recommended(n: int, metrics: int):
    rng = np.random.default_rng(99)
    told = [advice(table(drawn(rng, n, metrics)))[0] for _ in range(200)]
    assert sum("significantly better than random" in t and "Do not rely on them yet" in t for t in told) >= 190


def test_methods_equal_on_skewed_and_tied_values_are_named_together():
    """Values as decisions give them: most are 0, and many are equal."""
    rng, told = np.random.default_rng(1), list[str]()
    for _ in range(60):
        values = np.round(np.maximum(0, drawn(rng, 40, 4, methods=1.0) ** 3), 0)
        told.append(advice(table(values))[0])
    assert sum("a, b, c or d" in t or t.startswith("None of these methods") for t in told) >= 57


def test_a_better_method_is_found():
    rng = np.random.default_rng(2)
    told = [advice(table(drawn(rng, 100, 4, methods=0.5, first=0.5)))[0] for _ in range(30)]
    assert sum("use a: it is best" in sentence for sentence in told) >= 24


def test_the_sentence_says_what_was_tested():
    rng = np.random.default_rng(3)
    values = drawn(rng, 60, 2, methods=1.5)
    values[:, 3] -= 1.5  # d is no better than random
    sentences = advice(table(values))
    assert sentences[0] == (
        "For m on these texts, use a, b or c: each is best or statistically indistinguishable from the best on 2 of "
        "2 faithfulness metrics (comprehensiveness, sufficiency; all pairs of 4 methods were compared, p ≤ 0.05, "
        "corrected for all methods and metrics; n = 60 texts, erasure: mask)."
    )
    assert sentences[1] == (
        "Significantly better than random (p ≤ 0.05, corrected for all methods and metrics): a, b and c on 2 of 2 "
        "faithfulness metrics."
    )
    details = verdict(table(values))
    assert any(s.startswith("comprehensiveness: not significantly better than random") for s in details)
    assert any("has the best mean; none is significantly better (p ≤ 0.05, corrected" in s for s in details)


def test_a_method_among_the_best_that_may_be_no_better_than_random_is_marked():
    rng = np.random.default_rng(0)
    values = 0.1 * rng.normal(size=(12, 7, 1))
    values[:, 0] += 1.0
    values[:, 1] += 4.0 * rng.normal(size=(12, 1))  # anything may be true of it
    values[:, 2:4] -= 1.0
    sentences = advice(table(values, draws=2000))
    assert "use a or b: each is best" in sentences[0]
    assert "a on 1 of 1 faithfulness metric; b on none of 1 faithfulness metric" in sentences[1]


def test_position_ahead_of_all_that_are_named_is_a_caution():
    rng = np.random.default_rng(0)
    values = 0.1 * rng.normal(size=(20, 7, 2))
    values[:, :2] += 1.0
    values[:, 6, 0] += 2.0
    sentences = advice(table(values, draws=2000))
    assert sentences[-1].startswith(
        "Caution: position, a control that ranks the first words highest, has a better mean"
    )
    assert "comprehensiveness (" in sentences[-1]
    assert "sufficiency" not in sentences[-1]
    values[:, 6, 1] += 2.0
    assert advice(table(values, draws=2000))[0].startswith(
        "The most faithful of these methods for m on these texts is a or b"
    )


def test_robustness_is_tested_apart_and_has_no_star():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(20, 7, 2)) + np.array([3.0, 3, 3, 3, 0, 0, 0])[:, None]
    both = table(values, ("comprehensiveness", "max_sensitivity"))
    alone = table(values[:, :, :1], ("comprehensiveness",))
    assert both.cells["a", "comprehensiveness"] == alone.cells["a", "comprehensiveness"]
    assert both.cells["a", "comprehensiveness"].beats_random
    assert not any(both.cells[name, "max_sensitivity"].beats_random for name in ROWS)
    assert all(c.against_best is None for (name, _), c in both.cells.items() if name not in "abcd")
    assert sum(both.cells[name, "comprehensiveness"].against_best is None for name in "abcd") == 1


def test_a_method_is_beaten_by_each_that_is_significantly_better():
    rng = np.random.default_rng(0)
    values = 0.1 * rng.normal(size=(20, 7, 2)) + np.array([3.0, 3, 2, 1, 0, 0, 0])[:, None]
    evaluation = table(values, draws=999)
    for metric in METRICS[:2]:  # of which the second is better if lower
        beaten = {name: evaluation.cells[name, metric].beaten_by for name in ROWS}
        assert beaten == {"a": (), "b": (), "c": ("a", "b"), "d": ("a", "b", "c"), **dict.fromkeys(ROWS[4:], ())}
        best = evaluation.best(metric)
        assert evaluation.cells[best, metric].against_best is None
        assert abs(evaluation.cells["d", metric].against_best.mean) == pytest.approx(2, abs=0.1)


def steady(*means: float) -> np.ndarray:
    """Values of 20 texts for one metric, with exactly these means and a little noise."""
    noise = 0.1 * np.random.default_rng(0).normal(size=(20, 7, 1))
    return noise - noise.mean(0) + np.array(means)[None, :, None]


def test_the_details_list_the_methods_furthest_from_random_first():
    [better, rest] = verdict(table(steady(1, 3, 2, 0, 0, 0, 0), ("comprehensiveness",)))[2:]
    assert better.startswith("comprehensiveness: significantly better than random (mean ")
    assert better.index(": b 3.000, ") < better.index("; c 2.000, ") < better.index("; a 1.000, ")
    assert rest.startswith("comprehensiveness: not significantly better than random (mean ")
    assert ": d " in rest
    assert not any("not significantly better" in s for s in verdict(table(steady(3, 3, 2, 1, 0, 0, 0))))
    assert not any(": significantly better" in s for s in verdict(table(steady(0, 0, 0, 0, 0, 0, 0))))


def test_the_same_curve_read_from_both_ends_counts_once():
    one = np.concatenate([steady(1, 3, 2, 0, 0, 0, 0)] * 2, axis=2)
    [recommended, *_] = advice(table(one, ("hiding_area", "revealing_area")))
    assert "use b: it is best or" in recommended
    assert "on 1 of 1 faithfulness metric (hiding_area;" in recommended
    three = np.concatenate([one, one[:, :, :1]], axis=2)
    [recommended, *_] = advice(table(three, ("hiding_area", "revealing_area", "comprehensiveness")))
    assert "on 2 of 2 faithfulness metrics (hiding_area, comprehensiveness;" in recommended


def test_the_method_that_agrees_best_with_people_is_named():
    [sentence] = advice(table(steady(1, 3, 2, 0, 0, 0, 0), ("token_f1",)))
    assert sentence.startswith("Best agreement with human rationales: b (token_f1 3.000 [")
    assert "indistinguishable" not in sentence
    tied = np.concatenate([steady(3, 3, 2, 3, 0, 0, 0), steady(0, 0, 3, 0, 0, 0, 0)], axis=2)
    [sentence] = advice(table(tied, ("token_f1", "iou_f1")))  # the first metric alone is told
    best = sentence.removeprefix("Best agreement with human rationales: ")[0]
    others = ", ".join(name for name in "abd" if name != best)
    assert sentence.endswith(f" Statistically indistinguishable from the best mean: {others}.")
    [sentence] = advice(table(steady(2.99, 3.01, 2, 2.99, 0, 0, 0), ("token_f1",)))
    assert sentence.startswith("Best agreement with human rationales: b (token_f1 3.010 [")
    assert sentence.endswith(" Statistically indistinguishable from the best mean: a, d.")
    [sentence] = advice(table(steady(0.01, 0.03, 0.02, 0, 0, 0, 0), ("token_f1",)))
    assert sentence.startswith("No method agrees with human rationales significantly better than random")
    assert "The best mean is that of b (token_f1" in sentence


def test_methods_that_are_best_but_no_better_than_random_are_not_recommended():
    [all_of_them] = advice(table(steady(0, 0, 0, 0, 0, 0, 0), ("comprehensiveness",)))
    assert all_of_them.startswith("None of these methods is significantly better than random (p ≤ 0.05")
    [some] = advice(table(steady(0, 0, -3, -3, 0, 0, 0), ("comprehensiveness",)))
    assert some.startswith("The best of these methods, a or b, is not significantly better than random (p ≤ 0.05")


def test_a_metric_without_a_value_is_not_counted_for_a_method():
    half = np.concatenate([steady(0, 3, 0, 0, 0, 0, 0), np.full_like(steady(0, 0, 0, 0, 0, 0, 0), np.nan)], axis=2)
    sentence = advice(table(half))[0]
    assert sentence.startswith("For ")
    assert "use b: it is best" in sentence
    assert "on 1 of 1 faithfulness metric (comprehensiveness;" in sentence


def test_an_evaluation_without_a_value_says_so():
    empty = table(np.full((3, 7, 2), np.nan))
    [sentence] = advice(empty)
    assert sentence == (
        "Nothing could be measured: no value of comprehensiveness or sufficiency is defined on these texts."
    )
    [sentence] = headline(advice(replace(empty, settings={"erase": "delete", "by": "sentence"})))
    assert sentence.endswith(
        "because no prompt has more segments than are left out, so choose smaller ones such as by=word."
    )


@pytest.mark.parametrize(
    ("metric", "measured"),
    [
        ("input_invariance", "relative change of the scores"),
        ("max_sensitivity", "relative change of the scores"),
        (
            "parameter_randomisation",
            "absolute rank correlation with the explanations of a model with shuffled parameters",
        ),
    ],
)
def test_robustness_is_told_without_controls_the_lowest_first(metric: str, measured: str):
    [sentence] = verdict(table(-steady(1, 3, 2, 4, 0, 0, 0), (metric,)))
    assert sentence.startswith(f"{metric}: {measured}, lowest first: a 1.000 [")
    assert sentence.index("; c 2.000 [") < sentence.index("; b 3.000 [") < sentence.index("; d 4.000 [")
    assert "random" not in sentence.removeprefix(metric)
