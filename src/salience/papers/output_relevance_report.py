"""Results on the claims of the slides: tables for the terminal, an HTML page, JSON."""

from dataclasses import asdict
from html import escape
from math import isnan
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import salience
from salience.core.characters import to_json as safe_json
from salience.core.stats import Estimate
from salience.papers.output_relevance import SOURCE, TITLE
from salience.papers.relevance_claims import CLAIMS, Answer, Line, Reproduction, Section
from salience.views.dynamics import order_chart
from salience.views.evaluation import plain
from salience.views.pages import document, listed, settings_table, table

COLUMNS = ("chance", "τ", "best", "at step", "ξ")
HEAD = ("quantity", "ours, 95 % interval", *COLUMNS, "slides")
UNTESTED = "not tested by this command"


def terminal(result: Reproduction) -> RenderableType:
    """The tables of every section, then the claims with what was found."""
    parts: list[RenderableType] = [Text(f"{TITLE} ({SOURCE})", style="bold")]
    for section in result.sections:
        for data in dict.fromkeys(line.data for line in section.lines):
            parts += [Text(""), Text(f"{section.title}: {data}", style="bold"), _numbers(section, data)]
    parts.append(Text("\nClaims of the slides", style="bold"))
    for number, claim in enumerate(CLAIMS, 1):
        parts.append(Text(f"{number}. {claim}"))
        lines = [_written_out(answer) for answer in result.answers if answer.claim == number] or [UNTESTED]
        parts += [Padding(Text(line), (0, 0, 0, 3)) for line in lines]
    notes = [Text(note, style="dim") for section in result.sections for note in section.notes]
    return Group(*parts, Text(""), *notes)


def _written_out(answer: Answer) -> str:
    return f"{answer.data}: {answer.verdict} ({answer.figures})"


def _numbers(section: Section, data: str) -> Table:
    numbers = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in (HEAD[0], "ours", *COLUMNS):
        numbers.add_column(name, no_wrap=True)
    for line in section.lines:
        if line.data == data:
            means = [_number(_mean(line.beside.get(name)), 2) for name in COLUMNS]
            numbers.add_row(*map(Text, (line.quantity, _number(line.ours, 2), *means)))
    return numbers


def _mean(value: Estimate | float | None) -> float | None:
    return value.mean if isinstance(value, Estimate) else value


def _cells(line: Line) -> list[str]:
    beside = [_number(line.beside.get(name), 3) for name in COLUMNS]
    return [line.quantity, _number(line.ours, 3), *beside, line.slides or "–"]


def _number(value: Estimate | float | None, digits: int) -> str:
    """A number with its interval, if it has one; steps are whole numbers."""
    mean = _mean(value)
    if value is None or mean is None or isnan(mean):
        return "–"
    if not isinstance(value, Estimate):
        return str(value) if isinstance(value, int) else f"{value:.{digits}f}"
    digits = 0 if value.mean > 1 else digits
    bounds = "" if isnan(value.low) else f" [{value.low:.{digits}f}, {value.high:.{digits}f}]"
    return f"{value.mean:.{digits}f}{bounds}"


def page(result: Reproduction) -> str:
    """A self-contained HTML page: the claims, the tables, and the order of relevance and attention as charts."""
    return document(
        escape(TITLE),
        f"<p>{escape(SOURCE)}. Created with salience {salience.__version__}.</p>",
        f"<h2>Claims of the slides</h2>{table(('claim', 'data', 'here', 'figures'), claims(result))}",
        *(_section(section) for section in result.sections),
        f"<h2>Settings</h2>{settings_table(result.settings)}",
        style=".report td { white-space: pre-line; } .report tbody th { white-space: normal; min-width: 14rem; }",
    )


def claims(result: Reproduction) -> list[tuple[str, str, str, str]]:
    """Every claim with its answers; claims that no section tests say so."""
    rows = [(f"{a.claim}. {CLAIMS[a.claim - 1]}", a.data, a.verdict, a.figures) for a in result.answers]
    rows += [(f"{number}. {CLAIMS[number - 1]}", "", UNTESTED, "") for number in result.untested()]
    return sorted(rows, key=lambda row: int(row[0].partition(".")[0]))


def _section(section: Section) -> str:
    rows = [(line.data, *_cells(line)) for line in section.lines]
    charts = "".join(
        f"<h3>{escape(data)}: which comes first?</h3>{order_chart(order)}" for data, order in section.orders.items()
    )
    return f"<h2>{escape(section.title)}</h2>{table(('data', *HEAD), rows)}{charts}{listed(section.notes)}"


def to_json(result: Reproduction) -> str:
    """The whole result as JSON; undefined numbers are null."""
    facts: dict[str, Any] = asdict(result)
    answers = {
        f"{number}. {claim}": {a.data: a.verdict for a in result.answers if a.claim == number} or UNTESTED
        for number, claim in enumerate(CLAIMS, 1)
    }
    return safe_json(plain(facts | {"claims": answers}), indent=1)
