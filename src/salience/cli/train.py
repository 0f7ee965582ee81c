"""``salience train``: teacher, explanations, student."""

import dataclasses
import json
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from salience.cli.options import examples, pairs
from salience.errors import BadInput

if TYPE_CHECKING:
    from salience.data import Source
    from salience.teaching import Taught, Telling
    from salience.train import Epoch, Recipe

SAMPLE = "sample"
"""The sentences that come with the package, as training data."""


@click.command(
    epilog=examples(
        "salience train --data sample --out out                 (the bundled sample; two minutes)",
        "salience train --data train.jsonl --validation dev.jsonl --test test.jsonl --model my-encoder --out out",
        "salience train --data train.jsonl --out out --method integrated_gradients --share 0.1 --weight 0.5",
        "salience train --data train.jsonl --out out --method rationale --rationale-column rationale_spans",
        "salience train --data train.jsonl --out out --penalty gradient_to_explanation --weight 0.01",
    )
)
@click.option("--data", required=True, metavar="DATA", help="Texts with labels, or `sample` for the bundled ones.")
@click.option("--out", required=True, metavar="FOLDER", type=click.Path(path_type=Path), help="Where all of it goes.")
@click.option("--model", default="sentiment", show_default=True, help="The pretrained model to start from.")
@click.option("--validation", metavar="DATA", help="Held-out texts, measured after every epoch.")
@click.option("--test", "tests", metavar="DATA", multiple=True, help="Measured at the end; may be repeated.")
@click.option("--unlabelled", metavar="DATA", help="More texts, which teach where to look alone.")
@click.option("--text-column", default="text", show_default=True, metavar="NAME")
@click.option("--label-column", default="label", show_default=True, metavar="NAME")
@click.option("--rationale-column", metavar="NAME", help="Human rationales: lists of [start, end] spans.")
@click.option(
    "--spans",
    type=click.Choice(["characters", "words"]),
    default="characters",
    show_default=True,
    help="Of rationales.",
)
@click.option(
    "--variant",
    type=click.Choice(["vanilla", "sallm", "fine_tuned", "iterative", "refreshed"]),
    default="sallm",
    show_default=True,
    help="How teacher and student follow each other.",
)
@click.option("--method", default="input_x_gradient", show_default=True, help="The explanations, or `rationale`.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="A setting of the method.")
@click.option(
    "--form",
    type=click.Choice(["binary", "positive", "signed"]),
    default="binary",
    show_default=True,
    help="Of scores.",
)
@click.option("--share", type=float, default=0.2, show_default=True, help="Part of the tokens marked by `binary`.")
@click.option("--penalty", default="attention_to_explanation", show_default=True, help="What is held to them.")
@click.option("--with", "penalty_settings", metavar="KEY=VALUE", multiple=True, help="A setting of the penalty.")
@click.option(
    "--weight",
    "weights",
    type=float,
    multiple=True,
    metavar="λ",
    help="Of the penalty; repeat to compare.  [default: 1]",
)
@click.option(
    "--anneal",
    type=click.Choice(["constant", "rise", "fall", "cosine"]),
    default="constant",
    show_default=True,
    help="How λ goes.",
)
@click.option("--rounds", type=int, default=3, show_default=True, help="Of the variant iterative.")
@click.option("--epochs", type=int, help="[default: 3; 8 for the sample]")
@click.option("--batch", type=int, help="Texts of a step.  [default: 32; 8 for the sample]")
@click.option("--rate", type=float, help="The learning rate.  [default: 2e-5; 1e-4 for the sample]")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--device", help="Such as cpu or cuda.  [default: cpu]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per epoch, then the result.")
@click.option("--quiet", is_flag=True, help="No progress.")
def train(**given: Any) -> None:
    """Train a model to look where an explanation says.

    A teacher learns the task, explains its training set, and a student learns the task while its attention is held to
    the explanations: loss = task + λ · penalty. FOLDER keeps all of it; stopped, the same command goes on. The
    student, in FOLDER/student, loads in transformers like any other model.
    """
    from salience.teaching import Course, sweep, teach

    out: Path = given["out"]
    course = Course(
        variant=given["variant"],
        method=given["method"],
        settings=pairs(given["settings"]),
        form=given["form"],
        share=given["share"],
        penalty=given["penalty"],
        penalty_settings=pairs(given["penalty_settings"]),
        weight=given["weights"][0] if given["weights"] else 1.0,
        anneal=given["anneal"],
        rounds=given["rounds"],
        recipe=_recipe(given),
    )
    data, validation = _data(given, out)
    place = out / "training" if given["data"] == SAMPLE else out
    shared: dict[str, Any] = {
        "validation": validation,
        "tests": {name: _source(name, given) for name in given["tests"]},
        "unlabelled": None if given["unlabelled"] is None else _source(given["unlabelled"], given, label=False),
        "device": given["device"],
    }
    with _told(given["as_json"], given["quiet"]) as telling:
        if len(given["weights"]) < 2:
            found = {"": teach(given["model"], data, place, course, telling=telling, **shared)}
        else:
            courses = {f"weight-{w:g}": dataclasses.replace(course, weight=w) for w in given["weights"]}
            found = sweep(given["model"], data, place, courses, telling=telling, **shared)
    _written(found, place)
    for name, taught in found.items():
        _tell(name, taught, given["as_json"], given["quiet"])


def _written(found: "Mapping[str, Taught]", place: Path) -> None:
    """A page beside each student, and of several the chart of what they trade."""
    from salience.runs import complete
    from salience.views.training import page, trade_off

    measured = [t for t in found.values() if t.epochs[-1].measures]
    for taught in measured:
        with complete(taught.folder / "report.html") as file:
            file.write(page(taught).encode())
    if len(measured) > 1:
        with complete(place / "trade-off.png") as file:
            file.write(trade_off(found, "png"))


def _recipe(given: dict[str, Any]) -> "Recipe":
    """What is given, and otherwise what suits: few texts and a small model need more and longer steps."""
    from salience.train import Recipe

    usual = Recipe(epochs=8, batch=8, rate=1e-4) if given["data"] == SAMPLE else Recipe()
    chosen = {name: given[name] for name in ("epochs", "batch", "rate") if given[name] is not None}
    return dataclasses.replace(usual, seed=given["seed"], **chosen)


def _data(given: dict[str, Any], out: Path) -> "tuple[Source, Source | None]":
    if given["data"] != SAMPLE:
        return _source(given["data"], given), None if given["validation"] is None else _source(
            given["validation"], given
        )
    if given["validation"] is not None:
        raise BadInput("the bundled sample brings its own validation texts; leave out --validation")
    from salience.data import source
    from salience.models import sample

    lines = sample()
    files: list[Any] = []
    out.mkdir(parents=True, exist_ok=True)
    for name, chosen in (("train", lambda i: i % 3), ("validation", lambda i: not i % 3)):
        file = out / f"{name}.jsonl"
        file.write_text("".join(f"{line}\n" for i, line in enumerate(lines) if chosen(i)), "utf-8")
        files.append(source(file, id="id", label="label", rationale="rationale_spans"))
    return files[0], files[1]


def _source(name: str, given: dict[str, Any], *, label: bool = True) -> "Source":
    from salience.data import source

    return source(
        name,
        text=given["text_column"],
        label=given["label_column"] if label else None,
        rationale=given["rationale_column"] if label else None,
        spans=given["spans"],
    )


@contextmanager
def _told(as_json: bool, quiet: bool) -> "Generator[Telling]":
    from salience.teaching import Telling
    from salience.views.progress import stages

    if as_json:
        yield Telling(epoch=_event)
    elif quiet:
        yield Telling()
    else:
        with stages(sys.stderr.isatty()) as bar:
            yield Telling(bar.stage, bar.step, bar.explained, lambda who, epoch: bar.say(_line(who, epoch)))


def _event(who: str, epoch: "Epoch") -> None:
    click.echo(json.dumps({"event": "epoch", "of": who, **dataclasses.asdict(epoch)}))


def _line(who: str, epoch: "Epoch") -> str:
    told = {"loss": epoch.task, "penalty": epoch.penalty} | dict(epoch.measures)
    return f"{who} epoch {epoch.number}: " + ", ".join(f"{name} {value:.3f}" for name, value in told.items())


def _tell(name: str, found: "Taught", as_json: bool, quiet: bool) -> None:
    if as_json:
        facts = {
            "event": "finished",
            "course": name,
            "student": str(found.student),
            "before": found.before,
            "scores": found.scores,
        }
        click.echo(json.dumps({**facts, "after": found.epochs[-1].measures}))
        return
    if name:
        click.echo(click.style(name, bold=True))
    after = found.epochs[-1].measures
    names = [name for name in after if name in found.before]
    if names:
        start = "at start" if found.course["method"] == "rationale" else "teacher"
        click.echo(f"{'':22}{start:>10}{'student':>10}")
        for measure in names:
            click.echo(f"{measure.replace('_', ' '):22}{found.before[measure]:10.3f}{after[measure]:10.3f}")
    for data, value in found.scores.items():
        click.echo(f"accuracy on {data}: {value:.3f}")
    if not quiet:
        more = f", the report in {found.folder / 'report.html'}" if after else ""
        click.echo(f"the student is in {found.student}{more}", err=True)
