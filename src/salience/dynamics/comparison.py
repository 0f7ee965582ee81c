"""Where attention comes from: a standard classifier beside one with uniform attention, other seeds, and word counts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import nan

import numpy as np
from jaxtyping import Float

from salience.core.stats import Estimate, estimate, share
from salience.data.examples import sampled
from salience.dynamics.agreement import Agreement, accuracy_match, agreement
from salience.dynamics.classifiers import PROXY, Classifiers
from salience.dynamics.influence import gradient_form, leave_one_out
from salience.dynamics.recording import Followed, FollowedText
from salience.dynamics.separation import Order, order
from salience.training.loop import Recipe

PROXY_RECIPE = Recipe(epochs=10, batch=64, rate=1e-3, warmup=0.0, decay=0.0)

Scores = Float[np.ndarray, " t"]
Read = Callable[[FollowedText, int], Scores]
"""(text, number of the recorded step) -> one score per token."""


@dataclass(frozen=True, slots=True)
class Best:
    """The agreement at the step of the second training at which it is highest, chosen on every second text and measured
    on the others. Attention of the first training is that of its most accurate step."""

    step: int
    agreement: Agreement


@dataclass(frozen=True, slots=True)
class Row:
    """The agreement of two rankings."""

    final: Agreement
    """At the end of both trainings."""
    best: Best | None
    """None if the second ranking is not recorded by step."""
    xi: float
    """The accuracy of other seeds at the first step at which their attention agrees more than in ``final``: see
    accuracy_match."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rankings of the same texts by classifiers that were trained in different ways."""

    texts: int
    accuracies: dict[str, Estimate]
    """The accuracy of each classifier on the followed texts."""
    correct: dict[str, tuple[float, ...]]
    """1 for each text that a classifier predicts correctly, 0 for others."""
    rows: tuple[Row, ...]
    order: Order
    """Which comes first in the standard classifier."""
    first_entropy: Estimate
    """The entropy of attention before training, as a share of that of uniform attention."""
    first_spread: Estimate
    """The standard deviation of relevance over the tokens of a text before training, as a share of that at the end."""

    def row(self, of: str) -> Row:
        return next(row for row in self.rows if row.final.of == of)


def compare(classifiers: Classifiers, *, seeds: int = 3, influenced: int = 200, seed: int = 0) -> Comparison:
    """Train the classifiers, or read them from their folder, and compare how they rank the tokens of followed texts.

    r′ is the relevance in a classifier trained with uniform attention, from an initialisation of its own. Influence is
    measured on ``influenced`` texts, as it takes a pass for every token.
    """
    model, standard = classifiers("standard", seed=seed)
    others = [classifiers(f"standard-{i}", seed=seed + i)[1] for i in range(1, seeds)]
    _, uniform = classifiers("uniform", seed=seed + seeds, scoring="uniform")
    counted = replace(classifiers, recipe=PROXY_RECIPE, checkpoints=2)
    _, means = counted("mean_embedding", seed=seed + seeds + 1, **PROXY)
    words = classifiers.word_weights()

    numbers = sampled(range(len(classifiers.followed)), influenced)
    examples = [classifiers.followed[i] for i in numbers]
    delta, gradient = leave_one_out(model, examples), gradient_form(model, examples)
    few = _Rankings.of(numbers, standard, others)
    every = _Rankings.of(range(len(classifiers.followed)), standard, others)
    beta = [words.of(text.ids, text.explained) for text in standard.texts]
    rows = [
        every.attended("a, r′", uniform, _relevance),
        few.through("Δ, r′", delta, uniform, _relevance),
        few.through("∇, r′", gradient, uniform, _relevance),
        every.through("embedding, r′", [text.relevance[-1] for text in means.texts], uniform, _relevance),
        every.through("counts, r′", beta, uniform, _relevance),
        *(every.attended("a, r of other seed", other, _relevance) for other in others[:1]),
        *(every.attended("a, a of other seed", other, _attention) for other in others[:1]),
        few.between("a, Δ", few.attention(), delta),
        few.between("a, ∇", few.attention(), gradient),
    ]
    runs = {"standard": standard, "uniform": uniform, "embedding": means}
    runs |= {f"other seed {i}": other for i, other in enumerate(others, 1)}
    correct = {name: tuple(float(text.correct[-1]) for text in run.texts) for name, run in runs.items()}
    return Comparison(
        len(standard.texts),
        {name: share(marks) for name, marks in correct.items()},
        correct,
        tuple(rows),
        order(standard, lambda text: words.of(text.ids, text.explained), seed=seed),
        estimate([_entropy(text.attention[0]) for text in standard.texts], (0, 1)),
        estimate([_spread(text.relevance) for text in standard.texts]),
    )


