"""Agreement of two rankings of the tokens of a text: is the first of one among the first of the other?"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, nan

import numpy as np
from jaxtyping import Float

from salience.core.stats import Estimate, estimate
from salience.metrics.agreement import kendall

TOP = 0.05
"""The share of tokens that count as first."""

TIMES = 3.0
"""An agreement counts if it is at least so many times chance."""

Scores = Float[np.ndarray, " t"]

Rankings = Float[np.ndarray, "*n t"]
"""The scores of the tokens of a text, or several, such as those for each token of its translation."""


def agreement(u: Scores, v: Scores, share: float = TOP) -> float:
    """A(u, v) of one text: whether the highest of u is in the highest ``share`` of v, at least one token.

    #{j : v_j > v_{argmax u}} < ⌈share · n⌉. It is not symmetric. Where several tokens are highest in u, it is the mean
    over them. NaN for a text of one token.

    >>> agreement(np.array([0.1, 0.9, 0.3]), np.array([1.0, 4.0, 2.0]))
    1.0
    """
    return float(np.mean(_first(v, share)[u == u.max()])) if len(u) > 1 else nan


def chance(v: Scores, share: float = TOP) -> float:
    """The mean of A(u, v) over all orders of v: what tokens in a random order reach. NaN for a text of one token."""
    return float(np.mean(_first(v, share))) if len(v) > 1 else nan


def _first(v: Scores, share: float) -> np.ndarray:
    """Whether each token is in the highest share of v; tokens of the same score are in it or not together."""
    above = len(v) - np.searchsorted(np.sort(v), v, side="right")
    return above < ceil(Fraction(str(share)) * len(v))


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far a ranking u agrees with a ranking v, over texts; each number with its interval."""

    of: str
    """What is compared, such as ``a, r′``."""
    agreement: Estimate
    chance: Estimate
    lead: Estimate
    """Agreement above three times chance, compared text by text."""
    tau: Estimate
    """Kendall's τ, another measure of agreement, which is 0 by chance."""

    @classmethod
    def between(cls, of: str, us: Sequence[Rankings], vs: Sequence[Rankings]) -> "Agreement":
        """Compare two rankings of the same texts. Where a text has several, it counts with their mean."""
        own, by_chance, taus = np.array([_compared(u, v) for u, v in zip(us, vs, strict=True)]).reshape(-1, 3).T
        return cls(
            of,
            estimate(own, (0, 1)),
            estimate(by_chance, (0, 1)),
            estimate(own - TIMES * by_chance, (-TIMES, 1)),
            estimate(taus, (-1, 1)),
        )

    @property
    def times(self) -> float:
        """The agreement as a multiple of chance."""
        return self.agreement.mean / self.chance.mean


def _compared(u: Rankings, v: Rankings) -> Float[np.ndarray, "3"]:
    """A(u, v), chance and τ of one text, each a mean over its rankings. NaN for a text of one token."""
    rows = zip(np.atleast_2d(u), np.atleast_2d(v), strict=True)
    return np.mean([(agreement(a, b), chance(b), kendall(a, b) if len(a) > 1 else nan) for a, b in rows], 0)


def accuracy_match(value: float, agreements: Sequence[float], accuracies: Sequence[float]) -> float:
    """ξ: the accuracy of another seed at the first step at which its attention agrees with a* more than ``value``.

    ``agreements`` are the mean A(a*, a) of other seeds by step, and ``accuracies`` theirs. It reads: so well is an
    independent model trained before its attention predicts a* better. NaN if it never does.

    >>> accuracy_match(0.4, [0.1, 0.3, 0.5], [0.5, 0.7, 0.8])
    0.8
    """
    return next((x for a, x in zip(agreements, accuracies, strict=True) if a > value), nan)
