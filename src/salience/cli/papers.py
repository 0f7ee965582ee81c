"""``salience paper``: a paper's protocol, with its published numbers beside ours where it has any."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from salience.cli.evaluate import table
from salience.cli.options import Model, examples, model
from salience.cli.output import print_points
from salience.errors import BadInput

if TYPE_CHECKING:
    from salience.lessons import Example

SIZE = click.option("--size", type=click.Choice(["quick", "full"]), default="quick", show_default=True)
OUT = click.option(
    "--out", required=True, metavar="FOLDER", type=click.Path(path_type=Path), help="Where all of it goes."
)


@click.group(
    epilog=examples(
        "salience paper sallm --model my-encoder --train sst5.jsonl --validation dev.jsonl --test test.jsonl --out out",
        "salience paper layer_saliency --data sst2=test.jsonl --out out",
        "salience paper elephant --data sst2=test.jsonl --out out",
    )
)
def paper() -> None:
    """Run a paper's protocol on your model and data."""


@paper.command(
    epilog=examples(
        "salience paper sallm --model my-encoder --train sst5.jsonl --validation dev.jsonl --test test.jsonl --out out",
        "salience paper sallm ... --size full --workers 2      (hours; stopped, it goes on)",
        "salience paper sallm ... --other imdb=imdb.jsonl",
    )
)
@click.option("--model", required=True, help="The pretrained model to start from.")
@click.option("--train", required=True, metavar="DATA")
@click.option("--validation", required=True, metavar="DATA")
@click.option("--test", required=True, metavar="DATA")
@click.option("--other", "others", metavar="NAME=DATA", multiple=True, help="Test data of another domain.")
@click.option("--text-column", default="text", show_default=True, metavar="NAME")
@click.option("--label-column", default="label", show_default=True, metavar="NAME")
@OUT
@SIZE
@click.option("--method", default="input_x_gradient", show_default=True, help="The explanations.")
@click.option("--rate", type=float, default=2e-5, show_default=True, help="The learning rate.")
@click.option("--device", help="Such as cpu or cuda.  [default: cpu]")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Trainings at a time.")
@click.option("--quiet", is_flag=True, help="No progress.")
def sallm(**given: Any) -> None:
    """SalLM: attention taught by explanations, four variants over several seeds."""
    from salience.papers import reports
    from salience.papers.sallm import SIZES, compared, looked, markdown, run
    from salience.teaching import Telling
    from salience.train import Recipe
    from salience.views.progress import stages

    with stages(sys.stderr.isatty() and not given["quiet"]) as bar:
        say = (lambda _: None) if given["quiet"] else bar.say
        telling = Telling() if given["quiet"] else Telling(step=bar.step, explained=bar.explained)
        result = run(
            given["model"],
            _source(given["train"], given),
            _source(given["validation"], given),
            _source(given["test"], given),
            given["out"],
            size=SIZES[given["size"]],
            others={name: _source(data, given) for name, data in map(_named, given["others"])},
            recipe=Recipe(rate=given["rate"]),
            method=given["method"],
            workers=given["workers"],
            device=given["device"],
            say=say,
            telling=telling,
        )
    tables = "\n\n".join(markdown(one) for one in (compared(result), looked(result)))
    _write(given["out"], {"tables.md": f"{tables}\n", "report.html": reports.sallm(result)})
    click.echo(tables)
    click.echo(f"λ = {result.chosen['weight']:g} and a share of {result.chosen['share']:g} were best on validation")
    _told(given)


def _comparing(command: Callable[..., None]) -> Callable[..., None]:
    """The options of papers that compare methods."""
    for option in (
        click.option("--quiet", is_flag=True, help="No progress."),
        click.option("--limit", type=click.IntRange(1), metavar="N", help="N texts of each, not those of the size."),
        SIZE,
        OUT,
        click.option(
            "--spans", type=click.Choice(["characters", "words", "sentiments"]), default="characters", show_default=True
        ),
        click.option("--rationale-column", metavar="NAME", help="What people have marked, where a data set has it."),
        click.option("--label-column", metavar="NAME", help="Labels, which sentiments of words are held against."),
        click.option("--text-column", default="text", show_default=True, metavar="NAME"),
        click.option("--data", "sets", required=True, metavar="NAME=DATA", multiple=True, help="May be repeated."),
    ):
        command = option(command)
    return model(command)


