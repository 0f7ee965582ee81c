"""Readers of the file formats: each yields records from any position, and the cells of a record."""

import csv
import gzip
import io
import json
import os
import re
import zlib
from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

from salience.data import library
from salience.data.values import Source
from salience.errors import BadInput

ENDINGS = {
    ".jsonl": "JSON Lines",
    ".ndjson": "JSON Lines",
    ".json": "JSON Lines",
    ".csv": "CSV",
    ".tsv": "TSV",
    ".txt": "text",
    ".parquet": "Parquet",
}
"""Formats by file extension. All but Parquet, which is compressed internally, may also end in .gz."""

LOOK = 1000
"""Rows of JSON Lines to search for a column before it counts as missing."""

LONGEST = 2**27
"""Maximum characters of a CSV field, in case a quotation mark is never closed."""

STEP = 128
"""Rows of Parquet files and data sets to hold in memory at a time."""


def format_of(file: str) -> str | None:
    stem, ending = os.path.splitext(file.lower())
    if ending != ".gz":
        return ENDINGS.get(ending)
    inner = ENDINGS.get(os.path.splitext(stem)[1])
    return None if inner == "Parquet" else inner


def endings() -> str:
    return f"{', '.join(ENDINGS)}; all but .parquet also with .gz"


class Refused(Exception):
    """Raised with the reason why a row is rejected."""


class Record(NamedTuple):
    """One unparsed row of a file, which is all that cutting shards needs."""

    place: int
    line: int
    size: int
    raw: Any


def kind(value: object) -> str:
    """Describe the type of a JSON value."""
    if value is None:
        return "null"
    words: dict[type, str] = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
    }
    return words.get(type(value), f"a value of type {type(value).__name__}")


@runtime_checkable
class Opened(Protocol):
    """An open file or data set."""

    @property
    def start(self) -> tuple[int, int]:
        """The position and line of the first row."""
        ...

    def columns(self) -> Sequence[str]:
        """The names of the columns; none if the file is empty."""
        ...

    def records(self, place: int, line: int) -> Iterator[Record]:
        """Yield records from a position, which is on the given line. Only one call may be active at a time."""
        ...

    def cells(self, raw: Any) -> Mapping[str, object]:
        """Parse a record into values by column; raises Refused."""
        ...

    def close(self) -> None: ...


def open_file(source: Source, file: str) -> Opened:
    if not source.files:
        return DataSet(source)
    match format_of(file):
        case "JSON Lines":
            return _JsonLines(file, source)
        case "CSV":
            return _Csv(file, source.delimiter or ",")
        case "TSV":
            return _Csv(file, source.delimiter or "\t")
        case "Parquet":
            return _Parquet(file, source)
        case _:
            return _Lines(file)


@contextmanager
def reading(file: str, *also: type[Exception]) -> Generator[None]:
    """Convert errors of reading a file to BadInput."""
    try:
        yield
    except (OSError, EOFError, zlib.error, *also) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise BadInput(f"{file} cannot be read: {' '.join(reason.split())}") from error


def _stream(file: str) -> tuple[io.BufferedReader, int]:
    """Open the (decompressed) bytes of a file; also returns where the text starts, after a UTF-8 byte order mark."""
    with reading(file):
        raw: Any = gzip.GzipFile(file) if file.lower().endswith(".gz") else io.FileIO(file)
        stream = io.BufferedReader(raw, 2**16)
        try:
            head = stream.read(3)
            if head.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise BadInput(f"{file} is UTF-16; save it as UTF-8 (iconv -f UTF-16 -t UTF-8)")
        except BaseException:
            stream.close()
            raise
    return stream, 3 if head == b"\xef\xbb\xbf" else 0


def decoded(raw: bytes) -> str:
    """Decode UTF-8; invalid bytes become lone surrogates, which are rejected in the columns that are read."""
    return raw.decode("utf-8", "surrogateescape")


