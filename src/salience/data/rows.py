"""Cut a source into shards, and read the rows of a shard."""

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from hashlib import blake2b
from itertools import islice
from typing import Any

from salience.core.text import Span
from salience.data.formats import Opened, Record, Refused, decoded, kind, open_file
from salience.data.values import Rejected, Row, Shard, Source
from salience.errors import BadInput

NEUTRAL = 2
"""The sentiment of a neutral word."""


def shards(source: Source, *, rows: int = 1000, size: int = 2**18, limit: int | None = None) -> Iterator[Shard]:
    """Cut the source into shards, in order; deterministic for the same data and arguments.

    A shard ends once it has ``rows`` rows or at least ``size`` bytes, and at the end of its file. With ``limit``, only
    that many rows are included.
    """
    _check_positive(rows=rows, size=size, limit=limit)
    return _shards(source, rows, size, limit)


class Reader:
    """Reads shards in any order. The last file stays open, so that reading on is fast."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._file: str | None = None
        self._opened: Opened | None = None

    def read(self, shard: Shard) -> Iterator[Row | Rejected]:
        """Yield the rows of a shard in order; the whole shard is held in memory."""
        opened = self._open(shard.file)
        records = list(islice(opened.records(shard.place, shard.line), shard.rows))
        if len(records) < shard.rows:
            raise BadInput(f"{shard.file} ends before row {shard.first + shard.rows}; was it changed during the run?")
        for number, record in enumerate(records, shard.first):
            yield _checked(self._source, opened, record, number, shard.file)

    def close(self) -> None:
        """Close the open file."""
        if self._opened is not None:
            self._opened.close()
        self._file = self._opened = None

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _open(self, file: str) -> Opened:
        if self._opened is None or self._file != file:
            self.close()
            self._file, self._opened = file, open_file(self._source, file)
        return self._opened


def all_rows(source: Source, *, limit: int | None = None) -> Iterator[Row | Rejected]:
    """Yield every row of the source in order, or the first ``limit``, reading each file once."""
    _check_positive(limit=limit)
    number = 0
    for file in source.files or (source.name,):
        if number == limit:
            return
        with closing(open_file(source, file)) as opened:
            for record in islice(opened.records(*opened.start), None if limit is None else limit - number):
                yield _checked(source, opened, record, number, file)
                number += 1


def _checked(source: Source, opened: Opened, record: Record, number: int, file: str) -> Row | Rejected:
    try:
        return _row(source, number, record.line, opened.cells(record.raw))
    except Refused as why:
        return Rejected(number, file, record.line, str(why))


def _check_positive(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise BadInput(f"{name} is {value}; it must be at least 1")


def check_ids(source: Source, *, limit: int | None = None) -> None:
    """Raise BadInput if two rows have the same id. Needs eight bytes of memory per row."""
    import numpy as np

    hashes = np.sort(np.array(array("Q", (_hash(row.id) for row in _valid(source, limit))), dtype=np.uint64))
    repeated = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    seen: dict[str, Row] = {}
    for row in _valid(source, limit) if repeated else ():
        if _hash(row.id) not in repeated:
            continue
        if (first := seen.setdefault(row.id, row)) is not row:
            raise BadInput(
                f"lines {first.line} and {row.line} of {source.name} have the same id, {row.id!r}; ids must be unique. "
                "Without an id column, the ids are the numbers of the rows."
            )


def _valid(source: Source, limit: int | None) -> Iterator[Row]:
    return (row for row in all_rows(source, limit=limit) if isinstance(row, Row))


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _shards(source: Source, rows: int, size: int, limit: int | None) -> Iterator[Shard]:
    number = first = 0
    for file in source.files or (source.name,):
        if first == limit:
            return
        with closing(open_file(source, file)) as opened:
            records = islice(opened.records(*opened.start), None if limit is None else limit - first)
            for start, count, total in _groups(records, rows, size):
                yield Shard(number, file, start.place, first, start.line, count, total)
                number, first = number + 1, first + count


def _groups(records: Iterable[Record], rows: int, size: int) -> Iterator[tuple[Record, int, int]]:
    """Group consecutive records: the first record, their number and their size in bytes."""
    start, count, total = None, 0, 0
    for record in records:
        start, count, total = start or record, count + 1, total + record.size
        if count == rows or total >= size:
            yield start, count, total
            start, count, total = None, 0, 0
    if start is not None:
        yield start, count, total


def _row(source: Source, number: int, line: int, cells: Mapping[str, object]) -> Row:
    text = _string(cells, source.text) if source.chat is None else _chat(cells, source.chat)
    return Row(
        number,
        str(number) if source.id is None else str(_number_or_string(cells, source.id)),
        text if source.pair is None else (text, _string(cells, source.pair)),
        line,
        None if source.label is None else _label(cells, source.label),
        None if source.rationale is None else _rationale(cells, source, text),
        None if source.target is None else _label(cells, source.target),
        tuple((name, _kept(cells, name)) for name in source.keep),
        None if source.context is None else _passages(cells, source.context),
        None if source.against is None else _string(cells, source.against),
    )


def _chat(cells: Mapping[str, object], name: str) -> str:
    """The messages of a chat as JSON; formats without lists, such as CSV, hold JSON already."""
    value = cells.get(name)
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    text = _string(cells, name)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, list | dict):
        raise Refused(f"column {name!r} is not a chat: expected a list of messages with role and content")
    return text


def _passages(cells: Mapping[str, object], name: str) -> str:
    """Passages as a JSON list; formats without lists hold JSON already, and any other text is the only passage."""
    value = cells.get(name)
    if isinstance(value, list):
        return json.dumps(value, ensure_ascii=False, default=str)
    text = _string(cells, name)
    try:
        return text if isinstance(json.loads(text), list) else json.dumps([text], ensure_ascii=False)
    except (ValueError, RecursionError):
        return json.dumps([text], ensure_ascii=False)


def _kept(cells: Mapping[str, object], name: str) -> str | None:
    """Any cell as text; JSON unless it is a string."""
    value = cells.get(name)
    if isinstance(value, bytes):
        value = decoded(value)
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    _check_characters(text, name)
    return text


def _label(cells: Mapping[str, object], name: str) -> str | int | float | tuple[str | int, ...]:
    value = cells.get(name)
    if isinstance(value, list):
        return tuple(_label({name: one}, name) for one in value)  # pyright: ignore
    label = _number_or_string(cells, name)
    return int(label) if isinstance(label, float) and label.is_integer() else label


def _rationale(cells: Mapping[str, object], source: Source, text: str) -> tuple[Span, ...] | None:
    """The rationale as character spans, or None if the cell is empty; an empty list is an empty rationale."""
    value = cells.get(str(source.rationale))
    if value is None:
        return None
    words = [m.span() for m in re.finditer(r"\S+", text)]
    if source.spans == "sentiments":
        return _matching_sentiments(cells, source, value, words)
    try:
        spans = _word_spans(value) if source.spans == "words" else _pairs(value)
    except (TypeError, ValueError):
        raise Refused(f"column {source.rationale!r} is not a list of [start, end] spans") from None
    end_of = len(words) if source.spans == "words" else len(text)
    for start, end in spans:
        if not 0 <= start < end <= end_of:
            hint = "; if it counts words, say so (--spans words)" if source.spans == "characters" else ""
            raise Refused(f"the rationale span [{start}, {end}] lies outside the text of {end_of} {source.spans}{hint}")
    return tuple((words[a][0], words[b - 1][1]) for a, b in spans) if source.spans == "words" else tuple(spans)


def _pairs(value: Any) -> list[Span]:
    return [(int(start), int(end)) for start, end in value]


def _word_spans(value: Any) -> list[Span]:
    """Spans of words: pairs, single words by their index, or a number of words from the start."""
    if isinstance(value, int):
        return [(0, value)] if value else []
    return [span for one in value for span in ([(one, one + 1)] if isinstance(one, int) else _pairs([one]))]


def _matching_sentiments(
    cells: Mapping[str, object], source: Source, value: object, words: Sequence[Span]
) -> tuple[Span, ...]:
    """The words whose sentiment matches the label of the text."""
    if not isinstance(value, list) or len(value) != len(words):  # pyright: ignore[reportUnknownArgumentType]
        raise Refused(f"column {source.rationale!r} is not a list with a sentiment for each of {len(words)} words")
    label = None if source.label is None else _label(cells, source.label)
    if label not in (0, 1):
        raise Refused(f"the label is {label!r}; sentiments of words need a label that is one of 0 or 1")
    return tuple(
        span
        for span, sentiment in zip(words, value, strict=True)  # pyright: ignore[reportUnknownArgumentType]
        if sentiment != NEUTRAL and (sentiment > NEUTRAL) == bool(label)
    )


def _number_or_string(cells: Mapping[str, object], name: str) -> str | int | float:
    value = cells.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return _string(cells, name)


def _string(cells: Mapping[str, object], name: str) -> str:
    """The text of a cell; raises Refused if it is missing, empty or not a string."""
    if name not in cells:
        raise Refused(f"no column {name!r}")
    value = cells[name]
    if isinstance(value, bytes):
        value = decoded(value)
    if not isinstance(value, str):
        raise Refused(f"column {name!r} is not a string but {kind(value)}")
    if not value.strip():
        raise Refused(f"column {name!r} is empty or only white space")
    _check_characters(value, name)
    return value


def _check_characters(text: str, name: str) -> None:
    """Raise Refused for lone surrogates, which come from invalid UTF-8 or from JSON escapes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code, at = ord(text[error.start]), error.start + 1
        if 0xDC80 <= code <= 0xDCFF:
            what = f"is not valid UTF-8: byte 0x{code - 0xDC00:02x} at character {at}"
        else:
            what = f"holds half a character, \\u{code:04x}, at character {at}"
        raise Refused(f"column {name!r} {what}") from error
