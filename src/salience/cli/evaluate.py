"""``salience evaluate``: measures how faithful and plausible explanations are."""

import shlex
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from salience.cli.checks import check_answer_methods, check_data, check_model, check_names
from salience.cli.options import (
    COUNT,
    DELIMITER,
    FRACTION,
    SEED,
    WORKERS,
    ModelOptions,
    evaluation_settings,
    example_lines,
    model,
    sample_source,
    source_of,
)
from salience.cli.output import check_distinct, print_points, print_wide, report_rejected, written
from salience.errors import BadInput
from salience.runs.engines import check_engine

if TYPE_CHECKING:
    from salience.evaluation.table import Evaluation
    from salience.views.progress import Report

RUN_OPTIONS = ("engine", "workers", "address", "rows_per_part", "max_rejected")


@click.command(
    epilog=example_lines(
        "salience evaluate                                      (the bundled model and data)",
        "salience evaluate --data reviews.jsonl --method attention --method integrated_gradients",
        "salience evaluate --data movies.jsonl --rationale-column rationale_spans --metric auprc --metric token_f1",
        "salience evaluate --data reviews.jsonl --model my-model --erase delete --html report.html",
        "salience evaluate --data reviews.jsonl --out evaluated (a large data set; run again to resume)",
        "salience evaluate --run run                            (a run of `salience explain --data ... --out run`)",
        "salience evaluate --explanations theirs.jsonl          (explanations made by another tool)",
        "salience evaluate --data prompts.jsonl --model my-language-model --answer-column answer --by sentence",
    )
)
@click.option(
    "--data",
    metavar="DATA",
    help="File, folder or dataset to evaluate on.  [default: the bundled sample, or the texts of --run]",
)
@click.option("--run", metavar="RUN", help="Evaluate the explanations stored in this run folder.")
@click.option(
    "--explanations", metavar="FILE", help="Evaluate explanations made by another tool, from JSON Lines or Parquet."
)
@click.option(
    "--method",
    "methods",
    metavar="NAME",
    multiple=True,
    help="Method to evaluate; may be repeated.  [default: attention, input_x_gradient, integrated_gradients, lrp, "
    "occlusion; attention and lrp only where the model supports them]",
)
@click.option(
    "--metric",
    "metrics",
    metavar="NAME",
    multiple=True,
    help="Metric to compute; may be repeated.  [default: faithfulness; with rationales also plausibility]",
)
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Setting of a method, or METRIC.KEY=VALUE; may be repeated.",
)
@click.option("--target", metavar="LABEL", help="Label to explain.  [default: the predicted label]")
@click.option(
    "--erase",
    metavar="KIND",
    help="Erasure: mask, delete, fill, zero, mean, pad or unk.  [default: mask, or mean]",
)
@click.option("--text-column", default="text", show_default=True, metavar="NAME", help="Column of the texts.")
@click.option("--pair-column", metavar="NAME", help="Column of the second text of sentence pairs.")
@click.option("--id-column", metavar="NAME", help="Column of the ids.  [default: the row number]")
@click.option("--rationale-column", metavar="NAME", help="Column of human rationales: lists of [start, end] spans.")
@click.option(
    "--spans",
    type=click.Choice(["characters", "words", "sentiments"]),
    default="characters",
    show_default=True,
    help="Units of the rationales.",
)
@click.option("--label-column", metavar="NAME", help="Column of the labels, for --spans sentiments.")
@DELIMITER
@click.option("--answer-column", metavar="NAME", help="Column of a language model's answers to the prompts in --data.")
@click.option("--chat-column", metavar="NAME", help="For answers: column of chats, instead of texts.")
@click.option("--context-column", metavar="NAME", help="For answers: column of lists of passages.")
@click.option("--generate", type=COUNT, metavar="N", help="Evaluate the model's own answers, of at most N tokens.")
@click.option(
    "--by",
    type=click.Choice(["word", "sentence", "line", "paragraph", "document", "turn"]),
    help="Segments of a prompt that are left out, for answers.  [default: sentence]",
)
@click.option("--limit", type=COUNT, metavar="N", help="Use only the first N texts.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the sign flips in the tests.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with the values of every text.")
@click.option(
    "--csv",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write a CSV file with one line per method and metric.",
)
@click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write an HTML report.")
@click.option("--verbose", is_flag=True, help="Also print the intervals, the reasons and the details of every metric.")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Folder for the numbers of every text of --data, as Parquet files; the same command resumes a stopped run.",
)
@click.option("--engine", metavar="ENGINE", help="With --out: local, or ray for a cluster.  [default: local]")
@click.option(
    "--workers",
    type=WORKERS,
    metavar="N",
    help="With --out: number of processes, or of actors on a cluster.  [default: auto]",
)
@click.option("--address", metavar="ADDRESS", help="With --out: address of the Ray cluster.  [default: this machine]")
@click.option(
    "--rows-per-part", type=COUNT, metavar="N", help="With --out: rows per file.  [default: 1000; 20 of answers]"
)
@click.option(
    "--max-rejected",
    type=FRACTION,
    metavar="SHARE",
    help="With --out: allowed share of invalid rows.  [default: 0.1]",
)
@model
def evaluate(model: ModelOptions, **options: Any) -> None:
    """Measure how faithful and plausible explanations are.

    Texts are explained by several methods. Metrics then erase the tokens that an explanation ranks highest and
    read the prediction again, or compare the explanation with human rationales. Three controls that ignore the
    model (random, uniform, position) are always included.

    With --answer-column or --generate, the answers of a language model are explained instead, and metrics read their
    log-probability with segments or tokens of the prompt left out. The controls are then random, recency and
    similarity.
    """
    answers = _asks_answers(options)
    _check(model, options, answers=answers)
    with _files(options) as write:
        in_memory, into_folder = (_of_answers, _answers_into_folder) if answers else (_in_memory, _into_folder)
        evaluation = (in_memory if options["out"] is None else into_folder)(model, options)
        write(evaluation)
    _print(evaluation, options)


