"""Ground truth that is known: a shortcut is planted in real data, a model learns it, and methods must point at it.

Most tests of explanations compare them with other things that are not known for sure. Here the planted words decide
the label and nothing else does, so that an explanation of a model that has learnt them is right or wrong.

Paper: Bastings et al. 2022, "Will You Find These Shortcuts?", arXiv:2111.07367
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from random import Random
from typing import Any, Literal, get_args

import numpy as np

from salience.errors import BadInput, NotLearnt, choose
from salience.evaluation import CONTROLS
from salience.explainer import AnyMethod, each_layer, explain_all, listed, prepare
from salience.explanation import Explanation
from salience.guards import accuracy
from salience.lessons import Example, marked, read
from salience.stats import Estimate, Resampled
from salience.train import Recipe, Step, fit
from salience.types import Make, Model, Target
from salience.words import Span
from salience.work import columns

Kind = Literal["token", "context", "pair"]
KINDS = get_args(Kind)

LEARNT = 0.95
"""The least accuracy on planted texts at which a model is said to use the shortcut."""

ENOUGH = 20
"""Planted texts, at least, by which it is told: a few could be decided as planted by luck."""

LOOSE = 0.75
"""The largest share of texts that may go on as planted once the context is gone. Chance is a half."""


@dataclass(frozen=True, slots=True)
class Shortcut:
    """What decides the label of a planted text.

    ``token``: the first of the words stands for label 0, the second for label 1. ``context``: so they do beside the
    context word, and both stand in other texts to no effect. ``pair``: both stand in every planted text, and the
    label is that of the word that comes first.
    """

    kind: Kind = "token"
    words: tuple[str, str] = ("paris", "london")
    context: str = "monday"

    def __post_init__(self) -> None:
        choose(self.kind, KINDS, "kind of shortcut")
        every = (*self.words, self.context)
        if len({word.casefold() for word in every}) < 3 or not all(re.fullmatch(r"\w+", word) for word in every):
            raise BadInput(f"a shortcut takes three different words, each of letters or digits: {', '.join(every)}")

    def within(self, text: str) -> bool:
        """Whether a text holds one of the words by itself."""
        own = {word.casefold() for word in (*self.words, self.context)}
        return not own.isdisjoint(re.findall(r"\w+", text.casefold()))

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
    Texts that hold one of the words by themselves are left out.
    """
    if not 0 < share <= 1:
        raise BadInput(f"share={share} is not above 0 and at most 1; it is the part of the texts that is planted")
    free = [e for e in given if not shortcut.within(_single(e))]
    dice = Random(seed)
    chosen = set(dice.sample(range(len(free)), round(share * len(free))))
    return [_planted(e, shortcut, dice, decides=i in chosen) for i, e in enumerate(free)]


def _single(example: Example) -> str:
    if not isinstance(example.text, str):
        raise BadInput(f"{example.id!r} is a pair of texts; a shortcut is planted in single ones")
    return example.text


def _planted(example: Example, shortcut: Shortcut, dice: Random, *, decides: bool) -> Example:
    label = dice.randrange(2)
    words = shortcut.wanted(label) if decides else shortcut.decoys(dice)
    if shortcut.kind == "context":
        dice.shuffle(words)
    text, spans = inserted(_single(example), words, dice)
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
class Learnt:
    """Whether a model uses the shortcut, measured on planted texts that it was not trained on."""

    accuracy: float
    """Texts decided as planted. Their labels are drawn by lot, so that nothing else could tell."""
    without: float | None
    """The same texts without the context word: chance, if the word beside it is read in its context."""

    @property
    def used(self) -> bool:
        return self.accuracy >= LEARNT and (self.without is None or self.without <= LOOSE)

    def __str__(self) -> str:
        more = "" if self.without is None else f", and {self.without:.0%} of them without the context word too"
        return f"{self.accuracy:.0%} of the planted texts are decided as planted{more}"


def learnt(model: Model, given: Sequence[Example], shortcut: Shortcut) -> Learnt:
    """How far the model follows what was planted."""
    texts = [e for e in given if e.rationale]
    if len(texts) < ENOUGH:
        raise BadInput(f"{len(texts)} texts have a planted shortcut; it takes {ENOUGH} to tell whether a model uses it")
    alone = [_without(e, shortcut.context) for e in texts] if shortcut.kind == "context" else None
    return Learnt(accuracy(model, texts), None if alone is None else accuracy(model, alone))


