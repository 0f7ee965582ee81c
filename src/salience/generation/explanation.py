"""The explanation of one answer by one method: plain Python, hashable, and easy to store as JSON or Parquet."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from salience.core.target import Kind
from salience.core.text import Part, Span, members
from salience.errors import BadInput
from salience.generation.segments import By, pattern, segments, sums


@dataclass(frozen=True, slots=True)
class AnswerTarget:
    """The explained number of each token of the answer; ``against`` is the answer that it is contrasted with."""

    kind: Kind = "log_probability"
    against: str | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the prompt with its score for the whole answer."""

    name: str
    text: str
    start: int
    end: int
    score: float


Row = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class AnswerExplanation:
    """Scores of every source token, of the prompt and of the answer so far, for every token of an answer.

    ``matrix`` has one row per token of the answer and one column per source token: those of the prompt, then those of
    the answer but the last; a token that comes later is None. ``total`` are the scores for the whole answer, ``values``
    the explained number of each of its tokens. ``source_offsets`` are spans of prompt + answer, ``answer_offsets`` of
    the answer. ``gaps`` hold, per token of the answer, the difference between the scores and a property that they
    should have; ``total_gaps`` hold the same for the total.
    """

    prompt: str
    answer: str
    method: str
    settings: Mapping[str, object]
    model: str
    target: AnswerTarget
    source_tokens: tuple[str, ...]
    source_offsets: tuple[Span, ...]
    answer_tokens: tuple[str, ...]
    answer_offsets: tuple[Span, ...]
    matrix: tuple[Row, ...]
    """Empty if only the whole answer was explained."""
    total: tuple[float, ...]
    gaps: Mapping[str, tuple[float, ...]]
    signed: bool
    additive: bool = True
    """Whether scores of tokens add up to those of words; if not, a word has the largest score of its tokens."""
    prompt_tokens: int = 0
    """How many of the source tokens are those of the prompt."""
    source_special: tuple[bool, ...] = ()
    """Source tokens of a chat template and the like, which are never erased and never ranked."""
    parts: tuple[Part, ...] = ()
    """The messages of a chat, or the passages of a context, as spans of the prompt."""
    values: tuple[float, ...] = ()
    total_gaps: Mapping[str, float] = field(default_factory=dict[str, float])
    generation: Mapping[str, object] = field(default_factory=dict[str, object])
    """How the answer was generated; empty if it was given."""
    rule: str | None = None
    """The kind of segments to show, if one was asked for."""

    # ------------------------------------------------------------------------------------------------------ segments

    def by(self, rule: By) -> list[Segment]:
        """Return the segments of the prompt of one kind, with their scores for the whole answer, in order.

        >>> explanation.by("sentence")                                                  # doctest: +SKIP
        """
        return self._scored(segments(self.prompt, rule, self.parts))

    def segments(self, expression: str) -> list[Segment]:
        """Return the matches of a regular expression in the prompt, with their scores for the whole answer."""
        return self._scored(segments(self.prompt, pattern(expression), self.parts))

    def _scored(self, found: Sequence[Part]) -> list[Segment]:
        size = self.prompt_tokens
        special = self._special[:size]
        scores, _ = sums(found, self.source_offsets[:size], self.total[:size], special)
        return [
            Segment(part.name, self.prompt[part.start : part.end], part.start, part.end, score)
            for part, score in zip(found, scores, strict=True)
        ]

    @property
    def template(self) -> float:
        """The scores of special and template tokens, which belong to no segment, added up."""
        return float(sum(score for score, special in zip(self.total, self._special, strict=True) if special))

    @property
    def _special(self) -> tuple[bool, ...]:
        return self.source_special or tuple(a == b for a, b in self.source_offsets)

    # ------------------------------------------------------------------------------------------------------ the answer

    def answer_span(self, text: str) -> "AnswerExplanation":
        """Return the explanation of a part of the answer alone: the rows of its tokens, and their sum as the total.

        >>> explanation.answer_span("New York")                                          # doctest: +SKIP
        """
        start = self.answer.find(text) if text else -1
        if start < 0:
            raise BadInput(f"{text!r} is not part of the answer {self.answer!r}")
        self._check_matrix("a part of the answer")
        end = start + len(text)
        rows = [n for n, (a, b) in enumerate(self.answer_offsets) if a < end and b > start]
        matrix = tuple(self.matrix[n] for n in rows)
        return replace(
            self,
            answer_tokens=tuple(self.answer_tokens[n] for n in rows),
            answer_offsets=tuple(self.answer_offsets[n] for n in rows),
            matrix=matrix,
            values=tuple(self.values[n] for n in rows) if self.values else (),
            total=tuple(self._joined([v or 0.0 for v in column]) for column in zip(*matrix, strict=True)),
            gaps={name: tuple(values[n] for n in rows) for name, values in self.gaps.items()},
            total_gaps={},
        )

    def through_answer(self) -> "AnswerExplanation":
        """Return the scores of the prompt alone, with those of earlier answer tokens passed on to what made them.

        Each row is made a share of the positive scores, A. From the last to the first, the share of every earlier token
        k of the answer is distributed as k's own: r ← r + r_k A_k. So a row says how much the answer's token is due to
        each token of the prompt, directly or through the answer's own reasoning. The total is the mean of the rows.

        Paper: as the attributions of CAGE; FlashTrace, arXiv:2602.01914
        """
        from salience.generation.hops import hops

        self._check_matrix("the way through the answer")
        size = self.prompt_tokens
        if len(self.source_tokens) - size != len(self.matrix) - 1:
            raise BadInput(
                "the way through the answer needs scores of the answer's own tokens, which this method has not"
            )
        rows = hops([[v or 0.0 for v in row] for row in self.matrix], size)
        count = max(1, len(rows))
        return replace(
            self,
            matrix=tuple((*row, *(None for _ in range(len(self.source_tokens) - size))) for row in rows),
            total=(*(sum(column) / count for column in zip(*rows, strict=True)), *(0.0,) * (len(self.total) - size)),
            settings={**self.settings, "through_answer": True},
            gaps={},
            total_gaps={},
            signed=False,
        )

    def _check_matrix(self, what: str) -> None:
        if not self.matrix:
            raise BadInput(f"{what} needs a score for every token of the answer; explain it with per='token'")

    # ------------------------------------------------------------------------------------------------------ other forms

    def words(self) -> tuple[list[str], list[str], list[list[float]]]:
        """Source words, answer words, and the matrix over them: a mean over the tokens of each word of the answer."""
        own = self.source_words()
        theirs = members(self.answer, self.answer_offsets, [a == b for a, b in self.answer_offsets])
        matrix = [
            [
                sum(self._joined([self.matrix[t][s] or 0.0 for s in columns]) for t in rows) / len(rows)
                for _, columns in own
            ]
            for _, rows in theirs
        ]
        return [word for word, _ in own], [self.answer[a:b] for (a, b), _ in theirs], matrix

    def word_totals(self) -> list[tuple[str, float]]:
        """The words of the prompt, then those of the answer so far, with their scores for the whole answer."""
        return [(word, self._joined([self.total[s] for s in tokens])) for word, tokens in self.source_words()]

    def source_words(self) -> list[tuple[str, list[int]]]:
        """The words of the prompt, then of the answer so far, each with its source tokens; special tokens have none."""
        size, start, special = self.prompt_tokens or len(self.source_tokens), len(self.prompt), self._special
        said = [(a - start, b - start) for a, b in self.source_offsets[size:]]
        before = members(self.prompt, self.source_offsets[:size], special[:size])
        after = members(self.answer, said, special[size:])
        return [
            *((self.prompt[a:b], tokens) for (a, b), tokens in before),
            *((self.answer[a:b], [size + n for n in tokens]) for (a, b), tokens in after),
        ]

    def _joined(self, scores: list[float]) -> float:
        return float(sum(scores) if self.additive else max(scores))

    def to_dict(self) -> dict[str, Any]:
        """The explanation in plain Python."""
        data = asdict(self)
        data["segments"] = None if self.rule is None else [asdict(s) for s in self._ruled(self.rule)]
        data["template"] = self.template
        return data

    def _ruled(self, rule: Any) -> list[Segment]:
        return self.by(rule)
