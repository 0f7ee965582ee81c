"""Tokens to words, by character offsets alone: no tokenizer's marks (``##``, ``▁``, ``Ġ``) are looked at."""

from bisect import bisect_right
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
    words = spans(text)
    ends = [end for _, end in words]
    found: list[list[int]] = [[] for _ in words]
    for token, (a, b) in enumerate(trimmed):
        for word in range(bisect_right(ends, a), len(words)):
            if words[word][0] >= b:
                break
            found[word].append(token)
    for (start, end), tokens in zip(words, found, strict=True):
        if groups and set(tokens) & set(groups[-1][1]):
            (first, _), known = groups[-1]
            groups[-1] = ((first, end), sorted({*known, *tokens}))
        elif tokens:
            groups.append(((start, end), tokens))
    return groups


def numbers(text: str, offsets: Sequence[Span]) -> list[int]:
    """The number of each token's word, -1 for none.

    >>> numbers("so unlike", [(0, 0), (0, 2), (2, 5), (5, 9)])
    [-1, 0, 1, 1]
    """
    found = [-1] * len(offsets)
    for number, (_, tokens) in enumerate(members(text, offsets)):
        for token in tokens:
            found[token] = number
    return found


def reduce(
    groups: Sequence[tuple[Span, list[int]]], scores: Sequence[float], how: Callable[[list[float]], float] = sum
) -> list[float]:
    """One score per word; the sum keeps what a method's completeness promises."""
    return [float(how([scores[i] for i in tokens])) for _, tokens in groups]


def _trimmed(text: str, span: Span) -> Span:
    start, end = span
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())
