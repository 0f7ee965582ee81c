"""``salience train``: trains a student with the explanations of its teacher."""

import dataclasses
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from salience.cli.checks import check_data, check_model
from salience.cli.options import (
    ANY,
    COUNT,
    DELIMITER,
    EPOCHS,
    POSITIVE,
    SEED,
    SETTINGS,
    SHARE,
    LoadingOptions,
    example_lines,
    given_options,
    loading,
    pairs,
    source_of,
)
from salience.cli.output import print_wide
from salience.core.characters import to_json, visible
from salience.errors import BadInput

if TYPE_CHECKING:
    from salience.data import Source
    from salience.training.distillation import Callbacks, Distillation, DistillationResult
    from salience.training.loop import Epoch, Recipe

CONTROLS = ("shuffled", "uniform", "smoothed")
"""The variants that are controls, as in salience.training.distillation, which needs torch."""

SAMPLE = "sample"
"""The name of the bundled sentences as training data."""


STUDENTS_ONLY = (
    "unlabelled",
    "variant",
    "method",
    "settings",
    "form",
    "share",
    "penalty",
    "penalty_settings",
    "weights",
    "anneal",
    "rounds",
)
"""Options that have no meaning for rationale models."""

NO_CONTROL = (
    "No control was trained: random explanations often help as much as real ones. Run the same command with --variant "
    "shuffled and another --out; a gain counts only against it."
)


@click.command(
    epilog=example_lines(
        "salience train --data sample --out out                 (the bundled sample; two minutes)",
        "salience train --data train.jsonl --validation dev.jsonl --test test.jsonl --model my-encoder --out out",
        "salience train --data train.jsonl --out out --method integrated_gradients --share 0.1 --weight 0.5",
        "salience train --data train.jsonl --out out --method rationale --rationale-column rationale_spans",
        "salience train --data train.jsonl --out out --penalty gradient_to_explanation --weight 0.01",
        "salience train --data train.jsonl --out out --rationale-model hardkuma --selection-rate 0.2",
        "salience train --data train.jsonl --out out --rationale-model lei --selection-rate 0.1 --selection-rate 0.3",
        "salience train --data train.jsonl --out control --variant shuffled       (does the gain need explanations?)",
    )
)
@click.option(
    "--data", required=True, metavar="DATA", help="Labelled training data, or `sample` for the bundled sample."
)
@click.option("--out", required=True, metavar="FOLDER", type=click.Path(path_type=Path), help="Output folder.")
@click.option("--model", default="sentiment", show_default=True, help="Pretrained model to start from.")
@click.option("--validation", metavar="DATA", help="Validation data, evaluated after every epoch.")
@click.option(
    "--test", "tests", metavar="DATA", multiple=True, help="Test data, evaluated at the end; may be repeated."
)
@click.option("--unlabelled", metavar="DATA", help="Unlabelled data, used for the penalty only.")
@click.option("--text-column", default="text", show_default=True, metavar="NAME", help="Column of the texts.")
@click.option("--label-column", default="label", show_default=True, metavar="NAME", help="Column of the labels.")
@click.option("--rationale-column", metavar="NAME", help="Column of the human rationales: lists of [start, end] spans.")
@click.option(
    "--spans",
    type=click.Choice(["characters", "words", "sentiments"]),
    default="characters",
    show_default=True,
    help="Units of the rationales.",
)
@click.option(
    "--variant",
    type=click.Choice(["vanilla", "sallm", "fine_tuned", "iterative", "refreshed", *CONTROLS]),
    metavar="NAME",
    default="sallm",
    show_default=True,
    help="Training scheme of teacher and student: vanilla, sallm, fine_tuned, iterative or refreshed; or a control: "
    "shuffled, uniform or smoothed.",
)
@click.option(
    "--method",
    default="input_x_gradient",
    show_default=True,
    help="Method that explains the training texts, or `rationale`.",
)
@SETTINGS
@click.option(
    "--form",
    type=click.Choice(["binary", "positive", "signed"]),
    default="binary",
    show_default=True,
    help="Form of the scores in the penalty.",
)
@click.option("--share", type=SHARE, default=0.2, show_default=True, help="Share of tokens marked by --form binary.")
@click.option(
    "--penalty",
    default="attention_to_explanation",
    show_default=True,
    help="Penalty that compares the model with the explanations.",
)
@click.option(
    "--with", "penalty_settings", metavar="KEY=VALUE", multiple=True, help="Setting of the penalty; may be repeated."
)
@click.option(
    "--weight",
    "weights",
    type=ANY,
    multiple=True,
    metavar="λ",
    help="Weight of the penalty; repeat to compare values.  [default: 1]",
)
@click.option(
    "--anneal",
    type=click.Choice(["constant", "rise", "fall", "cosine"]),
    default="constant",
    show_default=True,
    help="Schedule of λ.",
)
@click.option("--rounds", type=EPOCHS, default=3, show_default=True, help="Rounds of --variant iterative.")
@click.option(
    "--rationale-model",
    type=click.Choice(["lei", "hardkuma"]),
    help="Train a model that reads only the tokens it selects, by this kind of selection, instead of a student.",
)
@click.option(
    "--selection-rate",
    "rates",
    type=ANY,
    multiple=True,
    metavar="SHARE",
    help="Share of tokens that a rationale model may select; repeat to compare.  [default: 0.2]",
)
@click.option(
    "--coherence",
    type=ANY,
    default=0.0,
    show_default=True,
    help="Weight of the penalty on selections in many pieces, for rationale models.",
)
@click.option("--epochs", type=EPOCHS, help="Number of epochs.  [default: 3; 8 for the sample]")
@click.option("--batch", type=COUNT, help="Batch size.  [default: 32; 8 for the sample]")
@click.option("--rate", type=POSITIVE, help="Learning rate.  [default: 2e-5; 1e-4 for the sample]")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Random seed.")
@DELIMITER
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per epoch, then the result.")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
@loading
def train(loading: LoadingOptions, **options: Any) -> None:
    """Train a model with explanations.

    A teacher learns the task and explains its training set. A student then learns the task with a penalty that
    keeps its attention close to the explanations: loss = task + λ · penalty. Finished stages are saved in FOLDER; run
    the same command to resume. The student, in FOLDER/student (FOLDER/training/student for the sample), can be loaded
    with transformers.

    With --rationale-model, a classifier is trained instead that reads only the tokens which its generator selects,
    at most the share --selection-rate. It is saved in FOLDER/model.
    """
    _check(options, loading)
    if options["rationale_model"] is None:
        _train_students(options, loading)
    else:
        _train_rationale_models(options, loading)


