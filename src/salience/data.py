"""Texts out of files and data sets: streamed, and cut into shards that any worker can read by itself.

A row that cannot be used is handed on as ``Rejected`` with a reason in words; it stops nothing. A source that cannot be
used at all (no such file, no such column) is a ``BadInput`` before any work begins.
"""

import csv
import glob
import gzip
import io
import json
import os
import re
import zlib
from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from hashlib import blake2b
from itertools import accumulate, islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

from salience.errors import BadInput, unknown

ENDINGS = {
    ".jsonl": "JSON Lines",
    ".ndjson": "JSON Lines",
    ".json": "JSON Lines",
    ".csv": "CSV",
    ".tsv": "TSV",
    ".txt": "text",
    ".parquet": "Parquet",
}
"""Formats by the ending of a file's name. All but Parquet, which is compressed inside, may end in .gz as well."""

LIKELY = ("sentence", "content", "review", "body")
"""What the column of texts is often called where it is not called text."""

LOOK = 1000
"""Rows of JSON Lines that are looked at for a column before it is said to be missing."""

LONGEST = 2**27
"""Characters of a CSV field. The limit is there for a quotation mark that is never closed: it swallows what follows."""

STEP = 128
"""Rows of Parquet and data sets that are in memory at a time."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where texts come from, as found and checked by ``source``. Without files it is a data set's name."""

    name: str
    files: tuple[str, ...]
    text: str = "text"
    pair: str | None = None
    id: str | None = None
    split: str | None = None
    subset: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One text. ``number`` counts all rows from 0, rejected ones too; it is also the id if no column holds one.

    ``line`` counts from 1: lines of the file, or rows in Parquet and data sets.
    """

    number: int
    id: str
    text: str | tuple[str, str]
    line: int


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


def source(
    name: str | os.PathLike[str],
    *,
    text: str = "text",
    pair: str | None = None,
    id: str | None = None,
    split: str | None = None,
    subset: str | None = None,
) -> Source:
    """A file, a glob, a folder or the name of a data set, with the columns that hold the texts; checked.

    All files of a glob or folder are read, sorted by name; they share one format. A folder is handed to the datasets
    library if a split or subset is named, or if it was written by ``save_to_disk``. A name that is no path is a data
    set of that library.
    """
    found, files = _located(os.fspath(name), library=bool(split or subset))
    if files and (split or subset):
        raise BadInput(f"{found} is read as it is: split and subset are for folders and names of data sets")
    if not files:
        split = _one_split(found, subset, split)
    checked = Source(found, files, text, pair, id, split, subset)
    filled = [_has_rows(checked, file) for file in _files(checked)]
    if not any(filled):
        raise BadInput(f"{found} holds no rows; give data with at least one text")
    return checked


def fingerprint(source: Source) -> dict[str, object]:
    """What identifies the content, ready for JSON: each file's name, size and hash, or the hash of a data set's rows.

    Folders are left out, so that data may be moved. Of a data set only the named columns count.
    """
    if source.files:
        return {"files": [_file_print(file) for file in source.files]}
    digest = blake2b(digest_size=16)
    with closing(_DataSet(source)) as opened:
        for record in opened.records(*opened.start):
            digest.update(repr(record.raw).encode())
    name = os.path.basename(source.name) if os.path.isabs(source.name) else source.name
    return {"name": name, "subset": source.subset, "split": source.split, "blake2b": digest.hexdigest()}


def shards(source: Source, *, rows: int = 1000, size: int = 2**18, limit: int | None = None) -> Iterator[Shard]:
    """The source cut into shards, in order; always the same ones for the same data and arguments.

    A shard ends with the row that fills ``rows`` rows or ``size`` bytes, and where its file ends. With ``limit`` no
    more than that many rows are cut.
    """
    for name, value in {"rows": rows, "size": size, "limit": 1 if limit is None else limit}.items():
        if value < 1:
            raise BadInput(f"{name} is {value}; it must be at least 1")
    return _shards(source, rows, size, limit)


class Reader:
    """Reads shards in any order. The file of the last one stays open, so that the next is found without a new start."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._file: str | None = None
        self._opened: _Opened | None = None

    def read(self, shard: Shard) -> Iterator[Row | Rejected]:
        """The rows of a shard, in order; the shard is in memory meanwhile."""
        opened = self._open(shard.file)
        records = list(islice(opened.records(shard.place, shard.line), shard.rows))
        if len(records) < shard.rows:
            raise BadInput(f"{shard.file} ends before row {shard.first + shard.rows}; was it changed since it was cut?")
        for number, record in enumerate(records, shard.first):
            yield self._checked(opened, record, number, shard.file)

    def close(self) -> None:
        """Close the file that is open."""
        if self._opened is not None:
            self._opened.close()
        self._file = self._opened = None

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _checked(self, opened: "_Opened", record: "_Record", number: int, file: str) -> Row | Rejected:
        try:
            return _row(self._source, number, record.line, opened.cells(record.raw))
        except _Refused as why:
            return Rejected(number, file, record.line, str(why))

    def _open(self, file: str) -> "_Opened":
        if self._opened is None or self._file != file:
            self.close()
            self._file, self._opened = file, _open(self._source, file)
        return self._opened


