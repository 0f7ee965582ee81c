"""``salience translation``: trains a translator and compares its attention with output relevance."""

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from salience.cli.options import COUNT, EPOCHS, SEED, example_lines
from salience.cli.output import check_place, print_result

if TYPE_CHECKING:
    from salience.data.pairs import Pair
    from salience.models.seq2seq import Seq2Seq
    from salience.training.loop import TrainingProgress


@click.command(
    epilog=example_lines(
        "salience translation --data train.jsonl.gz --test test.jsonl --source de --answer en --out translator",
        "salience translation ... --gold gold.jsonl --silver aligned.jsonl --html translation.html",
        'salience explain "Ein Mann schläft." --model translator/model',
    )
)
@click.option("--data", required=True, metavar="FILE", help="Training pairs: JSON Lines, which may be compressed.")
@click.option("--test", "unseen", required=True, metavar="FILE", help="Test pairs.")
@click.option("--source", required=True, metavar="NAME", help="Field of the source texts, such as de.")
@click.option("--answer", required=True, metavar="NAME", help="Field of their translations, such as en.")
@click.option(
    "--out",
    required=True,
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Folder for the model and its checkpoints; run the same command to resume.",
)
@click.option(
    "--gold",
    metavar="FILE",
    help="Pairs `src`, `trg` of the same languages, with gold word alignments `sure` and `possible`.",
)
@click.option(
    "--silver",
    metavar="FILE",
    help="Pairs `src`, `trg` of the opposite direction, with automatic word alignments `align`.",
)
@click.option("--epochs", type=EPOCHS, help="Number of epochs.  [default: 6]")
@click.option("--uniform", is_flag=True, help="Train a twin with uniform attention as well.")
@click.option("--limit", type=COUNT, metavar="N", help="Use at most N pairs of each file.")
@click.option("--beam", type=COUNT, default=1, show_default=True, help="Beams of the translations that are scored.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Random seed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write an HTML report.")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
def translation(**options: Any) -> None:
    """Train a translator, and compare its attention with output relevance.

    An encoder-decoder with attention is trained from scratch. Its attention, the relevance of source words for the
    words of the answer, and co-occurrence counts are compared with each other and with word alignments.
    """
    if options["html"] is not None:
        check_place(options["html"])
    from salience.data.pairs import read_pairs
    from salience.dynamics.alignment import read_aligned

    source, answer, limit = (options[name] for name in ("source", "answer", "limit"))
    train, test = (read_pairs(options[name], source, answer, limit=limit) for name in ("data", "unseen"))
    aligned = read_aligned(options["gold"], options["silver"], limit)
    _run(train, test, aligned, options)


def _run(train: "list[Pair]", test: "list[Pair]", aligned: "dict[str, list[Pair]]", options: dict[str, Any]) -> None:
    from salience.dynamics.translation import translation
    from salience.training.sequences import TRANSLATION
    from salience.training.translators import train_translator
    from salience.views.progress import quietly, stages

    recipe = replace(TRANSLATION, seed=options["seed"], epochs=options["epochs"] or TRANSLATION.epochs)
    with quietly() if options["quiet"] else stages(sys.stderr.isatty()) as bar:

        def report(p: "TrainingProgress") -> None:
            bar.say(f"epoch {p.epoch}, step {p.step} of {p.of}: loss {p.loss:.3f}")

        bar.stage("training")
        model = train_translator(train, options["out"], recipe=recipe, report=report)
        twin = None
        if options["uniform"]:
            bar.stage("training with uniform attention")
            config, place = replace(model.config, scoring="uniform"), options["out"] / "uniform"
            own = replace(recipe, seed=recipe.seed + 1)  # an initialisation and an order of its own
            twin = train_translator(train, place, tokenizer=model.tokenizer, config=config, recipe=own, report=report)
        result = translation(
            model, train, test, alignments=aligned, uniform=twin, beam=options["beam"], stage=bar.stage
        )
    from salience.views import translation as views

    aligned_table = [views.alignment_table(result)] if result.aligned else []
    print_result(
        options,
        [views.agreement_table(result), *aligned_table],
        views.notes(result),
        asdict(result),
        lambda: views.page(result, _maps(model, test)),
    )


def _maps(model: "Seq2Seq", test: "list[Pair]") -> bytes:
    """Heat maps of the first test pair."""
    from salience.generation import explain_answers
    from salience.views.answers import picture

    return picture(explain_answers(model, [test[0].source], ["attention", "output_relevance"]), "svg")
