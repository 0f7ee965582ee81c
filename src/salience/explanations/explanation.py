"""The explanation of one text by one method: plain Python, hashable, and easy to store as JSON or Parquet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from salience.core import text as _words
from salience.core.characters import to_json
from salience.core.frames import frame
from salience.core.shares import count_of
from salience.core.target import Target
from salience.core.text import Encoded, Span
from salience.errors import BadInput, choose

LABELS = 1000
"""The most labels whose probabilities are all kept; of more, such as those of a language model, only the highest."""

SUMS = ("completeness", "conservation", "efficiency")
"""Gaps between the sum of the scores and its theoretical value, in the unit of the explained value."""

if TYPE_CHECKING:
    from pandas import DataFrame

SHORT, NAMED = 40, 3
"""The characters of the text, and the number of words, in a repr."""

_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the text with its score."""

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """How much each token mattered to one number of one prediction.

    ``scores`` are unnormalised, one per token, special tokens included. ``signed`` scores are positive or negative for
    evidence for or against the target, others only measure importance; None if unknown. ``value`` is the explained
    number. ``gaps`` holds the differences between the scores and the properties they should have. ``unseen`` are the
    spans that were cut off because the text was too long; ``pair_at`` is where the second text of a pair begins.
    """

    text: str
    tokens: tuple[str, ...]
    offsets: tuple[Span, ...]
    special: tuple[bool, ...]
    scores: tuple[float, ...]
    target: Target
    value: float
    probabilities: Mapping[str, float]
    method: str
    settings: Mapping[str, Any]
    model: str
    signed: bool | None = None
    gaps: Mapping[str, float] = field(default_factory=lambda: _EMPTY)
    pair_at: int | None = None
    unseen: tuple[Span, ...] = ()
    id: str | None = None
    """The id of the text in its data set."""
    label: str | None = None
    """The true label of the text, if its data set names one."""

    def __repr__(self) -> str:
        strongest = sorted(self.words(), key=lambda w: -abs(w.score))[:NAMED]
        words = ", ".join(f"{w.text!r} {w.score:.3g}" for w in strongest)
        text = self.text if len(self.text) <= SHORT else f"{self.text[: SHORT - 1]}…"
        explained = f"{self.target.kind} of {self.target.label!r} = {self.value:.4g}"
        return f"<explanation of {text!r} by {self.method}: {explained}; {words}>"

    def __hash__(self) -> int:
        return hash((self.text, self.method, self.model, self.target, self.scores))

    @property
    def content(self) -> tuple[float, ...]:
        """The scores of the text tokens, without special tokens."""
        return tuple(score for score, special in zip(self.scores, self.special, strict=True) if not special)

    def words(self) -> list[Word]:
        """Return the words in order; the score of a word is the sum over its tokens.

        White space with a token of its own is a word too, so that no score is lost.
        """
        groups = _words.members(self.text, self.offsets, self.special)
        scores = _words.reduce(groups, self.scores)
        return [Word(self.text[a:b], a, b, s) for ((a, b), _), s in zip(groups, scores, strict=True)]

    def top(self, share: float = 0.1) -> list[Word]:
        """Return the highest-scoring share of words, at least one, highest first; ties in the order of the text.

        >>> explanation.top(0.2)                                            # doctest: +SKIP
        [Word(text='excellent', start=49, end=58, score=1.93)]
        """
        ranked = sorted(self.words(), key=lambda w: -w.score)
        return ranked[: count_of(share, len(ranked))]

    def binarised(self, share: float = 0.1) -> list[bool]:
        """Return for each word whether it is in the highest-scoring share."""
        chosen = {(w.start, w.end) for w in self.top(share)}
        return [(w.start, w.end) in chosen for w in self.words()]

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as a dictionary, as printed by ``--json``."""
        words = self.words()
        named = {name: value for name, value in (("id", self.id), ("label", self.label)) if value is not None}
        data: dict[str, Any] = {
            **named,
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
            "signed": self.signed,
            "gaps": dict(self.gaps),
        }
        paired = {} if self.pair_at is None else {"pair_at": self.pair_at}
        return data | paired | ({"unseen": [list(span) for span in self.unseen]} if self.unseen else {})

    def to_json(self) -> str:
        """Return the explanation as one line of JSON, in which every character is safe to print."""
        return to_json(self.to_dict())

    def to_frame(self, level: str = "word") -> "DataFrame":
        """Return a pandas DataFrame with one row per word, or per token if ``level`` is ``"token"``.

        >>> explanation.to_frame().nlargest(3, "score")                     # doctest: +SKIP
        """
        if choose(level, ("word", "token"), "level") == "word":
            words = self.words()
            return frame({name: [getattr(w, name) for w in words] for name in ("text", "start", "end", "score")})
        starts, ends = ([span[end] for span in self.offsets] for end in (0, 1))
        columns = {"text": self.tokens, "start": starts, "end": ends, "score": self.scores, "special": self.special}
        return frame(columns)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Explanation":
        """Create an explanation from the output of :meth:`to_dict`."""
        return cls(
            text=data["text"],
            tokens=tuple(data["tokens"]),
            offsets=tuple((int(a), int(b)) for a, b in data["offsets"]),
            special=tuple(data["special"]),
            scores=tuple(data["scores"]),
            target=Target(**data["target"]),
            value=data["value"],
            probabilities=data["probabilities"],
            method=data["method"],
            settings=data["settings"],
            model=data["model"],
            signed=data.get("signed"),
            gaps=data.get("gaps", _EMPTY),
            pair_at=data.get("pair_at"),
            unseen=tuple((int(a), int(b)) for a, b in data.get("unseen", ())),
            id=data.get("id"),
            label=data.get("label"),
        )

    def _repr_html_(self) -> str:
        from salience.views.html import fragment

        return fragment([self])


def directed(signed: bool | None, scores: Sequence[float]) -> bool:
    """Whether scores have a direction, for or against the target; if that is not recorded, the scores decide."""
    return any(score < 0 for score in scores) if signed is None else signed


def check_same_tokens(e: Explanation, encoded: Encoded, what: str) -> None:
    """Check that an explanation is of this text, split into the same tokens; ``what`` names it in the error."""
    if e.text != encoded.text:
        raise BadInput(
            f"{what} explains another text: {e.text[:60]!r}, not {encoded.text[:60]!r}; explain these texts again"
        )
    if e.tokens != encoded.tokens:
        raise BadInput(
            f"{what} was made with another tokenizer: its tokens begin {' '.join(e.tokens[:6])!r}, those of this model "
            f"{' '.join(encoded.tokens[:6])!r}; use a model with the same tokenizer, or explain these texts again"
        )