def _asks_answers(options: Mapping[str, Any]) -> bool:
    """Whether answers are evaluated; raises for options that are not for them."""
    if options["answer_column"] is None and options["generate"] is None:
        if given := [name for name in ("by", "chat_column", "context_column") if options[name] is not None]:
            name = given[0].replace("_", "-")
            raise BadInput(f"--{name} is for the answers of a language model; add --answer-column or --generate")
        return False
    if options["answer_column"] is not None and options["generate"] is not None:
        raise BadInput("--answer-column and --generate exclude each other; leave one out")
    if options["data"] is None:
        raise BadInput("answers are to the prompts of --data; name the file that holds them")
    if given := [name for name in NOT_FOR_ANSWERS if options[name]]:
        raise BadInput(f"--{given[0].replace('_', '-')} is not for the answers of a language model; leave it out")
    return True


NOT_FOR_ANSWERS = (
    "run",
    "explanations",
    "target",
    "pair_column",
    "rationale_column",
    "label_column",
    "settings",
)


def _of_answers(model: ModelOptions, options: Mapping[str, Any]) -> "Evaluation":
    _check_no_run_options(options)
    from salience.data.prompts import read_prompts
    from salience.evaluation.answers import evaluate_answers
    from salience.models import load
    from salience.views.progress import counted

    rows = read_prompts(source_of(options["data"], options), options["answer_column"], options["limit"])
    loaded = load(model.model, **model.options)
    loaded.executor.budget = model.budget or loaded.executor.budget
    named = {name: options[name] for name in ("by", "erase", "generate") if options[name] is not None}
    with counted("evaluating", quiet=options["quiet"]) as report:
        return evaluate_answers(
            loaded,
            [row.prompt for row in rows],
            options["methods"] or None,
            answers=None if options["answer_column"] is None else [row.answer or "" for row in rows],
            metrics=options["metrics"] or None,
            ids=[row.id for row in rows],
            seed=options["seed"],
            report=report,
            **named,
        )


def _answers_into_folder(model: ModelOptions, options: Mapping[str, Any]) -> "Evaluation":
    from salience.evaluation.answer_runs import evaluate_answer_data
    from salience.models.loading import Checkpoint

    source = source_of(options["data"], {**options, "target_column": options["answer_column"]})
    named = {name: options[name] for name in ("by", "erase", "generate", *RUN_OPTIONS) if options[name] is not None}
    return _resumable(
        options,
        lambda report: evaluate_answer_data(
            Checkpoint(model.model, model.options),
            source,
            options["out"],
            options["methods"] or None,
            metrics=options["metrics"] or None,
            seed=options["seed"],
            budget=model.budget,
            limit=options["limit"],
            report=report,
            **named,
        ),
    )


def _check(model: ModelOptions, options: Mapping[str, Any], *, answers: bool) -> None:
    """Raise for names, data, runs and models that do not exist, before the imports that take seconds."""
    check = check_answer_methods if answers else check_names
    check(options["methods"], options["metrics"])
    if options["out"] is not None:
        check_engine(options["engine"] or "local", options["address"])
    check_data(options, "data")
    if options["run"] is not None:
        from salience.runs.run import open_run

        open_run(options["run"])
    check_model(model.model, **model.options)


def _in_memory(model: ModelOptions, options: Mapping[str, Any]) -> "Evaluation":
    _check_no_run_options(options)
    from salience.evaluation.evaluator import evaluate as evaluated
    from salience.models import load
    from salience.views.progress import counted

    loaded = load(model.model, **model.options)
    loaded.executor.budget = model.budget or loaded.executor.budget
    texts, explained = _texts(loaded, options)
    with counted("evaluating", quiet=options["quiet"]) as report:
        return evaluated(
            loaded,
            texts,
            options["methods"] or (() if explained else None),
            explained=explained,
            report=report,
            **_question(options),
        )


def _check_no_run_options(options: Mapping[str, Any]) -> None:
    if given := [name for name in RUN_OPTIONS if options[name] is not None]:
        raise BadInput(f"--{given[0].replace('_', '-')} is for a run over a whole data set; add --out, its folder")


