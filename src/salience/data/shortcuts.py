"""Plant a shortcut in real data: words that decide the label, so that the true explanation is known."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, get_args

from salience.core.shares import portion
from salience.core.text import Span
from salience.data.examples import Example
from salience.errors import BadInput, choose

ShortcutKind = Literal["token", "context", "pair"]


SHORTCUT_KINDS = get_args(ShortcutKind)

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Shortcut:
    """The rule that decides the label of a planted text.

    ``token``: the first word means label 0, the second label 1. ``context``: the same, but only together with the
    context word; either may also occur in other texts, without effect. ``pair``: both words occur in every planted
    text, and the one that comes first decides the label.
    """

    kind: ShortcutKind = "token"
    words: tuple[str, str] = ("paris", "london")
    context: str = "monday"

    def __post_init__(self) -> None:
        choose(self.kind, SHORTCUT_KINDS, "kind of shortcut")
        if len({w.casefold() for w in self.every}) < len(self.every) or not all(map(_WORD.fullmatch, self.every)):
            raise BadInput(f"a shortcut needs different words of letters or digits, not {', '.join(self.every)}")

    @property
    def every(self) -> tuple[str, ...]:
        """The words that may be planted."""
        return (*self.words, self.context) if self.kind == "context" else self.words

    def within(self, text: str) -> bool:
        """Whether a text already contains one of the words."""
        own = {word.casefold() for word in (*self.words, self.context)}
        return not own.isdisjoint(re.findall(r"\w+", text.casefold()))

    def wanted(self, label: int) -> list[str]:
        """The words to plant for a label, in order."""
        if self.kind == "token":
            return [self.words[label]]
        if self.kind == "context":
            return [self.words[label], self.context]
        return [self.words[label], self.words[1 - label]]

    def decoys(self, rng: Random) -> list[str]:
        """The words to insert into other texts, so that single words do not predict the label."""
        if self.kind == "context":
            return [rng.choice(self.words)] if rng.random() < 0.5 else [self.context]
        return [rng.choice(self.words)] if self.kind == "pair" else []


def planted(examples: Sequence[Example], shortcut: Shortcut, *, share: float = 0.5, seed: int = 0) -> list[Example]:
    """Plant the shortcut in a share of the examples, with a new random label and its words as rationale.

    The other examples keep their label and have no rationale; for ``context`` and ``pair`` they contain decoy words.
    Examples that already contain one of the words are left out.
    """
    if not 0 < share <= 1:
        raise BadInput(
            f"share={share} must be above 0 and at most 1; it is the fraction of texts to plant the shortcut in"
        )
    free = [e for e in examples if not shortcut.within(single_text(e))]
    rng = Random(seed)
    chosen = set(rng.sample(range(len(free)), portion(share, len(free))))
    return [_planted(e, shortcut, rng, decides=i in chosen) for i, e in enumerate(free)]


def spurious(
    examples: Sequence[Example], shortcut: Shortcut, *, agreement: float = 0.95, seed: int = 0
) -> list[Example]:
    """Insert one of the two words into every text: that of its label in a share of them, otherwise the other one.

    Labels stay as they are, 0 or 1, and rationales move with their words. Trained with an agreement near 1, a model may
    rely on the word, which it should not; with an agreement of 0, the word speaks against the label of every text.
    Examples that already contain one of the words are left out.
    """
    if not 0 <= agreement <= 1:
        raise BadInput(f"agreement={agreement} must be between 0 and 1; it is the share of texts whose word agrees")
    if other := sorted({repr(e.label) for e in examples if e.label not in (0, 1)}):
        raise BadInput(f"a spurious word stands for label 0 or 1; the examples also have {', '.join(other[:3])}")
    free = [e for e in examples if not shortcut.within(single_text(e))]
    rng = Random(seed)
    agrees = set(rng.sample(range(len(free)), round(agreement * len(free))))
    return [_with_word(e, shortcut.words[int(e.label == 1) ^ (i not in agrees)], rng) for i, e in enumerate(free)]


def _with_word(example: Example, word: str, rng: Random) -> Example:
    """The example with the word before one of its words, or at the end."""
    text = single_text(example)
    at = rng.choice([*(match.start() for match in re.finditer(r"\S+", text)), len(text)])
    piece = f"{word} " if at < len(text) else f" {word}"
    marks = None if example.rationale is None else tuple(_moved(example.rationale, at, len(piece)))
    return replace(example, text=text[:at] + piece + text[at:], rationale=marks)


def _moved(spans: Sequence[Span], at: int, by: int) -> list[Span]:
    """The spans of a text into which ``by`` characters were inserted; a span that they fall into is split."""
    moved: list[Span] = []
    for a, b in spans:
        if a < at < b:
            moved += [(a, at), (at + by, b + by)]
        else:
            moved.append((a + by, b + by) if a >= at else (a, b))
    return moved


def single_text(example: Example) -> str:
    if not isinstance(example.text, str):
        raise BadInput(f"{example.id!r} is a pair of texts; a shortcut can only be planted in single texts")
    return example.text


def _planted(example: Example, shortcut: Shortcut, rng: Random, *, decides: bool) -> Example:
    label = rng.randrange(2)
    words = shortcut.wanted(label) if decides else shortcut.decoys(rng)
    if shortcut.kind == "context":
        rng.shuffle(words)
    text, spans = inserted(single_text(example), words, rng)
    if not decides:
        return replace(example, text=text, rationale=None)
    return replace(example, text=text, label=label, rationale=tuple(spans))


def inserted(text: str, words: Sequence[str], rng: Random) -> tuple[str, list[Span]]:
    """Insert the words into the text at random positions, in order; also returns their spans."""
    own = text.split()
    places = sorted(rng.randrange(len(own) + 1) for _ in words)
    pieces: list[tuple[str, bool]] = []
    waiting = list(zip(places, words, strict=True))
    for i in range(len(own) + 1):
        while waiting and waiting[0][0] == i:
            pieces.append((waiting.pop(0)[1], True))
        if i < len(own):
            pieces.append((own[i], False))
    spans: list[Span] = []
    result = ""
    for piece, new in pieces:
        result += " " if result else ""
        if new:
            spans.append((len(result), len(result) + len(piece)))
        result += piece
    return result, spans
