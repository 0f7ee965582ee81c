"""Statistics of values per text: means with intervals that hold for few texts and seeds, and paired comparisons.

Which interval is used where, and why, is told in docs/decisions/0011-intervals-that-hold.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, isnan, nan
from typing import TypeVar

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.special import betaincinv, stdtr, stdtrit

LEVEL = 0.05
"""One minus the confidence of every interval, and the largest p-value that counts as significant."""

MINIMUM = 8
"""The fewest texts for which an interval is given. With fewer, intervals for skewed values fall below their 95 %."""

MANY = 10_000
"""The number of texts above which sums with random signs are taken from their normal limit, to save time."""

Bounds = tuple[np.ndarray, np.ndarray]
"""The lower and the upper bounds of intervals."""

Limits = tuple[float, float]
"""The smallest and the largest value that a number can have. No interval of its mean goes beyond."""

UNLIMITED: Limits = (-inf, inf)


# ------------------------------------------------------------------------------------------------------ values


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of repeated runs, such as different seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def sd(self) -> float:
        """The sample standard deviation; NaN for a single value."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else nan

    def __format__(self, spec: str) -> str:
        spec = spec or ".2f"
        return f"{self.mean:{spec}}" if isnan(self.sd) else f"{self.mean:{spec}} ± {self.sd:{spec.lstrip('+')}}"

    def __str__(self) -> str:
        return format(self, "")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over texts with its 95 % interval; texts for which the value is undefined are not counted."""

    mean: float
    low: float
    high: float
    """The bounds of the interval; NaN where there are too few texts for one, or all have the same value."""
    n: int

    @property
    def bounds(self) -> tuple[float, float]:
        """The bounds to decide by: those of the interval, or the mean twice where all of enough texts are equal."""
        alike = isnan(self.low) and self.n >= MINIMUM
        return (self.mean, self.mean) if alike else (self.low, self.high)

    @property
    def interval(self) -> str:
        """The interval in words, such as ``0.152 to 0.215``."""
        return _no_interval(self.n) if isnan(self.low) else f"{self.low:.3f} to {self.high:.3f}"

    def __str__(self) -> str:
        bounds = _no_interval(self.n) if isnan(self.low) else f"{self.low:.3f}, {self.high:.3f}"
        return f"{self.mean:.3f} [{bounds}]"


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean paired difference between two sides."""

    mean: float
    low: float
    high: float
    """The bounds of a 95 % interval of this difference alone; NaN where there are too few texts or all differ alike."""
    p: float
    """The two-sided p-value, corrected for all comparisons that were tested together; NaN for too few texts."""
    pairs: int
    """The number of texts compared."""

    @property
    def clear(self) -> bool:
        """Whether the difference is significant: p ≤ 0.05, and an interval that excludes 0."""
        return self.pairs >= MINIMUM and self.p <= LEVEL and not self.low <= 0 <= self.high

    def __format__(self, spec: str) -> str:
        each = f"+{spec or '.2f'}"
        bounds = _no_interval(self.pairs) if isnan(self.low) else f"{self.low:{each}}, {self.high:{each}}"
        return f"{self.mean:{each}} [{bounds}]"

    def __str__(self) -> str:
        return format(self, "")


def _no_interval(n: int) -> str:
    return "too few to say" if n < MINIMUM else "all equal"


# --------------------------------------------------------------------------------------------------- means over texts


def estimate(values: ArrayLike, limits: Limits = UNLIMITED) -> Estimate:
    """Return the mean of the values that are defined, with the interval of :func:`mean_interval` within the limits.

    Where both 0 and 1 occur and nothing else, the values are a share: see :func:`share`. Limits below 0, such as those
    of differences, say that they are not.
    """
    x = _defined(values)
    if set(np.unique(x)) == {0, 1} and (limits[0] >= 0 or limits == UNLIMITED):
        return share(x)
    mean = float(x.mean()) if len(x) else nan
    low, high = within(mean_interval(x), mean, limits) if len(x) else (nan, nan)
    return Estimate(mean, float(low), float(high), len(x))


