"""The values of reading: where texts come from, and what a row of it is."""

from dataclasses import dataclass
from typing import Literal

Spans = Literal["characters", "words", "sentiments"]
"""What a rationale is: [start, end] spans of characters, or of words between white space; or a sentiment for each such
word, 0 to 4 with 2 as neutral, of which those that speak for the text's label, 0 or 1, are the rationale."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where texts come from, as found and checked by ``source``. Without files it is a data set's name."""

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

    @property
    def columns(self) -> list[str]:
        """The columns that are read, each once."""
        named = (self.text, self.pair, self.id, self.label, self.rationale)
        return list(dict.fromkeys(name for name in named if name is not None))


@dataclass(frozen=True, slots=True)
class Row:
    """One text. ``number`` counts all rows from 0, rejected ones too; it is also the id if no column holds one.

    ``line`` counts from 1: lines of the file, or rows in Parquet and data sets.
    """

    number: int
    id: str
    text: str | tuple[str, str]
    line: int
    label: str | int | float | tuple[str | int, ...] | None = None
    rationale: tuple[tuple[int, int], ...] | None = None
    """Character spans of the text."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that cannot be used, and why."""

    number: int
    file: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Shard:
    """Consecutive rows of one file.

    ``place`` is where the first begins: a byte of the (unpacked) file, or a row in Parquet and data sets. ``line`` is
    its line as in ``Row``, ``first`` its number in the source. ``size`` is in bytes.
    """

    number: int
    file: str
    place: int
    first: int
    line: int
    rows: int
    size: int
