"""From a name or folder to a model: safely, and with errors that name the remedy."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from salience.errors import BadModel, choose
from salience.models.huggingface.adapter import HuggingFace
from salience.models.huggingface.head import quiet

TASKS = {"classify": AutoModelForSequenceClassification, "generate": AutoModelForCausalLM}


def wrap(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, name: str | None = None) -> HuggingFace:
    """Explain a model that is already loaded. The model is left exactly as it is."""
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
    """Load a classifier or causal language model and its tokenizer by hub name or folder, and call it ``name``."""
    _check_folder(str(source))
    safe = {"revision": revision, "trust_remote_code": trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(source, **safe)
        tokenizer = _tokenizer(source, safe)
        loader = TASKS[choose(task or _task(config, source), TASKS, "task")]
        module = _module(loader, source, safe, dtype, allow_pickle)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise BadModel(_reason(str(source), error)) from error
    placed: Any = module.eval()
    return HuggingFace(placed.to(device or "cpu"), tokenizer, name or str(source))


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
    """A pretrained encoder or decoder as a classifier of ``labels``; its new head is drawn by ``seed``."""
    _check_folder(str(source))
    safe = {"revision": revision, "trust_remote_code": trust_remote_code}
    try:
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
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise BadModel(_reason(str(source), error)) from error
    if module.config.get_text_config().pad_token_id is None:
        module.config.pad_token_id = tokenizer.pad_token_id
    placed: Any = module.eval()
    return HuggingFace(placed.to(device or "cpu"), tokenizer, name or str(source))


def _check_folder(source: str) -> None:
    """What is plainly a folder must be one that holds a model; a hub name has at most one slash."""
    path = Path(source)
    if path.is_dir() and not (path / "config.json").exists():
        raise BadModel(f"{path} holds no model: config.json is missing. Give a folder that save_pretrained wrote.")
    if not path.exists() and (path.is_absolute() or len(path.parts) > 2 or source.startswith(".")):
        raise BadModel(f"there is no folder {source!r}")


def _task(config: Any, name: str | Path) -> str:
    """What the checkpoint's own head is for."""
    heads = " ".join(config.architectures or ())
    if "ForSequenceClassification" in heads:
        return "classify"
    if "ForCausalLM" in heads or "LMHeadModel" in heads:
        return "generate"
    raise BadModel(
        f"{name} has no classification or causal language model head (it holds {heads or 'no named architecture'}). "
        "Fine-tune it first, or give task='classify' or task='generate' if you are sure."
    )


def _tokenizer(name: str | Path, safe: dict[str, Any]) -> PreTrainedTokenizerBase:
    cause: Exception | None = None
    try:
        found = AutoTokenizer.from_pretrained(name, use_fast=True, **safe)
        # Where there are no files, transformers makes a tokenizer that knows its special tokens and nothing else.
        if len(found) > len(found.all_special_tokens):
            return found
    except (OSError, ValueError, TypeError, AttributeError) as error:
        if "trust_remote_code" in str(error):
            raise
        cause = error
    raise BadModel(
        f"{name} holds no tokenizer that can be loaded. Save it next to the weights with "
        "tokenizer.save_pretrained(folder), or load both yourself and call salience.wrap(model, tokenizer)."
    ) from cause


def _module(loader: Any, name: str | Path, safe: dict[str, Any], dtype: str, allow_pickle: bool) -> PreTrainedModel:
    with quiet():  # a bundled LM head is no cause for a warning; missing heads are checked below
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
            "that part of the model would be random. Fine-tune and save it first."
        )
    return module


def _reason(name: str, error: Exception) -> str:
    said = " ".join(str(error).split())
    if "trust_remote_code" in said:
        return f"{name} wants to run code of its own. If you trust it, allow it with trust_remote_code=True."
    if "safetensors" in said:
        return (
            f"{name} has no safetensors weights. Pickle files can run code when they are opened: allow them with "
            "allow_pickle=True only if you trust their source, or convert them once with save_pretrained."
        )
    if not Path(name).exists() and ("connect" in said or "offline" in said or "not a valid model" in said):
        return f"there is no folder {name!r}, and the model hub could not be reached or does not have it."
    return f"{name} cannot be loaded: {said[:300]}"
