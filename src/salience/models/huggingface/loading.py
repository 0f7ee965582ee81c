"""Loading models by name or folder, safely, with helpful errors."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME
from transformers.utils.hub import cached_file

from salience.errors import BadModel, choose
from salience.models.files import check_kernel, check_shards, reporting
from salience.models.huggingface.adapter import HuggingFace
from salience.models.huggingface.head import quiet

TASKS = {"classify": AutoModelForSequenceClassification, "generate": AutoModelForCausalLM}


def wrap(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, name: str | None = None) -> HuggingFace:
    """Wrap a model that is already loaded. The model itself is not changed."""
    return HuggingFace(model, tokenizer, name or model.config.name_or_path or type(model).__name__)


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
) -> HuggingFace:
    """Load a classifier or causal language model and its tokenizer by hub name or folder."""
    safe = {"revision": revision, "trust_remote_code": trust_remote_code}
    with reporting(source):
        _check_files(source, safe)
        config = AutoConfig.from_pretrained(source, **safe)
        tokenizer = _tokenizer(source, safe)
        loader = TASKS[choose(task or _task(config, source), TASKS, "task")]
        moved: Any = _module(loader, source, safe, dtype, allow_pickle).eval()
        return HuggingFace(moved.to(device or "cpu"), tokenizer, name or str(source))


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
    """Load a pretrained encoder or decoder as a classifier of ``labels``, with a new head initialised by ``seed``."""
    safe = {"revision": revision, "trust_remote_code": trust_remote_code}
    with reporting(source):
        _check_files(source, safe)
        tokenizer = _tokenizer(source, safe)
        with quiet(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = AutoModelForSequenceClassification.from_pretrained(
                source,
                num_labels=len(labels),
                id2label=dict(enumerate(labels)),
                label2id={label: number for number, label in enumerate(labels)},
                problem_type=problem,
                ignore_mismatched_sizes=True,
                use_safetensors=True,
                dtype=dtype,
                **safe,
            )
        if module.config.get_text_config().pad_token_id is None:
            module.config.pad_token_id = tokenizer.pad_token_id
        moved: Any = module.eval()
        return HuggingFace(moved.to(device or "cpu"), tokenizer, name or str(source))


def _check_files(source: str | Path, safe: dict[str, Any]) -> None:
    """Raise if loading would run code or read files that were not asked for; local folders and hub models alike."""
    if not safe["trust_remote_code"]:
        raw: Any = PreTrainedConfig.get_config_dict(source, revision=safe["revision"])[0]
        check_kernel(raw, source)
    index = cached_file(
        source, SAFE_WEIGHTS_INDEX_NAME, revision=safe["revision"], _raise_exceptions_for_missing_entries=False
    )
    if index is not None:
        check_shards(Path(index))


def _task(config: Any, name: str | Path) -> str:
    """Return the task of the checkpoint's own head."""
    heads = " ".join(config.architectures or ())
    if "ForSequenceClassification" in heads:
        return "classify"
    if "ForCausalLM" in heads or "LMHeadModel" in heads:
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
    return module
