"""``salience test``: tests of methods that need more than one model, or one that is made for the purpose."""

import json
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from salience.cli.options import examples, pairs
from salience.cli.output import print_points, print_wide, written
from salience.errors import BadInput, NotLearnt

if TYPE_CHECKING:
    from salience.lessons import Example
    from salience.train import Recipe
    from salience.types import Make
    from salience.views.progress import Stages
    from salience.views.trials import Table

METHODS = ("gradient", "input_x_gradient", "integrated_gradients", "occlusion", "attention")


@click.group(
    name="test",
    epilog=examples(
        "salience test shortcuts --data train.jsonl --test test.jsonl --model sentiment_bilstm",
        "salience test roar --data train.jsonl --test test.jsonl --model sentiment_bilstm --out roar",
        "salience test simulatability --data train.jsonl --test test.jsonl --teacher my-model --model my-encoder",
        "salience test agreement run-of-seed-0 run-of-seed-1",
    ),
)
def test() -> None:
    """Test methods where the truth is known, by training again, and from seed to seed.

    Which of several explanations of YOUR model can be believed is what `salience evaluate` answers.
    """


SHOWING = (
    click.option("--json", "as_json", is_flag=True, help="One JSON object."),
    click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write a web page."),
)


def _training(command: Callable[..., None]) -> Callable[..., None]:
    """The options of tests that train."""
    for option in reversed(
        (
            click.option("--data", required=True, metavar="DATA", help="Texts to train on, with labels."),
            click.option("--test", "unseen", required=True, metavar="DATA", help="Texts to measure on."),
            click.option("--model", default="sentiment_bilstm", show_default=True, help="What is trained."),
            click.option("--text-column", default="text", show_default=True, metavar="NAME"),
            click.option("--label-column", default="label", show_default=True, metavar="NAME"),
            click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N texts of each."),
            click.option(
                "--method",
                "methods",
                metavar="NAME",
                multiple=True,
                help=f"May be repeated.  [default: {', '.join(METHODS)}]",
            ),
            click.option("--epochs", type=int, help="[default: 10; 4 for a pretrained model]"),
            click.option("--batch", type=int, default=32, show_default=True, help="Texts of a step."),
            click.option("--rate", type=float, help="The learning rate.  [default: 2e-3; 1e-4 if pretrained]"),
            click.option("--device", help="Such as cpu or cuda.  [default: cpu]"),
            *SHOWING,
            click.option("--quiet", is_flag=True, help="No progress."),
        )
    ):
        command = option(command)
    return command


@test.command(
    epilog=examples(
        "salience test shortcuts --data train.jsonl --test test.jsonl --model sentiment_bilstm",
        "salience test shortcuts ... --kind pair --words apple,river,silver --method lime --html shortcuts.html",
    )
)
@_training
@click.option("--kind", "kinds", type=click.Choice(["token", "context", "pair"]), multiple=True, help="[default: all]")
@click.option(
    "--words", metavar="A,B,C", default="paris,london,monday", show_default=True, help="Two that decide, and a context."
)
@click.option("--share", type=float, default=0.5, show_default=True, help="The part of the texts that is planted.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="A setting of a method.")
@click.option("--seed", type=int, default=0, show_default=True)
def shortcuts(**given: Any) -> None:
    """Does a method point at words that are known to decide?

    A shortcut is planted in real texts, a model is trained until it uses it, and its decisions are explained.
    """
    from salience.lessons import labels_in
    from salience.shortcuts import KINDS, Shortcut, run
    from salience.views import trials

    words = [word.strip() for word in given["words"].split(",")]
    if len(words) != 3:
        raise BadInput(f"--words {given['words']} must be three words with commas between them")
    train, unseen = _texts(given)
    make, recipe = _make(given, labels_in(train, given["data"])), replace(_recipe(given), seed=given["seed"])
    found: list[Any] = []
    refused: dict[str, str] = {}
    with _stages(given) as bar:
        for kind in given["kinds"] or KINDS:
            bar.stage(f"a shortcut of the kind {kind}")
            planted = Shortcut(kind, (words[0], words[1]), words[2])
            asked: dict[str, Any] = {
                "share": given["share"],
                "recipe": recipe,
                "step": bar.step,
                **pairs(given["settings"]),
            }
            try:
                found.append(run(make, train, unseen, planted, given["methods"] or METHODS, **asked))
            except NotLearnt as error:
                refused[kind] = str(error)
    if not found:
        raise NotLearnt("; ".join(refused.values()))
    notes = [*trials.shortcut_notes(found), *(f"{kind}: {why}" for kind, why in refused.items())]
    facts = [*map(asdict, found), *({"shortcut": {"kind": kind}, "refused": why} for kind, why in refused.items())]
    _show("Do methods find what was planted?", trials.shortcuts(found), facts, given, notes)


@test.command(
    epilog=examples(
        "salience test roar --data train.jsonl --test test.jsonl --model sentiment_bilstm --out roar",
        "salience test roar ... --method lime --seeds 3 --step 0.25 --once",
    )
)
@_training
@click.option("--out", metavar="FOLDER", type=click.Path(path_type=Path), help="Keeps what is done; again, it goes on.")
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True, help="Trainings of each kind.")
@click.option(
    "--step", type=click.FloatRange(0, 1, min_open=True), default=0.1, show_default=True, help="Of the share."
)
@click.option("--once", is_flag=True, help="The model of whole texts explains all, not each the next.")
def roar(**given: Any) -> None:
    """Does a model that never saw the named tokens do worse?

    The tokens that a method names are masked before training, more and more of them, and a new model is trained.
    """
    from salience.lessons import labels_in
    from salience.retraining import roar as removed
    from salience.views import trials

    train, unseen = _texts(given)
    with _stages(given) as bar:
        bar.stage("masking and training")
        found = removed(
            _make(given, labels_in(train, given["data"]), untaught=True),
            train,
            unseen,
            given["methods"] or METHODS,
            shares=[*(round(i * given["step"], 6) for i in range(ceil(1 / given["step"]))), 1.0],
            seeds=range(given["seeds"]),
            recursive=not given["once"],
            recipe=_recipe(given),
            folder=given["out"],
            report=lambda *told: bar.say("{}, seed {}, {:.0%} masked: accuracy {:.3f}".format(*told)),
        )
    facts = {name: asdict(curve) for name, curve in found.items()}
    notes = trials.roar_notes(found, len(unseen))
    _show(
        "Remove and retrain", trials.roar(found), facts, given, notes, picture=lambda: trials.roar_chart(found, "svg")
    )


