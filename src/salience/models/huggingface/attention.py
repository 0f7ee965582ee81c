"""Reading and editing attention weights through transformers' own AttentionInterface.

One attention function is registered, once, under the name ``salience``. What it should do in a forward pass is passed
along with that pass as the keyword ``salience``: no class is patched, and the only thing to restore is the name of the
selected kernel.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from salience.core.types import Edit, Reduction, Site, Weights

KERNEL = "salience"


@dataclass(slots=True)
class Watch:
    """Collects the weights of every layer of one forward pass, after the edit if there is one."""

    edit: Edit | None = None
    wanted: Weights | None = None
    reduction: Reduction | None = None
    """What is kept of the weights; all, if None."""
    calls: int = 0
    weights: list[Tensor] = field(default_factory=list[Tensor])
    value: Tensor | None = None
    """The value vectors of the last layer that was called, for every head and token."""

    def __call__(self, weights: Tensor) -> Tensor:
        # Layers are numbered by their calls: ALBERT and DistilBERT do not pass a layer index.
        if self.edit is not None:
            weights = self.edit(Site(self.calls + 1), weights)
        self.calls += 1
        if self.wanted is not None:
            self.weights += self.kept(self.calls, weights)
        return weights

    def kept(self, layer: int, weights: Tensor) -> list[Tensor]:
        """What is kept of a layer's weights: one tensor or none."""
        reduced = weights if self.reduction is None else self.reduction(Site(layer), weights)
        return [] if reduced is None else [reduced]

    @property
    def only_read(self) -> bool:
        """Whether nothing depends on these weights, so the output can be computed separately by a fused kernel."""
        return self.edit is None and self.wanted == "read" and torch.is_grad_enabled()


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """Weights and value vectors that replace those of the one layer that is run."""

    weights: Tensor
    value: Tensor


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    salience: Watch | Given | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    """Softmax attention computed step by step, so that its weights can be read, edited and differentiated.

    ``s_aux`` is one more score per head, without a token of its own (GPT-OSS): rows of weights then sum to less than 1.
    """
    if isinstance(salience, Given):
        return (salience.weights @ salience.value).transpose(1, 2).contiguous(), salience.weights
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if salience is not None:
        salience.value = value
    mask = None if attention_mask is None else attention_mask[..., : key.shape[-2]]
    if position_bias is not None:
        mask = position_bias if mask is None else mask + position_bias
    # Scaling the query is cheaper than scaling the scores, of which there is one per pair of positions.
    query = query * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if salience is not None and salience.only_read and softcap is None and s_aux is None:
        with torch.no_grad():
            weights = salience(_weights(query, key, mask))
        output = nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=1.0)
        return output.transpose(1, 2).contiguous(), weights
    weights = _weights(query, key, mask, softcap, s_aux)
    if salience is not None:
        weights = salience(weights)
    dropped = nn.functional.dropout(weights, dropout, module.training)
    return (dropped @ value).transpose(1, 2).contiguous(), weights


def _weights(
    query: Tensor, key: Tensor, mask: Tensor | None, softcap: float | None = None, s_aux: Tensor | None = None
) -> Tensor:
    scores = query @ key.transpose(2, 3)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    if mask is not None:
        scores += mask
    wide = torch.promote_types(query.dtype, torch.float32)
    if s_aux is None:
        return scores.softmax(-1, dtype=wide).to(query.dtype)
    sink = s_aux.to(scores).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sink], -1).softmax(-1, dtype=wide)[..., :-1].to(query.dtype)


AttentionInterface.register(KERNEL, attend)
AttentionMaskInterface.register(KERNEL, eager_mask)


def follows_interface(module: PreTrainedModel) -> bool:
    """Whether the model uses the AttentionInterface (DeBERTa-v2 and XLNet, for example, do not)."""
    return bool(module._can_set_attn_implementation())  # pyright: ignore[reportPrivateUsage]


def calls_sdpa(module: PreTrainedModel) -> bool:
    """Whether the model's attention is torch's scaled_dot_product_attention."""
    return follows_interface(module) and module.config._attn_implementation == "sdpa"  # pyright: ignore[reportPrivateUsage]


@contextmanager
def eager_attention(module: PreTrainedModel) -> Generator[None]:
    """Use the step-by-step kernel instead of SDPA or flash attention inside the block."""
    before: Any = module.config._attn_implementation  # pyright: ignore[reportPrivateUsage]
    try:
        module.set_attn_implementation(KERNEL)
        yield
    finally:
        module.set_attn_implementation(before)
