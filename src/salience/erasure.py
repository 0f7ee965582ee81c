"""The one place where tokens are taken away: replaced, zeroed or deleted, on ids and embeddings, never on text."""

from collections.abc import Callable
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from salience.errors import BadInput, choose
from salience.types import Batch, Model

Replacement = Literal["zero", "mask", "pad", "unk", "mean"]
REPLACEMENTS = get_args(Replacement)
Erasure = Literal[Replacement, "delete"]
ERASURES = get_args(Erasure)
Eraser = Callable[[Batch, Bool[Tensor, "b t"]], tuple[Batch, Tensor | None]]
"""Takes the chosen tokens from rows: the rows to pass, and their embeddings where those are not the rows' own."""


def usual(model: Model) -> Replacement:
    """What a method erases with when it is not told: the mask token if the model has one, otherwise the mean word.

    Zero would be simpler, but a model that normalises its embeddings (ModernBERT) sees no difference between a small
    vector and a large one, so a path from zero jumps at its very start.
    """
    return "mask" if "mask" in model.replacements else "mean"


def replacement(model: Model, kind: str) -> Float[Tensor, " d"]:
    """The vector that stands for "no token here": zero, the mean word, or a special token's own embedding."""
    words = model.words
    with torch.no_grad():
        if choose(kind, REPLACEMENTS, "replacement") == "zero":
            return torch.zeros_like(words.weight[0])
        if kind == "mean":
            return words(torch.arange(words.num_embeddings, device=words.weight.device)).mean(0)
        if kind in model.replacements:
            return words(torch.tensor(model.replacements[kind], device=words.weight.device))
    raise BadInput(f"{model.name} has no {kind} token. It has: {', '.join(('zero', *model.replacements, 'mean'))}.")


def replaced(model: Model, batch: Batch, where: Bool[Tensor, "b t"], kind: str) -> Float[Tensor, "b t d"]:
    """Embeddings with the chosen tokens replaced.

    The ids stay as they are: RoBERTa counts its positions by them, and decoders find the token to read by them.
    """
    return torch.where(where[..., None], replacement(model, kind), model.embed(batch))


def deleted(batch: Batch, where: Bool[Tensor, "b t"]) -> Batch:
    """Rows without the chosen tokens, closed up and padded on the right anew."""
    keep = batch.mask & ~where
    width = int(keep.sum(1).max())
    if not bool(keep.any(1).all()):
        raise BadInput("deleting these tokens would leave nothing of a text; erase by replacing them instead")
    order = (~keep).to(torch.int8).sort(dim=1, stable=True).indices[:, :width]
    left, kept = batch.map(lambda tensor: tensor.gather(1, order)), keep.gather(1, order)
    words = None if left.words is None else left.words.masked_fill(~kept, -1)
    return Batch(left.ids, kept, left.special | ~kept, left.segments, words)


def eraser(model: Model, kind: str) -> Eraser:
    """Erase by one kind of replacement or by deletion; what depends on the model alone is computed once."""
    if choose(kind, ERASURES, "erasure") == "delete":
        return lambda batch, where: (deleted(batch, where), None)
    vector = replacement(model, kind)
    return lambda batch, where: (batch, torch.where(where[..., None], vector, model.embed(batch)))