# Where the files are


def _located(name: str, *, library: bool) -> tuple[str, tuple[str, ...]]:
    """The name and its files; no files for what the datasets library reads."""
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        if library or _saved(path):
            return os.path.abspath(path), ()
        return name, _of_one_format(name, _in_folder(path))
    if os.path.isfile(path):
        return name, _of_one_format(name, [path])
    if os.path.exists(path):
        raise BadInput(f"{name} is neither a file nor a folder; save what it gives to a file first")
    if re.search(r"[*?\[]", path):
        return name, _of_one_format(name, _matching(path))
    if _format(name) is None and re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name):
        return name, ()
    raise BadInput(_no_file(name))


def _in_folder(path: str) -> list[str]:
    files = [os.path.join(path, file) for file in os.listdir(path) if _format(file) and not file.startswith(".")]
    files = [file for file in files if os.path.isfile(file)]
    if files:
        return files
    inner = sorted(f for f in glob.glob("**/*", root_dir=path, recursive=True) if _format(f))
    hint = f" Its folders do: give a glob such as '{path}/{os.path.dirname(inner[0])}/*'." if inner else ""
    raise BadInput(f"{path} holds no data files (endings: {_endings()}).{hint}")


def _matching(pattern: str) -> list[str]:
    files = [file for file in glob.glob(pattern, recursive=True) if os.path.isfile(file)]
    if not files:
        raise BadInput(f"no file matches {pattern!r}")
    return files


def _of_one_format(name: str, files: list[str]) -> tuple[str, ...]:
    """The files sorted, with absolute paths, since workers may run elsewhere."""
    for file in files:
        if _format(file) is None:
            raise BadInput(f"the format of {file} cannot be told by its ending. Known endings: {_endings()}.")
    if len(kinds := sorted({str(_format(file)) for file in files})) > 1:
        some = os.path.join(name, "*.csv") if os.path.isdir(name) else "data/*.csv"
        raise BadInput(f"{name} holds files of several formats ({', '.join(kinds)}); name one, as in {some!r}")
    return tuple(sorted(os.path.abspath(file) for file in files))


def _format(file: str) -> str | None:
    stem, ending = os.path.splitext(file.lower())
    if ending != ".gz":
        return ENDINGS.get(ending)
    inner = ENDINGS.get(os.path.splitext(stem)[1])
    return None if inner == "Parquet" else inner


def _endings() -> str:
    return f"{', '.join(ENDINGS)}; all but .parquet also with .gz"


def _no_file(name: str) -> str:
    folder, file = os.path.split(os.path.expanduser(name))
    there = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
    near = get_close_matches(file, sorted(there), n=1)
    hint = f"; did you mean {os.path.join(folder, near[0])!r}?" if near else ""
    return f"there is no file or folder {name!r}{hint}"


def _files(source: Source) -> tuple[str, ...]:
    return source.files or (source.name,)


# What is in them