def share(marks: ArrayLike, *, fewest: int = MINIMUM) -> Estimate:
    """Return the share of ones among the marks that are defined, with its exact interval.

    There is no interval for fewer than ``fewest`` marks. An exact one holds for any number, such as that of trainings.
    """
    x = _defined(marks)
    if not len(x):
        return Estimate(nan, nan, nan, 0)
    low, high = share_interval(int(x.sum()), len(x), fewest=fewest)
    return Estimate(float(x.mean()), low, high, len(x))


def _defined(values: ArrayLike) -> Float[np.ndarray, " n"]:
    x = np.asarray(values, dtype=float)
    return x[~np.isnan(x)]


def mean_interval(x: Float[np.ndarray, "*rows n"], level: float = LEVEL) -> Bounds:
    """The interval of the mean of n values: Student's, widened on the side of a long tail.

    Student's t is right for symmetric values, and too short on one side for skewed ones. Hall's transformation of t
    corrects for the skewness κ, which few values underestimate: κ is raised by 1 + 6 / n. The interval reaches from
    the lower of both lower bounds to the higher of both upper bounds.

    Paper: Hall 1992, On the removal of skewness by transformation, JRSS B 54
    """
    mean = x.mean(-1)
    d = x - mean[..., None]
    squares = np.where(np.ptp(x, axis=-1) > 1e-12 * np.abs(mean), (d**2).sum(-1), 0)
    return moments_interval(x.shape[-1], mean, squares, (d**3).sum(-1), level)


def moments_interval(
    n: ArrayLike, mean: ArrayLike, squares: ArrayLike, cubes: ArrayLike, level: float = LEVEL
) -> Bounds:
    """The interval of :func:`mean_interval`, from Σ (x − mean)² and Σ (x − mean)³ of n values."""
    n, squares = np.where(np.less(n, MINIMUM), nan, n), np.where(np.greater(squares, 0), squares, nan)
    sd = np.sqrt(squares / (n - 1))
    skewness = cubes * n / ((n - 1) * (n - 2) * sd**3)
    t = stdtrit(n - 1, 1 - level / 2) / np.sqrt(n)
    above, below = (_hall(y, skewness * (1 + 6 / n), n) for y in (t, -t))
    return mean - sd * np.maximum(t, above), mean - sd * np.minimum(-t, below)


def within(interval: Bounds, mean: ArrayLike, limits: Limits) -> Bounds:
    """Cut an interval off at limits that the mean cannot exceed. It covers as often: only impossible values go."""
    low, high = interval
    return np.maximum(low, np.minimum(limits[0], mean)), np.minimum(high, np.maximum(limits[1], mean))


class Moments:
    """Count, mean and central moments of a stream of numbers.

    Paper: Pébay 2008, Formulas for robust, one-pass parallel computation of covariances and arbitrary-order moments
    """

    __slots__ = ("cubes", "mean", "n", "squares")

    def __init__(self) -> None:
        self.n, self.mean, self.squares, self.cubes = 0, 0.0, 0.0, 0.0

    def add(self, x: float) -> None:
        """Count one more number."""
        self.n += 1
        step = (x - self.mean) / self.n
        grown = step * step * self.n * (self.n - 1)
        self.mean += step
        self.cubes += grown * step * (self.n - 2) - 3 * step * self.squares
        self.squares += grown


def _hall(y: np.ndarray, skewness: np.ndarray, n: np.ndarray) -> np.ndarray:
    """The root w of y = w + κ w² / 3 + κ² w³ / 27 + κ / (6 n)."""
    k = np.where(np.abs(skewness) > 1e-6, skewness, 1e-6)
    return 3 / k * (np.cbrt(1 + k * (y - k / (6 * n))) - 1)


