"""Charts of the tests that train twins."""

from collections.abc import Callable, Mapping, Sequence
from math import isnan
from typing import Any

from salience.audits.finding import Finding, Measure

INK = "#2f6fab"
WIDTH, FONT = 640, 13
BINS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Bounds of the largest attention weight, as in the papers' figures."""


def intervals(measures: Mapping[str, Measure], title: str, *, zero: bool = False) -> Any:
    """The mean of each measure with its interval, one row each."""
    import altair as alt

    values = [
        {"what": name, "mean": m.estimate.mean, "low": m.estimate.low, "high": m.estimate.high}
        for name, m in measures.items()
        if not isnan(m.estimate.mean)
    ]
    values = [{k: None if isinstance(v, float) and isnan(v) else v for k, v in row.items()} for row in values]
    y = alt.Y("what:N", title=None, sort=list(measures), axis=alt.Axis(labelLimit=300))
    scale = alt.Scale(zero=zero)
    base: Any = alt.Chart(alt.Data(values=values), width=WIDTH, height=40 * len(values)).encode(y=y)
    bars = base.mark_rule(color=INK, strokeWidth=2).encode(
        x=alt.X("low:Q", title=title, scale=scale), x2=alt.X2("high:Q")
    )
    points = base.mark_circle(color=INK, size=80, opacity=1).encode(x=alt.X("mean:Q", scale=scale))
    labels = base.mark_text(dy=-12, fontSize=FONT).encode(
        x=alt.X("mean:Q", scale=scale), text=alt.Text("mean:Q", format=".3f")
    )
    return bars + points + labels


def accuracies(finding: Finding) -> Any:
    """The accuracy of each kind of twin."""
    return intervals(
        {m.name.removeprefix("accuracy").lstrip(", "): m for m in finding.measures[1:]},
        "accuracy and its 95 % interval",
    )


def violins(finding: Finding) -> Any:
    """The distance between seeds in bins of the largest attention weight."""
    import altair as alt

    pairs = zip(
        finding.measure("largest attention weight").values,
        finding.measure("distance between seeds (JSD)").values,
        strict=True,
    )
    values = [{"bin": _bin(largest), "distance": d} for largest, d in pairs if not isnan(d)]
    return (
        alt.Chart(alt.Data(values=values), width=WIDTH, height=70)
        .transform_density("distance", groupby=["bin"], as_=["distance", "density"], extent=[0, 0.7])
        .mark_area(color=INK, opacity=0.7, orient="vertical")
        .encode(
            x=alt.X("distance:Q", title="distance between seeds (JSD), at most ln 2 = 0.69"),
            y=alt.Y("density:Q", stack="center", title=None, axis=None),
            row=alt.Row("bin:N", title="largest attention weight", sort="descending", header=_header(alt)),
        )
        .resolve_scale(y="independent")
    )


def _header(alt: Any) -> Any:
    return alt.Header(labelAngle=0, labelAlign="left")


def _bin(largest: float) -> str:
    low = max(b for b in BINS[:-1] if b <= largest)
    return f"{low:g} to {low + 0.25:g}"


def sweep(finding: Finding) -> Any:
    """Distance of attention against change of the output, one labelled point per λ."""
    import altair as alt

    change, distance = "change of the output (TVD), λ = ", "distance of attention (JSD), λ = "
    values = [
        {
            "weight": f"λ = {m.name.removeprefix(change)}",
            "order": order,
            "change": m.estimate.mean,
            "distance": finding.measure(distance + m.name.removeprefix(change)).estimate.mean,
        }
        for order, m in enumerate(m for m in finding.measures if m.name.startswith(change))
    ]
    values = [one | {"shown": shown} for one, shown in zip(values, _apart(values), strict=True)]
    base: Any = alt.Chart(alt.Data(values=values), width=WIDTH, height=320).encode(
        x=alt.X("change:Q", title="mean change of the output (TVD)"),
        y=alt.Y("distance:Q", title="mean distance of attention (JSD)", scale=alt.Scale(domain=[0, 0.7])),
    )
    line = base.mark_line(color=INK).encode(order="order:O")
    return (
        line
        + base.mark_circle(color=INK, size=80, opacity=1)
        + base.transform_filter("datum.shown").mark_text(dx=8, align="left", fontSize=FONT).encode(text="weight:N")
    )


def _apart(points: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Which points have a label: those far enough from the last one that has."""
    changes = [point["change"] for point in points]
    width = max(changes) - min(changes) or 1.0
    shown: list[Mapping[str, Any]] = []
    for point in points:
        if not any(
            abs(point["change"] - other["change"]) < 0.15 * width and abs(point["distance"] - other["distance"]) < 0.04
            for other in shown
        ):
            shown.append(point)
    return [point in shown for point in points]


def influence(finding: Finding) -> Any:
    """Agreement of attention with leave-one-out, in the model and in its twin."""
    names = {"model": finding.measures[1], "deceptive twin": finding.measures[0]}
    return intervals(names, "Kendall's τ between attention and leave-one-out", zero=True)


def manipulated(finding: Finding) -> Any:
    """Accuracy, and attention on the impermissible tokens, for each λ."""
    return intervals({m.name: m for m in finding.measures[1:]}, "share of texts, or of attention", zero=True)


def improved(finding: Finding) -> Any:
    """Every number of the tests, for each way of training: one panel per number."""
    import altair as alt

    groups: dict[str, dict[str, Measure]] = {}
    for m in finding.measures[1:]:
        what, _, name = m.name.rpartition(", ")
        groups.setdefault(what, {})[name] = m
    panels: Sequence[Any] = [intervals(group, what) for what, group in groups.items()]
    return alt.vconcat(*panels)


CHARTS: Mapping[str, Callable[[Finding], Any]] = {
    "uniform_attention": accuracies,
    "seed_variation": violins,
    "frozen_weights": accuracies,
    "adversarial_twin": sweep,
    "deceptive_twin": influence,
    "manipulation": manipulated,
    "diverse_states": improved,
    "word_tying": improved,
}
