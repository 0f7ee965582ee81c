"""What a language model is asked: a text, a chat, or token ids."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, cast

from salience.core.settings import fits, shortened
from salience.core.text import Part
from salience.errors import BadInput

__all__ = ["Message", "Part", "Passage", "Prompt"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat. ``parts`` are named spans of its content, such as few-shot examples."""

    role: str
    content: str
    parts: tuple[Part, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """Other fields that a chat template may read, such as ``name`` or ``tool_calls``."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A text to answer from, named by its title, if it has one."""

    text: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """A plain ``text``, the ``messages`` of a chat, or token ``ids``: exactly one of them is given.

    ``parts`` are named spans of the text. A text with parts is put in one message of the user if the model has a chat
    template. ``tools`` are the JSON schemas of functions, which the template shows to the model.
    """

    text: str = ""
    messages: tuple[Message, ...] = ()
    ids: tuple[int, ...] = ()
    parts: tuple[Part, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)

    def __post_init__(self) -> None:
        given = [bool(self.text.strip()), bool(self.messages), bool(self.ids)]
        if not any(given):
            raise BadInput("the prompt is empty or only white space; it needs at least one word")
        if sum(given) > 1:
            raise BadInput("a prompt is one of a text, messages and token ids, not several of them")
        if self.tools and not self.messages:
            raise BadInput("tools are for a chat; pass messages instead of a plain prompt")

    @classmethod
    def of(cls, prompt: object) -> "Prompt":
        """Return the prompt for a text, a list of messages, an object with ``messages`` and ``tools``, or token ids.

        >>> Prompt.of([{"role": "user", "content": "Hello"}]).messages[0].role
        'user'
        """
        if isinstance(prompt, Prompt):
            return prompt
        if isinstance(prompt, str):
            return cls(text=prompt)
        if isinstance(prompt, Mapping):
            return cls._of_object(cast(Mapping[Any, Any], prompt))
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
            raise BadInput(
                f"a prompt is a text, a list of messages or a list of token ids, not {shortened(cast(object, prompt))}"
            )
        items = cast(Sequence[object], prompt)
        if items and all(fits(item, int) for item in items):
            return cls(ids=_ids(items))
        return cls(messages=tuple(_message(item, number) for number, item in enumerate(items, 1)))

    @classmethod
    def _of_object(cls, chat: Mapping[Any, Any]) -> "Prompt":
        if "messages" not in chat:
            raise BadInput(
                f"a chat has a list of messages; expected the field 'messages', but there is {shortened(list(chat))}"
            )
        messages, tools = chat["messages"], chat.get("tools") or ()
        if not isinstance(messages, list | tuple) or not messages:
            raise BadInput("'messages' must be a list of at least one message with role and content")
        if not isinstance(tools, list | tuple) or not all(isinstance(tool, Mapping) for tool in tools):  # pyright: ignore
            raise BadInput("'tools' must be a list of objects, the JSON schemas of functions")
        pieces = tuple(_message(item, number) for number, item in enumerate(cast(Sequence[object], messages), 1))
        return cls(messages=pieces, tools=tuple(cast(Sequence[Mapping[str, Any]], tools)))

    @classmethod
    def with_context(cls, question: str, passages: Sequence[object]) -> "Prompt":
        """Return a prompt of passages and then the question, separated by blank lines.

        A passage is a text, or a ``Passage`` with a name. Each is a part of the prompt, named ``document 1`` and so on
        unless it has a name; the last part is the ``question``. White space around them is removed.

        >>> Prompt.with_context("Who?", ["Ada did.", "Bob slept."]).text
        'Ada did.\\n\\nBob slept.\\n\\nWho?'
        """
        if isinstance(passages, str) or not passages:
            raise BadInput("a question with context needs a list of at least one passage")
        if not question.strip():
            raise BadInput("the question is empty or only white space; it needs at least one word")
        documents = [_passage(item, number) for number, item in enumerate(passages, 1)]
        names = numbered(one.name or f"document {number}" for number, one in enumerate(documents, 1))
        texts = [*(one.text.strip() for one in documents), question.strip()]
        starts = accumulate((len(text) + len(BLANK_LINE) for text in texts[:-1]), initial=0)
        spans = [(start, start + len(text)) for start, text in zip(starts, texts, strict=True)]
        parts = [Part(name, *span, "document") for name, span in zip(names, spans, strict=False)]
        return cls(text=BLANK_LINE.join(texts), parts=(*parts, Part("question", *spans[-1], "question")))

    def as_chat(self) -> "Prompt":
        """The text as one message of the user, with the same parts."""
        return Prompt(messages=(Message("user", self.text, self.parts),))


BLANK_LINE = "\n\n"
"""What separates the passages and the question."""


def numbered(names: Iterable[str]) -> list[str]:
    """Number the names that occur more than once.

    >>> numbered(["system", "user", "assistant", "user"])
    ['system', 'user 1', 'assistant', 'user 2']
    """
    every = list(names)
    return [f"{name} {every[: at + 1].count(name)}" if every.count(name) > 1 else name for at, name in enumerate(every)]


def _ids(items: Sequence[Any]) -> tuple[int, ...]:
    if min(items) < 0:
        raise BadInput(f"token ids are numbered from 0, but there is {min(items)}")
    return tuple(int(i) for i in items)


def _message(item: object, number: int) -> Message:
    if isinstance(item, Message):
        _check_message(item.role, item.content, item.more, number)
        return item
    if not isinstance(item, Mapping):
        raise BadInput(f"message {number} is not an object with role and content: {shortened(item)}")
    fields = dict(cast(Mapping[str, Any], item))
    if "role" not in fields:
        raise BadInput(f"message {number} has no role; expected one such as 'user', 'assistant' or 'system'")
    role, content = fields.pop("role"), fields.pop("content", None)
    if content is None and fields.get("tool_calls"):  # the call of a tool needs no words
        content = ""
    _check_message(role, content, fields, number)
    return Message(role, str(content), more=fields)


def _check_message(role: object, content: object, more: Mapping[str, Any], number: int) -> None:
    if not isinstance(role, str) or not role:
        raise BadInput(f"the role of message {number} is not a text such as 'user': {shortened(role)}")
    if content is None:
        raise BadInput(f"message {number} has no content; expected a text")
    if not isinstance(content, str):
        raise BadInput(f"the content of message {number} is not a text: {shortened(content)}")
    if not content.strip() and not more.get("tool_calls"):
        raise BadInput(f"message {number} ({role}) is empty or only white space; it needs at least one word")


def _passage(item: object, number: int) -> Passage:
    passage = Passage(item) if isinstance(item, str) else item
    if not isinstance(passage, Passage):
        raise BadInput(f"passage {number} is not a text: {shortened(passage)}")
    if not passage.text.strip():
        raise BadInput(f"passage {number} is empty or only white space; leave it out")
    return passage
