"""Ground truth that is known: a shortcut is planted in real data, a model learns it, and methods must point at it.

Most tests of explanations compare them with other things that are not known for sure. Here the planted words decide
the label and nothing else does, so that an explanation of a model that has learnt them is right or wrong.

Paper: Bastings et al. 2022, "Will You Find These Shortcuts?", arXiv:2111.07367
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import nan
from random import Random
from typing import Any, Literal, get_args

import numpy as np

from salience.errors import BadInput, BadModel, choose
from salience.evaluation import CONTROLS
from salience.explainer import AnyMethod, each_layer, explain_all, listed, prepare
from salience.explanation import Explanation
from salience.guards import accuracy
from salience.lessons import Example, marked, read
from salience.stats import Estimate, Resampled
from salience.types import Model, Target
from salience.words import Span
from salience.work import columns

Kind = Literal["token", "context", "pair"]
KINDS = get_args(Kind)

LEARNT = 0.95
"""The least accuracy on planted texts at which a model is said to use the shortcut."""


@dataclass(frozen=True, slots=True)
class Shortcut:
    """What decides the label of a planted text.

    ``token``: the first of the words stands for label 0, the second for label 1. ``context``: so they do beside the
    context word, and both stand in other texts to no effect. ``pair``: both stand in every planted text, and the
    label is that of the word that comes first.
    """

    kind: Kind = "token"
    words: tuple[str, str] = ("kappa", "sigma")
    context: str = "omega"

    def __post_init__(self) -> None:
        choose(self.kind, KINDS, "kind of shortcut")

    def wanted(self, label: int) -> list[str]:
        """The words of a planted text, in their order where it matters."""
        if self.kind == "token":
            return [self.words[label]]
        if self.kind == "context":
            return [self.words[label], self.context]
        return [self.words[label], self.words[1 - label]]

    def decoys(self, dice: Random) -> list[str]:
        """What other texts hold, so that the words alone tell nothing."""
        if self.kind == "context":
            return [dice.choice(self.words)] if dice.random() < 0.5 else [self.context]
        return [dice.choice(self.words)] if self.kind == "pair" else []


def planted(given: Sequence[Example], shortcut: Shortcut, *, share: float = 0.5, seed: int = 0) -> list[Example]:
    """The examples with the shortcut in a share of them; its words are their rationale, and their label is drawn anew.

    The others keep their label and have no rationale; where the words alone must tell nothing, they hold some too.
    """
    if not 0 < share <= 1:
        raise BadInput(f"share={share} is not above 0 and at most 1; it is the part of the texts that is planted")
    dice = Random(seed)
    chosen = set(dice.sample(range(len(given)), round(share * len(given))))
    return [_planted(e, shortcut, dice, decides=i in chosen) for i, e in enumerate(given)]


def _planted(example: Example, shortcut: Shortcut, dice: Random, *, decides: bool) -> Example:
    if not isinstance(example.text, str):
        raise BadInput(f"{example.id!r} is a pair of texts; a shortcut is planted in single ones")
    if any(word in example.text.split() for word in (*shortcut.words, shortcut.context)):
        raise BadInput(f"{example.id!r} holds a word of the shortcut already; choose other words")
    label = dice.randrange(2)
    words = shortcut.wanted(label) if decides else shortcut.decoys(dice)
    if shortcut.kind == "context":
        dice.shuffle(words)
    text, spans = inserted(example.text, words, dice)
    if not decides:
        return replace(example, text=text, rationale=None)
    return replace(example, text=text, label=label, rationale=tuple(spans))


def inserted(text: str, words: Sequence[str], dice: Random) -> tuple[str, list[Span]]:
    """The words at random places among those of the text, in the order given, with their spans."""
    own = text.split()
    places = sorted(dice.randrange(len(own) + 1) for _ in words)
    pieces: list[tuple[str, bool]] = []
    waiting = list(zip(places, words, strict=True))
    for i in range(len(own) + 1):
        while waiting and waiting[0][0] == i:
            pieces.append((waiting.pop(0)[1], True))
        if i < len(own):
            pieces.append((own[i], False))
    spans: list[Span] = []
    made = ""
    for piece, new in pieces:
        made += " " if made else ""
        if new:
            spans.append((len(made), len(made) + len(piece)))
        made += piece
    return made, spans


@dataclass(frozen=True, slots=True)
class Found:
    """How well a method points at what was planted, over the planted texts."""

    precision: Estimate
    """Of the k highest-scoring tokens, k being how many were planted: the share that was."""
    rank: Estimate
    """The mean place of the planted tokens from 0, the highest score, to 1, the lowest; 0.5 is chance."""


def pointed(
    model: Model,
    given: Sequence[Example],
    method: AnyMethod | Sequence[AnyMethod],
    *,
    report: Callable[[int, int], None] | None = None,
    seed: int = 0,
    **settings: Any,
) -> dict[str, Found]:
    """Each method's explanations of the planted texts, held against what was planted, controls included.

    A model that does not use the shortcut is refused: its explanations could be right and yet miss it.
    """
    texts = [e for e in given if e.rationale]
    if not texts:
        raise BadInput("no text has a planted shortcut")
    if (learnt := accuracy(model, texts)) < LEARNT:
        raise BadModel(
            f"{model.name} decides {learnt:.0%} of the planted texts as the shortcut does, less than {LEARNT:.0%}: it "
            "has not learnt it. Train longer, or plant it in more texts."
        )
    asked = each_layer(model, prepare([*(m for m in listed(method) if m not in CONTROLS), *CONTROLS], settings))
    encoded = read(model, texts)
    wanted = [Target(e.label if isinstance(e.label, str | int) else None) for e in texts]
    rows = explain_all(model, encoded, asked, wanted, report=report)
    marks = [np.array(marked(e.rationale or (), seen)) > 0 for e, seen in zip(texts, encoded, strict=True)]
    table = np.array([[_pointed(x, own) for x in row] for row, own in zip(rows, marks, strict=True)])
    drawn = [Resampled.of(table[:, :, i], seed=seed) for i in range(2)]
    return {name: Found(*(one.estimate(column) for one in drawn)) for column, name in enumerate(columns(asked))}


def _pointed(e: Explanation, marks: np.ndarray) -> tuple[float, float]:
    """Precision at k, and the mean place."""
    content = ~np.array(e.special)
    scores, truth = np.array(e.scores)[content], marks[content]
    order = np.argsort(-scores, kind="stable")
    k, n = int(truth.sum()), len(truth)
    if not k:
        return nan, nan  # the text was cut before them
    places = np.flatnonzero(truth[order])
    # The best mean place of k tokens is (k − 1) / 2, and the worst n − 1 − (k − 1) / 2.
    least = (k - 1) / 2
    return float(truth[order[:k]].mean()), float((places.mean() - least) / max(1, n - k))
