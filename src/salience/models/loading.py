"""Loading models by bundled name, folder or Hugging Face name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from salience.errors import BadInput
from salience.models.files import check, configuration, folder_of, is_pooled, is_rationale, is_seq2seq

if TYPE_CHECKING:
    from salience.core.types import Model

ADAPTER = ("encode", "batch", "resolve", "embed", "with_embeddings", "read_from")
"""Methods that only an adapter has. Its properties are not asked for: some of them need a pass."""


def load(
    name: str | Path = "sentiment",
    *,
    task: str | None = None,
    revision: str | None = None,
    device: str | None = None,
    dtype: str = "float32",
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
) -> "Model":
    """Load a model by bundled name, folder or Hugging Face name. ``./sentiment`` is a folder with that name.

    Only safetensors weights are read, and code from a checkpoint is not run, unless explicitly allowed.
    """
    check(name, task=task, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    check_device(device)
    folder = folder_of(name)
    if is_pooled(folder):
        from salience.models.pooled import Pooled

        return Pooled.load(folder, name=str(name), device=device, dtype=dtype)
    if is_seq2seq(folder):
        from salience.models.seq2seq import Seq2Seq

        return Seq2Seq.load(folder, name=str(name), device=device, dtype=dtype)
    if is_rationale(folder):
        from salience.models.rationale import Rationale

        return Rationale.load(folder, name=str(name), device=device, dtype=dtype)
    from salience.models import huggingface

    return huggingface.load(
        folder if folder.exists() else name,
        name=str(name),
        task=task,
        revision=revision,
        device=device,
        dtype=dtype,
        allow_pickle=allow_pickle,
        trust_remote_code=trust_remote_code,
    )


def load_to_train(
    name: str | Path,
    labels: Sequence[str] | int,
    *,
    seed: int = 0,
    device: str | None = None,
    dtype: str = "float32",
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> "Model":
    """Load a pretrained model for training on these labels, or on a given number of labels.

    A classifier that already has exactly these labels is loaded unchanged; any other model gets a new head, initialised
    by ``seed``. All weights of a pooled model, which is not pretrained, are initialised again.
    """
    check(name, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    check_device(device)
    folder = folder_of(name)
    if is_seq2seq(folder):
        raise BadInput(
            f"{name} answers with texts and cannot learn labels; train a classifier, such as sentiment_bilstm"
        )
    if is_rationale(folder):
        raise BadInput(
            f"{name} is a trained rationale model; start from the classifier in it, {folder / 'encoder'}, or from "
            "another one"
        )
    if is_pooled(folder):
        from salience.models.pooled import Pooled

        pooled = Pooled.load(folder, name=str(name), device=device, dtype=dtype)
        return pooled.fresh(pooled.labels if labels == len(pooled.labels) else _names(labels), seed)
    from salience.models import huggingface

    place = folder if folder.exists() else name
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    if _classifies(folder, labels):
        return huggingface.load(place, name=str(name), device=device, dtype=dtype, **options)
    return huggingface.load_to_train(
        place, _names(labels), seed=seed, name=str(name), device=device, dtype=dtype, **options
    )


def _names(labels: Sequence[str] | int) -> list[str]:
    return [str(number) for number in range(labels)] if isinstance(labels, int) else list(labels)


def _classifies(folder: Path, labels: Sequence[str] | int) -> bool:
    """Whether the folder holds a classifier with these labels."""
    config = configuration(folder)
    heads = " ".join(config.get("architectures") or ())
    names = list((config.get("id2label") or {}).values())
    fits = len(names) == labels if isinstance(labels, int) else sorted(names) == sorted(labels)
    return "ForSequenceClassification" in heads and fits


def check_device(device: str | None) -> None:
    """Raise if torch cannot use the device."""
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ImportError) as error:  # raised by torch for an invalid device
        raise BadInput(f"the device {device!r} cannot be used: {str(error).splitlines()[0]}") from error


def knows(name: str | Path, labels: Sequence[str] | int) -> bool:
    """Whether training would start from a classifier of these labels, which has already learnt a task."""
    return not starts_from_nothing(name) and _classifies(folder_of(name), labels)


def starts_from_nothing(name: str | Path) -> bool:
    """Whether training would start from random weights instead of pretrained ones."""
    return is_pooled(folder_of(name))


def as_model(model: object) -> "Model":
    """Return the model: itself, or loaded by name, or wrapped if it is a (model, tokenizer) pair or a pipeline."""
    if isinstance(model, str | Path):
        return load(model)
    if isinstance(model, Checkpoint):
        return model.load()
    if all(hasattr(model, name) for name in ADAPTER):
        return model  # pyright: ignore[reportReturnType]
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from salience.models.huggingface import wrap

    parts: Any = (getattr(model, "model", None), getattr(model, "tokenizer", None))  # those of a pipeline
    if isinstance(model, tuple | list) and len(model) == 2:  # pyright: ignore
        parts = tuple(model)  # pyright: ignore
    if isinstance(parts[0], PreTrainedModel) and isinstance(parts[1], PreTrainedTokenizerBase):
        return wrap(*parts)
    raise BadInput(
        f"a value of type {type(model).__name__} is not a model that can be explained; pass the name or folder of a "
        "model, a (model, tokenizer) pair, a transformers pipeline, or salience.wrap(model, tokenizer)"
    )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The name of a model and the arguments of :func:`salience.load`, to load it here or in another process."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def load(self) -> "Model":
        return load(self.name, **self.options)

    def on_cpu(self) -> "Checkpoint":
        return Checkpoint(self.name, {**self.options, "device": None})
