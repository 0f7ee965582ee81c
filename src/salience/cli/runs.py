"""``salience show`` and ``salience export``: what a run folder holds."""

from itertools import islice
from pathlib import Path

import click

from salience.cli.options import Display, display, examples
from salience.cli.output import sink
from salience.errors import BadInput


@click.command(
    epilog=examples(
        "salience show run", "salience show run --first 3 --json", "salience show run --id r17 --html r17.html"
    )
)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--first", type=int, default=10, show_default=True, metavar="N", help="How many texts.")
@click.option("--id", "ids", metavar="ID", multiple=True, help="Only the text of this id; may be repeated.")
@click.option("--method", "columns", metavar="NAME", multiple=True, help="Only this method's scores; may be repeated.")
@display
def show(run: Path, first: int, ids: tuple[str, ...], columns: tuple[str, ...], display: Display) -> None:
    """Show explanations of a run, as `salience explain` shows those of a text."""
    from salience.runs import open_run

    wanted = set(ids)
    found = ((name, row) for name, row in open_run(run).rows(*columns) if not ids or name in wanted)
    with sink(display) as give:
        seen = [name for name, row in islice(found, len(wanted) or first) if give(row, name) is None]
    if missing := [name for name in ids if name not in seen]:
        raise BadInput(f"{run} holds no text of id {missing[0]!r}")
    if not seen:
        raise BadInput(f"{run} holds no explained text yet")


@click.command(
    epilog=examples(
        "salience export run scores.jsonl", "salience export run rationales.jsonl --format eraser --share 0.2"
    )
)
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--format", default="jsonl", show_default=True, metavar="FORMAT", help="jsonl or eraser.")
@click.option("--method", "column", metavar="NAME", help="The method of ERASER rationales, where a run has several.")
@click.option("--share", type=float, default=0.2, show_default=True, help="Share of words in an ERASER rationale.")
def export(run: Path, file: Path, format: str, column: str | None, share: float) -> None:
    """Write a run to one FILE: JSON Lines, or rationales in the format of the ERASER benchmark."""
    from salience.runs import open_run

    open_run(run).export(file, format, column=column, share=share)
    click.echo(f"wrote {file}", err=True)
