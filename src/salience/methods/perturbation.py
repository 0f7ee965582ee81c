"""Methods that erase parts of a text and watch the prediction: one part at a time, or many at random."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from salience.batching import OPENING, pack
from salience.erasure import Erasure, eraser, usual
from salience.errors import BadInput, choose
from salience.passes import forward, remember, resume
from salience.randomness import generators
from salience.types import Attribution, Batch, Model, SharesPrefix, Targets

Unit = Literal["token", "word"]

HELD = 8
"""How many times the budget a pass may hold in tokens that are not computed anew."""


def occlusion(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    erase: Erasure | None = None,
    window: int = 1,
    unit: Unit = "token",
) -> Attribution:
    """How far the prediction falls without each token: f(x) − f(x without i).

    A ``window`` of several units slides over the text by one; a unit's score is the mean over the windows that cover
    it. A word's score is shared evenly by its tokens.

    Paper: Zeiler & Fergus 2014, arXiv:1311.2901; for text Li et al. 2016, arXiv:1612.08220
    Cost: 1 forward per token or word; about half of that on causal models
    Needs: nothing
    """
    erase = erase or usual(model)
    units = numbered(batch, unit)
    rows = windows(units, window)
    whole, values = occluded(model, batch, target, rows, erase)
    drops = (whole[rows.text] - values)[:, None] * rows.where
    total = torch.zeros(batch.ids.shape, device=drops.device).index_add_(0, rows.text, drops)
    covered = torch.zeros_like(total).index_add_(0, rows.text, rows.where.float())
    return Attribution(total / (covered * sizes(units)).clamp(min=1), settings={"erase": erase})


def lime(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    samples: int = 1000,
    width: float = 25.0,
    regularization: float = 1.0,
    erase: Erasure | None = None,
    unit: Unit = "token",
    seed: int = 0,
) -> Attribution:
    """Weights of a linear model of f, fitted on copies of the text with random tokens erased.

    Minimises Σ_z π(z) (f(z) − b − w·z)² + regularization · ‖w‖², where π(z) = exp(−d(z)² / 2 width²) and d is 100
    times the cosine distance of z from the whole text. The gap ``fit`` is 1 − R² under the same weights.

    Paper: Ribeiro et al. 2016, arXiv:1602.04938, eq. 1
    Cost: samples forward
    Needs: nothing
    """
    if samples < 2:
        raise BadInput(f"samples={samples}: a line needs at least 2")
    erase = erase or usual(model)
    units = numbered(batch, unit)
    counts, sources = (units.amax(1) + 1).tolist(), generators(batch, seed)
    # A text that is nothing but the tokens to be deleted must keep one of them.
    fewest = (~(batch.special & batch.mask).any(1) if erase == "delete" else torch.zeros(len(batch))).int().tolist()
    drawn = [_subsets(n, samples, low, g) for n, low, g in zip(counts, fewest, sources, strict=True)]
    values = erased(model, batch, target, coalitions(units, drawn), erase).cpu().double().split(samples)
    fits = [_ridge(z, y, _nearness(z, width), regularization) for z, y in zip(drawn, values, strict=True)]
    scores = spread(units, [w for w, _ in fits])
    return Attribution(scores, gaps={"fit": torch.stack([gap for _, gap in fits])}, settings={"erase": erase})


def kernel_shap(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    samples: int | None = None,
    erase: Erasure | None = None,
    unit: Unit = "token",
    seed: int = 0,
) -> Attribution:
    """Shapley values by weighted least squares: what each token adds, averaged over all orders of adding tokens.

    Exact when ``samples`` (2n + 2048 for a text of n units) allows all 2^n − 2 coalitions; otherwise coalitions are
    taken by size, the heaviest sizes whole and the others by random pairs of a coalition and its complement. The
    scores of a text always sum to f(x) − f(everything erased); the gap ``efficiency`` is how far rounding misses it.

    Paper: Lundberg & Lee 2017, arXiv:1705.07874, theorem 2
    Cost: samples + 2 forward
    Needs: nothing
    """
    if samples is not None and samples < 2:
        raise BadInput(f"samples={samples}: coalitions come in pairs, so at least 2 are needed")
    erase = erase or usual(model)
    units = numbered(batch, unit)
    counts, sources = (units.amax(1) + 1).tolist(), generators(batch, seed)
    plans = [_shapley_plan(n, samples or 2 * n + 2048, g) for n, g in zip(counts, sources, strict=True)]
    rows = coalitions(units, [torch.cat([_ends(n), z]) for n, (z, _) in zip(counts, plans, strict=True)])
    values = erased(model, batch, target, rows, erase).cpu().double().split([2 + len(z) for z, _ in plans])
    phi = [_constrained(z, w, y[2:], y[0], y[1]) for (z, w), y in zip(plans, values, strict=True)]
    scores = spread(units, phi)
    promised = torch.stack([y[0] - y[1] for y in values])
    return Attribution(
        scores,
        gaps={"efficiency": scores.sum(1).cpu() - promised},
        settings={"erase": erase, "samples": torch.tensor([len(z) for z, _ in plans])},
    )


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Copies of texts with tokens missing: copy r is text ``text[r]`` without the tokens ``where[r]``."""

    text: Int[Tensor, " r"]
    where: Bool[Tensor, "r t"]


