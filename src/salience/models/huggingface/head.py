"""The language model head of a checkpoint: maps hidden states to words, by the model's own code without its trunk."""

from collections.abc import Generator, Hashable, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from threading import RLock
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
from transformers.utils import logging
from transformers.utils.generic import ModelOutput

from salience.core.passes import frozen
from salience.core.types import Site
from salience.errors import BadModel, UnsupportedModel
from salience.models.files import check
from salience.models.huggingface.checkpoint import check_files
from salience.models.huggingface.hooks import blocks, hidden_states, with_part
from salience.models.huggingface.network import agree, without_cache

REMEDIES = (
    "Name the pretrained checkpoint that it was fine-tuned from (head='bert-base-uncased', or a folder), fit a head "
    "on unlabelled text with salience.methods.fit_head, or skip the decoding with decode='identity' and a layer."
)


@dataclass(frozen=True, eq=False)
class Head:
    """A language model whose trunk is replaced by one that returns its input."""

    module: nn.Module
    source: str
    vocabulary: int
    decoder: str | None
    """The path of the linear layer with one row per word; None if there is no such layer."""
    layers: dict[Hashable, int] = field(default_factory=dict[Hashable, int])

    @property
    def description(self) -> Mapping[str, object]:
        return {"head": self.source}

    def __call__(self, hidden: Float[Tensor, "*n k"], ids: Int[Tensor, "b m"] | None = None) -> Float[Tensor, "*n m"]:
        """Return logits of the whole vocabulary, or only of each text's own ``ids``, which is much cheaper."""
        if ids is not None and self.decoder is not None:
            few = _Rows(self.module.get_submodule(self.decoder), ids)
            return self._logits(with_part(self.module, self.decoder, few), hidden)
        if ids is not None:
            return torch.stack([self(h)[:, own] for h, own in zip(hidden, ids, strict=True)])
        return self._logits(self.module, hidden[None])[0]

    def _logits(self, module: nn.Module, hidden: Tensor) -> Tensor:
        with torch.no_grad():
            return module(inputs_embeds=hidden).logits


class _Rows(nn.Module):
    """The rows of a layer with one row per word, restricted to each text's own words."""

    def __init__(self, decoder: nn.Module, ids: Int[Tensor, "b m"]) -> None:
        super().__init__()
        weights = dict(decoder.named_parameters())
        self.weight, self.bias = weights["weight"].detach()[ids], weights.get("bias")
        self.ids = ids

    def forward(self, x: Float[Tensor, "b t k"]) -> Float[Tensor, "b t m"]:
        logits = x @ self.weight.mT
        return logits if self.bias is None else logits + self.bias[self.ids][:, None]


class _Trunk(nn.Module):
    """Replaces a trunk: its input is taken as the output of the last block."""

    def __init__(self, trunk: nn.Module, finish: nn.Module, kind: type[ModelOutput]) -> None:
        super().__init__()
        self.kind = kind
        for name, part in trunk.named_children():
            if "embeddings" in name:  # DeBERTa's newer head reads them
                self.add_module(name, part)
        self.finish = finish

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> ModelOutput:
        return self.kind(last_hidden_state=self.finish(inputs_embeds))


def load_head(module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str | None, *, causal: bool) -> Head:
    """Return the head of the model itself, of its own checkpoint, or of the checkpoint ``source``."""
    if source is None and module.can_generate():
        return extract_head(module, "own")
    name = source or module.config.name_or_path
    if not name:
        raise UnsupportedModel(f"{type(module).__name__} was not loaded from a checkpoint with an LM head. {REMEDIES}")
    language_model = _language_model(name, module, causal=causal, own=source is None)
    head = extract_head(language_model, source or "own")
    head.module.to(module.device, module.dtype)
    if source is not None:
        _check_vocabulary(source, tokenizer)
    if head.vocabulary < len(tokenizer):
        raise UnsupportedModel(
            f"the head of {name} has {head.vocabulary} words, but the tokenizer has {len(tokenizer)}"
        )
    return head


def extract_head(language_model: PreTrainedModel, source: str) -> Head:
    """Return the head only. The language model is not changed, and the head does not keep its blocks alive."""
    trial = _try(language_model)
    paths: dict[nn.Module, str] = {part: path for path, part in language_model.named_modules()}
    trunk = _Trunk(trial.trunk, _after_blocks(language_model, trial), trial.kind)
    module = _copy_modules(with_part(language_model, paths[trial.trunk], trunk)).eval()
    words = int(language_model.config.get_text_config().vocab_size)
    head = Head(module, source, words, None)
    if not agree(head(trial.states[0]), trial.logits[0], trial.logits[0]):
        raise UnsupportedModel(
            f"the head of {type(language_model).__name__} alone does not give the model's own logits. {REMEDIES}"
        )
    return replace(head, decoder=_decoder(language_model, head, trial, paths))


