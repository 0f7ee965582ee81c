"""A transformers module as a function of a batch, and its properties, determined by trial passes."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel

from salience.core.executor import Executor, fitting_budget
from salience.core.passes import frozen
from salience.core.types import Batch, Prefix, Reads, Start
from salience.errors import BadInput, UnsupportedModel
from salience.models.huggingface.attention import follows_interface
from salience.models.huggingface.hooks import (
    hidden_states,
    no_hooks_left,
    replaced_embeddings,
    starting_from,
    wide_logits,
)
from salience.models.huggingface.prefix import attention_mask, cache_for, keeps_everything, prefix_of

QUANTIZED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")
"""Where torch keeps its quantized layers."""

UNLIMITED = 10**6
"""The limit in tokens if neither the tokenizer nor the model has one."""


@dataclass(eq=False)
class Network:
    """The module, how it is called, and properties that its configuration does not contain. It is never changed.

    Each property is determined once, by a pass over a few tokens.
    """

    module: PreTrainedModel
    executor: Executor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Modules that share a trunk share its embedding layer, where passes place their hooks.
        words = self.module.get_input_embeddings()
        self.executor = Executor(fitting_budget(self.bytes_per_token, self.module.device), words)

    @cached_property
    def config(self) -> Any:
        return self.module.config.get_text_config()

    @property
    def layers(self) -> int:
        # The decoder of an encoder-decoder, taken alone, keeps the encoder's layers as num_hidden_layers.
        own = getattr(self.config, "decoder_layers", None) if self.generates else None
        return int(own or self.config.num_hidden_layers)

    @property
    def device(self) -> torch.device:
        return self.module.get_input_embeddings().weight.device  # pyright: ignore

    @cached_property
    def generates(self) -> bool:
        """Whether the model predicts the next token."""
        return self.module.can_generate()

    @cached_property
    def parameters(self) -> frozenset[str]:
        """The names of the module's arguments."""
        return frozenset(signature(self.module.forward).parameters)

    @property
    def pad(self) -> int | None:
        pad = self.config.pad_token_id
        pad = pad[0] if isinstance(pad, list) else pad
        return None if pad is None or pad < 0 else pad

    @property
    def bytes_per_token(self) -> int:
        """The memory that a forward pass keeps for the backward pass: about 17 d + 2.5 h t numbers per token and layer.

        The estimate is that of Korthikanti et al. 2022, arXiv:2205.05198, eq. 2, for texts of 512 tokens.
        """
        size, heads = int(self.config.hidden_size), int(getattr(self.config, "num_attention_heads", 0) or 0)
        return self.layers * (17 * size + 5 * heads * 256) * self.module.dtype.itemsize

    @cached_property
    def positions(self) -> int:
        """The number of positions of the position embeddings."""
        limits = [
            # RoBERTa numbers positions from padding_idx + 1.
            part.num_embeddings - (0 if part.padding_idx is None else part.padding_idx + 1)
            for name, part in self.module.named_modules()
            if isinstance(part, nn.Embedding) and name.rpartition(".")[2] in {"position_embeddings", "wpe"}
        ]
        named = [getattr(self.config, name, None) for name in ("max_position_embeddings", "max_seq_len")]
        return int(min(n for n in (*(limits or named), UNLIMITED) if n is not None and n > 0))

    # -------------------------------------------------------------------------------------------------- calls

    def __call__(
        self,
        batch: Batch,
        options: Mapping[str, Any],
        call: Callable[..., Any] | None = None,
        start: Start | None = None,
        tail: int = 1,
    ) -> Any:
        """Return the module's own output. ``call`` is a wrapper around the module that is called instead.

        Of a language model, the logits after the last ``tail`` tokens are computed.
        """
        module: Any
        module, pad = (call or self.module, self.pad) if self._has_padding(batch) else self._with_padding(batch)
        if start is not None:
            module = starting_from(module, start)
        with wide_logits(self.module, self.executor):
            return module(
                input_ids=batch.ids.masked_fill(~batch.mask, pad or 0),
                **{"attention_mask": batch.mask.long(), **self._extras(batch, tail), **options},
            )

    def _has_padding(self, batch: Batch) -> bool:
        return self.pad is not None or len(batch) == 1

    def _with_padding(self, batch: Batch) -> tuple[nn.Module, int]:
        """Return a copy of the module with a padding token, an unused id, so that a decoder finds where texts end.

        The copy shares all modules and weights; only its configuration is separate.
        """
        used = set(batch.ids[batch.mask].tolist())
        free = next(i for i in range(self.config.vocab_size) if i not in used)
        clone = copy(self.module)
        clone.config = deepcopy(self.module.config)
        clone.config.get_text_config().pad_token_id = free
        return clone, free

    def _extras(self, batch: Batch, tail: int) -> dict[str, Any]:
        extras: dict[str, Any] = {} if getattr(self.module.config, "return_dict", True) else {"return_dict": True}
        if batch.segments is not None:
            extras["token_type_ids"] = batch.segments
        extras |= without_cache(self.module)
        if self.generates and "logits_to_keep" in self.parameters:
            extras["logits_to_keep"] = _ends(batch, tail).unique()
        return extras

    def prefix(self, batch: Batch, tail: int = 1) -> tuple[Tensor, Cache]:
        """Return the module's logits, and the keys and values of every layer."""
        cache = DynamicCache(config=self.config)
        return self(batch, {"past_key_values": cache, "use_cache": True}, tail=tail).logits, cache

    def resume(
        self, prefix: Prefix, texts: Int[Tensor, " r"], starts: Int[Tensor, " r"], rest: Batch, tail: int = 1
    ) -> Tensor:
        """Return the module's logits of ``rest``, with positions that continue from ``starts``."""
        positions = starts[:, None] + torch.arange(rest.width, device=self.device)
        options = {
            "past_key_values": cache_for(prefix, texts, starts),
            "attention_mask": attention_mask(starts, rest.mask),
            "position_ids": positions.clamp(max=prefix.keys[0].shape[2] - 1),  # positions of padding are ignored
            "use_cache": True,
        }
        return self(rest, options, tail=tail).logits

    def logits(self, logits: Tensor, batch: Batch) -> Float[Tensor, "b c"]:
        """Return one row of logits per text; for a language model, those after its last token."""
        return self.last_logits(logits, batch, 1)[:, 0] if self.generates else logits

    def last_logits(self, logits: Tensor, batch: Batch, tail: int) -> Float[Tensor, "b g v"]:
        """Return the logits of a language model after each of the last ``tail`` tokens of every text."""
        ends = _ends(batch, tail)
        if "logits_to_keep" in self.parameters:
            ends = torch.searchsorted(ends.unique(), ends)
        return logits[torch.arange(len(batch), device=ends.device)[:, None], ends]

    # -------------------------------------------------------------------------------------------------- trial passes

    @contextmanager
    def _trial_mode(self) -> Generator[None]:
        with self.executor.lock, frozen(self.module), torch.no_grad():
            yield

    def trial(self) -> Batch:
        """Return two texts without a token in common at any position, of five and three tokens."""
        tokens = [i for i in range(min(11, self.config.vocab_size)) if i != self.pad]
        ids = torch.tensor([(tokens * 10)[:10]], device=self.device).view(2, 5)
        mask = torch.ones_like(ids, dtype=torch.bool)
        mask[1, 3:] = False
        return Batch(ids, mask, ~mask)

    def _differentiable(self, batch: Batch) -> tuple[Tensor, list[Tensor], Tensor]:
        """Return embeddings of the batch, and the states and logits that depend on them."""
        e = self.module.get_input_embeddings()(batch.ids).detach().requires_grad_()
        with replaced_embeddings(self.module, e), hidden_states(self.module, None) as states:
            logits = self.logits(self(batch, {}).logits, batch)
        if not states:
            raise UnsupportedModel(f"the blocks of {type(self.module).__name__} cannot be identified")
        return e, states, logits

    @cached_property
    def causal(self) -> bool:
        """Whether later tokens have no effect on earlier ones; False if that cannot be determined.

        A derivative is exactly 0 where nothing is read, while values may differ by rounding: the number of tokens that
        an expert gets decides how their products are computed.
        """
        batch = self.trial().take(slice(1))
        try:
            with self._trial_mode(), torch.enable_grad():
                e, states, _ = self._differentiable(batch)
                slope = _random_slope(states[-1][:, :-1], e)
        except UnsupportedModel:
            return False
        return not bool(slope[:, -1].any())

    @cached_property
    def quantized(self) -> str | None:
        """The kind of layer that torch computes no gradients through; None if there is none."""
        kinds = (type(part) for part in self.module.modules())
        return next((k.__name__ for k in kinds if k.__module__.startswith(QUANTIZED)), None)

    @cached_property
    def respects_the_mask(self) -> bool:
        """Whether a padded text gets the same logits as alone."""
        batch = self.trial()
        with self._trial_mode():
            padded, alone = (self.logits(self(b, {}).logits, b) for b in (batch, batch.take(slice(1, 2)).cut(slice(3))))
        return agree(padded[1:], alone, padded[:1] - alone, self.module.dtype)

    @cached_property
    def shows_hidden(self) -> bool:
        """Whether the outputs of the blocks are what the model itself returns as hidden states."""
        with self._trial_mode(), no_hooks_left(self.module), hidden_states(self.module, None) as states:
            named = self(self.trial(), {"output_hidden_states": True}).hidden_states or states
        # The model's last hidden state may include a final norm.
        pairs = zip(states[1:-1], named[1:-1], strict=False)
        return len(states) == len(named) == self.layers + 1 and all(
            a.shape == b.shape and agree(a, b, b[0] - b[1]) for a, b in pairs
        )

    @cached_property
    def same_with_attention(self) -> bool:
        """Whether requesting the weights leaves the logits unchanged."""
        batch = self.trial()
        with self._trial_mode(), no_hooks_left(self.module):
            plain, with_weights = (self.logits(self(batch, o).logits, batch) for o in ({}, {"output_attentions": True}))
        return agree(with_weights, plain, plain[0] - plain[1], self.module.dtype)

    @cached_property
    def reads(self) -> Reads:
        """The positions of the last layer that the logits depend on; all, if that cannot be determined."""
        batch = self.trial().take(slice(1))
        try:
            with self._trial_mode(), torch.enable_grad():
                _, states, logits = self._differentiable(batch)
                slope = _random_slope(logits, states[-1])
        except UnsupportedModel:
            return "all"
        positions = slope[0].abs().amax(-1).nonzero()[:, 0].tolist()
        return "first" if positions == [0] else "last" if positions == [batch.width - 1] else "all"

    @cached_property
    def can_start(self) -> bool:
        """Whether the layers above given states can run alone. Tested on two texts of different lengths."""
        if not follows_interface(self.module) or not self.shows_hidden:
            return False
        batch = self.trial()
        with self._trial_mode():
            with hidden_states(self.module, None) as states:
                whole = self.logits(self(batch, {}).logits, batch)
            parts = self.logits(self(batch, {}, start=Start(1, states[1])).logits, batch)
        return agree(parts, whole, whole[0] - whole[1], self.module.dtype)

    @cached_property
    def can_resume(self) -> bool:
        """Whether a changed ending can be run alone, as for decoders that cache all keys and values.

        Tested on two texts of different lengths, run as a whole and from their second or third token on.
        """
        cacheable = {"past_key_values", "position_ids"} <= self.parameters and self.causal
        if not cacheable or not keeps_everything(self.config):
            return False
        batch = self.trial()
        texts, starts = torch.tensor([[1, 0, 1], [1, 2, 1]], device=self.device)
        rest = batch.take(texts)
        rest = rest.map(lambda tensor: torch.stack([row[s : s + 3] for row, s in zip(tensor, starts, strict=True)]))
        with self._trial_mode():
            whole = self.logits(self(batch, {}).logits, batch)
            prefix = prefix_of(self.prefix(batch)[1], whole)
            whole, parts = whole[texts], self.logits(self.resume(prefix, texts, starts, rest), rest)
        return agree(parts, whole, whole[0] - whole[1], self.module.dtype)


