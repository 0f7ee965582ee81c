"""Two tokens, one of which is a keyword: attention and relevance as functions of time, in closed form."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

ROOT = np.sqrt(2.0)


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """Relevance of the filler and of the keyword, and attention to the keyword, over time."""

    t: Float[np.ndarray, " n"]
    b0: Float[np.ndarray, " n"]
    b1: Float[np.ndarray, " n"]
    p: Float[np.ndarray, " n"]


def two_tokens(t: Float[np.ndarray, " n"], *, b0: float = 0.0, b1: float = 0.0, p: float = 0.5) -> Flow:
    """Gradient flow of s₁ − s₀, where s₀ = b₀ is a text of fillers and s₁ = (1 − p) b₀ + p b₁ has a keyword.

    ḃ₀ = −p,  ḃ₁ = p,  ṗ = b₁ − b₀. With d = b₁ − b₀, p̈ = 2p, so that p(t) = p cosh √2t + (d / √2) sinh √2t and
    d(t) = ṗ(t), while b₀ + b₁ stays as it is. Attention is not kept within [0, 1].

    At d = 0, relevance changes first (ḋ = 2p) and attention only by its second derivative; where the keyword begins
    with less relevance than the filler, attention falls first.

    >>> float(two_tokens(np.array([2.0])).p[0].round(3))
    4.244
    """
    d, total = b1 - b0, b0 + b1
    cosh, sinh = np.cosh(ROOT * t), np.sinh(ROOT * t)
    difference = d * cosh + ROOT * p * sinh
    return Flow(t, (total - difference) / 2, (total + difference) / 2, p * cosh + d / ROOT * sinh)