def _check(options: dict[str, Any], loading: LoadingOptions) -> None:
    """Raise for what can be seen to be wrong before the work starts."""
    _check_rationale_options(options)
    if options["data"] != SAMPLE:
        check_data(options, "data", "validation")
    check_data(options, "unlabelled", labelled=False)
    _tests(options)
    check_model(options["model"], **loading.options)


def _check_rationale_options(options: dict[str, Any]) -> None:
    """Raise for a rate that no model can select, and for the options of rationale models without one."""
    if options["rationale_model"] is None and (options["rates"] or options["coherence"]):
        raise BadInput("--selection-rate and --coherence are only used with --rationale-model")
    for rate in options["rates"]:
        if not 0 < rate < 1:
            raise BadInput(f"--selection-rate {rate:g} must be above 0 and below 1; it is a share of the tokens")
    if options["rationale_model"] is None:
        return
    context = click.get_current_context()
    if given := given_options(context, STUDENTS_ONLY):
        raise BadInput(f"a rationale model learns from labels alone; leave out {given[0]}")
    if len(options["rates"]) > 1 and not (options["validation"] or options["tests"] or options["data"] == SAMPLE):
        raise BadInput("rates are compared on other texts; name them with --validation or --test")


def _train_students(options: dict[str, Any], loading: LoadingOptions) -> None:
    """Train a student, or one per weight of the penalty."""
    from salience.training.distillation import distil, sweep

    course, place, (data, validation) = _course(options), _place(options), _data(options)
    unlabelled = options["unlabelled"]
    shared: dict[str, Any] = {
        "validation": validation,
        "tests": _tests(options),
        "unlabelled": None if unlabelled is None else source_of(unlabelled, options, labelled=False),
        **loading.options,
    }
    with _callbacks(options["as_json"], options["quiet"]) as callbacks:
        if len(options["weights"]) < 2:
            results = {"": distil(options["model"], data, place, course, callbacks=callbacks, **shared)}
        else:
            courses = {f"weight-{w:g}": dataclasses.replace(course, weight=w) for w in options["weights"]}
            results = sweep(options["model"], data, place, courses, callbacks=callbacks, **shared)
    written = _write_reports(results, place)
    if len(results) > 1 and course.variant not in (*CONTROLS, "vanilla"):
        click.echo(NO_CONTROL, err=True)
    if options["as_json"]:
        for name, result in results.items():
            _print_json(name, result)
        return
    _print(list(results.values()))
    _say_written(written, options["quiet"])