def numbered(batch: Batch, unit: str) -> Int[Tensor, "b t"]:
    """The number of each token's unit, counted within its text; -1 for special tokens and padding.

    A token of text that belongs to no word, such as one of white space alone, is a unit by itself.
    """
    positions = torch.arange(batch.width, device=batch.ids.device).expand_as(batch.ids)
    if choose(unit, get_args(Unit), "unit") == "token":
        return torch.where(batch.content, batch.content.cumsum(1) - 1, -1)
    if batch.words is None:
        raise BadInput("this batch does not know its words; make it with model.batch(model.encode(texts))")
    keys = torch.where(batch.words < 0, batch.width + positions, batch.words)
    found = [_counted(k, c) for k, c in zip(keys.tolist(), batch.content.tolist(), strict=True)]
    return torch.tensor(found, device=batch.ids.device)


def _counted(keys: Sequence[int], counts: Sequence[bool]) -> list[int]:
    """Keys renumbered in the order in which they first come."""
    known: dict[int, int] = {}
    return [known.setdefault(key, len(known)) if counted else -1 for key, counted in zip(keys, counts, strict=True)]


def sizes(units: Int[Tensor, "b t"]) -> Float[Tensor, "b t"]:
    """How many tokens each token's unit has; 1 for tokens of none."""
    counted = torch.zeros(units.shape, device=units.device)
    counted.scatter_add_(1, units.clamp(min=0), (units >= 0).float())
    return torch.where(units >= 0, counted.gather(1, units.clamp(min=0)), 1)


def spread(units: Int[Tensor, "b t"], scores: Sequence[Float[Tensor, " _"]]) -> Float[Tensor, "b t"]:
    """Scores of units laid on their tokens, in equal shares."""
    laid = torch.nn.utils.rnn.pad_sequence(list(scores), batch_first=True).float().to(units.device)
    return torch.where(units >= 0, laid.gather(1, units.clamp(min=0)) / sizes(units), 0)


def windows(units: Int[Tensor, "b t"], window: int) -> Rows:
    """A copy for every place of a window that slides by one unit; a text shorter than the window is one place."""
    if window < 1:
        raise BadInput(f"window={window}: at least 1 token or word has to be erased at a time")
    counts = units.amax(1) + 1
    places = (counts - window + 1).clamp(min=1)
    text = torch.arange(len(units), device=units.device).repeat_interleave(places)
    first = torch.arange(len(text), device=units.device) - (places.cumsum(0) - places)[text]
    u = units[text]
    return Rows(text, (u >= first[:, None]) & (u < first[:, None] + window))


def coalitions(units: Int[Tensor, "b t"], kept: Sequence[Bool[Tensor, "_ _"]]) -> Rows:
    """A copy for every coalition of every text: the units that are not in it are erased."""
    text = torch.arange(len(units)).repeat_interleave(torch.tensor([len(z) for z in kept])).to(units.device)
    where = [~z.to(units.device)[:, u.clamp(min=0)] & (u >= 0) for z, u in zip(kept, units, strict=True)]
    return Rows(text, torch.cat(where))


def erased(model: Model, batch: Batch, target: Targets, rows: Rows, kind: str) -> Float[Tensor, " r"]:
    """The explained number of every copy. Copies are made when their pass comes, and packed across texts."""
    erase = eraser(model, kind)
    lengths = batch.mask.sum(1)[rows.text] - (rows.where.sum(1) if kind == "delete" else 0)
    values = torch.empty(len(rows.text), device=batch.ids.device)
    for group in pack(lengths.tolist(), model.budget):
        part = torch.tensor(group, device=batch.ids.device)
        text, where = rows.text[part], rows.where[part]
        end = int(batch.mask[text].sum(1).max())
        copies, embeddings = erase(batch.take(text).cut(slice(end)), where[:, :end])
        values[part] = target.take(text)(forward(model, copies, embeddings=embeddings).logits).float()
    return values


