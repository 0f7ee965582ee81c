"""Which comes first: does relevance separate keywords from other words before attention does?

Keywords are chosen without looking at the followed model: they are the words of a text that speak most for its label
in a logistic regression on the words of the training texts. How far they are separated is the probability that the
relevance, or the attention, of a keyword has grown more since the first step than that of another word of its text.
That depends on ranks alone, so that both are compared on one scale; by chance it is ½. Growth is compared, since random
weights alone rank words too, and the same ones in all texts.

Ranks do not tell a large difference from a small one. So a second criterion is given beside them: how much more
keywords have grown than other words, as a share of what it is at the end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan, nan

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import rankdata

from salience.core.ranking import top_share
from salience.core.stats import MINIMUM, Estimate, estimate
from salience.dynamics.recording import Followed, FollowedText

KEYWORDS = 0.1
"""The share of a text's tokens that are keywords, at least one."""

CHANCE = 0.5
DRAWS = 1000
"""Draws of texts from which the intervals of steps are computed."""

Weigh = Callable[[FollowedText], Float[np.ndarray, " t"]]
"""How much each token of a text speaks for its label, by a source other than the followed model."""


def keywords(weights: Float[np.ndarray, " t"]) -> Bool[np.ndarray, " t"]:
    """The tokens of the highest weights, of those that speak for the label at all."""
    return top_share(weights, KEYWORDS) & (weights > 0)


def superiority(values: Float[np.ndarray, "*s t"], marks: Bool[np.ndarray, " t"]) -> Float[np.ndarray, "*s"]:
    """The probability that a marked token has a higher value than another one; equal values count half.

    >>> superiority(np.array([[1.0, 3.0, 2.0]]), np.array([False, True, False])).tolist()
    [1.0]
    """
    n, k = len(marks), int(marks.sum())
    ranks = rankdata(values, axis=-1)[..., marks].sum(-1)
    return (ranks - k * (k + 1) / 2) / (k * (n - k))


@dataclass(frozen=True, slots=True)
class Course:
    """How far a quantity separates keywords from other words, by step, and when it does so."""

    name: str
    by_step: tuple[Estimate, ...]
    """The probability that a keyword has grown more than another word, mean over texts."""
    lead: tuple[float, ...]
    """How much more it has grown at keywords than at other words, mean over texts."""
    first: int | None
    """The first recorded step from which on its interval is above ½; None if it never is."""
    half: Estimate
    """The step at which ``by_step`` has come half of the way from ½ to its last value; NaN if it ends at ½ or below."""
    half_size: Estimate
    """The step at which ``lead`` has come half of the way to its last value; NaN if keywords do not lead at the end."""


@dataclass(frozen=True, slots=True)
class Order:
    """Whether relevance or attention separates keywords first."""

    steps: tuple[int, ...]
    relevance: Course
    attention: Course
    shuffled_relevance: Course
    shuffled_attention: Course
    """The same with as many words of each text drawn at random: the control, ½ up to chance."""
    lag: Estimate
    """Steps from the half-way point of relevance to that of attention by ranks, compared for the same texts."""
    lag_size: Estimate
    """The same by size."""
    texts: int
    """Texts with a keyword and another word."""

    @property
    def relevance_first(self) -> bool | None:
        """Whether relevance comes first by both criteria; None if an interval does not tell, or they differ."""
        lags = (self.lag, self.lag_size)
        if all(lag.low > 0 for lag in lags):
            return True
        return False if all(lag.high < 0 for lag in lags) else None


