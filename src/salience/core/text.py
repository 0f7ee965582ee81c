"""A tokenised text and its words.

Tokens are matched to words by character offsets only; tokenizer markers (``##``, ``▁``, ``Ġ``) are never used.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol, runtime_checkable

import regex

_PIECE = regex.compile(r"(?w).+?\b", regex.DOTALL | regex.VERSION1)
"""Text between two word boundaries (Unicode UAX #29)."""

_WORD_END = regex.compile(r"(?<=\S)(?=\s)")

LONG = 16
"""Characters per token, more than the average of any usual tokenizer and text."""

Span = tuple[int, int]

Text = str | tuple[str, str]
"""One text, or a pair of texts such as a premise and a hypothesis."""


@dataclass(frozen=True, slots=True)
class Part:
    """A named span of a text, such as a message of a chat (``kind`` "turn") or a retrieved passage ("document")."""

    name: str
    start: int
    end: int
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One tokenised text.

    ``offsets`` are character spans of ``text``. A pair is joined by a line break, and ``pair_at`` is the index of the
    first character of its second text. ``unseen`` are the spans that were cut off because the text was too long.
    ``parts`` are the named parts of a prompt, in order and without overlap. ``units`` is the number of the segment that
    each token belongs to, or -1, where methods erase whole segments.
    """

    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    offsets: tuple[Span, ...]
    special: tuple[bool, ...]
    segments: tuple[int, ...] | None = None
    pair_at: int | None = None
    unseen: tuple[Span, ...] = ()
    parts: tuple[Part, ...] = ()
    units: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.ids)


@runtime_checkable
class Encodes(Protocol):
    """Anything that tokenises texts, such as every model."""

    def encode(self, texts: Sequence[Text]) -> list[Encoded]: ...


def spans(text: str, before: int | None = None) -> list[Span]:
    """Return the spans of the words and punctuation marks of a text, without white space.

    With ``before``, only those that start before this character are looked for.

    >>> spans("Isn't it fun?")
    [(0, 5), (6, 8), (9, 12), (12, 13)]
    """
    pieces = takewhile(lambda m: before is None or m.start() < before, _PIECE.finditer(text))
    return [m.span() for m in pieces if not m.group().isspace()]


def beginning(text: str, limit: int, first: Callable[[str], Sequence[object]]) -> str:
    """Return as much of a text as determines its first ``limit`` tokens: all of it, unless it is far longer than that.

    ``first`` returns the first ``limit + 1`` tokens of a text. What follows a token may change it, so the text is cut
    at white space, and only where a cut at half the length gives the same tokens.
    """
    length, before = LONG * limit, None
    while 2 * length < len(text):
        tokens = first(text[: (end := _word_end(text, length))])
        if len(tokens) > limit and tokens == before:
            return text[:end]
        length, before = 2 * length, tokens
    return text


def ending(text: str, limit: int, last: Callable[[str], Sequence[object]]) -> int:
    """Return where a text may be cut so that its last ``limit`` tokens stay: 0, unless it is far longer than that.

    ``last`` returns the last ``limit + 1`` tokens of a text. As in :func:`beginning`, half the length must do as well.
    """
    length, before = LONG * limit, None
    while 2 * length < len(text):
        tokens = last(text[(start := _word_end(text, len(text) - length)) :])
        if len(tokens) > limit and tokens == before:
            return start
        length, before = 2 * length, tokens
    return 0


def _word_end(text: str, length: int) -> int:
    """The last end of a word before ``length``, or ``length`` itself if there is no white space near."""
    ends = [m.start() for m in _WORD_END.finditer(text, length - length // 4, length)]
    return ends[-1] if ends else length


def members(text: str, offsets: Sequence[Span], special: Sequence[bool]) -> list[tuple[Span, list[int]]]:
    """Return each word's span with the indices of its tokens; every text token belongs to exactly one word.

    Words that share a token are merged, and words without a token are omitted. A token of white space only is a word of
    its own; a token without characters is added to its neighbour. Special tokens belong to no word.

    >>> members("so well-made", [(0, 0), (0, 2), (2, 7), (7, 12)], [True, False, False, False])
    [((0, 2), [1]), ((3, 7), [2]), ((7, 12), [3])]
    """
    touched = {t: _trimmed(text, span) for t, span in enumerate(offsets) if not special[t] and span[0] < span[1]}
    atoms = _atoms(text, touched.values())
    ends = [end for _, end in atoms]
    by_atom: list[list[int]] = [[] for _ in atoms]
    for token, (a, b) in touched.items():
        for atom in range(bisect_right(ends, a), bisect_left(atoms, (b, b))):
            by_atom[atom].append(token)
    return _with_empty_tokens(_merged(atoms, by_atom), offsets, special)


def _atoms(text: str, touched: Iterable[Span]) -> list[Span]:
    """The words of the text, and the white space that is a token of its own."""
    touched = sorted(set(touched))
    atoms = spans(text, before=max((b for _, b in touched), default=0))
    for a, b in ((a, b) for a, b in touched if text[a:b].isspace()):
        near = atoms[max(0, (at := bisect_left(atoms, (a, b))) - 1) : at + 1]
        if not any(start < b and a < end for start, end in near):
            atoms.insert(at, (a, b))
    return atoms


def _merged(atoms: Sequence[Span], by_atom: Sequence[list[int]]) -> list[tuple[Span, list[int]]]:
    """Merge neighbours that share a token."""
    groups: list[tuple[Span, list[int]]] = []
    for (start, end), tokens in zip(atoms, by_atom, strict=True):
        if groups and set(tokens) & set(groups[-1][1]):
            (first, _), known = groups[-1]
            groups[-1] = ((first, end), sorted({*known, *tokens}))
        elif tokens:
            groups.append(((start, end), tokens))
    return groups


def _with_empty_tokens(
    groups: list[tuple[Span, list[int]]], offsets: Sequence[Span], special: Sequence[bool]
) -> list[tuple[Span, list[int]]]:
    """Add tokens without characters to the group of the next token that has some; at the end, of the previous one.

    Special tokens separate the texts of a pair, so neighbours within the same text are preferred.
    """
    every = range(len(offsets))
    content = [t for t, other in enumerate(special) if not other]
    group_of = {token: number for number, (_, tokens) in enumerate(groups) for token in tokens}
    if content and not group_of:
        return [(offsets[content[0]], content)]
    for order in (reversed(every), every, reversed(content), content):
        last = None
        for token in order:
            last = None if special[token] else group_of.get(token, last)
            if last is not None:
                group_of[token] = last
    by_group: list[list[int]] = [[] for _ in groups]
    for token in content:
        by_group[group_of[token]].append(token)
    return [(span, tokens) for (span, _), tokens in zip(groups, by_group, strict=True)]


def numbers(text: str, offsets: Sequence[Span], special: Sequence[bool]) -> list[int]:
    """Return the word index of each token; -1 for special tokens.

    >>> numbers("so unlike", [(0, 0), (0, 2), (2, 5), (5, 9)], [True, False, False, False])
    [-1, 0, 1, 1]
    """
    word_of = [-1] * len(offsets)
    for number, (_, tokens) in enumerate(members(text, offsets, special)):
        for token in tokens:
            word_of[token] = number
    return word_of


def reduce(
    groups: Sequence[tuple[Span, list[int]]], scores: Sequence[float], how: Callable[[list[float]], float] = sum
) -> list[float]:
    """Reduce token scores to one score per word; the sum preserves a method's completeness."""
    return [float(how([scores[i] for i in tokens])) for _, tokens in groups]


def unread(text: str, kept: Sequence[Span], lost: Sequence[Span]) -> list[Span]:
    """Return the spans that were cut off before the first and after the last token kept, without outer white space.

    >>> unread("so far so good", [(3, 6)], [(0, 2), (7, 9), (10, 14)])
    [(0, 2), (7, 14)]
    """
    if not lost:
        return []
    start, end = min(a for a, _ in lost), max(b for _, b in lost)
    first, last = min((a for a, b in kept if a < b), default=end), max((b for a, b in kept if a < b), default=end)
    return [_trimmed(text, (a, b)) for a, b in ((start, first), (last, end)) if text[a:b].strip()]


def overlaps(span: Span, others: Iterable[Span]) -> bool:
    """Whether a span shares a character with any of the others."""
    return any(span[0] < end and start < span[1] for start, end in others)


def _trimmed(text: str, span: Span) -> Span:
    """Trim white space at both ends, unless the span is all white space."""
    start, end = span
    piece = text[start:end]
    if piece.isspace():
        return span
    return start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())
