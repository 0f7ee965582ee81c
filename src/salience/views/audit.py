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
from salience.views import plots
from salience.views.evaluation import plain
from salience.views.pages import chart, document, listed, parts, table
from salience.views.plots import Axis
from salience.views.twins import CHARTS as TWIN_CHARTS

MARKS = {"explanation": "as for an explanation", "no explanation": "not as for an explanation", "unclear": "unclear"}
"""Whether a finding is what it would be if attention were an explanation; not the answer to its question."""

TITLE = "Is its attention an explanation?"
CLOSING = "What this attention can and cannot be used for"


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
    cut = f" ({audit.truncated} truncated to the maximum length of the model)" if audit.truncated else ""
    return f"{TITLE} {audit.model}, {layer}, {head}, {audit.texts} texts{cut}"


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
    return parts(f"<style>{_STYLE}</style><p><b>{escape(heading(audit))}</b></p>", _table(audit), _closing(audit))


def _table(audit: Audit) -> str:
    rows = [
        (f.question, f"{f.measures[0]}\n{f.measures[0].name}", f.expected, MARKS[f.verdict], f.source)
        for f in audit.findings
    ]
    head = ("question", "number, 95 % interval", "if attention were an explanation", "result", "source")
    return table(head, rows)


def _closing(audit: Audit) -> str:
    return f"<h2>{CLOSING}</h2>{listed(audit.summary)}"


_STYLE = ".report td { white-space: pre-line; } .report tbody th { white-space: normal; min-width: 11rem; }"


def _section(finding: Finding) -> str:
    draw = CHARTS.get(finding.test)
    rows = [(m.name, str(m), str(m.estimate.n)) for m in finding.measures]
    return (
        f"<h2>{escape(finding.question)}</h2><p>{escape(finding.answer)}</p>{'' if draw is None else draw(finding)}"
        f"{table(('measure', 'mean or share, 95 % interval', 'texts'), rows)}{_by_label(finding)}"
    )


def _by_label(finding: Finding) -> str:
    if not finding.by_label:
        return ""
    names = list(next(iter(finding.by_label.values())))
    rows = [(label, *(f"{of.get(n, float('nan')):.3f}" for n in names)) for label, of in finding.by_label.items()]
    return f"<h3>By predicted label</h3>{table(('label', *names), rows)}"


# ------------------------------------------------------------------------------------------------------ charts


def _scatter(finding: Finding, y: str, marks: Mapping[str, float]) -> str:
    """One point per text, over its largest attention weight; ``marks`` are lines across, with their names."""
    x = "largest attention weight"
    pairs = list(zip(finding.measure(x).values, finding.measure(y).values, strict=True))
    made = plots.scatter(pairs, Axis(f"{x} of a text", ends=(0, 1)), Axis(y), marks)
    rows = [(str(number), f"{a:.3f}", f"{b:.3f}") for number, (a, b) in enumerate(pairs, 1)]
    return chart(plots.svg(made), f"{y} of each text over its {x}", (("text", x, y), rows))


def _boxes(measures: Mapping[str, Measure], title: str) -> str:
    """A box plot for each measure, in one column, with its mean beside it."""
    values = {name: m.values for name, m in measures.items()}
    beside = {name: f"mean {m.mean}" for name, m in measures.items() if not isnan(m.estimate.mean)}
    share = any(m.kind == "share" for m in measures.values())
    made = plots.boxes(values, beside, Axis(title, "%" if share else ""))
    return chart(plots.svg(made), title, plots.quartiles(values))


def _correlation(finding: Finding) -> str:
    return _boxes({m.name: m for m in finding.measures[1:4]}, "Kendall's τ of each text")


def _permutation(finding: Finding) -> str:
    return _scatter(finding, "median change of the output (TVD)", {"counts as the same": SAME_OUTPUT})


def _adversary(finding: Finding) -> str:
    return _scatter(finding, "distance reached (JSD)", {"far": FAR, "ln 2, the most": log(2)})


def _erasure(finding: Finding) -> str:
    names = {name: finding.measure(f"fraction to flip, {name}") for name in RANKINGS}
    return _boxes(names, "weights erased until the decision flips")


def _intervention(finding: Finding) -> str:
    return _boxes({m.name: m for m in finding.measures}, "how far it moves in each text")


def _comparison(finding: Finding) -> str:
    return _boxes({m.name.partition(", ")[2]: m for m in finding.measures[1:]}, "comprehensiveness of each text")


CHARTS: Mapping[str, Callable[[Finding], str]] = {
    "correlation": _correlation,
    "permutation": _permutation,
    "adversary": _adversary,
    "erasure": _erasure,
    "intervention": _intervention,
    "comparison": _comparison,
    **TWIN_CHARTS,
}
