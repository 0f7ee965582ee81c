"""``salience paper sallm_when``: when does teaching with explanations help?"""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from salience.cli.checks import METHODS, check_model
from salience.cli.debate import data_sets
from salience.cli.options import (
    COUNT,
    DELIMITER,
    EPOCHS,
    POSITIVE,
    SEED,
    SHARE,
    WORKERS,
    LoadingOptions,
    example_lines,
    loading,
    source_of,
)
from salience.cli.output import print_points, print_table, write_into
from salience.core.characters import to_json, visible
from salience.errors import BadInput, choose

if TYPE_CHECKING:
    from salience.papers.sallm_when import DataSet, Experiment, Plan
    from salience.papers.sallm_when_table import Cell
    from salience.papers.trainings import Progress

TEACHINGS = ("none", "human", "shuffled", *METHODS)


@click.command(
    "sallm_when",
    epilog=example_lines(
        "salience paper sallm_when --model my-encoder --data sst2=sst2 --out when",
        "salience paper sallm_when ... --data hate=hatexplain --rationale hate=rationale_spans --spans words",
        "salience paper sallm_when ... --other sst2:imdb=imdb.jsonl --teach input_x_gradient --teach lrp",
        "salience paper sallm_when ... --sizes 100,1000,all --limit 4000 --workers 2",
    ),
)
@click.option("--model", required=True, help="Pretrained model to start from, which has not learnt the task.")
@click.option(
    "--data",
    "sets",
    required=True,
    metavar="NAME=DATA",
    multiple=True,
    help="Data set with its name; may be repeated. DATA is a folder with one file train.* and one test.*, or two "
    "files: TRAIN,TEST.",
)
@click.option(
    "--other",
    "others",
    metavar="NAME:OTHER=DATA",
    multiple=True,
    help="Test data from another domain for the data set NAME; may be repeated.",
)
@click.option("--text-column", default="text", show_default=True, metavar="NAME", help="Column of the texts.")
@click.option("--label-column", default="label", show_default=True, metavar="NAME", help="Column of the labels.")
@click.option(
    "--rationale",
    "rationales",
    metavar="NAME=COLUMN",
    multiple=True,
    help="Column of the human rationales of the data set NAME; may be repeated.",
)
@click.option(
    "--spans",
    type=click.Choice(["characters", "words", "sentiments"]),
    default="characters",
    show_default=True,
    help="Units of the rationales.",
)
@click.option("--sizes", default="100,300,1000,all", show_default=True, metavar="N,N,...", help="Training sizes.")
@click.option(
    "--teach",
    "teachings",
    metavar="TEACHING",
    multiple=True,
    help="none, human, or a method, whose highest scores are marked, or lrp:positive for the positive scores of a "
    "method; may be repeated. The shuffled "
    "controls are always included.  [default: input_x_gradient, and human where there are rationales]",
)
@click.option("--seeds", type=EPOCHS, default=5, show_default=True, help="Number of seeds.")
@click.option(
    "--first-seed",
    type=SEED,
    default=0,
    show_default=True,
    help="First of the seeds. Seeds behind those of an earlier run tell whether what it found holds for other "
    "trainings; the test texts stay the same.",
)
@click.option("--weight", type=POSITIVE, default=1.0, show_default=True, metavar="λ", help="Weight of the penalty.")
@click.option("--share", type=SHARE, default=0.2, show_default=True, help="Share of tokens marked by methods.")
@click.option("--epochs", type=EPOCHS, default=2, show_default=True, help="Fewest epochs of a training.")
@click.option("--steps", type=COUNT, default=100, show_default=True, help="Fewest steps of a training.")
@click.option("--batch", type=COUNT, default=16, show_default=True, help="Batch size.")
@click.option("--rate", type=POSITIVE, default=2e-4, show_default=True, help="Learning rate.")
@click.option("--limit", type=COUNT, metavar="N", help="Let the size `all` be at most N texts.")
@click.option("--tested", type=COUNT, metavar="N", help="Test on N texts of each test set.  [default: all]")
@click.option("--workers", type=WORKERS, help="Number of processes.  [default: the number of cores]")
@click.option("--out", required=True, metavar="FOLDER", type=click.Path(path_type=Path), help="Output folder.")
@click.option("--unpretrained", is_flag=True, help="Say in the report that the weights of the model are random.")
@click.option("--finished", is_flag=True, help="Train nothing; report the trainings that are finished.")
@DELIMITER
@click.option("--quiet", is_flag=True, help="Do not show progress.")
@loading
def sallm_when(loading: LoadingOptions, **options: Any) -> None:
    """When does teaching with explanations help?

    Students are trained on few and many texts, without explanations, with those of a teacher or of people, and with
    shuffled ones, and tested in their own domain and in others. Finished trainings are saved in FOLDER; run the same
    command to resume.
    """
    _check_teachings(options["teachings"])
    sizes = _sizes(options["sizes"])
    data = _data(options)
    check_model(options["model"], **loading.options)
    from salience.core.processes import cores
    from salience.papers.sallm_when import finished, run
    from salience.papers.sallm_when_table import cells, summary

    sets = [_data_set(*one) for one in data]
    plan = _plan(options, sizes, rationales=any(one.rationales for one in sets))
    workers = options["workers"] or cores()
    with reporting(options["quiet"], workers) as (report, say):
        arguments = (options["model"], sets, options["out"], plan)
        experiment, results = (
            finished(*arguments, **loading.options)
            if options["finished"]
            else run(*arguments, workers=workers, report=report, say=say, **loading.options)
        )
    listed = cells(experiment, results)
    _write(options, experiment, listed)
    _print(listed)
    print_points(summary(listed, experiment.diverged()))
    if not options["quiet"]:
        click.echo(visible(f"wrote {options['out'] / 'report.html'}"), err=True)


