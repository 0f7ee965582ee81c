"""The one place where tokens are taken away: replaced, zeroed, deleted or filled in, never on the text itself."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from salience.errors import BadInput, UnsupportedModel, choose
from salience.passes import forward
from salience.types import Batch, Decodes, LanguageHead, Model

Replacement = Literal["zero", "mask", "pad", "unk", "mean"]
REPLACEMENTS = get_args(Replacement)
Erasure = Literal[Replacement, "delete", "fill"]
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


def filled(model: Model, head: LanguageHead, batch: Batch, where: Bool[Tensor, "b t"]) -> Batch:
    """Rows with the words in the chosen places that the model's language head finds likeliest there, all at once.

    What is erased is gone, and the text still reads like text: nearer to what the model was trained on than masks are.
    """
    if not bool(where.any()):
        return batch
    hidden = forward(model, batch, embeddings=replaced(model, batch, where, "mask"), hidden=True).hidden[-1]
    logits = head(hidden[where])
    logits[:, list(model.replacements.values())] = -torch.inf
    return replace(batch, ids=batch.ids.masked_scatter(where, logits.argmax(-1)))


def _head(model: Model) -> LanguageHead:
    if "mask" in model.replacements and isinstance(model, Decodes):
        return model.lm_head()
    raise UnsupportedModel(f"{model.name} is no masked language model, so that it cannot fill in what is erased")


def eraser(model: Model, kind: str) -> Eraser:
    """Erase by one kind of replacement or by deletion; what depends on the model alone is computed once."""
    if choose(kind, ERASURES, "erasure") == "delete":
        return lambda batch, where: (deleted(batch, where), None)
    if kind == "fill":
        head = _head(model)
        return lambda batch, where: (filled(model, head, batch, where), None)
    vector = replacement(model, kind)
    return lambda batch, where: (batch, torch.where(where[..., None], vector, model.embed(batch)))
