"""Explanations that ignore the model: the baseline rows of every evaluation table."""

import torch

from salience.core.randomness import by_token
from salience.core.settings import Seed
from salience.core.types import Attribution, Batch, Model, Targets


def random(model: Model, batch: Batch, target: Targets, /, *, seed: Seed = 0) -> Attribution:
    """Independent standard normal scores.

    Paper: none; a control
    Cost: none
    Needs: nothing
    """
    return Attribution(by_token(batch, seed, lambda n, g: torch.randn(n, generator=g)))


def uniform(model: Model, batch: Batch, target: Targets, /) -> Attribution:
    """The same score for every token: 1 / number of text tokens.

    Paper: none; a control
    Cost: none
    Needs: nothing
    """
    return Attribution(batch.content / batch.content.sum(1, keepdim=True), signed=False)


def position(model: Model, batch: Batch, target: Targets, /) -> Attribution:
    """Earlier tokens score higher: 1 for the first of n text tokens, decreasing linearly to 1/n for the last.

    Paper: none; a control
    Cost: none
    Needs: nothing
    """
    rank = batch.content.cumsum(1) - 1
    return Attribution((1 - rank / batch.content.sum(1, keepdim=True)) * batch.content, signed=False)
