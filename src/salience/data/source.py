"""Locate and check a source: files by path, glob or folder, or a data set by name."""

import glob
import json
import os
import re
from collections.abc import Sequence
from contextlib import closing
from difflib import get_close_matches
from hashlib import blake2b
from typing import Any, get_args

from salience.data import library
from salience.data.formats import DataSet, endings, format_of, open_file, reading
from salience.data.values import Source, Spans
from salience.errors import BadInput, choose

LIKELY = ("sentence", "content", "review", "body")
"""Common names of the text column, other than ``text``."""


def source(
    name: str | os.PathLike[str],
    *,
    text: str = "text",
    pair: str | None = None,
    id: str | None = None,
    label: str | None = None,
    rationale: str | None = None,
    spans: Spans = "characters",
    split: str | None = None,
    subset: str | None = None,
    target: str | None = None,
    keep: Sequence[str] = (),
    delimiter: str | None = None,
    chat: str | None = None,
    context: str | None = None,
    against: str | None = None,
) -> Source:
    """Describe a data source and check that it exists and has the named columns.

    ``name`` is a file, a glob, a folder or the name of a data set. All files of a glob or folder are read, sorted by
    name; they must share one format. A folder is read by the datasets library if a split or subset is named, or if it
    was written by ``save_to_disk``. A name that is not a path is a data set of that library. ``label`` is the column of
    true labels, which are kept with explanations and learnt in training; ``target`` is the column of the labels to
    explain instead of the predictions. ``rationale`` is the column of human rationales: lists of [start, end]
    ``spans``, or the words' ``sentiments``. ``keep`` names other columns that a run keeps with the explanations.
    ``delimiter`` separates the fields of CSV files, if not a comma. ``chat`` is the column of chats, lists of messages
    with role and content, which are read instead of texts; ``context`` is the column of the passages that the texts are
    questions about. For answers of language models, ``target`` is the column of the answers to explain, and ``against``
    that of the ones they are compared with.
    """
    choose(spans, get_args(Spans), "unit of spans")
    if spans == "sentiments" and rationale is not None and label is None:
        raise BadInput(
            "sentiments of words are compared with the labels of their texts; name the label column (--label-column)"
        )
    located, files = _locate(os.fspath(name), by_library=bool(split or subset))
    if files and (split or subset):
        raise BadInput(f"{located} is a file; split and subset are for folders and names of data sets")
    _check_delimiter(delimiter, files)
    if not files:
        split = library.one_split(located, subset, split)
    kept = tuple(dict.fromkeys([keep] if isinstance(keep, str) else keep))
    if chat is not None and context is not None:
        raise BadInput("a chat holds its own context; name a column of chats, or one of passages, not both")
    names = (text, pair, id, label, rationale, spans, split, subset, target, kept, delimiter, chat, context, against)
    checked = Source(located, files, *names)
    has_rows = [_has_rows(checked, file) for file in checked.files or (checked.name,)]
    if not any(has_rows):
        raise BadInput(f"{located} holds no rows; expected at least one text")
    return checked


def fingerprint(source: Source) -> dict[str, object]:
    """Identify the content of a source: the name, size and hash of each file, or the hash of a data set's rows.

    Folders are left out, so that data may be moved. Only the named columns of a data set are hashed.
    """
    if source.files:
        return {"files": [_file_print(file) for file in source.files]}
    digest = blake2b(digest_size=16)
    with closing(DataSet(source)) as opened:
        for record in opened.records(*opened.start):
            digest.update(repr(record.raw).encode())
    name = os.path.basename(source.name) if os.path.isabs(source.name) else source.name
    return {"name": name, "subset": source.subset, "split": source.split, "blake2b": digest.hexdigest()}


def described(source: Source) -> dict[str, Any]:
    """Identify what is read of a source, by its content and columns, in the values that JSON has."""
    return json.loads(json.dumps({**fingerprint(source), "columns": source.columns, "spans": source.spans}))


def _locate(name: str, *, by_library: bool) -> tuple[str, tuple[str, ...]]:
    """The name and its files; no files if the datasets library reads it."""
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        if by_library or library.saved(path):
            return os.path.abspath(path), ()
        return name, _of_one_format(name, _in_folder(path))
    if os.path.isfile(path):
        return name, _of_one_format(name, [path])
    if os.path.exists(path):
        raise BadInput(f"{name} is neither a file nor a folder; save its content to a file first")
    if re.search(r"[*?\[]", path):
        return name, _of_one_format(name, _matching(path))
    if format_of(name) is None and re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name):
        return name, ()
    raise BadInput(library.no_file(name))


