"""Multipliers of constraints: how the weight of a term changes while the constraint is violated."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True, slots=True)
class DampedAscent:
    """The multiplier of a constraint c = 0: λ ← λ + η c̄ + ρ Δc̄, with c̄ the moving average of c. It may be negative.

    Summed over the steps this is λ = ρ c̄ + η Σ c̄, a proportional and an integral part. The integral alone is gradient
    ascent; it overshoots, since c follows λ with delay. ρ damps it as the quadratic penalty ρ c² / 2 would.

    Papers: Platt & Barr 1987, Constrained differential optimization; Stooke et al. 2020, arXiv:2007.03964, section 4
    """

    rate: float
    damping: float
    smoothing: float
    high: float

    def __call__(self, weight: float, average: float, c: float) -> tuple[float, float]:
        """Return the next multiplier and moving average."""
        before, average = average, self.smoothing * average + (1 - self.smoothing) * c
        growth = self.rate * average + self.damping * (average - before)
        return min(max(weight + growth, -self.high), self.high), average


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
