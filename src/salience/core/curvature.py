"""Second derivatives of the explained number, by tokens: how it bends when the tokens move along their directions."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from salience.core.passes import exclusive
from salience.core.rows import Rows
from salience.core.types import Batch, Model, Targets


def curvatures(
    model: Model,
    batch: Batch,
    target: Targets,
    ends: tuple[Float[Tensor, "b t d"], Float[Tensor, "b t d"]],
    text: Int[Tensor, " r"],
    at: Float[Tensor, " r"],
) -> tuple[Float[Tensor, "r t t"], Float[Tensor, "r t"]]:
    """Return δ_sᵀ H_st δ_t of all pairs of tokens, and δ_t · ∇_t f, at start + at · δ with δ = end − start.

    Both are derivatives with respect to one number per token, which scales its way from the start to the end. A row of
    t tokens takes one forward, one backward and t further backward passes.
    """
    rows = Rows(batch, text)
    start, end = ends
    H = torch.zeros(len(text), batch.width, batch.width, dtype=at.dtype)
    g = torch.zeros(len(text), batch.width, dtype=at.dtype)

    def work(items: list[int]) -> tuple[Tensor, Tensor]:
        part = rows.part(items)
        width = part.batch.width
        first, last = start[part.text, :width], end[part.text, :width]
        scale = at[part.rows.cpu()].to(first)[:, None].repeat(1, width).requires_grad_()
        with exclusive(model), torch.enable_grad():
            # Fused attention kernels have no second derivatives.
            output = model(part.batch, embeddings=first + scale[..., None] * (last - first), attention="written_out")
            value = target.take(part.text)(output.logits).sum()
            (slopes,) = torch.autograd.grad(value, scale, create_graph=True)
            bends = [torch.autograd.grad(s.sum(), scale, retain_graph=True)[0] for s in slopes.unbind(1)]
        return torch.stack(bends, 1).detach(), slopes.detach()

    for items, (bends, slopes) in model.executor.run(rows.costs, work):
        width = slopes.shape[1]
        H[items, :width, :width], g[items, :width] = bends.cpu().to(H), slopes.cpu().to(g)
    return H, g
