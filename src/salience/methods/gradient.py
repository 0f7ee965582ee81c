"""Methods that read the gradient at the input, once or under noise."""

from collections.abc import Callable
from typing import Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from salience.batching import fitting
from salience.errors import BadInput, choose
from salience.passes import Needs, Pass, differentiate, one_pass
from salience.randomness import generators, padded
from salience.types import Batch, Model, Targets

Reduction = Literal["l2", "l1", "linf", "sum", "mean_abs", "squared"]

_REDUCTIONS: dict[Reduction, Callable[[Tensor], Tensor]] = {
    "l2": lambda g: g.norm(dim=-1),
    "l1": lambda g: g.abs().sum(-1),
    "linf": lambda g: g.abs().amax(-1),
    "sum": lambda g: g.sum(-1),
    "mean_abs": lambda g: g.abs().mean(-1),
    "squared": lambda g: g.square().sum(-1),
}


def reduced(gradient: Float[Tensor, "b t d"], reduction: str) -> Float[Tensor, "b t"]:
    """One number per token from its gradient vector."""
    return _REDUCTIONS[cast(Reduction, choose(reduction, get_args(Reduction), "reduction"))](gradient.float())


@one_pass(Needs.GRADIENT)
def gradient(seen: Pass, *, reduction: Reduction = "l2") -> Tensor:
    """How steeply the prediction changes with each token's embedding: ‖∂f/∂e_i‖.

    Paper: Simonyan et al. 2014, arXiv:1312.6034; for text Li et al. 2016, arXiv:1506.01066
    Cost: 1 forward, 1 backward
    Needs: an embedding layer
    """
    assert seen.gradient is not None
    return reduced(seen.gradient, reduction) * seen.batch.mask


@one_pass(Needs.GRADIENT)
def input_x_gradient(seen: Pass) -> Tensor:
    """The first-order effect of each token's embedding: ∂f/∂e_i · e_i.

    Paper: Denil et al. 2015, arXiv:1412.6815; Shrikumar et al. 2016, arXiv:1605.01713
    Cost: 1 forward, 1 backward
    Needs: an embedding layer
    """
    assert seen.gradient is not None
    return (seen.gradient * seen.output.embeddings).float().sum(-1) * seen.batch.mask


def smooth_grad(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    samples: int = 25,
    noise: float = 0.15,
    reduction: Reduction = "l2",
    seed: int = 0,
) -> Tensor:
    """The mean gradient under Gaussian noise, then reduced: ‖mean_k ∂f/∂e_i (e + ε_k)‖.

    ``noise`` is the standard deviation as a share of the range of the text's own embedding values.

    Paper: Smilkov et al. 2017, arXiv:1706.03825
    Cost: samples forward, samples backward
    Needs: an embedding layer
    """
    if samples < 1:
        raise BadInput(f"samples={samples} is too few; smooth_grad takes at least 1")
    x = model.embed(batch)
    mean = torch.zeros_like(x)
    spread, sources = noise * value_range(x, batch), generators(batch, seed)
    text = torch.arange(len(batch), device=x.device).repeat_interleave(samples)
    for rows, part in fitting(batch, text, model.budget):
        at, width = text[rows], part.width
        lengths = part.mask.sum(1).tolist()
        drawn = [torch.randn(n, x.shape[-1], generator=sources[i]) for n, i in zip(lengths, at.tolist(), strict=True)]
        epsilon = padded(drawn, part).to(x)
        seen = differentiate(model, part, target.take(at), embeddings=x[at, :width] + spread[at] * epsilon)
        assert seen.gradient is not None
        mean[:, :width].index_add_(0, at, seen.gradient / samples)
    return reduced(mean, reduction) * batch.mask


def value_range(x: Float[Tensor, "b t d"], batch: Batch) -> Float[Tensor, "b 1 1"]:
    """Largest minus smallest embedding value of each row's real tokens."""
    real = batch.mask[..., None]
    high = x.masked_fill(~real, -torch.inf).amax((1, 2), keepdim=True)
    return high - x.masked_fill(~real, torch.inf).amin((1, 2), keepdim=True)
