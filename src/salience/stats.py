"""From numbers per example to what can be said of them: means, intervals, paired comparisons."""

from dataclasses import dataclass

import numpy as np
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
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def paired_bootstrap(a: ArrayLike, b: ArrayLike, *, draws: int = 10_000, seed: int = 0) -> Difference:
    """The mean of a − b over pairs, with a percentile bootstrap interval.

    Where ``a`` and ``b`` are tables of (seeds × texts), both seeds and texts are drawn anew: the answers of several
    seeds to one text are alike, and to count them as so many texts would make the interval too narrow.

    The p-value is that of the centred bootstrap distribution, which cannot be below 1 / (draws + 1).

    Paper: Sellam et al. 2022, The MultiBERTs (the multi-bootstrap), arXiv:2106.16163
    """
    d = np.atleast_2d(np.asarray(a, dtype=float) - np.asarray(b, dtype=float))
    means = _resampled(d, draws, np.random.default_rng(seed))
    low, high = np.percentile(means, [2.5, 97.5])
    beyond = np.abs(means - d.mean()) >= abs(d.mean()) - 1e-12
    return Difference(float(d.mean()), float(low), float(high), float((beyond.sum() + 1) / (draws + 1)), d.shape[1])


def _resampled(d: np.ndarray, draws: int, dice: np.random.Generator, at_once: int = 2**22) -> np.ndarray:
    """Means of tables with rows and columns drawn anew, some draws at a time: many values need not much memory."""
    step = max(1, at_once // d.shape[1])
    counts = [min(step, draws - start) for start in range(0, draws, step)]
    return np.concatenate([_means(d, count, dice) for count in counts])


def _means(d: np.ndarray, draws: int, dice: np.random.Generator) -> np.ndarray:
    """How often each row and each column is drawn is all that a mean needs."""
    rows, columns = (dice.multinomial(n, np.full(n, 1 / n), size=draws) / n for n in d.shape)
    return np.einsum("kr,rc,kc->k", rows, d, columns, optimize=True)
