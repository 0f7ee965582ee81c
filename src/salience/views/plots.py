"""Charts of numbers in one look: lines with their names at the ends, means with intervals, boxes, small panels.

Every colour is one of :mod:`salience.views.schemes`, so that a page can show the same chart light and dark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, isfinite, isnan, log
from typing import Any

import numpy as np

from salience.core.stats import Estimate
from salience.methods import CONTROLS
from salience.views.charts import PLAIN, drawn_for_pages
from salience.views.schemes import BAND, BLUE, CYCLE, GRID, INK, RULE, SOFT

WIDTH, HEIGHT = 620, 300
SMALL = 250
"""The width of a panel without the names beside it: it fits a phone."""
APART = 16
"""Pixels between two names."""
NAME = 60
"""Pixels that the beginning of a name takes, within which no other one starts."""


@dataclass(frozen=True, slots=True)
class Line:
    """A named line, perhaps with the bounds of an interval at each point."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = BLUE
    dashed: bool = False
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis shows: its title, the format of its numbers, and its ends if they are fixed."""

    title: str
    form: str = ""
    ends: tuple[float, float] | None = None
    scale: str = "linear"
    values: Sequence[float] = ()


def coloured(names: Sequence[str]) -> dict[str, str]:
    """One colour for each name; controls are grey."""
    rest = [name for name in names if name not in CONTROLS]
    chosen = {name: CYCLE[i % len(CYCLE)] for i, name in enumerate(rest)}
    return {name: chosen.get(name, SOFT) for name in names}


def svg(chart: Any) -> bytes:
    """A chart as SVG, in the look of the pages."""
    return drawn_for_pages(themed(chart))


def themed(chart: Any) -> Any:
    """A chart with text in the size of a page's own, and quiet axes."""
    axis: dict[str, Any] = {
        "labelFontSize": PLAIN,
        "titleFontSize": PLAIN,
        "titleFontWeight": "normal",
        "labelColor": INK,
        "titleColor": SOFT,
        "gridColor": GRID,
        "domainColor": RULE,
        "tickColor": RULE,
        "labelLimit": 320,
    }
    numbers: dict[str, Any] = {"labelOverlap": True, "labelSeparation": 8}
    shown = chart.configure(aria=False).configure_axis(**axis).configure_axisQuantitative(**numbers)
    return shown.configure_view(stroke=None).configure_header(labelFontSize=PLAIN)


# ---------------------------------------------------------------------------------------------------- lines


def lines(series: Sequence[Line], x: Axis, y: Axis, *, width: float = WIDTH, height: float = HEIGHT) -> Any:
    """Lines whose names stand at their ends, moved apart where they would overlap."""
    import altair as alt

    height = max(height, APART * len(series))
    shown = [line for line in series if any(isfinite(value) for value in line.y)]
    low, high = y.ends or _ends([v for line in shown for v in (*line.y, *line.low, *line.high)])
    across, up = _scaled(alt.X, x), _scaled(alt.Y, Axis(y.title, y.form, (low, high)))
    parts = [_band(line, across, up) for line in shown if line.low]
    parts += [_line(line, across, up) for line in shown]
    parts += _names(shown, (low, high), width, height, up)
    return alt.layer(*parts, width=width, height=height)


def spotlights(series: Sequence[Line], x: Axis, y: Axis) -> dict[str, bytes]:
    """One panel for each line, by its name: the line, the dashed ones, and the range of all lines behind them.

    All lines have the same places on the axis.
    """
    import altair as alt

    low, high = y.ends or _ends([v for line in series for v in line.y])
    across, up = _scaled(alt.X, x), _scaled(alt.Y, Axis(y.title, y.form, (low, high)))
    table = np.array([line.y for line in series])
    bounds = zip(series[0].x, table.min(0).tolist(), table.max(0).tolist(), strict=True)
    area = alt.Chart(alt.Data(values=[{"x": a, "y": least, "y2": most} for a, least, most in bounds]))
    every = area.mark_area(color=GRID).encode(x=across, y=up, y2="y2:Q")
    dashed = [_line(Line(one.name, one.x, one.y, SOFT, True), across, up, thin=True) for one in series if one.dashed]
    return {
        line.name: svg(alt.layer(every, *dashed, _line(line, across, up), width=SMALL, height=150)) for line in series
    }


def panel(line: Line, x: Axis) -> bytes:
    """A small chart of a single line, whose name stands above it."""
    return svg(bare([line], x, Axis("")))


