"""``salience explain`` for models that answer with a text: which parts of the prompt made each token of the answer."""

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from salience.cli.checks import ANSWER_METHODS, check_model
from salience.cli.datasets import print_estimate, run_data
from salience.cli.options import AnswerOptions, DataOptions, Display, ModelOptions, Question, pairs, source_of
from salience.cli.output import check_distinct, progress_bar, written
from salience.core.characters import visible
from salience.errors import BadInput, choose

if TYPE_CHECKING:
    from salience.core.types import Model
    from salience.generation import AnswerExplanation, ContextDependence

SINGLE = {
    "--answer": "name the column of answers with --answer-column",
    "--against-answer": "name the column of the answers to compare with by --against-answer-column",
    "--chat": "name the column of chats with --chat-column",
    "--context": "name the column of passages with --context-column",
    "--token": "leave it out",
    "--dependence": "leave it out",
}
"""Options about a single prompt, and what to do instead for a data set."""
OF_DATA = ("--answer-column", "--against-answer-column", "--chat-column", "--context-column")


NOT_DEPENDENCE = (
    "--against-answer", "--by", "--generation", "--per", "--segments", "--through-answer", "--token",
)  # fmt: skip
"""Options that have no meaning for the dependence on a context."""


def answers_in_words(name: str) -> bool:
    """Whether a model is an encoder-decoder of our own, which has no prediction but its answer."""
    from salience.models.files import folder_of, is_seq2seq

    return is_seq2seq(folder_of(name))


@dataclass(frozen=True, slots=True)
class AnswerCall:
    """All options of one call, with the names of those about answers that were given."""

    model: ModelOptions
    question: Question
    answer: AnswerOptions
    display: Display
    data: DataOptions
    kind: Any
    given: Sequence[str]

    def check(self, data_only: Sequence[str]) -> None:
        """Raise for options that exclude each other, and for a model that does not answer."""
        question, answer, given = self.question, self.answer, self.given
        if question.target is not None:
            raise BadInput("--target names a label or the next token; name the answer to explain with --answer")
        if question.against is not None:
            raise BadInput("--against names a label; name the answer to compare with by --against-answer")
        if question.layer == "all":
            raise BadInput("--layer all explains a prediction layer by layer; choose one layer for an answer")
        if answer.by is not None and answer.segments is not None:
            raise BadInput("choose one of --by and --segments; they exclude each other")
        if generated := [name for name in given if name in ("--generate", "--generation")]:
            for other in ("--answer", "--answer-column"):
                if other in given:
                    raise BadInput(f"{generated[0]} generates the answer, and {other} gives it; choose one of them")
        if answer.token is not None and (self.display.as_json or self.display.files or answer.per == "answer"):
            raise BadInput(
                "--token chooses what the terminal colours; leave it out with --json, --html and --per answer"
            )
        self._check_data(data_only)
        self._check_dependence()
        if not answers_in_words(self.model.model):
            for name in question.methods:
                choose(name, ANSWER_METHODS, "method", "an answer")
        _check_answers(self.model, given)

    def _check_data(self, data_only: Sequence[str]) -> None:
        if self.data.data is None:
            if extra := [*data_only, *(name for name in self.given if name in OF_DATA)]:
                raise BadInput(f"{extra[0]} is only used with --data, which names a whole data set")
            return
        if single := [name for name in self.given if name in SINGLE]:
            raise BadInput(f"{single[0]} is for a single prompt; with --data, {SINGLE[single[0]]}")
        if self.answer.against_answer_column is not None and self.answer.answer_column is None:
            raise BadInput("--against-answer-column compares given answers; name their column with --answer-column")
        if self.answer.chat_column is not None and self.answer.context_column is not None:
            raise BadInput("a chat holds its own context; choose one of --chat-column and --context-column")
        if self.data.target_column is not None:
            raise BadInput("--target-column names labels; name the column of answers with --answer-column")

    def _check_dependence(self) -> None:
        if not self.answer.dependence or self.data.data is not None:
            return
        if self.answer.passages is None:
            raise BadInput("--dependence compares the answer with and without its context; name it with --context")
        if extra := [name for name in self.given if name in NOT_DEPENDENCE] or [
            f"--{k}" for k, _ in self.display.files
        ]:
            raise BadInput(f"--dependence prints the tokens that depend on the context; leave out {extra[0]}")
        if self.kind != "log_probability" or len(self.question.methods) > 1:
            raise BadInput(
                "--dependence explains log-probabilities by one method; leave out --kind, and name one method"
            )

    def load(self) -> "Model":
        from salience.models import load

        loaded = load(self.model.model, **self.model.options)
        loaded.executor.budget = self.model.budget or loaded.executor.budget
        return loaded

    @property
    def methods(self) -> tuple[str, ...] | None:
        return self.question.methods or None

    def settings(self) -> dict[str, Any]:
        """The settings of the methods; the seed is included only if a method uses one."""
        from salience.core.settings import settings_of
        from salience.generation import ANSWER_METHODS

        question = self.question
        settings = pairs([] if question.layer is None else [f"layer={question.layer}"], "--layer")
        settings |= pairs(question.settings)
        seeded = [m for m in ANSWER_METHODS if m.__name__ in question.methods and "seed" in settings_of(m)]
        return {"seed": question.seed} | settings if question.seed is not None and seeded else settings

    def form(self) -> dict[str, Any]:
        """The arguments of ``explain_answers`` about the form of the explanation."""
        answer = self.answer
        return {
            "kind": self.kind,
            "by": answer.by,
            "segments": answer.segments,
            "per": "answer" if answer.against_answers else answer.per,
            "through_answer": answer.through_answer,
        }

    def tokens(self) -> int:
        """The most tokens of an answer."""
        from salience.generation.explaining import GENERATED

        return self.answer.generate or GENERATED


