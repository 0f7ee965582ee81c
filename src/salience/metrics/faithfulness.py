"""Whether the tokens that an explanation names are those that the model needs: erase them and look.

f is the explained number, a probability unless told otherwise; x₋ᵩ is the text without its highest-scoring share q of
tokens. Tokens of equal score count in the order of the text. n tokens are those of the text, special ones not counted.
"""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from salience.errors import BadInput
from salience.metrics.erasing import Answers, area, decided, erasing
from salience.randomness import generators
from salience.types import Batch

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
"""The bins of ERASER."""

POINTS = 21
"""Of a curve from nothing to everything, in steps of 5 %."""


# ------------------------------------------------------------------------------------------------------ which tokens


def ranks(scores: Float[Tensor, "b t"], batch: Batch) -> Int[Tensor, "b t"]:
    """0 for the highest-scoring token of a text, 1 for the next; what is not text comes last."""
    order = scores.masked_fill(~batch.content, -torch.inf).argsort(dim=1, descending=True, stable=True)
    return torch.empty_like(order).scatter_(1, order, torch.arange(batch.width, device=order.device).expand_as(order))


def top(scores: Float[Tensor, "b t"], batch: Batch, share: float) -> Bool[Tensor, "b t"]:
    """The highest-scoring share of each text's tokens, at least one; of equal scores the first."""
    count = (share * batch.content.sum(1)).round().clamp_min(1)
    return batch.content & (ranks(scores, batch) < count[:, None])


def _highest(scores: Tensor, batch: Batch, *, shares: Sequence[float] = SHARES) -> Bool[Tensor, "m b t"]:
    if not shares or not all(0 < share <= 1 for share in shares):
        raise BadInput(f"shares={list(shares)} must each be above 0 and at most 1, such as 0.2 for a fifth")
    return torch.stack([top(scores, batch, share) for share in shares])


def _all_but_highest(scores: Tensor, batch: Batch, *, shares: Sequence[float] = SHARES) -> Bool[Tensor, "m b t"]:
    return batch.content & ~_highest(scores, batch, shares=shares)


def _first(scores: Tensor, batch: Batch, *, points: int = POINTS) -> Bool[Tensor, "m b t"]:
    """More and more from the highest-scoring on."""
    return batch.content & (ranks(scores, batch) < _counts(batch, points))


def _all_but_first(scores: Tensor, batch: Batch, *, points: int = POINTS) -> Bool[Tensor, "m b t"]:
    """Less and less: the highest-scoring come back first."""
    return batch.content & ~_first(scores, batch, points=points)


def _last(scores: Tensor, batch: Batch, *, points: int = POINTS) -> Bool[Tensor, "m b t"]:
    """More and more from the lowest-scoring on."""
    return _all_but_first(scores, batch, points=points).flip(0)


def _counts(batch: Batch, points: int) -> Int[Tensor, "m b 1"]:
    if points < 2:
        raise BadInput(f"points={points} is no curve; it takes at least 2")
    shares = torch.linspace(0, 1, points, device=batch.ids.device)
    return (shares[:, None] * batch.content.sum(1)).round().long()[..., None]


def _one_by_one(scores: Tensor, batch: Batch) -> Bool[Tensor, "m b t"]:
    """The highest-scoring, the two highest-scoring, and so on to all."""
    steps = torch.arange(1, int(batch.content.sum(1).max()) + 1, device=batch.ids.device)
    return batch.content & (ranks(scores, batch) < steps[:, None, None])


def _at_random(
    scores: Tensor, batch: Batch, *, samples: int = 50, chance: float = 0.2, seed: int = 0
) -> Bool[Tensor, "m b t"]:
    """Each token with the same chance, at least one of every text."""
    if samples < 1 or not 0 <= chance <= 1:
        raise BadInput(f"infidelity takes at least 1 sample and a chance from 0 to 1, not {samples} and {chance}")
    drawn = batch.mask[None].repeat(samples, 1, 1) & False
    for row, (content, dice) in enumerate(zip(batch.content.cpu(), generators(batch, seed), strict=True)):
        numbers = torch.rand(samples, int(content.sum()), generator=dice)
        chosen = (numbers < chance) | (numbers == numbers.min(1, keepdim=True).values)
        drawn[:, row, content.to(drawn.device)] = chosen.to(drawn.device)
    return drawn


# ------------------------------------------------------------------------------------------------------ ERASER