def _without(example: Example, word: str) -> Example:
    text = _single(example)
    ((a, b),) = (span for span in example.rationale or () if text[slice(*span)] == word)
    return replace(example, text=f"{text[:a].rstrip()} {text[b:].lstrip()}".strip(), rationale=None)


@dataclass(frozen=True, slots=True)
class Found:
    """How well a method points at what was planted, over the planted texts."""

    precision: Estimate
    """Of the k highest-scoring tokens, k being how many were planted: the share that was."""
    rank: Estimate
    """The mean place of the planted tokens from 0, the highest score, to 1, the lowest; 0.5 is chance."""


@dataclass(frozen=True, slots=True)
class Result:
    """One shortcut, planted and learnt, and how well each method points at it."""

    shortcut: Shortcut
    model: str
    epochs: int
    """After which the model used it."""
    learnt: Learnt
    texts: int
    """Planted texts that were explained."""
    found: Mapping[str, Found]


def run(
    make: Make,
    train: Sequence[Example],
    test: Sequence[Example],
    shortcut: Shortcut,
    method: AnyMethod | Sequence[AnyMethod],
    *,
    share: float = 0.5,
    recipe: Recipe = Recipe(),  # noqa: B008
    step: Callable[[Step], None] | None = None,
    report: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> Result:
    """Plant a shortcut in training and test texts, train until the model uses it, and see which methods find it.

    A model that does not use it after all epochs of the recipe is refused. ``step`` is told of every step of the
    training, ``report`` of every text that is explained. The recipe's seed is that of everything drawn.
    """
    model = make(recipe.seed)
    _told_apart(model, shortcut)
    prepare(method, settings)  # refuses what is unknown before the training
    lessons = planted(train, shortcut, share=share, seed=recipe.seed)
    unseen = planted(test, shortcut, share=share, seed=recipe.seed + 1)
    epochs, known = 0, Learnt(0.0, None)
    for epoch in fit(model, lessons, recipe=recipe, report=step):
        epochs, known = epoch.number, learnt(model, unseen, shortcut)
        if known.used:
            break
    _must_use(model, known)
    found = _found(model, unseen, method, settings, report, recipe.seed)
    return Result(shortcut, model.name, epochs, known, sum(e.rationale is not None for e in unseen), found)


def _told_apart(model: Model, shortcut: Shortcut) -> None:
    """A word that the model does not know looks like any other that it does not know."""
    words = (*shortcut.words, shortcut.context)
    if len({e.ids for e in model.encode(words)}) < len(words):
        raise BadInput(
            f"{model.name} reads some of {', '.join(words)} alike, since it does not know them; choose words that it "
            "knows"
        )


def pointed(
    model: Model,
    given: Sequence[Example],
    shortcut: Shortcut,
    method: AnyMethod | Sequence[AnyMethod],
    *,
    report: Callable[[int, int], None] | None = None,
    seed: int = 0,
    **settings: Any,
) -> dict[str, Found]:
    """Each method's explanations of the planted texts, held against what was planted, controls included.

    A model that does not use the shortcut is refused: its explanations could be right and yet miss it.
    """
    _must_use(model, learnt(model, given, shortcut))
    return _found(model, given, method, settings, report, seed)


def _must_use(model: Model, known: Learnt) -> None:
    if not known.used:
        raise NotLearnt(
            f"{model.name} has not learnt to use the shortcut: {known}, where at least {LEARNT:.0%} must be"
            f"{'' if known.without is None else f' and at most {LOOSE:.0%} without it'}. Train longer, at a higher "
            "rate, or plant it in more texts."
        )


def _found(
    model: Model,
    given: Sequence[Example],
    method: AnyMethod | Sequence[AnyMethod],
    settings: Mapping[str, Any],
    report: Callable[[int, int], None] | None,
    seed: int,
) -> dict[str, Found]:
    texts = [e for e in given if e.rationale]
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
    truth = marks[~np.array(e.special)]
    order = np.argsort(-np.array(e.content), kind="stable")
    k, n = int(truth.sum()), len(truth)
    if not k:
        return nan, nan  # the text was cut before them
    places = np.flatnonzero(truth[order])
    # The best mean place of k tokens is (k − 1) / 2, and the worst n − 1 − (k − 1) / 2.
    least = (k - 1) / 2
    return float(truth[order[:k]].mean()), float((places.mean() - least) / max(1, n - k))
