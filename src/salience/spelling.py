"""Where the tokens of any tokenizer stand in a text, found by their letters alone."""

import re
from collections.abc import Iterator, Sequence
from unicodedata import combining, normalize

from salience.errors import BadInput
from salience.words import Span

SPECIAL = re.compile(r"\[[A-Z]+\d*\]|<[^<>\s]+>")
"""As tokenizers write them: [CLS], <s>, <|endoftext|>."""

UNKNOWN = re.compile(r"[\[<]?unk[\]>]?", re.IGNORECASE)
BYTE = re.compile(r"<0x[0-9a-f]{2}>", re.IGNORECASE)
"""A part of a character, as SentencePiece writes it."""

PENN = {"``": '"', "''": '"', "-lrb-": "(", "-rrb-": ")", "-lsb-": "[", "-rsb-": "]", "-lcb-": "{", "-rcb-": "}"}
"""What the Penn Treebank writes in place of quotation marks and brackets."""

_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTED]
BYTES = {chr(b): b for b in _PRINTED} | {chr(256 + n): b for n, b in enumerate(_HIDDEN)}
"""The letters by which byte-level tokenizers, such as GPT-2's, write bytes."""


def located(text: str, tokens: Sequence[str]) -> list[Span]:
    """The span of each token in the text, one after the other; marks of tokenizers (##, ▁, Ġ, @@) are no part of it.

    Case, accents and the kind of quotation marks do not count, and punctuation may be missing. Unknown tokens and
    parts of characters share what lies between their neighbours; the span of a special token is empty. A word that
    does not follow in the text is refused.

    >>> located("so unfair", ["[CLS]", "so", "un", "##fair"])
    [(0, 0), (0, 2), (3, 5), (5, 9)]
    >>> located("Café 東 noir", ["cafe", "[UNK]", "noir"])
    [(0, 4), (5, 6), (7, 11)]
    """
    folded, origin = _folded(text)
    found: list[Span] = []
    at = 0
    lost: list[int] = []  # tokens that wait for a span
    word = False  # whether a whole word may be among them
    for number, token in enumerate(tokens):
        place = _place(text, folded, origin, token, at, bool(lost), word)
        if place is None:
            unknown = UNKNOWN.fullmatch(token) is not None
            if unknown or _part(token):
                lost.append(number)
                word = word or unknown
            elif _bare(token) and not SPECIAL.fullmatch(token):
                raise BadInput(
                    f"the token {token!r} does not follow at character {origin[at]} of the text, where "
                    f"{text[origin[at] :][:20].strip()!r} stands; give all tokens of a text in their order, or offsets"
                )
            found.append((origin[at], origin[at]))
            continue
        start, end = place
        for i in lost:
            found[i] = _stripped(text, origin[at], origin[start])
        at, lost, word = end, [], False
        found.append((origin[start], origin[end - 1] + 1))
    for i in lost:
        found[i] = _stripped(text, origin[at], len(text))
    return found


def _place(
    text: str, folded: str, origin: Sequence[int], token: str, at: int, lost: bool, word: bool
) -> tuple[int, int] | None:
    """Where the token begins and ends in the folded text, if it follows."""
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
    """The next place that leaves something for an unknown word before it: where a word begins, if one does."""
    first = at + len(folded[at:]) - len(folded[at:].lstrip()) + 1
    begins = re.compile(rf"(?<!\w){re.escape(bare)}").search(folded, first)
    return begins.start() if begins else folded.find(bare, first)


def _spellings(token: str) -> Iterator[str]:
    """How the text may write a token."""
    bare = _bare(token)
    yield bare
    if not bare.isascii() and all(c in BYTES for c in bare):
        yield bytes(BYTES[c] for c in bare).decode("utf-8", "ignore")
    if bare.lower() in PENN:
        yield PENN[bare.lower()]


def _bare(token: str) -> str:
    """Without the marks of tokenizers."""
    inner = token[2:] if token.startswith("##") and len(token) > 2 else token
    inner = inner.removesuffix("</w>").lstrip("▁Ġ ")
    return (inner.removesuffix("@@") or inner).strip()


def _part(token: str) -> bool:
    """Whether it may be a part of a character, of which nothing can be found."""
    bare = _bare(token)
    return bool(BYTE.fullmatch(bare)) or (
        not bare.isascii() and all(c in BYTES for c in bare) and not re.search("[A-Za-z0-9]", bare)
    )


def _folded(text: str) -> tuple[str, list[int]]:
    """Without case and accents, and the place in the text of each character, and of the end."""
    pieces = [_folded_one(c) for c in text]
    return "".join(pieces), [*(i for i, piece in enumerate(pieces) for _ in piece), len(text)]


def _folded_one(character: str) -> str:
    straight = {"‘": "'", "’": "'", "“": '"', "”": '"'}.get(character, character)
    return "".join(c for c in normalize("NFKD", straight).casefold() if not combining(c))


def _stripped(text: str, start: int, end: int) -> Span:
    """A span without the white space around it."""
    part = text[start:end]
    begin = start + len(part) - len(part.lstrip())
    return begin, max(begin, end - (len(part) - len(part.rstrip())))
