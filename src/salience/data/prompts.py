"""Chats and passages from files."""

import json
from contextlib import closing
from pathlib import Path

from salience.core.prompts import Passage, Prompt
from salience.data.formats import open_file
from salience.data.rows import all_rows
from salience.data.source import source
from salience.data.values import Rejected
from salience.errors import BadInput

NAMES = ("title", "name")
"""Columns that name a passage, the first of which is used."""


def read_chat(file: Path) -> Prompt:
    """Read a chat: a JSON list of messages with role and content, or an object with ``messages`` and ``tools``."""
    try:
        chat = json.loads(file.read_text("utf-8-sig"))
    except OSError as error:
        raise BadInput(f"the chat {file} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"the chat {file} is not JSON: {' '.join(str(error).split()) or 'nested too deeply'}") from error
    if not isinstance(chat, list | dict) or not chat:
        raise BadInput(f"the chat {file} is not a list of messages with role and content")
    return Prompt.of(chat)  # pyright: ignore[reportUnknownArgumentType]


def read_passages(file: str | Path, text: str = "text") -> list[Passage]:
    """Read passages from a file with one per row, each named by its column ``title`` or ``name`` if there is one."""
    known = source(file, text=text)
    with closing(open_file(known, known.files[0] if known.files else known.name)) as opened:
        name = next((column for column in NAMES if column in opened.columns()), None)
    if name is not None:
        known = source(file, text=text, keep=[name])
    passages: list[Passage] = []
    for row in all_rows(known):
        if isinstance(row, Rejected):
            raise BadInput(f"the passage on line {row.line} of {row.file} cannot be used: {row.reason}; leave it out")
        passages.append(Passage(str(row.text), dict(row.kept).get(str(name))))
    return passages
