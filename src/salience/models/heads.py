"""A language model head fitted to a model that has none; it maps hidden states to words."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float, Int
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from salience.core.types import Model
from salience.errors import BadModel


@dataclass(frozen=True, eq=False)
class FittedHead:
    """dense → GELU → LayerNorm → the model's own word embeddings + bias, fitted on a frozen model."""

    transform: nn.Sequential
    bias: Float[Tensor, " v"]
    words: nn.Embedding
    recovery: float
    """The fraction of held-out tokens that the head ranks first at the last layer."""
    layers: dict[Hashable, int] = field(default_factory=dict[Hashable, int])

    @property
    def vocabulary(self) -> int:
        return len(self.bias)

    @property
    def description(self) -> Mapping[str, object]:
        return {"head": "fitted", "recovery": self.recovery}

    def __call__(self, hidden: Float[Tensor, "*n k"], ids: Int[Tensor, "b m"] | None = None) -> Float[Tensor, "*n m"]:
        with torch.no_grad():
            return word_scores(self.transform, self.bias, self.words.weight, hidden.float(), ids)

    def save(self, path: str | Path) -> None:
        """Write the fitted weights, without the model's word embeddings, to a .safetensors file."""
        tensors = {**self.transform.state_dict(), "bias": self.bias}
        save_file(tensors, path, metadata={"recovery": str(self.recovery)})

    @classmethod
    def load(cls, path: str | Path, model: Model) -> "FittedHead":
        """Load a head that was fitted to this model."""
        try:
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                recovery = float((file.metadata() or {})["recovery"])
            bias = tensors.pop("bias")
            transform = transformation(tensors["0.weight"].shape[1], tensors["0.weight"].shape[0])
            transform.load_state_dict(tensors)
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            raise BadModel(f"{path} is not a head saved by FittedHead.save: {error}") from error
        if (len(bias), len(tensors["0.bias"])) != tuple(model.words.weight.shape):
            raise BadModel(f"the head in {path} was fitted to another model: its vocabulary or width differs")
        device = model.words.weight.device
        return cls(transform.to(device), bias.to(device), model.words, recovery)


def transformation(inner: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inner, width), nn.GELU(), nn.LayerNorm(width))


def word_scores(
    transform: nn.Sequential, bias: Tensor, words: Tensor, hidden: Tensor, ids: Int[Tensor, "b m"] | None = None
) -> Tensor:
    if ids is not None:
        words, bias = words[ids], bias[ids][:, None]
    return transform(hidden) @ words.float().mT + bias
