"""Chats as the tokenizer's own template renders them, with the place of every message."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from salience.core.prompts import Message, Part, Prompt, numbered
from salience.core.text import Span
from salience.errors import BadInput


class Chat(NamedTuple):
    """A rendered chat. ``contents`` are the spans of what the messages say, ``parts`` their names and spans."""

    text: str
    contents: list[Span]
    parts: tuple[Part, ...]


class Place(NamedTuple):
    """Where a message is in the rendered text, and how many characters of its beginning the template removed."""

    message: int
    start: int
    end: int
    removed: int


def render(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, name: str) -> Chat:
    """Render a chat, followed by what the template puts before an answer, and find its messages in the text."""
    if not tokenizer.chat_template:
        raise BadInput(f"{name} has no chat template; pass a plain prompt")
    text = _rendered(tokenizer, prompt.messages, prompt.tools, name)
    if prompt.tools and text == _rendered(tokenizer, prompt.messages, (), name):
        raise BadInput(f"the chat template of {name} does not show tools to the model; leave them out")
    places = _between_literals(tokenizer, prompt, text, name) or _searched(prompt.messages, text, name)
    contents = [(place.start, place.end) for place in places]
    return Chat(text, contents, _parts(prompt.messages, places))


def _rendered(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[Any], name: str) -> str:
    fields = [{"role": one.role, "content": one.content, **one.more} for one in messages]
    try:
        return str(
            tokenizer.apply_chat_template(fields, tools=list(tools) or None, tokenize=False, add_generation_prompt=True)
        )
    except (TemplateError, ValueError, TypeError) as error:
        roles = ", ".join(one.role for one in messages)
        reason = " ".join(str(error).split())
        raise BadInput(f"the chat template of {name} refuses these messages ({roles}): {reason}") from error


def _between_literals(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, text: str, name: str) -> list[Place] | None:
    """The places of the messages between the literal pieces of the template; None if they do not explain the text.

    The pieces are what is left of a chat whose messages are unique marks.
    """
    fence = _absent(text)
    marked = [
        Message(one.role, f"{fence}{number}{fence}" if one.content else "", more=one.more)
        for number, one in enumerate(prompt.messages)
    ]
    try:
        pieces = re.split(f"{fence}([0-9]+){fence}", _rendered(tokenizer, marked, prompt.tools, name))
    except BadInput:  # a template may read what a message says
        return None
    order = [int(number) for number in pieces[1::2]]
    if set(order) != {number for number, one in enumerate(prompt.messages) if one.content}:
        return None
    return _walked(text, pieces[::2], order, prompt.messages)


def _absent(text: str) -> str:
    """Private characters that do not occur in the text."""
    fence = "\ue000"
    while fence in text:
        fence += "\ue001"
    return fence


def _walked(
    text: str, literals: Sequence[str], order: Sequence[int], messages: Sequence[Message]
) -> list[Place] | None:
    """Read the text as literals and messages in turn. All ways are followed: spaces may belong to either."""
    ways: dict[int, tuple[Place, ...]] = {len(literals[0]): ()} if text.startswith(literals[0]) else {}
    for number, literal in zip(order, literals[1:], strict=True):
        ways = {
            at + len(form) + len(literal): (*way, Place(number, at, at + len(form), removed))
            for at, way in ways.items()
            for form, removed in _forms(messages[number].content).items()
            if text.startswith(form, at) and text.startswith(literal, at + len(form))
        }
    return list(ways[len(text)]) if len(text) in ways else None


def _forms(content: str) -> dict[str, int]:
    """The forms in which templates repeat a content, with the number of characters removed at its beginning."""
    led = len(content) - len(content.lstrip())
    return {content.strip(): led, content.lstrip(): led, content.rstrip(): 0, content: 0}


def _searched(messages: Sequence[Message], text: str, name: str) -> list[Place]:
    """The places of the messages, if each occurs in the text once, and in order."""
    places: list[Place] = []
    at = 0
    for number, message in enumerate(messages):
        if not message.content:
            continue
        form, removed = next(iter(_forms(message.content).items()))
        start = text.find(form, at)
        if start < 0 or text.count(form) > 1:
            how = "changes or leaves out" if start < 0 else "writes more than once the text of"
            raise BadInput(
                f"the chat template of {name} {how} message {number + 1} ({message.role}), so its tokens cannot be "
                "identified; change the message, or render the chat yourself and pass it as a plain prompt"
            )
        at = start + len(form)
        places.append(Place(number, start, at, removed))
    return places


def _parts(messages: Sequence[Message], places: Sequence[Place]) -> tuple[Part, ...]:
    """The messages by their roles, or the named parts of a message that has some."""
    names = numbered(messages[place.message].role for place in places)
    return tuple(
        part
        for name, place in zip(names, places, strict=True)
        for part in _moved(messages[place.message].parts, place) or [Part(name, place.start, place.end, "turn")]
    )


def _moved(parts: Sequence[Part], place: Place) -> list[Part]:
    """Parts of a message as parts of the rendered text."""

    def move(at: int) -> int:
        return min(max(at - place.removed + place.start, place.start), place.end)

    moved = [Part(part.name, move(part.start), move(part.end), part.kind) for part in parts]
    return [part for part in moved if part.start < part.end]
