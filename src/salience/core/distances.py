"""Distances between distributions."""

from jaxtyping import Float
from torch import Tensor

TINY = 1e-12
"""Lower bound of a probability, so that its logarithm is finite."""


def total_variation(p: Float[Tensor, "*n c"], q: Float[Tensor, "*n c"]) -> Float[Tensor, "*n"]:
    """TVD(p, q) = ½ Σ_c |p_c − q_c|."""
    return (p - q).abs().sum(-1) / 2


def jensen_shannon(p: Float[Tensor, "*n t"], q: Float[Tensor, "*n t"]) -> Float[Tensor, "*n"]:
    """JSD(p, q) = ½ KL(p ‖ m) + ½ KL(q ‖ m) with m = (p + q) / 2; at most ln 2."""
    log_m = ((p + q) / 2).clamp_min(TINY).log()
    return sum((x * (x.clamp_min(TINY).log() - log_m)).sum(-1) for x in (p, q)) / 2  # pyright: ignore
