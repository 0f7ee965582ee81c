"""``salience dynamics``: how did attention come to look like that?"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from salience.cli.checks import check_data
from salience.cli.options import COUNT, DELIMITER, DEVICE, EPOCHS, POSITIVE, SEED, Number, example_lines, source_of
from salience.cli.output import check_place, print_points, written
from salience.core.characters import to_json as safe_json
from salience.core.characters import visible
from salience.core.settings import Range

if TYPE_CHECKING:
    from salience.dynamics import Callbacks, Dynamics
    from salience.training.loop import TrainingProgress

STEPS = Number(Annotated[int, Range(2, 10_000)])
TRAINING = ("epochs", "batch", "rate")
SHAPE = ("encoder", "embedding", "hidden")


@click.command(
    epilog=example_lines(
        'salience dynamics --data train.jsonl --text "this movie is great" --html dynamics.html',
        'salience dynamics --data train.jsonl --test test.jsonl --text "a dull mess" --out dynamics',
        'salience dynamics --data train.jsonl --text "this movie is great" --epochs 2 --hidden 64 --json',
    )
)
@click.option("--data", required=True, metavar="DATA", help="File, folder or dataset of labelled texts to train on.")
@click.option("--text", "texts", metavar="TEXT", multiple=True, help="Text to follow; may be repeated.")
@click.option(
    "--test", metavar="DATA", help="Labelled texts to follow as well.  [default: every tenth text, not trained on]"
)
@click.option("--sentences", type=COUNT, default=50, show_default=True, help="Number of these texts.")
@click.option(
    "--checkpoints", type=STEPS, default=30, show_default=True, help="Number of steps at which texts are recorded."
)
@click.option("--text-column", default="text", show_default=True, metavar="NAME", help="Column of the texts.")
@click.option("--label-column", default="label", show_default=True, metavar="NAME", help="Column of the labels.")
@click.option("--limit", type=COUNT, metavar="N", help="Use only N texts of the data, at even distances.")
@click.option(
    "--encoder",
    type=click.Choice(["bilstm", "lstm", "average", "embedding"]),
    help="Encoder of the classifier.  [default: bilstm]",
)
@click.option("--embedding", type=COUNT, metavar="N", help="Width of the embeddings.  [default: 300]")
@click.option("--hidden", type=COUNT, metavar="N", help="Units of the encoder, per direction.  [default: 256]")
@click.option("--epochs", type=EPOCHS, help="Epochs of the training.  [default: 3]")
@click.option("--batch", type=COUNT, help="Batch size.  [default: 32]")
@click.option("--rate", type=POSITIVE, help="Learning rate.  [default: 1e-3]")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Random seed.")
@DEVICE
@DELIMITER
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Folder for the model and the record of its training; run the same command to resume.",
)
@click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write an HTML report.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
def dynamics(**options: Any) -> None:
    """Train a classifier and watch its attention come to be.

    Attention and output relevance of each word, what the classifier reads from the state of that word alone, are
    followed from the first step to the last. Does relevance separate keywords from other words before attention does?
    """
    check_data(options, "data", "test")
    if options["html"] is not None:
        check_place(options["html"])
    from salience.data.examples import examples, sampled
    from salience.dynamics import follow

    data = examples(source_of(options["data"], options))
    test = None if options["test"] is None else examples(source_of(options["test"], options))
    with _page(options["html"]) as write, _callbacks(options["quiet"], options["out"]) as callbacks:
        result = follow(
            data if options["limit"] is None else sampled(data, options["limit"]),
            list(options["texts"]),
            test=test,
            training={name: options[name] for name in TRAINING if options[name] is not None},
            shape={name: options[name] for name in SHAPE if options[name] is not None},
            name=options["data"],
            callbacks=callbacks,
            **{name: options[name] for name in ("sentences", "checkpoints", "out", "seed", "device")},
        )
        write(result)
    _print(result, options["as_json"])


@contextmanager
def _page(html: Path | None) -> "Generator[Callable[[Dynamics], object]]":
    """Open the page before the work starts; it appears once it is complete."""
    if html is None:
        yield lambda _: None
        return
    from salience.views.dynamics import page

    with written(html) as file:
        yield lambda result: file.write(page(result).encode())
    click.echo(visible(f"wrote {html}"), err=True)


@contextmanager
def _callbacks(quiet: bool, out: Path | None) -> "Generator[Callbacks]":
    """Say how long the training takes, and report its steps."""
    from salience.dynamics import Callbacks
    from salience.views.progress import counted, duration

    with counted("training", quiet=quiet) as report:

        def estimated(seconds: float) -> None:
            kept = "Without --out it is not kept." if out is None else f"It is kept in {out}."
            click.echo(visible(f"the training takes about {duration(seconds)}. {kept}"), err=True)

        def step(progress: "TrainingProgress") -> None:
            if report is not None:
                report(progress.step, progress.of)

        yield Callbacks((lambda _: None) if quiet else estimated, step)


def _print(result: "Dynamics", as_json: bool) -> None:
    from salience.views.dynamics import sentences, terminal, to_json

    if as_json:
        click.echo(safe_json(to_json(result)))
        return
    from rich.console import Console

    Console(highlight=False, emoji=False, markup=False).print(terminal(result))
    print_points(sentences(result))
