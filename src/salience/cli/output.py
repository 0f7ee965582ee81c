"""Writes explanations to the terminal, as JSON Lines, as a page or as an image."""

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import wrap
from threading import Timer
from typing import IO, TYPE_CHECKING, Any

import click

from salience.cli.options import Display
from salience.core.characters import to_json, visible
from salience.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment
    from rich.table import Table

    from salience.explanations.explanation import Explanation

PATIENCE = 2.0
"""Seconds before a progress bar appears."""

Show = Callable[[Sequence["Explanation"]], None]
"""Called with the explanations of one text."""


@contextmanager
def sink(display: Display) -> Generator[Show]:
    """Show explanations text by text. Files are opened before the work starts and appear once they are complete."""
    check_distinct([path for _, path in display.files])
    printed = _print_json if display.as_json else None if display.files else _terminal(display)
    kept: list[Explanation] = []

    def show(row: "Sequence[Explanation]") -> None:
        if printed is not None:
            printed(row)
        if display.files:
            kept.extend(row)

    with ExitStack() as stack:
        files = [(kind, stack.enter_context(written(path))) for kind, path in display.files]
        yield show
        for kind, file in files:
            file.write(_document(kind, kept, display))
    for _, path in display.files:
        click.echo(visible(f"wrote {path}"), err=True)


def check_distinct(paths: "Sequence[Path]") -> None:
    """Raise if two outputs would be written to one file."""
    if twice := [path for place, path in enumerate(paths) if path.resolve() in {p.resolve() for p in paths[:place]}]:
        raise BadInput(f"{twice[0]} is named for two outputs; give each its own file")


def print_points(sentences: Iterable[str]) -> None:
    """Print sentences as a bulleted list, wrapped between words to the width of the terminal."""
    from rich.console import Console

    width = Console().width
    for sentence in sentences:
        for line in wrap(
            visible(f"• {sentence}"), width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        ):
            click.echo(line)


def _print_json(explanations: "Sequence[Explanation]") -> None:
    for e in explanations:
        click.echo(to_json(e.to_dict()))


def _document(kind: str, explanations: "Sequence[Explanation]", display: Display) -> bytes:
    if kind == "html":
        from salience.views.html import page

        return page(explanations, level=display.level, view=display.view).encode()
    from salience.views.charts import picture

    return picture(explanations, kind, level=display.level, view=display.view)


def _terminal(display: Display) -> Show:
    from rich.console import Console

    from salience.views import terminal

    console = Console(
        no_color=True if display.plain else None, highlight=False, emoji=False, markup=False, soft_wrap=False
    )
    colour, ground = terminal.coloured(console), terminal.ground(os.environ)

    def show(row: "Sequence[Explanation]") -> None:
        shown = terminal.render(
            row, level=display.level, view=display.view, colour=colour, ground=ground, width=console.width
        )
        console.print(shown)

    return show


def print_result(
    options: Mapping[str, Any],
    tables: "Sequence[tuple[Sequence[str], Sequence[Sequence[str]]]]",
    notes: Iterable[str],
    facts: object,
    page: Callable[[], str] | None = None,
) -> None:
    """The end of a command: the page that --html asks for; then the facts as JSON, or tables and notes."""
    from salience.views.evaluation import plain

    if page is not None and options["html"] is not None:
        write_page(options["html"], page())
    if options["as_json"]:
        click.echo(to_json(plain(facts)))
        return
    for content in tables:
        print_table(content)
    print_points(notes)


def write_page(path: Path, page: str) -> None:
    """Write a page, and say so."""
    with written(path) as file:
        file.write(page.encode())
    click.echo(visible(f"wrote {path}"), err=True)


def print_table(content: "tuple[Sequence[str], Sequence[Sequence[str]]]") -> None:
    """Print a table, its head and its rows, in parts that fit the terminal."""
    from rich.console import Console

    from salience.views.trials import terminal

    for block in terminal(content, Console().width):
        print_wide(block)
        click.echo()


def print_wide(table: "Table") -> None:
    """Print a table at its full width, so that no number is cut off. Characters that a terminal obeys are visible."""
    from rich.console import Console

    needed = Console(width=10_000).measure(table).maximum
    console = Console(width=max(Console().width, needed))
    console.print(_Visible(table))


class _Visible:
    """A table in which control characters are made visible after its layout."""

    def __init__(self, table: "Table") -> None:
        self.table = table

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Segment]":
        from rich.segment import Segment

        for text, style, control in console.render(self.table, options):
            yield Segment(text if control else visible(text), style, control)


def report_rejected(folder: Path) -> None:
    """Say how many rows of the data a finished run could not use. --quiet hides progress, and not this."""
    from salience.runs.folder import read_manifest

    if count := read_manifest(folder)["finished"]["rejected"]:
        rows = "1 row was" if count == 1 else f"{count:,} rows were"
        click.echo(visible(f"{rows} rejected; see {folder / 'rejected.jsonl'}"), err=True)


@contextmanager
def written(path: Path) -> Generator[IO[bytes]]:
    """Open a file that appears under its name only once it is complete."""
    check_place(path)
    from salience.core.files import complete

    with complete(path) as file:
        yield file


def write_into(folder: Path, files: Mapping[str, str]) -> None:
    """Write text files by name into a folder; each appears once it is complete."""
    from salience.core.files import complete

    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        with complete(folder / name) as file:
            file.write(text.encode())


def check_place(path: Path) -> None:
    """Raise BadInput if there can be no file of that name."""
    if path.is_dir():
        raise BadInput(f"{path} is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise BadInput(f"the folder {path.parent} does not exist; create it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BadInput(f"{path} cannot be written to; choose another place")


@contextmanager
def progress_bar(total: int, quiet: bool) -> Generator[Callable[[], None]]:
    """A progress bar on standard error, shown only in a terminal and only after a delay."""
    if quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    counted = (MofNCompleteColumn(), TimeRemainingColumn()) if total > 1 else (TimeElapsedColumn(),)
    shown = Progress(TextColumn("explaining"), BarColumn(), *counted, console=Console(stderr=True), transient=True)
    task = shown.add_task("", total=total if total > 1 else None)
    timer = Timer(PATIENCE, shown.start)
    timer.daemon = True
    timer.start()

    def step() -> None:
        shown.advance(task)
        if sys.stdout.isatty():  # the results appear in the same terminal
            timer.cancel()
            shown.stop()

    try:
        yield step
    finally:
        timer.cancel()
        timer.join()
        shown.stop()
