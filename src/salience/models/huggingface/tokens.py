"""Tokenisation with character offsets, as reported by the tokenizer."""

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from math import isnan
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from salience.core.executor import lock_of
from salience.core.settings import LARGEST
from salience.core.text import LONG, Encoded, Span, Text, beginning, ending, unread
from salience.errors import BadInput, BadModel, TruncatedText, too_long

Side = Literal["left", "right"]
"""The end at which a text that is too long is cut off."""


def encode(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[Text], limit: int, *, segments: bool, cut: Side | None = None
) -> list[Encoded]:
    """Encode each text or pair, truncated to ``limit`` tokens with a warning, at the tokenizer's own side by default.

    With ``segments``, token types are kept if the tokenizer returns them.
    """
    check_offsets(tokenizer)
    typed = segments and "token_type_ids" in tokenizer.model_input_names
    with lock_of(tokenizer), _cutting(tokenizer, cut):  # truncation is a setting of the tokenizer
        return [_encode(tokenizer, text, limit, number, typed) for number, text in enumerate(texts)]


def check_offsets(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise if the tokenizer reports no character offsets."""
    if not tokenizer.is_fast:
        raise BadModel(
            f"{type(tokenizer).__name__} is a slow tokenizer and has no character offsets, so scores cannot be mapped "
            "to the text. Load the fast version: AutoTokenizer.from_pretrained(..., use_fast=True)."
        )


def longest(tokenizer: PreTrainedTokenizerBase, name: str) -> int | None:
    """The most tokens that the tokenizer says the model can read; None if it sets no limit."""
    named: Any = tokenizer.model_max_length
    if isinstance(named, bool) or not isinstance(named, int | float) or isnan(named):
        raise BadModel(f"model_max_length of the tokenizer of {name} is {named!r}; set it to a whole number")
    return int(min(named, LARGEST)) if named > 0 else None


def replacements(tokenizer: PreTrainedTokenizerBase, size: int) -> dict[str, int]:
    """The tokens that can replace an erased one, for a model with ``size`` word vectors."""
    ids = {k: getattr(tokenizer, f"{k}_token_id", None) for k in ("mask", "unk", "pad")}
    return {k: int(v) for k, v in ids.items() if v is not None and v < size}


def check_ids(encoded: Encoded, size: int, name: str) -> None:
    """Raise if the tokenizer has tokens that the model, with ``size`` word vectors, has none for."""
    largest = max(encoded.ids)
    if largest >= size:
        token = encoded.tokens[encoded.ids.index(largest)]
        raise BadModel(
            f"the tokenizer of {name} gives {token!r} the id {largest}, but the model has {size} word "
            "vectors. Use the tokenizer it was trained with, or resize its embeddings (resize_token_embeddings)."
        )


def check_room(tokens: int, window: int, what: str, name: str) -> None:
    """Raise if there are more tokens than the model can read; cut off, it would answer another prompt."""
    if tokens > window:
        raise BadInput(
            f"{what} has {tokens:,} tokens, {tokens - window:,} more than the {window:,} that {name} can read; "
            "shorten it"
        )


@contextmanager
def _cutting(tokenizer: PreTrainedTokenizerBase, side: Side | None) -> Generator[None]:
    """Cut off texts at this side, instead of the tokenizer's own."""
    own = tokenizer.truncation_side
    tokenizer.truncation_side = side or own
    try:
        yield
    finally:
        tokenizer.truncation_side = own


def _encode(tokenizer: PreTrainedTokenizerBase, text: Text, limit: int, number: int, typed: bool) -> Encoded:
    parts = _check(text, number)
    read = _read(tokenizer, parts, limit)
    encoding = _encoding(tokenizer, [part[a:b] for part, (a, b) in zip(parts, read, strict=True)], limit)
    pair_at = len(parts[0]) + 1 if len(parts) == 2 else None
    starts = tuple(start + at for (start, _), at in zip(read, (0, pair_at or 0), strict=False))
    offsets = _offsets(encoding, starts)
    special = tuple(bool(s) for s in encoding.special_tokens_mask)
    if all(special):
        raise BadInput(f"text {number} has no tokens that this model's tokenizer knows: {text!r}")
    joined = "\n".join(parts)
    unseen = _unseen(encoding, joined, starts, _unread(parts, read, pair_at or 0))
    if encoding.overflowing:
        warnings.warn(too_long(number, limit, unseen), TruncatedText, stacklevel=2)
    return Encoded(
        text=joined,
        ids=tuple(encoding.ids),
        tokens=tuple(encoding.tokens),
        offsets=offsets,
        special=special,
        segments=tuple(encoding.type_ids) if typed else None,
        pair_at=pair_at,
        unseen=unseen,
    )


def _encoding(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], limit: int, **options: Any) -> Any:
    text, second = texts if len(texts) == 2 else (*texts, None)
    output: Any = tokenizer(text, second, truncation=True, max_length=limit, **options)
    return output.encodings[0]