def _check_answers(model: ModelOptions, given: Sequence[str]) -> None:
    """Raise for a classifier, as far as its files say."""
    check_model(model.model, **model.options)
    from salience.models.files import configuration, folder_of, is_pooled

    folder = folder_of(model.model)
    heads = " ".join(configuration(folder).get("architectures") or ())
    if is_pooled(folder) or "ForSequenceClassification" in heads:
        raise BadInput(
            f"{given[0]} needs a language model, and {model.model} is a classifier; leave it out, or name a language "
            "model with --model"
        )


# ------------------------------------------------------------------------------------------------------ prompts


def explain_answers(call: AnswerCall, texts: Sequence[str]) -> None:
    """Explain the answer to every prompt, and show it."""
    prompts = _prompts(texts, call.answer)
    answers = _one_each(call.answer.answers, len(prompts), "--answer")
    against = _one_each(call.answer.against_answers, len(prompts), "--against-answer")
    with answer_sink(call.display, call.answer.token) as show:
        from salience.generation.explaining import explain_each_answer, requested

        how, settings = call.answer.how, call.settings()
        loaded = call.load()
        request = requested(loaded, call.methods, settings, **call.form())
        with progress_bar(len(prompts), call.data.quiet) as step:
            for row in explain_each_answer(loaded, prompts, request, answers, against, call.tokens(), how):
                step()
                show(row)


def show_dependence(call: AnswerCall, texts: Sequence[str]) -> None:
    """Show which tokens of the answer to each question depend on the context."""
    if not texts:
        raise BadInput("no TEXT; pass a question about the passages of --context")
    from salience.data.prompts import read_passages

    passages, answers = read_passages(str(call.answer.passages)), _one_each(call.answer.answers, len(texts), "--answer")
    from salience.core.characters import to_json
    from salience.explanations.explainer import default_method
    from salience.generation import context_dependence

    settings, loaded = call.settings(), call.load()
    (method,) = call.methods or (default_method(loaded),)
    with progress_bar(len(texts), call.data.quiet) as step:
        for question, answer in zip(texts, answers or [None] * len(texts), strict=True):
            result = context_dependence(loaded, question, passages, answer, method, generate=call.tokens(), **settings)
            step()
            if call.display.as_json:
                click.echo(to_json(asdict(result)))
            else:
                _print_dependence(result, call.display)


