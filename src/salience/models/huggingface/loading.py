"""Loading models by name or folder, safely, with helpful errors."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from salience.errors import BadModel, UnsupportedModel, choose
from salience.models.files import reporting
from salience.models.huggingface.adapter import HuggingFace
from salience.models.huggingface.checkpoint import check_files, check_layers
from salience.models.huggingface.encoder_decoder import EncoderDecoder
from salience.models.huggingface.head import quiet

TASKS = {"classify": AutoModelForSequenceClassification, "generate": AutoModelForCausalLM}


def wrap(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, *, name: str | None = None
) -> HuggingFace | EncoderDecoder:
    """Wrap a model that is already loaded. The model itself is not changed.

    Of a compiled model and of one with adapters of PEFT, the transformers model inside is used.
    """
    inner = _inner(model)
    return _adapted(inner, tokenizer, name or inner.config.name_or_path or type(inner).__name__)


def _adapted(module: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str) -> HuggingFace | EncoderDecoder:
    kind = EncoderDecoder if module.config.is_encoder_decoder and module.can_generate() else HuggingFace
    return kind(module, tokenizer, name)


def _inner(model: Any) -> PreTrainedModel:
    """The transformers model inside of wrappers that call it."""
    if hasattr(model, "_orig_mod"):  # compiled code has no calls of torch functions that rules could replace
        return _inner(model._orig_mod)
    if not hasattr(model, "get_base_model"):
        return model
    if model.active_peft_config.is_prompt_learning:
        raise UnsupportedModel(
            f"{type(model).__name__} puts learned vectors before the text, which is not supported; use the base model, "
            "or an adapter that changes layers, such as LoRA"
        )
    return _inner(model.get_base_model())


def load(
    source: str | Path,
    *,
    name: str | None = None,
    task: str | None = None,
    revision: str | None = None,
    device: str | torch.device | None = None,
    dtype: str = "float32",
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
) -> HuggingFace | EncoderDecoder:
    """Load a classifier, causal language model or encoder-decoder, and its tokenizer, by hub name or folder."""
    safe = {"revision": revision, "trust_remote_code": trust_remote_code}
    with reporting(source):
        check_files(source, revision=revision, trust_remote_code=trust_remote_code)
        config = AutoConfig.from_pretrained(source, **safe)
        tokenizer = _tokenizer(source, safe)
        loader: Any = TASKS[choose(task or _task(config, source), TASKS, "task")]
        if loader is AutoModelForCausalLM and config.is_encoder_decoder:
            loader = AutoModelForSeq2SeqLM
        moved: Any = _module(loader, source, safe, dtype, allow_pickle).eval()
        return _adapted(moved.to(device or "cpu"), tokenizer, name or str(source))


def load_to_train(
    source: str | Path,
    labels: Sequence[str],
    *,
    seed: int = 0,
    name: str | None = None,
    problem: str = "single_label_classification",
    device: str | torch.device | None = None,
    dtype: str = "float32",
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> HuggingFace:
    """Load a pretrained encoder or decoder as a classifier of ``labels``, with a new head initialised by ``seed``.

    The head of a classifier of these labels is kept, in its own order; labels that are only numbered fit any names.
    """
    safe = {"revision": revision, "trust_remote_code": trust_remote_code}
    with reporting(source):
        check_files(source, revision=revision, trust_remote_code=trust_remote_code)
        tokenizer = _tokenizer(source, safe)
        before = _classes(AutoConfig.from_pretrained(source, **safe))
        kept = sorted(before) == sorted(labels) or (len(before) == len(labels) and _numbered(labels))
        names = before if kept else list(labels)
        with quiet(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module, report = AutoModelForSequenceClassification.from_pretrained(
                source,
                num_labels=len(names),
                id2label=dict(enumerate(names)),
                label2id={label: number for number, label in enumerate(names)},
                problem_type=problem,
                ignore_mismatched_sizes=True,
                use_safetensors=True,
                output_loading_info=True,
                dtype=dtype,
                **safe,
            )
            if before and not kept:
                _renew_head(module, seed)
        check_layers(module, report["unexpected_keys"], source)
        if module.config.get_text_config().pad_token_id is None:
            module.config.pad_token_id = tokenizer.pad_token_id
        moved: Any = module.eval()
        return HuggingFace(moved.to(device or "cpu"), tokenizer, name or str(source))


def _classes(config: Any) -> list[str]:
    """The labels of a checkpoint with a classification head; empty for others."""
    heads = " ".join(config.architectures or ())
    return [str(config.id2label[i]) for i in sorted(config.id2label)] if "ForSequenceClassification" in heads else []


def _numbered(labels: Sequence[str]) -> bool:
    return list(labels) == [str(number) for number in range(len(labels))]


def _renew_head(module: PreTrainedModel, seed: int) -> None:
    """Initialise the head of a classifier again: what is not part of the encoder or decoder."""
    torch.manual_seed(seed)
    fresh = AutoModelForSequenceClassification.from_config(module.config).state_dict()
    trunk = f"{module.base_model_prefix}."
    module.load_state_dict({name: w for name, w in fresh.items() if not name.startswith(trunk)}, strict=False)


def _task(config: Any, name: str | Path) -> str:
    """Return the task of the checkpoint's own head."""
    heads = " ".join(config.architectures or ())
    if "ForSequenceClassification" in heads:
        return "classify"
    answers = config.is_encoder_decoder and any(kind in heads for kind in ("ForConditionalGeneration", "MTModel"))
    if "ForCausalLM" in heads or "LMHeadModel" in heads or answers:
        return "generate"
    raise BadModel(
        f"{name} has no classification or causal language model head (it holds {heads or 'no named architecture'}). "
        "Fine-tune it first, or pass task='classify' or task='generate' if you are sure."
    )


def _tokenizer(name: str | Path, safe: dict[str, Any]) -> PreTrainedTokenizerBase:
    cause: BaseException | None = None
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, use_fast=True, **safe)
        # Without tokenizer files, transformers creates a tokenizer that has only special tokens.
        if len(tokenizer) > len(tokenizer.all_special_tokens):
            return tokenizer
    except BaseException as error:  # a damaged tokenizer.json makes the tokenizers library panic
        known = isinstance(error, Exception) or type(error).__name__ == "PanicException"
        if not known or "trust_remote_code" in str(error):
            raise
        cause = error
    raise BadModel(
        f"{name} has no tokenizer that can be loaded. Save it next to the weights with "
        "tokenizer.save_pretrained(folder), or load both yourself and call salience.wrap(model, tokenizer)."
    ) from cause


def _module(loader: Any, name: str | Path, safe: dict[str, Any], dtype: str, allow_pickle: bool) -> PreTrainedModel:
    with quiet():  # no warning about an unused LM head; missing heads are checked below
        module, report = loader.from_pretrained(
            name,
            dtype=dtype,
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
            **safe,
        )
    if missing := sorted(report["missing_keys"]):
        raise BadModel(
            f"the weights of {name} lack {', '.join(missing[:3])}{' and more' if len(missing) > 3 else ''}: "
            "these would be initialised at random. Fine-tune and save the model first."
        )
    check_layers(module, report["unexpected_keys"], name)
    return module
