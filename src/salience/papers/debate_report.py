"""Results of the papers of the attention debate: tables for the terminal, an HTML page, JSON."""

from dataclasses import asdict
from html import escape
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import salience
from salience.core.characters import to_json as safe_json
from salience.papers.debate import DebateResult, Row
from salience.views.evaluation import plain
from salience.views.pages import document, listed, settings_table, table

LEGEND = (
    "Ours are means over test texts with 95 % intervals. A published number is comparable if the same quantity was "
    "measured on the same data with the same kind of model and the full protocol; otherwise compare directions only."
)


def terminal(result: DebateResult) -> RenderableType:
    """A table of numbers for each data set, then the directions with their figures."""
    parts: list[RenderableType] = [Text(f"{result.title} ({result.source})", style="bold")]
    for data in dict.fromkeys(row.data for row in result.rows):
        parts += [Text(""), Text(data, style="bold"), _numbers([row for row in result.rows if row.data == data])]
    parts.append(Text("\nDirections", style="bold"))
    for one in result.directions:
        parts.append(Text(f"{one.verdict}: {one.data}, {one.claim}"))
        parts.append(Padding(Text(one.figures, style="dim"), (0, 0, 0, 2)))
    return Group(*parts, Text(""), *(Text(note, style="dim") for note in (LEGEND, *result.notes)))


def _numbers(rows: list[Row]) -> Table:
    numbers = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    numbers.add_column("quantity", ratio=1)
    for name in ("ours", "published", "compare"):
        numbers.add_column(name, no_wrap=True)
    for row in rows:
        numbers.add_row(Text(row.quantity), Text(str(row.ours)), _published(row), row.mark)
    return numbers


def _published(row: Row) -> str:
    return "–" if row.published is None else f"{row.published:.4g}"


def page(result: DebateResult) -> str:
    """A self-contained HTML page: directions, numbers, how the protocol differs, settings."""
    directions = [(one.data, one.claim, one.verdict, one.figures) for one in result.directions]
    numbers = [(row.data, row.quantity, str(row.ours), _published(row), row.mark) for row in result.rows]
    return document(
        escape(result.title),
        f"<p>{escape(result.source)}. Created with salience {salience.__version__}.</p>",
        f"<h2>Directions</h2>{table(('data', 'claim of the paper', 'here', 'figures'), directions)}",
        f"<h2>Numbers</h2><p>{escape(LEGEND)}</p>",
        table(("data", "quantity", "ours, 95 % interval", "published", "compare"), numbers),
        f"<h2>Differences from the paper</h2>{listed(result.notes)}",
        f"<h2>Settings</h2>{settings_table(result.settings)}",
        style=".report td { white-space: pre-line; }",
    )


def to_json(result: DebateResult) -> str:
    """The whole result as JSON; undefined numbers are null."""
    facts: dict[str, Any] = asdict(result)
    for stored, row in zip(facts["rows"], result.rows, strict=True):
        stored["compare"] = row.mark
    for stored, one in zip(facts["directions"], result.directions, strict=True):
        stored["verdict"] = one.verdict
    return safe_json(plain(facts), indent=1)
