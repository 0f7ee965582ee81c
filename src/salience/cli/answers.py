"""``salience explain`` for models that answer with a text: which word of the source made each word of the answer."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from salience.cli.checks import check_model
from salience.cli.options import Display, ModelOptions, Question, pairs
from salience.cli.output import check_distinct, written
from salience.core.characters import to_json, visible
from salience.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from salience.core.text import Text
    from salience.generation import AnswerExplanation


def explain_answers(
    texts: "Sequence[Text]", model: ModelOptions, question: Question, display: Display, *, kind: Any
) -> None:
    """Answer every text, and show which of its words made each word of the answer."""
    if question.against is not None:
        raise BadInput("--against names a label, and every word of an answer is explained; leave it out")
    check_distinct([path for _, path in display.files])
    check_model(model.model, **model.options)
    from salience.generation.explaining import explain_answers as explained
    from salience.generation.explaining import prepared
    from salience.models import load

    methods, settings = question.methods or None, pairs(question.settings)
    loaded = load(model.model, **model.options)
    prepared(loaded, methods, settings, None)
    loaded.executor.budget = model.budget or loaded.executor.budget
    results: list[AnswerExplanation] = []
    with ExitStack() as stack:
        files = [(name, stack.enter_context(written(path))) for name, path in display.files]
        for text in texts:
            results += (rows := explained(loaded, [str(text)], methods, kind=kind, **settings))
            if display.as_json:
                for e in rows:
                    click.echo(to_json(e.to_dict()))
            elif not display.files:
                _print(rows, display)
        for name, file in files:
            file.write(_document(name, results, display.level))
    for _, path in display.files:
        click.echo(visible(f"wrote {path}"), err=True)


def _print(rows: "Sequence[AnswerExplanation]", display: Display) -> None:
    from rich.console import Console

    from salience.views import answers, terminal

    console = Console(no_color=True if display.plain else None, highlight=False, emoji=False, markup=False)
    for e in rows:
        console.print(answers.terminal(e, display.level, colour=terminal.coloured(console)), soft_wrap=False)


def _document(kind: str, results: "Sequence[AnswerExplanation]", level: str) -> bytes:
    from salience.views import answers

    return (
        answers.page(results, level=level).encode() if kind == "html" else answers.picture(results, kind, level=level)
    )