class _Lines:
    """One text per line. Only line feeds end a line, since other separators may be part of a text."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._stream, place = _stream(file)
        self.start = (place, 1)

    def columns(self) -> Sequence[str]:
        return ["text"]

    def records(self, place: int, line: int) -> Iterator[Record]:
        with reading(self._file):
            self._stream.seek(place)
            for raw in self._stream:
                if raw.strip():
                    yield Record(place, line, len(raw), raw)
                place, line = place + len(raw), line + 1

    def cells(self, raw: bytes) -> Mapping[str, object]:
        return {"text": decoded(raw).removesuffix("\n").removesuffix("\r")}

    def close(self) -> None:
        self._stream.close()


class _JsonLines:
    """One JSON object per line, or one JSON string that is the text."""

    def __init__(self, file: str, source: Source) -> None:
        self._file, self._source = file, source
        self._lines = _Lines(file)
        self.start, self.records, self.close = self._lines.start, self._lines.records, self._lines.close

    def columns(self) -> Sequence[str]:
        """The columns of the first rows, up to the row where all requested ones have occurred."""
        requested, seen, refusals = set(self._source.columns), dict[str, None](), list[str]()
        for record in islice(self.records(*self.start), LOOK):
            if not refusals and not seen and record.raw.lstrip().startswith(b"["):
                raise BadInput(f"{self._file} is a JSON array; write one object per line, for example with jq -c '.[]'")
            try:
                seen |= dict.fromkeys(self.cells(record.raw))
            except Refused as why:
                refusals.append(f"line {record.line} is {why}")
            if requested <= seen.keys():
                break
        if refusals and not seen:
            raise BadInput(f"{self._file} does not hold one JSON object per line: {refusals[0]}")
        return list(seen)

    def cells(self, raw: bytes) -> Mapping[str, object]:
        try:
            value: object = json.loads(decoded(raw.rstrip(b"\r\n")))
        except json.JSONDecodeError as error:
            raise Refused(f"not JSON: {error.msg} at character {error.pos + 1}") from error
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits, deeply nested lists
            raise Refused("not JSON that can be read: a number is too long or the nesting too deep") from error
        if isinstance(value, str):
            return {self._source.text: value}
        if not isinstance(value, dict):
            raise Refused(f"not an object or a string but {kind(value)}")
        return value


class _Counted:
    """The lines of a stream as text, with the position and number of the next line."""

    def __init__(self, stream: io.BufferedReader, place: int, line: int) -> None:
        self._stream, self.place, self.line = stream, place, line
        stream.seek(place)

    def __iter__(self) -> "_Counted":
        return self

    def __next__(self) -> str:
        raw = self._stream.readline()
        if not raw:
            raise StopIteration
        self.place, self.line = self.place + len(raw), self.line + 1
        return decoded(raw)


class _Csv:
    """Fields separated by commas or tabs, with optional quotes and a header.

    Parsing is strict: a misplaced quotation mark rejects its row instead of joining it with others.
    """

    WORDS = (
        ("unexpected end", "a quotation mark is opened and never closed"),
        ("expected after", "text follows a closing quotation mark; inside quotes, write a quotation mark twice"),
        ("new-line", "a carriage return outside quotation marks"),
        ("larger than", f"a field has more than {LONGEST} characters; is a quotation mark never closed?"),
    )

    def __init__(self, file: str, delimiter: str) -> None:
        # The csv module has one limit per process; never lower it.
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST))
        self._file, self._delimiter = file, delimiter
        self._stream, start = _stream(file)
        try:
            self._header, self.start = self._read_header(start)
        except BaseException:
            self.close()
            raise

    def _read_header(self, start: int) -> tuple[list[str], tuple[int, int]]:
        with reading(self._file):
            lines = _Counted(self._stream, start, 1)
            header = next(self._records(lines), None)
        if header is None:
            return [], (lines.place, lines.line)
        if isinstance(header.raw, csv.Error):
            raise BadInput(f"the header of {self._file} is not CSV: {self._words(header.raw)}")
        return header.raw, (lines.place, lines.line)

    def columns(self) -> Sequence[str]:
        return self._header

    def records(self, place: int, line: int) -> Iterator[Record]:
        with reading(self._file):
            yield from self._records(_Counted(self._stream, place, line))

    def _records(self, lines: _Counted) -> Iterator[Record]:
        """Parse records. The csv module reads only the lines of a record, so the position after it is its end."""
        reader = csv.reader(lines, delimiter=self._delimiter, strict=True)
        while True:
            place, line = lines.place, lines.line
            try:
                fields: object = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                fields = error
            if fields:  # a blank line has none
                yield Record(place, line, lines.place - place, fields)

    def cells(self, raw: list[str] | csv.Error) -> Mapping[str, object]:
        if isinstance(raw, csv.Error):
            raise Refused(f"not CSV: {self._words(raw)}")
        if len(raw) != len(self._header):
            hint = "; quote fields that hold a separator" if len(raw) > len(self._header) else ""
            raise Refused(f"{len(raw)} fields where the header has {len(self._header)}{hint}")
        return dict(zip(self._header, raw, strict=True))

    def _words(self, error: csv.Error) -> str:
        return next((words for part, words in self.WORDS if part in str(error)), str(error))

    def close(self) -> None:
        self._stream.close()


class _Parquet:
    """The named columns of a Parquet file. Moving forward within a row group continues from the current batch."""

    def __init__(self, file: str, source: Source) -> None:
        import pyarrow
        import pyarrow.parquet

        self._file, self._source = file, source
        self._error = pyarrow.ArrowException
        with reading(file, self._error):
            self._parquet: Any = pyarrow.parquet.ParquetFile(file, buffer_size=2**20, pre_buffer=False)
        groups: Any = self._parquet.metadata
        self._firsts = [0, *accumulate(groups.row_group(g).num_rows for g in range(groups.num_row_groups))]
        self._names = [name for name in source.columns if name in self._parquet.schema_arrow.names]
        self._batches: Iterator[Any] = iter(())
        self._batch: Any = ()
        self._at = 0
        self.start = (0, 1)

    def columns(self) -> Sequence[str]:
        return _columns(self._parquet.schema_arrow, self._file, self._source)

    def records(self, place: int, line: int) -> Iterator[Record]:
        with reading(self._file, self._error):
            self._move(place)
            while len(self._batch):
                rest = self._batch[place - self._at :]
                yield from _table_records(rest, self._names, place, line)
                place, line = place + len(rest), line + len(rest)
                self._advance()

    def _move(self, place: int) -> None:
        """Move to the batch of a row: forward from the current batch, or from the start of its group if nearer."""
        group, following = (bisect_right(self._firsts, row) - 1 for row in (place, self._at + len(self._batch)))
        if not len(self._batch) or place < self._at or group > following:
            self._at, self._batch = self._firsts[group], ()
            groups = range(group, len(self._firsts) - 1)
            self._batches = self._parquet.iter_batches(STEP, groups, self._names, use_threads=False)
            self._advance()
        while len(self._batch) and place >= self._at + len(self._batch):
            self._advance()

    def _advance(self) -> None:
        self._at += len(self._batch)
        self._batch = next((batch for batch in self._batches if len(batch)), ())

    def cells(self, raw: Mapping[str, object]) -> Mapping[str, object]:
        return raw

    def close(self) -> None:
        self._parquet.close()


class DataSet:
    """A data set of the datasets library, memory-mapped."""

    def __init__(self, source: Source) -> None:
        self._source = source
        data: Any = library.load(source.name, source.subset, source.split)
        self._schema = data.features.arrow_schema
        self._names = [name for name in source.columns if name in data.column_names]
        self._data: Any = data.select_columns(self._names).with_format("arrow")
        self.start = (0, 1)

    def columns(self) -> Sequence[str]:
        return _columns(self._schema, self._source.name, self._source)

    def records(self, place: int, line: int) -> Iterator[Record]:
        for start in range(place, len(self._data), STEP):
            yield from _table_records(self._data[start : start + STEP], self._names, start, line + start - place)

    def cells(self, raw: Mapping[str, object]) -> Mapping[str, object]:
        return raw

    def close(self) -> None:
        self._data = None


def _columns(schema: Any, file: str, source: Source) -> list[str]:
    """The column names of a table; raises BadInput if a text column does not hold text."""
    for name in {source.text, source.pair} & set(schema.names):
        kind = schema.types[schema.names.index(name)]
        if not re.fullmatch(r"null|(large_)?(string|binary)(_view)?", str(_plain(kind))):
            raise BadInput(f"column {name!r} of {file} holds {kind}, not text; choose another column")
    return list(schema.names)


def _table_records(table: Any, names: Sequence[str], place: int, line: int) -> Iterator[Record]:
    """The rows of a table or batch; their size counts only strings."""
    columns = [_values(table.column(name)) for name in names]
    for row, values in enumerate(zip(*columns, strict=True)):
        size = sum(len(value) for value in values if isinstance(value, bytes))
        yield Record(place + row, line + row, size, dict(zip(names, values, strict=True)))


def _values(column: Any) -> list[object]:
    """The values of a column, with strings as bytes, since Parquet does not guarantee valid UTF-8."""
    import pyarrow

    kind = _plain(column.type)
    if str(kind) in ("string", "large_string", "string_view"):
        return column.cast(kind).cast(pyarrow.large_binary()).to_pylist()
    return column.to_pylist()


def _plain(kind: Any) -> Any:
    """The type of a column's values, also for dictionary-encoded columns."""
    import pyarrow

    return kind.value_type if pyarrow.types.is_dictionary(kind) else kind
