"""``salience heads``: what each attention head does, and which ones matter."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from salience.cli.checks import check_data, check_model, check_names
from salience.cli.options import (
    COUNT,
    EPOCHS,
    SEED,
    SETTINGS,
    ModelOptions,
    example_lines,
    model,
    pairs,
    sample_source,
    source_of,
)
from salience.cli.output import print_points, print_table, written
from salience.core.characters import to_json as safe_json
from salience.core.characters import visible
from salience.errors import choose

if TYPE_CHECKING:
    from salience.audits.heads import HeadStudy

PARTS = ("roles", "importance", "pruning", "overlap")
"""The names of ``salience.audits.heads.PARTS``; a test compares them."""


@click.command(
    epilog=example_lines(
        "salience heads                                          (the bundled model and sample)",
        "salience heads --data reviews.jsonl --limit 500 --html heads.html",
        "salience heads --model my-model --data texts.jsonl --part roles",
        "salience heads --part importance --part pruning --json",
        "salience heads --data hate.jsonl --rationale-column rationale_spans --spans words --method lrp",
    )
)
@click.option("--data", metavar="DATA", help="File, folder or dataset of texts.  [default: the bundled sample]")
@click.option(
    "--part",
    "parts",
    metavar="NAME",
    multiple=True,
    help="roles, importance, pruning or overlap; may be repeated.  [default: all]",
)
@click.option(
    "--method",
    "methods",
    metavar="NAME",
    multiple=True,
    help="Method whose scores attention is compared with; may be repeated.  [default: occlusion]",
)
@click.option("--text-column", default="text", show_default=True, metavar="NAME", help="Column of the texts.")
@click.option("--pair-column", metavar="NAME", help="Column of the second text of sentence pairs.")
@click.option("--label-column", default="label", show_default=True, metavar="NAME", help="Column of the labels.")
@click.option("--rationale-column", metavar="NAME", help="Column of the spans that people marked.")
@click.option(
    "--spans",
    type=click.Choice(["characters", "words", "sentiments"]),
    default="characters",
    show_default=True,
    help="Units of the rationales.",
)
@click.option("--limit", type=COUNT, metavar="N", help="Use only N texts, at even distances.")
@click.option("--orders", type=EPOCHS, default=5, show_default=True, help="Random orders beside the pruning curve.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Random seed.")
@SETTINGS
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write an HTML report.")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
@model
def heads(model: ModelOptions, **options: Any) -> None:
    """Show what each attention head does, and which ones matter.

    Each head is read for its role: the previous, next or first token, separators, everything, an equal token before,
    or the token after that. Its importance is measured by the gradient of a gate and by removing it. Heads are then
    pruned step by step, and important heads are compared with those that agree with explanations and with people.
    """
    parts = options["parts"] or PARTS
    for name in parts:
        choose(name, PARTS, "part of a study of heads")
    methods = options["methods"] or ("occlusion",)
    check_names(methods)
    labelled = set(parts) != {"roles"} and model.task != "generate"
    check_data(options, "data", labelled=labelled)
    check_model(model.model, **model.options)
    from salience.audits.heads import heads as study
    from salience.data.examples import examples as read
    from salience.data.examples import sampled
    from salience.models import load
    from salience.views.progress import named

    if options["data"] is None:
        data = sample_source(label_column="label", rationale_column="rationale_spans")
    else:
        data = source_of(options["data"], options, labelled=labelled)
    texts = read(data)
    texts = sampled(texts, options["limit"] or len(texts))
    loaded = load(model.model, **model.options)
    loaded.executor.budget = model.budget or loaded.executor.budget
    with ExitStack() as stack:
        file = None if options["html"] is None else stack.enter_context(written(options["html"]))
        report = stack.enter_context(named(quiet=options["quiet"]))
        settings = pairs(options["settings"])
        result = study(
            loaded,
            texts,
            parts=parts,
            methods=methods,
            orders=options["orders"],
            seed=options["seed"],
            report=report,
            **settings,
        )
        if file is not None:
            from salience.views.head_roles import page

            file.write(page(result).encode())
    if options["html"] is not None:
        click.echo(visible(f"wrote {options['html']}"), err=True)
    _print(result, options["as_json"])


def _print(result: "HeadStudy", as_json: bool) -> None:
    from salience.views import head_roles as views

    if as_json:
        click.echo(safe_json(views.to_json(result)))
        return
    from rich.console import Console

    console = Console(highlight=False, emoji=False, markup=False)
    console.print(views.terminal(result, console.width))
    click.echo()
    print_table(views.heads_table(result, views.SHOWN))
    if result.pruning is not None:
        print_table(views.pruning_table(result))
    print_points(views.notes(result))
