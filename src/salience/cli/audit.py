"""``salience audit``: is this model's attention an explanation?"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from salience.cli.checks import check_data, check_model
from salience.cli.options import (
    COUNT,
    EPOCHS,
    POSITIVE,
    SEED,
    WHOLE,
    ModelOptions,
    example_lines,
    model,
    pairs,
    sample_source,
    source_of,
)
from salience.cli.output import print_points, written
from salience.core.characters import to_json as safe_json
from salience.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from salience.audits import Audit, Callbacks
    from salience.training.loop import TrainingProgress

DIVIDED = "divided"
"""The audited texts themselves are divided into texts to train on and texts to test on."""


@click.command(
    epilog=example_lines(
        "salience audit                                          (the bundled model and sample)",
        "salience audit --model sentiment_bilstm --html audit.html",
        "salience audit --model my-model --data reviews.jsonl --limit 200 --out audit",
        "salience audit --test permutation --test adversary --layer 2 --head 5",
        "salience audit --test permutation --set permutation.shuffles=20 --json",
        "salience audit --model sentiment_bilstm --data test.jsonl --retrain train.jsonl --out audit",
        "salience audit --data test.jsonl --retrain train.jsonl --test manipulation --impermissible-column pronouns",
    )
)
@click.option("--data", metavar="DATA", help="File, folder or dataset of texts.  [default: the bundled sample]")
@click.option(
    "--test",
    "tests",
    metavar="NAME",
    multiple=True,
    help="Test to run; may be repeated.  [default: correlation, permutation, adversary, erasure, intervention, "
    "comparison; with --retrain also uniform_attention, seed_variation, frozen_weights, adversarial_twin, "
    "deceptive_twin, manipulation, diverse_states, word_tying]",
)
@click.option(
    "--retrain",
    metavar="[DATA]",
    is_flag=False,
    flag_value=DIVIDED,
    help="Also run the tests that train twins of the model, on these labelled texts. Without DATA, twins are trained "
    "on four fifths of the audited texts and tested on the rest.",
)
@click.option("--label-column", default="label", show_default=True, metavar="NAME", help="Column of the labels.")
@click.option(
    "--impermissible-column",
    metavar="NAME",
    help="Column of the words that attention should hide, for the test manipulation: a list of indices or [start, end] "
    "spans of words, or a number of words from the start.",
)
@click.option("--epochs", type=EPOCHS, help="Epochs of each twin.  [default: 8; 3 for copies of a transformer]")
@click.option("--batch", type=COUNT, help="Batch size of the twins.  [default: 32]")
@click.option("--rate", type=POSITIVE, help="Learning rate of the twins.  [default: 1e-3; 2e-5 for transformers]")
@click.option("--layer", type=WHOLE, metavar="N", help="Layer whose attention is tested.  [default: the last]")
@click.option("--head", type=COUNT, metavar="N", help="Only head to change.  [default: all]")
@click.option("--set", "settings", metavar="TEST.KEY=VALUE", multiple=True, help="Setting of a test; may be repeated.")
@click.option("--text-column", default="text", show_default=True, metavar="NAME", help="Column of the texts.")
@click.option("--limit", type=COUNT, metavar="N", help="Use only the first N texts.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Random seed.")
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Folder for finished tests; run the same command to resume.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with the values of every text.")
@click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write an HTML report.")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
@model
def audit(model: ModelOptions, **options: Any) -> None:
    """Test whether a model's attention is an explanation.

    Attention is compared with gradients and leave-one-out, shuffled, replaced by adversarial weights and erased, and
    the prediction is read again. Each test says what it asked, the number with its interval, and what the number
    would be if attention were an explanation.
    """
    retrain: str | None = options["retrain"]
    unused = [name for name in ("epochs", "batch", "rate", "impermissible_column") if options[name] is not None]
    if retrain is None and unused:
        raise BadInput(f"--{unused[0].replace('_', '-')} is for twins; add --retrain")
    columns = options | {"rationale_column": options["impermissible_column"], "spans": "words"}
    check_data(columns, "data", labelled=retrain is not None)
    if retrain not in (None, DIVIDED):
        check_data(columns, "retrain")
    check_model(model.model, **model.options)
    from salience.audits import audit as run_audit
    from salience.data.examples import examples as read
    from salience.models import load

    if options["data"] is None:
        data = sample_source(label_column="label")
    else:
        data = source_of(options["data"], columns, labelled=retrain is not None)
    texts = read(data, limit=options["limit"])
    train = retrain if retrain in (None, DIVIDED) else read(source_of(retrain, columns))
    loaded = load(model.model, **model.options)
    loaded.executor.budget = model.budget or loaded.executor.budget
    with _page(options["html"]) as write, _callbacks(options["quiet"], options["out"]) as callbacks:
        result = run_audit(
            loaded,
            texts,
            tests=options["tests"] or None,
            layer=options["layer"],
            head=options["head"],
            seed=options["seed"],
            out=options["out"],
            retrain=train,
            training={name: options[name] for name in ("epochs", "batch", "rate") if options[name] is not None},
            callbacks=callbacks,
            **pairs(options["settings"]),
        )
        write(result)
    _print(result, options["as_json"])


@contextmanager
def _page(html: Path | None) -> "Generator[Callable[[Audit], object]]":
    """Open the page before the work starts; it appears once it is complete."""
    if html is None:
        yield lambda _: None
        return
    from salience.views.audit import page

    with written(html) as file:
        yield lambda result: file.write(page(result).encode())
    click.echo(f"wrote {html}", err=True)


@contextmanager
def _callbacks(quiet: bool, out: Path | None) -> "Generator[Callbacks]":
    """Report each test, the training of each twin, and how long all of that will take."""
    from salience.audits import Callbacks
    from salience.views.progress import duration, named

    with named(quiet=quiet) as report:

        def estimated(names: "Sequence[str]", seconds: float) -> None:
            kept = "Without --out they are not kept." if out is None else f"Finished ones are kept in {out}."
            click.echo(f"training {len(names)} twins takes about {duration(seconds)}. {kept}", err=True)

        def step(name: str, progress: "TrainingProgress") -> None:
            if (shown := report(f"training {name}")) is not None:
                shown(progress.step, progress.of)

        yield Callbacks(report, (lambda *_: None) if quiet else estimated, step)


def _print(result: "Audit", as_json: bool) -> None:
    from salience.views.audit import terminal, to_json

    if as_json:
        click.echo(safe_json(to_json(result)))
        return
    from rich.console import Console

    Console(highlight=False, emoji=False, markup=False).print(terminal(result))
    print_points(result.summary)
