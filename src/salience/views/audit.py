"""Views of an audit: lines for the terminal, an HTML page with the charts of the papers, JSON."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from html import escape
from math import isnan, log
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

import salience
from salience.audits.adversary import FAR
from salience.audits.auditor import Audit
from salience.audits.erasure import RANKINGS
from salience.audits.finding import Finding, Measure
from salience.audits.weights import SAME_OUTPUT
from salience.views.charts import drawn, legible
from salience.views.evaluation import plain
from salience.views.pages import document, figure, table
from salience.views.twins import CHARTS as TWIN_CHARTS

MARKS = {"explanation": "as for an explanation", "no explanation": "not as for an explanation", "unclear": "unclear"}
"""Whether a finding is what it would be if attention were an explanation; not the answer to its question."""

TITLE = "Is its attention an explanation?"
CLOSING = "What this attention can and cannot be used for"
INK, LIGHT, GREY = "#2f6fab", "#b9d3ec", "#666666"
WIDTH, HEIGHT, FONT = 640, 340, 13


def terminal(audit: Audit) -> RenderableType:
    """The question, then for each test what was asked, the number, and what it would be for an explanation.

    The last line is the heading of the summary.
    """
    parts: list[RenderableType] = [Text(heading(audit), style="bold")]
    for finding in audit.findings:
        parts.append(Text(""))
        parts.append(Text(finding.question, style="bold"))
        first = finding.measures[0]
        # The number comes first, so that no line break divides it from its interval.
        number = f"{first}  {first.name}, {first.estimate.n} texts: {MARKS[finding.verdict]}"
        rest = (f"If attention were an explanation: {finding.expected}.", finding.source)
        lines = [Text(number), *(Text(line, style="dim") for line in rest)]
        parts += [Padding(line, (0, 0, 0, 2), expand=False) for line in lines]
    return Group(*parts, Text(""), Text(CLOSING, style="bold"))


def heading(audit: Audit) -> str:
    """What was audited."""
    layer = "the last layer" if audit.layer is None else f"layer {audit.layer}"
    head = "all heads" if audit.head is None else f"head {audit.head}"
    return f"{TITLE} {audit.model}, {layer}, {head}, {audit.texts} texts"


def to_json(audit: Audit) -> dict[str, Any]:
    """The whole audit with the values of every text; undefined values are null."""
    return plain(asdict(audit) | {"summary": audit.summary, "salience": salience.__version__})


def page(audit: Audit) -> str:
    """A self-contained HTML page: the question, one line per test, the charts, and what attention can be used for."""
    return document(
        escape(TITLE),
        f"<p>{escape(heading(audit).removeprefix(TITLE).strip())}. Created with salience {salience.__version__}.</p>",
        _table(audit),
        *(_section(finding) for finding in audit.findings),
        _closing(audit),
        style=_STYLE,
    )


def fragment(audit: Audit) -> str:
    """The table and what attention can be used for, without charts: for a notebook cell."""
    return f"<p><b>{escape(heading(audit))}</b></p>{_table(audit)}{_closing(audit)}"


def _table(audit: Audit) -> str:
    rows = [
        (f.question, f"{f.measures[0]}\n{f.measures[0].name}", f.expected, MARKS[f.verdict], f.source)
        for f in audit.findings
    ]
    head = ("question", "number, 95 % interval", "if attention were an explanation", "result", "source")
    return table(head, rows)


def _closing(audit: Audit) -> str:
    sentences = "".join(f"<li>{escape(sentence)}</li>" for sentence in audit.summary)
    return f"<h2>{CLOSING}</h2><ul>{sentences}</ul>"


_STYLE = (
    ".report td { white-space: pre-line; } .report tbody th { white-space: normal; min-width: 11rem; } "
    "li { margin: .5rem 0; }"
)


def _section(finding: Finding) -> str:
    draw = CHARTS.get(finding.test)
    picture = "" if draw is None else figure(drawn(legible(draw(finding)), "svg"))
    rows = [(m.name, str(m), str(m.estimate.n)) for m in finding.measures]
    return (
        f"<h2>{escape(finding.question)}</h2><p>{escape(finding.answer)}</p>{picture}"
        f"{table(('measure', 'mean or share, 95 % interval', 'texts'), rows)}{_by_label(finding)}"
    )


def _by_label(finding: Finding) -> str:
    if not finding.by_label:
        return ""
    names = list(next(iter(finding.by_label.values())))
    rows = [(label, *(f"{of.get(n, float('nan')):.3f}" for n in names)) for label, of in finding.by_label.items()]
    return f"<h3>By predicted label</h3>{table(('label', *names), rows)}"


# ------------------------------------------------------------------------------------------------------ charts


def _scatter(finding: Finding, y: str, marks: Mapping[str, float]) -> Any:
    """One point per text, over its largest attention weight; ``marks`` are lines across, with their labels."""
    import altair as alt

    x = "largest attention weight"
    pairs = zip(finding.measure(x).values, finding.measure(y).values, strict=True)
    values = [{"x": a, "y": b} for a, b in pairs if not isnan(a) and not isnan(b)]
    highest = max((*marks.values(), *(value["y"] for value in values))) * 1.05
    # Labels stand on the right, outside of the points.
    lines = alt.Chart(alt.Data(values=[{"y": at, "label": label} for label, at in marks.items()])).encode(y="y:Q")
    points = (
        alt.Chart(alt.Data(values=values), width=WIDTH, height=HEIGHT)
        .mark_circle(size=45, opacity=0.5, color=INK)
        .encode(
            x=alt.X("x:Q", title=f"{x} of a text", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(tickCount=10)),
            y=alt.Y("y:Q", title=y, scale=alt.Scale(domain=[0, highest], nice=False)),
        )
    )
    rules = lines.mark_rule(color=GREY, strokeDash=[5, 4])
    labels = lines.mark_text(align="left", dx=6, color=GREY, fontSize=FONT).encode(text="label:N", x=alt.value(WIDTH))
    return rules + points + labels


def _boxes(measures: Mapping[str, Measure], title: str) -> Any:
    """A box plot for each measure, in one column, with its mean beside it."""
    import altair as alt

    values = [{"what": name, "value": v} for name, m in measures.items() for v in m.values if not isnan(v)]
    means = [{"what": name, "label": f"mean {m.mean}"} for name, m in measures.items() if not isnan(m.estimate.mean)]
    form = "%" if any(m.kind == "share" for m in measures.values()) else alt.Undefined
    y = alt.Y("what:N", title=None, sort=list(measures), axis=alt.Axis(labelLimit=320))
    boxes = (
        alt.Chart(alt.Data(values=values), width=WIDTH, height=44 * len(measures))
        .mark_boxplot(
            extent=1.5,
            size=22,
            box={"fill": LIGHT, "stroke": INK},
            median={"stroke": INK, "strokeWidth": 3, "fill": INK},
            rule={"stroke": INK},
            outliers={"stroke": INK, "size": 25},
        )
        .encode(x=alt.X("value:Q", title=title, axis=alt.Axis(tickCount=10, format=form)), y=y)
    )
    labels = (
        alt.Chart(alt.Data(values=means))
        .mark_text(align="left", dx=6, color=GREY, fontSize=FONT)
        .encode(text="label:N", x=alt.value(WIDTH), y=y)
    )
    return boxes + labels


def _correlation(finding: Finding) -> Any:
    return _boxes({m.name: m for m in finding.measures[1:4]}, "Kendall's τ of each text")


def _permutation(finding: Finding) -> Any:
    return _scatter(finding, "median change of the output (TVD)", {"counts as the same": SAME_OUTPUT})


def _adversary(finding: Finding) -> Any:
    return _scatter(finding, "distance reached (JSD)", {"far": FAR, "ln 2, the most": log(2)})


def _erasure(finding: Finding) -> Any:
    names = {name: finding.measure(f"fraction to flip, {name}") for name in RANKINGS}
    return _boxes(names, "weights erased until the decision flips")


def _intervention(finding: Finding) -> Any:
    return _boxes({m.name: m for m in finding.measures}, "how far it moves in each text")


def _comparison(finding: Finding) -> Any:
    return _boxes({m.name.partition(", ")[2]: m for m in finding.measures[1:]}, "comprehensiveness of each text")


CHARTS: Mapping[str, Callable[[Finding], Any]] = {
    "correlation": _correlation,
    "permutation": _permutation,
    "adversary": _adversary,
    "erasure": _erasure,
    "intervention": _intervention,
    "comparison": _comparison,
    **TWIN_CHARTS,
}