def share_interval(k: int, n: int, level: float = LEVEL, *, fewest: int = MINIMUM) -> tuple[float, float]:
    """The exact interval of a share, of which k of n were observed.

    Paper: Clopper & Pearson 1934, Biometrika 26
    """
    if n < fewest:
        return nan, nan
    low = betaincinv(k, n - k + 1, level / 2) if k else 0.0
    high = betaincinv(k + 1, n - k, 1 - level / 2) if k < n else 1.0
    return float(low), float(high)


# ------------------------------------------------------------------------------------------------------ seeds and texts


def paired_difference(a: ArrayLike, b: ArrayLike) -> Difference:
    """Return the mean of a − b over texts, or over tables of (seeds × texts), with its interval and p-value.

    With several seeds, the interval covers new seeds and new texts: the values of several seeds for one text are
    correlated, and counting them as independent texts would make it too narrow. With one seed, it covers new texts.
    """
    d = np.atleast_2d(np.asarray(a, dtype=float) - np.asarray(b, dtype=float))
    low, high = table_interval(d)
    return Difference(float(d.mean()), float(low), float(high), _p_value(d), d.shape[1])


def table_interval(d: Float[np.ndarray, "*rows s t"], level: float = LEVEL) -> Bounds:
    """The interval of the mean of a table of seeds × texts.

    Both the means of the seeds (Student's t with s − 1 degrees of freedom) and those of the texts
    (:func:`mean_interval`) have an interval. Their distances from the mean add in squares, which never covers less than
    each does (Banerjee); two seeds alone have 1 degree of freedom, so their interval is wide.

    Papers: Banerjee 1960, Sankhyā 22; Zou & Donner 2008, Statistics in Medicine 27 (unequal distances)
    """
    mean, s = d.mean((-2, -1)), d.shape[-2]
    low, high = mean_interval(d.mean(-2), level)
    if s == 1:
        return low, high
    seeds = stdtrit(s - 1, 1 - level / 2) * d.mean(-1).std(-1, ddof=1) / np.sqrt(s)
    return mean - np.hypot(mean - low, seeds), mean + np.hypot(high - mean, seeds)


def multi_bootstrap(d: Float[np.ndarray, "s t"], *, draws: int = 2_000, seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile interval of the mean of a table of seeds × texts, both resampled.

    It is reported beside :func:`table_interval` for comparison with the literature. For few seeds it is too short.

    Paper: Sellam et al. 2022, The MultiBERTs, arXiv:2106.16163, section 4
    """
    return percentiles(resampled_means(d, draws=draws, seed=seed))


def resampled_means(d: Float[np.ndarray, "s t"], *, draws: int = 2_000, seed: int = 0) -> Float[np.ndarray, " draws"]:
    """The mean of each resample of a table of seeds × texts. Tables of one shape and seed are resampled alike."""
    rng = np.random.default_rng(seed)
    seeds, texts = (rng.multinomial(n, np.full(n, 1 / n), draws) / n for n in d.shape)
    return ((seeds @ d) * texts).sum(1)


def percentiles(draws: Float[np.ndarray, " draws"]) -> tuple[float, float]:
    """The bounds between which 95 % of the draws are; ±∞ are ordered like numbers."""
    low, high = np.quantile(draws, [LEVEL / 2, 1 - LEVEL / 2], method="nearest")
    return float(low), float(high)


def _p_value(d: Float[np.ndarray, "s t"]) -> float:
    """The smallest level at which the interval excludes 0, by bisection; NaN for too few texts."""
    if isnan(table_interval(d)[0]):
        return nan if d.shape[1] < MINIMUM else _p_of_equal(d.mean(1), d.shape[1])
    kept, excluded = 0.0, 1.0
    for _ in range(40):
        level = (kept + excluded) / 2
        low, high = table_interval(d, level)
        kept, excluded = (kept, level) if low > 0 or high < 0 else (level, excluded)
    return excluded


def _p_of_equal(seeds: Float[np.ndarray, " s"], texts: int) -> float:
    """The p-value where all texts have the same mean: the larger of those of sign flips of the texts, and of seeds."""
    if abs(mean := seeds.mean()) < 1e-12:
        return 1.0
    flips = 2.0 ** (1 - texts)
    if np.ptp(seeds) < 1e-12 * abs(mean):
        return flips
    error = seeds.std(ddof=1) / np.sqrt(len(seeds))
    return max(flips, float(2 * stdtr(len(seeds) - 1, -abs(mean) / error)))


# ------------------------------------------------------------------------------------------------------ comparisons


def differences(
    columns: Sequence[ArrayLike], limits: Sequence[Limits] | None = None, *, draws: int = 10_000, seed: int = 0
) -> list[Difference]:
    """Return the mean of each column of paired differences, tested together. NaN marks a text without a pair.

    ``limits`` are those of the differences of each column.

    p-values are those of sign flips: if two methods are equal, either value of a pair is as likely to be the larger.
    They are corrected for all columns by the largest statistic of each draw (max-t): the probability that one or more
    differences between equal methods come out as significant is at most 0.05, whatever their correlation. p is never
    below 2 ** (1 − pairs), so a few texts are never significant.

    Paper: Westfall & Young 1993, Resampling-Based Multiple Testing, section 2.5
    """
    if not columns:
        return []
    table = np.stack([np.asarray(column, dtype=float) for column in columns], 1)
    p = _max_t(np.nan_to_num(table), draws, np.random.default_rng(seed))
    each = [UNLIMITED] * len(columns) if limits is None else limits
    return [_difference(column, float(q), own) for column, q, own in zip(table.T, p, each, strict=True)]


def holm(p: Sequence[float]) -> list[float]:
    """Correct p-values for all comparisons of a family: p₍ᵢ₎ · (m − i + 1), never below that of a smaller p.

    Undefined p-values are left out of the family.

    Paper: Holm 1979, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p, dtype=float)
    order = [i for i in np.argsort(values) if not isnan(values[i])]
    result, largest = values.copy(), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, values[i] * (len(order) - rank)))
        result[i] = largest
    return result.tolist()