def occluded(
    model: Model, batch: Batch, target: Targets, rows: Rows, kind: str
) -> tuple[Float[Tensor, " b"], Float[Tensor, " r"]]:
    """The explained number of every text as it is, and of every copy."""
    if isinstance(model, SharesPrefix) and model.shares_prefix(batch):
        return _occluded_after_prefix(model, batch, target, rows, kind)
    if target.value is not None:
        return target.value.float(), erased(model, batch, target, rows, kind)
    every = torch.arange(len(batch), device=batch.ids.device)
    intact = torch.zeros_like(batch.mask)
    both = Rows(torch.cat([every, rows.text]), torch.cat([intact, rows.where]))
    values = erased(model, batch, target, both, kind)
    return values[: len(batch)], values[len(batch) :]


def _occluded_after_prefix(
    model: Model, batch: Batch, target: Targets, rows: Rows, kind: str
) -> tuple[Float[Tensor, " b"], Float[Tensor, " r"]]:
    """The same on a model that sees only what stands before: each copy is read from its first missing token on."""
    assert isinstance(model, SharesPrefix)
    device = batch.ids.device
    whole, values = torch.empty(len(batch), device=device), torch.empty(len(rows.text), device=device)
    erase, lengths = eraser(model, kind), batch.mask.sum(1)
    # After a deletion at the end there would be nothing left to read, so one token before it is read again.
    starts = (rows.where.int().argmax(1) - int(kind == "delete")).clamp(min=0)
    for group in pack(lengths.tolist(), model.budget):
        texts = torch.tensor(group, device=device)
        prefix = remember(model, batch.take(texts).cut(slice(int(lengths[texts].max()))))
        whole[texts] = target.take(texts)(prefix.logits).float()
        place = torch.full_like(lengths, -1).index_copy(0, texts, torch.arange(len(texts), device=device))
        mine = (place[rows.text] >= 0).nonzero()[:, 0]
        left = (lengths[rows.text] - starts)[mine].tolist()
        for width, block in blocks(left, lengths[rows.text[mine]].tolist(), model.budget):
            part = mine[block]
            text = rows.text[part]
            begin = (lengths[text] - width).clamp(min=0)
            rest, where = _endings(batch.take(text), rows.where[part], begin, width)
            rest, embeddings = erase(rest, where)
            found = resume(model, prefix, place[text], begin, rest, embeddings=embeddings)
            values[part] = target.take(text)(found.logits).float()
    return whole, values


def _endings(
    batch: Batch, where: Bool[Tensor, "r t"], begin: Int[Tensor, " r"], width: int
) -> tuple[Batch, Bool[Tensor, "r w"]]:
    """``width`` columns of every row, each row from its own beginning."""
    columns = (begin[:, None] + torch.arange(width, device=begin.device)).clamp(max=batch.width - 1)
    return batch.map(lambda tensor: tensor.gather(1, columns)), where.gather(1, columns)


def blocks(needed: Sequence[int], lengths: Sequence[int], budget: int) -> Iterator[tuple[int, list[int]]]:
    """Rows that are read together, with how many tokens of each are read: what the neediest among them needs.

    Every other row is read from an earlier token than it must be. Rows are added, neediest first, until the next would
    waste more than another pass costs.

    >>> list(blocks([100, 99, 98, 10], [100, 100, 100, 100], budget=1000))
    [(100, [0, 1, 2]), (10, [3])]
    """
    block: list[int] = []
    width = longest = useful = 0
    for row in sorted(range(len(needed)), key=lambda r: -needed[r]):
        count, longest = len(block) + 1, max(longest, lengths[row])
        tokens = count * width
        full = tokens > budget or count * longest > HELD * budget
        if block and (full or tokens - useful - needed[row] > OPENING):
            yield width, block
            block, useful, longest = [], 0, lengths[row]
        if not block:
            width = needed[row]
        block.append(row)
        useful += needed[row]
    yield width, block


