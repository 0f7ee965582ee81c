"""A test with known ground truth: a shortcut is planted in real data, a model learns it, and methods should find it.

The planted words alone determine the label, so an explanation of a model that uses them is either right or wrong.

Paper: Bastings et al. 2022, "Will You Find These Shortcuts?", arXiv:2111.07367
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any

import numpy as np

from salience.core.shares import percent
from salience.core.stats import Estimate, estimate
from salience.core.target import Target
from salience.core.text import Span, overlaps
from salience.core.types import Model
from salience.data.examples import Example, encode_examples
from salience.data.rationales import marked
from salience.data.shortcuts import Shortcut, planted, single_text
from salience.errors import BadInput, NotLearnt
from salience.explanations.explainer import AnyMethod, as_list, columns, each_layer, explain_all, prepare
from salience.explanations.explanation import Explanation
from salience.explanations.interactions import Interactions, explain_interactions
from salience.methods import CONTROLS
from salience.methods.interactions import Pairwise, find_interaction
from salience.training.loop import Make, Recipe, TrainingProgress, fit
from salience.training.monitors import accuracy

LEARNT = 0.95
"""The accuracy on planted texts from which a model counts as using the shortcut."""

MINIMUM_PLANTED = 20
"""The minimum number of planted texts; fewer could be predicted correctly by chance."""

LOOSE = 0.75
"""The highest accuracy allowed without the context word. Chance is 0.5."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """Whether a model uses the shortcut, measured on planted texts that were not in its training data."""

    accuracy: float
    """The accuracy on planted texts. Their labels are random, so only the shortcut can predict them."""
    without: float | None
    """The accuracy without the context word; at chance if the model uses the context."""

    @property
    def used(self) -> bool:
        """Whether the model counts as using the shortcut."""
        return self.accuracy >= LEARNT and (self.without is None or self.without <= LOOSE)

    def __str__(self) -> str:
        more = "" if self.without is None else f", {percent(self.without)} without the context word"
        return f"accuracy on planted texts {percent(self.accuracy)}{more}"


def learnt(model: Model, examples: Sequence[Example], shortcut: Shortcut) -> Learnt:
    """Measure how far the model uses the shortcut."""
    texts = [e for e in examples if e.rationale]
    if len(texts) < MINIMUM_PLANTED:
        raise BadInput(
            f"{len(texts)} of {len(examples)} texts have a planted shortcut; at least {MINIMUM_PLANTED} are needed. "
            "Use more test texts, or plant it in a larger share of them."
        )
    alone = [_without(e, shortcut.context) for e in texts] if shortcut.kind == "context" else None
    return Learnt(accuracy(model, texts), None if alone is None else accuracy(model, alone))


def _without(example: Example, word: str) -> Example:
    text = single_text(example)
    ((a, b),) = (span for span in example.rationale or () if text[slice(*span)] == word)
    return replace(example, text=f"{text[:a].rstrip()} {text[b:].lstrip()}".strip(), rationale=None)


@dataclass(frozen=True, slots=True)
class Precision:
    """How well a method finds the planted tokens, over the planted texts."""

    precision: Estimate
    """Precision at k, where k is the number of planted tokens."""
    rank: Estimate
    """The mean rank of the planted tokens, from 0 for the highest score to 1 for the lowest; 0.5 is chance."""
    complete: Estimate
    """The share of texts whose strongest scores, whatever their sign, are exactly those of the planted tokens."""


@dataclass(frozen=True, slots=True)
class ShortcutResult:
    """How well each method finds one shortcut that a model has learnt."""

    shortcut: Shortcut
    model: str
    epochs: int
    """The number of epochs after which the model used the shortcut."""
    learnt: Learnt
    texts: int
    """The number of planted texts that were explained."""
    found: Mapping[str, Precision]
    """The results by method. Of an interaction method, the strongest pair counts instead of the strongest tokens."""


def shortcuts(
    make: Make,
    train: Sequence[Example],
    test: Sequence[Example],
    shortcut: Shortcut,
    method: AnyMethod | Sequence[AnyMethod],
    *,
    interactions: Sequence[str] = (),
    share: float = 0.5,
    recipe: Recipe = Recipe(),  # noqa: B008
    step: Callable[[TrainingProgress], None] | None = None,
    report: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> ShortcutResult:
    """Plant a shortcut in training and test texts, train until the model uses it, and test which methods find it.

    Raises :class:`~salience.errors.NotLearnt` if the model does not use the shortcut after all epochs of the recipe.
    ``interactions`` are names of interaction methods: where two words are planted, their strongest pair should be these
    two. ``step`` is called after every training step, ``report`` after every explained text. All randomness is seeded
    by the recipe.
    """
    pairs = [find_interaction(name) for name in interactions]
    model = make(recipe.seed)
    check_vocabulary(model, shortcut)
    prepare(method, settings)  # reject unknown methods and settings before training
    training = planted(train, shortcut, share=share, seed=recipe.seed)
    unseen = planted(test, shortcut, share=share, seed=recipe.seed + 1)
    epochs, known = 0, Learnt(0.0, None)
    for epoch in fit(model, training, recipe=recipe, report=step):
        epochs, known = epoch.number, learnt(model, unseen, shortcut)
        if known.used:
            break
    _must_use(model, known)
    results = _precision(model, unseen, method, settings, report)
    if shortcut.kind != "token":
        results |= {pair.__name__: _pair_precision(model, unseen, pair) for pair in pairs}
    return ShortcutResult(shortcut, model.name, epochs, known, sum(e.rationale is not None for e in unseen), results)


def check_vocabulary(model: Model, shortcut: Shortcut) -> None:
    """Check that the model distinguishes the planted words; unknown words share one token."""
    words = shortcut.every
    if len({e.ids for e in model.encode(words)}) < len(words):
        raise BadInput(
            f"{model.name} does not know some of {', '.join(words)}, and reads them as the same token; choose words "
            "in its vocabulary"
        )


def pointed(
    model: Model,
    examples: Sequence[Example],
    shortcut: Shortcut,
    method: AnyMethod | Sequence[AnyMethod],
    *,
    report: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> dict[str, Precision]:
    """Compare the explanations of planted texts with what was planted, for each method and the controls.

    Raises :class:`~salience.errors.NotLearnt` if the model does not use the shortcut, since correct explanations could
    then miss it.
    """
    _must_use(model, learnt(model, examples, shortcut))
    return _precision(model, examples, method, settings, report)


def _must_use(model: Model, known: Learnt) -> None:
    if not known.used:
        raise NotLearnt(
            f"{model.name} has not learnt to use the shortcut: {known}; at least {percent(LEARNT)} is required"
            f"{'' if known.without is None else f', and at most {percent(LOOSE)} without the context word'}. Train for "
            "more epochs, at a higher learning rate, or plant it in more texts."
        )


def _precision(
    model: Model,
    examples: Sequence[Example],
    method: AnyMethod | Sequence[AnyMethod],
    settings: Mapping[str, Any],
    report: Callable[[int, int], None] | None,
) -> dict[str, Precision]:
    texts = [e for e in examples if e.rationale]
    configured = each_layer(model, prepare([*(m for m in as_list(method) if m not in CONTROLS), *CONTROLS], settings))
    encoded = encode_examples(model, texts)
    wanted = [Target(e.single_label) for e in texts]
    rows = explain_all(model, encoded, configured, wanted, report=report)
    marks = [np.array(marked(e.rationale or (), seen)) > 0 for e, seen in zip(texts, encoded, strict=True)]
    table = np.array([[_precision_and_rank(x, own) for x in row] for row, own in zip(rows, marks, strict=True)])
    return {name: _estimated(table[:, i]) for i, name in enumerate(columns(configured))}


def _pair_precision(model: Model, examples: Sequence[Example], method: Callable[..., list[Pairwise]]) -> Precision:
    """The same of pairs of words: the planted words in the strongest pair, and the rank of the planted pair."""
    texts: list[Example] = []
    explained: list[Interactions] = []
    for label in dict.fromkeys(e.single_label for e in examples if e.rationale):
        own = [e for e in examples if e.rationale and e.single_label == label]
        texts += own
        explained += explain_interactions(model, [single_text(e) for e in own], method, target=label)
    rows = [_in_pairs(x, e.rationale or ()) for x, e in zip(explained, texts, strict=True)]
    return _estimated(np.array(rows))


def _estimated(rows: np.ndarray) -> Precision:
    """Means over texts; none of the three can be below 0 or above 1."""
    return Precision(*(estimate(column, (0, 1)) for column in rows.T))


def _in_pairs(x: Interactions, planted: Sequence[Span]) -> tuple[float, float, float]:
    """The share of the strongest pair that is planted, the rank of the planted pair, and whether it is the first."""
    truth = {u for u, span in enumerate(x.spans) if overlaps(span, planted)}
    pairs = [{first, second} for first, second, _ in x.pairs()]
    if len(truth) != 2:
        return nan, nan, nan  # truncated, or a planted word that is part of a longer one
    place = pairs.index(truth)
    return len(pairs[0] & truth) / 2, place / max(1, len(pairs) - 1), float(place == 0)


def _precision_and_rank(e: Explanation, marks: np.ndarray) -> tuple[float, float, float]:
    """Precision at k, the normalised mean rank, and whether the k strongest tokens are the planted ones."""
    truth = marks[~np.array(e.special)]
    order = np.argsort(-np.array(e.content), kind="stable")
    k, n = int(truth.sum()), len(truth)
    if not k:
        return nan, nan, nan  # truncated before the planted tokens
    positions = np.flatnonzero(truth[order])
    # The best mean rank of k tokens is (k − 1) / 2, and the worst n − 1 − (k − 1) / 2.
    least = (k - 1) / 2
    strongest = np.argsort(-np.abs(e.content), kind="stable")[:k]
    rank = float((positions.mean() - least) / max(1, n - k))
    return float(truth[order[:k]].mean()), rank, float(truth[strongest].all())
