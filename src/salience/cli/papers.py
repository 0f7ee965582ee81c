"""``salience paper``: runs the protocol of a paper, with the published numbers beside ours where available."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from salience.cli import beyond, debate
from salience.cli.checks import check_model
from salience.cli.evaluate import table
from salience.cli.options import (
    COUNT,
    DELIMITER,
    POSITIVE,
    SEED,
    SETTINGS,
    WORKERS,
    Commands,
    LoadingOptions,
    ModelOptions,
    evaluation_settings,
    example_lines,
    loading,
    model,
    pairs,
    source_of,
)
from salience.cli.output import print_points, print_table, write_into
from salience.cli.sallm_students import sallm_heads, sallm_shortcut, sallm_unlabelled
from salience.cli.sallm_when import sallm_when
from salience.core.characters import to_json, visible
from salience.errors import BadInput

if TYPE_CHECKING:
    from salience.data.examples import Example

SIZE = click.option(
    "--size",
    type=click.Choice(["quick", "full"]),
    default="quick",
    show_default=True,
    help="quick takes minutes; full follows the paper.",
)
OUT = click.option("--out", required=True, metavar="FOLDER", type=click.Path(path_type=Path), help="Output folder.")


@click.group(
    cls=Commands,
    epilog=example_lines(
        "salience paper sallm --model my-encoder --train sst5.jsonl --validation dev.jsonl --test test.jsonl --out out",
        "salience paper layer_saliency --data sst2=test.jsonl --out out",
        "salience paper elephant --data sst2=test.jsonl --out out",
        "salience paper jain_wallace_2019 --data sst2=folder --out out",
        "salience paper beyond --data sst2=folder --out out",
    ),
)
def paper() -> None:
    """Run the protocol of a paper on your own model and data."""


for _one in debate.commands(SIZE, OUT):
    paper.add_command(_one)
paper.add_command(beyond.command(SIZE, OUT))
for _one in (sallm_when, sallm_shortcut, sallm_unlabelled, sallm_heads):
    paper.add_command(_one)


@paper.command(
    epilog=example_lines(
        "salience paper sallm --model my-encoder --train sst5.jsonl --validation dev.jsonl --test test.jsonl --out out",
        "salience paper sallm ... --size full                  (hours; can be resumed)",
        "salience paper sallm ... --other imdb=imdb.jsonl",
    )
)
@click.option("--model", required=True, help="Pretrained model to start from.")
@click.option("--train", required=True, metavar="DATA", help="Training data.")
@click.option("--validation", required=True, metavar="DATA", help="Validation data.")
@click.option("--test", required=True, metavar="DATA", help="Test data.")
@click.option(
    "--other", "others", metavar="NAME=DATA", multiple=True, help="Test data from another domain; may be repeated."
)
@click.option("--text-column", default="text", show_default=True, metavar="NAME", help="Column of the texts.")
@click.option("--label-column", default="label", show_default=True, metavar="NAME", help="Column of the labels.")
@OUT
@SIZE
@click.option(
    "--method", default="input_x_gradient", show_default=True, help="Method that explains the training texts."
)
@SETTINGS
@DELIMITER
@click.option("--rate", type=POSITIVE, default=2e-5, show_default=True, help="Learning rate.")
@click.option("--workers", type=WORKERS, help="Number of models trained in parallel.  [default: one per core]")
@click.option(
    "--control",
    "controls",
    type=click.Choice(["shuffled", "uniform", "smoothed"]),
    multiple=True,
    default=["shuffled", "uniform"],
    show_default=True,
    help="Control to train as well; may be repeated. shuffled is always one of them.",
)
@click.option("--quiet", is_flag=True, help="Do not show progress.")
@loading
def sallm(loading: LoadingOptions, **options: Any) -> None:
    """SalLM: train attention with explanations.

    Four variants and their controls are trained over several seeds. A gain counts only if it is significant against
    vanilla and against a student of shuffled explanations.
    """
    from salience.core.processes import cores
    from salience.papers import reports
    from salience.papers.sallm import SIZES, comparison_table, looked, markdown, run
    from salience.training.distillation import Callbacks
    from salience.training.loop import Recipe
    from salience.views.progress import stages

    with stages(sys.stderr.isatty() and not options["quiet"]) as bar:
        say = (lambda _: None) if options["quiet"] else bar.say
        callbacks = Callbacks() if options["quiet"] else Callbacks(step=bar.step, explained=bar.explained)
        result = run(
            options["model"],
            source_of(options["train"], options),
            source_of(options["validation"], options),
            source_of(options["test"], options),
            options["out"],
            size=SIZES[options["size"]],
            others={name: source_of(data, options) for name, data in map(_named, options["others"])},
            recipe=Recipe(rate=options["rate"]),
            method=options["method"],
            settings=pairs(options["settings"]),
            workers=options["workers"] or cores(),
            say=say,
            callbacks=callbacks,
            controls=options["controls"],
            **loading.options,
        )
    tables = comparison_table(result), looked(result)
    written = "\n\n".join(map(markdown, tables))
    write_into(options["out"], {"tables.md": f"{written}\n", "report.html": reports.sallm(result)})
    for one in tables:
        print_table(one)
    click.echo(f"λ = {result.chosen['weight']:g} and share = {result.chosen['share']:g} were best on validation data")
    _report_path(options)


def _comparing(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the papers that compare methods."""
    for option in (
        click.option("--quiet", is_flag=True, help="Do not show progress."),
        SETTINGS,
        click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the sign flips in the tests."),
        DELIMITER,
        click.option(
            "--limit",
            type=COUNT,
            metavar="N",
            help="Use N texts of each data set, instead of the number set by --size.",
        ),
        SIZE,
        OUT,
        click.option(
            "--spans",
            type=click.Choice(["characters", "words", "sentiments"]),
            default="characters",
            show_default=True,
            help="Units of the rationales.",
        ),
        click.option("--rationale-column", metavar="NAME", help="Column of the human rationales, if any."),
        click.option("--label-column", metavar="NAME", help="Column of the labels, for --spans sentiments."),
        click.option("--text-column", default="text", show_default=True, metavar="NAME", help="Column of the texts."),
        click.option(
            "--data",
            "sets",
            required=True,
            metavar="NAME=DATA",
            multiple=True,
            help="Data set with its name; may be repeated.",
        ),
    ):
        command = option(command)
    return model(command)


