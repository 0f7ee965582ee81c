"""Tokenisation with character offsets, as reported by the tokenizer."""

import warnings
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from salience.core.executor import lock_of
from salience.core.text import LONG, Encoded, Span, Text, beginning, unread
from salience.errors import BadInput, BadModel, TruncatedText, too_long


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[Text], limit: int, *, segments: bool) -> list[Encoded]:
    """Encode each text or pair, truncated to ``limit`` tokens with a warning.

    With ``segments``, token types are kept if the tokenizer returns them.
    """
    if not tokenizer.is_fast:
        raise BadModel(
            f"{type(tokenizer).__name__} is a slow tokenizer and has no character offsets, so scores cannot be mapped "
            "to the text. Load the fast version: AutoTokenizer.from_pretrained(..., use_fast=True)."
        )
    typed = segments and "token_type_ids" in tokenizer.model_input_names
    return [_encode(tokenizer, text, limit, number, typed) for number, text in enumerate(texts)]


def _encode(tokenizer: PreTrainedTokenizerBase, text: Text, limit: int, number: int, typed: bool) -> Encoded:
    parts = _check(text, number)
    with lock_of(tokenizer):  # truncation is a setting of the tokenizer
        read = _beginnings(tokenizer, parts, limit)
        encoding = _encoding(tokenizer, *read, max_length=limit)
    pair_at = len(parts[0]) + 1 if len(parts) == 2 else None
    offsets = _offsets(encoding, pair_at)
    special = tuple(bool(s) for s in encoding.special_tokens_mask)
    if all(special):
        raise BadInput(f"text {number} has no tokens that this model's tokenizer knows: {text!r}")
    joined = "\n".join(parts)
    unseen = _unseen(encoding, joined, pair_at, [(len(a), len(b.rstrip())) for a, b in zip(read, parts, strict=True)])
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


def _encoding(tokenizer: PreTrainedTokenizerBase, text: str, second: str | None = None, **options: Any) -> Any:
    output: Any = tokenizer(text, second, truncation=True, **options)
    return output.encodings[0]


def _beginnings(tokenizer: PreTrainedTokenizerBase, parts: tuple[str, ...], limit: int) -> tuple[str, ...]:
    """The texts without what is so far beyond the limit that it cannot matter.

    Of a pair, the longer text is truncated first, so only one that is longer than the other in any case is cut.
    """

    def first(text: str) -> list[tuple[int, Span]]:
        encoding = _encoding(tokenizer, text, max_length=limit + 1, add_special_tokens=False)
        return list(zip(encoding.ids, encoding.offsets, strict=True))

    long = [p for p in parts if len(p) > 2 * LONG * limit]
    if tokenizer.truncation_side != "right" or len(long) != 1:
        return parts
    if any(len(first(p)) > limit for p in parts if p is not long[0]):
        return parts
    return tuple(beginning(p, limit, first) if p is long[0] else p for p in parts)


def _offsets(encoding: Any, pair_at: int | None) -> tuple[Span, ...]:
    """Spans in the joined text; special tokens have none."""
    starts = {0: 0, 1: pair_at or 0}
    return tuple(
        (0, 0) if part is None else (start + starts[part], end + starts[part])
        for part, (start, end) in zip(encoding.sequence_ids, encoding.offsets, strict=True)
    )


def _unseen(encoding: Any, text: str, pair_at: int | None, unread_ends: Sequence[Span]) -> tuple[Span, ...]:
    """The spans that were cut off, from either text of a pair and at either end.

    ``unread_ends`` are the ends of the texts that were not even tokenised, counted from the start of each.
    """

    def of(part: int, piece: Any) -> list[Span]:
        return [span for span, p in zip(_offsets(piece, pair_at), piece.sequence_ids, strict=True) if p == part]

    lost = {part: [span for piece in encoding.overflowing for span in of(part, piece)] for part in (0, 1)}
    for part, (start, end) in enumerate(unread_ends):
        if start < end:
            lost[part].append((start + (pair_at or 0) * part, end + (pair_at or 0) * part))
    return tuple(span for part in (0, 1) for span in unread(text, of(part, encoding), lost[part]))


def _check(text: Text, number: int) -> tuple[str, ...]:
    parts: tuple[Any, ...] = (text,) if not isinstance(text, tuple) else text
    if len(parts) not in (1, 2) or not all(isinstance(p, str) for p in parts):
        raise BadInput(f"text {number} is neither a string nor a pair of strings: {text!r}")
    if not all(p.strip() for p in parts):
        raise BadInput(f"text {number} is empty or only white space; it needs at least one word")
    return parts
