"""``salience explain``: explains single texts, or a whole data set into a run folder."""

import dataclasses
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

import click

from salience.cli.answers import explain_answers
from salience.cli.checks import check_model, check_names
from salience.cli.options import (
    DataOptions,
    Display,
    ModelOptions,
    Question,
    data_options,
    display,
    example_lines,
    given_options,
    model,
    question,
    source_of,
)
from salience.cli.output import print_wide, report_rejected, sink
from salience.core.characters import to_json, visible
from salience.errors import BadInput

if TYPE_CHECKING:
    from salience.core.text import Text
    from salience.core.types import Model
    from salience.views.progress import Report

PATIENCE = 2.0
"""Seconds before a progress bar appears."""

WINDOW = 32
"""Texts explained at a time; their results are shown while the next ones are computed."""


@click.command(
    epilog=example_lines(
        'salience explain "A fine film."',
        'salience explain "A fine film." --method gradient --method integrated_gradients',
        'salience explain "A fine film." --target negative --kind probability',
        'salience explain "A man sleeps." --pair "Nobody sleeps." --model my-nli-folder',
        'salience explain "A fine film." --set nodes=200 --html why.html --png why.png',
        'salience explain "A fine film." --view waterfall',
        "salience explain - --json < reviews.txt > scores.jsonl",
        "salience explain --data reviews.jsonl --out run        (a data set; run again to resume)",
        'salience explain --model gpt2 --target " Paris" "The capital of France is"',
        'salience explain --model my-translator "Ein Mann schläft."        (which word made each word)',
    )
)
@click.argument("texts", metavar="[TEXT...]", nargs=-1)
@click.option("--decoded", is_flag=True, help="Show the words that each token decodes to in the layers of --layer.")
@click.option("--pair", "pairs", metavar="TEXT", multiple=True, help="Second text of a sentence pair; once per TEXT.")
@question
@display
@model
@data_options
@click.pass_context
def explain(
    context: click.Context,
    texts: tuple[str, ...],
    decoded: bool,
    pairs: tuple[str, ...],
    question: Question,
    display: Display,
    model: ModelOptions,
    data: DataOptions,
) -> None:
    """Show how much each word of TEXT contributed to the prediction.

    Quote each TEXT; every TEXT is explained separately. Use - to read texts from standard input, one per line,
    and -- before a text that starts with a dash.

    With --data and --out, a whole data set is explained into a folder of Parquet files. Finished parts are
    saved; run the same command to resume. `salience show` and `salience export` read the folder.
    """
    if data.data is None and question.target is None and _answers(model.model):
        if pairs or decoded or question.layer is not None:
            raise BadInput(f"{model.model} answers with a text; leave out --pair, --decoded and --layer")
        explain_answers(_texts(texts, ())[: data.limit], model, question, display, kind=_given_kind(context, question))
        return
    check_names(question.methods)
    if data.data is None:
        if not texts:
            raise BadInput("no TEXT; pass a text, or a whole data set with --data and --out")
        if extra := [one for one in given_options(context, DataOptions) if one not in ("--quiet", "--limit")]:
            raise BadInput(f"{extra[0]} is only used with --data, which names a whole data set")
        if decoded and (question.layer is None or display.as_json or display.files):
            raise BadInput("--decoded prints the words of layers in the terminal; name a --layer, or --layer all")
        _explain_texts(_texts(texts, pairs)[: data.limit], model, question, display, data.quiet, decoded=decoded)
        return
    if texts or pairs or decoded or display.files:
        raise BadInput(
            "--data writes a run folder; leave out TEXT, --pair, --decoded, --html, --png and --svg, and pass --out"
        )
    if data.dry_run:
        _estimate(model, question, data, display.as_json)
    elif data.out is None:
        raise BadInput("--data needs --out, the run folder to write, or --dry-run")
    else:
        _explain_data(model, question, data, display.as_json)


def _answers(name: str) -> bool:
    """Whether a model answers with texts, which are explained word by word."""
    from salience.models.files import folder_of, is_seq2seq

    return is_seq2seq(folder_of(name))


def _given_kind(context: click.Context, question: Question) -> Any:
    """The scale that was asked for; log-probabilities of words add up over an answer, so they are the default."""
    given = context.get_parameter_source("kind") is click.core.ParameterSource.COMMANDLINE
    return question.kind if given else "log_probability"


# ------------------------------------------------------------------------------------------------------ texts


def _explain_texts(
    texts: "list[Text]", model: ModelOptions, question: Question, display: Display, quiet: bool, *, decoded: bool
) -> None:
    with sink(display) as show:
        check_model(model.model, **model.options)
        from salience.core.target import Target
        from salience.explanations.explainer import explain_each, prepare
        from salience.models import load

        methods = prepare(question.chosen, question.set())
        loaded = load(model.model, **model.options)
        loaded.executor.budget = model.budget or loaded.executor.budget
        target = Target(question.target, question.against, question.kind)
        with _progress(len(texts), quiet) as step:
            rows = explain_each(loaded, texts, methods, [target] * len(texts), window=WINDOW)
            for text, row in zip(texts, rows, strict=True):
                step()
                show(row)
                if decoded:
                    _print_decoded(loaded, text, question.set())


