"""Prompts and answers as tokens with character offsets."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any
from unicodedata import normalize

import regex
from transformers import PreTrainedTokenizerBase

from salience.core.executor import lock_of
from salience.core.prompts import Prompt
from salience.core.text import Encoded, Span
from salience.errors import BadInput
from salience.models.huggingface.chat import render
from salience.models.huggingface.pieces import encoding_of
from salience.models.huggingface.spelling import control_ids, spelled

_OPEN = regex.compile(r"""(?:\s|\p{Ps}|\p{Pi}|(?:^|\s|\p{Ps}|\p{Pi})["'])\Z""")
"""The end of a text that needs no space before the next word: white space, or an opening bracket or quote."""

_SPACED_WORD = regex.compile(
    r"(?V1)[[\p{L}\p{N}]--[\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Yi}"
    r"\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}\p{Tai_Tham}\p{Javanese}\p{Balinese}]]"
)
"""The first letter or digit of a word, in scripts that separate words by spaces."""


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, name: str) -> Encoded:
    """Return a prompt as the model will read it. Nothing is cut off.

    ``text`` is the rendered prompt. Control tokens are special, and of a chat all tokens outside of its messages.
    """
    if prompt.ids:
        return spelled(tokenizer, prompt.ids)
    if prompt.parts and tokenizer.chat_template:
        prompt = prompt.as_chat()
    with lock_of(tokenizer):
        return _chat(tokenizer, prompt, name) if prompt.messages else _plain(tokenizer, prompt)


def _chat(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, name: str) -> Encoded:
    """The template writes the control tokens, so none are added."""
    chat = render(tokenizer, prompt, name)
    encoding = encoding_of(tokenizer, chat.text)
    special = [not _inside(span, chat.contents) for span in encoding.offsets]
    return _encoded(chat.text, encoding, special, parts=chat.parts)


def _plain(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> Encoded:
    encoding = encoding_of(tokenizer, prompt.text, add_special_tokens=True)
    control = control_ids(tokenizer)
    special = [part is None or i in control for part, i in zip(encoding.sequence_ids, encoding.ids, strict=True)]
    if all(special):
        raise BadInput(f"the prompt has no tokens that this model's tokenizer knows: {prompt.text!r}")
    return begun_once(_encoded(prompt.text, encoding, special, parts=prompt.parts), tokenizer)


def _encoded(text: str, encoding: Any, special: Sequence[bool], **more: Any) -> Encoded:
    return Encoded(text, tuple(encoding.ids), tuple(encoding.tokens), tuple(encoding.offsets), tuple(special), **more)


def _inside(span: Span, contents: Collection[Span]) -> bool:
    """Whether a token has a character of a content, or is in one without having characters."""
    start, end = span
    return any(a < end and start < b if start < end else a < start < b for a, b in contents)


def begun_once(encoded: Encoded, tokenizer: PreTrainedTokenizerBase) -> Encoded:
    """Remove the token that begins a text if the text is written with one already."""
    bos: Any = tokenizer.bos_token_id
    written = len(encoded) > 1 and encoded.special[0] and encoded.ids[:2] == (bos, bos)
    if not written or encoded.offsets[0] != (0, 0) or encoded.offsets[1][0] != 0:
        return encoded
    rest = {
        name: getattr(encoded, name)[1:]
        for name in ("ids", "tokens", "offsets", "special", "segments")
        if getattr(encoded, name) is not None
    }
    return replace(encoded, **{**rest, "special": (True, *rest["special"][1:])})


def encode_answer(tokenizer: PreTrainedTokenizerBase, prompt: Encoded, answer: str, name: str) -> Encoded:
    """Return the tokens of an answer after a prompt, with offsets into the answer's own text.

    Where the prompt and the answer would run together, the answer begins with a space. It is tokenised together with
    the prompt, so that its first token is the one the model would say; alone, if that changes the prompt's tokens.
    """
    _check_answer(answer)
    text = f" {answer}" if _runs_together(prompt, answer) else answer
    with lock_of(tokenizer):
        encoded = _continued(tokenizer, prompt, text) or encode_target(tokenizer, text)
        read = spelled(tokenizer, encoded.ids, prompt.ids).text
    _check_read(read, answer, name)
    return encoded


def encode_separate_answer(tokenizer: PreTrainedTokenizerBase, answer: str, name: str) -> Encoded:
    """Return the tokens of an answer that does not continue the prompt: that of an encoder-decoder."""
    _check_answer(answer)
    with lock_of(tokenizer):
        encoded = encode_target(tokenizer, answer)
        read = spelled(tokenizer, encoded.ids).text
    _check_read(read, answer, name)
    return encoded


def _check_answer(answer: str) -> None:
    if not answer.strip():
        raise BadInput("the answer is empty or only white space; it needs at least one word")


def _check_read(read: str, answer: str, name: str) -> None:
    """Raise if the tokens of an answer are not its text."""
    if _letters(read) != _letters(answer):
        raise BadInput(
            f"the tokenizer of {name} reads the answer {answer!r} as {read.strip()!r}; write it in characters and "
            "case that the tokenizer keeps"
        )


def _runs_together(prompt: Encoded, answer: str) -> bool:
    """Whether a word of the answer would be joined to the prompt; after a chat, the template decides."""
    template = prompt.special[-1] and not _added(prompt)[-1]
    return not template and bool(_SPACED_WORD.match(answer)) and not _OPEN.search(prompt.text)


def _added(prompt: Encoded) -> list[bool]:
    """Which tokens the tokenizer has added: they are not in the text."""
    return [special and span == (0, 0) for special, span in zip(prompt.special, prompt.offsets, strict=True)]


def _continued(tokenizer: PreTrainedTokenizerBase, prompt: Encoded, answer: str) -> Encoded | None:
    """The rest of the tokens of prompt and answer together; None if they do not begin with the prompt's own."""
    own = [i for i, added in zip(prompt.ids, _added(prompt), strict=True) if not added]
    encoding = encoding_of(tokenizer, prompt.text + answer)
    if encoding.ids[: len(own)] != own or len(encoding.ids) == len(own):
        return None
    return _after(tokenizer, answer, encoding, len(own), len(prompt.text))


def encode_target(tokenizer: PreTrainedTokenizerBase, answer: str) -> Encoded:
    """Return the tokens of a text as one of the language of the answers, whatever they read as."""
    return _after(tokenizer, answer, encoding_of(tokenizer, answer, target=True), 0, 0)


def _after(tokenizer: PreTrainedTokenizerBase, answer: str, encoding: Any, first: int, start: int) -> Encoded:
    """The tokens from ``first`` on, for a text that starts at character ``start``."""
    ids, control = tuple(encoding.ids[first:]), control_ids(tokenizer)
    offsets = tuple((max(0, a - start), max(0, b - start)) for a, b in encoding.offsets[first:])
    return Encoded(answer, ids, tuple(encoding.tokens[first:]), offsets, tuple(i in control for i in ids))


def _letters(text: str) -> str:
    """A text without white space, for comparison."""
    return "".join(normalize("NFC", text).split())
