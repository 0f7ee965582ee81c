"""Faithfulness: whether the model needs the tokens that an explanation ranks highest, measured by erasing them.

f is the explained number, by default a probability; x₋ᵩ is the text without its highest-scoring share q of tokens. Ties
are broken by the order of the text. n is the number of tokens, without special tokens.
"""

from collections.abc import Sequence
from functools import partial
from math import inf

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from salience.core.randomness import generators
from salience.core.settings import Count, Fraction, Pairs, Seed, Share
from salience.core.shares import count_of
from salience.core.stats import UNLIMITED
from salience.core.types import Batch
from salience.errors import BadInput
from salience.metrics.erasing import Answers, by_erasure, decided

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
"""The bins of ERASER."""

POINTS = 21
"""The number of points of a curve, in steps of 5 %."""


# ------------------------------------------------------------------------------------------------------ which tokens


def ranks(scores: Float[Tensor, "b t"], batch: Batch) -> Int[Tensor, "b t"]:
    """The rank of each token, 0 for the highest score; special tokens and padding come last."""
    order = scores.masked_fill(~batch.content, -torch.inf).argsort(dim=1, descending=True, stable=True)
    return torch.empty_like(order).scatter_(1, order, torch.arange(batch.width, device=order.device).expand_as(order))


def top(scores: Float[Tensor, "b t"], batch: Batch, share: float) -> Bool[Tensor, "b t"]:
    """The highest-scoring share of the tokens of each text, at least one; ties go to the earlier token."""
    counts = [count_of(share, n) for n in batch.content.sum(1).tolist()]
    return batch.content & (ranks(scores, batch) < torch.tensor(counts, device=scores.device)[:, None])


def _highest(scores: Tensor, batch: Batch, *, shares: Sequence[Share] = SHARES) -> Bool[Tensor, "m b t"]:
    if not shares or not all(0 < share <= 1 for share in shares):
        raise BadInput(f"shares={list(shares)} must each be above 0 and at most 1, such as 0.2 for a fifth")
    return torch.stack([top(scores, batch, share) for share in shares])


def _all_but_highest(scores: Tensor, batch: Batch, *, shares: Sequence[Share] = SHARES) -> Bool[Tensor, "m b t"]:
    return batch.content & ~_highest(scores, batch, shares=shares)


def _first(scores: Tensor, batch: Batch, *, points: Pairs = POINTS) -> Bool[Tensor, "m b t"]:
    """Growing sets, from the highest score down."""
    return batch.content & (ranks(scores, batch) < _counts(batch, points))


def _all_but_first(scores: Tensor, batch: Batch, *, points: Pairs = POINTS) -> Bool[Tensor, "m b t"]:
    """Shrinking sets: the highest-scoring tokens are restored first."""
    return batch.content & ~_first(scores, batch, points=points)


def _last(scores: Tensor, batch: Batch, *, points: Pairs = POINTS) -> Bool[Tensor, "m b t"]:
    """Growing sets, from the lowest score up."""
    return _all_but_first(scores, batch, points=points).flip(0)


def _counts(batch: Batch, points: int) -> Int[Tensor, "m b 1"]:
    if points < 2:
        raise BadInput(f"points={points} is not enough for a curve; use at least 2")
    steps = torch.arange(points, device=batch.ids.device)[:, None] * batch.content.sum(1)
    return (steps.double() / (points - 1)).round().long()[..., None]  # of whole numbers, so that halves are exact


def _one_by_one(scores: Tensor, batch: Batch) -> Bool[Tensor, "m b t"]:
    """The highest-scoring token, the two highest-scoring tokens, and so on to all."""
    steps = torch.arange(1, int(batch.content.sum(1).max()) + 1, device=batch.ids.device)
    return batch.content & (ranks(scores, batch) < steps[:, None, None])


def _at_random(
    scores: Tensor, batch: Batch, *, samples: Count = 50, chance: Fraction = 0.2, seed: Seed = 0
) -> Bool[Tensor, "m b t"]:
    """Random sets: each token with the same probability, at least one per text."""
    if samples < 1 or not 0 <= chance <= 1:
        raise BadInput(f"infidelity takes at least 1 sample and a chance from 0 to 1, not {samples} and {chance}")
    chosen = batch.mask[None].repeat(samples, 1, 1) & False
    for row, (content, rng) in enumerate(zip(batch.content.cpu(), generators(batch, seed), strict=True)):
        numbers = torch.rand(samples, int(content.sum()), generator=rng)
        selected = (numbers < chance) | (numbers == numbers.min(1, keepdim=True).values)
        chosen[:, row, content.to(chosen.device)] = selected.to(chosen.device)
    return chosen


# ------------------------------------------------------------------------------------------------------ ERASER


