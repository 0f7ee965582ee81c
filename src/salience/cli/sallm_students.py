"""``salience paper sallm_shortcut``, ``sallm_unlabelled`` and ``sallm_heads``: experiments with one data set."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from salience.cli.checks import METHODS, check_model
from salience.cli.options import (
    COUNT,
    DELIMITER,
    EPOCHS,
    FRACTION,
    POSITIVE,
    SHARE,
    WORKERS,
    LoadingOptions,
    example_lines,
    loading,
    source_of,
)
from salience.cli.output import print_points, print_table, write_into
from salience.cli.sallm_when import reporting
from salience.core.characters import to_json, visible
from salience.errors import BadInput, choose

if TYPE_CHECKING:
    from salience.papers.sallm import Table
    from salience.papers.students import Setup


def _with_setup(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the experiments that train students on one data set."""
    for option in (
        click.option("--quiet", is_flag=True, help="Do not show progress."),
        DELIMITER,
        click.option("--out", required=True, metavar="FOLDER", type=click.Path(path_type=Path), help="Output folder."),
        click.option("--finished", is_flag=True, help="Train nothing; report the trainings that are finished."),
        click.option("--workers", type=WORKERS, help="Number of processes.  [default: one per core]"),
        click.option("--rate", type=POSITIVE, default=2e-4, show_default=True, help="Learning rate."),
        click.option("--batch", type=COUNT, default=16, show_default=True, help="Batch size."),
        click.option("--epochs", type=EPOCHS, default=3, show_default=True, help="Number of epochs."),
        click.option("--share", type=SHARE, default=0.2, show_default=True, help="Share of tokens that are marked."),
        click.option(
            "--weight", type=POSITIVE, default=1.0, show_default=True, metavar="λ", help="Weight of the penalty."
        ),
        click.option("--method", default="input_x_gradient", show_default=True, help="Method of the explanations."),
        click.option("--seeds", type=EPOCHS, default=5, show_default=True, help="Number of seeds."),
        click.option("--tested", type=COUNT, metavar="N", help="Test on N texts.  [default: all]"),
        click.option("--texts", type=COUNT, default=1000, show_default=True, metavar="N", help="Training texts."),
        click.option(
            "--label-column", default="label", show_default=True, metavar="NAME", help="Column of the labels."
        ),
        click.option("--text-column", default="text", show_default=True, metavar="NAME", help="Column of the texts."),
        click.option("--test", required=True, metavar="DATA", help="Test data."),
        click.option("--train", required=True, metavar="DATA", help="Training data."),
        click.option("--model", required=True, help="Pretrained model to start from, which has not learnt the task."),
    ):
        command = option(command)
    return loading(command)


@click.command(
    "sallm_shortcut",
    epilog=example_lines(
        "salience paper sallm_shortcut --model my-encoder --train train.jsonl --test test.jsonl --out shortcut",
        "salience paper sallm_shortcut ... --rationale-column token_sentiment --spans sentiments",
    ),
)
@_with_setup
@click.option("--rationale-column", metavar="NAME", help="Column of the human rationales, if any.")
@click.option(
    "--spans",
    type=click.Choice(["characters", "words", "sentiments"]),
    default="characters",
    show_default=True,
    help="Units of the rationales.",
)
@click.option(
    "--agreement", type=FRACTION, default=0.95, show_default=True, help="Share of training texts whose word agrees."
)
@click.option(
    "--words", default="paris,london", show_default=True, metavar="A,B", help="Words inserted for the labels 0 and 1."
)
def sallm_shortcut(loading: LoadingOptions, **options: Any) -> None:
    """Does teaching remove the reliance on a planted word?

    A word that agrees with the label is inserted into the training texts, and students are taught with explanations of
    a clean teacher, of people, of the spoilt model itself, and shuffled ones, by each penalty.
    """
    setup = _setup(loading, options)
    from salience.papers import sallm_shortcut as experiment
    from salience.papers.students_report import shortcut_table

    own = {"agreement": options["agreement"], "shortcut": _shortcut(options["words"])}
    listed = experiment.rows(setup, _results(experiment, setup, options, own), own["shortcut"])
    shown = {"agreement": options["agreement"], "words": options["words"]}
    _finish(experiment, setup, options, shown, shortcut_table(listed), listed)


def _shortcut(words: str) -> Any:
    from salience.data.shortcuts import Shortcut

    first, comma, second = words.partition(",")
    if not comma:
        raise BadInput(f"--words {words!r} must be two words; use, for example, paris,london")
    return Shortcut("token", (first.strip(), second.strip()))


