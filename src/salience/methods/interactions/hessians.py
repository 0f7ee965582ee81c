"""Integrated Hessians: integrated gradients of integrated gradients, which share the prediction among pairs."""

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from salience.core.curvature import curvatures
from salience.core.erasure import Replacement, replaced, usual
from salience.core.rows import value
from salience.core.settings import Nodes
from salience.core.types import Batch, Model, Targets
from salience.methods import quadrature
from salience.methods.interactions.games import Pairwise
from salience.methods.perturbation import Unit, unit_numbers

POWER = 3
"""Nodes are cubes of those of a Gauss-Legendre rule: the weight −ln u has no derivatives at 0."""


def integrated_hessians(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    baseline: Replacement | None = None,
    nodes: Nodes = 32,
    unit: Unit = "word",
) -> list[Pairwise]:
    """How the gradient of one unit changes with another, along the path from a baseline: δ_i δ_j ∫∫ αβ f_ij(b + αβ δ).

    The interaction of a pair is the sum of both orders, over all dimensions of both embeddings; the main effect of i is
    δ_i ∫∫ f_i + δ_i² ∫∫ αβ f_ii. Together they sum to f(x) − f(b), and the interactions of a unit, shared equally, to
    its integrated gradient; the gap ``completeness`` is the error of the integral. A network of ReLUs has no second
    derivatives, so its interactions are 0 and the gap is what they should have been.

    Paper: Janizek et al. 2021, arXiv:2002.04138, eq. 5
    Cost: nodes · (1 forward, 1 backward per token and one more)
    Needs: an embedding layer, and a model whose derivatives can be differentiated
    """
    baseline = baseline or usual(model)
    start, end = replaced(model, batch, batch.content, baseline), model.embed(batch)
    u, weights = log_rule(nodes)
    text = torch.arange(len(batch), device=batch.ids.device).repeat_interleave(nodes)
    wide = torch.promote_types(start.dtype, torch.float32)
    H, g = curvatures(model, batch, target, (start, end), text, torch.from_numpy(u).to(wide).repeat(len(batch)))
    w, wu = (torch.from_numpy(x).to(wide) for x in (weights, weights * u))
    bends = torch.einsum("k,bkst->bst", wu, H.view(len(batch), nodes, *H.shape[1:]))
    slopes = torch.einsum("k,bkt->bt", w, g.view(len(batch), nodes, -1))
    G = bends + torch.diag_embed(slopes)
    rise = (value(model, batch, target) - value(model, batch, target, start)).cpu()
    units = unit_numbers(batch, unit).cpu()
    settings = {"baseline": baseline, "nodes": nodes}
    return [_by_unit(*row, settings) for row in zip(G, units, rise.tolist(), strict=True)]


def log_rule(nodes: int) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Nodes and weights of ∫ −ln(u) g(u) du on [0, 1].

    αβ of two uniform numbers has the density −ln u, so ∫∫ g(αβ) dα dβ is this integral. Substituting u = vᵏ makes it
    −k² ∫ vᵏ⁻¹ ln(v) g(vᵏ) dv.
    """
    v, weights = quadrature.fixed("gauss_legendre", nodes)
    return v**POWER, -(POWER**2) * v ** (POWER - 1) * np.log(v) * weights


def _by_unit(
    by_token: Float[Tensor, "t t"], units: Int[Tensor, " t"], rise: float, settings: Mapping[str, object]
) -> Pairwise:
    """Add up the tokens of every unit, and both orders of every pair."""
    n = int(units.max()) + 1
    members = (units == torch.arange(n)[:, None]).to(by_token)
    G = members @ by_token @ members.T
    main = G.diagonal().clone()
    gaps = {"completeness": float(G.sum()) - rise}
    return Pairwise((G + G.T).fill_diagonal_(0), main, G.sum(1), gaps, settings)
