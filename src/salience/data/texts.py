"""Texts from anything that holds them: strings, frames, columns, data sets, rows. Imports none of those libraries."""

import warnings
from collections.abc import Iterable, Mapping
from os.path import isfile
from pathlib import Path
from typing import Any

from salience.core.text import Text
from salience.data.examples import Example, examples
from salience.data.source import no_column
from salience.data.values import Source
from salience.errors import BadInput, SalienceWarning


def texts_of(data: object, *, text_column: str = "text", pair_column: str | None = None) -> list[Text]:
    """Return the texts, or pairs of texts, that ``data`` holds.

    That is one text or pair, an iterable of these or of dicts, a Series, or a frame or data set with the named columns.

    >>> texts_of([{"text": "A fine film.", "stars": 5}])
    ['A fine film.']
    """
    return [e.text for e in examples_of(data, text_column=text_column, pair_column=pair_column)]


def examples_of(data: object, *, text_column: str = "text", pair_column: str | None = None) -> list[Example]:
    """Return the texts as examples, numbered from 0 unless they are examples already."""
    if isinstance(data, Source):
        return examples(data)
    columns = [name for name in (text_column, pair_column) if name is not None]
    return [
        item if isinstance(item, Example) else Example(str(number), _text(item, number, columns))
        for number, item in enumerate(_items(data, columns))
    ]


def warn_about_files(texts: Iterable[object]) -> None:
    """Warn of each text that is the name of a file: it is explained as a text, and its content is not read."""
    for text in texts:
        if isinstance(text, str) and isfile(text):
            warnings.warn(
                f"{text} is a file; its name is explained, not its content. To explain the texts in it, use "
                f"--data {text} --out RUN, or salience.explain_data in Python",
                SalienceWarning,
                stacklevel=3,
            )


def in_memory(data: object) -> bool:
    """Whether the data is not the name of a source but holds the texts itself."""
    return not isinstance(data, str | Path | Source)


def _is_pair(data: object) -> bool:
    return isinstance(data, tuple) and list(map(type, data)) == [str, str]  # pyright: ignore


def _items(data: object, columns: list[str]) -> Iterable[Any]:
    if isinstance(data, str) or _is_pair(data):
        return [data]
    if isinstance(data, Mapping):
        raise BadInput(_mapping(list(data)))  # pyright: ignore
    if (names := _column_names(data)) is not None:
        for name in columns:
            if names.count(name) != 1:
                raise BadInput(f"{no_column(_kind(data), name, names)} Name it with text_column, or pair_column.")
        values = [_values(data[name]) for name in columns]  # pyright: ignore
        return values[0] if len(values) == 1 else zip(*values, strict=True)
    if isinstance(data, Path):
        raise BadInput(f"{data} is a file; read it with salience.data.source, or explain it with salience.explain_data")
    if isinstance(data, bytes | bytearray | set | frozenset) or not isinstance(data, Iterable):
        raise BadInput(f"{_kind(data)} holds no texts; pass a text, a list of texts, a DataFrame or a data set")
    return data  # pyright: ignore


def _column_names(data: Any) -> list[str] | None:
    """The columns of a frame (pandas, polars), a data set or an Arrow table; None for anything else."""
    if hasattr(data, "collect") and hasattr(data, "lazy"):
        raise BadInput("a lazy frame holds no texts yet; call its collect() first")
    names: Any = getattr(data, "column_names", None)
    names = getattr(data, "columns", None) if names is None or callable(names) else names
    if names is None or callable(names) or not hasattr(data, "__getitem__"):
        return None
    return [str(name) for name in names]


def _values(column: Any) -> list[Any]:
    return column.to_pylist() if hasattr(column, "to_pylist") else list(column)  # Arrow has scalars of its own


def _text(item: Any, number: int, columns: list[str]) -> Text:
    """The text or pair of one item; the tokenizer checks that it is not empty."""
    if isinstance(item, Mapping):
        for name in columns:
            if name not in item:
                names = [str(key) for key in item]  # pyright: ignore
                raise BadInput(f"{no_column(f'row {number}', name, names)} Name it with text_column, or pair_column.")
        item = tuple(item[name] for name in columns)  # pyright: ignore
    parts: tuple[Any, ...] = item if isinstance(item, tuple) else (item,)  # pyright: ignore
    if len(parts) not in (1, 2) or not all(isinstance(part, str) for part in parts):
        raise BadInput(f"text {number} is neither a string nor a pair of strings: {_short(item)}")
    strings = [str(part) for part in parts]
    return strings[0] if len(strings) == 1 else (strings[0], strings[1])


def _mapping(keys: list[object]) -> str:
    some = ", ".join(map(repr, keys[:5]))
    return (
        f"a dict holds texts by name ({some}), not texts; pass one of them, such as data[{keys[0] if keys else ''!r}], "
        "or a list of dicts with one text each"
    )


def _kind(data: object) -> str:
    return f"a value of type {type(data).__name__}"


def _short(item: object) -> str:
    text = repr(item)
    return text if len(text) <= 80 else f"{text[:79]}…"
