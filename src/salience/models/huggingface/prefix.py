"""Keys and values cached from one pass, so that copies of a text are run only from their first difference."""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from salience.core.types import Prefix


def keeps_everything(config: Any) -> bool:
    """Whether every layer keeps the keys and values of all tokens, and no other state.

    A sliding window drops the oldest tokens, and a recurrent layer keeps one state for the whole text: neither can be
    truncated to a shorter prefix.
    """
    layers = DynamicCache(config=config).layers
    return bool(layers) and all(type(layer) is DynamicLayer for layer in layers)


def prefix_of(cache: Cache, logits: Tensor) -> Prefix:
    """Return the contents of the cache after a pass."""
    layers = [layer for layer in cache.layers if isinstance(layer, DynamicLayer)]
    keys, values = [layer.keys for layer in layers], [layer.values for layer in layers]
    return Prefix(logits, tuple(k for k in keys if k is not None), tuple(v for v in values if v is not None))


def cache_for(prefix: Prefix, texts: Tensor, starts: Tensor) -> Cache:
    """Return a cache with the first ``starts[r]`` tokens of text ``texts[r]`` for each row r, padded on the left."""
    longest = int(starts.max())
    columns = (torch.arange(longest, device=starts.device) - (longest - starts)[:, None]).clamp(min=0)
    place = None if len(prefix.logits) == 1 and bool((starts == longest).all()) else (texts[:, None], columns)
    return Cache(layers=[_Resumed(k, v, longest, place) for k, v in zip(prefix.keys, prefix.values, strict=True)])


def attention_mask(starts: Tensor, mask: Tensor) -> Tensor:
    """Return the attention mask over such a cache and the tokens that follow it."""
    longest = int(starts.max())
    before = torch.arange(longest, device=starts.device) >= (longest - starts)[:, None]
    return torch.cat([before, mask], 1).long()


class _Resumed(DynamicLayer):
    """Keys and values of a layer, expanded to the rows only while that layer runs, and never extended."""

    def __init__(self, keys: Tensor, values: Tensor, length: int, place: tuple[Tensor, Tensor] | None) -> None:
        super().__init__()
        self.known, self.length, self.place = (keys, values), length, place
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True

    def get_seq_length(self) -> int:
        return self.length

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        return self._after(self.known[0], key_states), self._after(self.known[1], value_states)

    def _after(self, known: Tensor, new: Tensor) -> Tensor:
        if self.place is None:  # one text: its prefix need not be copied for every row
            before = known[:, :, : self.length].expand(len(new), -1, -1, -1)
        else:
            before = known.transpose(1, 2)[self.place].transpose(1, 2)
        return torch.cat([before, new], dim=2)
