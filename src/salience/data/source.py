"""A source found and checked: files by path, glob or folder, or a data set by name."""

import glob
import os
import re
from collections.abc import Sequence
from contextlib import closing
from difflib import get_close_matches
from hashlib import blake2b
from typing import get_args

from salience.data import library
from salience.data.formats import DataSet, endings, format_of, open_file, reading
from salience.data.values import Source, Spans
from salience.errors import BadInput, choose

LIKELY = ("sentence", "content", "review", "body")
"""What the column of texts is often called where it is not called text."""


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
) -> Source:
    """A file, a glob, a folder or the name of a data set, with the columns that hold the texts; checked.

    All files of a glob or folder are read, sorted by name; they share one format. A folder is handed to the datasets
    library if a split or subset is named, or if it was written by ``save_to_disk``. A name that is no path is a data
    set of that library. ``label`` is the column of labels, which are explained in place of those predicted, and
    learnt in training. ``rationale`` is the column of human rationales: lists of [start, end] ``spans``, or the words'
    ``sentiments``.
    """
    choose(spans, get_args(Spans), "unit of spans")
    if spans == "sentiments" and rationale is not None and label is None:
        raise BadInput(
            "sentiments of words are held against the labels of their texts; name the column (--label-column)"
        )
    found, files = _located(os.fspath(name), by_library=bool(split or subset))
    if files and (split or subset):
        raise BadInput(f"{found} is read as it is: split and subset are for folders and names of data sets")
    if not files:
        split = library.one_split(found, subset, split)
    checked = Source(found, files, text, pair, id, label, rationale, spans, split, subset)
    filled = [_has_rows(checked, file) for file in checked.files or (checked.name,)]
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
    with closing(DataSet(source)) as opened:
        for record in opened.records(*opened.start):
            digest.update(repr(record.raw).encode())
    name = os.path.basename(source.name) if os.path.isabs(source.name) else source.name
    return {"name": name, "subset": source.subset, "split": source.split, "blake2b": digest.hexdigest()}


def _located(name: str, *, by_library: bool) -> tuple[str, tuple[str, ...]]:
    """The name and its files; no files for what the datasets library reads."""
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        if by_library or library.saved(path):
            return os.path.abspath(path), ()
        return name, _of_one_format(name, _in_folder(path))
    if os.path.isfile(path):
        return name, _of_one_format(name, [path])
    if os.path.exists(path):
        raise BadInput(f"{name} is neither a file nor a folder; save what it gives to a file first")
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
    hint = f" Its folders do: give a glob such as '{path}/{os.path.dirname(inner[0])}/*'." if inner else ""
    raise BadInput(f"{path} holds no data files (endings: {endings()}).{hint}")


def _matching(pattern: str) -> list[str]:
    files = [file for file in glob.glob(pattern, recursive=True) if os.path.isfile(file)]
    if not files:
        raise BadInput(f"no file matches {pattern!r}")
    return files


def _of_one_format(name: str, files: list[str]) -> tuple[str, ...]:
    """The files sorted, with absolute paths, since workers may run elsewhere."""
    for file in files:
        if format_of(file) is None:
            raise BadInput(f"the format of {file} cannot be told by its ending. Known endings: {endings()}.")
    if len(kinds := sorted({str(format_of(file)) for file in files})) > 1:
        some = os.path.join(name, "*.csv") if os.path.isdir(name) else "data/*.csv"
        raise BadInput(f"{name} holds files of several formats ({', '.join(kinds)}); name one, as in {some!r}")
    return tuple(sorted(os.path.abspath(file) for file in files))


def _has_rows(source: Source, file: str) -> bool:
    """Whether there is a row; the columns are checked on the way. A file without anything has no columns either."""
    with closing(open_file(source, file)) as opened:
        columns = opened.columns()
        if not columns:
            return False
        for name in source.columns:
            if columns.count(name) != 1:
                raise BadInput(_no_column(file, name, columns))
        return next(opened.records(*opened.start), None) is not None


def _no_column(file: str, name: str, columns: Sequence[str]) -> str:
    if name in columns:
        return f"{file} has {columns.count(name)} columns {name!r}; rename one of them"
    same = [column for column in columns if column.casefold() == name.casefold()]
    likely = [column for column in columns if column in LIKELY and name == "text"]
    near = same or (likely if len(likely) == 1 else get_close_matches(name, columns, n=1, cutoff=0.5))
    hint = f" Did you mean {near[0]!r}?" if near else ""
    some = ", ".join(library.short(repr(column), 40) for column in columns[:12])
    more = f" and {len(columns) - 12} more" if len(columns) > 12 else ""
    return f"{file} has no column {name!r}.{hint} Its columns: {some}{more}."


def _file_print(file: str) -> dict[str, object]:
    digest, size = blake2b(digest_size=16), 0
    with reading(file), open(file, "rb") as stream:
        while piece := stream.read(2**20):
            digest.update(piece)
            size += len(piece)
    return {"name": os.path.basename(file), "size": size, "blake2b": digest.hexdigest()}