def _course(options: dict[str, Any]) -> "Distillation":
    from salience.training.distillation import Distillation

    return Distillation(
        variant=options["variant"],
        method=options["method"],
        settings=pairs(options["settings"]),
        form=options["form"],
        share=options["share"],
        penalty=options["penalty"],
        penalty_settings=pairs(options["penalty_settings"]),
        weight=options["weights"][0] if options["weights"] else 1.0,
        anneal=options["anneal"],
        rounds=options["rounds"],
        recipe=_recipe(options),
    )


def _train_rationale_models(options: dict[str, Any], loading: LoadingOptions) -> None:
    """Train one rationale model, or one per rate beside a model of whole texts."""
    from salience.training.rationale_models import RationaleTraining, accuracy_against_rate, train_rationale_model

    rates = options["rates"] or (0.2,)
    training = RationaleTraining(options["rationale_model"], rates[0], options["coherence"], _recipe(options))
    place, (data, validation) = _place(options), _data(options)
    shared: dict[str, Any] = {"validation": validation or (), "tests": _tests(options), **loading.options}
    with _callbacks(options["as_json"], options["quiet"]) as callbacks:
        if len(rates) == 1:
            one = train_rationale_model(options["model"], data, place, training, callbacks=callbacks, **shared)
            results = [one]
        else:
            results = accuracy_against_rate(
                options["model"], data, place, training, rates, callbacks=callbacks, **shared
            )
    from salience.views.rationales import rows, table, write_chart

    if options["as_json"]:
        for row in rows(results):
            click.echo(to_json({"event": "finished", **row}))
        return
    if rows(results):
        print_wide(table(results))
    chart = write_chart(results, place / "accuracy-against-rate.png")
    models = [f"the model {result.model}" for result in results]
    _say_written([*models, *([f"the chart {chart}"] if chart else [])], options["quiet"])


def _say_written(written: "Sequence[str]", quiet: bool) -> None:
    if not quiet:
        for what in written:
            click.echo(visible(f"wrote {what}"), err=True)


def _place(options: dict[str, Any]) -> Path:
    """The folder of the training; that of the sample also holds its texts."""
    out: Path = options["out"]
    return out / "training" if options["data"] == SAMPLE else out


def _tests(options: dict[str, Any]) -> "dict[str, Source]":
    return {name: source_of(name, options) for name in options["tests"]}


def _write_reports(results: "Mapping[str, DistillationResult]", place: Path) -> list[str]:
    """Write a report for each student and, for several, a chart of the trade-off between them; say what was written."""
    from salience.core.files import complete
    from salience.views.training import page, trade_off

    measured = [result for result in results.values() if result.epochs[-1].measures]
    for result in measured:
        with complete(result.folder / "report.html") as file:
            file.write(page(result).encode())
    written = [
        f"the student {result.student}"
        + (f" and the report {result.folder / 'report.html'}" if result in measured else "")
        for result in results.values()
    ]
    if len(measured) > 1:
        with complete(place / "trade-off.png") as file:
            file.write(trade_off(results, "png"))
        written.append(f"the chart {place / 'trade-off.png'}")
    return written


