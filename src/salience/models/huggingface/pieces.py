"""Tokens of a text with their character offsets, from fast tokenizers and from those of Marian models."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from transformers import PreTrainedTokenizerBase

from salience.core.text import Span
from salience.errors import BadInput

SPACE = "\u2581"
"""What SentencePiece writes for a space."""


@runtime_checkable
class Encoding(Protocol):
    """A tokenised text, as the tokenizers library returns it."""

    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def tokens(self) -> Sequence[str]: ...
    @property
    def offsets(self) -> Sequence[Span]: ...
    @property
    def sequence_ids(self) -> Sequence[int | None]:
        """0 for tokens of the text, None for those that the tokenizer has added."""
        ...


@dataclass(frozen=True, slots=True)
class Pieces:
    """A text tokenised by SentencePiece."""

    ids: list[int]
    tokens: list[str]
    offsets: list[Span]
    sequence_ids: list[int | None]


def has_offsets(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer can tell the characters of its tokens: it is fast, or that of a Marian model."""
    return bool(tokenizer.is_fast) or hasattr(tokenizer, "spm_source")


def encoding_of(
    tokenizer: PreTrainedTokenizerBase, text: str, *, add_special_tokens: bool = False, target: bool = False
) -> Encoding:
    """Tokenise a text as a whole. A ``target`` is in the language of the answers, where that has its own tokens."""
    if tokenizer.is_fast:
        output: Any = tokenizer(text, add_special_tokens=add_special_tokens, truncation=False, verbose=False)
        return output.encodings[0]
    return _pieces(tokenizer, text, add_special_tokens, target)


def _pieces(tokenizer: Any, text: str, add_special_tokens: bool, target: bool) -> Pieces:
    """The tokens of a Marian tokenizer, whose SentencePiece model tells where its normalised text comes from.

    A code of the language at the beginning, such as ``>>fr<<``, is a token that SentencePiece does not see.
    """
    given = {"text_target" if target else "text": text}
    output: Any = tokenizer(**given, add_special_tokens=add_special_tokens, truncation=False, verbose=False)
    ids: list[int] = list(output["input_ids"])
    code, rest = tokenizer.remove_language_code(text)
    model, vocabulary = _side(tokenizer, target)
    pieces: list[str] = model.encode(rest, out_type=str)
    normalised, origins = model.normalize(rest, with_offsets=True)
    tokens = [*code, *pieces]
    known = [vocabulary.get(token, vocabulary[tokenizer.unk_token]) for token in tokens]
    if ids[: len(tokens)] != known or "".join(pieces) != normalised:
        raise BadInput(
            f"the tokens of {text!r} cannot be matched to its characters; leave out special tokens of "
            f"{type(tokenizer).__name__} such as {tokenizer.eos_token}"
        )
    start, added = len(text) - len(rest), ids[len(tokens) :]
    spans = [(start + a, start + b) for a, b in _aligned(pieces, normalised, origins)]
    return Pieces(
        ids,
        [*tokens, *tokenizer.convert_ids_to_tokens(added)],
        [*((0, start) for _ in code), *spans, *((0, 0) for _ in added)],
        [*(0 for _ in tokens), *(None for _ in added)],
    )


def _side(tokenizer: Any, target: bool) -> tuple[Any, dict[str, int]]:
    """The SentencePiece model and the vocabulary of sources or of answers."""
    if not target:
        return tokenizer.spm_source, tokenizer.encoder
    return tokenizer.spm_target, tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder


def _aligned(pieces: Sequence[str], normalised: str, origins: Sequence[int]) -> list[Span]:
    """The spans of pieces in the original text. Character k of the normalised text starts at its ``origins[k]``.

    A character that becomes several, as ½ does, belongs to the pieces of all of them. The space that SentencePiece
    puts before a text has no characters.

    >>> _aligned(["▁a", "▁1", "/2"], "▁a▁1/2", [0, 0, 1, 2, 2, 2, 3])
    [(0, 1), (1, 3), (2, 3)]
    """
    spans: list[Span] = []
    for k, begin in enumerate(origins[:-1]):
        space = normalised[k] == SPACE and origins[k + 1] == begin
        end = begin if space else next((later for later in origins[k:] if later > begin), begin)
        spans.append((begin, end))
    result: list[Span] = []
    at = 0
    for piece in pieces:
        own = spans[at : at + len(piece)]
        result.append((own[0][0], max(end for _, end in own)))
        at += len(piece)
    return result
