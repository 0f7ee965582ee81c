"""Keys and values kept from one pass, so that texts which begin alike are read only from where they part."""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from salience.types import Prefix


def keeps_everything(config: Any) -> bool:
    """Whether every layer keeps the keys and values of all tokens, and no other state.

    A sliding window drops the oldest tokens, and a recurrent layer holds a state of the whole text: neither can be
    cut back to a shorter prefix.
    """
    layers = DynamicCache(config=config).layers
    return bool(layers) and all(type(layer) is DynamicLayer for layer in layers)


def kept(cache: Cache, logits: Tensor) -> Prefix:
    """What a pass with this cache has left in it."""
    keys, values = zip(*((layer.keys, layer.values) for layer in cache.layers), strict=True)
    return Prefix(logits, keys, values)


def resumed(prefix: Prefix, texts: Tensor, start: int) -> Cache:
    """A cache that holds the first ``start`` tokens of the chosen texts."""
    return Cache(layers=[_Resumed(k, v, texts, start) for k, v in zip(prefix.keys, prefix.values, strict=True)])


class _Resumed(DynamicLayer):
    """A layer's keys and values, laid out for the rows only while that layer runs, and never added to."""

    def __init__(self, keys: Tensor, values: Tensor, texts: Tensor, start: int) -> None:
        super().__init__()
        self.keys, self.values, self.texts = keys[:, :, :start], values[:, :, :start], texts
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True

    def get_seq_length(self) -> int:
        return self.keys.shape[2]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self._after(self.keys, key_states), self._after(self.values, value_states)

    def _after(self, before: Tensor, new: Tensor) -> Tensor:
        # One text needs no copy of its prefix for every row.
        rows = before.expand(len(new), -1, -1, -1) if len(before) == 1 else before.index_select(0, self.texts)
        return torch.cat([rows, new], dim=2)
