"""``salience audit``: is this model's attention an explanation?"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from salience.cli.options import ModelOptions, example_lines, model, pairs, sample_source, source_of
from salience.cli.output import print_points, written
from salience.core.characters import to_json as safe_json

if TYPE_CHECKING:
    from salience.audits.auditor import Audit
    from salience.core.executor import Report


@click.command(
    epilog=example_lines(
        "salience audit                                          (the bundled model and sample)",
        "salience audit --model sentiment_bilstm --html audit.html",
        "salience audit --model my-model --data reviews.jsonl --limit 200 --out audit",
        "salience audit --test permutation --test adversary --layer 2 --head 5",
        "salience audit --test permutation --set permutation.shuffles=20 --json",
    )
)
@click.option("--data", metavar="DATA", help="File, folder or dataset of texts.  [default: the bundled sample]")
@click.option(
    "--test",
    "tests",
    metavar="NAME",
    multiple=True,
    help="Test to run; may be repeated.  [default: all: correlation, permutation, adversary, erasure, intervention, "
    "comparison]",
)
@click.option("--layer", type=int, metavar="N", help="Layer whose attention is tested.  [default: the last]")
@click.option("--head", type=click.IntRange(1), metavar="N", help="Only head to change.  [default: all]")
@click.option("--set", "settings", metavar="TEST.KEY=VALUE", multiple=True, help="Setting of a test; may be repeated.")
@click.option("--text-column", default="text", show_default=True, metavar="NAME", help="Column of the texts.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Use only the first N texts.")
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
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
    from salience.audits import audit as run_audit
    from salience.data.examples import examples as read
    from salience.models import load

    data = sample_source() if options["data"] is None else source_of(options["data"], options, labelled=False)
    texts = read(data, limit=options["limit"])
    loaded = load(model.model, **model.options)
    loaded.executor.budget = model.budget or loaded.executor.budget
    with _page(options["html"]) as write, _progress(options["quiet"]) as report:
        result = run_audit(
            loaded,
            texts,
            tests=options["tests"] or None,
            layer=options["layer"],
            head=options["head"],
            seed=options["seed"],
            out=options["out"],
            report=report,
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
def _progress(quiet: bool) -> "Generator[Callable[[str], Report | None]]":
    from salience.views.progress import counted

    with counted("auditing", quiet=quiet) as report:
        yield lambda _: report


def _print(result: "Audit", as_json: bool) -> None:
    from salience.views.audit import terminal, to_json

    if as_json:
        click.echo(safe_json(to_json(result)))
        return
    from rich.console import Console

    Console(highlight=False, emoji=False, markup=False).print(terminal(result))
    print_points(result.summary)