def _read(tokenizer: PreTrainedTokenizerBase, parts: tuple[str, ...], limit: int) -> list[Span]:
    """The spans of the texts without what is so far beyond the limit that it cannot matter.

    Of a pair, the longer text is truncated first, so only one that is longer than the other in any case is cut.
    """

    def tokens(text: str) -> list[tuple[int, int, int]]:
        """The first or last tokens, with offsets from the end of the text that is kept."""
        encoding = _encoding(tokenizer, [text], limit + 1, add_special_tokens=False)
        base = len(text) if left else 0
        return [(i, start - base, end - base) for i, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)]

    left = tokenizer.truncation_side == "left"
    long = [p for p in parts if len(p) > 2 * LONG * limit]
    if len(long) != 1 or any(len(tokens(p)) > limit for p in parts if p is not long[0]):
        return [(0, len(p)) for p in parts]

    def kept(text: str) -> Span:
        return (ending(text, limit, tokens), len(text)) if left else (0, len(beginning(text, limit, tokens)))

    return [kept(p) if p is long[0] else (0, len(p)) for p in parts]


def _unread(parts: tuple[str, ...], read: Sequence[Span], pair_at: int) -> list[list[Span]]:
    """What of each text was not even tokenised, as spans of the joined text."""
    ends = [
        [(0, len(part[:start].rstrip())), (end, len(part.rstrip()))]
        for part, (start, end) in zip(parts, read, strict=True)
    ]
    return [[(a + at, b + at) for a, b in own if a < b] for own, at in zip(ends, (0, pair_at), strict=False)]


def _offsets(encoding: Any, starts: Sequence[int]) -> tuple[Span, ...]:
    """Spans in the joined text, in which what was read of each text starts at ``starts``; special tokens have none."""
    return tuple(
        (0, 0) if part is None else (start + starts[part], end + starts[part])
        for part, (start, end) in zip(encoding.sequence_ids, encoding.offsets, strict=True)
    )


def _unseen(encoding: Any, text: str, starts: Sequence[int], not_read: Sequence[Sequence[Span]]) -> tuple[Span, ...]:
    """The spans that were cut off, from either text of a pair and at either end; ``not_read`` was not tokenised."""

    def of(part: int, piece: Any) -> list[Span]:
        return [span for span, p in zip(_offsets(piece, starts), piece.sequence_ids, strict=True) if p == part]

    return tuple(
        span
        for part, ends in enumerate(not_read)
        for span in unread(
            text, of(part, encoding), [*(span for piece in encoding.overflowing for span in of(part, piece)), *ends]
        )
    )


def _check(text: Text, number: int) -> tuple[str, ...]:
    parts: tuple[Any, ...] = (text,) if not isinstance(text, tuple) else text
    if len(parts) not in (1, 2) or not all(isinstance(p, str) for p in parts):
        raise BadInput(f"text {number} is neither a string nor a pair of strings: {text!r}")
    if not all(p.strip() for p in parts):
        raise BadInput(f"text {number} is empty or only white space; it needs at least one word")
    return parts
