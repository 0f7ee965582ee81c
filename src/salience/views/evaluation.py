"""An evaluation made visible: a table in the terminal, a page, charts, CSV and JSON."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from html import escape
from io import StringIO
from math import isfinite
from typing import Any

from rich.table import Table
from rich.text import Text

import salience
from salience.evaluation import CONTROLS, Cell, Evaluation
from salience.verdict import plural, verdict
from salience.views.charts import drawn
from salience.views.pages import document, figure, table

ARROWS = {"higher": "↑", "lower": "↓"}
BEYOND = "*"
"""Marks what beats random beyond doubt."""


def heading(found: Evaluation, metric: str) -> str:
    """The name of a metric with the direction that is better.

    Underscores become spaces, so that a long name can be broken.
    """
    return f"{metric.replace('_', ' ')} {ARROWS[found.cells[found.methods[0], metric].better]}"


def shown(cell: Cell) -> str:
    """The mean above its interval, so that many columns fit."""
    e = cell.estimate
    if e.n == 0:
        return "–"
    return f"{e.mean:.3f}{BEYOND if cell.beats_random else ''}\n{e.low:.3f} to {e.high:.3f}"


def rows(found: Evaluation) -> Iterator[list[str]]:
    for method in found.methods:
        yield [method, *(shown(found.cells[method, metric]) for metric in found.metrics)]


def terminal(found: Evaluation) -> Table:
    """Methods by metrics; the best of a column is bold, controls are dim."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("", *(heading(found, metric) for metric in found.metrics)):
        made.add_column(name)
    for method in found.methods:
        style = "dim" if method in CONTROLS else ""
        cells = [found.cells[method, metric] for metric in found.metrics]
        texts = [Text(shown(c), style="bold" if found.best(c.metric) == method else "") for c in cells]
        made.add_row(Text(method), *texts, style=style)
    return made


def legend(found: Evaluation) -> str:
    least = min((cell.estimate.n for cell in found.cells.values() if cell.estimate.n), default=0)
    some = "" if least == found.texts else f" ({least} where a method has no number for some)"
    cut = f", {found.truncated} of them cut as they are too long for the model" if found.truncated else ""
    aspects = {cell.aspect for cell in found.cells.values()}
    erased = f"; tokens erased by {found.settings['erase']}" if aspects & {"faithfulness", "leave_one_out"} else ""
    star = f"; {BEYOND} beats random beyond doubt, corrected for {plural(len(found.real), 'method')}"
    return (
        f"n = {plural(found.texts, 'text')}{cut}{some}; 95 % intervals of a bootstrap over them{erased}"
        f"{star if aspects - {'robustness'} else ''}"
    )


def to_json(found: Evaluation) -> str:
    """Everything, the numbers of every text included; what is undefined is null."""
    facts = asdict(found) | {"cells": [plain(asdict(cell)) for cell in found.cells.values()]}
    return json.dumps(plain(facts) | {"verdict": verdict(found)}, ensure_ascii=False)


def plain(value: Any) -> Any:
    """As JSON can hold it: what is no number is null."""
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
    return None if isinstance(value, float) and not isfinite(value) else value