def _recipe(options: dict[str, Any]) -> "Recipe":
    """The training options. The small bundled sample defaults to more epochs at a higher learning rate."""
    from salience.training.loop import Recipe

    defaults = Recipe(epochs=8, batch=8, rate=1e-4) if options["data"] == SAMPLE else Recipe()
    chosen = {name: options[name] for name in ("epochs", "batch", "rate") if options[name] is not None}
    return dataclasses.replace(defaults, seed=options["seed"], **chosen)


def _data(options: dict[str, Any]) -> "tuple[Source, Source | None]":
    """The texts to learn from, and those to validate on. The bundled sample is written to files first."""
    if options["data"] != SAMPLE:
        held_out = options["validation"]
        return source_of(options["data"], options), None if held_out is None else source_of(held_out, options)
    if options["validation"] is not None:
        raise BadInput("the bundled sample has its own validation texts; leave out --validation")
    from salience.models import sample

    lines, columns = sample(), {"id_column": "id", "label_column": "label", "rationale_column": "rationale_spans"}
    files: list[Any] = []
    out: Path = options["out"]
    out.mkdir(parents=True, exist_ok=True)
    for name, chosen in (("train", lambda i: i % 3), ("validation", lambda i: not i % 3)):
        file = out / f"{name}.jsonl"
        file.write_text("".join(f"{line}\n" for i, line in enumerate(lines) if chosen(i)), "utf-8")
        files.append(source_of(file, columns))
    return files[0], files[1]


@contextmanager
def _callbacks(as_json: bool, quiet: bool) -> "Generator[Callbacks]":
    from salience.training.distillation import Callbacks
    from salience.views.progress import stages

    if as_json:
        yield Callbacks(epoch=_event)
    elif quiet:
        yield Callbacks()
    else:
        with stages(sys.stderr.isatty()) as bar:
            yield Callbacks(bar.stage, bar.step, bar.explained, lambda who, epoch: bar.say(_line(who, epoch)))


def _event(who: str, epoch: "Epoch") -> None:
    click.echo(to_json({"event": "epoch", "of": who, **dataclasses.asdict(epoch)}))


def _line(who: str, epoch: "Epoch") -> str:
    penalty = {"penalty": epoch.penalty} if len(epoch.losses) > 1 else {}
    values = {"loss": epoch.task} | penalty | dict(epoch.measures)
    return f"{who} epoch {epoch.number}: " + ", ".join(f"{name} {value:.3f}" for name, value in values.items())


def _print_json(name: str, result: "DistillationResult") -> None:
    facts = {
        "event": "finished",
        "course": name,
        "student": str(result.student),
        "before": result.before,
        "scores": result.scores,
    }
    click.echo(to_json({**facts, "after": result.epochs[-1].measures}))


def _print(results: "Sequence[DistillationResult]") -> None:
    """Print the measures before and after training, with a column for each λ."""
    first = results[0]
    after = [result.epochs[-1].measures for result in results]
    heads = ["student"] if len(results) == 1 else [f"λ = {result.course['weight']:g}" for result in results]
    if names := [name for name in after[0] if name in first.before]:
        start = "at start" if first.course["method"] == "rationale" else "teacher"
        click.echo(f"{'':22}{start:>10}" + "".join(f"{head:>10}" for head in heads))
        for name in names:
            values = [first.before[name], *(one[name] for one in after)]
            click.echo(f"{name.replace('_', ' '):22}" + "".join(f"{value:10.3f}" for value in values))
    for data in first.scores:
        values = [f"{result.scores[data]:.3f}" for result in results]
        shown = values if len(results) == 1 else [f"{v} ({head})" for v, head in zip(values, heads, strict=True)]
        whose = "accuracy of the teacher on" if data.startswith("teacher/") else "accuracy on"
        click.echo(visible(f"{whose} {data.removeprefix('teacher/')}: {', '.join(shown)}"))