@paper.command(
    "layer_saliency",
    epilog=example_lines(
        "salience paper layer_saliency --data sst2=test.jsonl --out out",
        "salience paper layer_saliency --data sst2=test.jsonl --rationale-column token_sentiment --spans sentiments "
        "--label-column label --size full --out out",
        "salience paper layer_saliency --model my-model --head fit --data mine=test.jsonl --out out",
    ),
)
@_comparing
@click.option(
    "--head", metavar="HEAD", help="Language model head: a checkpoint, a file, or `fit`.  [default: that of the model]"
)
def layer_saliency(model: ModelOptions, **options: Any) -> None:
    """Decoded layer saliency: compare all layers.

    Every layer is compared with other methods.
    """
    _check(model, options)
    from salience.papers import reports
    from salience.papers.layer_saliency import SIZES, run

    comparisons: list[Any] = []
    for one in _measured(model, options, SIZES, partial(run, head=options["head"])):
        comparisons.append(one)
        facts = [
            _facts(each.comparison) | {"chosen": each.chosen, "coherence": list(map(asdict, each.coherence))}
            for each in comparisons
        ]
        write_into(
            options["out"],
            {"result.json": to_json(facts, indent=1), "report.html": reports.layer_saliency(comparisons)},
        )
        _print(one.comparison)
        click.echo(f"layer_saliency chooses layer {one.chosen} by default")
    _report_path(options)


@paper.command(epilog=example_lines("salience paper elephant --data sst2=test.jsonl --out out"))
@_comparing
def elephant(model: ModelOptions, **options: Any) -> None:
    """Compare attention with saliency methods.

    From "The elephant in the interpretability room".
    """
    _check(model, options)
    from salience.papers import reports
    from salience.papers.elephant import SIZES, answer, run

    comparisons: list[Any] = []
    for one in _measured(model, options, SIZES, run):
        comparisons.append(one)
        facts = to_json([_facts(each) for each in comparisons], indent=1)
        write_into(options["out"], {"result.json": facts, "report.html": reports.elephant(comparisons)})
        _print(one)
        print_points(answer(one.evaluation))
    _report_path(options)


def _check(model: ModelOptions, options: dict[str, Any]) -> None:
    """Raise for a model or data that does not exist, before the imports that take seconds."""
    for one in options["sets"]:
        source_of(_named(one)[1], options)
    check_model(model.model, **model.options)


def _measured(
    model: ModelOptions, options: dict[str, Any], sizes: dict[str, int], run: Callable[..., Any]
) -> Iterator[Any]:
    """Run the protocol of a paper on each data set, and yield each result as it is done."""
    from salience.models import load
    from salience.views.progress import counted

    settings = evaluation_settings(options["settings"])
    loaded = load(model.model, **model.options)
    loaded.executor.budget = model.budget or loaded.executor.budget
    for name, texts in _sets(options, sizes):
        with counted(name, quiet=options["quiet"]) as report:
            result = run(loaded, name, texts, report=report, seed=options["seed"], **settings)
        yield result


def _sets(options: dict[str, Any], sizes: dict[str, int]) -> "list[tuple[str, list[Example]]]":
    """The texts of each data set, sampled at even intervals if there are more than requested."""
    from salience.data.examples import examples as read
    from salience.data.examples import sampled

    named = [_named(one) for one in options["sets"]]
    count = options["limit"] or sizes[options["size"]]
    return [(name, sampled(read(source_of(data, options)), count)) for name, data in named]


def _print(one: Any) -> None:
    from salience.evaluation.advice import advice

    table(one.evaluation)
    print_points(advice(one.evaluation))
    for name, why in one.left_out.items():
        click.echo(visible(f"left out: {name}. {why}"))


def _facts(one: Any) -> dict[str, Any]:
    import json

    from salience.views.evaluation import to_json as evaluation_json

    facts = json.loads(evaluation_json(one.evaluation))
    for cell in facts["cells"]:
        del cell["values"]
    return {"data": one.data, "seconds": dict(one.seconds), "left_out": dict(one.left_out), **facts}


def _report_path(options: dict[str, Any]) -> None:
    if not options["quiet"]:
        click.echo(visible(f"wrote {options['out'] / 'report.html'}"), err=True)


def _named(text: str) -> tuple[str, str]:
    name, equals, data = text.partition("=")
    if not (name and equals):
        raise BadInput(f"{text!r} is not of the form NAME=DATA; use, for example, sst2=test.jsonl")
    return name, data