def _has_rows(source: Source, file: str) -> bool:
    """Whether there is a row; the columns are checked on the way. A file without anything has no columns either."""
    with closing(_open(source, file)) as opened:
        columns = opened.columns()
        if not columns:
            return False
        for name in _named(source):
            if columns.count(name) != 1:
                raise BadInput(_no_column(file, name, columns))
        return next(opened.records(*opened.start), None) is not None


def _named(source: Source) -> list[str]:
    """The columns that are read, each once."""
    return list(dict.fromkeys(name for name in (source.text, source.pair, source.id) if name is not None))


def _no_column(file: str, name: str, columns: Sequence[str]) -> str:
    if name in columns:
        return f"{file} has {columns.count(name)} columns {name!r}; rename one of them"
    same = [column for column in columns if column.casefold() == name.casefold()]
    likely = [column for column in columns if column in LIKELY and name == "text"]
    near = same or (likely if len(likely) == 1 else get_close_matches(name, columns, n=1, cutoff=0.5))
    hint = f" Did you mean {near[0]!r}?" if near else ""
    some = ", ".join(_short(repr(column), 40) for column in columns[:12])
    more = f" and {len(columns) - 12} more" if len(columns) > 12 else ""
    return f"{file} has no column {name!r}.{hint} Its columns: {some}{more}."


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _file_print(file: str) -> dict[str, object]:
    digest, size = blake2b(digest_size=16), 0
    with _reading(file), open(file, "rb") as stream:
        while piece := stream.read(2**20):
            digest.update(piece)
            size += len(piece)
    return {"name": os.path.basename(file), "size": size, "blake2b": digest.hexdigest()}


def _shards(source: Source, rows: int, size: int, limit: int | None) -> Iterator[Shard]:
    number = first = 0
    for file in _files(source):
        if first == limit:
            return
        with closing(_open(source, file)) as opened:
            records = islice(opened.records(*opened.start), None if limit is None else limit - first)
            for start, count, total in _groups(records, rows, size):
                yield Shard(number, file, start.place, first, start.line, count, total)
                number, first = number + 1, first + count


def _groups(records: "Iterable[_Record]", rows: int, size: int) -> "Iterator[tuple[_Record, int, int]]":
    """Consecutive records: the first, how many, and their bytes."""
    start, count, total = None, 0, 0
    for record in records:
        start, count, total = start or record, count + 1, total + record.size
        if count == rows or total >= size:
            yield start, count, total
            start, count, total = None, 0, 0
    if start is not None:
        yield start, count, total


# One row


class _Refused(Exception):
    """Why a row is rejected."""


class _Record(NamedTuple):
    """One row as it lies in its file: cutting shards needs no more, and so parses nothing that it need not."""

    place: int
    line: int
    size: int
    raw: Any


def _row(source: Source, number: int, line: int, cells: Mapping[str, object]) -> Row:
    text = _string(cells, source.text)
    given = str(number) if source.id is None else _id(cells, source.id)
    return Row(number, given, text if source.pair is None else (text, _string(cells, source.pair)), line)


def _id(cells: Mapping[str, object], name: str) -> str:
    value = cells.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return _string(cells, name)


def _string(cells: Mapping[str, object], name: str) -> str:
    """The text of a cell, if it can be one."""
    if name not in cells:
        raise _Refused(f"no column {name!r}")
    value = cells[name]
    if isinstance(value, bytes):
        value = _decoded(value)
    if not isinstance(value, str):
        raise _Refused(f"column {name!r} is not a string but {_kind(value)}")
    if not value.strip():
        raise _Refused(f"column {name!r} is empty or only white space")
    _check_characters(value, name)
    return value


