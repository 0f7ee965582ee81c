"""Erasing tokens: replaced, zeroed, deleted or filled in. Erasure works on tokens, never on the text itself."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from salience.core.passes import forward
from salience.core.types import Batch, Decodes, LanguageHead, Model
from salience.errors import BadInput, UnsupportedModel, choose

Replacement = Literal["zero", "mask", "pad", "unk", "mean"]
REPLACEMENTS = get_args(Replacement)
Erasure = Literal[Replacement, "delete", "fill"]
ERASURES = get_args(Erasure)
Eraser = Callable[[Batch, Bool[Tensor, "b t"]], tuple[Batch, Tensor | None]]
"""Erases the chosen tokens of a batch: returns the new batch, and its embeddings if they are not those of its ids."""


def usual(model: Model) -> Replacement:
    """Return the default replacement: the mask token if the model has one, otherwise the mean word embedding.

    Zero would be simpler, but a model that normalises its embeddings (ModernBERT) ignores the length of a vector, so a
    path from zero would jump at its start.
    """
    return "mask" if "mask" in model.replacements else "mean"


def replacement(model: Model, kind: str) -> Float[Tensor, " d"]:
    """Return the vector that replaces an erased token: zero, the mean embedding, or a special token's embedding."""
    words = model.words
    with model.executor.lock, torch.no_grad():
        if choose(kind, REPLACEMENTS, "replacement") == "zero":
            return torch.zeros_like(words.weight[0])
        if kind == "mean":
            return words(torch.arange(words.num_embeddings, device=words.weight.device)).mean(0).detach()
        if kind in model.replacements:
            return words(torch.tensor(model.replacements[kind], device=words.weight.device)).detach()
    raise BadInput(f"{model.name} has no {kind} token. It has: {', '.join(('zero', *model.replacements, 'mean'))}.")


def replaced(model: Model, batch: Batch, where: Bool[Tensor, "b t"], kind: str) -> Float[Tensor, "b t d"]:
    """Return the embeddings of the batch with the chosen tokens replaced.

    The ids do not change: RoBERTa derives positions from them, and decoders use them to find the last token.
    """
    return torch.where(where[..., None], replacement(model, kind), model.embed(batch))


def deleted(batch: Batch, where: Bool[Tensor, "b t"]) -> Batch:
    """Return the rows without the chosen tokens, padded on the right."""
    keep = batch.mask & ~where
    width = int(keep.sum(1).max())
    if not bool(keep.any(1).all()):
        raise BadInput("deleting these tokens would leave nothing of a text; erase by replacing them instead")
    order = (~keep).to(torch.int8).sort(dim=1, stable=True).indices[:, :width]
    remaining, kept = batch.map(lambda tensor: tensor.gather(1, order)), keep.gather(1, order)
    return Batch(remaining.ids, kept, remaining.special | ~kept, remaining.segments)


def filled(model: Model, head: LanguageHead, batch: Batch, where: Bool[Tensor, "b t"]) -> Batch:
    """Fill the chosen positions with the model's most likely words, all at once.

    The result still looks like text, and so is closer to what the model was trained on than masks are.
    """
    if not bool(where.any()):
        return batch
    hidden = forward(model, batch, embeddings=replaced(model, batch, where, "mask"), hidden=True).hidden[-1]
    logits = head(hidden[where])
    logits[:, list(model.replacements.values())] = -torch.inf
    return replace(batch, ids=batch.ids.masked_scatter(where, logits.argmax(-1)), encoded=())


def _head(model: Model) -> LanguageHead:
    if "mask" in model.replacements and isinstance(model, Decodes):
        return model.lm_head()
    raise UnsupportedModel(f"{model.name} is not a masked language model, so erase='fill' is not supported")


def eraser(model: Model, kind: str) -> Eraser:
    """Return a function that erases by one kind of replacement or by deletion."""
    if choose(kind, ERASURES, "erasure") == "delete":
        return lambda batch, where: (deleted(batch, where), None)
    if kind == "fill":
        head = _head(model)
        return lambda batch, where: (filled(model, head, batch, where), None)
    vector = replacement(model, kind)
    return lambda batch, where: (batch, torch.where(where[..., None], vector, model.embed(batch)))
