"""What is explained: one adapter per family of models."""

import json
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from salience.errors import BadInput, BadModel
from salience.types import Model

BUNDLED = ("sentiment", "sentiment_bilstm")
"""Small models that come with the package."""


def load(
    name: str | Path = "sentiment",
    *,
    task: str | None = None,
    revision: str | None = None,
    device: str | None = None,
    dtype: str = "float32",
    allow_pickle: bool = False,
    trust_remote_code: bool = False,
) -> Model:
    """Load a model by bundled name, folder or Hugging Face name. ``./sentiment`` is a folder of that name.

    Weights are read from safetensors, and code that comes with a checkpoint is not run, unless allowed explicitly.
    """
    _check_device(device)
    folder = _folder(name)
    if _is_pooled(folder):
        from salience.models.pooled import Pooled

        return Pooled.load(folder, name=str(name), device=device, dtype=dtype)
    from salience.models import huggingface

    try:
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
    except BadModel as error:
        if folder.exists() or not (near := get_close_matches(str(name), BUNDLED, n=1)):
            raise
        raise BadModel(f"{error} Did you mean {near[0]!r}, which comes with the package?") from error


def sample() -> list[str]:
    """The bundled sentences with their labels and rationales, each a line of JSON."""
    return sample_file().read_text("utf-8").splitlines()


def sample_file() -> Path:
    """Where they lie: a data set like any other."""
    return Path(str(files("salience.models.bundled").joinpath("sample.jsonl")))


def load_to_train(
    name: str | Path,
    labels: Sequence[str] | int,
    *,
    seed: int = 0,
    device: str | None = None,
    dtype: str = "float32",
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Model:
    """A pretrained model that is to learn these labels, or so many of any name.

    A classifier that has just these labels already is taken as it is; any other model gets a new head, drawn by
    ``seed``. Of a pooled model, which is not pretrained, all weights are drawn anew.
    """
    _check_device(device)
    folder = _folder(name)
    if _is_pooled(folder):
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
    """Whether it is the folder of a classifier with these labels."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    heads = " ".join(config.get("architectures") or ())
    names = list((config.get("id2label") or {}).values())
    fits = len(names) == labels if isinstance(labels, int) else sorted(names) == sorted(labels)
    return "ForSequenceClassification" in heads and fits


def _check_device(device: str | None) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # how torch refuses one
        raise BadInput(f"the device {device!r} cannot be used: {str(error).splitlines()[0]}") from error


def knows(name: str | Path, labels: Sequence[str] | int) -> bool:
    """Whether training it would start from a classifier of these labels, which has learnt a task already."""
    return not starts_from_nothing(name) and _classifies(_folder(name), labels)


def starts_from_nothing(name: str | Path) -> bool:
    """Whether training it starts from random weights, not from pretrained ones."""
    return _is_pooled(_folder(name))


def _folder(name: str | Path) -> Path:
    return Path(str(files("salience.models.bundled").joinpath(str(name)))) if name in BUNDLED else Path(name)


def _is_pooled(folder: Path) -> bool:
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return config.get("model_type") == "salience_pooled"