def _into_folder(model: ModelOptions, options: Mapping[str, Any]) -> "Evaluation":
    if options["data"] is None or options["run"] is not None or options["explanations"] is not None:
        raise BadInput("--out evaluates the texts of --data; name them, and leave out --run and --explanations")
    from salience.evaluation.runs import evaluate_data
    from salience.models.loading import Checkpoint

    given = {name: options[name] for name in RUN_OPTIONS if options[name] is not None}
    return _resumable(
        options,
        lambda report: evaluate_data(
            Checkpoint(model.model, model.options),
            source_of(options["data"], options),
            options["out"],
            options["methods"] or None,
            budget=model.budget,
            limit=options["limit"],
            report=report,
            **{"workers": "auto", **given},
            **_question(options),
        ),
    )


def _resumable(options: Mapping[str, Any], work: "Callable[[Report], Evaluation]") -> "Evaluation":
    """Call ``work``, which writes a run folder, with a report of its progress."""
    try:
        with _reporter(options["quiet"]) as report:
            evaluation = work(report)
    except KeyboardInterrupt:
        if not options["quiet"]:
            click.echo("Stopped. Finished parts are saved; run the same command to resume.", err=True)
        raise
    report_rejected(options["out"])
    return evaluation


def _reporter(quiet: bool) -> "AbstractContextManager[Report]":
    from salience.views import progress

    if quiet:
        return progress.silence()
    return progress.bar() if sys.stderr.isatty() else progress.lines("evaluated")


def _question(options: Mapping[str, Any]) -> dict[str, Any]:
    """What is measured, as arguments of the library."""
    named = {name: options[name] for name in ("target", "erase", "seed")}
    return {"metrics": options["metrics"] or None, **named, **evaluation_settings(options["settings"])}


def _texts(model: Any, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """The texts, and existing explanations of them."""
    from salience.data.examples import examples as read
    from salience.evaluation.evaluator import stored
    from salience.explanations.imported import by_method, read_file

    if options["explanations"] is not None:
        if options["data"] is not None or options["run"] is not None:
            raise BadInput("--explanations has its own texts; leave out --data and --run")
        rows = read_file(options["explanations"])
        try:
            return _cut(*by_method(model, rows), options["limit"])
        except BadInput as error:
            raise BadInput(f"{options['explanations']}: {error}") from error
    only_run = options["data"] is None and options["run"] is not None
    data = sample_source() if options["data"] is None else source_of(options["data"], options)
    texts = None if only_run else read(data, limit=options["limit"])
    if options["run"] is None:
        return texts, None
    if only_run and options["rationale_column"] is not None:
        raise BadInput("--rationale-column is a column of --data; pass the data that the run explains with --data")
    return _cut(*stored(model, options["run"], texts), options["limit"])


def _cut(texts: Any, explained: Mapping[str, Any], limit: int | None) -> tuple[Any, Any]:
    return texts[:limit], {name: own[:limit] for name, own in explained.items()}


@contextmanager
def _files(options: Mapping[str, Any]) -> Generator[Callable[["Evaluation"], None]]:
    """Open the output files before the work starts; they appear only once they are complete."""
    check_distinct([path for path in (options["csv"], options["html"]) if path is not None])
    with ExitStack() as stack:
        csv, html = (
            None if path is None else stack.enter_context(written(path)) for path in (options["csv"], options["html"])
        )

        def write(evaluation: "Evaluation") -> None:
            from salience.views.evaluation import page, to_csv

            if csv is not None:
                csv.write(to_csv(evaluation).encode())
            if html is not None:
                html.write(page(evaluation, data=_data(options), command=_command()).encode())

        yield write


def _data(options: Mapping[str, Any]) -> str:
    """The name of the data, for the page."""
    named = [options[name] for name in ("data", "run", "explanations") if options[name] is not None]
    return " and ".join(named) or "the bundled sample"


def _command() -> str:
    """The command line, for the page."""
    return shlex.join(["salience", *sys.argv[1:]])


def _print(evaluation: "Evaluation", options: Mapping[str, Any]) -> None:
    from salience.views.evaluation import to_json

    if options["as_json"]:
        click.echo(to_json(evaluation))
        return
    from salience.evaluation.advice import advice, details
    from salience.views.evaluation import cautions, headline

    sentences = advice(evaluation)
    print_points(headline(sentences))
    click.echo()
    table(evaluation, intervals=options["verbose"])
    if options["verbose"]:
        print_points(sentences)
        click.echo("\nDetails by metric")
        print_points(details(evaluation))
    else:
        print_points(cautions(sentences))


def table(evaluation: "Evaluation", *, intervals: bool = True) -> None:
    """Print the table, in as many blocks as the width of the terminal asks for, and its legend."""
    from rich.console import Console

    from salience.views.evaluation import legend, terminal

    for block in terminal(evaluation, width=Console().width, intervals=intervals):
        print_wide(block)
        click.echo()
    hint = "" if intervals else "; intervals and details: --verbose"
    Console().print(f"{legend(evaluation)}{hint}\n", style="dim", highlight=False, markup=False)
