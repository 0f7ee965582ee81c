"""``salience explain --interactions``: what pairs of words do together."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from salience.cli.checks import INTERACTIONS, check_model
from salience.cli.options import Display, ModelOptions, Question, pairs
from salience.cli.output import check_distinct, progress_bar, written
from salience.core.characters import visible
from salience.errors import BadInput, choose

if TYPE_CHECKING:
    from salience.core.text import Text
    from salience.explanations.interactions import Interactions


def check_interactions(name: str, question: Question, display: Display, others: Sequence[str]) -> None:
    """Raise for a method that does not exist, and for options that have no meaning here."""
    choose(name, INTERACTIONS, "interaction method")
    given = {"--method": question.methods, "--layer": question.layer is not None, "--view": display.view != "text"}
    if extra := [*(option for option, value in given.items() if value), *others]:
        raise BadInput(f"--interactions explains pairs of words by a method of its own; leave out {extra[0]}")


def explain_pairs(
    name: str, texts: "Sequence[Text]", model: ModelOptions, question: Question, display: Display, quiet: bool
) -> None:
    """Explain the interactions of every text, and show them."""
    check_distinct([path for _, path in display.files])
    check_model(model.model, **model.options)
    with ExitStack() as stack:
        files = [(kind, stack.enter_context(written(path))) for kind, path in display.files]
        results = _explained(name, texts, model, question, display, quiet)
        for kind, file in files:
            file.write(_document(kind, results))
    for _, path in display.files:
        click.echo(visible(f"wrote {path}"), err=True)
    if display.as_json:
        for x in results:
            click.echo(x.to_json())
    elif not display.files:
        _print(results, display)


def _explained(
    name: str, texts: "Sequence[Text]", model: ModelOptions, question: Question, display: Display, quiet: bool
) -> "list[Interactions]":
    from salience.explanations.interactions import explain_interactions
    from salience.models import load

    settings = _settings(name, question, display)
    loaded = load(model.model, **model.options)
    loaded.executor.budget = model.budget or loaded.executor.budget
    asked: dict[str, Any] = {"target": question.target, "against": question.against, "kind": question.kind}
    with progress_bar(len(texts), quiet) as step:
        return explain_interactions(loaded, list(texts), name, **asked, report=lambda *_: step(), **settings)


def _settings(name: str, question: Question, display: Display) -> dict[str, Any]:
    """The settings of the method; the level of the display is the unit, and the seed is for methods that use one."""
    from salience.core.settings import settings_of
    from salience.explanations.explainer import prepare
    from salience.methods.interactions import find_interaction

    settings = {"unit": display.level} | pairs(question.settings)
    if question.seed is not None and "seed" in settings_of(find_interaction(name)):
        settings = {"seed": question.seed} | settings
    prepare(find_interaction(name), settings)  # rejects unknown settings before the model is loaded
    return settings


def _print(results: "Sequence[Interactions]", display: Display) -> None:
    from rich.console import Console

    from salience.views import interactions, terminal

    console = Console(no_color=True if display.plain else None, highlight=False, emoji=False, markup=False)
    paint = terminal.Paint(terminal.coloured(console), terminal.ground(os.environ))
    for x in results:
        console.print(interactions.terminal(x, paint=paint, width=console.width))


def _document(kind: str, results: "Sequence[Interactions]") -> bytes:
    from salience.views import interactions

    return interactions.page(results).encode() if kind == "html" else interactions.picture(results, kind)
