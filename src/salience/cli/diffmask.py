"""``salience diffmask``: trains the gates that the method diff_mask reads."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from salience.cli.checks import check_data, check_model
from salience.cli.options import (
    COUNT,
    DELIMITER,
    EPOCHS,
    POSITIVE,
    SEED,
    ModelOptions,
    example_lines,
    model,
    sample_source,
    source_of,
)
from salience.cli.train import SAMPLE
from salience.core.characters import to_json, visible

if TYPE_CHECKING:
    from salience.training.diffmask import GatesResult
    from salience.training.loop import Epoch, TrainingProgress


@click.command(
    epilog=example_lines(
        "salience diffmask --data train.jsonl --out gates",
        "salience diffmask --data train.jsonl --model my-model --out my-model/gates --epochs 4",
        'salience explain "A fine film." --method diff_mask --set gates=gates',
        'salience explain "A fine film." --method diff_mask --set gates=gates --layer all',
    )
)
@click.option("--data", required=True, metavar="DATA", help="Unlabelled texts, or `sample` for the bundled sample.")
@click.option(
    "--out", required=True, metavar="FOLDER", type=click.Path(path_type=Path), help="Folder to save the gates in."
)
@click.option("--text-column", default="text", show_default=True, metavar="NAME", help="Column of the texts.")
@click.option("--limit", type=COUNT, metavar="N", help="Use only N texts, at even distances.")
@click.option(
    "--margin", type=POSITIVE, default=0.1, show_default=True, help="How far predictions may move, in nats (KL)."
)
@click.option("--epochs", type=EPOCHS, help="Number of epochs.  [default: 8]")
@click.option("--batch", type=COUNT, help="Batch size.  [default: 32]")
@click.option("--rate", type=POSITIVE, help="Learning rate.  [default: 1e-3]")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Random seed.")
@DELIMITER
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per epoch, then the result.")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
@model
def diffmask(model: ModelOptions, **options: Any) -> None:
    """Train gates for a model, once, on unlabelled text.

    The gates learn to hide every token that the model does not need for its prediction, from its states at each
    layer. The method diff_mask then explains a text in one pass. Finished epochs are saved in FOLDER; run the same
    command to resume. Gates in the folder `gates` of a model are used without being named.
    """
    if options["data"] != SAMPLE:
        check_data(options, "data", labelled=False)
    check_model(model.model, **model.options)
    from salience.data.examples import examples, sampled
    from salience.models import load
    from salience.training.diffmask import RECIPE, train_gates

    named = options["data"]
    data = examples(sample_source() if named == SAMPLE else source_of(named, options, labelled=False))
    chosen = {name: options[name] for name in ("epochs", "batch", "rate") if options[name] is not None}
    loaded = load(model.model, **model.options)
    loaded.executor.budget = model.budget or loaded.executor.budget
    with _progress(options["as_json"], options["quiet"]) as (report, epoch):
        result = train_gates(
            loaded,
            [e.text for e in (data if options["limit"] is None else sampled(data, options["limit"]))],
            options["out"],
            margin=options["margin"],
            recipe=replace(RECIPE, seed=options["seed"], **chosen),
            report=report,
            epoch=epoch,
        )
    _print(result, options["as_json"], options["quiet"])


Reports = tuple["Callable[[TrainingProgress], None] | None", "Callable[[Epoch], None] | None"]


@contextmanager
def _progress(as_json: bool, quiet: bool) -> Generator[Reports]:
    from salience.views.progress import stages

    if as_json:
        yield None, lambda epoch: click.echo(to_json({"event": "epoch", **asdict(epoch)}))
    elif quiet:
        yield None, None
    else:
        with stages(sys.stderr.isatty()) as bar:
            bar.stage("training the gates")
            yield bar.step, lambda epoch: bar.say(_line(epoch))


def _line(epoch: "Epoch") -> str:
    m = epoch.measures
    return f"epoch {epoch.number}: {m['kept']:.0%} kept, KL {m['divergence']:.3f}, {m['same']:.0%} predicted the same"


def _print(result: "GatesResult", as_json: bool, quiet: bool) -> None:
    last = result.last
    if result.unmet is not None:
        click.echo(f"warning: {result.unmet}", err=True)
    if as_json:
        click.echo(to_json({"event": "finished", "gates": str(result.folder), "margin": result.margin, **last}))
        return
    click.echo(f"{'tokens kept':32}{last['kept']:8.3f}")
    click.echo(f"{'KL from the whole text':32}{last['divergence']:8.3f}")
    click.echo(f"{'texts predicted the same':32}{last['same']:8.3f}")
    if not quiet:
        click.echo(visible(f"wrote the gates {result.folder}"), err=True)
