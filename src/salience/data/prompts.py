"""Prompts from files: chats, and passages to answer from."""

import gzip
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import cast

from salience.core.prompts import Passage, Prompt
from salience.core.settings import shortened
from salience.data.formats import format_of, reading
from salience.data.rows import all_rows
from salience.data.source import Source, source
from salience.data.values import Rejected, Row
from salience.errors import BadInput

NAMES = ("title", "name")
"""The columns that may name a passage."""


def read_chat(path: str | os.PathLike[str]) -> Prompt:
    """Read a chat from a JSON file: a list of messages, or an object with ``messages`` and, if any, ``tools``."""
    text = _text(path)
    try:
        return Prompt.of({"messages": chat} if isinstance(chat := json.loads(text), list) else _object(chat))
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadInput(f"{path} is not JSON: {error}") from error
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error


def _object(chat: object) -> object:
    if not isinstance(chat, dict):
        raise BadInput("expected a list of messages, or an object with messages")
    return chat  # pyright: ignore[reportUnknownVariableType]


def read_passages(path: str | os.PathLike[str]) -> list[Passage]:
    """Read passages from a file of one per row, with a column ``text`` and perhaps ``title`` or ``name``.

    The passages of a file that ends in .txt are separated by blank lines.
    """
    if format_of(os.fspath(path)) == "text":
        passages = [Passage(piece.strip()) for piece in re.split(r"\n[^\S\n]*\n", _text(path)) if piece.strip()]
    else:
        passages = _rows(path)
    if not passages:
        raise BadInput(f"{path} holds no passages")
    return passages


def prompt_reader(source: Source | None) -> Callable[[Row], Prompt]:
    """Return what reads the prompt of a row: its text, its chat, or its passages with its text as the question."""
    if source is not None and source.chat is not None:
        return lambda row: Prompt.of(json.loads(str(row.text)))
    if source is not None and source.context is not None:
        return lambda row: Prompt.with_context(str(row.text), passages_of(json.loads(str(row.context))))
    return lambda row: Prompt.of(row.text)


def passages_of(items: Sequence[object]) -> list[object]:
    """Passages as they are written in a list: texts, or objects with ``text`` and perhaps ``title`` or ``name``."""
    return [_passage(item) for item in items]


def _passage(item: object) -> object:
    if not isinstance(item, Mapping):
        return item
    fields = cast(Mapping[str, object], item)
    if not isinstance(text := fields.get("text"), str):
        raise BadInput(f"a passage is a text, or an object with 'text'; there is {shortened(dict(fields))}")
    return Passage(text, next((str(fields[key]) for key in NAMES if fields.get(key)), None))


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt of a data set, with its answer if there is a column of answers."""

    id: str
    prompt: Prompt
    answer: str | None


def read_prompts(data: Source, answer_column: str | None = None, limit: int | None = None) -> list[Asked]:
    """Read the prompts of a data set, one per row, with their answers."""
    rows: list[Asked] = []
    read = prompt_reader(data)
    for row in islice(all_rows(replace(data, target=answer_column)), limit):
        if isinstance(row, Rejected):
            raise BadInput(f"line {row.line} of {row.file}: {row.reason}")
        if row.target is not None and not isinstance(row.target, str):
            raise BadInput(f"line {row.line} of {data.name}: its answer is {row.target!r}; expected a text")
        try:
            rows.append(Asked(str(row.id), read(row), row.target))
        except BadInput as error:
            raise BadInput(f"line {row.line} of {data.name}: {error}") from error
    if not rows:
        raise BadInput(f"{data.name} holds no prompts")
    return rows


def _rows(path: str | os.PathLike[str]) -> list[Passage]:
    passages: list[Passage] = []
    for row in all_rows(replace(source(path), keep=NAMES)):
        if isinstance(row, Rejected):
            raise BadInput(f"line {row.line} of {row.file}: {row.reason}")
        named = dict(row.kept)
        passages.append(Passage(str(row.text), next((named[key] for key in NAMES if named[key]), None)))
    return passages


def _text(path: str | os.PathLike[str]) -> str:
    with reading(os.fspath(path), UnicodeDecodeError):
        raw = Path(path).read_bytes()
        unpacked = gzip.decompress(raw) if os.fspath(path).lower().endswith(".gz") else raw
        return unpacked.decode("utf-8-sig").replace("\r\n", "\n")
