"""The explanation of one answer by one method: plain Python, hashable, and easy to store as JSON or Parquet."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, cast

from salience.core.characters import to_json
from salience.core.target import Kind
from salience.core.text import Part, Span, members
from salience.errors import BadInput
from salience.generation.segments import By, owners, pattern, segments, sums


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


@dataclass(frozen=True, slots=True, repr=False)
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
    rule: By | None = None
    """The kind of segments to show, if one was asked for."""
    expression: str | None = None
    """The regular expression of the segments to show, if one was asked for."""
    answer_ids: tuple[int, ...] = ()
    """The token ids of the answer, with which it can be explained again."""

    def __repr__(self) -> str:
        strongest = sorted(self.word_totals(), key=lambda word: -abs(word[1]))[:NAMED]
        words = ", ".join(f"{word!r} {score:.3g}" for word, score in strongest)
        return f"<explanation of {_short(self.answer)!r} after {_short(self.prompt)!r} by {self.method}: {words}>"

    def __hash__(self) -> int:
        return hash((self.prompt, self.answer, self.method, self.model, self.target, self.total))

    # ------------------------------------------------------------------------------------------------------ segments

    def by(self, rule: By) -> list[Segment]:
        """Return the segments of the prompt of one kind, with their scores for the whole answer, in order.

        >>> explanation.by("sentence")                                                  # doctest: +SKIP
        """
        return self._scored(segments(self.prompt, rule, self.parts, self._read))

    def segments(self, expression: str) -> list[Segment]:
        """Return the matches of a regular expression in the prompt, with their scores for the whole answer."""
        return self._scored(segments(self.prompt, pattern(expression), self.parts, self._read))

    def chosen_segments(self) -> list[Segment] | None:
        """The segments that the explanation was asked for, or None."""
        chosen = self._chosen()
        return None if chosen is None else self._scored(chosen)

    @property
    def _read(self) -> tuple[Span, ...]:
        """The offsets of the tokens of the prompt."""
        return self.source_offsets[: self.prompt_tokens]

    def segment_matrix(self) -> list[list[float]]:
        """The scores of the chosen segments for each token of the answer: one row per token."""
        chosen, size = self._chosen() or [], self.prompt_tokens
        special = self.special[:size]
        return [sums(chosen, self._read, [v or 0.0 for v in row[:size]], special)[0] for row in self.matrix]

    def _chosen(self) -> list[Part] | None:
        rule = self.rule if self.expression is None else pattern(self.expression)
        return None if rule is None else segments(self.prompt, rule, self.parts, self._read)

    def _scored(self, chosen: Sequence[Part]) -> list[Segment]:
        size = self.prompt_tokens
        special = self.special[:size]
        scores, _ = sums(chosen, self._read, self.total[:size], special)
        return [
            Segment(part.name, self.prompt[part.start : part.end], part.start, part.end, score)
            for part, score in zip(chosen, scores, strict=True)
        ]

    @property
    def template(self) -> float:
        """The scores of special and template tokens, which belong to no segment, added up."""
        return float(sum(score for score, special in zip(self.total, self.special, strict=True) if special))

    @property
    def outside(self) -> float:
        """The scores of the prompt's other tokens in none of the chosen segments, such as blank lines, added up."""
        chosen, size = self._chosen(), self.prompt_tokens
        if chosen is None:
            return 0.0
        own = zip(owners(chosen, self._read), self.special[:size], self.total[:size], strict=True)
        return float(sum(score for owner, special, score in own if owner is None and not special))

    @property
    def special(self) -> tuple[bool, ...]:
        """Which source tokens are special: those of a template, or without characters."""
        return self.source_special or tuple(a == b for a, b in self.source_offsets)

    # ------------------------------------------------------------------------------------------------------ the answer

    def answer_span(self, text: str) -> "AnswerExplanation":
        """Return the explanation of a part of the answer alone: the rows of its tokens, and their sum as the total.

        >>> explanation.answer_span("New York")                                          # doctest: +SKIP
        """
        start = self.answer.find(text) if text else -1
        if start < 0:
            raise BadInput(f"{text!r} is not part of the answer {self.answer!r}")
        end = start + len(text)
        return self.answer_tokens_at([n for n, (a, b) in enumerate(self.answer_offsets) if a < end and b > start])

    def answer_tokens_at(self, rows: Sequence[int]) -> "AnswerExplanation":
        """Return the explanation of some tokens of the answer alone, by their numbers from 0."""
        self._check_matrix("a part of the answer")
        matrix = tuple(self.matrix[n] for n in rows)
        return replace(
            self,
            answer_tokens=tuple(self.answer_tokens[n] for n in rows),
            answer_offsets=tuple(self.answer_offsets[n] for n in rows),
            answer_ids=tuple(self.answer_ids[n] for n in rows) if self.answer_ids else (),
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

        The recursion is that of CAGE, as in FlashTrace.
        """
        from salience.generation.hops import check_passed_on, hops

        self._check_matrix("the way through the answer")
        check_passed_on(self.method, self.settings)
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
        theirs = self.answer_words()
        matrix = [
            [
                sum(self._joined([self.matrix[t][s] or 0.0 for s in columns]) for t in rows) / len(rows)
                for _, columns in own
            ]
            for _, rows in theirs
        ]
        return [word for word, _ in own], [self.answer[a:b] for (a, b), _ in theirs], matrix

    def prompt_words(self) -> list[tuple[Span, float]]:
        """The words of the prompt, as spans of it, with their scores for the whole answer."""
        size = self.prompt_tokens or len(self.source_tokens)
        groups = members(self.prompt, self.source_offsets[:size], self.special[:size])
        return [(span, self._joined([self.total[s] for s in tokens])) for span, tokens in groups]

    def answer_words(self) -> list[tuple[Span, list[int]]]:
        """The words of the answer, as spans of it, each with its tokens."""
        return members(self.answer, self.answer_offsets, [a == b for a, b in self.answer_offsets])

    def word_totals(self) -> list[tuple[str, float]]:
        """The words of the prompt, then those of the answer so far, with their scores for the whole answer."""
        return [(word, self._joined([self.total[s] for s in tokens])) for word, tokens in self.source_words()]

    def source_words(self) -> list[tuple[str, list[int]]]:
        """The words of the prompt, then of the answer so far, each with its source tokens. Special ones have none."""
        size, start, special = self.prompt_tokens or len(self.source_tokens), len(self.prompt), self.special
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
        """Return the explanation as a dictionary of plain Python, as printed by ``--json``."""
        data = asdict(self)
        chosen = self.chosen_segments()
        data["segments"] = None if chosen is None else [asdict(s) for s in chosen]
        data |= {"template": self.template, "outside": self.outside}
        return {name: _listed(value) for name, value in data.items()}

    def to_json(self) -> str:
        """Return the explanation as one line of JSON, in which every character is safe to print."""
        return to_json(self.to_dict())

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "AnswerExplanation":
        """Create an explanation from the output of :meth:`to_dict`."""
        values = {one.name: _tupled(data[one.name]) for one in fields(cls) if one.name in data}
        values["target"] = AnswerTarget(**data["target"])
        values["parts"] = tuple(Part(**part) for part in data.get("parts", ()))
        return cls(**values)

    def _repr_html_(self) -> str:
        from salience.views.answers import fragment

        return fragment([self])


NAMED, SHORT = 3, 40
"""The number of words, and the characters of prompt and answer, in a repr."""


def _short(text: str) -> str:
    return text if len(text) <= SHORT else f"{text[: SHORT - 1]}…"


def _listed(value: Any) -> Any:
    """A value with lists instead of tuples, as JSON has them."""
    if isinstance(value, Mapping):
        return {str(name): _listed(one) for name, one in cast(Mapping[Any, Any], value).items()}
    return list(map(_listed, cast(list[Any], value))) if isinstance(value, list | tuple) else value


def _tupled(value: Any) -> Any:
    """The reverse, down to the mappings' own values."""
    if isinstance(value, Mapping):
        return {name: _tupled(one) for name, one in cast(Mapping[Any, Any], value).items()}
    return tuple(map(_tupled, cast(list[Any], value))) if isinstance(value, list | tuple) else value
