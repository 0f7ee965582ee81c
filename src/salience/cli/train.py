"""``salience train``: teacher, explanations, student."""

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from salience.cli.options import examples, pairs
from salience.errors import BadInput

if TYPE_CHECKING:
    from salience.data import Source
    from salience.teaching import Taught, Telling
    from salience.train import Epoch

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
@click.option("--weight", type=float, default=1.0, show_default=True, metavar="λ", help="Of the penalty.")
@click.option(
    "--anneal",
    type=click.Choice(["constant", "rise", "fall", "cosine"]),
    default="constant",
    show_default=True,
    help="How λ goes.",
)
@click.option("--rounds", type=int, default=3, show_default=True, help="Of the variant iterative.")
@click.option("--epochs", type=int, default=3, show_default=True)
@click.option("--batch", type=int, default=32, show_default=True, help="Texts of a step.")
@click.option("--rate", type=float, default=2e-5, show_default=True, help="The learning rate.")
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
    from salience.teaching import Course, teach
    from salience.train import Recipe

    out: Path = given["out"]
    course = Course(
        variant=given["variant"],
        method=given["method"],
        settings=pairs(given["settings"]),
        form=given["form"],
        share=given["share"],
        penalty=given["penalty"],
        penalty_settings=pairs(given["penalty_settings"]),
        weight=given["weight"],
        anneal=given["anneal"],
        rounds=given["rounds"],
        recipe=Recipe(epochs=given["epochs"], batch=given["batch"], rate=given["rate"], seed=given["seed"]),
    )
    data, validation = _data(given, out)
    with _told(given["as_json"], given["quiet"]) as telling:
        found = teach(
            given["model"],
            data,
            out / "training" if given["data"] == SAMPLE else out,
            course,
            validation=validation,
            tests={name: _source(name, given) for name in given["tests"]},
            unlabelled=None if given["unlabelled"] is None else _source(given["unlabelled"], given, label=False),
            telling=telling,
            device=given["device"],
        )
    _tell(found, given["as_json"], given["quiet"])


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
        yield Telling(epoch=lambda who, epoch: click.echo(json.dumps({"event": "epoch", "of": who, **asdict(epoch)})))
    elif quiet:
        yield Telling()
    else:
        with stages(sys.stderr.isatty()) as bar:
            yield Telling(bar.stage, bar.step, bar.explained, lambda who, epoch: bar.say(_line(who, epoch)))


def _line(who: str, epoch: "Epoch") -> str:
    told = {"loss": epoch.task, "penalty": epoch.penalty} | dict(epoch.measures)
    return f"{who} epoch {epoch.number}: " + ", ".join(f"{name} {value:.3f}" for name, value in told.items())


def _tell(found: "Taught", as_json: bool, quiet: bool) -> None:
    if as_json:
        facts = {"event": "finished", "student": str(found.student), "before": found.before, "scores": found.scores}
        click.echo(json.dumps({**facts, "after": found.epochs[-1].measures}))
        return
    after = found.epochs[-1].measures
    names = [name for name in after if name in found.before]
    if names:
        click.echo(f"{'':22}{'teacher':>10}{'student':>10}")
        for name in names:
            click.echo(f"{name.replace('_', ' '):22}{found.before[name]:10.3f}{after[name]:10.3f}")
    for name, value in found.scores.items():
        click.echo(f"accuracy on {name}: {value:.3f}")
    if not quiet:
        click.echo(f"the student is in {found.student}", err=True)