@paper.command(
    "layer_saliency",
    epilog=examples(
        "salience paper layer_saliency --data sst2=test.jsonl --out out",
        "salience paper layer_saliency --data sst2=test.jsonl --rationale-column token_sentiment --spans sentiments "
        "--label-column label --size full --out out",
        "salience paper layer_saliency --model my-model --head fit --data mine=test.jsonl --out out",
    ),
)
@_comparing
@click.option("--head", metavar="HEAD", help="Of a language model: a checkpoint, a file, or `fit`.  [default: its own]")
def layer_saliency(model: Model, **given: Any) -> None:
    """Decoded layer saliency: every layer against other methods."""
    from salience.papers import reports
    from salience.papers.layer_saliency import SIZES, run

    found: list[Any] = []
    for one in _measured(model, given, SIZES, partial(run, head=given["head"])):
        found.append(one)
        facts = [
            _facts(each.comparison) | {"chosen": each.chosen, "coherence": list(map(asdict, each.coherence))}
            for each in found
        ]
        _write(given["out"], {"result.json": json.dumps(facts, indent=1), "report.html": reports.layer_saliency(found)})
        _printed(one.comparison)
        click.echo(f"layer_saliency chooses layer {one.chosen} by itself")
    _told(given)


@paper.command(epilog=examples("salience paper elephant --data sst2=test.jsonl --out out"))
@_comparing
def elephant(model: Model, **given: Any) -> None:
    """The elephant in the interpretability room: attention against saliency methods."""
    from salience.papers import reports
    from salience.papers.elephant import SIZES, answer, run

    found: list[Any] = []
    for one in _measured(model, given, SIZES, run):
        found.append(one)
        facts = json.dumps([_facts(each) for each in found], indent=1)
        _write(given["out"], {"result.json": facts, "report.html": reports.elephant(found)})
        _printed(one)
        print_points(answer(one.found))
    _told(given)


def _measured(model: Model, given: dict[str, Any], sizes: dict[str, int], run: Callable[..., Any]) -> Iterator[Any]:
    """What a paper's protocol finds on each data set, as it is done."""
    from salience.models import load
    from salience.views.progress import counted

    loaded = load(model.model, **model.options)
    for name, some in _sets(given, sizes):
        with counted(name, quiet=given["quiet"]) as report:
            found = run(loaded, name, some, report=report)
        yield found


def _sets(given: dict[str, Any], sizes: dict[str, int]) -> "list[tuple[str, list[Example]]]":
    """The texts of each data set, at even distances where there are more than the size asks for."""
    from salience.guards import sampled
    from salience.lessons import examples as read

    named = [_named(one) for one in given["sets"]]
    count = given["limit"] or sizes[given["size"]]
    return [(name, sampled(read(_source(data, given)), count)) for name, data in named]


def _printed(one: Any) -> None:
    from salience.verdict import advice

    table(one.found)
    print_points(advice(one.found))
    for name, why in one.left_out.items():
        click.echo(f"left out: {name}. {why}")


def _facts(one: Any) -> dict[str, Any]:
    from salience.views.evaluation import to_json

    facts = json.loads(to_json(one.found))
    for cell in facts["cells"]:
        del cell["values"]
    return {"data": one.data, "seconds": dict(one.seconds), "left_out": dict(one.left_out), **facts}


def _write(folder: Path, files: dict[str, str]) -> None:
    from salience.runs import complete

    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        with complete(folder / name) as file:
            file.write(text.encode())


def _told(given: dict[str, Any]) -> None:
    if not given["quiet"]:
        click.echo(f"the report is in {given['out'] / 'report.html'}", err=True)


def _named(text: str) -> tuple[str, str]:
    name, equals, data = text.partition("=")
    if not (name and equals):
        raise BadInput(f"{text!r} is not of the form NAME=DATA")
    return name, data


def _source(name: str, given: dict[str, Any]) -> Any:
    from salience.data import source

    return source(
        name,
        text=given["text_column"],
        label=given["label_column"],
        rationale=given.get("rationale_column"),
        spans=given.get("spans", "characters"),
    )
