"""Robustness: whether an explanation is stable when the model is, and changes when the model does.

These metrics test a method rather than scores: the model is changed in a known way and texts are explained again.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from math import inf, nan

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from salience.core.settings import Count, Positive, Seed, Share
from salience.core.shares import count_of
from salience.core.stats import Limits
from salience.core.types import EmbeddingEdit, Model
from salience.errors import BadInput
from salience.metrics.agreement import Scores, spearman
from salience.metrics.metric import Metric


def by_changed_models(
    compared: Callable[[Scores, Scores], float], limits: Limits
) -> Callable[[Callable[..., Iterator[Model]]], Metric]:
    """Make a metric from a function that yields changed models; the largest value over these models is used."""
    return lambda changed: Metric(
        compared, "robustness", "lower", "changed_model", changed, limits=limits, call=changed
    )


def distance(before: Scores, after: Scores) -> float:
    """‖after − before‖ / ‖before‖; 0 if both are 0, NaN if only the first is."""
    length, moved = float(np.linalg.norm(before)), float(np.linalg.norm(after - before))
    if length == 0:
        return 0.0 if moved == 0 else nan
    return moved / length


def likeness(before: Scores, after: Scores) -> float:
    """The absolute rank correlation, so that reversed scores still count as similar."""
    return abs(spearman(before, after))


@by_changed_models(distance, limits=(0, inf))
def max_sensitivity(
    model: Model, /, *, radius: Positive = 0.02, samples: Count = 10, seed: Seed = 0
) -> Iterator[Model]:
    """The largest change of the scores under small changes of the word vectors: max of ‖φ(x + δ) − φ(x)‖ / ‖φ(x)‖.

    The change is relative to the norm of the scores, so that methods of any scale can be compared. Every word vector
    moves by ``radius`` times the mean norm of all, in a random direction. Lower is better.

    Paper: Yeh et al. 2019, arXiv:1901.09392, Definition 3.1
    """
    if samples < 1 or not radius > 0:
        raise BadInput(f"max_sensitivity takes at least 1 sample and a radius above 0, not {samples} and {radius}")
    words, rng = _table(model), torch.Generator().manual_seed(seed)
    for _ in range(samples):
        yield _moved(model, words + radius * _length(words) * _directions(words, rng))


@by_changed_models(distance, limits=(0, inf))
def input_invariance(model: Model, /, *, seed: Seed = 0) -> Iterator[Model]:
    """The change of the scores under a shift of all word vectors that the model compensates: ‖φ' − φ‖ / ‖φ‖.

    The model remains the same function of the text, so the scores should not change. Lower is better.

    Paper: Kindermans et al. 2019, The (Un)reliability of Saliency Methods, arXiv:1711.00867
    """
    words = _table(model)
    shift = _length(words) * _directions(words[:1], torch.Generator().manual_seed(seed))[0]
    yield _moved(model, words + shift, offset=shift)


@by_changed_models(likeness, limits=(0, 1))
def parameter_randomisation(model: Model, /, *, share: Share = 1.0, seed: Seed = 0) -> Iterator[Model]:
    """The absolute rank correlation with the scores of the same model with shuffled parameters: |ρ(φ', φ)|.

    The shuffled model has learnt nothing; a method whose explanations stay similar does not depend on what the model
    has learnt. Lower is better. With a smaller ``share``, only the parameters nearest to the output are shuffled.

    Paper: Adebayo et al. 2018, Sanity Checks for Saliency Maps, arXiv:1810.03292
    """
    if not 0 < share <= 1:
        raise BadInput(f"share={share} of parameter_randomisation must be above 0 and at most 1")
    yield randomised(model, share, seed)


def randomised(model: Model, share: float = 1.0, seed: int = 0) -> Model:
    """A copy with the last share of its parameters shuffled, each tensor within itself, which keeps their values."""
    copy, rng = deepcopy(model), torch.Generator().manual_seed(seed)
    parameters = list(copy.module.parameters())
    with torch.no_grad():
        for p in parameters[-count_of(share, len(parameters)) :]:
            p.copy_(p.flatten()[torch.randperm(p.numel(), generator=rng).to(p.device)].view_as(p))
    return copy


def _moved(model: Model, words: Float[Tensor, "v d"], offset: Float[Tensor, " d"] | None = None) -> Model:
    return model.with_embeddings(EmbeddingEdit(nn.Embedding.from_pretrained(words), offset))


def _table(model: Model) -> Float[Tensor, "v d"]:
    """The vectors of the whole vocabulary."""
    with model.executor.lock, torch.no_grad():
        return model.words(torch.arange(model.words.num_embeddings, device=model.words.weight.device)).detach()


def _directions(like: Tensor, rng: torch.Generator) -> Tensor:
    """A random unit vector for every row."""
    return nn.functional.normalize(torch.randn(like.shape, generator=rng).to(like), dim=1)


def _length(words: Tensor) -> Tensor:
    return words.norm(dim=1).mean()