def _check_characters(text: str, name: str) -> None:
    """Bytes that are not UTF-8 come as lone surrogates, and so do halves of characters from JSON."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code, at = ord(text[error.start]), error.start + 1
        if 0xDC80 <= code <= 0xDCFF:
            what = f"is not valid UTF-8: byte 0x{code - 0xDC00:02x} at character {at}"
        else:
            what = f"holds half a character, \\u{code:04x}, at character {at}"
        raise _Refused(f"column {name!r} {what}") from error


def _kind(value: object) -> str:
    """What a value is, in words."""
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


# The formats: each gives its records from any place on, and the cells of a record


@runtime_checkable
class _Opened(Protocol):
    """An open file or data set."""

    @property
    def start(self) -> tuple[int, int]:
        """The place and line where its rows begin."""
        ...

    def columns(self) -> Sequence[str]:
        """Its columns; none if there is nothing in it."""
        ...

    def records(self, place: int, line: int) -> Iterator[_Record]:
        """From a place on, which is on that line. One call at a time: it moves the file."""
        ...

    def cells(self, raw: Any) -> Mapping[str, object]:
        """The values of a record by column; raises _Refused."""
        ...

    def close(self) -> None: ...


def _open(source: Source, file: str) -> _Opened:
    if not source.files:
        return _DataSet(source)
    match _format(file):
        case "JSON Lines":
            return _JsonLines(file, source)
        case "CSV":
            return _Csv(file, ",")
        case "TSV":
            return _Csv(file, "\t")
        case "Parquet":
            return _Parquet(file, source)
        case _:
            return _Lines(file)


@contextmanager
def _reading(file: str, *also: type[Exception]) -> Generator[None]:
    """A file that is damaged or closed to us is the user's to mend."""
    try:
        yield
    except (OSError, EOFError, zlib.error, *also) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise BadInput(f"{file} cannot be read: {' '.join(said.split())}") from error


def _stream(file: str) -> tuple[io.BufferedReader, int]:
    """The unpacked bytes of a file, and where its text begins: after the mark of UTF-8, if there is one."""
    with _reading(file):
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


def _decoded(raw: bytes) -> str:
    """Bytes that are not UTF-8 become lone surrogates, which are looked for in the columns that are read."""
    return raw.decode("utf-8", "surrogateescape")


