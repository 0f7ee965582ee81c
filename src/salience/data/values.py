"""Values of reading data: sources, shards and rows."""

from dataclasses import dataclass
from typing import Literal

Spans = Literal["characters", "words", "sentiments"]
"""The form of rationales: [start, end] spans of characters or of whitespace-separated words, or one sentiment per word.

Words may also be given by their indices, or as a number of words from the start of the text.

Sentiments range from 0 to 4, with 2 as neutral; words whose sentiment matches the label, 0 or 1, are the rationale."""


@dataclass(frozen=True, slots=True)
class Source:
    """A checked data source, as returned by ``source``. Without files, ``name`` is that of a data set."""

    name: str
    files: tuple[str, ...]
    text: str = "text"
    pair: str | None = None
    id: str | None = None
    label: str | None = None
    rationale: str | None = None
    spans: Spans = "characters"
    split: str | None = None
    subset: str | None = None
    target: str | None = None
    keep: tuple[str, ...] = ()
    delimiter: str | None = None
    """The separator of CSV files, if it is not that of their ending."""
    chat: str | None = None
    """The column of chats, which are read instead of texts."""
    context: str | None = None
    """The column of passages that the texts are questions about."""
    against: str | None = None
    """The column of answers that those of ``target`` are compared with."""

    @property
    def columns(self) -> list[str]:
        """The columns to read, without duplicates."""
        named = (self.chat or self.text, self.pair, self.id, self.label, self.rationale, self.target)
        named += (self.context, self.against, *self.keep)
        return list(dict.fromkeys(name for name in named if name is not None))


@dataclass(frozen=True, slots=True)
class Row:
    """One text. ``number`` counts all rows from 0, rejected ones included; it is the id if no id column is named.

    ``line`` counts from 1: lines of a file, or rows of a Parquet file or data set.
    """

    number: int
    id: str
    text: str | tuple[str, str]
    """A chat is JSON."""
    line: int
    label: str | int | float | tuple[str | int, ...] | None = None
    rationale: tuple[tuple[int, int], ...] | None = None
    """Character spans of the text."""
    target: str | int | float | tuple[str | int, ...] | None = None
    """The label to explain instead of the prediction."""
    kept: tuple[tuple[str, str | None], ...] = ()
    """Other columns to keep, by name; values that are not strings are JSON."""
    context: str | None = None
    """A JSON list of the passages that the text is a question about."""
    against: str | None = None
    """The answer that ``target`` is compared with."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """An invalid row, with the reason."""

    number: int
    file: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Shard:
    """Consecutive rows of one file.

    ``place`` is where the first row starts: a byte of the (decompressed) file, or a row of a Parquet file or data set.
    ``line`` is its line as in ``Row``, and ``first`` its number in the source. ``size`` is in bytes.
    """

    number: int
    file: str
    place: int
    first: int
    line: int
    rows: int
    size: int
