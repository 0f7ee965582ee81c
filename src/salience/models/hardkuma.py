"""Distributions over the selection of tokens: HardKuma, which has mass at exactly 0 and 1, and Bernoulli."""

from dataclasses import dataclass
from math import expm1, log, log1p

import torch
from jaxtyping import Float
from torch import Tensor, nn

LOW, HIGH = -0.1, 1.1
"""The interval that a Kumaraswamy variable is stretched to before it is clamped to [0, 1]."""

SMALLEST, LARGEST = 1e-6, 100.0
"""The range of the parameters a and b."""


@dataclass(frozen=True, slots=True, eq=False)
class HardKuma:
    """z = clamp(low + (high − low) k, 0, 1) with k ~ Kumaraswamy(a, b), whose CDF is F(k) = 1 − (1 − k^a)^b.

    Paper: Bastings et al. 2019, arXiv:1905.08160, section 3
    """

    a: Float[Tensor, "b t"]
    b: Float[Tensor, "b t"]

    @classmethod
    def of(cls, parameters: Float[Tensor, "b t 2"]) -> "HardKuma":
        """Take a and b from numbers of any size."""
        a, b = nn.functional.softplus(parameters).clamp(SMALLEST, LARGEST).unbind(-1)
        return cls(a, b)

    @staticmethod
    def start(rate: float) -> tuple[float, float]:
        """The parameters with P(z ≠ 0) = rate and b = softplus(0) = log 2; a small a leaves mass at both ends."""
        a = log1p(-(rate ** (1 / log(2)))) / log(-LOW / (HIGH - LOW))
        return log(expm1(max(a, SMALLEST))), 0.0

    def log_survival(self, z: float) -> Float[Tensor, "b t"]:
        """log P(z' > z) for z from 0 to below 1: b log(1 − k^a) at the k that is stretched to z."""
        k = torch.as_tensor((z - LOW) / (HIGH - LOW), dtype=self.a.dtype, device=self.a.device)
        return self.b * torch.log1p(-(k**self.a))

    @property
    def log_nonzero(self) -> Float[Tensor, "b t"]:
        """log P(z ≠ 0)."""
        return self.log_survival(0.0)

    @property
    def one(self) -> Float[Tensor, "b t"]:
        """P(z = 1)."""
        return self.log_survival(1.0).exp()

    def draw(self) -> Float[Tensor, "b t"]:
        """Draw z by k = (1 − (1 − u)^(1/b))^(1/a), u uniform; differentiable in a and b."""
        u = torch.rand_like(self.a).clamp(1e-6, 1 - 1e-6)
        return self._stretched(torch.log1p(-u))

    def _stretched(self, log_survival: Float[Tensor, "b t"]) -> Float[Tensor, "b t"]:
        """The z that is exceeded with this probability."""
        w = -torch.expm1(log_survival / self.b)
        k = torch.exp(w.clamp_min(1e-12).log() / self.a)
        return (LOW + (HIGH - LOW) * k).clamp(0, 1)

    def decide(self, threshold: Float[Tensor, ""]) -> Float[Tensor, "b t"]:
        """0, or where P(z ≠ 0) is above the threshold the median of the values that are not 0, which is mostly 1."""
        return self._stretched(self.log_nonzero - log(2)) * (self.log_nonzero.exp() > threshold)


@dataclass(frozen=True, slots=True, eq=False)
class Bernoulli:
    """z is 1 with probability σ(logit), independently for every token."""

    logit: Float[Tensor, "b t"]

    @classmethod
    def of(cls, parameters: Float[Tensor, "b t 1"]) -> "Bernoulli":
        return cls(parameters[..., 0])

    @staticmethod
    def start(rate: float) -> tuple[float]:
        """The logit of the rate."""
        return (log(rate / (1 - rate)),)

    @property
    def log_nonzero(self) -> Float[Tensor, "b t"]:
        """log P(z = 1)."""
        return nn.functional.logsigmoid(self.logit)

    def draw(self) -> Float[Tensor, "b t"]:
        """Draw z, which has no derivative. Logits that are not numbers stay so, for the loss to tell."""
        p = self.logit.detach().sigmoid()
        return torch.where(p.isnan(), p, torch.bernoulli(p.nan_to_num()))

    def decide(self, threshold: Float[Tensor, ""]) -> Float[Tensor, "b t"]:
        """1 where P(z = 1) is above the threshold, and 0 elsewhere."""
        return (self.logit.detach().sigmoid() > threshold).to(self.logit)
