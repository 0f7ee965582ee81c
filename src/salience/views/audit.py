"""Views of an audit: lines for the terminal, an HTML page with the charts of the papers, JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from math import isnan
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

import salience
from salience.audits.auditor import Audit
from salience.audits.erasure import RANKINGS
from salience.audits.finding import Finding, Measure
from salience.views.charts import drawn
from salience.views.evaluation import plain
from salience.views.pages import document, figure, table

MARKS = {"explanation": "yes", "no explanation": "no", "unclear": "unclear"}
"""Whether a finding is what it would be if attention were an explanation."""

TITLE = "Is its attention an explanation?"
INK = "#2f6fab"
WIDTH, HEIGHT = 560, 320


def terminal(audit: Audit) -> RenderableType:
    """The question, then for each test what was asked, the number, what it would be for an explanation, and if it is.

    The verdict is not the answer to the question of the test: "Are there very different weights with the same
    prediction?" is answered by yes, and is then no explanation.
    """
    parts: list[RenderableType] = [Text(heading(audit), style="bold")]
    for finding in audit.findings:
        parts.append(Text(""))
        parts.append(Text(finding.question, style="bold"))
        first = finding.measures[0]
        lines = (
            f"{first.name}: {first.estimate} (n = {first.estimate.n})",
            f"if attention were an explanation: {finding.expected}",
            f"is it so here? {MARKS[finding.verdict]}",
            finding.source,
        )
        styles = ("", "dim", "", "dim")
        parts += [Padding(Text(line, style=style), (0, 0, 0, 2)) for line, style in zip(lines, styles, strict=True)]
    return Group(*parts)


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
    rows = [
        (f.question, MARKS[f.verdict], f"{f.measures[0].name}\n{f.measures[0].estimate}", f.expected, f.source)
        for f in audit.findings
    ]
    head = ("question", "as for an explanation?", "number, 95 % interval", "if attention were an explanation", "source")
    sentences = "".join(f"<li>{escape(sentence)}</li>" for sentence in audit.summary)
    return document(
        escape(TITLE),
        f"<p>{escape(heading(audit).removeprefix(TITLE).strip())}. Created with salience {salience.__version__}.</p>",
        table(head, rows),
        f"<h2>What this attention can be used for</h2><ul>{sentences}</ul>",
        *(_section(finding) for finding in audit.findings),
        style=_STYLE,
    )


_STYLE = ".report td { white-space: pre-line; } .report tbody th { white-space: normal; min-width: 11rem; }"


def _section(finding: Finding) -> str:
    draw = CHARTS.get(finding.test)
    picture = "" if draw is None else figure(drawn(draw(finding), "svg"))
    rows = [(m.name, str(m.estimate), str(m.estimate.n)) for m in finding.measures]
    return (
        f"<h2>{escape(finding.question)}</h2><p>{escape(finding.answer)}</p>{picture}"
        f"{table(('measure', 'mean and 95 % interval', 'texts'), rows)}{_by_label(finding)}"
    )


def _by_label(finding: Finding) -> str:
    if not finding.by_label:
        return ""
    names = list(next(iter(finding.by_label.values())))
    rows = [(label, *(f"{of.get(n, float('nan')):.3f}" for n in names)) for label, of in finding.by_label.items()]
    return f"<h3>By predicted label</h3>{table(('label', *names), rows)}"


# ------------------------------------------------------------------------------------------------------ charts


def _scatter(finding: Finding, x: str, y: str, domain: Sequence[float] | None = None) -> Any:
    """One point per text."""
    import altair as alt

    pairs = zip(finding.measure(x).values, finding.measure(y).values, strict=True)
    values = [{"x": a, "y": b} for a, b in pairs if not isnan(a) and not isnan(b)]
    scale = alt.Scale() if domain is None else alt.Scale(domain=list(domain))
    return (
        alt.Chart(alt.Data(values=values), width=WIDTH, height=HEIGHT)
        .mark_circle(size=40, opacity=0.5, color=INK)
        .encode(
            x=alt.X("x:Q", title=x, scale=alt.Scale(domain=[0, 1])),
            y=alt.Y("y:Q", title=y, scale=scale),
        )
    )


def _boxes(measures: Mapping[str, Measure], title: str) -> Any:
    """A box plot for each measure, in one column."""
    import altair as alt

    values = [{"what": name, "value": v} for name, m in measures.items() for v in m.values if not isnan(v)]
    return (
        alt.Chart(alt.Data(values=values), width=WIDTH, height=60 * len(measures))
        .mark_boxplot(extent=1.5, size=24, color=INK)
        .encode(
            x=alt.X("value:Q", title=title),
            y=alt.Y("what:N", title=None, sort=list(measures), axis=alt.Axis(labelLimit=320)),
        )
    )


def _correlation(finding: Finding) -> Any:
    return _boxes({m.name: m for m in finding.measures[1:4]}, "Kendall's τ of each text")


def _permutation(finding: Finding) -> Any:
    return _scatter(finding, "largest attention weight", "median change of the output (TVD)")


def _adversary(finding: Finding) -> Any:
    return _scatter(finding, "largest attention weight", "distance reached (JSD)", (0, 0.7))


def _erasure(finding: Finding) -> Any:
    names = {name: finding.measure(f"fraction to flip, {name}") for name in RANKINGS}
    return _boxes(names, "fraction of weights erased until the decision flips")


def _intervention(finding: Finding) -> Any:
    return _boxes({m.name: m for m in finding.measures}, "how far it moves")


def _comparison(finding: Finding) -> Any:
    return _boxes({m.name.partition(", ")[2]: m for m in finding.measures[1:]}, "comprehensiveness")


CHARTS: Mapping[str, Callable[[Finding], Any]] = {
    "correlation": _correlation,
    "permutation": _permutation,
    "adversary": _adversary,
    "erasure": _erasure,
    "intervention": _intervention,
    "comparison": _comparison,
}
