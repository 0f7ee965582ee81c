"""Methods that erase parts of a text and measure the prediction: one part at a time, or many at random."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from salience.core.erasure import Erasure, usual
from salience.core.randomness import generators
from salience.core.rows import Erased, erased_values, value
from salience.core.settings import Count, NotNegative, Pairs, Positive, Seed
from salience.core.text import Encoded, numbers
from salience.core.types import Attribution, Batch, Model, NeedsText, Targets
from salience.errors import BadInput, choose

Unit = Literal["token", "word", "segment"]
"""What is erased as a whole. Segments are those that the text was encoded with: answers are explained by segments."""


def occlusion(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    erase: Erasure | None = None,
    window: Count = 1,
    unit: Unit = "token",
) -> Attribution:
    """How much the prediction drops without each token: f(x) − f(x without i).

    A ``window`` of several units slides over the text one unit at a time; a unit's score is the mean over the windows
    that cover it. A word's score is divided equally among its tokens.

    Paper: Zeiler & Fergus 2014, arXiv:1311.2901; for text Li et al. 2016, arXiv:1612.08220
    Cost: 1 forward per token or word; about half of that on causal models
    Needs: nothing
    """
    erase = erase or usual(model)
    units = unit_numbers(batch, unit)
    rows = windows(units, window)
    drop = value(model, batch, target)[rows.text] - erased_values(model, batch, target, rows, erase)
    drop_per_token = drop[:, None] * rows.where
    total = torch.zeros(batch.ids.shape, device=drop_per_token.device).index_add_(0, rows.text, drop_per_token)
    covered = torch.zeros_like(total).index_add_(0, rows.text, rows.where.float())
    return Attribution(total / (covered * unit_sizes(units)).clamp(min=1), settings={"erase": erase})


def lime(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    samples: Pairs = 1000,
    width: Positive = 25.0,
    regularization: NotNegative = 1.0,
    erase: Erasure | None = None,
    unit: Unit = "token",
    seed: Seed = 0,
) -> Attribution:
    """Weights of a linear model of f, fitted to copies of the text with random tokens erased.

    Minimises Σ_z π(z) (f(z) − b − w·z)² + regularization · ‖w‖², where π(z) = exp(−d(z)² / 2 width²) and d is 100
    times the cosine distance of z from the whole text. The gap ``fit`` is 1 − R² under the same weights.

    Paper: Ribeiro et al. 2016, arXiv:1602.04938, eq. 1
    Cost: samples forward
    Needs: nothing
    """
    erase = erase or usual(model)
    units = unit_numbers(batch, unit)
    counts, rngs = (units.amax(1) + 1).tolist(), generators(batch, seed)
    fewest = fewest_units(model, batch, units, erase)
    drawn = [_subsets(n, samples, low, rng) for n, low, rng in zip(counts, fewest, rngs, strict=True)]
    values = erased_values(model, batch, target, coalitions(units, drawn), erase).cpu().double().split(samples)
    fits = [_ridge(z, y, _proximity(z, width), regularization) for z, y in zip(drawn, values, strict=True)]
    scores = spread(units, [w for w, _ in fits])
    return Attribution(scores, gaps={"fit": torch.stack([gap for _, gap in fits])}, settings={"erase": erase})


def unit_numbers(batch: Batch, unit: str) -> Int[Tensor, "b t"]:
    """Return the unit index of each token within its text; -1 for special tokens and padding."""
    if choose(unit, get_args(Unit), "unit") == "token":
        return torch.where(batch.content, batch.content.cumsum(1) - 1, -1)
    if not batch.encoded:
        raise BadInput("this batch does not know its words; create it with model.batch(model.encode(texts))")
    own = [_segments(e) if unit == "segment" else numbers(e.text, e.offsets, e.special) for e in batch.encoded]
    rows = [torch.tensor(numbers) for numbers in own]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1).to(batch.ids.device)


def _segments(encoded: Encoded) -> Sequence[int]:
    if encoded.units is None:
        raise BadInput("unit='segment' is for the answers of language models, explained by segments; use unit='word'")
    return encoded.units


def fewest_units(model: Model, batch: Batch, units: Int[Tensor, "b t"], erase: str) -> list[int]:
    """Return how many units of each text must be kept: 1 if deleting all of them would leave too little to read."""
    if erase != "delete":
        return [0] * len(batch)
    rest = (units < 0) & batch.mask
    readable = model.can_read(batch, rest) if isinstance(model, NeedsText) else rest.any(1)
    return (~readable).int().tolist()


def unit_sizes(units: Int[Tensor, "b t"]) -> Float[Tensor, "b t"]:
    """Return the size of each token's unit, in tokens; 1 for tokens outside any unit."""
    sizes = torch.zeros(units.shape, device=units.device)
    sizes.scatter_add_(1, units.clamp(min=0), (units >= 0).float())
    return torch.where(units >= 0, sizes.gather(1, units.clamp(min=0)), 1)