@by_erasure(_highest, better="higher", limits=(-1, 1))
def comprehensiveness(answers: Answers) -> Float[Tensor, " b"]:
    """How much the prediction drops without the highest-scoring tokens: mean over shares q of f(x) − f(x₋ᵩ).

    Paper: DeYoung et al. 2020 (ERASER), arXiv:1911.03429, section 4.2
    """
    return answers.whole - answers.values.mean(0)


@by_erasure(_all_but_highest, better="lower", limits=(-1, 1))
def sufficiency(answers: Answers) -> Float[Tensor, " b"]:
    """How much the prediction drops with only the highest-scoring tokens: mean over shares q of f(x) − f(x₊ᵩ).

    Paper: DeYoung et al. 2020 (ERASER), arXiv:1911.03429, section 4.2
    """
    return answers.whole - answers.values.mean(0)


# ------------------------------------------------------------------------------------------------------ curves


@by_erasure(_first, better="lower", limits=(0, 1), curve=True)
def deletion_area(answers: Answers) -> Float[Tensor, "m b"]:
    """The area under f as tokens are erased, highest-scoring first.

    Paper: Petsiuk et al. 2018 (RISE), arXiv:1806.07421
    """
    return answers.values


@by_erasure(_all_but_first, better="higher", limits=(0, 1), curve=True)
def insertion_area(answers: Answers) -> Float[Tensor, "m b"]:
    """The area under f as tokens are restored to an empty text, highest-scoring first.

    Paper: Petsiuk et al. 2018 (RISE), arXiv:1806.07421
    """
    return answers.values


@by_erasure(_last, better="higher", limits=(0, 1), curve=True, decides=True)
def hiding_area(answers: Answers) -> Float[Tensor, "m b"]:
    """How long the decision holds as tokens are hidden, lowest-scoring first: the area under 1[decision unchanged].

    Paper: Hiding Game of decoded layer saliency, arXiv:2308.05219
    """
    return decided(answers, "hiding_area").float()


@by_erasure(_all_but_first, better="higher", limits=(0, 1), curve=True, decides=True)
def revealing_area(answers: Answers) -> Float[Tensor, "m b"]:
    """How soon the decision is reached as tokens are revealed, highest-scoring first.

    The curve is that of hiding_area in reverse: with the same order and erasure the areas are equal.

    Paper: Revealing Game of decoded layer saliency, arXiv:2308.05219
    """
    return decided(answers, "revealing_area").float()


# ------------------------------------------------------------------------------------------------------ single numbers


@by_erasure(_one_by_one, better="lower", limits=(0, 1), decides=True, until_flip=True)
def decision_flip(answers: Answers) -> Float[Tensor, " b"]:
    """The share of tokens to erase, one by one and highest-scoring first, until the decision flips; 1 if never.

    Paper: after Serrano & Smith 2019, arXiv:1906.03731, who erase attention weights instead of tokens
    """
    flipped = ~decided(answers, "decision_flip")
    tokens = answers.batch.content.sum(1).cpu()
    steps = torch.where(flipped.any(0), flipped.int().argmax(0) + 1, tokens)
    return steps / tokens


@by_erasure(partial(_highest, shares=(0.2,)), better="lower", limits=UNLIMITED)
def log_odds(answers: Answers) -> Float[Tensor, " b"]:
    """The mean over shares q of log f(x₋ᵩ) − log f(x), for a probability f.

    Paper: Shrikumar et al. 2017; as in Sanyal & Ren 2021 (DIG), arXiv:2108.13654
    """
    if answers.kind != "probability" or answers.link == "identity":
        raise BadInput("log_odds needs probabilities; use kind='probability' and a classifier, not a regression model")
    logarithms = [x.clamp_min(torch.finfo(x.dtype).tiny).log() for x in (answers.values, answers.whole)]
    return (logarithms[0] - logarithms[1]).mean(0)


@by_erasure(_at_random, better="lower", limits=(0, inf))
def infidelity(answers: Answers) -> Float[Tensor, " b"]:
    """How far the scores miss the effect of erasing random tokens: mean over sets S of (β Σ_{i∈S} φᵢ − Δ_S)².

    Δ_S = f(x) − f(x without S), and φ are the scores. β is the least-squares scale for each text, so that scores on any
    scale can be compared; it is 0 for scores of 0.

    Paper: Yeh et al. 2019, arXiv:1901.09392, Definition 2.1, with the optimal scaling
    """
    sums = (answers.erased * answers.scores).sum(2)
    drops = answers.whole - answers.values
    power = sums.square().mean(0)
    beta = torch.where(power > 0, (sums * drops).mean(0) / power.clamp_min(torch.finfo(power.dtype).tiny), 0)
    return (beta * sums - drops).square().mean(0)