def bare(series: Sequence[Line], x: Axis, y: Axis) -> Any:
    """A small chart of lines without their names."""
    import altair as alt

    ends = y.ends or _ends([v for line in series for v in (*line.y, *line.low, *line.high)])
    across, up = _scaled(alt.X, x), _scaled(alt.Y, Axis(y.title, y.form, ends))
    bands = [_band(line, across, up) for line in series if line.low]
    return alt.layer(*bands, *(_line(line, across, up) for line in series), width=SMALL, height=150)


def _scaled(kind: Any, axis: Axis, ticks: int = 6) -> Any:
    """The encoding of one axis."""
    import altair as alt

    options: dict[str, Any] = {"type": axis.scale, "zero": False, "nice": False}
    if axis.ends is not None:
        options["domain"] = list(axis.ends)
    marks: dict[str, Any] = {"format": axis.form} if axis.form else {}
    if axis.values:
        marks["values"] = list(axis.values)
    field = "x:Q" if kind is alt.X else "y:Q"
    return kind(field, title=axis.title or None, scale=alt.Scale(**options), axis=alt.Axis(tickCount=ticks, **marks))


def _line(line: Line, x: Any, y: Any, *, thin: bool = False) -> Any:
    import altair as alt

    points = [{"x": a, "y": b} for a, b in zip(line.x, line.y, strict=True) if isfinite(b)]
    style: dict[str, Any] = {"strokeDash": [5, 4]} if line.dashed else {}
    dots: Any = False if thin or len(points) > 14 else {"size": 26, "color": line.colour, "opacity": 1}
    mark = alt.Chart(alt.Data(values=points)).mark_line(
        color=line.colour, strokeWidth=1 if thin else 2.2, point=dots, **style
    )
    return mark.encode(x=x, y=y)


def _band(line: Line, x: Any, y: Any) -> Any:
    import altair as alt

    bounds = zip(line.x, line.low, line.high, strict=True)
    points = [{"x": a, "y": low, "y2": high} for a, low, high in bounds if isfinite(low) and isfinite(high)]
    chart: Any = alt.Chart(alt.Data(values=points))
    if len(points) == 1:  # an area needs two
        return chart.mark_rule(color=line.colour, opacity=0.6, strokeWidth=2).encode(x=x, y=y, y2="y2:Q")
    return chart.mark_area(color=line.colour, opacity=0.15).encode(x=x, y=y, y2="y2:Q")


def _names(series: Sequence[Line], ends: tuple[float, float], width: float, height: float, y: Any) -> list[Any]:
    """The name of each line at its end, with a short line between them."""
    import altair as alt

    last = [next(v for v in reversed(line.y) if isfinite(v)) for line in series]
    scale = height / (ends[1] - ends[0])
    placed = [ends[0] + p / scale for p in apart([(v - ends[0]) * scale for v in last], height)]
    parts: list[Any] = []
    for line, at, end in zip(series, placed, last, strict=True):
        label = alt.Chart(alt.Data(values=[{"y": at, "end": end, "text": line.name}]))
        lead = label.mark_rule(color=line.colour, opacity=0.5)
        parts.append(lead.encode(x=alt.value(width), x2=alt.value(width + 14), y=alt.Y("end:Q"), y2="y:Q"))
        text = label.mark_text(align="left", dx=4, color=line.colour, fontSize=PLAIN)
        parts.append(text.encode(x=alt.value(width + 14), y=y, text="text:N"))
    return parts


def apart(places: Sequence[float], height: float, distance: float = APART) -> list[float]:
    """Places at least so far apart, in the same order, and as near to the given ones as that allows.

    >>> apart([5.0, 5.0, 90.0], 100, 10)
    [0.0, 10.0, 90.0]
    """
    order = np.argsort(places, kind="stable")
    blocks: list[list[float]] = []  # mean of the wished first place, number of names
    for at in (places[i] for i in order):
        blocks.append([float(at), 1])
        while len(blocks) > 1 and blocks[-2][0] + blocks[-2][1] * distance > blocks[-1][0]:
            (a, n), (b, k) = blocks[-2:]
            blocks[-2:] = [[(a * n + (b - n * distance) * k) / (n + k), n + k]]
    moved = [first + distance * i for first, count in blocks for i in range(int(count))]
    last = height
    for i in reversed(range(len(moved))):
        moved[i] = min(moved[i], last)
        last = moved[i] - distance
    least = 0.0
    for i in range(len(moved)):
        moved[i] = max(moved[i], least)
        least = moved[i] + distance
    result = [0.0] * len(places)
    for place, i in zip(moved, order, strict=True):
        result[int(i)] = place
    return result


