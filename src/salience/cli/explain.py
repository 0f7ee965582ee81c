"""``salience explain``: single texts, or a whole data set into a run folder."""

import dataclasses
import json
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

import click

from salience.cli.options import (
    Display,
    Model,
    Question,
    Whole,
    display,
    examples,
    given,
    model,
    question,
    whole,
)
from salience.cli.output import sink
from salience.errors import BadInput

if TYPE_CHECKING:
    from salience.types import Text
    from salience.views.progress import Report

PATIENCE = 2.0
"""Seconds of work before a progress bar appears."""

WINDOW = 32
"""Texts explained at a time; their results are shown while the next are worked on."""


@click.command(
    epilog=examples(
        'salience explain "A fine film."',
        'salience explain "A fine film." --method gradient --method integrated_gradients',
        'salience explain "A fine film." --target negative --kind probability',
        'salience explain "A man sleeps." --pair "Nobody sleeps." --model my-nli-folder',
        'salience explain "A fine film." --set nodes=200 --html why.html',
        "salience explain - --json < reviews.txt > scores.jsonl",
        "salience explain --data reviews.jsonl --out run        (a whole data set; again to go on after a stop)",
        'salience explain --model gpt2 --target " Paris" "The capital of France is"',
    )
)
@click.argument("texts", metavar="[TEXT...]", nargs=-1)
@click.option("--pair", "pairs", metavar="TEXT", multiple=True, help="Second text of a sentence pair, one per TEXT.")
@question
@display
@model
@whole
@click.pass_context
def explain(
    context: click.Context,
    texts: tuple[str, ...],
    pairs: tuple[str, ...],
    question: Question,
    display: Display,
    model: Model,
    whole: Whole,
) -> None:
    """Show how much each word of TEXT mattered to the model's answer.

    Put quotes around a text: each TEXT is explained on its own. A TEXT of - reads standard input, one text
    per line. Put -- before a text that begins with a dash.

    With --data and --out a whole data set is explained into a folder of Parquet files. If it is stopped, the
    same command goes on where it was. `salience show` and `salience export` read the folder.
    """
    if whole.data is None:
        if not texts:
            raise BadInput("give a TEXT, or a whole data set with --data and --out")
        if extra := [option for option in given(context, Whole) if option != "--quiet"]:
            raise BadInput(f"{extra[0]} is for a whole data set, which --data names")
        _explain_texts(_texts(texts, pairs), model, question, display, whole.quiet)
        return
    if texts or pairs or display.files:
        raise BadInput("--data is explained into a folder: leave out texts, --pair and pictures, and give --out")
    if whole.dry_run:
        _estimate(model, question, whole, display.as_json)
    elif whole.out is None:
        raise BadInput("--data needs --out, the folder to explain it into, or --dry-run")
    else:
        _explain_data(model, question, whole, display.as_json)


# ------------------------------------------------------------------------------------------------------ texts


def _explain_texts(texts: "list[Text]", model: Model, question: Question, display: Display, quiet: bool) -> None:
    with sink(display) as show:
        from salience.explainer import explain_each, prepare
        from salience.models import load
        from salience.types import Target

        asked = prepare(question.chosen, question.set())
        loaded = load(model.model, **model.options)
        loaded.budget = model.budget or loaded.budget
        wanted = Target(question.target, question.against, question.kind)
        with _progress(len(texts), quiet) as step:
            for row in explain_each(loaded, texts, asked, wanted, window=WINDOW):
                step()
                show(row)


def _texts(texts: Sequence[str], pairs: Sequence[str]) -> "list[Text]":
    found = [line for text in texts for line in (_lines() if text == "-" else [text])]
    for text in (*found, *pairs):
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise BadInput(f"the text {text!r} is not valid UTF-8")
    if not found:
        raise BadInput("standard input held no text; give one text per line")
    if pairs and len(pairs) != len(found):
        raise BadInput(f"--pair was given {len(pairs)} times for {len(found)} texts; give it once for each")
    return list(zip(found, pairs, strict=True)) if pairs else list(found)


