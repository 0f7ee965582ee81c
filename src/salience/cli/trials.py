"""``salience trial``: tests of methods that need several models, or a model trained for the test."""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from salience.cli.checks import INTERACTIONS, check_answer_methods, check_data, check_model, check_names
from salience.cli.evaluate import table as print_evaluation
from salience.cli.options import (
    ANY,
    COUNT,
    DELIMITER,
    EPOCHS,
    POSITIVE,
    SEED,
    SETTINGS,
    SHARE,
    Commands,
    LoadingOptions,
    Number,
    example_lines,
    loading,
    pairs,
    source_of,
)
from salience.cli.output import check_place, print_points, print_result, write_page
from salience.core.settings import Range
from salience.core.shares import percent
from salience.errors import BadInput, NotLearnt, choose

if TYPE_CHECKING:
    from salience.data.examples import Example
    from salience.training.loop import Make, Recipe
    from salience.views.progress import Stages
    from salience.views.trials import Table

TRIAL_METHODS = ("gradient", "input_x_gradient", "integrated_gradients", "occlusion", "attention")


@click.group(
    cls=Commands,
    name="trial",
    epilog=example_lines(
        "salience trial shortcuts --data train.jsonl --test test.jsonl --model sentiment_bilstm",
        "salience trial roar --data train.jsonl --test test.jsonl --model sentiment_bilstm --out roar",
        "salience trial simulatability --data train.jsonl --test test.jsonl --teacher my-model --model my-encoder",
        "salience trial agreement run-of-seed-0 run-of-seed-1",
        "salience trial needle --model my-language-model --out needle",
    ),
)
def trial() -> None:
    """Test methods with models trained for the test, or with planted facts.

    The trials plant shortcuts, remove tokens and retrain, teach students, compare seeds, or plant facts that a language
    model is asked for. To evaluate explanations of your own model, use `salience evaluate`.
    """


SHOWING = (
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
    click.option("--html", metavar="FILE", type=click.Path(path_type=Path), help="Write an HTML report."),
)