def _ends(values: Sequence[float], scale: str = "linear") -> tuple[float, float]:
    """The ends of an axis that shows the difference between some values, with a little room."""
    if scale == "log":
        low, high = _ends([log(v) for v in values])
        return exp(low), exp(high)
    known = [v for v in values if isfinite(v)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    room = 0.05 * (high - low) or 0.05 * (abs(high) or 1.0)
    return low - room, high + room


# ---------------------------------------------------------------------------------------------------- means, boxes


def means(
    estimates: Mapping[str, Estimate],
    x: Axis,
    *,
    width: float = WIDTH,
    row: float = 26,
    quiet: Sequence[str] = (),
    reference: float | None = None,
    written: str = ".3f",
) -> Any:
    """The mean of each row with its interval and, beside it, its number. ``reference`` is a line across."""
    import altair as alt

    rows: list[dict[str, Any]] = [
        {"what": name, "x": e.mean, **({} if isnan(e.low) else {"low": e.low, "high": e.high})}
        for name, e in estimates.items()
        if not isnan(e.mean)
    ]
    bounds = [v for one in rows for v in (one["x"], one.get("low", one["x"]), one.get("high", one["x"]))]
    ends = x.ends or _ends(bounds if reference is None else [*bounds, reference])
    across = _scaled(alt.X, Axis(x.title, x.form, ends), ticks=max(3, int(width // 80)))
    base: Any = alt.Chart(alt.Data(values=rows), width=width, height=row * len(rows)).encode(
        y=alt.Y("what:N", title=None, sort=list(estimates), axis=alt.Axis(labelLimit=320, ticks=False, domain=False))
    )
    hue = alt.condition(alt.FieldOneOfPredicate("what", list(quiet)), alt.value(SOFT), alt.value(BLUE))
    parts = [
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", title=x.title or None), x2="high:Q", color=hue),
        base.mark_circle(size=70, opacity=1).encode(x=across, color=hue),
    ]
    if written:
        number = alt.Text("x:Q", format=written)
        style: dict[str, Any] = {"align": "left", "dx": 8, "color": SOFT, "fontSize": PLAIN}
        parts.append(base.mark_text(**style).encode(x=alt.value(width), text=number))
    if reference is not None and isfinite(reference):
        line = alt.Chart(alt.Data(values=[{"x": reference}])).mark_rule(color=RULE, strokeDash=[4, 3])
        parts.insert(0, line.encode(x=across))
    return alt.layer(*parts)


def boxes(values: Mapping[str, Sequence[float]], beside: Mapping[str, str], x: Axis, *, width: float = WIDTH) -> Any:
    """A box plot for each row: quartiles, whiskers of 1.5 of their distance, outliers; and a text beside it."""
    import altair as alt

    data = [{"what": name, "x": v} for name, of in values.items() for v in of if not isnan(v)]
    y = alt.Y("what:N", title=None, sort=list(values), axis=alt.Axis(labelLimit=320, ticks=False, domain=False))
    form: dict[str, Any] = {"format": x.form} if x.form else {}
    axis = alt.Axis(tickCount=8, **form)
    made = (
        alt.Chart(alt.Data(values=data), width=width, height=40 * len(values))
        .mark_boxplot(
            extent=1.5,
            size=22,
            box={"fill": BAND, "stroke": BLUE},
            median={"stroke": BLUE, "strokeWidth": 3, "fill": BLUE},
            rule={"stroke": BLUE},
            outliers={"stroke": BLUE, "size": 25, "fill": BAND},
        )
        .encode(x=alt.X("x:Q", title=x.title, axis=axis), y=y)
    )
    text = alt.Chart(alt.Data(values=[{"what": name, "text": one} for name, one in beside.items()])).mark_text(
        align="left", dx=8, color=SOFT, fontSize=PLAIN
    )
    return made + text.encode(text="text:N", x=alt.value(width), y=y)


def scatter(points: Sequence[tuple[float, float]], x: Axis, y: Axis, marks: Mapping[str, float]) -> Any:
    """One point for each pair; ``marks`` are lines across, with their names on the right."""
    import altair as alt

    values = [{"x": a, "y": b} for a, b in points if not isnan(a) and not isnan(b)]
    highest = 1.05 * max((*marks.values(), *(one["y"] for one in values)), default=1.0)
    across, up = _scaled(alt.X, x), _scaled(alt.Y, Axis(y.title, y.form, y.ends or (0, highest)))
    dots = alt.Chart(alt.Data(values=values), width=WIDTH, height=HEIGHT).mark_circle(size=50, opacity=0.6, color=BLUE)
    rules = alt.Chart(alt.Data(values=[{"y": at, "text": name} for name, at in marks.items()]))
    names = rules.mark_text(align="left", dx=8, color=SOFT, fontSize=PLAIN)
    return (
        rules.mark_rule(color=SOFT, strokeDash=[5, 4]).encode(y=up)
        + dots.encode(x=across, y=up)
        + names.encode(x=alt.value(WIDTH), y=up, text="text:N")
    )


def path(points: Mapping[str, tuple[float, float]], x: Axis, y: Axis) -> Any:
    """Points joined in their order, each with its name unless that would cover another one."""
    base = _placed(points, x, y)
    return base.mark_line(color=BLUE).encode(order="order:O") + _circles(base) + _beside(base)


def named_points(points: Mapping[str, tuple[float, float]], x: Axis, y: Axis, *, quiet: Sequence[str] = ()) -> Any:
    """Points, each with its name unless that would cover another one; those of ``quiet`` are grey."""
    base = _placed(points, x, y)
    return _circles(base, quiet) + _beside(base)


def _circles(base: Any, quiet: Sequence[str] = ()) -> Any:
    import altair as alt

    hue = alt.condition(alt.FieldOneOfPredicate("what", list(quiet)), alt.value(SOFT), alt.value(BLUE))
    return base.mark_circle(size=80, opacity=1).encode(color=hue)


def _beside(base: Any) -> Any:
    return base.mark_text(align="left", dx=9, dy=-9, color=INK, fontSize=PLAIN).encode(text="text:N")


def _placed(points: Mapping[str, tuple[float, float]], x: Axis, y: Axis) -> Any:
    """A chart of points in their order, with the names that there is room for."""
    import altair as alt

    xs, ys = zip(*points.values(), strict=True)
    x, y = (replace(axis, ends=axis.ends or _ends(of, axis.scale)) for axis, of in ((x, xs), (y, ys)))
    values: list[dict[str, Any]] = []
    named: list[tuple[float, float]] = []
    for order, (name, (a, b)) in enumerate(points.items()):
        at = WIDTH * _along(x, a), HEIGHT * _along(y, b)
        free = not any(abs(at[0] - u) < NAME and abs(at[1] - v) < APART for u, v in named)
        named += [at] if free else []
        values.append({"x": a, "y": b, "order": order, "what": name, "text": name if free else ""})
    base: Any = alt.Chart(alt.Data(values=values), width=WIDTH, height=HEIGHT)
    return base.encode(x=_scaled(alt.X, x), y=_scaled(alt.Y, y))


def _along(axis: Axis, value: float) -> float:
    """Where a value lies on an axis, as a share of its length."""
    assert axis.ends is not None
    low, high, at = (log(v) if axis.scale == "log" else v for v in (*axis.ends, value))
    return (at - low) / (high - low)


def quartiles(values: Mapping[str, Sequence[float]], form: str = ".3f") -> tuple[Sequence[str], list[list[str]]]:
    """The numbers behind box plots: how many, the least, the quartiles and the most of each row."""
    head = ("", "texts", "least", "lower quartile", "median", "upper quartile", "most")
    rows: list[list[str]] = []
    for name, of in values.items():
        known = np.array([v for v in of if not isnan(v)])
        cuts = np.quantile(known, (0, 0.25, 0.5, 0.75, 1)) if len(known) else []
        rows.append([name, str(len(known)), *(format(float(c), form) for c in cuts)])
    return head, [row + ["–"] * (len(head) - len(row)) for row in rows]


def numbers(series: Sequence[Line], x: str, form: str = ".3f", at: str = "g") -> tuple[Sequence[str], list[list[str]]]:
    """The numbers behind lines: one row for each place on the axis, one column for each line."""
    places = list(dict.fromkeys(value for line in series for value in line.x))
    known = [dict(zip(line.x, line.y, strict=True)) for line in series]
    rows = [
        [format(p, at), *(format(of[p], form) if p in of and isfinite(of[p]) else "–" for of in known)] for p in places
    ]
    return (x, *(line.name for line in series)), rows
