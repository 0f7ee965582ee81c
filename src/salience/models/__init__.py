"""What is explained: one adapter per family of models."""

import json
from importlib.resources import files
from pathlib import Path

import torch

from salience.errors import BadInput
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
    folder = Path(str(files("salience.models.bundled").joinpath(str(name)))) if name in BUNDLED else Path(name)
    if _is_pooled(folder):
        from salience.models.pooled import Pooled

        return Pooled.load(folder, name=str(name), device=device, dtype=dtype)
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


def _check_device(device: str | None) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # how torch refuses one
        raise BadInput(f"the device {device!r} cannot be used: {str(error).splitlines()[0]}") from error


def _is_pooled(folder: Path) -> bool:
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return config.get("model_type") == "salience_pooled"
