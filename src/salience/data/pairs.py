"""Pairs of a source text and its answer, such as a sentence and its translation, with word alignments."""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

from salience.core.text import Span
from salience.errors import BadInput

WordLink = tuple[int, int]
"""(word of the source, word of the answer), numbered from 0. Words are separated by white space."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A source text with its answer. Every sure link is also possible."""

    id: str
    source: str
    answer: str
    sure: frozenset[WordLink] = frozenset()
    possible: frozenset[WordLink] = frozenset()

    def reversed(self) -> "Pair":
        """The pair in the other direction."""
        sure, possible = (frozenset((b, a) for a, b in links) for links in (self.sure, self.possible))
        return Pair(self.id, self.answer, self.source, sure, possible)


def read_pairs(
    path: str | Path,
    source: str,
    answer: str,
    *,
    sure: str | None = None,
    possible: str | None = None,
    limit: int | None = None,
) -> list[Pair]:
    """Read pairs from JSON Lines, which may be compressed with gzip. Arguments are names of fields.

    ``sure`` and ``possible`` are fields of [word of the source, word of the answer] pairs.
    """
    file = Path(path)
    if not file.is_file():
        raise BadInput(f"{file} is a folder; name a file in it" if file.is_dir() else f"there is no file {file}")
    pairs: list[Pair] = []
    for number, line in _lines(file):
        if limit is not None and len(pairs) == limit:
            break
        row: Any = None
        try:
            row = json.loads(line)
            texts = [_text(row[name], name) for name in (source, answer)]
            links = [_links(() if name is None else row[name]) for name in (sure, possible)]
        except (ValueError, KeyError, TypeError) as error:
            raise BadInput(f"line {number} of {file} {_fault(row, error)}") from error
        if not all(text.strip() for text in texts):
            raise BadInput(f"line {number} of {file} has an empty text")
        pair = Pair(str(number), texts[0], texts[1], links[0], links[0] | links[1])
        sizes = [len(words(text)) for text in texts]
        if outside := [link for link in pair.possible if not all(0 <= i < n for i, n in zip(link, sizes, strict=True))]:
            raise BadInput(
                f"line {number} of {file} links words {outside[0]}, counted from 0, of texts with {sizes} words"
            )
        pairs.append(pair)
    if not pairs:
        raise BadInput(f"{file} holds no pairs")
    return pairs


def _fault(row: Any, error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"has no field {error}. Its fields: {', '.join(row)}."
    if row is not None and not isinstance(row, dict):
        return "is no JSON object"
    return f"cannot be read: {error}"


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r:.60}, not a text")
    return value


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, with their numbers from 1."""
    try:
        with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
            yield from ((number, line) for number, line in enumerate(cast(TextIO, lines), 1) if line.strip())
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} cannot be read: {error}") from error


def _links(values: Any) -> frozenset[WordLink]:
    try:
        links = [(a, b) for a, b in values]
        if all(type(word) is int for link in links for word in link):
            return frozenset(links)
    except (TypeError, ValueError):  # no list of pairs
        pass
    raise TypeError("alignments are lists of two whole numbers, a word of the source and one of the answer")


def words(text: str) -> list[Span]:
    """The spans of the words of a text, separated by white space.

    >>> words("Ein Mann .")
    [(0, 3), (4, 8), (9, 10)]
    """
    spans: list[Span] = []
    at = 0
    for word in text.split():
        start = text.index(word, at)
        at = start + len(word)
        spans.append((start, at))
    return spans


def word_of_token(text: str, offsets: Sequence[Span]) -> list[int]:
    """The word that each token belongs to: the one that its last character is in; -1 for tokens without characters.

    >>> word_of_token("Ein Mann", [(0, 1), (1, 3), (3, 8), (8, 8)])
    [0, 0, 1, -1]
    """
    spans = words(text)
    return [
        next((n for n, (start, end) in enumerate(spans) if start < b <= end), -1) if a < b else -1 for a, b in offsets
    ]
