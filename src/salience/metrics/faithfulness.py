"""Whether the tokens that an explanation names are those that the model needs: erase them and look."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from salience.batching import fitting
from salience.erasure import Erasure, eraser, usual
from salience.passes import forward
from salience.types import Batch, Model, Targets

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
"""The bins of ERASER."""


def comprehensiveness(
    model: Model,
    batch: Batch,
    scores: Float[Tensor, "b t"],
    target: Targets,
    /,
    *,
    shares: Sequence[float] = SHARES,
    erase: Erasure | None = None,
) -> Float[Tensor, " b"]:
    """What the prediction loses without the highest-scoring tokens: mean over shares of f(x) − f(x without top q).

    Paper: DeYoung et al. 2020 (ERASER), arXiv:1911.03429, section 4.2
    """
    return _drops(model, batch, [top(scores, batch, share) for share in shares], target, erase)


def sufficiency(
    model: Model,
    batch: Batch,
    scores: Float[Tensor, "b t"],
    target: Targets,
    /,
    *,
    shares: Sequence[float] = SHARES,
    erase: Erasure | None = None,
) -> Float[Tensor, " b"]:
    """What the prediction loses when only the highest-scoring tokens are left: mean of f(x) − f(top q alone).

    Paper: DeYoung et al. 2020 (ERASER), arXiv:1911.03429, section 4.2
    """
    rest = [batch.content & ~top(scores, batch, share) for share in shares]
    return _drops(model, batch, rest, target, erase)


def top(scores: Float[Tensor, "b t"], batch: Batch, share: float) -> Bool[Tensor, "b t"]:
    """The highest-scoring share of each text's tokens, at least one; of equal scores the first."""
    order = scores.masked_fill(~batch.content, -torch.inf).argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(batch.width, device=order.device).expand_as(order))
    count = (share * batch.content.sum(1)).round().clamp_min(1)
    return batch.content & (rank < count[:, None])


def _drops(
    model: Model, batch: Batch, erased: Sequence[Bool[Tensor, "b t"]], target: Targets, erase: Erasure | None
) -> Float[Tensor, " b"]:
    """Mean over kinds of erasure of what each text's number loses by it."""
    away = eraser(model, erase or usual(model))
    where = torch.cat([batch.mask & False, *erased])
    text = torch.arange(len(batch), device=where.device).repeat(len(erased) + 1)
    values = torch.empty(len(text))
    order = batch.mask.sum(1)[text].argsort(dim=0, descending=True, stable=True)
    for part, rows in fitting(batch, text[order], model.budget):
        at = order[part]
        changed, embeddings = away(rows, where[at, : rows.width])
        values[at.cpu()] = target.take(text[at])(forward(model, changed, embeddings=embeddings).logits).float().cpu()
    whole, *others = values.split(len(batch))
    return whole - torch.stack(others).mean(0)
