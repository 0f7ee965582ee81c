"""``salience evaluate``: which explanation can be believed."""

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from salience.cli.options import Model, examples, model, pairs
from salience.cli.output import print_points, print_wide, written
from salience.errors import BadInput

if TYPE_CHECKING:
    from salience.data import Source
    from salience.evaluation import Evaluation


@click.command(
    epilog=examples(
        "salience evaluate                                      (the bundled model and sample)",
        "salience evaluate --data reviews.jsonl --method attention --method integrated_gradients",
        "salience evaluate --data movies.jsonl --rationale-column rationale_spans --metric auprc --metric token_f1",
        "salience evaluate --data reviews.jsonl --model my-model --erase delete --html report.html",
        "salience evaluate --run run                            (what `salience explain --data ... --out run` made)",
        "salience evaluate --explanations theirs.jsonl          (text, tokens or offsets, scores; made elsewhere)",
    )
)
@click.option("--data", metavar="DATA", help="Texts.  [default: the bundled sample, or those of --run]")
@click.option("--run", metavar="RUN", help="A run folder; its explanations are measured as they are.")
@click.option("--explanations", metavar="FILE", help="JSON Lines or Parquet of explanations that were made elsewhere.")
@click.option("--method", "methods", metavar="NAME", multiple=True, help="May be repeated.  [default: the usual ones]")
@click.option("--metric", "metrics", metavar="NAME", multiple=True, help="May be repeated.  [default: the usual ones]")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="A setting of a method.")
@click.option("--target", metavar="LABEL", help="The label to explain.  [default: the predicted one]")
@click.option("--erase", metavar="KIND", help="mask, delete, fill, zero, mean, pad or unk.  [default: mask, or mean]")
@click.option("--text-column", default="text", show_default=True, metavar="NAME")
@click.option("--pair-column", metavar="NAME", help="Where --data has the second texts of pairs.")
@click.option("--id-column", metavar="NAME", help="[default: the row's number]")
@click.option("--rationale-column", metavar="NAME", help="What people have marked: lists of [start, end] spans.")
@click.option(
    "--spans",
    type=click.Choice(["characters", "words", "sentiments"]),
    default="characters",
    show_default=True,
    help="What rationales are made of.",
)
@click.option("--label-column", metavar="NAME", help="Labels, which sentiments of words are held against.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the first N texts.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the bootstrap.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with the numbers of every text.")
@click.option("--csv", metavar="FILE", type=click.Path(path_type=Path), help="Write a line for each cell.")
@click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write a web page.")
@click.option("--quiet", is_flag=True, help="No progress.")
@model
def evaluate(model: Model, **given: Any) -> None:
    """Measure which explanations can be believed.

    Texts are explained by several methods, tokens are erased by what each explanation says, and the model is
    asked again. Three explanations that know nothing of the model are always measured too.
    """
    from salience.evaluator import METHODS
    from salience.evaluator import evaluate as evaluated
    from salience.models import load
    from salience.views.progress import counted

    loaded = load(model.model, **model.options)
    loaded.budget = model.budget or loaded.budget
    texts, explained = _given(loaded, given)
    with (
        _files(given["csv"], given["html"]) as write,
        counted("explaining and measuring", quiet=given["quiet"]) as report,
    ):
        found = evaluated(
            loaded,
            texts,
            given["methods"] or (() if explained else METHODS),
            explained=explained,
            metrics=given["metrics"] or None,
            target=given["target"],
            erase=given["erase"],
            report=report,
            seed=given["seed"],
            **_settings(given["settings"]),
        )
        write(found)
    _tell(found, given["as_json"])


def _settings(given: tuple[str, ...]) -> dict[str, Any]:
    found = pairs(given)
    for name in ("erase", "seed", "target", "kind"):
        if name in found:
            raise BadInput(f"--set {name} could be of a method or of the evaluation; say METHOD.{name}=... or --{name}")
    return found


def _given(model: Any, given: Mapping[str, Any]) -> tuple[Any, Any]:
    """The texts, and explanations of them that are there already."""
    from salience.evaluator import stored
    from salience.foreign import by_method, read_file
    from salience.lessons import examples as read

    if given["explanations"] is not None:
        if given["data"] is not None or given["run"] is not None:
            raise BadInput("--explanations brings its own texts; leave out --data and --run")
        rows = read_file(given["explanations"])
        try:
            return _cut(*by_method(model, rows), given["limit"])
        except BadInput as error:
            raise BadInput(f"{given['explanations']}: {error}") from error
    none = given["data"] is None and given["run"] is not None
    texts = None if none else read(_source(given), limit=given["limit"])
    if given["run"] is None:
        return texts, None
    if none and given["rationale_column"] is not None:
        raise BadInput("--rationale-column is a column of --data; name the data that the run explains")
    return _cut(*stored(model, given["run"], texts), given["limit"])


def _cut(texts: Any, explained: Mapping[str, Any], limit: int | None) -> tuple[Any, Any]:
    return texts[:limit], {name: found[:limit] for name, found in explained.items()}


def _source(given: Mapping[str, Any]) -> "Source":
    from salience.data import source
    from salience.models import sample_file

    if given["data"] is None:
        return source(sample_file(), id="id", rationale="rationale_spans")
    return source(
        given["data"],
        text=given["text_column"],
        pair=given["pair_column"],
        id=given["id_column"],
        label=given["label_column"],
        rationale=given["rationale_column"],
        spans=given["spans"],
    )


@contextmanager
def _files(csv: Path | None, html: Path | None) -> Generator[Callable[["Evaluation"], None]]:
    """Files that are opened before the work begins, and are there only when they are complete."""
    from salience.views.evaluation import page, to_csv

    with ExitStack() as stack:
        opened = [(make, stack.enter_context(written(p))) for make, p in ((to_csv, csv), (page, html)) if p is not None]

        def write(found: "Evaluation") -> None:
            for make, file in opened:
                file.write(make(found).encode())

        yield write


def _tell(found: "Evaluation", as_json: bool) -> None:
    from salience.views import evaluation

    if as_json:
        click.echo(evaluation.to_json(found))
        return
    from salience.verdict import advice, details

    table(found)
    print_points(advice(found))
    click.echo("\nIn detail")
    print_points(details(found))


def table(found: "Evaluation") -> None:
    """Print the table and what its numbers rest on."""
    from rich.console import Console

    from salience.views.evaluation import legend, terminal

    print_wide(terminal(found))
    Console().print(f"\n{legend(found)}\n", style="dim", highlight=False)
