"""What a head looks at: the token before or after, the first token, separators, everything, or what occurred before.

A score is TransformerLens' ``mul``: Σ A ⊙ D / Σ A, the share of the attention A that falls on a detection pattern D. As
the weights of a query sum to 1, this is also the mean weight of Clark et al.

Papers: Clark et al. 2019, arXiv:1906.04341, section 3; Olsson et al. 2022, arXiv:2209.11895 (induction)
"""

from collections.abc import Mapping, Sequence
from math import log
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from salience.core.executor import Report
from salience.core.passes import reduce_attention
from salience.core.rows import each_text
from salience.core.target import Target
from salience.core.text import Encoded
from salience.core.types import Batch, Model, Site
from salience.errors import UnsupportedModel

Role = Literal["previous", "next", "first", "separator", "duplicate", "induction", "broad"]
ROLES: tuple[Role, ...] = get_args(Role)

BROAD = 3.8 / log(128)
"""The entropy of a broad head, 3.8 nats for texts of 128 tokens, as a share of that of uniform attention."""

THRESHOLDS: Mapping[Role, float] = {
    "previous": 0.5,
    "next": 0.5,
    "first": 0.6,
    "separator": 0.6,
    "duplicate": 0.5,
    "induction": 0.5,
    "broad": BROAD,
}
"""A head has a role if its mean score is above this. Those of duplicate and induction are ours; the rest is Clark's."""

REPEATED: tuple[Role, ...] = ("duplicate", "induction")
"""Roles that only a query with an equal token before it can have: only these queries are counted."""


def patterns(batch: Batch) -> dict[Role, Bool[Tensor, "b t t"]]:
    """The detection patterns D of a batch: which keys a head of each role would attend to, from every query.

    A text token is a duplicate of an equal one before it. Induction attends to the token after that.
    """
    width, device = batch.width, batch.ids.device
    real = batch.mask[:, :, None] & batch.mask[:, None]
    place = torch.arange(width, device=device)
    distance = place[:, None] - place
    first, text = (place == 0).expand_as(batch.mask), batch.content
    equal = (batch.ids[:, :, None] == batch.ids[:, None]) & text[:, :, None] & text[:, None] & (distance > 0)
    after = torch.cat([torch.zeros_like(equal[..., :1]), equal[..., :-1]], -1) & text[:, None]
    return {
        "previous": real & (distance == 1),
        "next": real & (distance == -1),
        "first": real & first[:, None],
        "separator": real & (batch.special & ~first)[:, None],
        "duplicate": equal,
        "induction": after,
    }


def role_scores(
    a: Float[Tensor, "b h t t"], batch: Batch, where: Mapping[Role, Bool[Tensor, "b t t"]], *, causal: bool
) -> Float[Tensor, "b h 7"]:
    """The scores of every head, in the order of ``ROLES``; NaN where no query of a text could have the role."""
    a = a.float() * (batch.mask[:, :, None] & batch.mask[:, None])[:, None]
    scores = [
        _share(a, where[role], where[role].any(-1) if role in REPEATED else batch.mask)
        for role in ROLES
        if role != "broad"
    ]
    return torch.stack([*scores, _entropy(a, batch, causal)], -1)


def _share(a: Float[Tensor, "b h t t"], D: Bool[Tensor, "b t t"], queries: Bool[Tensor, "b t"]) -> Float[Tensor, "b h"]:
    """Σ A ⊙ D / Σ A over the queries that are counted; NaN for texts without a place in D."""
    own = a * queries[:, None, :, None]
    share = (own * D[:, None]).sum((2, 3)) / own.sum((2, 3))
    return share.masked_fill(~D.any(-1).any(-1)[:, None], torch.nan)


def _entropy(a: Float[Tensor, "b h t t"], batch: Batch, causal: bool) -> Float[Tensor, "b h"]:
    """−Σ a ln a / ln n, averaged over queries; n is the number of tokens that the query can see, at least 2."""
    n = _visible(batch, causal)
    counted = batch.mask & (n > 1)
    scaled = torch.special.entr(a).sum(-1) / n.clamp(min=2).log()[:, None]
    return (scaled * counted[:, None]).sum(-1) / counted.sum(-1)[:, None]


def _visible(batch: Batch, causal: bool) -> Tensor:
    tokens = batch.mask.sum(1, keepdim=True).expand_as(batch.ids)
    return torch.minimum(tokens, torch.arange(1, batch.width + 1, device=tokens.device)) if causal else tokens


def uniform(batch: Batch, *, causal: bool) -> Float[Tensor, "b 1 t t"]:
    """Uniform attention over the tokens that a query can see."""
    seen = (batch.mask[:, :, None] & batch.mask[:, None]).float()
    seen = seen.tril() if causal else seen
    return (seen / seen.sum(-1, keepdim=True).clamp(min=1))[:, None]


def measure_roles(
    model: Model, encoded: Sequence[Encoded], *, report: Report | None = None
) -> tuple[list[Float[np.ndarray, "n h 7"]], Float[np.ndarray, "n 7"]]:
    """The scores of all heads on every text, by layer, and those of uniform attention; one forward pass per text.

    Of the weights of a layer only the scores are kept, so that those of all layers are never held at the same time.
    """

    def work(batch: Batch, items: list[int]) -> list[tuple[list[Tensor], Tensor]]:
        where = patterns(batch)
        layers: list[Tensor] = []

        def read(_: Site, a: Tensor) -> None:
            check_square(a, model)
            layers.append(role_scores(a, batch, where, causal=model.causal).cpu())

        reduce_attention(model, batch, [Target()], read)
        even = role_scores(uniform(batch, causal=model.causal), batch, where, causal=model.causal)[:, 0].cpu()
        return [([layer[i] for layer in layers], even[i]) for i in range(len(items))]

    rows = each_text(model, encoded, work, report=report)
    layers = [torch.stack(layer).double().numpy() for layer in zip(*(own for own, _ in rows), strict=True)]
    return layers, torch.stack([even for _, even in rows]).double().numpy()


def check_square(a: Tensor, model: Model) -> None:
    """Raise unless attention is from every token to every token."""
    if a.shape[-1] != a.shape[-2]:
        raise UnsupportedModel(f"the attention of {model.name} is not from every token to every token")


def role_of(means: Float[np.ndarray, " 7"]) -> Role | None:
    """The role whose score exceeds its threshold by the largest factor; None if no score does.

    >>> role_of(np.array([0.2, 0.1, 0.7, 0.0, np.nan, np.nan, 0.5]))
    'first'
    """
    factors: dict[Role, float] = {
        role: score / THRESHOLDS[role] for role, score in zip(ROLES, means, strict=True) if score == score
    }
    best: Role | None = max(factors, key=lambda role: factors[role], default=None)
    return best if best is not None and factors[best] > 1 else None
