"""All kinds of explanation in one table, in words what each adds and costs, and published directions beside ours."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from math import isnan
from typing import Any

from salience.core.stats import Difference
from salience.evaluation.advice import joined
from salience.evaluation.table import Cell, Evaluation
from salience.methods import CONTROLS
from salience.metrics.metric import Better
from salience.papers.beyond import (
    CLASSIFIER,
    FAITHFULNESS,
    INTERACTIONS,
    BeyondResult,
    Direction,
    Explainer,
    Selecting,
)
from salience.views import plots
from salience.views.evaluation import heading
from salience.views.pages import chart, document, listed, panels
from salience.views.pages import table as html_table
from salience.views.plots import Axis

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
        "gates": {**result.gates.last, "margin": result.gates.margin},
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


def wide_table(result: BeyondResult) -> tuple[list[str], list[list[str]]]:
    """The table with the model and the method in one cell, for the terminal and for pages."""
    heads, lines = table(result)
    return ["", *heads[2:]], [[_name(line[0], line[1]), *line[2:]] for line in lines]


def _name(model: str, method: str) -> str:
    return method if model == CLASSIFIER else f"{method} ({model})"


# ------------------------------------------------------------------------------------------------------ in words


def answer(result: BeyondResult) -> list[str]:
    """What each kind of explanation adds, and what it costs."""
    evaluation = result.classifier.evaluation
    new = [name for name in ("diff_mask", INTERACTIONS) if name in evaluation.methods]
    return [
        *(sentence for name in new for sentence in (_rank(evaluation, name), _cost(result, name))),
        *(line for kind, one in result.rationales.items() for line in _of_rationale_model(result, kind, one)),
        *_truncated(evaluation),
    ]


def _rank(evaluation: Evaluation, method: str) -> str:
    """Where a method stands among those of the classifier."""
    places = [f"{metric} {_place(evaluation, method, metric)}" for metric in evaluation.metrics if metric != "auprc"]
    others = sum(name not in CONTROLS for name in evaluation.methods)
    return f"{method}, place among {others} methods: {', '.join(places)}. It is {_than_random(evaluation, method)}."


def _place(evaluation: Evaluation, method: str, metric: str) -> int:
    cells = {name: evaluation.cells[name, metric] for name in evaluation.methods if name not in CONTROLS}
    sign = -1 if cells[method].better == "higher" else 1
    return sorted(cells, key=lambda name: sign * cells[name].estimate.mean).index(method) + 1


def _than_random(evaluation: Evaluation, method: str) -> str:
    """By which metrics a method is significantly better than random scores of the same model.

    Not by AUPRC, by which even uniform scores are: its trapezoids flatter tied scores.
    """
    judging = [metric for metric in evaluation.metrics if metric != "auprc"]
    better = [metric for metric in judging if evaluation.cells[method, metric].beats_random]
    worse = [metric for metric in judging if metric not in better]
    if not better:
        return "not significantly better than random by any metric"
    but = f", not by {joined(worse, 'and')}" if worse else ""
    return f"significantly better than random by {joined(better, 'and')}{but}"


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
    return f"{costs}; its gates took {once:,.0f} s to train, so {paid}. {_gates(result)}"


def _gates(result: BeyondResult) -> str:
    """Whether the gates keep the predictions, without which their explanations say little."""
    if (unmet := result.gates.unmet) is not None:
        return f"Its gates explain little: {unmet}."
    last = result.gates.last
    return (
        f"They keep {last['kept']:.0%} of the tokens, which moves predictions by {last['divergence']:.3f} nats of the "
        f"allowed {result.gates.margin:g}."
    )


def _of_rationale_model(result: BeyondResult, kind: str, one: Selecting) -> Iterator[str]:
    """Faithfulness is to another model than the classifier, so it is not compared with that of the classifier."""
    yield (
        f"The {kind} model reads {one.selected:.1%} of the tokens; its accuracy is {one.accuracy:.3f}, {one.kept:.3f} "
        f"from the classifier of whole texts. It took {result.seconds[kind]:,.0f} s to train, the classifier "
        f"{result.seconds['classifier']:,.0f} s."
    )
    yield f"The selection of {kind} is {_than_random(one.comparison.evaluation, 'selection')}."
    if (of := one.marked) is not None:
        yield (
            f"Exactly the tokens that {kind} selects have a token F1 of {of.f1} with those that people marked, as many "
            f"at random {of.random}; the difference is {of.difference:.3f}."
        )


def _truncated(evaluation: Evaluation) -> list[str]:
    if not evaluation.truncated:
        return []
    return [
        f"{evaluation.truncated} of {evaluation.texts} texts are longer than the models can read; only what they read "
        "is explained and measured."
    ]


# ------------------------------------------------------------------------------------------------------ the page


NOTE = (
    "Methods without a model in brackets explain the classifier, the others a rationale model. Faithfulness is to the "
    "explained model, so compare it with random scores of the same model: * is significantly better than these. "
    "Intervals are 95 %."
)


def page(results: Sequence[BeyondResult]) -> str:
    """The report as a self-contained page: in words, as charts and as tables."""
    return document("Beyond saliency of tokens", f"<p>{escape(NOTE)}</p>", *map(_section, results))


def _section(result: BeyondResult) -> str:
    missing = [f"left out: {one}" for one in left_out(result)]
    return (
        f"<h2>{escape(result.data)}</h2>{listed([*answer(result), *missing])}"
        f"<h3>What it adds</h3>{_by_metric(result)}<h3>What it costs</h3>{_by_cost(result)}"
        f"<h3>All numbers</h3>{html_table(*wide_table(result))}"
        f"<h3>Published directions</h3>{html_table(*direction_table(result))}"
    )


def _by_metric(result: BeyondResult) -> str:
    """One panel per metric: every explanation with its interval, and a line at random scores of the classifier."""
    charts: dict[str, bytes] = {}
    for metric in result.classifier.evaluation.metrics:
        cells = {_name(*of): result.cell(Explainer(*of), metric) for of in _explanations(result)}
        known = {name: cell.estimate for name, cell in cells.items() if cell.estimate.n}
        floor = known["random"].mean if "random" in known else None
        made = plots.means(
            known, Axis(""), width=plots.SMALL - 70, row=20, quiet=_controls(known), reference=floor, written=""
        )
        charts[heading(result.classifier.evaluation, metric)] = plots.svg(made)
    return panels(charts, "The mean of every explanation with its interval, by metric", None)


def _explanations(result: BeyondResult) -> list[tuple[str, str]]:
    """Model and method of every row; of the controls, only random scores."""
    every = [(name, method) for name, of in result.comparisons.items() for method in of.evaluation.methods]
    return [(name, method) for name, method in every if method == "random" or method not in CONTROLS]


def _controls(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.split(" ")[0] in CONTROLS]


def _by_cost(result: BeyondResult) -> str:
    """Comprehensiveness against milliseconds per text."""
    points = {
        _name(model, method): (1000 * seconds, result.cell(Explainer(model, method), FAITHFULNESS[0]).estimate.mean)
        for model, of in result.comparisons.items()
        for method, seconds in of.seconds.items()
    }
    of_others = [_name(model, method) for model, method in _explanations(result) if model != CLASSIFIER]
    x = Axis("milliseconds per text, training not counted", ",~g", scale="log")
    drawn = plots.named_points(points, x, Axis(FAITHFULNESS[0]), quiet=of_others)
    rows = [[name, f"{ms:.1f}", f"{value:.3f}"] for name, (ms, value) in points.items()]
    return chart(plots.svg(drawn), "Faithfulness against cost", (("", "ms per text", FAITHFULNESS[0]), rows))


# ------------------------------------------------------------------------------------------------------ directions


def directions(result: BeyondResult) -> list[dict[str, Any]]:
    """The published directions beside ours: one holds where the paired difference is significant in the same order."""
    return [_direction(result, direction, difference) for direction, difference in result.directions.items()]


def _direction(result: BeyondResult, direction: Direction, difference: Difference) -> dict[str, Any]:
    cells = [result.cell(one, direction.judged_by) for one in direction.ours]
    better, worse = direction.published
    return {
        "metric": direction.metric,
        "judged_by": direction.judged_by,
        "better": better,
        "worse": worse,
        "ours_are": [_name(one.model, one.method) for one in direction.ours],
        "published": [PUBLISHED[name][METRICS.index(direction.metric)] for name in (better, worse)],
        "ours": [cell.estimate.mean for cell in cells],
        "difference": asdict(difference),
        "verdict": _verdict(difference, cells[0].better),
    }


def _verdict(difference: Difference, better: Better) -> str:
    """Whether the first of two is significantly better than the second."""
    if not difference.clear:
        return "undecided"
    return "holds" if (difference.mean > 0) == (better == "higher") else "does not hold"


def published_table(result: BeyondResult) -> list[tuple[Sequence[str], Sequence[Sequence[str]]]]:
    """The published numbers, for data named after ERASER movies; otherwise nothing."""
    if "movies" not in result.data:
        return []
    lines = [[name, *(f"{value:.3f}" for value in values)] for name, values in PUBLISHED.items()]
    return [(("published, direction only", *METRICS), lines)]


def direction_table(result: BeyondResult) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The directions as text, below their heads."""
    heads = ("better > worse, by", "published", "ours", "here")
    return heads, [
        [
            f"{' > '.join(d['ours_are'])}, {_judge(d)}",
            *map(_pair, (d["published"], d["ours"])),
            d["verdict"],
        ]
        for d in directions(result)
    ]


def _judge(direction: Mapping[str, Any]) -> str:
    """The metric that judges, with the published one if that is another."""
    own, published = direction["judged_by"], direction["metric"]
    return own if own == published else f"{own} ({published})"


def _pair(values: Sequence[float]) -> str:
    return " / ".join(f"{round(value, 3) + 0:.3f}" for value in values)
