"""Where explanations go: the terminal, JSON lines, a page or a picture."""

import json
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from salience.cli.options import Display
from salience.errors import BadInput

if TYPE_CHECKING:
    from rich.table import Table

    from salience.explanation import Explanation

Show = Callable[..., None]
"""Called with the explanations of one text, and with the text's id where it has one."""


@contextmanager
def sink(display: Display) -> Generator[Show]:
    """Where explanations go, text by text. A file is opened before the work starts and complete when it ends."""
    if display.as_json + len(display.files) > 1:
        raise BadInput("choose one of --json, --html, --png and --svg")
    if display.files:
        kind, path = display.files[0]
        with written(path) as file:
            kept: list[Explanation] = []
            yield lambda row, _=None: kept.extend(row)
            file.write(_document(kind, kept, display.level))
        click.echo(f"wrote {path}", err=True)
    else:
        yield _print_json if display.as_json else _terminal(display.level, display.plain)


def print_points(sentences: Iterable[str]) -> None:
    """One below the other."""
    for sentence in sentences:
        click.echo(f"• {sentence}")


def _print_json(explanations: "Sequence[Explanation]", name: str | None = None) -> None:
    for e in explanations:
        line = e.to_dict() if name is None else {"id": name, **e.to_dict()}
        click.echo(json.dumps(line, ensure_ascii=False))


def _document(kind: str, explanations: "Sequence[Explanation]", level: str) -> bytes:
    if kind == "html":
        from salience.views.html import page

        return page(explanations, level=level).encode()
    from salience.views.charts import picture

    return picture(explanations, kind, level=level)


def _terminal(level: str, plain: bool) -> Show:
    from rich.console import Console

    from salience.views import terminal

    console = Console(no_color=True if plain else None, highlight=False, emoji=False, markup=False, soft_wrap=False)
    colour, ground = terminal.coloured(console), terminal.ground(os.environ)

    def show(row: "Sequence[Explanation]", _: str | None = None) -> None:
        console.print(terminal.render(row, level=level, colour=colour, ground=ground, width=console.width))

    return show


def print_wide(table: "Table") -> None:
    """Print a table as wide as it needs to be: a number that is cut is no number."""
    from rich.console import Console

    needed = Console(width=10_000).measure(table).maximum
    Console(width=max(Console().width, needed)).print(table)


@contextmanager
def written(path: Path) -> Generator[IO[bytes]]:
    """A file that appears under its name only when it is complete."""
    if path.is_dir():
        raise BadInput(f"{path} is a folder; give the name of a file in it")
    if not path.parent.is_dir():
        raise BadInput(f"the folder {path.parent} does not exist; create it first")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        file = part.open("xb")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from error
    try:
        with file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
