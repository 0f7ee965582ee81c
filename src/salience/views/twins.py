"""Charts of the tests that train twins."""

from collections.abc import Callable, Mapping
from math import isnan

from salience.audits.finding import Finding, Measure
from salience.views import plots
from salience.views.pages import chart, panels
from salience.views.plots import Axis

BINS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Bounds of the largest attention weight, as in the papers' figures."""


def intervals(measures: Mapping[str, Measure], title: str) -> str:
    """The mean of each measure with its interval, one row each. The table of the measures stands below."""
    made = plots.means({name: m.estimate for name, m in measures.items()}, Axis(title), row=34)
    return chart(plots.svg(made), title, None)


def accuracies(finding: Finding) -> str:
    """The accuracy of each kind of twin."""
    return intervals(
        {m.name.removeprefix("accuracy").lstrip(", "): m for m in finding.measures[1:]},
        "accuracy and its 95 % interval",
    )


def distances(finding: Finding) -> str:
    """The distance between seeds in bins of the largest attention weight."""
    pairs = zip(
        finding.measure("largest attention weight").values,
        finding.measure("distance between seeds (JSD)").values,
        strict=True,
    )
    bins: dict[str, list[float]] = {_bin(low): [] for low in BINS[:-1]}
    for largest, distance in pairs:
        if not isnan(distance):
            bins[_bin(largest)].append(distance)
    values = {name: of for name, of in bins.items() if of}
    beside = {name: f"{len(of)} texts" for name, of in values.items()}
    title = "distance between seeds (JSD) by largest attention weight; at most ln 2 = 0.69"
    return chart(plots.svg(plots.boxes(values, beside, Axis(title))), title, plots.quartiles(values))


def _bin(largest: float) -> str:
    low = max(b for b in BINS[:-1] if b <= largest)
    return f"{low:g} to {low + 0.25:g}"


def sweep(finding: Finding) -> str:
    """Distance of attention against change of the output, one named point per λ."""
    change, distance = "change of the output (TVD), λ = ", "distance of attention (JSD), λ = "
    weights = [m.name.removeprefix(change) for m in finding.measures if m.name.startswith(change)]
    points = {
        f"λ = {w}": (finding.measure(change + w).estimate.mean, finding.measure(distance + w).estimate.mean)
        for w in weights
    }
    x, y = Axis("mean change of the output (TVD)"), Axis("mean distance of attention (JSD)", ends=(0, 0.7))
    return chart(plots.svg(plots.path(points, x, y)), "Distance of attention against change of the output", None)


def influence(finding: Finding) -> str:
    """Agreement of attention with leave-one-out, in the model and in its twin."""
    names = {"model": finding.measures[1], "deceptive twin": finding.measures[0]}
    return intervals(names, "Kendall's τ between attention and leave-one-out")


def manipulated(finding: Finding) -> str:
    """Accuracy, and attention on the impermissible tokens, for each λ."""
    return intervals({m.name: m for m in finding.measures[1:]}, "share of texts, or of attention")


def improved(finding: Finding) -> str:
    """Every number of the tests, for each way of training: one panel per number."""
    groups: dict[str, dict[str, Measure]] = {}
    for m in finding.measures[1:]:
        what, _, name = m.name.rpartition(", ")
        groups.setdefault(what, {})[name] = m
    charts = {
        what: plots.svg(plots.means({n: m.estimate for n, m in of.items()}, Axis(""), width=plots.SMALL - 90))
        for what, of in groups.items()
    }
    return panels(charts, "Every number for each way of training", None)


CHARTS: Mapping[str, Callable[[Finding], str]] = {
    "uniform_attention": accuracies,
    "seed_variation": distances,
    "frozen_weights": accuracies,
    "adversarial_twin": sweep,
    "deceptive_twin": influence,
    "manipulation": manipulated,
    "diverse_states": improved,
    "word_tying": improved,
}
