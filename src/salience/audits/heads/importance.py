"""Which heads matter: by the gradient of a gate, and by removing them; and how far rankings of heads agree."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit
from scipy.stats import rankdata

from salience.core.ranking import top_share
from salience.core.stats import LEVEL, MINIMUM, Estimate

DRAWS = 1000
"""Samples of the texts, drawn with replacement, for each bootstrap interval."""

TOP = 0.2
"""The share of heads that counts as the most important ones."""

PerHead = Float[np.ndarray, "n h"]
"""One number for each text and head of all layers; NaN where it is undefined."""

Scale = Callable[[Float[np.ndarray, "d h"]], Float[np.ndarray, "d h"]]


def normalised(heads: Sequence[int]) -> Scale:
    """Scale the heads of every layer to an l2 norm of 1.

    Paper: Molchanov et al. 2017, arXiv:1611.06440, as in Michel et al. 2019, arXiv:1905.10650
    """
    ends = np.cumsum(heads)[:-1]

    def scale(rows: Float[np.ndarray, "d h"]) -> Float[np.ndarray, "d h"]:
        layers = np.split(rows, ends, axis=1)
        return np.concatenate([x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-20) for x in layers], 1)

    return scale


def means(values: PerHead) -> Float[np.ndarray, " h"]:
    """The mean of every head over the texts for which it is defined."""
    return _weighted(values, np.ones((1, len(values))))[0]


def _weighted(values: PerHead, weights: Float[np.ndarray, "d n"]) -> Float[np.ndarray, "d h"]:
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return (weights @ np.nan_to_num(values)) / (weights @ known)


@dataclass(frozen=True, slots=True)
class RankAgreement:
    """How far two rankings of heads agree; intervals are over samples of the texts."""

    correlation: Estimate
    """Spearman's ρ over heads."""
    overlap: Estimate
    """The share of the top fifth of one ranking that is in the top fifth of the other."""
    chance: float
    """The overlap of unrelated rankings."""
    unrelated: float
    """The |ρ| that unrelated rankings of as many heads stay below in 95 % of cases. Intervals are for these heads."""


def same(rows: Float[np.ndarray, "d h"]) -> Float[np.ndarray, "d h"]:
    """Values as they are."""
    return rows


def rank_agreement(a: PerHead, b: PerHead, *, scales: tuple[Scale, Scale] = (same, same), seed: int) -> RankAgreement:
    """Compare two rankings of heads by their means over texts, with percentile intervals of the bootstrap over texts.

    Paper: Efron & Tibshirani 1993, An Introduction to the Bootstrap, section 13.3
    """
    n, heads = a.shape
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=DRAWS).astype(float)
    weights = np.concatenate([np.ones((1, n)), drawn])
    x, y = (scale(_weighted(values, weights)) for scale, values in zip(scales, (a, b), strict=True))
    top = [np.array([top_share(row, TOP) for row in side]) for side in (x, y)]
    chosen = int(top[0][0].sum())
    overlaps = (top[0] & top[1]).sum(1) / chosen
    defined = int((~np.isnan(a) & ~np.isnan(b)).any(1).sum())
    correlation, overlap = (_percentiles(values, defined) for values in (spearmans(x, y), overlaps))
    return RankAgreement(correlation, overlap, chosen / heads, unrelated(heads))


def unrelated(heads: int) -> float:
    """The |ρ| that is significant over this many heads, from t = ρ √((n − 2) / (1 − ρ²)); 1 for fewer than three.

    >>> round(unrelated(24), 2)
    0.4
    """
    t = stdtrit(max(1, heads - 2), 1 - LEVEL / 2)
    return float(t / np.sqrt(heads - 2 + t * t)) if heads > 2 else 1.0


def spearmans(x: Float[np.ndarray, "d t"], y: Float[np.ndarray, "d t"]) -> Float[np.ndarray, " d"]:
    """Spearman's ρ of every row, with mean ranks for ties; NaN where a side is constant."""
    a, b = (rankdata(side, axis=1) for side in (x, y))
    a, b = (ranks - ranks.mean(1, keepdims=True) for ranks in (a, b))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))


def _percentiles(values: Float[np.ndarray, " d"], n: int) -> Estimate:
    """The first value, which is that of all texts, with the interval of the others; n texts have a value."""
    rest = values[1:][~np.isnan(values[1:])]
    if n < MINIMUM or not len(rest):
        return Estimate(float(values[0]), np.nan, np.nan, n)
    low, high = np.quantile(rest, [LEVEL / 2, 1 - LEVEL / 2])
    return Estimate(float(values[0]), float(low), float(high), n)
