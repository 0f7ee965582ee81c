"""Multipliers of constraints: how the weight of a term rises while the constraint is violated."""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, sqrt


@dataclass(frozen=True, slots=True)
class ExponentialAscent:
    """The multiplier of a constraint c ≤ 0: λ ← λ · exp(η c̄ + δ Δc̄), with c̄ the moving average of c.

    In the paper δ is 0. A larger one damps the multiplier: it falls as soon as c does, instead of once c is below 0.

    Paper: Bastings et al. 2019, arXiv:1905.08160, section 4, and its code
    """

    rate: float = 0.01
    smoothing: float = 0.99
    damping: float = 0.0
    low: float = 1e-12
    high: float = 5.0

    def __call__(self, weight: float, average: float, c: float) -> tuple[float, float]:
        """Return the next multiplier and moving average."""
        before, average = average, self.smoothing * average + (1 - self.smoothing) * c
        growth = self.rate * average + self.damping * (average - before)
        return min(max(weight * exp(growth), self.low), self.high), average


@dataclass(frozen=True, slots=True)
class GradientAscent:
    """The multiplier of a constraint c ≤ 0: α ← α + η c / √v, with v the moving average of c² (RMSprop).

    Paper: De Cao et al. 2020, arXiv:2004.14992, section 2.3, and its code
    """

    rate: float = 0.3
    smoothing: float = 0.99
    low: float = 0.0
    high: float = 200.0

    def __call__(self, weight: float, average: float, c: float) -> tuple[float, float]:
        """Return the next multiplier and moving average."""
        average = self.smoothing * average + (1 - self.smoothing) * c * c
        return min(max(weight + self.rate * c / (sqrt(average) + 1e-8), self.low), self.high), average


Ascent = Callable[[float, float, float], tuple[float, float]]
"""(λ, its moving average, mean loss of the step) -> the next λ and moving average."""
