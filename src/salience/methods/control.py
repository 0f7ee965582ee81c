"""Explanations that know nothing of the model: the floor that every table prints."""

import torch
from torch import Tensor

from salience.randomness import generators, padded
from salience.types import Batch, Model, Targets


def random(model: Model, batch: Batch, target: Targets, /, *, seed: int = 0) -> Tensor:
    """Independent standard normal scores.

    Paper: none; a control
    Cost: none
    Needs: nothing
    """
    lengths = batch.mask.sum(1).tolist()
    rows = [torch.randn(n, generator=g) for n, g in zip(lengths, generators(batch, seed), strict=True)]
    return padded(rows, batch)


def uniform(model: Model, batch: Batch, target: Targets, /) -> Tensor:
    """The same score for every token: 1 / number of tokens of text.

    Paper: none; a control
    Cost: none
    Needs: nothing
    """
    return batch.content / batch.content.sum(1, keepdim=True)


def position(model: Model, batch: Batch, target: Targets, /) -> Tensor:
    """Earlier tokens score higher: 1 at the first of n tokens of text, falling evenly to 1/n at the last.

    Paper: none; a control
    Cost: none
    Needs: nothing
    """
    rank = batch.content.cumsum(1) - 1
    return (1 - rank / batch.content.sum(1, keepdim=True)) * batch.content
