"""The content of every view of an explained answer: words or tokens, their scores, and how sure the model was."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isfinite
from typing import TYPE_CHECKING

from salience.core.target import Target
from salience.core.text import Span
from salience.errors import BadInput
from salience.explanations.explanation import Explanation
from salience.views.sheet import label

if TYPE_CHECKING:
    from salience.generation import AnswerExplanation, Segment

Grid = tuple[list[str], list[str], list[list[float]]]
"""Words of the source, words of the answer, and their scores."""

WHOLE = "whole answer"
SURE, UNSURE = 0.9, 0.1
"""The model was sure of a word from the one probability on, and unsure below the other."""


def grid(e: "AnswerExplanation", level: str = "word") -> Grid:
    """The rows and columns to show: words, or the tokens of the model; one row if only the whole was explained."""
    if not e.matrix:
        names = [(word, score) for word, score in e.word_totals()]
        if level == "token":
            names = list(zip(e.source_tokens, e.total, strict=True))
        return [name for name, _ in names], [WHOLE], [[score for _, score in names]]
    if level == "word":
        return e.words()
    return list(e.source_tokens), list(e.answer_tokens), [[v or 0.0 for v in row] for row in e.matrix]


def segment_grid(e: "AnswerExplanation") -> Grid:
    """The segments that were asked for across, and the words of the answer down: a mean over the tokens of each."""
    segments = e.chosen_segments() or []
    names = [f"{one.name}: {_short(' '.join(one.text.split()))}" for one in segments]
    if not e.matrix:
        return names, [WHOLE], [[one.score for one in segments]]
    rows, words = e.segment_matrix(), e.answer_words()
    means = [[sum(column) / len(own) for column in zip(*(rows[t] for t in own), strict=True)] for _, own in words]
    return names, [e.answer[a:b] for (a, b), _ in words], means


def relative(matrix: Sequence[Sequence[float]], *, signed: bool) -> list[list[float]]:
    """Each row on a scale of its own: its strongest score is 1 or −1. Scores that are all negative are shown from the
    lowest, which is 0.
    """
    rows: list[list[float]] = []
    for row in matrix:
        low = min(row) if signed and max(row) < 0 else 0.0
        size = max((abs(value - low) for value in row), default=0.0)
        rows.append([(value - low) / size if size else 0.0 for value in row])
    return rows


@dataclass(frozen=True, slots=True)
class AnswerWord:
    """A word or token of the answer, with its tokens and its probability, if it is known; ``name`` if it is empty."""

    span: Span
    tokens: tuple[int, ...]
    probability: float | None
    name: str = ""

    @property
    def sure(self) -> bool:
        return self.probability is not None and self.probability >= SURE

    @property
    def unsure(self) -> bool:
        return self.probability is not None and self.probability < UNSURE


def answer_words(e: "AnswerExplanation", level: str = "word") -> list[AnswerWord]:
    """The rows of :func:`grid` as places in the answer. The probability of a word is that of all its tokens."""
    if level == "word":
        return [AnswerWord(span, tuple(tokens), _probability(e, tokens)) for span, tokens in e.answer_words()]
    return [
        AnswerWord((a, b), (n,), _probability(e, [n]), "" if a < b else e.answer_tokens[n])
        for n, (a, b) in enumerate(e.answer_offsets)
    ]


def _probability(e: "AnswerExplanation", tokens: Sequence[int]) -> float | None:
    if not e.values or e.target.kind == "logit":
        return None
    result = 1.0
    for n in tokens:
        result *= exp(min(0.0, e.values[n])) if e.target.kind == "log_probability" else e.values[n]
    return result


def chosen(e: "AnswerExplanation", token: str | None) -> "AnswerExplanation":
    """The explanation of one token of the answer, by its number from 1, or of a part of it; of all without either."""
    if token is None:
        return e
    if not token.isdecimal() or not 1 <= int(token) <= len(e.answer_tokens):
        if token.isdecimal() and token not in e.answer:
            raise BadInput(f"there is no token {token} of the answer; its {len(e.answer_tokens)} tokens count from 1")
        return e.answer_span(token)
    return e.answer_tokens_at([int(token) - 1])


def prompt_sheet(e: "AnswerExplanation", level: str = "word") -> Explanation:
    """The prompt with its scores for the whole answer, as the explanation of a text: one score per word or token."""
    size = e.prompt_tokens or len(e.source_tokens)
    if level == "word":
        words = e.prompt_words()
        tokens, offsets = tuple(e.prompt[a:b] for (a, b), _ in words), tuple(span for span, _ in words)
        scores, special = tuple(score for _, score in words), (False,) * len(words)
    else:
        tokens, offsets, special = e.source_tokens[:size], e.source_offsets[:size], e.special[:size]
        scores = e.total[:size]
    return Explanation(
        text=e.prompt,
        tokens=tokens,
        offsets=offsets,
        special=special,
        scores=scores,
        target=Target(e.answer, e.target.against, e.target.kind),
        value=float(sum(e.values)),
        probabilities={},
        method=e.method,
        settings=e.settings,
        model=e.model,
        signed=e.signed,
        gaps=e.total_gaps,
    )


def explained_number(e: "AnswerExplanation") -> str:
    """The explained number in words."""
    against = "" if e.target.against is None else f" against {label(_short(e.target.against))}"
    value = f" = {sum(e.values):.4g}" if e.values and isfinite(sum(e.values)) else ""
    return f"{e.target.kind.replace('_', ' ')} of the answer{against}{value}"


LONG = 40


def _short(text: str) -> str:
    return text if len(text) <= LONG else f"{text[: LONG - 1]}…"


def ranked_segments(e: "AnswerExplanation") -> "list[Segment]":
    """The segments that were asked for, the strongest first; none if none were."""
    return sorted(e.chosen_segments() or [], key=lambda s: -abs(s.score))


def ranked_words(e: "AnswerExplanation", count: int) -> list[tuple[str, float]]:
    """The strongest words of the prompt and of the answer, which are named as such."""
    size = len(e.prompt_words())
    named = [
        (label(word) if n < size else f"{label(word)} (answer)", score)
        for n, (word, score) in enumerate(e.word_totals())
    ]
    return sorted(named, key=lambda item: -abs(item[1]))[:count]


def score_text(e: "AnswerExplanation", score: float, form: str = ".3g") -> str:
    """A score in digits; a + is written only where it means something."""
    return format(score, f"+{form}" if e.signed else form)