def to_csv(found: Evaluation) -> str:
    """A line for each method and metric."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", "metric", "better", "mean", "low", "high", "n", "minus_random", "p", "beats_random"])
    for c in found.cells.values():
        e, floor = c.estimate, c.against_random
        difference = ("", "") if floor is None else (floor.mean, floor.p)
        writer.writerow([c.method, c.metric, c.better, e.mean, e.low, e.high, e.n, *difference, c.beats_random])
    return out.getvalue()


def page(found: Evaluation, *, title: str = "Can this explanation be believed?") -> str:
    """A page that stands alone: the answer, the table, the charts."""
    said = "".join(f"<li>{escape(sentence)}</li>" for sentence in verdict(found))
    pictures = [figure(bars(found, "svg"))]
    if found.curves:
        pictures.append(f"<h2>As tokens are taken away</h2>{figure(curves(found, 'svg'))}")
    gaps = [(method, name, str(estimate)) for method, of in found.gaps.items() for name, estimate in of.items()]
    promised = table(("method", "gap", "mean and 95 % interval"), gaps)
    return document(
        escape(title),
        f"<p>The model is {escape(found.model)}. Made with salience {salience.__version__}.</p>",
        grid(found),
        f"<p>{escape(legend(found))}.</p><h2>In words</h2><ul>{said}</ul>",
        *pictures,
        f"<h2>What theory promises, and by how much it is missed</h2>{promised}" if gaps else "",
    )


def grid(found: Evaluation) -> str:
    """The table as HTML, the best of each column bold."""
    best = {(found.methods.index(found.best(metric)), column) for column, metric in enumerate(found.metrics)}
    return table(["", *(heading(found, metric) for metric in found.metrics)], rows(found), bold=best)


def bars(found: Evaluation, kind: str) -> bytes:
    """A bar with its interval for every method, a chart for each metric."""
    import altair as alt

    values = [
        {
            "method": c.method,
            "metric": heading(found, c.metric),
            **{bound: round(getattr(c.estimate, bound), 3) for bound in ("mean", "low", "high")},
            "control": c.method in CONTROLS,
        }
        for c in found.cells.values()
        if c.estimate.n
    ]
    base: Any = alt.Chart().encode(y=alt.Y("method:N", sort=list(found.methods), title=None))
    colour = alt.condition("datum.control", alt.value("#b9bec6"), alt.value("#2f6f9f"))
    made = alt.layer(
        base.mark_bar(height=11).encode(x=alt.X("mean:Q", title=None), color=colour),
        base.mark_rule(color="#1c1f24").encode(x="low:Q", x2="high:Q"),
        data=alt.Data(values=values),
        width=200,
        height=18 * len(found.methods),
    )
    order = [heading(found, metric) for metric in found.metrics]
    chart: Any = made.facet(alt.Facet("metric:N", title=None, sort=order), columns=3).resolve_scale(x="independent")
    return drawn(chart, kind)


def curves(found: Evaluation, kind: str) -> bytes:
    """Mean curves of every method, a chart for each metric; the controls are grey."""
    import altair as alt

    values = [
        {"metric": heading(found, metric), "method": method, "share": i / (len(curve) - 1), "value": value}
        for metric, of in found.curves.items()
        for method, curve in of.items()
        for i, value in enumerate(curve)
    ]
    chart: Any = (
        alt.Chart(alt.Data(values=values), width=300, height=200)
        .mark_line()
        .encode(
            x=alt.X("share:Q", title="share of tokens hidden, revealed, inserted or erased", axis=alt.Axis(format="%")),
            y=alt.Y("value:Q", title="decision kept, or probability"),
            color=alt.Color(
                "method:N",
                title=None,
                sort=list(found.methods),
                scale=alt.Scale(domain=list(found.methods), range=colours(found.methods)),
            ),
        )
        .facet(alt.Facet("metric:N", title=None), columns=2)
    )
    return drawn(chart, kind)


PALETTE = (
    *("#2f6f9f", "#d9822b", "#4c9a5b", "#b0413e", "#7b5ea7", "#8c6d4f", "#3aa6a6", "#c65d94", "#8a8f2d", "#5b6b82"),
    *("#8fc1e3", "#f3bf80", "#9dd3a8", "#e59a97", "#c2addf", "#cfb397", "#8fdada", "#ecabcd", "#cbce70", "#111318"),
)


def colours(methods: Sequence[str]) -> list[str]:
    """One for each method; the controls are grey."""
    real = iter(PALETTE * (1 + len(methods) // len(PALETTE)))
    greys = iter(("#9aa1ab", "#bcc1c8", "#d5d8dc"))
    return [next(greys) if method in CONTROLS else next(real) for method in methods]
