"""From numbers per example to what can be said of them: means, intervals, paired comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike


@dataclass(frozen=True, slots=True)
class Spread:
    """Some runs of the same thing, such as seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def sd(self) -> float:
        """The standard deviation of the sample; 0 for a single value."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else 0.0

    def __format__(self, spec: str) -> str:
        return f"{self.mean:{spec or '.2f'}} ± {self.sd:{spec or '.2f'}}"

    def __str__(self) -> str:
        return format(self, "")


@dataclass(frozen=True, slots=True)
class Difference:
    """How much larger one side is than the other, pair by pair."""

    mean: float
    low: float
    high: float
    """The bounds of a 95 % interval."""
    p: float
    """How often chance alone would show at least as large a difference, either way."""
    pairs: int
    """Texts that were compared."""

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0, and chance would hardly do that: few pairs have narrow intervals."""
        return (self.low > 0 or self.high < 0) and self.p <= 0.05

    def __format__(self, spec: str) -> str:
        each = f"+{spec or '.2f'}"
        return f"{self.mean:{each}} [{self.low:{each}}, {self.high:{each}}]"

    def __str__(self) -> str:
        return format(self, "")


def paired_bootstrap(a: ArrayLike, b: ArrayLike, *, draws: int = 10_000, seed: int = 0) -> Difference:
    """The mean of a − b over pairs, with a percentile bootstrap interval.

    Where ``a`` and ``b`` are tables of (seeds × texts), both seeds and texts are drawn anew: the answers of several
    seeds to one text are alike, and to count them as so many texts would make the interval too narrow.

    Paper: Sellam et al. 2022, The MultiBERTs (the multi-bootstrap), arXiv:2106.16163
    """
    d = np.atleast_2d(np.asarray(a, dtype=float) - np.asarray(b, dtype=float))
    means = _resampled(d, draws, np.random.default_rng(seed))
    return _difference(float(d.mean()), means, means - d.mean(), d.shape[1])


def _resampled(d: np.ndarray, draws: int, dice: np.random.Generator, at_once: int = 2**22) -> np.ndarray:
    """Means of tables with rows and columns drawn anew, some draws at a time: many values need not much memory."""
    step = max(1, at_once // d.shape[1])
    counts = [min(step, draws - start) for start in range(0, draws, step)]
    return np.concatenate([_means(d, count, dice) for count in counts])


def _means(d: np.ndarray, draws: int, dice: np.random.Generator) -> np.ndarray:
    """How often each row and each column is drawn is all that a mean needs.

    The mean of r rows drawn anew varies less than that of new rows, by (r − 1) / r; with few rows that matters, so
    that what comes from rows is scaled up.
    """
    rows, columns = (dice.multinomial(n, np.full(n, 1 / n), size=draws) / n for n in d.shape)
    of_rows = rows @ d.mean(1) - d.mean()
    more = np.sqrt(len(d) / (len(d) - 1)) - 1 if len(d) > 1 else 0
    return ((rows @ d) * columns).sum(1) + more * of_rows


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over texts with its 95 % interval; texts for which the number is undefined are not counted."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True, eq=False)
class Resampled:
    """Columns of numbers, a row for each text, and their means over texts drawn anew.

    All columns share the draws, so that differences between columns are those of pairs. NaN is a number that is
    undefined for a text.
    """

    values: Float[np.ndarray, "n k"]
    means: Float[np.ndarray, "d k"]
    flipped: Float[np.ndarray, "d k"]
    """Means with the sign of every text's numbers drawn by lot."""
    seed: int

    @classmethod
    def of(cls, values: ArrayLike, *, draws: int = 10_000, seed: int = 0, at_once: int = 2**22) -> "Resampled":
        table = np.asarray(values, dtype=float)
        known, filled = ~np.isnan(table), np.nan_to_num(table)
        dice, n = np.random.default_rng(seed), len(table)
        step = max(1, at_once // max(1, n))
        means, flipped = list[np.ndarray](), list[np.ndarray]()
        for start in range(0, draws, step):
            size = min(step, draws - start)
            counts = dice.multinomial(n, np.full(n, 1 / n), size=size).astype(float)
            signs = dice.choice([-1.0, 1.0], size=(size, n))
            with np.errstate(invalid="ignore"):  # a draw may hold no text of which the number is known
                means.append((counts @ filled) / (counts @ known))
                flipped.append((signs @ filled) / known.sum(0))
        return cls(table, np.concatenate(means), np.concatenate(flipped), seed)

    def estimate(self, column: int) -> Estimate:
        given = self.values[:, column]
        known = given[~np.isnan(given)]
        if not len(known):
            return Estimate(nan, nan, nan, 0)
        low, high = np.nanpercentile(self.means[:, column], [2.5, 97.5])
        return Estimate(float(known.mean()), float(low), float(high), len(known))

    def difference(self, one: int, other: int) -> Difference:
        """How much larger the one column is than the other, over the texts that have both numbers.

        The interval is that of the bootstrap. The p-value is that of a sign-flip test: if the two were alike, either
        could be the larger of each pair. It is never below 2 ** (1 − pairs), and so does not trust a few texts.
        """
        known = ~np.isnan(self.values[:, [one, other]])
        both = known[:, 0] & known[:, 1]
        if not both.any():
            return Difference(nan, nan, nan, 1.0, 0)
        if (known != both[:, None]).any():
            pairs = Resampled.of(self.values[both][:, [one, other]], draws=len(self.means), seed=self.seed)
            return pairs.difference(0, 1)
        mean = float((self.values[both, one] - self.values[both, other]).mean())
        means, chance = (table[:, one] - table[:, other] for table in (self.means, self.flipped))
        return _difference(mean, means, chance, int(both.sum()))


def _difference(mean: float, means: np.ndarray, chance: np.ndarray, pairs: int) -> Difference:
    """``chance`` is what the mean could have been if there were no difference. p cannot be below 1 / (draws + 1)."""
    low, high = np.nanpercentile(means, [2.5, 97.5])
    beyond = np.abs(chance) >= abs(mean) - 1e-12
    return Difference(mean, float(low), float(high), float((beyond.sum() + 1) / (len(chance) + 1)), pairs)


def holm(p: Sequence[float]) -> list[float]:
    """p-values corrected for how many they are, by Holm's step-down method.

    >>> [round(x, 3) for x in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p, kind="stable")
    found, worst = [1.0] * len(p), 0.0
    for place, i in enumerate(order.tolist()):
        worst = max(worst, min(1.0, (len(p) - place) * p[i]))
        found[i] = worst
    return found