Some = TypeVar("Some", Difference, Difference | None)


def corrected(*columns: Sequence[Some]) -> list[list[Some]]:
    """The columns of differences with p-values corrected for all of them by :func:`holm`; None stays as it is."""
    p = iter(holm([d.p for column in columns for d in column if d is not None]))
    return [[d if d is None else replace(d, p=next(p)) for d in column] for column in columns]


def _difference(column: np.ndarray, p: float, limits: Limits) -> Difference:
    d = column[~np.isnan(column)]
    if not len(d):
        return Difference(nan, nan, nan, 1.0, 0)
    low, high = within(mean_interval(d), d.mean(), limits)
    return Difference(float(d.mean()), float(low), float(high), p, len(d))


def _max_t(d: Float[np.ndarray, "n m"], draws: int, rng: np.random.Generator) -> Float[np.ndarray, " m"]:
    """Corrected p-values; never below 1 / (draws + 1). The scale √(Σ d²) of a column does not change with its signs."""
    scale = np.linalg.norm(d, axis=0)
    d = d / np.where(scale > 0, scale, 1)
    observed = np.abs(d.sum(0)) - 1e-9
    largest = np.sort(np.concatenate([np.abs(sums).max(1) for sums in _flipped(d, draws, rng)]))
    return (draws - np.searchsorted(largest, observed) + 1) / (draws + 1)


def _flipped(
    d: Float[np.ndarray, "n m"], draws: int, rng: np.random.Generator, at_once: int = 2**22
) -> Iterator[Float[np.ndarray, "draws m"]]:
    """Sums of d with random signs, in chunks to limit memory. Of many texts, they are normal with covariance dᵀd."""
    n, m = d.shape
    if n > MANY:
        yield rng.multivariate_normal(np.zeros(m), d.T @ d, size=draws, method="eigh")
        return
    step = max(1, at_once // max(1, n))
    for start in range(0, draws, step):
        signs = rng.integers(0, 2, size=(min(step, draws - start), n), dtype=np.int8)
        yield (2.0 * signs - 1) @ d
