"""``salience paper beyond``: what interactions, learned masks and rationale models add to saliency."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from salience.cli.checks import check_model
from salience.cli.debate import data_sets
from salience.cli.options import COUNT, DELIMITER, EPOCHS, example_lines, source_of
from salience.cli.output import print_points, print_table, write_into
from salience.core.characters import to_json, visible

if TYPE_CHECKING:
    from salience.papers.beyond import BeyondResult, Size


def command(size: Callable[..., Any], out: Callable[..., Any]) -> click.Command:
    """The command; ``size`` and ``out`` are options that all papers share."""
    run = beyond
    for option in (
        click.option("--quiet", is_flag=True, help="Do not show progress."),
        DELIMITER,
        click.option(
            "--epochs",
            type=EPOCHS,
            help="Epochs of the classifier and of rationale models; gates have 8.  [default: set by --size]",
        ),
        click.option(
            "--tested", type=COUNT, metavar="N", help="Explain and measure N texts.  [default: set by --size]"
        ),
        click.option("--limit", type=COUNT, metavar="N", help="Train on at most N texts, and measure at most N."),
        size,
        out,
        click.option("--rationale-column", metavar="NAME", help="Column of the human rationales, if any."),
        click.option(
            "--spans",
            type=click.Choice(["characters", "words", "sentiments"]),
            default="characters",
            show_default=True,
            help="Units of the rationales.",
        ),
        click.option(
            "--label-column", default="label", show_default=True, metavar="NAME", help="Column of the labels."
        ),
        click.option("--text-column", default="text", show_default=True, metavar="NAME", help="Column of the texts."),
        click.option("--model", default="sentiment", show_default=True, help="Pretrained model to start from."),
        click.option(
            "--data",
            "sets",
            required=True,
            metavar="NAME=DATA",
            multiple=True,
            help="Data set with its name; may be repeated. DATA is a folder with one file train.* and one test.*, or "
            "two files: TRAIN,TEST.",
        ),
    ):
        run = option(run)
    examples = example_lines(
        "salience paper beyond --data sst2=sst2 --out out",
        "salience paper beyond --data sst2=sst2 --size full --out full     (hours; can be resumed)",
    )
    return click.command("beyond", epilog=examples)(run)


def beyond(**options: Any) -> None:
    """What do interactions, learned masks and rationale models add to saliency?

    A classifier is explained by attention, saliency methods, interactions summed to tokens and DiffMask, and two
    rationale models are trained beside it. Faithfulness, plausibility and cost are printed in one table. What is
    trained and measured is saved in FOLDER; run the same command to resume.
    """
    sources = {name: (source_of(a, options), source_of(b, options)) for name, a, b in data_sets(options)}
    check_model(options["model"])
    from salience.data.examples import examples
    from salience.papers.beyond import SIZES, Callbacks, run
    from salience.papers.beyond_report import facts, page
    from salience.views.evaluation import plain
    from salience.views.progress import quietly, stages

    results: list[BeyondResult] = []
    with quietly() if options["quiet"] else stages(sys.stderr.isatty()) as bar:
        for name, (train, test) in sources.items():
            size, callbacks = _size(SIZES, options), Callbacks(bar.stage, bar.step, bar.explained)
            data = (examples(train), examples(test))
            results.append(run(options["model"], name, *data, options["out"], size, callbacks=callbacks))
    tables = "\n\n".join(_markdown(result) for result in results)
    stored = to_json(plain([facts(r) for r in results]), indent=1)
    write_into(options["out"], {"result.json": stored, "tables.md": f"{tables}\n", "report.html": page(results)})
    for result in results:
        _print(result)
    if not options["quiet"]:
        click.echo(visible(f"wrote {options['out'] / 'report.html'}"), err=True)


def _print(result: "BeyondResult") -> None:
    from salience.papers.beyond_report import answer, direction_table, left_out, published_table, wide_table

    click.echo(visible(result.data))
    for content in (wide_table(result), *published_table(result), direction_table(result)):
        print_table(content)
    print_points([*answer(result), *(f"left out: {one}" for one in left_out(result))])


def _size(sizes: "Mapping[str, Size]", options: Mapping[str, Any]) -> "Size":
    size = sizes[options["size"]]
    if (limit := options["limit"]) is not None:
        size = replace(size, train=min(limit, size.train or limit), test=min(limit, size.test))
    if (tested := options["tested"]) is not None:
        size = replace(size, test=tested)
    if (epochs := options["epochs"]) is not None:
        size = replace(size, recipe=replace(size.recipe, epochs=epochs))
    return size


def _markdown(result: "BeyondResult") -> str:
    from salience.papers.beyond_report import direction_table, published_table, table
    from salience.papers.sallm import markdown

    heads, lines = table(result)
    tables = (([result.data, *heads[1:]], lines), *published_table(result), direction_table(result))
    return "\n\n".join(map(markdown, tables))