def spread(units: Int[Tensor, "b t"], scores: Sequence[Float[Tensor, " _"]]) -> Float[Tensor, "b t"]:
    """Divide the score of each unit equally among its tokens."""
    per_unit = torch.nn.utils.rnn.pad_sequence(list(scores), batch_first=True).float().to(units.device)
    return torch.where(units >= 0, per_unit.gather(1, units.clamp(min=0)) / unit_sizes(units), 0)


def windows(units: Int[Tensor, "b t"], window: int) -> Erased:
    """One copy per position of a window that slides by one unit; a text shorter than the window has one position."""
    counts = units.amax(1) + 1
    positions = (counts - window + 1).clamp(min=1)
    text = torch.arange(len(units), device=units.device).repeat_interleave(positions)
    first = torch.arange(len(text), device=units.device) - (positions.cumsum(0) - positions)[text]
    u = units[text]
    return Erased(text, (u >= first[:, None]) & (u < first[:, None] + window))


def coalitions(units: Int[Tensor, "b t"], kept: Sequence[Bool[Tensor, "_ _"]]) -> Erased:
    """One copy per coalition of every text, with the units outside the coalition erased."""
    text = torch.arange(len(units)).repeat_interleave(torch.tensor([len(z) for z in kept])).to(units.device)
    where = [~z.to(units.device)[:, u.clamp(min=0)] & (u >= 0) for z, u in zip(kept, units, strict=True)]
    return Erased(text, torch.cat(where))


def _subsets(n: int, samples: int, fewest: int, rng: Generator) -> Bool[Tensor, "m u"]:
    """The whole text, then random coalitions: a uniform number of missing units (at least 1), then which ones."""
    missing = torch.randint(1, max(2, n - fewest + 1), (samples - 1, 1), generator=rng)
    return torch.cat([torch.ones(1, n, dtype=torch.bool), ranks(samples - 1, n, rng) >= missing])


def ranks(rows: int, n: int, rng: Generator) -> Int[Tensor, "m u"]:
    """Return a random permutation of n units per row."""
    return torch.rand(rows, n, generator=rng).argsort(1).argsort(1)


def _proximity(z: Bool[Tensor, "m u"], width: float) -> Float[Tensor, " m"]:
    """π(z): the cosine of z and the whole text is √(share of units kept)."""
    distance = 100 * (1 - z.double().mean(1).sqrt())
    return (-distance.square() / (2 * width**2)).exp()


def _ridge(
    z: Bool[Tensor, "m u"], y: Float[Tensor, " m"], weights: Float[Tensor, " m"], alpha: float
) -> tuple[Float[Tensor, " u"], Float[Tensor, ""]]:
    """Weights of the fitted linear model, whose intercept is not penalised, and 1 − R²."""
    share = weights / weights.sum()
    x = z.to(y) - share @ z.to(y)
    t = y - share @ y
    normal = x.T @ (weights[:, None] * x) + alpha * torch.eye(x.shape[1]).to(y)
    w = torch.linalg.lstsq(normal, x.T @ (weights * t)).solution
    residual, variance = share @ (t - x @ w).square(), share @ t.square()
    return w, torch.where(variance > 0, residual / variance, 0)