class _Lines:
    """One text per line. Lines end with a line feed alone, as other separators may be part of a text."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._stream, place = _stream(file)
        self.start = (place, 1)

    def columns(self) -> Sequence[str]:
        return ["text"]

    def records(self, place: int, line: int) -> Iterator[_Record]:
        with _reading(self._file):
            self._stream.seek(place)
            for raw in self._stream:
                if raw.strip():
                    yield _Record(place, line, len(raw), raw)
                place, line = place + len(raw), line + 1

    def cells(self, raw: bytes) -> Mapping[str, object]:
        return {"text": _decoded(raw).removesuffix("\n").removesuffix("\r")}

    def close(self) -> None:
        self._stream.close()


class _JsonLines:
    """One JSON object per line, or a string, which is the text."""

    def __init__(self, file: str, source: Source) -> None:
        self._file, self._source = file, source
        self._lines = _Lines(file)
        self.start, self.records, self.close = self._lines.start, self._lines.records, self._lines.close

    def columns(self) -> Sequence[str]:
        """Those of the first rows, until all that are wanted have been seen."""
        wanted, seen, refusals = set(_named(self._source)), dict[str, None](), list[str]()
        for record in islice(self.records(*self.start), LOOK):
            if not refusals and not seen and record.raw.lstrip().startswith(b"["):
                raise BadInput(f"{self._file} is a JSON array; write one object per line (jq -c '.[]' does)")
            try:
                seen |= dict.fromkeys(self.cells(record.raw))
            except _Refused as why:
                refusals.append(f"line {record.line} is {why}")
            if wanted <= seen.keys():
                break
        if refusals and not seen:
            raise BadInput(f"{self._file} does not hold one JSON object per line: {refusals[0]}")
        return list(seen)

    def cells(self, raw: bytes) -> Mapping[str, object]:
        try:
            value: object = json.loads(_decoded(raw.rstrip(b"\r\n")))
        except json.JSONDecodeError as error:
            raise _Refused(f"not JSON: {error.msg} at character {error.pos + 1}") from error
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits; lists in lists in lists
            raise _Refused("not JSON that can be read: a number is too long or the nesting too deep") from error
        if isinstance(value, str):
            return {self._source.text: value}
        if not isinstance(value, dict):
            raise _Refused(f"not an object or a string but {_kind(value)}")
        return value


class _Counted:
    """The lines of a stream as text, with the place and number of the one that comes next."""

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
        return _decoded(raw)


class _Csv:
    """Fields parted by a comma or tab, quoted where needed, under a header.

    Strict: a quotation mark out of place rejects its row instead of joining it with others.
    """

    WORDS = (
        ("unexpected end", "a quotation mark is opened and never closed"),
        ("expected after", "text follows a closing quotation mark; inside quotes, write a quotation mark twice"),
        ("new-line", "a carriage return stands outside quotation marks"),
        ("larger than", f"a field has more than {LONGEST} characters; is a quotation mark never closed?"),
    )

    def __init__(self, file: str, delimiter: str) -> None:
        # The csv module has one limit for the whole process; it is only ever raised.
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST))
        self._file, self._delimiter = file, delimiter
        self._stream, start = _stream(file)
        try:
            self._header, self.start = self._read_header(start)
        except BaseException:
            self.close()
            raise

    def _read_header(self, start: int) -> tuple[list[str], tuple[int, int]]:
        with _reading(self._file):
            lines = _Counted(self._stream, start, 1)
            header = next(self._records(lines), None)
        if header is None:
            return [], (lines.place, lines.line)
        if isinstance(header.raw, csv.Error):
            raise BadInput(f"the header of {self._file} is not CSV: {self._words(header.raw)}")
        return header.raw, (lines.place, lines.line)

    def columns(self) -> Sequence[str]:
        return self._header

    def records(self, place: int, line: int) -> Iterator[_Record]:
        with _reading(self._file):
            yield from self._records(_Counted(self._stream, place, line))

    def _records(self, lines: _Counted) -> Iterator[_Record]:
        """The csv module asks for no more lines than a record has, so that its end is where the lines are."""
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
                yield _Record(place, line, lines.place - place, fields)

    def cells(self, raw: list[str] | csv.Error) -> Mapping[str, object]:
        if isinstance(raw, csv.Error):
            raise _Refused(f"not CSV: {self._words(raw)}")
        if len(raw) != len(self._header):
            hint = "; quote fields that hold a separator" if len(raw) > len(self._header) else ""
            raise _Refused(f"{len(raw)} fields where the header has {len(self._header)}{hint}")
        return dict(zip(self._header, raw, strict=True))

    def _words(self, error: csv.Error) -> str:
        return next((words for said, words in self.WORDS if said in str(error)), str(error))

    def close(self) -> None:
        self._stream.close()


class _Parquet:
    """The named columns of a Parquet file. Moving on inside a row group goes on from the rows in hand."""

    def __init__(self, file: str, source: Source) -> None:
        import pyarrow
        import pyarrow.parquet

        self._file, self._source = file, source
        self._trouble = pyarrow.ArrowException
        with _reading(file, self._trouble):
            self._parquet: Any = pyarrow.parquet.ParquetFile(file, buffer_size=2**20, pre_buffer=False)
        groups: Any = self._parquet.metadata
        self._firsts = [0, *accumulate(groups.row_group(g).num_rows for g in range(groups.num_row_groups))]
        self._names = [name for name in _named(source) if name in self._parquet.schema_arrow.names]
        self._batches: Iterator[Any] = iter(())
        self._batch: Any = ()
        self._at = 0
        self.start = (0, 1)

    def columns(self) -> Sequence[str]:
        return _columns(self._parquet.schema_arrow, self._file, self._source)

    def records(self, place: int, line: int) -> Iterator[_Record]:
        with _reading(self._file, self._trouble):
            self._move(place)
            while len(self._batch):
                rest = self._batch[place - self._at :]
                yield from _table_records(rest, self._names, place, line)
                place, line = place + len(rest), line + len(rest)
                self._advance()

    def _move(self, place: int) -> None:
        """To the batch that holds the row: on from the one in hand, unless a new start at the row's group is nearer."""
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