def _decoder(model: PreTrainedModel, head: Head, trial: "_Trial", paths: Mapping[nn.Module, str]) -> str | None:
    """Return the path of the layer with one row per word, if the head can be restricted to some of its rows.

    DeBERTa's newer head and MobileBERT's multiply by its weights, and ESM's adds a bias for all words: they do not call
    such a layer, or not last.
    """
    layer = model.get_output_embeddings()
    if layer not in trial.called or not isinstance(layer, nn.Linear) or layer.out_features != head.vocabulary:
        return None
    ids = torch.arange(trial.states.shape[1] - 1, device=trial.states.device)[None]
    try:
        few = replace(head, decoder=paths[layer])(trial.states, ids)
    except RuntimeError:  # shapes that do not fit
        return None
    return paths[layer] if agree(few, trial.logits[..., ids[0]], trial.logits) else None


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """A pass over random states, which no norm maps to themselves."""

    states: Float[Tensor, "1 t k"]
    """The output of the last block."""
    last: Float[Tensor, "1 t _"]
    """The output of the trunk."""
    logits: Float[Tensor, "1 t v"]
    trunk: nn.Module
    """The outermost module inside the model that is called and contains the blocks."""
    kind: type[ModelOutput]
    """What the trunk returns."""
    called: dict[nn.Module, list[tuple[Tensor, Tensor]]]
    """The first argument and the output of every call, by module."""


def _try(model: PreTrainedModel) -> _Trial:
    """Run the model once, with the output of every block replaced by random numbers."""
    stack = blocks(model)
    above = [m for m in model.modules() if m is not model and stack in set(m.modules()) and m is not stack]
    called: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}
    outputs: dict[nn.Module, Any] = {}

    def record(part: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        outputs[part] = output
        if args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            called.setdefault(part, []).append((args[0], output))

    inside = set(stack.modules())
    rng = torch.Generator().manual_seed(0)

    def noise(_: Site, hidden: Tensor) -> Tensor:
        return (1 + 2 * torch.randn(hidden.shape, generator=rng)).to(hidden)

    ids = torch.arange(4, device=model.device)[None] % model.config.get_text_config().vocab_size
    handles = [part.register_forward_hook(record) for part in model.modules() if part not in inside]
    try:
        with frozen(model), torch.no_grad(), hidden_states(model, noise) as states:
            logits = model(input_ids=ids, **without_cache(model)).logits
    finally:
        for handle in handles:
            handle.remove()
    trunk = next((m for m in above if isinstance(outputs.get(m), ModelOutput)), None)
    if trunk is None or not states:
        raise UnsupportedModel(f"the trunk of {type(model).__name__} cannot be identified. {REMEDIES}")
    return _Trial(states[-1], outputs[trunk][0], logits, trunk, type(outputs[trunk]), called)


def _copy_modules(module: nn.Module) -> nn.Module:
    """Copy all modules, so that their modes are independent, but no weights."""
    clone = copy(module)
    vars(clone)["_modules"] = {name: _copy_modules(part) for name, part in module.named_children()}
    return clone


def _after_blocks(model: PreTrainedModel, trial: _Trial) -> nn.Module:
    """Return what the trunk applies after its last block: a final norm or nothing."""
    if torch.equal(trial.last, trial.states):
        return nn.Identity()
    for part, calls in trial.called.items():
        if any(torch.equal(x, trial.states) and torch.equal(y, trial.last) for x, y in calls):
            return part
    raise UnsupportedModel(
        f"{type(model).__name__} applies more than one module after its last block, which is not supported. {REMEDIES}"
    )


def _language_model(name: str, module: PreTrainedModel, *, causal: bool, own: bool) -> PreTrainedModel:
    if not own:
        check(name)
    loader: Any = AutoModelForCausalLM if causal else AutoModelForMaskedLM
    revision = getattr(module.config, "_commit_hash", None) if own else None
    try:
        check_files(name, revision=revision, trust_remote_code=False)
        # A missing head is initialised at random, and rejected below.
        with quiet(), torch.random.fork_rng(devices=[]):
            language_model, report = loader.from_pretrained(
                name, revision=revision or "main", use_safetensors=True, output_loading_info=True
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        kind = UnsupportedModel if own else BadModel
        raise kind(f"no LM head can be loaded from {name}: {' '.join(str(error).split())[:200]} {REMEDIES}") from error
    if report["missing_keys"]:
        raise UnsupportedModel(f"the checkpoint {name} holds no LM head, like most fine-tuned ones. {REMEDIES}")
    return language_model


_loading = RLock()


@contextmanager
def quiet() -> Generator[None]:
    """Silence transformers' progress bars and its messages about unused weights.

    One thread at a time: transformers changes global state while it loads, and these settings are global too.
    """
    with _loading:
        yield from _silenced()


def _silenced() -> Generator[None]:
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    try:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _check_vocabulary(source: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise if the head's vocabulary is not that of the tokenizer, as its words would then be wrong."""
    try:
        theirs = AutoTokenizer.from_pretrained(source, use_fast=True)
    except (OSError, ValueError) as error:
        raise BadModel(f"{source} has no tokenizer, so its vocabulary cannot be compared with the model's") from error
    if theirs.get_vocab() != tokenizer.get_vocab():
        raise UnsupportedModel(
            f"the head of {source} decodes to another vocabulary than the model's tokenizer. Use the checkpoint that "
            "the model was fine-tuned from, or fit a head with salience.methods.fit_head."
        )
