"""Texts to token ids with character offsets, by the tokenizer's own account of where each token came from."""

import warnings
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from salience.errors import BadInput, BadModel, TruncatedText, too_long
from salience.types import Encoded, Span, Text
from salience.words import unread


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[Text], limit: int, *, segments: bool) -> list[Encoded]:
    """Encode each text or pair, cut to ``limit`` tokens with a warning.

    ``segments`` are token types, kept where the tokenizer gives them to models as well.
    """
    if not tokenizer.is_fast:
        raise BadModel(
            f"{type(tokenizer).__name__} is a slow tokenizer and gives no character offsets, so scores could not be "
            "laid on the text. Load its fast version: AutoTokenizer.from_pretrained(..., use_fast=True)."
        )
    typed = segments and "token_type_ids" in tokenizer.model_input_names
    return [_encode(tokenizer, text, limit, number, typed) for number, text in enumerate(texts)]


def _encode(tokenizer: PreTrainedTokenizerBase, text: Text, limit: int, number: int, typed: bool) -> Encoded:
    parts = _checked(text, number)
    second = parts[1] if len(parts) == 2 else None
    read: Any = tokenizer(parts[0], second, truncation=True, max_length=limit)
    found = read.encodings[0]
    pair_at = len(parts[0]) + 1 if len(parts) == 2 else None
    offsets = _offsets(found, pair_at)
    special = tuple(bool(s) for s in found.special_tokens_mask)
    if all(special):
        raise BadInput(f"text {number} has no tokens that this model's tokenizer knows: {text!r}")
    joined = "\n".join(parts)
    unseen = _unseen(found, joined, pair_at)
    if found.overflowing:
        warnings.warn(too_long(number, limit, unseen), TruncatedText, stacklevel=2)
    return Encoded(
        text=joined,
        ids=tuple(found.ids),
        tokens=tuple(found.tokens),
        offsets=offsets,
        special=special,
        segments=tuple(found.type_ids) if typed else None,
        pair_at=pair_at,
        unseen=unseen,
    )


def _offsets(found: Any, pair_at: int | None) -> tuple[Span, ...]:
    """Spans in the joined text; special tokens have none."""
    starts = {0: 0, 1: pair_at or 0}
    return tuple(
        (0, 0) if part is None else (start + starts[part], end + starts[part])
        for part, (start, end) in zip(found.sequence_ids, found.offsets, strict=True)
    )


def _unseen(found: Any, text: str, pair_at: int | None) -> tuple[Span, ...]:
    """What was cut off, from either text of a pair and at whichever end the tokenizer cuts."""

    def of(part: int, read: Any) -> list[Span]:
        return [span for span, p in zip(_offsets(read, pair_at), read.sequence_ids, strict=True) if p == part]

    lost = {part: [span for piece in found.overflowing for span in of(part, piece)] for part in (0, 1)}
    return tuple(span for part in (0, 1) for span in unread(text, of(part, found), lost[part]))


def _checked(text: Text, number: int) -> tuple[str, ...]:
    parts: tuple[Any, ...] = (text,) if not isinstance(text, tuple) else text
    if len(parts) not in (1, 2) or not all(isinstance(p, str) for p in parts):
        raise BadInput(f"text {number} is neither a string nor a pair of strings: {text!r}")
    if not all(p.strip() for p in parts):
        raise BadInput(f"text {number} is empty or only white space; give at least one word")
    return parts
