"""Agreement between two explanations of one text."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import kendalltau, rankdata

from salience.core.ranking import top_share
from salience.metrics.metric import Metric

Scores = Float[np.ndarray, " t"]


def spearman(a: Scores, b: Scores) -> float:
    """Spearman's ρ, with mean ranks for ties; 0 if either side is constant."""
    x, y = (rankdata(v) - (len(v) + 1) / 2 for v in (a, b))
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale > 0 else 0.0


def kendall(a: Scores, b: Scores) -> float:
    """Kendall's τ-b: concordant minus discordant pairs of tokens, corrected for ties; 0 if either side is constant."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    result: Any = kendalltau(a, b)
    return float(result.statistic)


def overlap(a: Scores, b: Scores, *, share: float = 0.2) -> float:
    """The share of the highest-scoring tokens that both have in common; ties go to the earlier token."""
    one, other = top_share(a, share), top_share(b, share)
    return float((one & other).sum() / one.sum())


def _against_leave_one_out(name: str, correlation: Callable[[Scores, Scores], float]) -> Metric:
    def read(scores: Scores, differences: Scores) -> float:
        return correlation(scores, differences)

    read.__name__, read.__doc__ = (
        name,
        f"{correlation.__doc__}\n\n    Computed between the scores and the effect of erasing single tokens.",
    )
    return Metric(read, "leave_one_out", "higher", "leave_one_out", limits=(-1, 1))


loo_spearman = _against_leave_one_out("loo_spearman", spearman)
loo_kendall = _against_leave_one_out("loo_kendall", kendall)
