"""Whether two explanations of one text say the same: of its tokens' scores, one number."""

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import kendalltau, rankdata

from salience.metrics.plausibility import highest

Scores = Float[np.ndarray, " t"]


def spearman(a: Scores, b: Scores) -> float:
    """The correlation of ranks, ties sharing their mean; 0 if either side is constant."""
    x, y = (rankdata(v) - (len(v) + 1) / 2 for v in (a, b))
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale > 0 else 0.0


def kendall(a: Scores, b: Scores) -> float:
    """Kendall's τ-b: pairs of tokens in the same order less those in the opposite order; 0 if either is constant."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    found: Any = kendalltau(a, b)
    return float(found.statistic)


def overlap(a: Scores, b: Scores, *, share: float = 0.2) -> float:
    """The share of the highest-scoring tokens of one that are also those of the other; of equal scores the first."""
    one, other = highest(a, share), highest(b, share)
    return float((one & other).sum() / one.sum())
