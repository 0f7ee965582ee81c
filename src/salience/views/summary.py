"""The most salient words of a run: in the terminal, and as HTML."""

from collections.abc import Iterator
from html import escape

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from salience.runs.summary import SalientWord, Summary
from salience.views.pages import document, listed, parts, table
from salience.views.sheet import label, visible

TOP = 10
HEAD = ("word", "share", "95 % interval", "texts")
WIDEST = 30
"""Characters of a word in a terminal."""


def terminal(summary: Summary, top: int = TOP) -> RenderableType:
    """One table per method and label."""
    parts: list[RenderableType] = [Text(line, "dim") for line in facts(summary)]
    for method, name, words in _tables(summary, top):
        shown = _rows(summary, words) if words else Text(_none(summary))
        parts += [Text(), Text(_title(summary, method, name), "bold"), shown]
    return Group(*parts)


def _rows(summary: Summary, words: list[SalientWord]) -> Table:
    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for number, name in enumerate(HEAD):
        shown.add_column(name, justify="right" if number else "left", no_wrap=True)
    for word in words:
        first, *rest = _cells(summary, word)
        shown.add_row(Text(first if len(first) <= WIDEST else f"{first[: WIDEST - 1]}…"), *rest)
    return shown


def page(summary: Summary, top: int = TOP) -> str:
    """A self-contained page."""
    return document("Most salient words", _body(summary, top))


def fragment(summary: Summary, top: int = TOP) -> str:
    """The same for a notebook cell."""
    return parts(_body(summary, top))


def _body(summary: Summary, top: int) -> str:
    first, *rest = facts(summary)
    shown = [listed([first, " ".join(rest)])]
    for method, name, words in _tables(summary, top):
        shown.append(f"<h2>{escape(_title(summary, method, name))}</h2>")
        cells = [_cells(summary, word) for word in words]
        shown.append(table(HEAD, cells) if cells else f"<p>{escape(_none(summary))}</p>")
    return "".join(shown)


def facts(summary: Summary) -> list[str]:
    """What was counted, and how to read it."""
    texts = sum(summary.texts.values())
    return [
        f"{texts:,} texts of {visible(summary.run, keep='')}, model {visible(summary.model, keep='')}",
        f"share of the absolute scores of a text; words of at least {summary.least} texts whose",
        "interval lies above 0, ranked by its lower end (each word by itself)",
    ]


def _tables(summary: Summary, top: int) -> Iterator[tuple[str, str, list[SalientWord]]]:
    for method in summary.methods:
        for name in summary.texts:
            yield method, name, summary.top(method, name, top)


def _title(summary: Summary, method: str, name: str) -> str:
    return f"{visible(method, keep='')}: {label(name)} ({summary.texts[name]:,} texts)"


def _none(summary: Summary) -> str:
    return f"no word of at least {summary.least} texts has an interval above 0"


def _cells(summary: Summary, word: SalientWord) -> list[str]:
    """A + is written only where scores have a direction."""
    mean, low, high = (
        format(share, "+.3f" if word.method in summary.signed else ".3f") for share in (word.mean, word.low, word.high)
    )
    return [label(word.word), mean, f"{low} to {high}", f"{word.texts:,}"]
