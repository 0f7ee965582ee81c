"""Locating the tokens of any tokenizer in a text by their characters."""

import re
from collections.abc import Iterator, Sequence
from unicodedata import combining, normalize

from salience.core.text import Span
from salience.errors import BadInput

SPECIAL = re.compile(r"\[[A-Z]+\d*\]|<[^<>\s]+>")
"""Special tokens such as [CLS], <s> or <|endoftext|>."""

UNKNOWN_TOKENS = re.compile(r"[\[<]?unk[\]>]?", re.IGNORECASE)
BYTE = re.compile(r"<0x[0-9a-f]{2}>", re.IGNORECASE)
"""A byte of a character, as written by SentencePiece."""

PENN = {"``": '"', "''": '"', "-lrb-": "(", "-rrb-": ")", "-lsb-": "[", "-rsb-": "]", "-lcb-": "{", "-rcb-": "}"}
"""The Penn Treebank's replacements for quotation marks and brackets."""

_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTED]
BYTES = {chr(b): b for b in _PRINTED} | {chr(256 + n): b for n, b in enumerate(_HIDDEN)}
"""The characters that byte-level tokenizers, such as GPT-2's, use for bytes."""


def located(text: str, tokens: Sequence[str]) -> list[Span]:
    """Return the span of each token in the text, in order; tokenizer markers (##, ▁, Ġ, @@) are ignored.

    Case, accents and the style of quotation marks are ignored, and punctuation may be missing. Unknown tokens and
    parts of characters get the text between their neighbours; the span of a special token is empty. A word that does
    not follow in the text is an error.

    >>> located("so unfair", ["[CLS]", "so", "un", "##fair"])
    [(0, 0), (0, 2), (3, 5), (5, 9)]
    >>> located("Café 東 noir", ["cafe", "[UNK]", "noir"])
    [(0, 4), (5, 6), (7, 11)]
    """
    folded, origin = _folded(text)
    spans: list[Span] = []
    at = 0
    lost: list[int] = []  # tokens that have no span yet
    word = False  # whether a whole word may be among them
    for number, token in enumerate(tokens):
        place = _place(text, folded, origin, token, at, bool(lost), word)
        if place is None:
            unknown = UNKNOWN_TOKENS.fullmatch(token) is not None
            if unknown or _is_part_of_character(token):
                lost.append(number)
                word = word or unknown
            elif _bare(token) and not SPECIAL.fullmatch(token):
                raise BadInput(
                    f"the token {token!r} does not follow at character {origin[at]} of the text, where "
                    f"{text[origin[at] :][:20].strip()!r} comes next; pass all tokens of the text in order, or offsets"
                )
            spans.append((origin[at], origin[at]))
            continue
        start, end = place
        for i in lost:
            spans[i] = _stripped(text, origin[at], origin[start])
        at, lost, word = end, [], False
        spans.append((origin[start], origin[end - 1] + 1))
    for i in lost:
        spans[i] = _stripped(text, origin[at], len(text))
    return spans


def _place(
    text: str, folded: str, origin: Sequence[int], token: str, at: int, lost: bool, word: bool
) -> tuple[int, int] | None:
    """The start and end of the token in the folded text, if it follows."""
    for spelling in _spellings(token):
        bare, _ = _folded(spelling)
        start = _after_a_word(folded, bare, at) if word and not token.startswith("##") else folded.find(bare, at)
        if start < 0 or not bare:
            continue
        exact = spelling.isascii() or not text[origin[start] : origin[start + len(bare) - 1] + 1].isascii()
        if exact and (lost or not re.search(r"\w", folded[at:start])):
            return start, start + len(bare)
    return None


def _after_a_word(folded: str, bare: str, at: int) -> int:
    """The next position that leaves room for an unknown word before it, preferably the start of a word."""
    first = at + len(folded[at:]) - len(folded[at:].lstrip()) + 1
    begins = re.compile(rf"(?<!\w){re.escape(bare)}").search(folded, first)
    return begins.start() if begins else folded.find(bare, first)


def _spellings(token: str) -> Iterator[str]:
    """Yield the ways in which the text may spell a token."""
    bare = _bare(token)
    yield bare
    if not bare.isascii() and all(c in BYTES for c in bare):
        yield bytes(BYTES[c] for c in bare).decode("utf-8", "ignore")
    if bare.lower() in PENN:
        yield PENN[bare.lower()]


def _bare(token: str) -> str:
    """Remove the markers of tokenizers."""
    inner = token[2:] if token.startswith("##") and len(token) > 2 else token
    inner = inner.removesuffix("</w>").lstrip("▁Ġ ")
    return (inner.removesuffix("@@") or inner).strip()


def _is_part_of_character(token: str) -> bool:
    """Whether the token may be only a part of a character, which cannot be located."""
    bare = _bare(token)
    return bool(BYTE.fullmatch(bare)) or (
        not bare.isascii() and all(c in BYTES for c in bare) and not re.search("[A-Za-z0-9]", bare)
    )


def _folded(text: str) -> tuple[str, list[int]]:
    """Remove case and accents; also returns the position in the text of each character, and of the end."""
    pieces = [_folded_one(c) for c in text]
    return "".join(pieces), [*(i for i, piece in enumerate(pieces) for _ in piece), len(text)]


def _folded_one(character: str) -> str:
    straight = {"‘": "'", "’": "'", "“": '"', "”": '"'}.get(character, character)
    return "".join(c for c in normalize("NFKD", straight).casefold() if not combining(c))


def _stripped(text: str, start: int, end: int) -> Span:
    """The span without surrounding white space."""
    part = text[start:end]
    begin = start + len(part) - len(part.lstrip())
    return begin, max(begin, end - (len(part) - len(part.rstrip())))