@test.command(
    epilog=examples(
        "salience test simulatability --data train.jsonl --test test.jsonl --teacher my-model --model my-encoder"
    )
)
@_training
@click.option(
    "--teacher",
    required=True,
    metavar="MODEL",
    help="The model whose explanations are tested; it must read the same tokens as --model.",
)
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True, help="Students of each kind.")
@click.option("--share", type=float, default=0.1, show_default=True, help="Part of the tokens that is named.")
@click.option("--weight", type=float, default=1.0, show_default=True, metavar="λ", help="Of the explanations.")
def simulatability(**given: Any) -> None:
    """Does a student learn its teacher better when it is shown the explanations?

    Students learn the teacher's answers, with and without their attention held to its explanations.
    """
    from salience.models import load
    from salience.retraining import simulatability as simulated
    from salience.views import trials

    train, unseen = _texts(given, labelled=False)
    teacher = load(given["teacher"], device=given["device"])
    with _stages(given) as bar:
        bar.stage("explaining and training")
        found = simulated(
            _make(given, teacher.labels, untaught=True),
            teacher,
            train,
            unseen,
            given["methods"] or METHODS,
            seeds=range(given["seeds"]),
            share=given["share"],
            weight=given["weight"],
            recipe=_recipe(given),
            report=lambda *told: bar.say("{}, seed {}: agrees on {:.1%}".format(*told)),
        )
    facts = {name: asdict(spread) for name, spread in found.items()}
    notes = trials.simulatability_notes(found, given["teacher"], len(unseen))
    _show("What explanations teach a student", trials.simulatability(found), facts, given, notes)


@test.command(epilog=examples("salience test agreement run-of-seed-0 run-of-seed-1", "salience test agreement run"))
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@SHOWING[0]
@SHOWING[1]
def agreement(**given: Any) -> None:
    """Do explanations agree from seed to seed, or from method to method?

    RUNs are folders of `salience explain --data ... --out RUN`: several of the same texts, explained with models that
    differ in their seed; or one, whose methods are compared.
    """
    from salience.seeds import agreement as agreed
    from salience.views import trials

    found = agreed(given["runs"])
    title = "From seed to seed" if found.between == "runs" else "From method to method"
    _show(title, trials.agreement(found), asdict(found), given, trials.agreement_notes(found))


def _texts(given: dict[str, Any], *, labelled: bool = True) -> "list[list[Example]]":
    from salience.data import source
    from salience.guards import sampled
    from salience.lessons import examples as read

    text, label = given["text_column"], given["label_column"] if labelled else None
    found = [read(source(given[name], text=text, label=label)) for name in ("data", "unseen")]
    return [some if given["limit"] is None else sampled(some, given["limit"]) for some in found]


def _make(given: dict[str, Any], labels: Sequence[str] | int, *, untaught: bool = False) -> "Make":
    from salience.models import knows, load_to_train

    if untaught and knows(given["model"], labels):
        raise BadInput(
            f"{given['model']} is a classifier already, and would carry over what it has learnt; name a pretrained "
            "model without a task, or one that starts from nothing, such as sentiment_bilstm"
        )
    return lambda seed: load_to_train(given["model"], labels, seed=seed, device=given["device"])


def _recipe(given: dict[str, Any]) -> "Recipe":
    """A pooled model starts from nothing: it needs larger steps, and more of them."""
    from salience.models import starts_from_nothing
    from salience.train import Recipe

    usual = Recipe(epochs=10, rate=2e-3) if starts_from_nothing(given["model"]) else Recipe(epochs=4, rate=1e-4)
    return replace(usual, **{name: given[name] for name in ("epochs", "batch", "rate") if given[name] is not None})


@contextmanager
def _stages(given: dict[str, Any]) -> "Generator[Stages]":
    from salience.views.progress import quietly, stages

    if given["html"] is not None and not given["html"].parent.is_dir():
        raise BadInput(f"the folder {given['html'].parent} does not exist; create it first")
    with quietly() if given["quiet"] else stages(sys.stderr.isatty()) as bar:
        yield bar


def _show(
    title: str,
    table: "Table",
    facts: Any,
    given: dict[str, Any],
    notes: Sequence[str] = (),
    picture: Callable[[], bytes] | None = None,
) -> None:
    from salience.views import trials
    from salience.views.evaluation import plain

    if given["html"] is not None:
        with written(given["html"]) as file:
            file.write(trials.page(title, table, notes, picture() if picture else None).encode())
        click.echo(f"wrote {given['html']}", err=True)
    if given["as_json"]:
        click.echo(json.dumps(plain(facts), ensure_ascii=False))
        return
    print_wide(trials.terminal(table))
    print_points(notes)