def _in_folder(path: str) -> list[str]:
    files = [os.path.join(path, file) for file in os.listdir(path) if format_of(file) and not file.startswith(".")]
    files = [file for file in files if os.path.isfile(file)]
    if files:
        return files
    inner = sorted(f for f in glob.glob("**/*", root_dir=path, recursive=True) if format_of(f))
    hint = f" Its subfolders do; use a glob such as '{path}/{os.path.dirname(inner[0])}/*'." if inner else ""
    raise BadInput(f"{path} holds no data files (endings: {endings()}).{hint}")


def _matching(pattern: str) -> list[str]:
    files = [file for file in glob.glob(pattern, recursive=True) if os.path.isfile(file)]
    if not files:
        raise BadInput(f"no file matches {pattern!r}")
    return files


def _of_one_format(name: str, files: list[str]) -> tuple[str, ...]:
    """The sorted absolute paths of the files; raises BadInput unless they share one format."""
    for file in files:
        if format_of(file) is None:
            raise BadInput(f"the format of {file} is unknown; its ending must be one of {endings()}")
    if len(kinds := sorted({str(format_of(file)) for file in files})) > 1:
        some = os.path.join(name, "*.csv") if os.path.isdir(name) else "data/*.csv"
        raise BadInput(f"{name} holds files of several formats ({', '.join(kinds)}); choose one, for example {some!r}")
    return tuple(sorted(os.path.abspath(file) for file in files))


def _has_rows(source: Source, file: str) -> bool:
    """Whether a file has rows; raises BadInput if a column is missing. An empty file has no columns either."""
    with closing(open_file(source, file)) as opened:
        columns = opened.columns()
        if not columns:
            return False
        for name in source.columns:
            if columns.count(name) != 1:
                raise BadInput(no_column(file, name, columns))
        return next(opened.records(*opened.start), None) is not None


def _check_delimiter(delimiter: str | None, files: Sequence[str]) -> None:
    if delimiter is None:
        return
    if len(delimiter) != 1 or delimiter in '"\r\n\0 ' or not delimiter.isprintable() | (delimiter == "\t"):
        raise BadInput(f"the delimiter must be one character, such as ';' or '|', not {delimiter!r}")
    if not files or format_of(files[0]) not in ("CSV", "TSV"):
        raise BadInput("a delimiter is for CSV files (.csv, .tsv); other formats have none, so leave it out")


def no_column(file: str, name: str, columns: Sequence[str]) -> str:
    """The message for a column that is missing or ambiguous."""
    if separators := _other_separator(file, columns):
        return (
            f"{file} looks separated by {separators!r}, not by commas; name the delimiter: --delimiter {separators!r}"
        )
    if name in columns:
        return f"{file} has {columns.count(name)} columns {name!r}; rename one of them"
    same = [column for column in columns if column.casefold() == name.casefold()]
    likely = [column for column in columns if column in LIKELY and name == "text"]
    near = same or (likely if len(likely) == 1 else get_close_matches(name, columns, n=1, cutoff=0.5))
    hint = f" Did you mean {near[0]!r}?" if near else ""
    some = ", ".join(library.short(repr(column), 40) for column in columns[:12])
    more = f" and {len(columns) - 12} more" if len(columns) > 12 else ""
    return f"{file} has no column {name!r}.{hint} Its columns: {some}{more}."


def _other_separator(file: str, columns: Sequence[str]) -> str:
    """The character that seems to separate the fields of a CSV file whose header was read as a single column."""
    if format_of(file) != "CSV" or len(columns) > 1:
        return ""
    return max((c for c in ";\t|" if c in columns[0]), key=columns[0].count, default="")


def _file_print(file: str) -> dict[str, object]:
    digest, size = blake2b(digest_size=16), 0
    with reading(file), open(file, "rb") as stream:
        while piece := stream.read(2**20):
            digest.update(piece)
            size += len(piece)
    return {"name": os.path.basename(file), "size": size, "blake2b": digest.hexdigest()}