def _training(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of trials that train models."""
    command = loading(command)
    for option in reversed(
        (
            click.option("--data", required=True, metavar="DATA", help="Labelled training data."),
            click.option("--test", "unseen", required=True, metavar="DATA", help="Test data."),
            click.option("--model", default="sentiment_bilstm", show_default=True, help="Model to train."),
            click.option(
                "--text-column", default="text", show_default=True, metavar="NAME", help="Column of the texts."
            ),
            click.option(
                "--label-column", default="label", show_default=True, metavar="NAME", help="Column of the labels."
            ),
            DELIMITER,
            click.option("--limit", type=COUNT, metavar="N", help="Use at most N texts of each data set."),
            click.option(
                "--method",
                "methods",
                metavar="NAME",
                multiple=True,
                help=f"Method to test; may be repeated.  [default: {', '.join(TRIAL_METHODS)}]",
            ),
            SETTINGS,
            click.option("--epochs", type=EPOCHS, help="Number of epochs.  [default: 10; 4 for a pretrained model]"),
            click.option("--batch", type=COUNT, default=32, show_default=True, help="Batch size."),
            click.option("--rate", type=POSITIVE, help="Learning rate.  [default: 2e-3; 1e-4 for a pretrained model]"),
            *SHOWING,
            click.option("--quiet", is_flag=True, help="Do not show progress."),
        )
    ):
        command = option(command)
    return command


@trial.command(
    epilog=example_lines(
        "salience trial shortcuts --data train.jsonl --test test.jsonl --model sentiment_bilstm",
        "salience trial shortcuts ... --kind pair --words apple,river,silver --method lime --html shortcuts.html",
        "salience trial shortcuts ... --kind pair --interactions pairwise_occlusion",
    )
)
@_training
@click.option(
    "--kind",
    "kinds",
    type=click.Choice(["token", "context", "pair"]),
    multiple=True,
    help="Kind of shortcut; may be repeated.  [default: all]",
)
@click.option(
    "--words",
    metavar="A,B,C",
    default="paris,london,monday",
    show_default=True,
    help="Two words that determine the label, and a context word.",
)
@click.option(
    "--interactions",
    metavar="NAME",
    multiple=True,
    help="Interaction method to test where two words are planted; may be repeated.",
)
@click.option("--share", type=SHARE, default=0.5, show_default=True, help="Share of texts with a planted shortcut.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Random seed.")
def shortcuts(loading: LoadingOptions, **options: Any) -> None:
    """Test whether methods find a planted shortcut.

    Words that determine the label are planted in real texts. A model is trained until it uses them, and its
    predictions are explained: a faithful method ranks the planted words highest.
    """
    _check(options, loading)
    for name in options["interactions"]:
        choose(name, INTERACTIONS, "interaction method")
    from salience.data.examples import labels_in
    from salience.data.shortcuts import SHORTCUT_KINDS, Shortcut
    from salience.trials.shortcuts import shortcuts
    from salience.views import trials

    words = [word.strip() for word in options["words"].split(",")]
    if len(words) != 3:
        raise BadInput(
            f"--words {options['words']} must be three words separated by commas, such as paris,london,monday"
        )
    train, unseen = _texts(options)
    make = _make(options, labels_in(train, options["data"]), loading)
    recipe = replace(_recipe(options), seed=options["seed"])
    results: list[Any] = []
    failed: dict[str, str] = {}
    with _stages(options) as bar:
        for kind in options["kinds"] or SHORTCUT_KINDS:
            bar.stage(f"shortcut: {kind}")
            planted = Shortcut(kind, (words[0], words[1]), words[2])
            arguments: dict[str, Any] = {
                "interactions": options["interactions"],
                "share": options["share"],
                "recipe": recipe,
                "step": bar.step,
                **_settings(options),
            }
            try:
                results.append(
                    shortcuts(make, train, unseen, planted, options["methods"] or TRIAL_METHODS, **arguments)
                )
            except NotLearnt as error:
                failed[kind] = str(error)
    if not results:
        raise NotLearnt("; ".join(failed.values()))
    notes = [*trials.shortcut_notes(results), *(f"{kind}: {why}" for kind, why in failed.items())]
    facts = [*map(asdict, results), *({"shortcut": {"kind": kind}, "refused": why} for kind, why in failed.items())]
    _show("Planted shortcuts", trials.shortcuts(results), facts, options, notes)


@trial.command(
    epilog=example_lines(
        "salience trial roar --data train.jsonl --test test.jsonl --model sentiment_bilstm --out roar",
        "salience trial roar ... --method lime --seeds 3 --step 0.25 --once",
    )
)
@_training
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Folder for finished curves; run the same command to resume.",
)
@click.option("--seeds", type=EPOCHS, default=5, show_default=True, help="Number of seeds.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="The first seed.")
@click.option(
    "--step",
    type=Number(Annotated[float, Range(0.001, 1)]),
    default=0.1,
    show_default=True,
    help="Step between shares of masked tokens.",
)
@click.option("--once", is_flag=True, help="Explain once, with the model trained on full texts (not recursive).")
def roar(loading: LoadingOptions, **options: Any) -> None:
    """Remove and retrain (ROAR).

    A growing share of the highest-scoring tokens is masked in all texts, and a new model is trained each time. The
    better the method, the faster the accuracy falls.
    """
    _check(options, loading)
    from salience.data.examples import labels_in
    from salience.trials.roar import roar as run_roar
    from salience.views import trials

    train, unseen = _texts(options)
    with _stages(options) as bar:
        bar.stage("masking and training")
        curves = run_roar(
            _make(options, labels_in(train, options["data"]), loading, untrained=True),
            train,
            unseen,
            options["methods"] or TRIAL_METHODS,
            shares=[*(round(i * options["step"], 6) for i in range(ceil(1 / options["step"]))), 1.0],
            seeds=_seeds(options),
            recursive=not options["once"],
            recipe=_recipe(options),
            folder=options["out"],
            report=lambda name, seed, share, accuracy: bar.say(
                f"{name}, seed {seed}, {percent(share)} masked: accuracy {accuracy:.3f}"
            ),
            **_settings(options),
        )
    facts = {name: asdict(curve) for name, curve in curves.items()}
    notes = trials.roar_notes(curves, len(unseen))
    _show(
        "Remove and retrain",
        trials.roar(curves),
        facts,
        options,
        notes,
        chart=lambda: trials.roar_chart(curves),
    )


@trial.command(
    epilog=example_lines(
        "salience trial simulatability --data train.jsonl --test test.jsonl --teacher my-model --model my-encoder"
    )
)
@_training
@click.option(
    "--teacher",
    required=True,
    metavar="MODEL",
    help="Model whose explanations are tested; it must have the same tokenizer as --model.",
)
@click.option("--seeds", type=EPOCHS, default=5, show_default=True, help="Number of seeds.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="The first seed.")
@click.option("--share", type=SHARE, default=0.1, show_default=True, help="Share of tokens that an explanation marks.")
@click.option("--weight", type=ANY, default=1.0, show_default=True, metavar="λ", help="Weight of the explanations.")
def simulatability(loading: LoadingOptions, **options: Any) -> None:
    """Test whether explanations help a student model.

    Students learn the predictions of the teacher, with and without a penalty that keeps their attention close to its
    explanations.
    """
    _check(options, loading, labelled=False)
    check_model(options["teacher"], **loading.options)
    from salience.models import load
    from salience.trials.simulatability import simulatability as run_simulatability
    from salience.views import trials

    train, unseen = _texts(options, labelled=False)
    teacher = load(options["teacher"], **loading.options)
    with _stages(options) as bar:
        bar.stage("explaining and training")
        agreement = run_simulatability(
            _make(options, teacher.labels, loading, untrained=True),
            teacher,
            train,
            unseen,
            options["methods"] or TRIAL_METHODS,
            seeds=_seeds(options),
            share=options["share"],
            weight=options["weight"],
            recipe=_recipe(options),
            report=lambda name, seed, share: bar.say(f"{name}, seed {seed}: agreement {percent(share, 1)}"),
            **_settings(options),
        )
    facts = {name: asdict(spread) for name, spread in agreement.items()}
    notes = trials.simulatability_notes(agreement, options["teacher"], len(unseen))
    _show("Simulatability", trials.simulatability(agreement), facts, options, notes)


@trial.command(
    epilog=example_lines("salience trial agreement run-of-seed-0 run-of-seed-1", "salience trial agreement run")
)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@SHOWING[0]
@SHOWING[1]
def agreement(**options: Any) -> None:
    """Measure agreement between seeds, or between methods.

    Each RUN is a folder written by `salience explain --data ... --out RUN`. With several runs of the same texts, by
    models that differ in their seed, each method is compared between runs. With one run, its methods are compared.
    """
    from salience.trials.agreement import agreement as run_agreement
    from salience.views import trials

    result = run_agreement(options["runs"])
    title = "Agreement between runs" if result.between == "runs" else "Agreement between methods"
    _show(title, trials.agreement(result), asdict(result), options, trials.agreement_notes(result))


@trial.command(
    epilog=example_lines(
        "salience trial needle --model my-language-model --out needle          (run again to resume)",
        "salience trial needle --model my-language-model --method lrp:rules=cp,kind=logit --method occlusion:by=word",
    )
)
@loading
@click.option("--model", required=True, help="Language model to ask.")
@click.option(
    "--method",
    "methods",
    metavar="NAME[:KEY=VALUE,...]",
    multiple=True,
    help="Method to test, perhaps with settings, with `kind` and with `by`; may be repeated.  [default: the methods of "
    "one pass, occlusion, context_cite and integrated_gradients]",
)
@click.option("--items", type=COUNT, default=100, show_default=True, help="Number of contexts to explain.")
@click.option("--tokens", type=COUNT, default=300, show_default=True, help="Fewest tokens of a prompt.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Random seed.")
@click.option(
    "--out",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="Folder for finished contexts; run the same command, or one with more methods, to resume.",
)
@SHOWING[0]
@SHOWING[1]
@click.option("--verbose", is_flag=True, help="Also print the intervals and the reasons.")
@click.option("--quiet", is_flag=True, help="Do not show progress.")
def needle(loading: LoadingOptions, **options: Any) -> None:
    """Test whether methods find a planted fact.

    A fact is planted in a long context, and the model is asked for it. Where the answer is much less likely without the
    fact, a faithful method ranks its sentence highest. Contexts whose fact the model does not use are skipped. Controls
    that ignore the model are always included: random, recency (the last sentences first) and similarity (the most words
    in common with the answer).
    """
    check_answer_methods(options["methods"])
    check_model(options["model"], **loading.options)
    from salience.evaluation.advice import advice
    from salience.models import load
    from salience.trials.needle import NEEDLE_METHODS
    from salience.trials.needle import needle as run_needle
    from salience.views import evaluation, trials

    with _stages(options) as bar:
        bar.stage("planting and explaining")
        result = run_needle(
            load(options["model"], **loading.options),
            options["methods"] or NEEDLE_METHODS,
            **{name: options[name] for name in ("items", "tokens", "seed")},
            folder=options["out"],
            report=lambda used, skipped, items: bar.say(f"{used} of {items} contexts, {skipped} skipped"),
        )
    if options["html"] is not None:
        write_page(options["html"], evaluation.page(result.evaluation, title=trials.NEEDLE, notes=result.notes))
    if options["as_json"]:
        click.echo(trials.needle_json(result))
        return
    sentences = advice(result.evaluation)
    print_points(sentences if options["verbose"] else evaluation.headline(sentences))
    click.echo()
    print_evaluation(result.evaluation, intervals=options["verbose"])
    print_points([*([] if options["verbose"] else evaluation.cautions(sentences)), *result.notes])


def _check(options: dict[str, Any], loading: LoadingOptions, *, labelled: bool = True) -> None:
    """Raise for names of methods, data and models that do not exist, before the imports that take seconds."""
    check_names(options["methods"])
    check_data(options, "data", "unseen", labelled=labelled)
    check_model(options["model"], **loading.options)


def _texts(options: dict[str, Any], *, labelled: bool = True) -> "list[list[Example]]":
    from salience.data.examples import examples as read
    from salience.data.examples import sampled

    columns = {name: options[name] for name in ("text_column", "label_column", "delimiter")}
    both = [read(source_of(options[name], columns, labelled=labelled)) for name in ("data", "unseen")]
    return [texts if options["limit"] is None else sampled(texts, options["limit"]) for texts in both]


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    """The settings of the methods; unknown ones are rejected here, as they could be mistaken for other arguments."""
    from salience.explanations.explainer import prepare

    settings = pairs(options["settings"])
    prepare([*(options["methods"] or TRIAL_METHODS), "random"], settings)
    return settings


def _seeds(options: dict[str, Any]) -> range:
    return range(options["seed"], options["seed"] + options["seeds"])


def _make(
    options: dict[str, Any], labels: Sequence[str] | int, loading: LoadingOptions, *, untrained: bool = False
) -> "Make":
    from salience.models import knows, load_to_train

    if untrained and knows(options["model"], labels):
        raise BadInput(
            f"{options['model']} is a classifier already, so the test would measure its earlier training; use a "
            "pretrained model without a task, or one that is trained from scratch, such as sentiment_bilstm"
        )
    return lambda seed: load_to_train(options["model"], labels, seed=seed, **loading.options)


def _recipe(options: dict[str, Any]) -> "Recipe":
    """The training options. A model trained from scratch defaults to more epochs and a higher learning rate."""
    from salience.models import starts_from_nothing
    from salience.training.loop import Recipe

    defaults = Recipe(epochs=10, rate=2e-3) if starts_from_nothing(options["model"]) else Recipe(epochs=4, rate=1e-4)
    return replace(
        defaults, **{name: options[name] for name in ("epochs", "batch", "rate") if options[name] is not None}
    )


@contextmanager
def _stages(options: dict[str, Any]) -> "Generator[Stages]":
    from salience.views.progress import quietly, stages

    if options["html"] is not None:
        check_place(options["html"])
    with quietly() if options["quiet"] else stages(sys.stderr.isatty()) as bar:
        yield bar


def _show(
    title: str,
    table: "Table",
    facts: Any,
    options: dict[str, Any],
    notes: Sequence[str] = (),
    chart: Callable[[], str] = str,
) -> None:
    from salience.views import trials

    print_result(options, [table], notes, facts, lambda: trials.page(title, table, notes, chart()))