def _subsets(n: int, samples: int, fewest: int, source: Generator) -> Bool[Tensor, "m u"]:
    """The whole text, then random coalitions: first how many units are missing, evenly from 1 on, then which."""
    missing = torch.randint(1, max(2, n - fewest + 1), (samples - 1, 1), generator=source)
    return torch.cat([torch.ones(1, n, dtype=torch.bool), _ranks(samples - 1, n, source) >= missing])


def _ranks(rows: int, n: int, source: Generator) -> Int[Tensor, "m u"]:
    """A random order of n units in every row."""
    return torch.rand(rows, n, generator=source).argsort(1).argsort(1)


def _nearness(z: Bool[Tensor, "m u"], width: float) -> Float[Tensor, " m"]:
    """π(z): the cosine of z and the whole text is √(share of units kept)."""
    distance = 100 * (1 - z.double().mean(1).sqrt())
    return (-distance.square() / (2 * width**2)).exp()


def _ridge(
    z: Bool[Tensor, "m u"], y: Float[Tensor, " m"], weights: Float[Tensor, " m"], alpha: float
) -> tuple[Float[Tensor, " u"], Float[Tensor, ""]]:
    """Weights of the fitted line, whose intercept is not penalised, and 1 − R²."""
    share = weights / weights.sum()
    x = z.to(y) - share @ z.to(y)
    t = y - share @ y
    normal = x.T @ (weights[:, None] * x) + alpha * torch.eye(x.shape[1]).to(y)
    w = torch.linalg.lstsq(normal, x.T @ (weights * t)).solution
    left, spread_of_y = share @ (t - x @ w).square(), share @ t.square()
    return w, torch.where(spread_of_y > 0, left / spread_of_y, 0)


def _shapley_plan(n: int, samples: int, source: Generator) -> tuple[Bool[Tensor, "m u"], Float[Tensor, " m"]]:
    """Coalitions with their weights. All those of one size together weigh (n − 1) / (s (n − s))."""
    mass = {s: (n - 1) / (s * (n - s)) for s in range(1, n)}
    kept, weights, left = [torch.zeros(0, n, dtype=torch.bool)], [torch.zeros(0)], samples
    for s in range(1, n // 2 + 1):
        both = {s, n - s}
        if comb(n, s) * len(both) > left:
            break
        for size in both:
            kept.append(_all_of_size(n, size))
            weights.append(torch.full((comb(n, s),), mass.pop(size) / comb(n, s), dtype=torch.float64))
        left -= comb(n, s) * len(both)
    if mass and left >= 2:
        z, times = _drawn(n, mass, left // 2, source)
        kept.append(z)
        weights.append(times.double() * sum(mass.values()) / times.sum())
    return torch.cat(kept), torch.cat(weights).double()


def _ends(n: int) -> Bool[Tensor, "2 u"]:
    """Everything, and nothing."""
    return torch.tensor([[True], [False]]).expand(2, n)


def _all_of_size(n: int, size: int) -> Bool[Tensor, "m u"]:
    chosen = torch.tensor(list(combinations(range(n), size)))
    return torch.zeros(len(chosen), n, dtype=torch.bool).scatter_(1, chosen, value=True)


def _drawn(
    n: int, mass: dict[int, float], pairs: int, source: Generator
) -> tuple[Bool[Tensor, "m u"], Int[Tensor, " m"]]:
    """Random coalitions of these sizes with their complements; one that came up twice is kept once and counted."""
    known, weight = torch.tensor(list(mass)), torch.tensor(list(mass.values()))
    size = known[torch.multinomial(weight, pairs, replacement=True, generator=source)]
    z = _ranks(pairs, n, source) < size[:, None]
    found, times = torch.cat([z, ~z]).unique(dim=0, return_counts=True)
    return found, times


def _constrained(
    z: Bool[Tensor, "m u"],
    weights: Float[Tensor, " m"],
    y: Float[Tensor, " m"],
    whole: Float[Tensor, ""],
    nothing: Float[Tensor, ""],
) -> Float[Tensor, " u"]:
    """argmin_φ Σ_z w_z (y_z − f(∅) − φ·z)² such that Σφ = f(x) − f(∅).

    φ = (f(x) − f(∅)) / n + u, where u sums to 0; centred columns make the shortest solution such a u.
    """
    even = (whole - nothing) / z.shape[1]
    x = z.to(y) - z.to(y).mean(1, keepdim=True)
    rest = y - nothing - z.to(y).sum(1) * even
    u = torch.linalg.pinv(x.T @ (weights[:, None] * x), hermitian=True) @ (x.T @ (weights * rest))
    return even + u - u.mean()
