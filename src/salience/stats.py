"""From numbers per example to what can be said of them: means, intervals, paired comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.sd:.2f}"


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

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def paired_bootstrap(a: Sequence[float], b: Sequence[float], *, draws: int = 10_000, seed: int = 0) -> Difference:
    """The mean of a − b over pairs, with a percentile bootstrap interval.

    The p-value is that of the centred bootstrap distribution, which cannot be below 1 / (draws + 1).
    """
    d = np.asarray(a, dtype=float) - np.asarray(b, dtype=float)
    dice = np.random.default_rng(seed)
    means = _resampled(d, draws, dice)
    low, high = np.percentile(means, [2.5, 97.5])
    beyond = np.abs(means - d.mean()) >= abs(d.mean()) - 1e-12
    return Difference(float(d.mean()), float(low), float(high), float((beyond.sum() + 1) / (draws + 1)), len(d))


def _resampled(d: np.ndarray, draws: int, dice: np.random.Generator, at_once: int = 2**22) -> np.ndarray:
    """Means of resampled values, some draws at a time, so that many values need not much memory."""
    step = max(1, at_once // max(1, len(d)))
    counts = [min(step, draws - start) for start in range(0, draws, step)]
    return np.concatenate([d[dice.integers(0, len(d), (count, len(d)))].mean(1) for count in counts])
