"""Shapley and Owen values of one text as games: generators that yield coalitions and receive f of each.

Everything here is a pure function of numbers, independent of any model, so the games of many texts can run together.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import combinations, count
from math import ceil, comb
from statistics import NormalDist

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from salience.errors import BadInput
from salience.methods.perturbation import ranks
from salience.methods.trees import Tree


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """The result of a game: the value of every unit, and f of all units and of none, whose difference they share."""

    phi: Float[Tensor, " u"]
    whole: Float[Tensor, ""]
    nothing: Float[Tensor, ""]
    evals: int
    """How often f was evaluated."""
    error: float = 0.0
    """The estimated error of the worst value, if there is an estimate."""


Game = Generator[Bool[Tensor, "m u"], Float[Tensor, " m"], Shares]
"""Yields coalitions of kept units, receives f of each, and returns the value of every unit."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A cluster T of a tree that distributes f(S ∪ T) − f(S), with a weight. S is a coalition, as a bit mask."""

    cluster: int
    S: int
    low: float
    high: float
    weight: float

    @property
    def gain(self) -> float:
        return (self.high - self.low) * self.weight


AT_ONCE = 3
"""How many parts are split before they are ranked again; as in the package shap."""


def owen(tree: Tree, max_evals: int) -> Game:
    """Owen values of a tree: parts are split, those with the largest gain first, until only leaves are left."""
    n, members = tree.leaves, tree.members
    whole, nothing = yield _ends(n)
    credit = torch.zeros(len(members), dtype=torch.float64)
    waiting: list[tuple[float, int, _Part]] = []
    fresh = [_Part(tree.root, 0, float(nothing), float(whole), 1.0)] if n else []
    # If the budget allows all splits, their order does not matter, and whole levels share passes.
    at_once = tree.splits if 2 * tree.splits <= max_evals - 2 else AT_ONCE
    evals, number = 2, count()
    while True:
        for part in fresh:
            if part.cluster < n:
                credit[part.cluster] += part.gain
            else:
                heappush(waiting, (-abs(part.gain), next(number), part))
        affordable = (max_evals - evals + 1) // 2
        parts = [heappop(waiting)[-1] for _ in range(min(len(waiting), at_once, affordable))]
        if not parts:
            break
        halves = [(part, *tree.children[part.cluster - n]) for part in parts]
        y = yield _kept([part.S | members[half] for part, *both in halves for half in both], n)
        evals += len(y)
        fresh = [
            new
            for (part, left, right), (f_l, f_r) in zip(halves, y.view(-1, 2).tolist(), strict=True)
            for new in _split(part, (left, members[left], f_l), (right, members[right], f_r))
        ]
    for _, _, part in waiting:
        credit[part.cluster] += part.gain
    inside = _kept(members, n).double()
    return Shares((credit / inside.sum(1)) @ inside, whole, nothing, evals)


def _split(part: _Part, left: tuple[int, int, float], right: tuple[int, int, float]) -> Iterator[_Part]:
    """Take the halves in both orders: L gets the mean of f(S ∪ L) − f(S) and f(S ∪ L ∪ R) − f(S ∪ R), R likewise."""
    for (half, _, f), (_, other, f_other) in ((left, right), (right, left)):
        yield _Part(half, part.S, part.low, f, part.weight / 2)
        yield _Part(half, part.S | other, f_other, part.high, part.weight / 2)


def _kept(coalitions: Sequence[int], n: int) -> Bool[Tensor, "m u"]:
    """Convert bit masks to coalitions.

    >>> _kept([5], 3)
    tensor([[ True, False,  True]])
    """
    size = n // 8 + 1
    packed = np.frombuffer(b"".join(c.to_bytes(size, "little") for c in coalitions), dtype=np.uint8)
    return torch.from_numpy(np.unpackbits(packed.reshape(-1, size), axis=1, count=n, bitorder="little")).bool()


def fixed(n: int, samples: int, rng: torch.Generator) -> Game:
    """Shapley values from a fixed number of coalitions, all evaluated at once."""
    z, weights = _shapley_plan(n, samples, rng)
    y = yield torch.cat([_ends(n), z])
    return Shares(_constrained(z, weights, y[2:], y[0], y[1]), y[0], y[1], len(y))


FIRST = 64
"""The number of pairs to start with, unless twice the number of units is more."""
CONFIDENCE = 0.95
ROUNDINGS = 4
"""The error of a score that is accepted as rounding, in units of one number's rounding error."""