class _DataSet:
    """A data set of the datasets library, memory-mapped by it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        data: Any = _load(source.name, source.subset, source.split)
        self._schema = data.features.arrow_schema
        self._names = [name for name in _named(source) if name in data.column_names]
        self._data: Any = data.select_columns(self._names).with_format("arrow")
        self.start = (0, 1)

    def columns(self) -> Sequence[str]:
        return _columns(self._schema, self._source.name, self._source)

    def records(self, place: int, line: int) -> Iterator[_Record]:
        for start in range(place, len(self._data), STEP):
            yield from _table_records(self._data[start : start + STEP], self._names, start, line + start - place)

    def cells(self, raw: Mapping[str, object]) -> Mapping[str, object]:
        return raw

    def close(self) -> None:
        self._data = None


def _columns(schema: Any, file: str, source: Source) -> list[str]:
    """The names of a table's columns; those of the texts must be able to hold text."""
    for name in {source.text, source.pair} & set(schema.names):
        kind = schema.types[schema.names.index(name)]
        if not re.fullmatch(r"null|(large_)?(string|binary)(_view)?", str(_plain(kind))):
            raise BadInput(f"column {name!r} of {file} holds {kind}, not text; name another column")
    return list(schema.names)


def _table_records(table: Any, names: Sequence[str], place: int, line: int) -> Iterator[_Record]:
    """The rows of a table or batch; their size is that of their strings."""
    columns = [_values(table.column(name)) for name in names]
    for row, values in enumerate(zip(*columns, strict=True)):
        size = sum(len(value) for value in values if isinstance(value, bytes))
        yield _Record(place + row, line + row, size, dict(zip(names, values, strict=True)))


def _values(column: Any) -> list[object]:
    """Strings as bytes, since Parquet does not promise that they are UTF-8; the rest as it is."""
    import pyarrow

    kind = _plain(column.type)
    if str(kind) in ("string", "large_string", "string_view"):
        return column.cast(kind).cast(pyarrow.large_binary()).to_pylist()
    return column.to_pylist()


def _plain(kind: Any) -> Any:
    """The type of the values of a column, also if it keeps each value once."""
    import pyarrow

    return kind.value_type if pyarrow.types.is_dictionary(kind) else kind


# The datasets library


def _saved(folder: str) -> bool:
    """Whether the folder was written by save_to_disk."""
    return any(os.path.isfile(os.path.join(folder, file)) for file in ("state.json", "dataset_dict.json"))


def _one_split(name: str, subset: str | None, split: str | None) -> str | None:
    """The split that is read: the one that is named, or the only one there is."""
    if split is not None:
        return split
    found: Any = _load(name, subset, None)
    if not isinstance(found, dict):
        return None
    splits: list[str] = list(found)
    if len(splits) > 1:
        raise BadInput(f"{name} has several splits: choose one with split, of {', '.join(splits)}")
    return splits[0]


def _load(name: str, subset: str | None, split: str | None) -> Any:
    """A data set, or a dict of splits if none is named."""
    import datasets

    try:
        with _quiet(datasets):
            if not _saved(name):
                return datasets.load_dataset(name, subset, split=split)
            found: Any = datasets.load_from_disk(name)
    # The library raises whatever its readers and the network raise.
    except Exception as error:
        said = _short(" ".join(str(error).split()) or type(error).__name__, 300)
        if os.path.isdir(name):
            raise BadInput(f"the datasets library cannot load {name}: {said}") from error
        raise BadInput(f"{_no_file(name)}, and the datasets library cannot load it by that name: {said}") from error
    return _part(name, found, split)


def _part(name: str, found: Any, split: str | None) -> Any:
    """A split of what was saved to disk."""
    if split is None:
        return found
    splits: list[str] = list(found) if isinstance(found, dict) else []
    if split not in splits:
        raise BadInput(unknown(split, splits, f"split of {name}") if splits else f"{name} has no splits; leave it out")
    return found[split]


@contextmanager
def _quiet(datasets: Any) -> Generator[None]:
    """Without the library's progress bars."""
    bars = datasets.is_progress_bar_enabled()
    try:
        datasets.disable_progress_bars()
        yield
    finally:
        if bars:
            datasets.enable_progress_bars()
