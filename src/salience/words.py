"""Tokens to words, by character offsets alone: no tokenizer's marks (``##``, ``▁``, ``Ġ``) are looked at."""

from collections.abc import Callable, Sequence

import regex

_PIECE = regex.compile(r"(?w).+?\b", regex.DOTALL | regex.VERSION1)
"""Text between two word boundaries of Unicode's UAX #29."""

Span = tuple[int, int]


def spans(text: str) -> list[Span]:
    """The words and punctuation marks of a text, white space left out.

    >>> spans("Isn't it fun?")
    [(0, 5), (6, 8), (9, 12), (12, 13)]
    """
    return [m.span() for m in _PIECE.finditer(text) if not m.group().isspace()]


def members(text: str, offsets: Sequence[Span]) -> list[tuple[Span, list[int]]]:
    """Each word's span with the indices of its tokens. Words that share a token become one.

    Tokens without characters of their own (special tokens) belong to no word, and words without a token are left out.

    >>> members("so well-made", [(0, 0), (0, 2), (2, 7), (7, 12)])
    [((0, 2), [1]), ((3, 7), [2]), ((7, 8), [3]), ((8, 12), [])][:2] + [((7, 12), [3])]
    """
    trimmed = [_trimmed(text, span) for span in offsets]
    groups: list[tuple[Span, list[int]]] = []
    for start, end in spans(text):
        tokens = [i for i, (a, b) in enumerate(trimmed) if a < end and b > start]
        if groups and set(tokens) & set(groups[-1][1]):
            (first, _), known = groups[-1]
            groups[-1] = ((first, end), sorted({*known, *tokens}))
        elif tokens:
            groups.append(((start, end), tokens))
    return groups


def reduce(
    groups: Sequence[tuple[Span, list[int]]], scores: Sequence[float], how: Callable[[list[float]], float] = sum
) -> list[float]:
    """One score per word; the sum keeps what a method's completeness promises."""
    return [float(how([scores[i] for i in tokens])) for _, tokens in groups]


def _trimmed(text: str, span: Span) -> Span:
    start, end = span
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())
