"""The language model head of a checkpoint: hidden states to words, by the model's own code with its trunk taken out."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.utils import logging

from salience.errors import BadModel, UnsupportedModel
from salience.models.huggingface.hooks import blocks, hidden_states
from salience.passes import frozen

REMEDIES = (
    "Name the pretrained checkpoint that it was fine-tuned from (head='bert-base-uncased', or a folder), fit a head "
    "on unlabelled text with salience.methods.layers.fit_head, or leave the scores undecoded (decode='identity' with "
    "a layer)."
)


@dataclass(frozen=True, eq=False)
class Head:
    """A language model whose trunk returns the hidden states that it is given."""

    module: nn.Module
    source: str
    vocabulary: int
    decoder: str | None
    """The path of the linear layer with one row per word; None if the head has no such layer."""
    layers: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def description(self) -> Mapping[str, object]:
        return {"head": self.source}

    def __call__(self, hidden: Float[Tensor, "*n k"], ids: Int[Tensor, "b m"] | None = None) -> Float[Tensor, "*n m"]:
        """Logits of the whole vocabulary, or of each text's own ``ids``, without the large product with all words."""
        if ids is not None and self.decoder is not None:
            few = _Rows(self.module.get_submodule(self.decoder), ids)
            return self._logits(_swapped(self.module, self.decoder, few), hidden)
        if ids is not None:
            return torch.stack([self(h)[:, own] for h, own in zip(hidden, ids, strict=True)])
        return self._logits(self.module, hidden[None])[0]

    def _logits(self, module: nn.Module, hidden: Tensor) -> Tensor:
        with torch.no_grad():
            return module(inputs_embeds=hidden).logits


class _Rows(nn.Module):
    """A layer with one row per word, of which each text of a batch takes its own."""

    def __init__(self, decoder: nn.Module, ids: Int[Tensor, "b m"]) -> None:
        super().__init__()
        weights = dict(decoder.named_parameters())
        self.weight, self.bias = weights["weight"].detach()[ids], weights.get("bias")
        self.ids = ids

    def forward(self, x: Float[Tensor, "b t k"]) -> Float[Tensor, "b t m"]:
        logits = x @ self.weight.mT
        return logits if self.bias is None else logits + self.bias[self.ids][:, None]


class _Trunk(nn.Module):
    """Stands in for a trunk: the states it is given are what left its last block."""

    def __init__(self, trunk: nn.Module, finish: nn.Module) -> None:
        super().__init__()
        for name, part in trunk.named_children():
            if "embeddings" in name:  # DeBERTa's newer head reads them
                self.add_module(name, part)
        self.finish = finish

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> BaseModelOutputWithPastAndCrossAttentions:
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=self.finish(inputs_embeds))


def find_head(module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str | None, *, causal: bool) -> Head:
    """The head of the model itself, of its own checkpoint, or of the checkpoint ``source``."""
    if source is None and module.can_generate():
        return beheaded(module, "own")
    name = source or module.config.name_or_path
    if not name:
        raise UnsupportedModel(f"{type(module).__name__} was not loaded from a checkpoint with an LM head. {REMEDIES}")
    found = _language_model(name, module, causal=causal, own=source is None)
    head = beheaded(found, source or "own")
    head.module.to(module.device, module.dtype)
    if source is not None:
        _check_words(source, tokenizer)
    if head.vocabulary < len(tokenizer):
        raise UnsupportedModel(f"the head of {name} knows {head.vocabulary} words, the tokenizer {len(tokenizer)}")
    return head


def beheaded(language_model: PreTrainedModel, source: str) -> Head:
    """The head alone. The language model itself is not changed, and the head does not hold on to its blocks."""
    trunk, decoder = language_model.base_model, language_model.get_output_embeddings()
    paths = {part: path for path, part in language_model.named_modules()}
    words = int(language_model.config.get_text_config().vocab_size)
    # DeBERTa's newer head multiplies with the word embeddings and names another layer here.
    by_word = isinstance(decoder, nn.Linear) and decoder.out_features == words
    module = _swapped(language_model, paths[trunk], _Trunk(trunk, _after_blocks(language_model)))
    return Head(_mirrored(module).eval(), source, words, paths[decoder] if by_word else None)


def _swapped(module: nn.Module, path: str, part: nn.Module) -> nn.Module:
    """A copy with another part; only the modules on the way to it are copied, and no weight is."""
    first, _, rest = path.partition(".")
    clone = copy(module)
    parts = dict(module.named_children())
    vars(clone)["_modules"] = parts | {first: _swapped(parts[first], rest, part) if rest else part}
    return clone


def _mirrored(module: nn.Module) -> nn.Module:
    """A copy of all modules, whose modes are its own, and of no weight."""
    clone = copy(module)
    vars(clone)["_modules"] = {name: _mirrored(part) for name, part in module.named_children()}
    return clone


def _after_blocks(module: PreTrainedModel) -> nn.Module:
    """What a trunk does to the states that leave its last block: a final norm or nothing, found by watching it."""
    inside = set(blocks(module).modules())
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []

    def watch(part: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            seen.append((part, args[0], output))

    parts = [p for p in module.base_model.modules() if p not in inside]
    handles = [part.register_forward_hook(watch) for part in parts]
    try:
        with frozen(module), torch.no_grad(), hidden_states(module, None) as states:
            last = module.base_model(input_ids=torch.zeros(1, 2, dtype=torch.long, device=module.device))[0]
    finally:
        for handle in handles:
            handle.remove()
    if torch.equal(last, states[-1]):
        return nn.Identity()
    for part, entered, left in seen:
        if torch.equal(entered, states[-1]) and torch.equal(left, last):
            return part
    raise UnsupportedModel(f"what {type(module).__name__} does after its last block is not one module. {REMEDIES}")


def _language_model(name: str, module: PreTrainedModel, *, causal: bool, own: bool) -> PreTrainedModel:
    loader: Any = AutoModelForCausalLM if causal else AutoModelForMaskedLM
    revision = getattr(module.config, "_commit_hash", None) if own else None
    try:
        # A head that is missing is filled with random numbers, before it is refused below.
        with quiet(), torch.random.fork_rng(devices=[]):
            found, report = loader.from_pretrained(
                name, revision=revision or "main", use_safetensors=True, output_loading_info=True
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        kind = UnsupportedModel if own else BadModel
        raise kind(f"no LM head can be loaded from {name}: {' '.join(str(error).split())[:200]} {REMEDIES}") from error
    if report["missing_keys"]:
        raise UnsupportedModel(f"the checkpoint {name} holds no LM head, as most fine-tuned ones. {REMEDIES}")
    return found


@contextmanager
def quiet() -> Generator[None]:
    """Without transformers' progress bars and its notes on weights that are of no use here."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    try:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _check_words(source: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """A head decodes to its own vocabulary: with another tokenizer's ids its words would be wrong ones."""
    try:
        theirs = AutoTokenizer.from_pretrained(source, use_fast=True)
    except (OSError, ValueError) as error:
        raise BadModel(f"{source} holds no tokenizer, so its vocabulary cannot be compared with the model's") from error
    if theirs.get_vocab() != tokenizer.get_vocab():
        raise UnsupportedModel(
            f"the head of {source} decodes to another vocabulary than the model's tokenizer has. Use the checkpoint "
            "that the model was fine-tuned from, or fit a head with salience.methods.layers.fit_head."
        )
