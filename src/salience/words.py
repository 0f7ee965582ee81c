"""Tokens to words, by character offsets alone: no tokenizer's marks (``##``, ``▁``, ``Ġ``) are looked at."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence

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


def members(text: str, offsets: Sequence[Span], special: Sequence[bool]) -> list[tuple[Span, list[int]]]:
    """Each word's span with the indices of its tokens, so that every token of text belongs to exactly one word.

    Words that share a token become one, and words without a token are left out. A token of white space alone is a word
    by itself; one without any characters goes with its neighbour. Special tokens belong to no word.

    >>> members("so well-made", [(0, 0), (0, 2), (2, 7), (7, 12)], [True, False, False, False])
    [((0, 2), [1]), ((3, 7), [2]), ((7, 12), [3])]
    """
    touched = {t: _trimmed(text, span) for t, span in enumerate(offsets) if not special[t] and span[0] < span[1]}
    atoms = _atoms(text, touched.values())
    ends = [end for _, end in atoms]
    found: list[list[int]] = [[] for _ in atoms]
    for token, (a, b) in touched.items():
        for atom in range(bisect_right(ends, a), bisect_left(atoms, (b, b))):
            found[atom].append(token)
    return _adopted(_joined(atoms, found), offsets, special)


def _atoms(text: str, touched: Iterable[Span]) -> list[Span]:
    """The words of the text, and the white space that is all that some token stands for."""
    found = spans(text)
    for a, b in sorted({(a, b) for a, b in touched if text[a:b].isspace()}):
        near = found[max(0, (at := bisect_left(found, (a, b))) - 1) : at + 1]
        if not any(start < b and a < end for start, end in near):
            found.insert(at, (a, b))
    return found


def _joined(atoms: Sequence[Span], found: Sequence[list[int]]) -> list[tuple[Span, list[int]]]:
    """Neighbours that share a token made one."""
    groups: list[tuple[Span, list[int]]] = []
    for (start, end), tokens in zip(atoms, found, strict=True):
        if groups and set(tokens) & set(groups[-1][1]):
            (first, _), known = groups[-1]
            groups[-1] = ((first, end), sorted({*known, *tokens}))
        elif tokens:
            groups.append(((start, end), tokens))
    return groups


def _adopted(
    groups: list[tuple[Span, list[int]]], offsets: Sequence[Span], special: Sequence[bool]
) -> list[tuple[Span, list[int]]]:
    """Tokens of text without characters go with the next token that has some; at the end, with the one before.

    Special tokens stand between the texts of a pair, so neighbours are looked for on this side of them first.
    """
    every = range(len(offsets))
    content = [t for t, other in enumerate(special) if not other]
    home = {token: number for number, (_, tokens) in enumerate(groups) for token in tokens}
    if content and not home:
        return [(offsets[content[0]], content)]
    for order in (reversed(every), every, reversed(content), content):
        last = None
        for token in order:
            last = None if special[token] else home.get(token, last)
            if last is not None:
                home[token] = last
    found: list[list[int]] = [[] for _ in groups]
    for token in content:
        found[home[token]].append(token)
    return [(span, tokens) for (span, _), tokens in zip(groups, found, strict=True)]


def numbers(text: str, offsets: Sequence[Span], special: Sequence[bool]) -> list[int]:
    """The number of each token's word, -1 for special tokens.

    >>> numbers("so unlike", [(0, 0), (0, 2), (2, 5), (5, 9)], [True, False, False, False])
    [-1, 0, 1, 1]
    """
    found = [-1] * len(offsets)
    for number, (_, tokens) in enumerate(members(text, offsets, special)):
        for token in tokens:
            found[token] = number
    return found


def reduce(
    groups: Sequence[tuple[Span, list[int]]], scores: Sequence[float], how: Callable[[list[float]], float] = sum
) -> list[float]:
    """One score per word; the sum keeps what a method's completeness promises."""
    return [float(how([scores[i] for i in tokens])) for _, tokens in groups]


def unread(text: str, kept: Sequence[Span], lost: Sequence[Span]) -> list[Span]:
    """What lost tokens stood for, before the first and after the last token kept; white space at its border left out.

    >>> unread("so far so good", [(3, 6)], [(0, 2), (7, 9), (10, 14)])
    [(0, 2), (7, 14)]
    """
    if not lost:
        return []
    start, end = min(a for a, _ in lost), max(b for _, b in lost)
    first, last = min((a for a, b in kept if a < b), default=end), max((b for a, b in kept if a < b), default=end)
    return [_trimmed(text, (a, b)) for a, b in ((start, first), (last, end)) if text[a:b].strip()]


def _trimmed(text: str, span: Span) -> Span:
    """Without white space at either end; white space alone stays whole."""
    start, end = span
    piece = text[start:end]
    if piece.isspace():
        return span
    return start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())
