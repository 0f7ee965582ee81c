"""The result of explaining one text by one method: plain Python, hashable, ready for JSON and Parquet."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from types import MappingProxyType
from typing import Any

from salience import words as _words
from salience.words import Span

_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the text with its score."""

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True, slots=True)
class ExplainedTarget:
    """The explained number by name: of ``label``, or of ``label`` less ``against``, on the scale ``kind``."""

    label: str
    against: str | None
    kind: str
    column: int | None = field(default=None, compare=False, repr=False)
    """Of the model's output, for which a name may be ambiguous: several tokens can read alike. Not stored."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """How much each token mattered to one number of one prediction.

    ``scores`` are signed and unnormalised, one per token, special tokens included. ``value`` is the explained number.
    ``gaps`` tells how far the scores miss what the method's theory promises. ``unseen`` are the spans of the text
    that the model did not read, as it was too long; ``pair_at`` is where the second text of a pair begins.
    """

    text: str
    tokens: tuple[str, ...]
    offsets: tuple[Span, ...]
    special: tuple[bool, ...]
    scores: tuple[float, ...]
    target: ExplainedTarget
    value: float
    probabilities: Mapping[str, float]
    method: str
    settings: Mapping[str, Any]
    model: str
    gaps: Mapping[str, float] = field(default_factory=lambda: _EMPTY)
    pair_at: int | None = None
    unseen: tuple[Span, ...] = ()

    def __hash__(self) -> int:
        return hash((self.text, self.method, self.model, self.target, self.scores))

    @property
    def content(self) -> tuple[float, ...]:
        """The scores of the tokens that stand for text, special ones left out."""
        return tuple(score for score, special in zip(self.scores, self.special, strict=True) if not special)

    def words(self) -> list[Word]:
        """Words in the order of the text; a word's score is the sum of its tokens'.

        White space that has a token of its own is a word too, so that no score of the text is lost.
        """
        groups = _words.members(self.text, self.offsets, self.special)
        scores = _words.reduce(groups, self.scores)
        return [Word(self.text[a:b], a, b, s) for ((a, b), _), s in zip(groups, scores, strict=True)]

    def top(self, share: float = 0.1) -> list[Word]:
        """The highest-scoring share of words, at least one, highest first; ties in the order of the text.

        >>> explanation.top(0.2)                                            # doctest: +SKIP
        [Word(text='excellent', start=49, end=58, score=1.93)]
        """
        ranked = sorted(self.words(), key=lambda w: -w.score)
        return ranked[: max(1, ceil(share * len(ranked)))]

    def binarised(self, share: float = 0.1) -> list[bool]:
        """For each word, whether it is among the highest-scoring share."""
        chosen = {(w.start, w.end) for w in self.top(share)}
        return [(w.start, w.end) in chosen for w in self.words()]

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints."""
        words = self.words()
        data: dict[str, Any] = {
            "text": self.text,
            "method": self.method,
            "settings": dict(self.settings),
            "model": self.model,
            "target": {"label": self.target.label, "against": self.target.against, "kind": self.target.kind},
            "value": self.value,
            "probabilities": dict(self.probabilities),
            "tokens": list(self.tokens),
            "offsets": [list(span) for span in self.offsets],
            "special": list(self.special),
            "scores": list(self.scores),
            "words": [w.text for w in words],
            "word_scores": [w.score for w in words],
            "gaps": dict(self.gaps),
        }
        paired = {} if self.pair_at is None else {"pair_at": self.pair_at}
        return data | paired | ({"unseen": [list(span) for span in self.unseen]} if self.unseen else {})

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Explanation":
        """Read back what :meth:`to_dict` wrote."""
        return cls(
            text=data["text"],
            tokens=tuple(data["tokens"]),
            offsets=tuple((int(a), int(b)) for a, b in data["offsets"]),
            special=tuple(data["special"]),
            scores=tuple(data["scores"]),
            target=ExplainedTarget(**data["target"]),
            value=data["value"],
            probabilities=data["probabilities"],
            method=data["method"],
            settings=data["settings"],
            model=data["model"],
            gaps=data.get("gaps", _EMPTY),
            pair_at=data.get("pair_at"),
            unseen=tuple((int(a), int(b)) for a, b in data.get("unseen", ())),
        )

    def _repr_html_(self) -> str:
        from salience.views.html import fragment

        return fragment([self])