@erasing(_highest, better="higher")
def comprehensiveness(answers: Answers) -> Float[Tensor, " b"]:
    """What the prediction loses without the highest-scoring tokens: mean over shares q of f(x) − f(x₋ᵩ).

    Paper: DeYoung et al. 2020 (ERASER), arXiv:1911.03429, section 4.2
    """
    return answers.whole - answers.values.mean(0)


@erasing(_all_but_highest, better="lower")
def sufficiency(answers: Answers) -> Float[Tensor, " b"]:
    """What it loses when only the highest-scoring tokens are left: mean over shares q of f(x) − f(x₊ᵩ).

    Paper: DeYoung et al. 2020 (ERASER), arXiv:1911.03429, section 4.2
    """
    return answers.whole - answers.values.mean(0)


# ------------------------------------------------------------------------------------------------------ curves


@area(_first, better="lower")
def deletion_area(answers: Answers) -> Float[Tensor, "m b"]:
    """The area under f as tokens are taken away, highest-scoring first.

    Paper: Petsiuk et al. 2018 (RISE), arXiv:1806.07421
    """
    return answers.values


@area(_all_but_first, better="higher")
def insertion_area(answers: Answers) -> Float[Tensor, "m b"]:
    """The area under f as tokens come back to an empty text, highest-scoring first.

    Paper: Petsiuk et al. 2018 (RISE), arXiv:1806.07421
    """
    return answers.values


@area(_last, better="higher")
def hiding_area(answers: Answers) -> Float[Tensor, "m b"]:
    """How long the decision holds while tokens are hidden, lowest-scoring first: the area under 1[decision as before].

    Paper: Hiding Game of decoded layer saliency, arXiv:2308.05219
    """
    return decided(answers, "hiding_area").float()


@area(_all_but_first, better="higher")
def revealing_area(answers: Answers) -> Float[Tensor, "m b"]:
    """How soon the decision is reached while tokens are revealed, highest-scoring first.

    Read from its end, the curve is that of hiding_area: with one order and one kind of erasure the areas are equal.

    Paper: Revealing Game of decoded layer saliency, arXiv:2308.05219
    """
    return decided(answers, "revealing_area").float()


# ------------------------------------------------------------------------------------------------------ single numbers


@erasing(_one_by_one, better="lower")
def decision_flip(answers: Answers) -> Float[Tensor, " b"]:
    """The share of tokens to take away, highest-scoring first and one by one, until the decision flips; 1 if never.

    Paper: after Serrano & Smith 2019, arXiv:1906.03731, who take attention weights away instead of tokens
    """
    flipped = ~decided(answers, "decision_flip")
    tokens = answers.batch.content.sum(1).cpu()
    steps = torch.where(flipped.any(0), flipped.int().argmax(0) + 1, tokens)
    return steps / tokens


@erasing(partial(_highest, shares=(0.2,)), better="lower")
def log_odds(answers: Answers) -> Float[Tensor, " b"]:
    """The mean over shares q of log f(x₋ᵩ) − log f(x), for a probability f.

    Paper: Shrikumar et al. 2017; as in Sanyal & Ren 2021 (DIG), arXiv:2108.13654
    """
    if answers.kind != "probability" or answers.link == "identity":
        raise BadInput("log_odds is of probabilities: use kind='probability', and not for a regression")
    logarithms = [x.clamp_min(torch.finfo(x.dtype).tiny).log() for x in (answers.values, answers.whole)]
    return (logarithms[0] - logarithms[1]).mean(0)


@erasing(_at_random, better="lower")
def infidelity(answers: Answers) -> Float[Tensor, " b"]:
    """How far the scores miss what taking tokens away at random does: mean over sets S of (β Σ_{i∈S} φᵢ − Δ_S)².

    Δ_S = f(x) − f(x without S), φ are the scores. β is the number that fits best for the text, so that scores on any
    scale can be compared; scores that say nothing have β = 0.

    Paper: Yeh et al. 2019, arXiv:1901.09392, Definition 2.1, with the optimal scaling
    """
    sums = (answers.erased * answers.scores).sum(2)
    drops = answers.whole - answers.values
    power = sums.square().mean(0)
    beta = torch.where(power > 0, (sums * drops).mean(0) / power.clamp_min(torch.finfo(power.dtype).tiny), 0)
    return (beta * sums - drops).square().mean(0)