@click.command(
    "sallm_unlabelled",
    epilog=example_lines(
        "salience paper sallm_unlabelled --model my-encoder --train train.jsonl --test test.jsonl --out more",
    ),
)
@_with_setup
@click.option("--unlabelled", type=COUNT, default=1000, show_default=True, metavar="N", help="Texts without labels.")
def sallm_unlabelled(loading: LoadingOptions, **options: Any) -> None:
    """Do explanations of unlabelled texts help?

    A teacher learns a few labelled texts and explains many others, whose labels are not used. Its explanations are
    compared with its predictions as labels, and with shuffled explanations.
    """
    setup = _setup(loading, options)
    from salience.papers import sallm_unlabelled as experiment
    from salience.papers.students_report import unlabelled_table

    own = {"unlabelled": options["unlabelled"]}
    listed = experiment.rows(setup, _results(experiment, setup, options, own))
    _finish(experiment, setup, options, own, unlabelled_table(listed), listed)


@click.command(
    "sallm_heads",
    epilog=example_lines(
        "salience paper sallm_heads --model my-encoder --train train.jsonl --test test.jsonl --out heads"
    ),
)
@_with_setup
@click.option(
    "--measured",
    type=COUNT,
    default=60,
    show_default=True,
    metavar="N",
    help="Test texts on which attention is measured.",
)
def sallm_heads(loading: LoadingOptions, **options: Any) -> None:
    """Which heads and layers should be taught?

    The penalty reads the last layer, all layers, the heads that agree with the explanations, or the important heads.
    """
    setup = _setup(loading, options)
    from salience.papers import sallm_heads as experiment
    from salience.papers.students_report import heads_table

    own = {"measured": options["measured"]}
    listed = experiment.rows(setup, _results(experiment, setup, options, own))
    _finish(experiment, setup, options, own, heads_table(listed), listed)


def _setup(loading: LoadingOptions, options: dict[str, Any]) -> "Setup":
    """Check names, files and columns before the imports that take seconds."""
    choose(options["method"], METHODS, "method")
    train = source_of(options["train"], options)
    test = source_of(options["test"], {**options, "rationale_column": None})
    check_model(options["model"], **loading.options)
    if options["texts"] < 2:
        raise BadInput(f"--texts {options['texts']} must be at least 2")
    from salience.papers.students import Setup
    from salience.papers.trainings import content_of
    from salience.training.loop import Recipe

    recipe = Recipe(epochs=options["epochs"], batch=options["batch"], rate=options["rate"])
    named = {name: options[name] for name in ("texts", "tested", "seeds", "method", "share", "weight")}
    folder: Path = options["out"]
    return Setup(
        options["model"],
        train,
        test,
        folder,
        recipe=recipe,
        contents=(content_of(train), content_of(test)),
        options=loading.options,
        **named,
    )


def _results(experiment: Any, setup: "Setup", options: dict[str, Any], own: dict[str, Any]) -> Any:
    """Train the students of an experiment, or read what is finished."""
    from salience.papers.students import finished

    if options["finished"]:
        return finished(setup, experiment.students(setup), experiment.settings(**own))
    from salience.core.processes import cores
    from salience.models import knows

    workers = options["workers"] or cores()
    with reporting(options["quiet"], workers) as (report, say):
        if knows(setup.model, setup.labels):
            say(f"{setup.model} is a classifier of these labels already; start from a model that has not learnt them")
        return experiment.run(setup, workers=workers, report=report, **own)


def _finish(
    experiment: Any,
    setup: "Setup",
    options: dict[str, Any],
    own: dict[str, Any],
    content: "Table",
    listed: Sequence[Any],
) -> None:
    """Write the results into the folder, and print them."""
    from salience.papers.sallm import markdown
    from salience.papers.students_report import page
    from salience.papers.trainings import failures

    name = experiment.__name__.rpartition("_")[2]
    lost = setup.diverged(experiment.students(setup))
    remarks = experiment.summary(listed)
    remarks += failures({row.name: row.unlearnt for row in listed}, setup.seeds, lost)
    named = ("model", "texts", "tested", "seeds", "method", "share", "weight")
    settings = {**{one: getattr(setup, one) for one in named}, **own, "recipe": asdict(setup.recipe)}
    facts = [{**asdict(row), "verdict": row.verdict} for row in listed]
    files = {
        "result.json": to_json({**settings, "rows": facts}, indent=1),
        "tables.md": f"{markdown(content)}\n",
        "report.html": page(name, setup, content, remarks, own),
    }
    write_into(options["out"], files)
    head, rows = content
    print_table((head, [list(row) for row in rows]))
    print_points(remarks)
    if not options["quiet"]:
        click.echo(visible(f"wrote {options['out'] / 'report.html'}"), err=True)
