"""Interactions of the pairs of one text as games: generators that yield coalitions and receive f of each.

F(S) is f of the text in which only the units of S are kept, and δ_ij F(S) = F(S ∪ ij) − F(S ∪ i) − F(S ∪ j) + F(S).
Everything here is a pure function of numbers, independent of any model, so the games of many texts can run together.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb, sqrt
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from scipy.special import stdtrit
from torch import Tensor

EXACT = 12
"""The most units of a text of which all coalitions are evaluated: 4,096 for 12 units."""

ORDERS = 16
"""The random orders for longer texts."""

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, eq=False)
class Pairwise:
    """The interactions of all pairs of units of one text.

    ``matrix`` is symmetric and 0 on its diagonal; an entry belongs to the pair as a whole. ``main`` is the effect of
    each unit by itself, as the method defines it. ``scores`` shares every interaction equally between the two units,
    which leaves one score per unit.
    """

    matrix: Float[Tensor, "u u"]
    main: Float[Tensor, " u"]
    scores: Float[Tensor, " u"]
    gaps: Mapping[str, float] = field(default_factory=dict[str, float])
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    groups: tuple[tuple[tuple[int, ...], float], ...] = ()
    """Units that belong together with their joint effect, if the method forms groups."""
    signed: bool = True
    """Whether interactions have a sign, instead of only a strength."""


PairGame = Generator[Bool[Tensor, "m u"], Float[Tensor, " m"], Pairwise]
"""Yields coalitions of kept units, receives f of each, and returns the interactions of all pairs."""

Index = Literal["taylor", "shapley"]


# ------------------------------------------------------------------------------------------------- pairs in one context


def occluded(n: int) -> PairGame:
    """I_ij = F(N) − F(N \\ i) − F(N \\ j) + F(N \\ ij). The main effect is the occlusion score F(N) − F(N \\ i).

    That score contains all interactions of the unit in full, so sharing them between two units takes half of each off.
    """
    y = yield torch.cat([torch.ones(1, n, dtype=torch.bool), ~_single(n), ~_double(n)])
    M = _mixed(n, y)
    main = y[0] - y[1 : n + 1]
    return Pairwise(M, main, main - M.sum(1) / 2, settings={"evals": len(y)})


def archipelago_game(n: int, top: int) -> PairGame:
    """Strengths ½ δ_ij F(∅)² + ½ δ_ij F(N \\ ij)²; the ``top`` pairs are merged to groups, with F(S) − F(∅) each."""
    inner = torch.cat([torch.zeros(1, n, dtype=torch.bool), _single(n), _double(n)])
    y, complements = (yield torch.cat([inner, ~inner])).chunk(2)
    strength = (_mixed(n, y).square() + _mixed(n, complements).square()) / 2
    main = y[1 : n + 1] - y[0]
    groups = merged(strength, top)
    joint = (yield _members(groups, n)) - y[0] if groups else y[:0]
    effects = tuple(zip(groups, joint.tolist(), strict=True))
    scores = main.clone()
    for units, effect in effects:
        scores[list(units)] = effect / len(units)
    gaps = {"additivity": float(scores.sum() - (complements[0] - y[0]))}
    evals = 2 * len(inner) + len(groups)
    return Pairwise(strength, main, scores, gaps, {"evals": evals, "top": top}, effects, signed=False)


def merged(strength: Float[Tensor, "u u"], top: int) -> tuple[tuple[int, ...], ...]:
    """Join the strongest pairs that share a unit. Pairs without any interaction are never joined.

    >>> merged(torch.tensor([[0.0, 3, 0, 0], [3, 0, 2, 0], [0, 2, 0, 1], [0, 0, 1, 0]]), top=2)
    ((0, 1, 2),)
    """
    first, second = torch.triu_indices(len(strength), len(strength), 1)
    ranked = strength[first, second].argsort(descending=True, stable=True)[:top]
    groups: list[set[int]] = []
    for i, j in zip(first[ranked].tolist(), second[ranked].tolist(), strict=True):
        if strength[i, j] > 0:
            joined = [g for g in groups if g & {i, j}]
            groups = [g for g in groups if g not in joined] + [set[int]({i, j}).union(*joined)]
    return tuple(sorted(tuple(sorted(g)) for g in groups))


def _single(n: int) -> Bool[Tensor, "u u"]:
    return torch.eye(n, dtype=torch.bool)


def _double(n: int) -> Bool[Tensor, "p u"]:
    i, j = torch.triu_indices(n, n, 1)
    return _single(n)[i] | _single(n)[j]


def _members(groups: Sequence[Sequence[int]], n: int) -> Bool[Tensor, "g u"]:
    return torch.tensor([[unit in group for unit in range(n)] for group in groups], dtype=torch.bool)


def _mixed(n: int, y: Float[Tensor, " m"]) -> Float[Tensor, "u u"]:
    """The second differences of all pairs, given f without a change, with one unit changed, and with two."""
    i, j = torch.triu_indices(n, n, 1)
    one, two = y[1 : n + 1], y[n + 1 :]
    M = y.new_zeros(n, n)
    M[i, j] = y[0] - one[i] - one[j] + two
    return M + M.T


# --------------------------------------------------------------------------------------------- pairs in every context


def index_game(n: int, index: Index, orders: int | None, rng: torch.Generator) -> PairGame:
    """An index exactly if there are few units and no number of random orders is given, otherwise from such orders."""
    if orders is None and n <= EXACT:
        return enumerated(n, index)
    return sampled(n, index, orders or ORDERS, rng)


def enumerated(n: int, index: Index) -> PairGame:
    """Both indices exactly, from all 2ⁿ coalitions.

    Shapley-Taylor: I_ij = 2/n Σ_S δ_ij F(S) / C(n − 1, |S|) with the main effects F(i) − F(∅).
    Shapley interaction: I_ij = 1/(n − 1) Σ_S δ_ij F(S) / C(n − 2, |S|), beside the Shapley values.
    """
    codes = torch.arange(2**n)
    y = yield (codes[:, None] >> torch.arange(n) & 1).bool()
    cube, pairs = y.view([2] * n), y.new_zeros(n, n)
    weights = [2 / n / comb(n - 1, s) if index == "taylor" else 1 / (n - 1) / comb(n - 2, s) for s in range(n - 1)]
    for i, j in torch.triu_indices(n, n, 1).T.tolist():
        # The last dimension belongs to the lowest bit.
        corners = cube.movedim((n - 1 - i, n - 1 - j), (0, 1)).reshape(2, 2, -1)
        pairs[i, j] = _by_size(corners[1, 1] - corners[1, 0] - corners[0, 1] + corners[0, 0], weights)
    M = pairs + pairs.T
    alone = y[2 ** torch.arange(n)] - y[0]
    values = alone if index == "taylor" else _shapley_values(cube)
    return _complete(index, M, values, y[-1] - y[0], {"evals": len(y)})


def _by_size(x: Float[Tensor, " m"], weights: Sequence[float]) -> Float[Tensor, ""]:
    """The sum of x over all coalitions of some units, weighted by their size."""
    codes, size = torch.arange(len(x)), torch.zeros(len(x), dtype=torch.long)
    for bit in range(len(weights)):
        size += codes >> bit & 1
    return torch.tensor(weights, dtype=x.dtype)[size] @ x


def _shapley_values(cube: Float[Tensor, "..."]) -> Float[Tensor, " u"]:
    """φ_i = 1/n Σ_S (F(S ∪ i) − F(S)) / C(n − 1, |S|)."""
    n = cube.dim()
    weights = [1 / n / comb(n - 1, s) for s in range(n)]
    sides = [cube.movedim(n - 1 - i, 0).reshape(2, -1) for i in range(n)]
    return torch.stack([_by_size(added - without, weights) for without, added in sides])


def sampled(n: int, index: Index, orders: int, rng: torch.Generator) -> PairGame:
    """Both indices from random orders of the units, every other one the reverse of the one before it.

    In a random order, let S be the units before the earlier of i and j: δ_ij F(S) has the Shapley-Taylor index as its
    mean. If S is instead all units before the later one, without i and j, the sizes of S that were rare become
    frequent; the mean of both has every size equally often, and so the Shapley interaction index as its mean.

    F is evaluated at every prefix P of an order, and at P with one unit added or removed: F(P ⊕ u).
    """
    samples: list[Float[Tensor, "u u"]] = []
    gains: list[Float[Tensor, " u"]] = []
    # Effects of single units are part of the first index, so they must be exact.
    y = yield torch.cat([torch.zeros(1, n, dtype=torch.bool), _single(n), torch.ones(1, n, dtype=torch.bool)])
    nothing, alone, whole = y[0], y[1:-1] - y[0], y[-1]
    for _ in range(orders // 2):
        order = torch.randperm(n, generator=rng)
        pair = (order, order.flip(0))
        changed = torch.cat([_prefixes(o, removed=index == "shapley") for o in pair])
        y = yield changed.flatten(0, 1)
        both = [_of_order(o, part, index) for o, part in zip(pair, y.view(2, n + 1, n + 1), strict=True)]
        samples.append(torch.stack([M for M, _ in both]).mean(0))
        gains.append(torch.stack([gain for _, gain in both]).mean(0))
    M = torch.stack(samples)
    values = alone if index == "taylor" else torch.stack(gains).mean(0)
    settings = {"orders": 2 * len(samples)}
    return _complete(index, M.mean(0), values, whole - nothing, settings, {"error": _error(M)})


def _prefixes(order: Int[Tensor, " u"], *, removed: bool) -> Bool[Tensor, "p q u"]:
    """Every prefix of an order, then that prefix with each unit added, or removed if that is needed too.

    Where nothing is needed, the prefix itself is repeated: equal coalitions are evaluated once.
    """
    n = len(order)
    prefix = torch.arange(n + 1)[:, None] > order.argsort()
    changed = prefix[:, None] ^ _single(n) if removed else prefix[:, None] | _single(n)
    return torch.cat([prefix[:, None], changed], 1)


def _of_order(
    order: Int[Tensor, " u"], y: Float[Tensor, "p q"], index: Index
) -> tuple[Float[Tensor, "u u"], Float[Tensor, " u"]]:
    """The interactions in one order, and what each unit adds to the units before it.

    The pth unit i adds g = F(P ∪ i) − F(P). With a later unit u added, it adds F(P ∪ i ∪ u) − F(P ∪ u), which is
    δ_iu F(P) more; with an earlier unit u removed, it adds δ_iu F(P \\ u) less.
    """
    n, place = len(order), order.argsort()
    gain, changed_gain = y[:, 0].diff(), y[:, 1:].diff(dim=0)
    side = (place[None] - torch.arange(n)[:, None]).sign()  # 1 for a later unit
    if index == "taylor":
        side = side.clamp(min=0)  # only the earlier of two units
    D = y.new_zeros(n, n)
    D[order] = side * (changed_gain - gain[:, None])
    adds = torch.zeros_like(gain).index_copy(0, order, gain)
    return (D + D.T) * (1.0 if index == "taylor" else 0.5), adds


def _error(samples: Float[Tensor, "k u u"]) -> float:
    """Half the width of the 95 % interval of the least certain interaction."""
    k = len(samples)
    return float(stdtrit(k - 1, 1 - (1 - CONFIDENCE) / 2) * samples.std(0).max() / sqrt(k))


def _complete(
    index: Index,
    M: Float[Tensor, "u u"],
    values: Float[Tensor, " u"],
    total: Float[Tensor, ""],
    settings: Mapping[str, object],
    gaps: Mapping[str, float] | None = None,
) -> Pairwise:
    """Interactions and main effects that add up to F(N) − F(∅), and the gap of that sum.

    Shapley values contain half of every interaction of a unit, so its main effect is what they leave.
    """
    main = values if index == "taylor" else values - M.sum(1) / 2
    gap = float(main.sum() + M.sum() / 2 - total)
    return Pairwise(M, main, main + M.sum(1) / 2, {"completeness": gap, **(gaps or {})}, settings)
