"""``salience paper``: a paper's protocol, with its published numbers beside ours."""

import sys
from pathlib import Path
from typing import Any

import click

from salience.cli.options import examples
from salience.errors import BadInput


@click.command(
    epilog=examples(
        "salience paper sallm --model my-encoder --train sst5.jsonl --validation dev.jsonl --test test.jsonl --out out",
        "salience paper sallm ... --size full --workers 2      (hours; stopped, it goes on)",
        "salience paper sallm ... --other imdb=imdb.jsonl",
    )
)
@click.argument("name")
@click.option("--model", required=True, help="The pretrained model to start from.")
@click.option("--train", required=True, metavar="DATA")
@click.option("--validation", required=True, metavar="DATA")
@click.option("--test", required=True, metavar="DATA")
@click.option("--other", "others", metavar="NAME=DATA", multiple=True, help="Test data of another domain.")
@click.option("--text-column", default="text", show_default=True, metavar="NAME")
@click.option("--label-column", default="label", show_default=True, metavar="NAME")
@click.option("--out", required=True, metavar="FOLDER", type=click.Path(path_type=Path), help="Where all of it goes.")
@click.option("--size", type=click.Choice(["quick", "full"]), default="quick", show_default=True)
@click.option("--method", default="input_x_gradient", show_default=True, help="The explanations.")
@click.option("--rate", type=float, default=2e-5, show_default=True, help="The learning rate.")
@click.option("--device", help="Such as cpu or cuda.  [default: cpu]")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Trainings at a time.")
@click.option("--quiet", is_flag=True, help="No progress.")
def paper(name: str, **given: Any) -> None:
    """Run the protocol of the paper NAME and print its table. Known: sallm."""
    from salience.papers import find
    from salience.papers.reports import sallm
    from salience.papers.sallm import SIZES, compared, looked, markdown
    from salience.runs import complete
    from salience.teaching import Telling
    from salience.train import Recipe
    from salience.views.progress import stages

    run = find(name)
    with stages(sys.stderr.isatty() and not given["quiet"]) as bar:
        say = (lambda _: None) if given["quiet"] else bar.say
        telling = Telling() if given["quiet"] else Telling(step=bar.step, explained=bar.explained)
        result = run(
            given["model"],
            *(_source(given[part], given) for part in ("train", "validation", "test")),
            given["out"],
            size=SIZES[given["size"]],
            others=dict(_named(other, given) for other in given["others"]),
            recipe=Recipe(rate=given["rate"]),
            method=given["method"],
            workers=given["workers"],
            device=given["device"],
            say=say,
            telling=telling,
        )
    tables = "\n\n".join(markdown(table) for table in (compared(result), looked(result)))
    for file_name, text in (("tables.md", f"{tables}\n"), ("report.html", sallm(result))):
        with complete(given["out"] / file_name) as file:
            file.write(text.encode())
    click.echo(tables)
    click.echo(f"λ = {result.chosen['weight']:g} and a share of {result.chosen['share']:g} were best on validation")
    if not given["quiet"]:
        click.echo(f"the report is in {given['out'] / 'report.html'}", err=True)


def _named(text: str, given: dict[str, Any]) -> Any:
    name, equals, data = text.partition("=")
    if not (name and equals):
        raise BadInput(f"--other {text!r} is not of the form NAME=DATA")
    return name, _source(data, given)


def _source(name: str, given: dict[str, Any]) -> Any:
    from salience.data import source

    return source(name, text=given["text_column"], label=given["label_column"])