def _write(options: dict[str, Any], experiment: "Experiment", listed: "Sequence[Cell]") -> None:
    from salience.models.loading import starts_from_nothing
    from salience.papers.sallm_when_report import gains_picture, page, tables
    from salience.papers.sallm_when_table import to_facts

    pretrained = not (options["unpretrained"] or starts_from_nothing(options["model"]))
    files = {
        "result.json": to_json({"pretrained": pretrained, **to_facts(experiment, listed)}, indent=1),
        "tables.md": tables(listed),
        "report.html": page(experiment, listed, pretrained=pretrained),
    }
    if any(cell.against_none for cell in listed):
        files["gains.svg"] = gains_picture(listed).decode()
    write_into(options["out"], files)


def _print(listed: "Sequence[Cell]") -> None:
    from salience.papers.sallm_when_table import accuracy_table

    head, rows = accuracy_table(listed)
    for data, test in dict.fromkeys((cell.data, cell.test) for cell in listed):
        click.echo(visible(f"{data}, tested on {test}"))
        own = [[f"{row[2]} {row[3]}", *row[4:]] for row in rows if row[:2] == [data, test]]
        print_table((["texts, teaching", *head[4:]], own))


@contextmanager
def reporting(quiet: bool, workers: int) -> "Generator[tuple[Callable[[Progress], None], Callable[[str], None]]]":
    """Print the number of trainings and the expected time before the first, and then a line for each training."""
    from salience.views.progress import duration, stages

    if quiet:
        yield lambda _: None, lambda _: None
        return
    with stages(sys.stderr.isatty()) as bar:

        def report(p: "Progress") -> None:
            left = "the first will be timed" if isnan(p.left) else f"about {duration(p.left)} left"
            line = f"{p.done} of {p.of} trainings done · {left}"
            if p.diverged:
                bar.say(f"{p.name} has no result: {p.diverged}")
            bar.say(f"{p.name}: {line}" if p.name else f"{line} with {workers} worker{'s' * (workers > 1)}")

        yield report, bar.say


# ------------------------------------------------------------------------------------------------------ options


def _check_teachings(names: Sequence[str]) -> None:
    for name in names:
        choose(name.partition(":")[0], TEACHINGS, "way of teaching")


def _sizes(text: str) -> tuple[int | None, ...]:
    sizes: list[int | None] = []
    for part in text.split(","):
        name = part.strip().replace("_", "")
        if name != "all" and not (name.isdecimal() and int(name) > 1):
            raise BadInput(f"--sizes {text!r} must be numbers of texts from 2, or all; use, for example, 100,1000,all")
        sizes.append(None if name == "all" else int(name))
    return tuple(dict.fromkeys(sizes))


def _data(options: dict[str, Any]) -> list[tuple[str, Any, dict[str, Any]]]:
    """The name, training source and test sources of each data set."""
    sets = data_sets(options)
    names = [name for name, *_ in sets]
    columns = dict(_pair(one, "--rationale", "hatexplain=rationale_spans", names) for one in options["rationales"])
    others: dict[str, dict[str, Any]] = {name: {} for name in names}
    for one in options["others"]:
        place, data = _pair(one, "--other", "sst2:imdb=imdb.jsonl", names)
        name, colon, other = place.partition(":")
        if not colon or not other or other == "test":
            raise BadInput(f"--other {one!r} must name another domain; use, for example, sst2:imdb=imdb.jsonl")
        others[name][other] = source_of(data, options)
    return [
        (
            name,
            source_of(train, {**options, "rationale_column": columns.get(name)}),
            {"test": source_of(test, options), **others[name]},
        )
        for name, train, test in sets
    ]


def _pair(text: str, option: str, example: str, names: Sequence[str]) -> tuple[str, str]:
    place, equals, value = text.partition("=")
    if not (place and equals and value):
        raise BadInput(f"{option} {text!r} is not of the form of {option} {example}")
    choose(place.partition(":")[0], names, "data set")
    return place, value


def _data_set(name: str, train: Any, tests: dict[str, Any]) -> "DataSet":
    from salience.papers.sallm_when import DataSet

    return DataSet(name, train, tests)


def _plan(options: dict[str, Any], sizes: tuple[int | None, ...], *, rationales: bool) -> "Plan":
    from salience.papers.sallm_when import Plan, Teaching
    from salience.training.loop import Recipe

    names = [name.removesuffix(":binary") for name in options["teachings"]] or (
        "input_x_gradient",
        *(("human",) if rationales else ()),
    )
    if "human" in names and not rationales:
        raise BadInput("human rationales need a column of them; name it, as in --rationale hatexplain=rationale_spans")
    recipe = Recipe(epochs=options["epochs"], batch=options["batch"], rate=options["rate"])
    named = {name: options[name] for name in ("seeds", "first_seed", "weight", "share", "steps", "limit", "tested")}
    return Plan(sizes, tuple(map(Teaching, names)), recipe=recipe, **named)
