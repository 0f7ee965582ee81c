"""Words that a masked language model would put at a place, and how likely it finds a text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from salience.core.passes import forward
from salience.core.rows import each_text
from salience.core.text import Encoded, Span
from salience.core.types import Batch, Decodes, LanguageHead, Model, Spells
from salience.data.examples import encode_silently
from salience.errors import UnsupportedModel
from salience.models.loading import load_to_train

MORE = 4
"""How many times more tokens than words are looked at: pieces of words and punctuation are passed over."""


@dataclass(frozen=True, slots=True, eq=False)
class Filler:
    """A masked language model: an encoder with its language model head."""

    model: Model
    head: LanguageHead

    def words(self, text: str, places: Sequence[tuple[Span, bool]], count: int) -> list[list[str]]:
        """Return the ``count`` likeliest words for every place: in place of the word at a span, or before it."""
        (encoded,) = encode_silently(self.model, [text])
        masked = [self._masked(encoded, span, insert=insert) for span, insert in places]
        known = [number for number, one in enumerate(masked) if one is not None]
        logits = self._logits([one for one in masked if one is not None])
        words: list[list[str]] = [[] for _ in places]
        for number, row in zip(known, logits, strict=True):
            words[number] = self._whole_words(row.topk(min(MORE * count, len(row))).indices.tolist())[:count]
        return words

    def log_probability(self, text: str) -> float:
        """Return the mean log-probability of the tokens, each masked in turn (the pseudo-log-likelihood per token).

        Paper: Salazar et al. 2020, arXiv:1910.14659
        """
        (encoded,) = encode_silently(self.model, [text])
        places = [t for t, special in enumerate(encoded.special) if not special]
        rows = [(_replaced(encoded, t, t + 1, self._mask), t) for t in places]
        logits = self._logits(rows)
        own = torch.tensor([encoded.ids[t] for t in places])
        return float(logits.log_softmax(-1).gather(1, own[:, None]).mean())

    @property
    def _mask(self) -> int:
        return self.model.replacements["mask"]

    def _masked(self, encoded: Encoded, span: Span, *, insert: bool) -> tuple[Encoded, int] | None:
        """The text with one mask at a place, and the position of the mask; None if the text was cut before it."""
        inside = [
            t
            for t, ((a, b), special) in enumerate(zip(encoded.offsets, encoded.special, strict=True))
            if not special and a < span[1] and b > span[0]
        ]
        if not inside:
            return None
        end = inside[0] if insert else inside[-1] + 1
        return self._fitting(_replaced(encoded, inside[0], end, self._mask), inside[0]), inside[0]

    def _fitting(self, encoded: Encoded, kept: int) -> Encoded:
        """A text with one more token, without its last one if it is now longer than the model can read."""
        if len(encoded) <= getattr(self.model, "window", len(encoded)):
            return encoded
        last = max(t for t, special in enumerate(encoded.special) if not special and t != kept)
        return _spliced(encoded, last, last + 1)

    def _logits(self, rows: Sequence[tuple[Encoded, int]]) -> Float[Tensor, "n v"]:
        """The logits of the vocabulary at one position of every text."""

        def work(batch: Batch, items: list[int]) -> list[Tensor]:
            hidden = forward(self.model, batch, hidden=True).hidden[-1]
            at: Int[Tensor, " k"] = torch.tensor([rows[i][1] for i in items], device=hidden.device)
            return list(self.head(hidden[torch.arange(len(items), device=hidden.device), at]).float().cpu())

        return torch.stack(each_text(self.model, [encoded for encoded, _ in rows], work))

    def _whole_words(self, ids: Sequence[int]) -> list[str]:
        """The tokens that are words by themselves: read again after another word, they give the same single token."""
        assert isinstance(self.model, Spells)
        spelled = [(i, word.strip()) for i, word in zip(ids, self.model.spell(ids), strict=True)]
        words = [(i, word) for i, word in spelled if word.isalpha()]
        before, *encoded = self.model.encode(["a", *(f"a {word}" for _, word in words)])
        return [word for (i, word), e in zip(words, encoded, strict=True) if _content(e) == [*_content(before), i]]


def _content(encoded: Encoded) -> list[int]:
    return [i for i, special in zip(encoded.ids, encoded.special, strict=True) if not special]


def _replaced(encoded: Encoded, start: int, end: int, mask: int) -> Encoded:
    """The text with some of its tokens replaced by one mask."""
    return _spliced(encoded, start, end, ids=(mask,), tokens=("",), offsets=((0, 0),), special=(False,))


def _spliced(encoded: Encoded, start: int, end: int, **new: tuple[Any, ...]) -> Encoded:
    """The text with some of its tokens left out, and others put there, of the segment of the first."""
    if encoded.segments is not None and new:
        new["segments"] = (encoded.segments[start],)
    names = [n for n in ("ids", "tokens", "offsets", "special", "segments") if getattr(encoded, n) is not None]
    parts = {name: getattr(encoded, name) for name in names}
    return replace(encoded, **{n: (*own[:start], *new.get(n, ()), *own[end:]) for n, own in parts.items()})


def filler_of(model: Model, name: str | None) -> Filler:
    """Return the masked language model ``name``, or that of the model itself."""
    chosen = model if name is None else load_to_train(name, 2)
    fills = "mask" in chosen.replacements and not chosen.causal
    if fills and isinstance(chosen, Decodes) and isinstance(chosen, Spells):
        try:
            return Filler(chosen, chosen.lm_head())
        except UnsupportedModel as error:
            raise UnsupportedModel(_no_head(chosen.name)) from error
    raise UnsupportedModel(_no_head(chosen.name))


def _no_head(name: str) -> str:
    return (
        f"{name} has no masked language model head that could propose words. Name a masked language model (--fill "
        "sentiment, or a folder), give words of your own (--candidates bad=good,great), or only delete words "
        "(--edits delete)"
    )
