"""Methods that follow the gradient along a path from a baseline to the input."""

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from salience.batching import chunks
from salience.erasure import Replacement, replaced, usual
from salience.errors import BadInput, choose
from salience.passes import differentiate, forward
from salience.types import Attribution, Batch, Model, Targets

Rule = Literal["midpoint", "trapezoid", "left", "right", "gauss_legendre"]
RULES = ("midpoint", "trapezoid", "left", "right", "gauss_legendre")


def integrated_gradients(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    baseline: Replacement | None = None,
    rule: Rule = "gauss_legendre",
    nodes: int = 50,
) -> Attribution:
    """The gradient averaged on the straight path from a baseline, times the way: (e_i − b_i) · ∫ ∂f/∂e_i dα.

    Paper: Sundararajan et al. 2017, arXiv:1703.01365, eq. 1
    Cost: nodes forward, nodes backward
    Needs: an embedding layer
    """
    baseline = baseline or usual(model)
    x, b = model.embed(batch), replaced(model, batch, batch.content, baseline)
    alphas, weights = quadrature(rule, nodes)
    mean = path_gradient(model, batch, target, b, x - b, alphas, weights)
    scores = (mean * (x - b)).float().sum(-1) * batch.mask
    ends = [target(forward(model, batch, embeddings=e).logits) for e in (x, b)]
    return Attribution(
        scores, gaps={"completeness": scores.sum(1) - (ends[0] - ends[1])}, settings={"baseline": baseline}
    )


def quadrature(rule: str, nodes: int) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Nodes on [0, 1] and their weights, which sum to 1."""
    choose(rule, RULES, "rule")
    if nodes < 1 + (rule == "trapezoid"):
        raise BadInput(f"nodes={nodes} is too few for the {rule} rule")
    even = torch.full((nodes,), 1 / nodes)
    steps = torch.arange(nodes)
    if rule == "midpoint":
        return (steps + 0.5) / nodes, even
    if rule == "left":
        return steps / nodes, even
    if rule == "right":
        return (steps + 1) / nodes, even
    if rule == "trapezoid":
        ends = torch.ones(nodes)
        ends[0] = ends[-1] = 0.5
        return steps / (nodes - 1), ends / (nodes - 1)
    x, w = np.polynomial.legendre.leggauss(nodes)
    return torch.tensor((x + 1) / 2).float(), torch.tensor(w / 2).float()


def path_gradient(
    model: Model,
    batch: Batch,
    target: Targets,
    start: Float[Tensor, "b t d"],
    way: Float[Tensor, "b t d"],
    alphas: Float[Tensor, " n"],
    weights: Float[Tensor, " n"],
) -> Float[Tensor, "b t d"]:
    """Σ_k w_k ∂f/∂e (start + α_k way). Rows are text × node, in passes that stay within the model's budget."""
    total = torch.zeros_like(start)
    count = len(alphas)
    for part in chunks(len(batch) * count, batch.width, model.budget):
        rows = torch.arange(part.start, part.stop, device=start.device)
        text, node = rows // count, rows % count
        at = start[text] + alphas.to(start)[node, None, None] * way[text]
        seen = differentiate(model, batch.take(text), target.take(text), embeddings=at)
        total.index_add_(0, text, seen.gradient * weights.to(start)[node, None, None])
    return total