def _relevance(text: FollowedText, step: int) -> Scores:
    return text.relevance[step]


def _attention(text: FollowedText, step: int) -> Scores:
    return text.attention[step]


def _entropy(a: Scores) -> float:
    """The entropy of weights as a share of the highest; NaN for a single weight."""
    return float(-(a * np.log(np.maximum(a, 1e-30))).sum() / np.log(len(a))) if len(a) > 1 else nan


def _spread(r: Float[np.ndarray, "s t"]) -> float:
    return float(r[0].std() / r[-1].std()) if r.shape[1] > 1 and r[-1].std() > 0 else nan


@dataclass(frozen=True, slots=True, eq=False)
class _Rankings:
    """Some of the followed texts, and how the standard classifier and other seeds attend to them."""

    numbers: Sequence[int]
    standard: Followed
    agreements: Sequence[float]
    """The mean A(a*, a) of other seeds by step."""
    accuracies: Sequence[float]

    @classmethod
    def of(cls, numbers: Sequence[int], standard: Followed, others: Sequence[Followed]) -> "_Rankings":
        alone = cls(numbers, standard, (), ())
        steps = range(len(standard.steps)) if others else ()
        curves = [[_mean_agreement(alone.attention(), alone.at(o, _attention, s)) for s in steps] for o in others]
        accuracies = [[float(o.accuracy[s]) for s in steps] for o in others]
        means = [np.mean(of, axis=0).tolist() if others else () for of in (curves, accuracies)]
        return cls(numbers, standard, *means)

    def at(self, run: Followed, read: Read, step: int) -> list[Scores]:
        """The scores of the texts at a recorded step of a training."""
        return [read(run.texts[i], step) for i in self.numbers]

    def attention(self, step: int = -1) -> list[Scores]:
        """a*, by default at the end of the training."""
        return self.at(self.standard, _attention, step)

    def attended(self, of: str, run: Followed, read: Read) -> Row:
        """Compare attention with another training; at its best step, attention is that of the most accurate one."""
        accurate = self.attention(int(np.argmax(self.standard.accuracy)))
        return self.through(of, self.attention(), run, read, accurate)

    def through(
        self, of: str, us: Sequence[Scores], run: Followed, read: Read, early: Sequence[Scores] | None = None
    ) -> Row:
        """Compare scores with another training, at its end and at its best step, where they may be ``early`` ones."""
        own = us if early is None else early
        by_step = [self.at(run, read, step) for step in range(len(run.steps))]
        best = int(np.argmax([_mean_agreement(own[::2], vs[::2]) for vs in by_step]))
        measured = Agreement.between(of, own[1::2], by_step[best][1::2])
        return replace(self.between(of, us, by_step[-1]), best=Best(run.steps[best], measured))

    def between(self, of: str, us: Sequence[Scores], vs: Sequence[Scores]) -> Row:
        """Compare two rankings."""
        final = Agreement.between(of, us, vs)
        return Row(final, None, accuracy_match(final.agreement.mean, self.agreements, self.accuracies))


def _mean_agreement(us: Sequence[Scores], vs: Sequence[Scores]) -> float:
    return float(np.nanmean([agreement(u, v) for u, v in zip(us, vs, strict=True)]))