@dataclass(frozen=True, slots=True, eq=False)
class _Stratum:
    """Distinct coalitions of one size in random order. Each represents itself and its complement.

    There are ``pairs`` of that size, with a total weight of ``mass``; ``z`` holds as many as may be used.
    """

    z: Bool[Tensor, "k u"]
    pairs: int
    mass: float


def adaptive(n: int, tolerance: float, samples: int, rng: torch.Generator, digits: float = 0.0) -> Game:
    """Shapley values from as many pairs of a coalition and its complement as the tolerance requires.

    ``digits`` is the relative rounding error of the numbers, which more coalitions cannot reduce; an error of a few
    times that is accepted.
    """
    strata = _strata(n, samples // 2, rng)
    sizes = [(len(s.z), s.mass) for s in strata]
    whole, nothing = yield _ends(n)
    rounding = ROUNDINGS * digits * float(max(abs(whole), abs(nothing)))
    halves = [torch.zeros(0, dtype=torch.float64) for _ in strata]
    phi, error, used, wanted = (whole - nothing).expand(n), 0.0, 0, max(FIRST, 2 * n)
    while used < sum(len(s.z) for s in strata):
        new = [s.z[len(t) : k] for s, t, k in zip(strata, halves, _allotted(sizes, wanted), strict=True)]
        z = torch.cat(new)
        y, complements = (yield torch.cat([z, ~z])).chunk(2)
        fresh = ((y - complements) / 2).split([len(z) for z in new])
        halves = [torch.cat(both) for both in zip(halves, fresh, strict=True)]
        used = sum(map(len, halves))
        phi, error = _fitted(strata, halves, whole - nothing)
        enough = max(tolerance * float(phi.abs().max()), rounding)
        if error <= enough:
            break
        # Errors fall with the square root of the number of pairs. First estimates are rough, so growth is limited.
        wanted = ceil(used * min(2.0, max(1.1, (error / max(enough, error / 2)) ** 2)))
    return Shares(phi, whole, nothing, 2 + 2 * used, error)


def _strata(n: int, most: int, rng: torch.Generator) -> list[_Stratum]:
    """The sizes up to half of the units, each with its share of the ``most`` pairs in total."""
    sizes = range(1, n // 2 + 1)
    # At half of the units, a coalition and its complement have the same size: half as many pairs, half the weight.
    both = [1 if 2 * s == n else 2 for s in sizes]
    empty = [
        _Stratum(torch.zeros(0, n, dtype=torch.bool), comb(n, s) * b // 2, b * (n - 1) / (s * (n - s)))
        for s, b in zip(sizes, both, strict=True)
    ]
    if most <= n and most < sum(stratum.pairs for stratum in empty):
        raise BadInput(
            f"max_samples={2 * most} is too few to know the error of {n} scores; use at least {2 * n + 2}, or set a "
            "fixed number with samples"
        )
    shares = _allotted([(stratum.pairs, stratum.mass) for stratum in empty], most)
    return [replace(stratum, z=_distinct(n, s, k, rng)) for s, stratum, k in zip(sizes, empty, shares, strict=True)]


def _distinct(n: int, size: int, wanted: int, rng: torch.Generator) -> Bool[Tensor, "k u"]:
    """Draw distinct random coalitions of one size, at most one of each pair of complements."""
    seen: dict[tuple[bool, ...], None] = {}
    while len(seen) < wanted:
        z = ranks(wanted, n, rng) < size
        # Where both of a pair have the same size, the one without the first unit represents the pair.
        z = z ^ z[:, :1] if 2 * size == n else z
        seen |= dict.fromkeys(map(tuple, z.tolist()))
    return torch.tensor(list(seen)[:wanted], dtype=torch.bool).view(-1, n)


def _allotted(strata: Sequence[tuple[int, float]], pairs: int) -> list[int]:
    """The number of pairs of each size: proportional to its mass, at least one, at most all; about ``pairs`` in total.

    A larger total never reduces the number for any size.

    >>> _allotted([(4, 2.0), (6, 1.0), (1000, 1.0)], 20)
    [4, 6, 10]
    """
    most, mass = np.array([min(count, 2**40) for count, _ in strata]), np.array([mass for _, mass in strata])

    def at(level: float) -> ndarray:
        return np.minimum(most, np.maximum(1, np.floor(level * mass))).astype(int)

    low, high = 0.0, float(max(pairs, 1)) / mass.min() if len(mass) else 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle).sum() <= pairs else (low, middle)
    return at(low).tolist()


def _fitted(
    strata: Sequence[_Stratum], halves: Sequence[Float[Tensor, " _"]], total: Float[Tensor, ""]
) -> tuple[Float[Tensor, " u"], float]:
    """Shapley values from half of f(S) − f(N \\ S) of the first pairs of each size, and the error of the worst value.

    This is :func:`_constrained` for pairs: a complement's centred row is −x, so only the odd half of y counts.
    Pair p changes the solution by w_p r_p P x_p, where r is its residual; the squares of these add up to the variance,
    reduced for a size of which many pairs are known. The error is the worst of n, hence Bonferroni's quantile.
    """
    known = [len(t) for t in halves]
    z = torch.cat([s.z[:k] for s, k in zip(strata, known, strict=True)]).double()
    each = [(s.mass / max(k, 1), 1 - k / s.pairs) for s, k in zip(strata, known, strict=True)]
    w, unknown = torch.tensor(each, dtype=torch.float64).repeat_interleave(torch.tensor(known), 0).unbind(1)
    m, n = z.shape
    x, t = z - z.mean(1, keepdim=True), torch.cat(list(halves)) - (z.sum(1) - n / 2) * total / n
    P = torch.linalg.pinv(x.T @ (w[:, None] * x) + 1 / n, rtol=SINGULAR, hermitian=True)
    u = P @ (x.T @ (w * t))
    moves = (w * (t - x @ u))[:, None] * x @ P
    variance = (unknown[:, None] * moves.square()).sum(0) * m / max(1, m - n + 1)
    z_n = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2 / n)
    return total / n + u, float(z_n * variance.max().sqrt())


def _shapley_plan(n: int, samples: int, rng: torch.Generator) -> tuple[Bool[Tensor, "m u"], Float[Tensor, " m"]]:
    """Coalitions with their weights. The total weight of each size is (n − 1) / (s (n − s))."""
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
        z, times = _drawn(n, mass, left // 2, rng)
        kept.append(z)
        weights.append(times.double() * sum(mass.values()) / times.sum())
    return torch.cat(kept), torch.cat(weights).double()


def _ends(n: int) -> Bool[Tensor, "2 u"]:
    """The coalition of all units, and the empty one."""
    return torch.tensor([[True], [False]]).expand(2, n)


def _all_of_size(n: int, size: int) -> Bool[Tensor, "m u"]:
    chosen = torch.tensor(list(combinations(range(n), size)))
    return torch.zeros(len(chosen), n, dtype=torch.bool).scatter_(1, chosen, value=True)


def _drawn(
    n: int, mass: dict[int, float], pairs: int, rng: torch.Generator
) -> tuple[Bool[Tensor, "m u"], Int[Tensor, " m"]]:
    """Draw random coalitions of these sizes with their complements; returns the distinct ones and their counts."""
    known, weight = torch.tensor(list(mass)), torch.tensor(list(mass.values()))
    size = known[torch.multinomial(weight, pairs, replacement=True, generator=rng)]
    z = ranks(pairs, n, rng) < size[:, None]
    distinct, counts = torch.cat([z, ~z]).unique(dim=0, return_counts=True)
    return distinct, counts


SINGULAR = 1e-9
"""Eigenvalues below this fraction of the largest are rounding; those of a solvable problem are far larger."""


def _constrained(
    z: Bool[Tensor, "m u"],
    weights: Float[Tensor, " m"],
    y: Float[Tensor, " m"],
    whole: Float[Tensor, ""],
    nothing: Float[Tensor, ""],
) -> Float[Tensor, " u"]:
    """argmin_φ Σ_z w_z (y_z − f(∅) − φ·z)² such that Σφ = f(x) − f(∅).

    φ = (f(x) − f(∅)) / n + u, where u sums to 0. Centred rows do not determine the sum of u: adding 1 1ᵀ / n keeps it
    at 0. The matrix is then singular only if there are too few coalitions, and u is the solution of smallest norm.
    """
    even = (whole - nothing) / z.shape[1]
    x = z.to(y) - z.to(y).mean(1, keepdim=True)
    rest = y - nothing - z.to(y).sum(1) * even
    normal = x.T @ (weights[:, None] * x) + 1 / z.shape[1]
    return even + torch.linalg.pinv(normal, rtol=SINGULAR, hermitian=True) @ (x.T @ (weights * rest))