def _ends(batch: Batch, tail: int) -> Int[Tensor, "b g"]:
    """The positions of the last ``tail`` tokens of every text."""
    sizes = batch.mask.sum(1, keepdim=True)
    if int(sizes.min()) < tail:
        raise BadInput(
            "nothing would be left of a prompt before its answer; erase by replacing tokens (erase='mean'), or smaller "
            "parts of it"
        )
    return sizes - torch.arange(tail, 0, -1, device=batch.ids.device)


def without_cache(module: nn.Module) -> dict[str, bool]:
    """The option that keeps a decoder from storing keys and values."""
    return {"use_cache": False} if "use_cache" in signature(module.forward).parameters else {}


def _random_slope(y: Tensor, x: Tensor) -> Tensor:
    """The derivative of a random combination of ``y``: sums of a normalised state, or of its squares, are constant."""
    direction = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y)
    return torch.autograd.grad(y, x, direction, allow_unused=True, materialize_grads=True)[0]


def agree(a: Tensor, b: Tensor, scale: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether two results differ by much less than ``scale``, or by rounding only.

    The scale is what another text changes: logits that are nearly the same for all texts always look alike. ``dtype``
    is what they were computed in, if it is not their own.
    """
    rounding = min(0.15, 100 * torch.finfo(dtype or a.dtype).eps) * b.abs().max()
    return bool((a - b).abs().max() <= torch.maximum(1e-4 * scale.abs().max(), rounding))