def _print_dependence(result: "ContextDependence", display: Display) -> None:
    from rich.console import Console

    from salience.views.dependence import terminal

    console = Console(no_color=True if display.plain else None, highlight=False, emoji=False, markup=False)
    console.print(terminal(result, width=console.width))


def _prompts(texts: Sequence[str], answer: AnswerOptions) -> Sequence[object]:
    from salience.core.prompts import Prompt
    from salience.data.prompts import read_chat, read_passages

    if answer.chat is not None:
        if texts or answer.passages is not None:
            raise BadInput("--chat is the whole prompt; leave out TEXT and --context")
        return [read_chat(answer.chat)]
    if not texts:
        raise BadInput("no TEXT; pass a prompt, a chat with --chat, or a whole data set with --data and --out")
    if answer.passages is None:
        return texts
    passages = read_passages(answer.passages)
    return [Prompt.with_context(text, passages) for text in texts]


def _one_each(answers: Sequence[str], prompts: int, option: str) -> Sequence[str] | None:
    if answers and len(answers) != prompts:
        raise BadInput(f"{option} was given {len(answers)} times for {prompts} prompts; pass it once per prompt")
    return answers or None


Show = Callable[[Sequence["AnswerExplanation"]], None]


@contextmanager
def answer_sink(display: Display, token: str | None = None) -> Generator[Show]:
    """Show explanations prompt by prompt. Files are opened before the work starts and appear once complete."""
    check_distinct([path for _, path in display.files])
    kept: list[AnswerExplanation] = []

    def show(row: "Sequence[AnswerExplanation]") -> None:
        if display.as_json:
            for e in row:
                click.echo(e.to_json())
        elif not display.files:
            _print(row, display, token)
        if display.files:
            kept.extend(row)

    with ExitStack() as stack:
        files = [(kind, stack.enter_context(written(path))) for kind, path in display.files]
        yield show
        for kind, file in files:
            file.write(_document(kind, kept, display.level))
    for _, path in display.files:
        click.echo(visible(f"wrote {path}"), err=True)


def _print(rows: "Sequence[AnswerExplanation]", display: Display, token: str | None) -> None:
    """Print explanations within the width of the terminal."""
    from rich.console import Console

    from salience.views import answers, terminal

    console = Console(no_color=True if display.plain else None, highlight=False, emoji=False, markup=False)
    paint = terminal.Paint(terminal.coloured(console), terminal.ground(os.environ))
    for e in rows:
        console.print(answers.terminal(e, display.level, paint=paint, width=console.width, token=token))


def _document(kind: str, results: "Sequence[AnswerExplanation]", level: str) -> bytes:
    """A page or an image of explanations."""
    from salience.views import answers

    return (
        answers.page(results, level=level).encode() if kind == "html" else answers.picture(results, kind, level=level)
    )


# ------------------------------------------------------------------------------------------------------ data sets


def explain_answer_data(call: AnswerCall) -> None:
    """Explain the answers to a whole data set into a run folder."""
    data = replace(call.data, target_column=call.answer.answer_column)
    named = {name: getattr(call.answer, name) for name in ("chat_column", "context_column", "against_answer_column")}
    source = source_of(str(data.data), {**asdict(data), **named})
    if data.out is None and not data.dry_run:
        raise BadInput("--data needs --out, the run folder to write, or --dry-run")
    from salience.generation.runs import ROWS, answering
    from salience.models.loading import Checkpoint
    from salience.runs.driver import RunOptions, estimate_task, process_data

    task = answering(call.methods, call.settings(), call.form(), call.tokens(), call.answer.how)
    model, as_json = Checkpoint(call.model.model, call.model.options), call.display.as_json
    if data.dry_run:
        print_estimate(
            data, as_json, lambda report: estimate_task(task, model, source, limit=data.limit, report=report)
        )
        return
    work: dict[str, Any] = {**data.work, "rows_per_part": data.rows_per_part or ROWS, "budget": call.model.budget}
    run_data(
        data,
        as_json,
        lambda report: process_data(task, model, source, str(data.out), RunOptions(**work, report=report)),
    )
