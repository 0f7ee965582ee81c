"""A digest that identifies a model."""

import json
from hashlib import blake2b
from typing import Any

import torch

from salience.core.types import Model

PROBE = "Naïve cats won't re-read §7 — 東京, 42% 🙂 …"
"""A text that different tokenizers split differently."""


def digest(model: Model) -> str:
    """Return a digest of the model's weights, configuration, labels, and the tokens of a probe text."""
    hasher = blake2b(digest_size=16)
    for name, values in sorted(model.module.state_dict().items()):
        hasher.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        hasher.update(values.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    ids = _tokens(model)
    hasher.update(repr((tuple(model.labels), model.link, ids)).encode())
    if len(set(ids)) == 1:  # a tokenizer of words that knows none of the probe's
        hasher.update(_vocabulary(getattr(model, "tokenizer", None)).encode())
    hasher.update(_configuration(getattr(model.module, "config", None)).encode())
    return hasher.hexdigest()


def _tokens(model: Any) -> tuple[int, ...]:
    """The tokens of the probe text; of an encoder-decoder, as a source, with the tokens that its answers start with."""
    if hasattr(model, "decoder_layers"):
        return (*model.tokenizer(PROBE)["input_ids"], *model.start)
    return model.encode([PROBE])[0].ids


def _vocabulary(tokenizer: Any) -> str:
    return repr(sorted(tokenizer.get_vocab().items())) if hasattr(tokenizer, "get_vocab") else ""


def _configuration(config: Any) -> str:
    """The configuration, such as the number of heads, without the path and version it was saved with."""
    data = config.to_dict() if hasattr(config, "to_dict") else {"": config}
    kept = {k: v for k, v in data.items() if not k.startswith("_") and k not in ("transformers_version", "dtype")}
    return json.dumps(kept, sort_keys=True, default=str)
