"""What our own models share: the texts that they read, and their files in one folder."""

import json
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn

from salience.core.text import Encoded, Text, beginning, unread
from salience.errors import BadInput, BadModel, TruncatedText, too_long

FILES = ("config.json", "tokenizer.json", "model.safetensors")


def save_own(
    folder: str | Path, config: Any, tokenizer: Tokenizer, module: nn.Module, dtype: torch.dtype | None
) -> None:
    """Write the three files, with the weights as ``dtype``, or as they are."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(asdict(config), indent=2), "utf-8")
    tokenizer.save(str(path / "tokenizer.json"))
    weights = {name: values.to(dtype).contiguous() for name, values in module.state_dict().items()}
    save_file(weights, path / "model.safetensors")


def read_own(folder: str | Path, what: str) -> tuple[dict[str, Any], Tokenizer]:
    """Read the configuration and the tokenizer; raises if one of the three files is missing."""
    path = Path(folder)
    for file in FILES:
        if not (path / file).is_file():
            raise BadModel(f"{folder} does not hold {what} that can be loaded: {file} is missing")
    return json.loads((path / "config.json").read_text("utf-8")), Tokenizer.from_file(str(path / "tokenizer.json"))


def load_weights(module: nn.Module, folder: str | Path, device: str | None, dtype: str) -> None:
    """Read the weights into the module, and move it to the device and data type."""
    module.load_state_dict(load_file(Path(folder) / "model.safetensors"))
    module.to(device or "cpu", torch.float32 if dtype == "auto" else getattr(torch, dtype))


def encode_own(tokenizer: Tokenizer, text: Text, number: int, name: str, longest: int) -> Encoded:
    """Tokenise text ``number`` for the model of this name; cut after ``longest`` tokens, with a warning."""
    if not isinstance(text, str):
        raise BadInput(f"text {number} is a pair; {name} reads single texts only")
    if not text.strip():
        raise BadInput(f"text {number} is empty or only white space; it needs at least one word")

    def tokens(text: str) -> list[tuple[int, tuple[int, int]]]:
        encoding = tokenizer.encode(text)
        return list(zip(encoding.ids, encoding.offsets, strict=True))[: longest + 1]

    read = beginning(text, longest, tokens)
    encoding = tokenizer.encode(read)
    end = min(len(encoding.ids), longest)
    if not end:
        raise BadInput(f"text {number} has no tokens that this model's tokenizer knows: {text!r}")
    offsets = tuple(encoding.offsets[:end])
    lost = [*encoding.offsets[end:], *([(len(read), len(text.rstrip()))] if len(read) < len(text) else [])]
    unseen = tuple(unread(text, offsets, lost))
    if end < len(encoding.ids):
        warnings.warn(too_long(number, end, unseen), TruncatedText, stacklevel=4)
    return Encoded(
        text, tuple(encoding.ids[:end]), tuple(encoding.tokens[:end]), offsets, (False,) * end, unseen=unseen
    )