def _print_decoded(model: "Model", text: "Text", settings: "Mapping[str, Any]") -> None:
    """Print the words that the states of the chosen layers decode to."""
    from salience.methods.attention import layer_number
    from salience.methods.decoding import decode_layers
    from salience.views.terminal import decoded_table

    layers = decode_layers(model, text, head=settings.get("head"))
    if settings["layer"] != "all":
        number = layer_number(settings["layer"], model, of=model.layers, first=min(layers))
        layers = {number: layers[number]}
    print_wide(decoded_table(layers))


def _texts(texts: Sequence[str], pairs: Sequence[str]) -> "list[Text]":
    from salience.data.texts import warn_about_files

    warn_about_files(texts)
    read = [line for text in texts for line in (_lines() if text == "-" else [text])]
    for text in (*read, *pairs):
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise BadInput(f"the text {text!r} is not valid UTF-8; encode it as UTF-8")
    if not read:
        raise BadInput("standard input has no text; pass one text per line")
    if pairs and len(pairs) != len(read):
        raise BadInput(f"--pair was given {len(pairs)} times for {len(read)} texts; pass it once per text")
    return list(zip(read, pairs, strict=True)) if pairs else list(read)


def _lines() -> list[str]:
    """The lines of standard input that are not blank."""
    try:
        lines = sys.stdin.buffer.read().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise BadInput(f"standard input is not valid UTF-8: {error}") from error
    return [line.rstrip("\r") for line in lines if line.strip()]


@contextmanager
def _progress(total: int, quiet: bool) -> Generator[Callable[[], None]]:
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
    progress = Progress(TextColumn("explaining"), BarColumn(), *counted, console=Console(stderr=True), transient=True)
    task = progress.add_task("", total=total if total > 1 else None)
    timer = Timer(PATIENCE, progress.start)
    timer.daemon = True
    timer.start()

    def step() -> None:
        progress.advance(task)
        if sys.stdout.isatty():  # the results appear in the same terminal
            timer.cancel()
            progress.stop()

    try:
        yield step
    finally:
        timer.cancel()
        timer.join()
        progress.stop()


# ------------------------------------------------------------------------------------------------------ data sets


def _estimate(model: ModelOptions, question: Question, data: DataOptions, as_json: bool) -> None:
    """Print what a run would cost."""
    check_model(model.model, **model.options)
    source = source_of(str(data.data), asdict(data))
    from salience.models.loading import Checkpoint
    from salience.runs.driver import estimate
    from salience.views.progress import counted, duration, size

    with counted("estimating", quiet=data.quiet) as report:
        cost = estimate(
            Checkpoint(model.model, model.options),
            source,
            question.chosen,
            target=question.target,
            against=question.against,
            kind=question.kind,
            limit=data.limit,
            report=report,
            **question.set(),
        )
    if as_json:
        click.echo(to_json(dataclasses.asdict(cost)))
        return
    click.echo(f"{cost.texts:,} texts, about {cost.tokens:,} tokens")
    click.echo(f"about {cost.passes:,} passes of up to {cost.budget:,} tokens")
    click.echo(f"about {duration(cost.seconds)} with one worker, and {size(cost.bytes)} on disk")
    click.echo(f"measured on a sample of {cost.sample} texts")


def _explain_data(model: ModelOptions, question: Question, data: DataOptions, as_json: bool) -> None:
    check_model(model.model, **model.options)
    source = source_of(str(data.data), asdict(data))
    from salience.models.loading import Checkpoint
    from salience.runs.driver import explain_data

    earlier = _finished(Path(str(data.out)))
    try:
        with _reporter(as_json, data.quiet) as report:
            run = explain_data(
                Checkpoint(model.model, model.options),
                source,
                str(data.out),
                question.chosen,
                target=question.target,
                against=question.against,
                kind=question.kind,
                budget=model.budget,
                report=report,
                **data.work,
                **question.set(),
            )
    except KeyboardInterrupt:
        if not data.quiet:
            click.echo("Stopped. Finished parts are saved; run the same command to resume.", err=True)
        raise
    done = run.manifest["finished"]
    if as_json:
        click.echo(to_json({"event": "finished", "run": str(data.out), **done}))
        return
    report_rejected(run.path)
    if not data.quiet:
        cut = f"; {done['truncated']:,} truncated to the maximum length of the model" if done["truncated"] else ""
        status = f"{data.out} is already complete:" if done == earlier else f"explained into {data.out}:"
        click.echo(visible(f"{status} {done['texts']:,} texts{cut}"), err=True)


def _finished(folder: Path) -> object:
    """How the run in a folder finished, if there is a finished run."""
    from salience.runs.run import open_run

    return open_run(folder).manifest["finished"] if (folder / "manifest.json").is_file() else None


def _reporter(as_json: bool, quiet: bool) -> "AbstractContextManager[Report]":
    from salience.views import progress

    if as_json:
        return progress.events()
    if quiet:
        return progress.silence()
    return progress.bar() if sys.stderr.isatty() else progress.lines()