def _lines() -> list[str]:
    """The lines of standard input that hold something."""
    try:
        lines = sys.stdin.buffer.read().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise BadInput(f"standard input is not valid UTF-8: {error}") from error
    return [line.rstrip("\r") for line in lines if line.strip()]


@contextmanager
def _progress(total: int, quiet: bool) -> Generator[Callable[[], None]]:
    """A bar on standard error, for people only, and only once the work has taken a while."""
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
    progress = Progress(TextColumn("explaining"), BarColumn(), *counted, console=Console(stderr=True), transient=True)
    task = progress.add_task("", total=total if total > 1 else None)
    timer = Timer(PATIENCE, progress.start)
    timer.daemon = True
    timer.start()

    def step() -> None:
        progress.advance(task)
        if sys.stdout.isatty():  # the results are about to appear on the same screen
            timer.cancel()
            progress.stop()

    try:
        yield step
    finally:
        timer.cancel()
        timer.join()
        progress.stop()


# ------------------------------------------------------------------------------------------------------ data sets


def _estimate(model: Model, question: Question, whole: Whole, as_json: bool) -> None:
    """What a run would cost."""
    from salience.data import source
    from salience.runner import estimate
    from salience.views.progress import duration
    from salience.work import Checkpoint

    found = estimate(
        Checkpoint(model.model, model.options),
        source(str(whole.data), **whole.columns),
        question.chosen,
        target=question.target,
        against=question.against,
        kind=question.kind,
        limit=whole.limit,
        **question.set(),
    )
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found)))
        return
    click.echo(f"{found.texts:,} texts, about {found.tokens:,} tokens")
    click.echo(f"about {found.passes:,} passes of up to {found.budget:,} tokens")
    click.echo(f"about {duration(found.seconds)} with one worker, and {found.bytes / 1e6:,.1f} MB on disk")
    click.echo(f"measured on {found.sample} texts from all over the data")


def _explain_data(model: Model, question: Question, whole: Whole, as_json: bool) -> None:
    from salience.data import source
    from salience.runner import explain_data
    from salience.work import Checkpoint

    earlier = _finished(Path(str(whole.out)))
    try:
        with _reporter(as_json, whole.quiet) as report:
            run = explain_data(
                Checkpoint(model.model, model.options),
                source(str(whole.data), **whole.columns),
                str(whole.out),
                question.chosen,
                target=question.target,
                against=question.against,
                kind=question.kind,
                budget=model.budget,
                report=report,
                **whole.work,
                **question.set(),
            )
    except KeyboardInterrupt:
        if not whole.quiet:
            click.echo("stopped; what is finished is kept, and the same command goes on from there", err=True)
        raise
    done = run.manifest["finished"]
    if as_json:
        click.echo(json.dumps({"event": "finished", "run": str(whole.out), **done}))
    elif not whole.quiet:
        rejected = (
            f"; {done['rejected']:,} rows rejected, see {run.path / 'rejected.jsonl'}" if done["rejected"] else ""
        )
        cut = f"; {done['truncated']:,} texts were longer than the model can read" if done["truncated"] else ""
        said = f"{whole.out} is complete already:" if done == earlier else f"explained into {whole.out}:"
        click.echo(f"{said} {done['texts']:,} texts{cut}{rejected}", err=True)


def _finished(folder: Path) -> object:
    """How the run of a folder ended, if there is one and it has."""
    from salience.runs import open_run

    return open_run(folder).manifest["finished"] if (folder / "manifest.json").is_file() else None


def _reporter(as_json: bool, quiet: bool) -> "AbstractContextManager[Report]":
    from salience.views import progress

    if as_json:
        return progress.events()
    if quiet:
        return progress.silence()
    return progress.bar() if sys.stderr.isatty() else progress.lines()
