"""All kinds of explanation in one table, in words what each adds and costs, and published directions beside ours."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import isnan
from typing import Any

from salience.core.stats import Difference
from salience.evaluation.table import Cell, Evaluation
from salience.methods import CONTROLS
from salience.metrics.metric import Better
from salience.papers.beyond import (
    FAITHFULNESS,
    INTERACTIONS,
    BeyondResult,
    Direction,
    Explainer,
    Selecting,
)

PUBLISHED = {
    "random": (0.316, 0.326, 0.227, 0.238),
    "integrated gradients": (0.376, 0.358, 0.049, 0.484),
    "LIME": (0.379, 0.361, 0.005, 0.603),
    "A2R, a rationale model": (0.474, 0.433, 0.109, 0.320),
    "RTP": (0.567, 0.466, -0.029, 0.851),
    "supervised": (0.670, 0.514, 0.001, 0.638),
}
"""ERASER movies, in the order of ``METRICS``, from the README of RTP. Direction only: its models and splits differ."""

METRICS = ("auprc", "token_f1", "sufficiency", "comprehensiveness")


def facts(result: BeyondResult) -> dict[str, Any]:
    """Everything, as JSON."""
    return {
        "data": result.data,
        "rows": rows(result),
        "accuracy": result.accuracy,
        "rationale_models": {kind: _measures(one) for kind, one in result.rationales.items()},
        "seconds": result.seconds,
        "directions": directions(result),
        "left_out": left_out(result),
    }


def _measures(of: Selecting) -> dict[str, Any]:
    marked = None if of.marked is None else asdict(of.marked)
    return {"accuracy": of.accuracy, "kept": asdict(of.kept), "selected": of.selected, "marked": marked}


# ------------------------------------------------------------------------------------------------------ the table


def rows(result: BeyondResult) -> list[dict[str, Any]]:
    """One row per explanation: its model, its scores by metric with intervals, and its seconds per text."""
    return [
        {
            "model": name,
            "method": method,
            **{m: _facts(comparison.evaluation.cells[method, m]) for m in comparison.evaluation.metrics},
            "seconds": comparison.seconds.get(method),
        }
        for name, comparison in result.comparisons.items()
        for method in comparison.evaluation.methods
    ]


def _facts(cell: Cell) -> dict[str, Any]:
    return {**asdict(cell.estimate), "beats_random": cell.beats_random}


def table(result: BeyondResult) -> tuple[list[str], list[list[str]]]:
    """The rows as text, below their heads; * is significantly better than random scores of the same model."""
    metrics = list(result.classifier.evaluation.metrics)
    heads = ["model", "method", *metrics, "ms per text"]
    lines = [
        [row["model"], row["method"], *(_mean(row[m]) for m in metrics), _milliseconds(row["seconds"])]
        for row in rows(result)
    ]
    return heads, lines


def _mean(facts: Mapping[str, Any]) -> str:
    return "–" if isnan(facts["mean"]) else f"{facts['mean']:.3f}{'*' if facts['beats_random'] else ''}"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.1f}"


def left_out(result: BeyondResult) -> list[str]:
    """The methods that were not measured, with the reason."""
    every = {f"{name}: {why}" for one in result.comparisons.values() for name, why in one.left_out.items()}
    return sorted(every)


# ------------------------------------------------------------------------------------------------------ in words


def answer(result: BeyondResult) -> list[str]:
    """What each kind of explanation adds, and what it costs."""
    evaluation = result.classifier.evaluation
    new = [name for name in ("diff_mask", INTERACTIONS) if name in evaluation.methods]
    return [
        *(_rank(evaluation, name, metric) for metric in evaluation.metrics for name in new),
        *(_cost(result, name) for name in new),
        *(line for kind, one in result.rationales.items() for line in _of_rationale_model(result, kind, one)),
        *_truncated(evaluation),
    ]


def _rank(evaluation: Evaluation, method: str, metric: str) -> str:
    """Where a method stands among those of the classifier."""
    cells = {name: evaluation.cells[name, metric] for name in evaluation.methods if name not in CONTROLS}
    sign = -1 if cells[method].better == "higher" else 1
    order = sorted(cells, key=lambda name: sign * cells[name].estimate.mean)
    return (
        f"{metric}: {method} is number {order.index(method) + 1} of {len(order)}, {cells[method].estimate}, "
        f"{_better(cells[method])} than random; the best is {order[0]}, {cells[order[0]].estimate}."
    )


def _better(cell: Cell) -> str:
    return "significantly better" if cell.beats_random else "not significantly better"


def _cost(result: BeyondResult, method: str) -> str:
    """What a method costs against occlusion, and when gates have paid for their training."""
    seconds = result.classifier.seconds
    costs = (
        f"{method} takes {_milliseconds(seconds[method])} ms per text, occlusion {_milliseconds(seconds['occlusion'])}"
    )
    if method != "diff_mask":
        return f"{costs}."
    once, saved = result.seconds["gates"], seconds["occlusion"] - seconds[method]
    paid = f"after {once / saved:,.0f} texts it is cheaper than occlusion" if saved > 0 else "it is never cheaper"
    return f"{costs}; its gates took {once:,.0f} s to train, so {paid}."


def _of_rationale_model(result: BeyondResult, kind: str, one: Selecting) -> Iterator[str]:
    yield (
        f"The {kind} model reads {one.selected:.1%} of the tokens; its accuracy is {one.accuracy:.3f}, {one.kept:.3f} "
        f"from the classifier of whole texts. It took {result.seconds[kind]:,.0f} s to train, the classifier "
        f"{result.seconds['classifier']:,.0f} s."
    )
    yield from (_selection(result, kind, one, metric) for metric in one.comparison.evaluation.metrics)
    if (of := one.marked) is not None:
        yield (
            f"Exactly the tokens that {kind} selects have a token F1 of {of.f1} with those that people marked, as many "
            f"at random {of.random}; the difference is {of.difference:.3f}."
        )


def _selection(result: BeyondResult, kind: str, one: Selecting, metric: str) -> str:
    """Where the selection stands; faithfulness is to another model than the classifier, plausibility to people."""
    cell = one.comparison.evaluation.cells["selection", metric]
    than_random = f"{metric}: the selection of {kind} has {cell.estimate}, {_better(cell)} than random"
    if metric in FAITHFULNESS:
        return f"{than_random} scores of the same model."
    others = result.classifier.evaluation
    best = others.best(metric)
    return f"{than_random}; the best of the classifier is {best}, {others.cells[best, metric].estimate}."


def _truncated(evaluation: Evaluation) -> list[str]:
    if not evaluation.truncated:
        return []
    return [
        f"{evaluation.truncated} of {evaluation.texts} texts are longer than the models can read; only what they read "
        "is explained and measured."
    ]


# ------------------------------------------------------------------------------------------------------ directions


def directions(result: BeyondResult) -> list[dict[str, Any]]:
    """The published directions beside ours: one holds where the paired difference is significant in the same order."""
    return [_direction(result, direction, difference) for direction, difference in result.directions.items()]


def _direction(result: BeyondResult, direction: Direction, difference: Difference) -> dict[str, Any]:
    cells = [_cell(result, one, direction.judged_by) for one in direction.ours]
    better, worse = direction.published
    return {
        "metric": direction.metric,
        "judged_by": direction.judged_by,
        "better": better,
        "worse": worse,
        "ours_are": [f"{one.method} ({one.model})" for one in direction.ours],
        "published": [PUBLISHED[name][METRICS.index(direction.metric)] for name in (better, worse)],
        "ours": [cell.estimate.mean for cell in cells],
        "difference": asdict(difference),
        "verdict": _verdict(difference, cells[0].better),
    }


def _cell(result: BeyondResult, one: Explainer, metric: str) -> Cell:
    return result.comparisons[one.model].evaluation.cells[one.method, metric]


def _verdict(difference: Difference, better: Better) -> str:
    """Whether the first of two is significantly better than the second."""
    if not difference.clear:
        return "undecided"
    return "holds" if (difference.mean > 0) == (better == "higher") else "does not hold"


def direction_table(result: BeyondResult) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The directions as text, below their heads."""
    heads = ("better, worse", "by", "published on ERASER movies", "ours", "here")
    return heads, [
        [
            " > ".join(d["ours_are"]),
            d["judged_by"] if d["judged_by"] == d["metric"] else f"{d['judged_by']} ({d['metric']})",
            *map(_pair, (d["published"], d["ours"])),
            d["verdict"],
        ]
        for d in directions(result)
    ]


def _pair(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.3f}" for value in values)
