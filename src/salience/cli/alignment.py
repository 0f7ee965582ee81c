"""``salience alignment``: does a head of cross-attention find the word that is translated?"""

import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from salience.cli.checks import check_model
from salience.cli.options import COUNT, EPOCHS, SEED, example_lines
from salience.cli.output import check_place, print_result
from salience.errors import BadInput, choose

if TYPE_CHECKING:
    from salience.data.pairs import Pair

SIZES = ("quick", "full")
QUICK = 500
"""Training pairs of the quick size."""


@click.command(
    epilog=example_lines(
        "salience alignment --data train.jsonl.gz --source de --answer en --out marian --gold gold.jsonl",
        "salience alignment ... --silver aligned.jsonl --size quick",
        "salience alignment --model my-marian --gold gold.jsonl --html alignment.html",
    )
)
@click.option("--model", metavar="FOLDER", help="Encoder-decoder to measure, instead of training one.")
@click.option("--data", metavar="FILE", help="Training pairs: JSON Lines, which may be compressed.")
@click.option("--source", metavar="NAME", help="Field of the source texts, such as de.")
@click.option("--answer", metavar="NAME", help="Field of their translations, such as en.")
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Folder for the trained model and its checkpoints; run the same command to resume.",
)
@click.option("--gold", metavar="FILE", help="Pairs `src`, `trg` of the same languages, with `sure` and `possible`.")
@click.option("--silver", metavar="FILE", help="Pairs `src`, `trg` of the opposite direction, with `align`.")
@click.option("--size", default="full", show_default=True, metavar="SIZE", help="quick (to try it), or full.")
@click.option("--epochs", type=EPOCHS, help="Number of epochs.  [default: 2]")
@click.option("--limit", type=COUNT, metavar="N", help="Use at most N pairs of each file.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Random seed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write an HTML report.")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
def alignment(**options: Any) -> None:
    """Measure each head of cross-attention against word alignments.

    A small translator of Marian's shape is trained on pairs, or a model of your own is used. With the answers given,
    every head links each word of an answer with the source word of its highest weight.
    """
    _check(options)
    from salience.data.pairs import read_pairs
    from salience.dynamics.alignment import read_aligned

    train: list[Pair] = []
    if options["data"] is not None:
        train = read_pairs(options["data"], options["source"], options["answer"], limit=options["limit"])
    aligned = read_aligned(options["gold"], options["silver"], options["limit"])
    _run(train[: QUICK if options["size"] == "quick" else None], aligned, options)


def _check(options: dict[str, Any]) -> None:
    """Raise for options that do not go together."""
    choose(options["size"], SIZES, "size")
    if options["html"] is not None:
        check_place(options["html"])
    if not options["gold"] and not options["silver"]:
        raise BadInput("there is nothing to compare with: name word alignments with --gold or --silver")
    if options["model"] is not None:
        if given := [name for name in ("out", "epochs") if options[name] is not None]:
            raise BadInput(f"--{given[0]} is for training; leave it out with --model")
        check_model(options["model"])
    missing = [name for name in ("data", "source", "answer", "out") if options[name] is None]
    if missing and options["model"] is None:
        raise BadInput(f"--{missing[0]} is missing: name a model with --model, or pairs to train one on")
    if options["data"] is not None and (unnamed := [n for n in ("source", "answer") if options[n] is None]):
        raise BadInput(f"--{unnamed[0]} is missing: name the fields of the training pairs")


def _run(train: "list[Pair]", aligned: "dict[str, list[Pair]]", options: dict[str, Any]) -> None:
    from salience.dynamics.cross_attention import head_alignment
    from salience.views import alignment as views
    from salience.views.progress import quietly, stages

    with ExitStack() as stack:
        bar = stack.enter_context(quietly() if options["quiet"] else stages(sys.stderr.isatty()))
        if (model := options["model"]) is None:
            bar.stage("training the translator")
            model = _trained(train, options, bar.step)
        bar.stage("aligning")
        results = head_alignment(model, aligned, train=train, seed=options["seed"])
        name = str(options["model"] or options["out"])
    facts = {"model": name, "aligned": [asdict(one) for one in results]}
    print_result(
        options, [views.alignment_table(results)], views.notes(results), facts, lambda: views.page(name, results)
    )


def _trained(train: "list[Pair]", options: dict[str, Any], report: Any) -> Any:
    from salience.training.marian import MARIAN, train_marian

    recipe = replace(MARIAN, seed=options["seed"], epochs=options["epochs"] or MARIAN.epochs)
    return train_marian(train, options["out"], recipe=recipe, report=report)