def order(followed: Followed, weigh: Weigh, *, seed: int = 0) -> Order:
    """Follow keywords and other words of all texts through training."""
    rng, steps = np.random.default_rng(seed), np.array(followed.steps, dtype=float)
    chosen = [(text, marks) for text in followed.texts if 0 < (marks := keywords(weigh(text))).sum() < len(marks)]
    marked = [marks for _, marks in chosen]
    shuffled = [rng.permutation(marks) for marks in marked]
    r, a = ([_growth(x) for x in of] for of in ([t.relevance for t, _ in chosen], [t.attention for t, _ in chosen]))
    draws = [rng.integers(0, len(r), len(r)) for _ in range(DRAWS)] if len(r) >= MINIMUM else []
    tables = {
        name: _Table.of(values, marks, steps)
        for name, values, marks in (
            ("relevance", r, marked),
            ("attention", a, marked),
            ("relevance of random words", r, shuffled),
            ("attention of random words", a, shuffled),
        )
    }
    own = [tables[name] for name in ("relevance", "attention")]
    lags = [
        _interval(*(later - sooner for sooner, later in zip(*both, strict=True)), n=len(r))
        for both in ([t.half(draws) for t in own], [t.half_size(draws) for t in own])
    ]
    r_course, a_course, r_control, a_control = (table.course(name, draws) for name, table in tables.items())
    return Order(followed.steps, r_course, a_course, r_control, a_control, lags[0], lags[1], len(r))


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """How far a quantity separates keywords, by text and step."""

    steps: Float[np.ndarray, " s"]
    ranks: Float[np.ndarray, "n s"]
    """The probability of superiority."""
    sizes: Float[np.ndarray, "n s"]
    """The mean at keywords minus the mean at other words."""

    @classmethod
    def of(
        cls,
        values: Sequence[Float[np.ndarray, "s t"]],
        marked: Sequence[Bool[np.ndarray, " t"]],
        steps: Float[np.ndarray, " s"],
    ) -> "_Table":
        pairs = list(zip(values, marked, strict=True))
        ranks = [superiority(x, marks) for x, marks in pairs]
        sizes = [x[:, marks].mean(1) - x[:, ~marks].mean(1) for x, marks in pairs]
        return cls(steps, *(np.array(rows, dtype=float).reshape(-1, len(steps)) for rows in (ranks, sizes)))

    def half(self, draws: Sequence[np.ndarray]) -> tuple[float, np.ndarray]:
        """The half-way step by ranks, of the texts and of each draw of texts."""
        return self._half(self.ranks, CHANCE, draws)

    def half_size(self, draws: Sequence[np.ndarray]) -> tuple[float, np.ndarray]:
        """The half-way step by size."""
        return self._half(self.sizes, 0.0, draws)

    def _half(
        self, table: Float[np.ndarray, "n s"], start: float, draws: Sequence[np.ndarray]
    ) -> tuple[float, np.ndarray]:
        if not len(table):
            return nan, np.zeros(0)
        drawn = np.array([half_way(self.steps, table[d].mean(0), start) for d in draws])
        return half_way(self.steps, table.mean(0), start), drawn

    def course(self, name: str, draws: Sequence[np.ndarray]) -> Course:
        by_step, n = tuple(estimate(column, (0, 1)) for column in self.ranks.T), len(self.ranks)
        unclear = [i for i, e in enumerate(by_step) if not e.bounds[0] > CHANCE]
        after = unclear[-1] + 1 if unclear else 0
        first = int(self.steps[after]) if after < len(by_step) else None
        lead = tuple(self.sizes.mean(0).tolist()) if n else ()
        return Course(
            name, by_step, lead, first, _interval(*self.half(draws), n=n), _interval(*self.half_size(draws), n=n)
        )


def _growth(values: Float[np.ndarray, "s t"]) -> Float[np.ndarray, "s t"]:
    return values - values[:1]


def half_way(steps: Float[np.ndarray, " s"], course: Float[np.ndarray, " s"], start: float = CHANCE) -> float:
    """The step from which on a course is above the middle between ``start`` and its last value.

    It is interpolated between recorded steps. NaN if the last value is not above the start.

    >>> half_way(np.array([0.0, 10.0, 20.0]), np.array([0.0, 0.25, 0.75]), 0.0)
    12.5
    """
    middle = (start + course[-1]) / 2
    if not course[-1] > start:
        return nan
    below = np.flatnonzero(course < middle)
    if not len(below):
        return float(steps[0])
    k = int(below[-1])
    share = (middle - course[k]) / (course[k + 1] - course[k])
    return float(steps[k] + share * (steps[k + 1] - steps[k]))


def _interval(value: float, drawn: Float[np.ndarray, " d"], *, n: int) -> Estimate:
    """A number with the interval of texts drawn with replacement; none if more than a twentieth of the draws has none.

    Paper: Efron & Tibshirani 1993, An Introduction to the Bootstrap, section 13.3 (percentiles)
    """
    known = drawn[~np.isnan(drawn)]
    if isnan(value) or len(known) < max(1, 0.95 * len(drawn)):
        return Estimate(value, nan, nan, n)
    low, high = np.quantile(known, [0.025, 0.975])
    return Estimate(value, float(low), float(high), n)
