"""Methods that use the gradient at the input, computed once or averaged over noisy copies."""

import warnings
from collections.abc import Callable
from typing import Literal, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from salience.core.passes import Needs, Pass, one_pass
from salience.core.randomness import Draws, padded
from salience.core.rows import Pack, Rows, observed
from salience.core.settings import Count, NotNegative, Seed
from salience.core.types import Attribution, Batch, Model, Targets
from salience.errors import ImpreciseScores, UnsupportedModel, choose

Reduction = Literal["l2", "l1", "linf", "sum", "mean_abs", "squared"]

_REDUCTIONS: dict[Reduction, Callable[[Tensor], Tensor]] = {
    "l2": lambda g: g.norm(dim=-1),
    "l1": lambda g: g.abs().sum(-1),
    "linf": lambda g: g.abs().amax(-1),
    "sum": lambda g: g.sum(-1),
    "mean_abs": lambda g: g.abs().mean(-1),
    "squared": lambda g: g.square().sum(-1),
}


ROUNDINGS = 4
"""A sum that is at most this many rounding errors of the sum of its absolute terms may be rounding only."""


def wide(x: Tensor) -> Tensor:
    """Return ``x`` in float32, or in its own precision if that is higher."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def dot(a: Float[Tensor, "*n d"], b: Float[Tensor, "*n d"]) -> Float[Tensor, "*n"]:
    """Σ_k a_k b_k. Terms may cancel nearly completely, so they are not rounded to less than their own precision."""
    return (wide(a) * wide(b)).sum(-1)


def reduced(gradient: Float[Tensor, "b t d"], reduction: str) -> Float[Tensor, "b t"]:
    """Reduce each token's gradient vector to one number."""
    g = wide(gradient)
    if choose(reduction, get_args(Reduction), "reduction") == "sum" and _cancels(g, torch.finfo(gradient.dtype).eps):
        raise UnsupportedModel(
            "the values of every token's gradient add up to 0, as a shift of all values of an embedding has no effect "
            "on a model with LayerNorm; reduction='sum' would return rounding errors. Use another reduction, such as "
            "'l2', or input_x_gradient for signed scores."
        )
    return _REDUCTIONS[cast(Reduction, reduction)](g)


def _cancels(terms: Float[Tensor, "b t d"], eps: float) -> bool:
    """Whether the terms of every token add up to 0, as far as their precision shows."""
    sums, sizes = terms.sum(-1).abs(), terms.abs().sum(-1)
    return bool((sizes > 0).any()) and bool((sums <= ROUNDINGS * eps * sizes).all())


@one_pass(Needs.GRADIENT)
def gradient(result: Pass, *, reduction: Reduction = "l2") -> Attribution:
    """How steeply the prediction changes with each token's embedding: ‖∂f/∂e_i‖.

    Paper: Simonyan et al. 2014, arXiv:1312.6034; for text Li et al. 2016, arXiv:1506.01066
    Cost: 1 forward, 1 backward
    Needs: an embedding layer
    """
    assert result.gradient is not None
    return Attribution(reduced(result.gradient, reduction) * result.batch.mask, signed=reduction == "sum")


@one_pass(Needs.GRADIENT)
def input_x_gradient(result: Pass) -> Attribution:
    """The first-order effect of each token's embedding: ∂f/∂e_i · e_i.

    Paper: Denil et al. 2015, arXiv:1412.6815; Shrikumar et al. 2016, arXiv:1605.01713
    Cost: 1 forward, 1 backward
    Needs: an embedding layer
    """
    g, e = result.gradient, result.output.embeddings
    assert g is not None
    if _cancels(wide(g) * wide(e), torch.finfo(g.dtype).eps):
        warnings.warn(
            f"the scores of input_x_gradient are rounding errors: {result.model.name} normalises its embeddings, so "
            "their length has almost no effect, and the terms of each score cancel. Load the model with "
            "dtype='float32', or use integrated_gradients.",
            ImpreciseScores,
            stacklevel=2,
        )
    return Attribution(dot(g, e) * result.batch.mask)


def smooth_grad(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    samples: Count = 25,
    noise: NotNegative = 0.15,
    reduction: Reduction = "l2",
    seed: Seed = 0,
) -> Attribution:
    """The gradient averaged over Gaussian noise, then reduced: ‖mean_k ∂f/∂e_i (e + ε_k)‖.

    ``noise`` is the standard deviation as a fraction of the range of the text's embedding values.

    Paper: Smilkov et al. 2017, arXiv:1706.03825
    Cost: samples forward, samples backward
    Needs: an embedding layer
    """
    x, draws = model.embed(batch), Draws(batch, seed)
    mean, spread = torch.zeros_like(x), noise * value_range(x, batch)

    def noisy(part: Pack) -> Tensor:
        epsilon = padded(
            [_normal(draws, *divmod(int(row), samples), batch, x.shape[-1]) for row in part.rows], part.batch
        )
        return x[part.text, : part.batch.width] + spread[part.text] * epsilon.to(x)

    text = torch.arange(len(batch), device=x.device).repeat_interleave(samples)
    for part, result in observed(model, Rows(batch, text, noisy), target, Needs.GRADIENT):
        assert result.gradient is not None
        mean[:, : part.batch.width].index_add_(0, part.text, result.gradient / samples)
    return Attribution(reduced(mean, reduction) * batch.mask, signed=reduction == "sum")


def _normal(draws: Draws, text: int, sample: int, batch: Batch, size: int) -> Float[Tensor, "n d"]:
    n = int(batch.mask[text].sum())
    return draws(text, sample, lambda rng: torch.randn(n, size, generator=rng))


def value_range(x: Float[Tensor, "b t d"], batch: Batch) -> Float[Tensor, "b 1 1"]:
    """Largest minus smallest embedding value of each row's real tokens."""
    real = batch.mask[..., None]
    high = x.masked_fill(~real, -torch.inf).amax((1, 2), keepdim=True)
    return high - x.masked_fill(~real, torch.inf).amin((1, 2), keepdim=True)
