"""Whether an explanation keeps still where the model does, and moves where the model does.

These metrics are of a method, not of scores: the model is changed in a known way and texts are explained again.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from inspect import signature
from math import nan
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from salience.errors import BadInput
from salience.evaluation import Better
from salience.metrics.agreement import Scores, spearman
from salience.models.moved import Moved, table
from salience.types import Model


class Changing:
    """Which models to explain instead, and how their scores compare. The largest number of all of them counts.

    Called with a model, it gives the changed ones, one after the other.
    """

    better: Better = "lower"

    def __init__(self, changed: Callable[..., Iterator[Model]], compared: Callable[[Scores, Scores], float]) -> None:
        self.changed, self.compared = changed, compared
        self.__name__, self.__doc__, self.__module__ = changed.__name__, changed.__doc__, changed.__module__
        self.__signature__ = signature(changed)

    def __call__(self, model: Model, /, **settings: Any) -> Iterator[Model]:
        return self.changed(model, **settings)

    def __repr__(self) -> str:
        return f"<metric {self.__name__}>"


def changing(compared: Callable[[Scores, Scores], float]) -> Callable[[Callable[..., Iterator[Model]]], Changing]:
    """Make a metric of a function that gives changed models."""
    return lambda changed: Changing(changed, compared)


def distance(before: Scores, after: Scores) -> float:
    """‖after − before‖ / ‖before‖; 0 where both are 0, undefined where only the first is."""
    length, moved = float(np.linalg.norm(before)), float(np.linalg.norm(after - before))
    if length == 0:
        return 0.0 if moved == 0 else nan
    return moved / length


def likeness(before: Scores, after: Scores) -> float:
    """The rank correlation, either way: an explanation turned upside down has still not forgotten."""
    return abs(spearman(before, after))


@changing(distance)
def max_sensitivity(model: Model, /, *, radius: float = 0.02, samples: int = 10, seed: int = 0) -> Iterator[Model]:
    """How far the scores move, at most, as word vectors do: max over draws of ‖φ(x + δ) − φ(x)‖ / ‖φ(x)‖.

    Divided by the length of the scores, so that methods of any scale can be compared. Every word's vector moves by
    ``radius`` of the mean length of all, in a random direction. Lower is better.

    Paper: Yeh et al. 2019, arXiv:1901.09392, Definition 3.1
    """
    if samples < 1 or not radius > 0:
        raise BadInput(f"max_sensitivity takes at least 1 sample and a radius above 0, not {samples} and {radius}")
    words, dice = table(model), torch.Generator().manual_seed(seed)
    for _ in range(samples):
        yield Moved(model, words + radius * _length(words) * _directions(words, dice))


@changing(distance)
def input_invariance(model: Model, /, *, seed: int = 0) -> Iterator[Model]:
    """How far the scores move by a shift of all word vectors that the model takes back: ‖φ' − φ‖ / ‖φ‖.

    The model is the same function of the text as before, so that nothing should move. Lower is better.

    Paper: Kindermans et al. 2019, The (Un)reliability of Saliency Methods, arXiv:1711.00867
    """
    words = table(model)
    shift = _length(words) * _directions(words[:1], torch.Generator().manual_seed(seed))[0]
    yield Moved(model, words + shift, absorbed=shift)


@changing(likeness)
def parameter_randomisation(model: Model, /, *, share: float = 1.0, seed: int = 0) -> Iterator[Model]:
    """The rank correlation, either way, with the scores of the same model with its parameters shuffled: |ρ(φ', φ)|.

    That model knows nothing; a method whose explanations stay alike does not look at what the model has learnt. Lower
    is better. With a smaller ``share``, only the parameters nearest to the output are shuffled.

    Paper: Adebayo et al. 2018, Sanity Checks for Saliency Maps, arXiv:1810.03292
    """
    if not 0 < share <= 1:
        raise BadInput(f"share={share} of parameter_randomisation must be above 0 and at most 1")
    yield randomised(model, share, seed)


def randomised(model: Model, share: float = 1.0, seed: int = 0) -> Model:
    """A copy with the last share of its parameters shuffled, each within itself, so that their sizes stay the same."""
    copy, dice = deepcopy(model), torch.Generator().manual_seed(seed)
    parameters = list(copy.module.parameters())
    with torch.no_grad():
        for p in parameters[-max(1, round(share * len(parameters))) :]:
            p.copy_(p.flatten()[torch.randperm(p.numel(), generator=dice).to(p.device)].view_as(p))
    return copy


def _directions(like: Tensor, dice: torch.Generator) -> Tensor:
    """A random direction for every row."""
    return nn.functional.normalize(torch.randn(like.shape, generator=dice).to(like), dim=1)


def _length(words: Tensor) -> Tensor:
    return words.norm(dim=1).mean()
