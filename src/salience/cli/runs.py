"""``salience show``, ``salience summary``, ``salience export`` and ``salience compare``: read run folders."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from salience.cli.answers import answer_sink
from salience.cli.options import COUNT, SHARE, Display, Number, display, example_lines
from salience.cli.output import check_place, sink, written
from salience.core.characters import to_json
from salience.core.settings import Pairs
from salience.errors import BadInput, unknown

if TYPE_CHECKING:
    from salience.runs.run import Run
    from salience.runs.summary import Summary


@click.command(
    epilog=example_lines(
        "salience show run",
        "salience show run --first 3 --json",
        "salience show run --id r17 --html r17.html",
        "salience show run --wrong --sort -confidence      (the most confident mistakes)",
        "salience show run --label negative --sort disagreement",
    )
)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--first", type=COUNT, default=10, show_default=True, metavar="N", help="Number of texts to show.")
@click.option("--id", "ids", metavar="ID", multiple=True, help="Show only the text with this id; may be repeated.")
@click.option("--label", metavar="LABEL", help="Show only texts with this true label.")
@click.option("--wrong", is_flag=True, help="Show only texts whose prediction is not their true label.")
@click.option(
    "--sort",
    type=click.Choice(["confidence", "-confidence", "disagreement"]),
    help="Least or most confident predictions first, or those first on which the methods disagree most.",
)
@click.option("--method", "columns", metavar="NAME", multiple=True, help="Show only this method; may be repeated.")
@display
def show(
    run: Path,
    first: int,
    ids: tuple[str, ...],
    label: str | None,
    wrong: bool,
    sort: str | None,
    columns: tuple[str, ...],
    display: Display,
) -> None:
    """Show the explanations stored in the folder RUN."""
    if _holds_answers(run):
        if label is not None or wrong or sort is not None:
            raise BadInput(f"{run} holds explained answers; leave out --label, --wrong and --sort")
        _show_answers(run, columns, ids, None if ids else first, display)
        return
    from salience.runs.run import open_run

    opened = open_run(run)
    opened.warn_unless_finished()
    texts = opened.texts(*columns, ids=ids or None, label=label, wrong=wrong, sort=sort, first=None if ids else first)
    shown: list[str] = []
    with sink(display) as show_row:
        for text in texts:
            show_row(list(text.explanations.values()))
            shown.append(text.id)
        if missing := [name for name in ids if name not in shown]:
            raise BadInput(
                f"{run} holds no text with the id {missing[0]!r}; `salience export {run} texts.csv` lists all"
            )
        if not shown:
            raise BadInput(_nothing(opened, label, wrong))


def _holds_answers(run: Path) -> bool:
    from salience.runs.folder import ANSWERS, read_manifest

    return (run / "manifest.json").is_file() and read_manifest(run).get("holds") == ANSWERS


def _show_answers(
    run: Path, columns: tuple[str, ...], ids: tuple[str, ...], first: int | None, display: Display
) -> None:
    from salience.generation.runs import open_answers

    shown: list[str] = []
    with answer_sink(display) as show_row:
        for name, row in open_answers(run).rows(*columns, first=first):
            if not ids or name in ids:
                show_row(row)
                shown.append(name)
        if missing := [name for name in ids if name not in shown]:
            raise BadInput(f"{run} holds no answer with the id {missing[0]!r}")
        if not shown:
            raise BadInput(f"{run} holds no explained answers yet; run the command that made it again to resume it")


def _nothing(run: "Run", label: str | None, wrong: bool) -> str:
    if not len(run):
        return f"{run.path} holds no explanations yet; run `salience explain --data` to resume it"
    if label is not None and label not in (known := run.labels()):
        return unknown(label, known, "label", str(run.path))
    which = f"of {run.path}{'' if label is None else f' with the label {label!r}'}"
    return f"no text {which} is predicted wrongly, among those whose label is one of the model's"


@click.command(
    epilog=example_lines(
        "salience summary run", "salience summary run --top 25 --method lime", "salience summary run --html words.html"
    )
)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--top", type=COUNT, default=10, show_default=True, metavar="N", help="Words to show of each label.")
@click.option(
    "--least", type=Number(Pairs), default=8, show_default=True, metavar="N", help="Texts a word must occur in."
)
@click.option("--method", "columns", metavar="NAME", multiple=True, help="Only this method; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write an HTML page.")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
def summary(
    run: Path, top: int, least: int, columns: tuple[str, ...], as_json: bool, html: Path | None, quiet: bool
) -> None:
    """List the words that matter most to each label, over all texts of the folder RUN."""
    if as_json and html is not None:
        raise BadInput("choose one of --json and --html; they exclude each other")
    if html is None:
        result = _summarised(run, columns, least, quiet)
        _print_summary(result, top, as_json)
        return
    from salience.views.summary import page

    with written(html) as file:
        file.write(page(_summarised(run, columns, least, quiet), top).encode())
    click.echo(f"wrote {html}", err=True)


def _summarised(run: Path, columns: tuple[str, ...], least: int, quiet: bool) -> "Summary":
    from salience.runs.run import open_run
    from salience.runs.summary import summarise
    from salience.views.progress import counted

    with counted("reading the run", quiet=quiet) as report:
        return summarise(open_run(run), columns, least=least, report=report)


def _print_summary(summary: "Summary", top: int, as_json: bool) -> None:
    if as_json:
        click.echo(to_json(summary.to_dict(top)))
        return
    from rich.console import Console

    from salience.views.summary import terminal

    Console(highlight=False, emoji=False, markup=False).print(terminal(summary, top))


@click.command(
    epilog=example_lines(
        "salience export run scores.jsonl                  (one object per text and method)",
        "salience export run words.csv                     (one line per text, method and word; or .parquet)",
        "salience export run rationales.jsonl --format eraser --share 0.2",
    )
)
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--format", metavar="FORMAT", help="jsonl, csv, parquet or eraser.  [default: by the ending of FILE]")
@click.option("--method", "column", metavar="NAME", help="Method to export.  [default: all; ERASER needs one]")
@click.option("--share", type=SHARE, default=0.2, show_default=True, help="Share of words in each ERASER rationale.")
def export(run: Path, file: Path, format: str | None, column: str | None, share: float) -> None:
    """Export a run to one FILE: JSON Lines, CSV or Parquet by its ending, or ERASER rationales."""
    check_place(file)
    if _holds_answers(run):
        from salience.generation.runs import open_answers

        if column is not None or (format or file.suffix.lstrip(".")) != "jsonl":
            raise BadInput(f"{run} holds explained answers, which are exported as .jsonl, by all methods")
        open_answers(run).export(file)
        click.echo(f"wrote {file}", err=True)
        return
    from salience.runs.run import open_run

    open_run(run).export(file, format, column=column, share=share)
    click.echo(f"wrote {file}", err=True)


@click.command(
    epilog=example_lines(
        "salience compare run run_of_another_model",
        "salience compare run run_of_another_model --most 25 --html differences.html",
    )
)
@click.argument("one", metavar="RUN_A", type=click.Path(path_type=Path))
@click.argument("other", metavar="RUN_B", type=click.Path(path_type=Path))
@click.option("--most", type=COUNT, default=10, show_default=True, metavar="N", help="Texts to show in each list.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write an HTML page.")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
def compare(one: Path, other: Path, most: int, as_json: bool, html: Path | None, quiet: bool) -> None:
    """Compare two runs of the same data: how far predictions and explanations agree, and where they differ most."""
    if as_json and html is not None:
        raise BadInput("choose one of --json and --html; they exclude each other")
    if html is not None:
        check_place(html)
    from rich.console import Console

    from salience.runs.comparison import compare_runs
    from salience.views import comparison
    from salience.views.evaluation import plain
    from salience.views.progress import counted

    with counted("comparing", quiet=quiet) as report:
        result = compare_runs(one, other, most=most, report=report)
    if as_json:
        click.echo(to_json(plain(result.to_dict())))
    elif html is None:
        Console(highlight=False, emoji=False, markup=False).print(comparison.terminal(result))
    else:
        with written(html) as file:
            file.write(comparison.page(result).encode())
        click.echo(f"wrote {html}", err=True)
