"""Integrals over [0, 1]: fixed rules, and a spline that asks for more nodes where it goes wrong.

Everything here is a pure function of numbers. Columns are the tokens of one text, integrated at the same nodes.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from salience.errors import BadInput, choose

Rule = Literal["gauss_legendre", "midpoint", "trapezoid", "left", "right"]
RULES = get_args(Rule)

ROUNDINGS = 4
"""How many roundings of one number the error of an integral may hold."""
FIRST = np.linspace(0, 1, 17)
"""The nodes that every curve begins with. Both ends are among them, so that f there comes with them."""


def fixed(rule: str, nodes: int) -> tuple[Float[ndarray, " n"], Float[ndarray, " n"]]:
    """Nodes on [0, 1] and their weights, which sum to 1."""
    choose(rule, RULES, "rule")
    if nodes < 1 + (rule == "trapezoid"):
        raise BadInput(f"nodes={nodes} is too few for the {rule} rule; it takes at least {1 + (rule == 'trapezoid')}")
    steps, even = np.arange(nodes), np.full(nodes, 1 / nodes)
    if rule == "midpoint":
        return (steps + 0.5) / nodes, even
    if rule == "left":
        return steps / nodes, even
    if rule == "right":
        return (steps + 1) / nodes, even
    if rule == "trapezoid":
        ends = np.where((steps == 0) | (steps == nodes - 1), 0.5, 1.0)
        return steps / (nodes - 1), ends / (nodes - 1)
    x, w = np.polynomial.legendre.leggauss(nodes)
    return (x + 1) / 2, w / 2


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The columns' slopes g at the nodes seen so far, and the height f that they climb together: f′ = Σ_t g_t.

    ``errors`` holds what is expected to be wrong with the spline's integral of each column on each interval.
    """

    alphas: Float[ndarray, " n"]
    slopes: Float[ndarray, "n t"]
    heights: Float[ndarray, " n"]
    errors: Float[ndarray, "m t"]

    @property
    def integral(self) -> Float[ndarray, " t"]:
        """∫ g of each column."""
        return self.pieces().sum(0)

    @property
    def error(self) -> float:
        """The expected error of the worst column. Signs differ between intervals, so that errors add in squares."""
        return float(np.hypot.reduce(np.c_[self.errors, self.missing()]).max())

    def pieces(self) -> Float[ndarray, "m t"]:
        """∫ g on each interval, by the spline: h (g₀ + g₁) / 2 − h³ (g₀″ + g₁″) / 24."""
        h = np.diff(self.alphas)[:, None]
        return h * _sums(self.slopes) / 2 - h**3 * _sums(curvatures(self.alphas, self.slopes)) / 24

    def missing(self) -> Float[ndarray, " m"]:
        """The error of a column on each interval, judged by how far all of them together miss the climb of f there.

        This is no estimate but a fact, and shows what stands between the nodes unseen; only who is to blame is open.
        If T columns err independently, each is off by 1/√T of the whole, and the worst by about three times that.
        """
        columns = max(1, np.count_nonzero(self.slopes.any(0)))
        return np.abs(self.pieces().sum(1) - np.diff(self.heights)) * min(1, 3 / np.sqrt(columns))


def curve(slopes: Float[ndarray, "n t"], heights: Float[ndarray, " n"]) -> Curve:
    """A curve seen at the FIRST nodes: every other one is used to see how well the rest foretold it."""
    coarse = Curve(FIRST[::2], slopes[::2], heights[::2], np.zeros((len(FIRST) // 2, slopes.shape[1])))
    return refined(coarse, np.arange(len(FIRST) // 2), slopes[1::2], heights[1::2])


def refined(seen: Curve, intervals: ndarray, slopes: Float[ndarray, "k t"], heights: Float[ndarray, " k"]) -> Curve:
    """The curve with some of its intervals halved, given g and f at their midpoints.

    Where the spline missed the new g by d on an interval of width h, its error there was about a parabola over the
    interval, of area 2/3 h d. A cubic spline's error falls with h⁴, so that halving cuts d by 16 and leaves each half
    with 2/3 · h/2 · d/16 = h d / 48. Where g is not that smooth, ``missing`` tells.
    """
    h = np.diff(seen.alphas)[intervals, None]
    expected = h * np.abs(slopes - between(seen)[intervals]) / 48
    errors = seen.errors.copy()
    errors[intervals] = expected
    return Curve(
        np.insert(seen.alphas, intervals + 1, midpoints(seen)[intervals]),
        np.insert(seen.slopes, intervals + 1, slopes, axis=0),
        np.insert(seen.heights, intervals + 1, heights),
        np.insert(errors, intervals, expected, axis=0),
    )


def unsettled(seen: Curve, tolerance: float, most: int, digits: float = 0.0) -> ndarray:
    """The intervals to halve next: none once the error is tolerable or ``most`` nodes are used.

    Otherwise those with at least half the error of the worst, the worst first when there is no room for all. Numbers
    are rounded by ``digits`` of their size, which no node would mend: an error of a few of these is tolerable, and
    nodes that lie no further apart see the same place.
    """
    room, largest = most - len(seen.alphas), np.abs(seen.integral).max()
    rounding = ROUNDINGS * digits * max(largest, np.abs(seen.heights).max())
    if room < 1 or seen.error <= max(tolerance * largest, rounding):
        return np.array([], dtype=int)
    worst = np.maximum(seen.errors.max(1), seen.missing()) * (np.diff(seen.alphas) > ROUNDINGS * digits)
    chosen = np.flatnonzero((worst > 0) & (worst >= worst.max() / 2))
    return np.sort(chosen[np.argsort(-worst[chosen], kind="stable")][:room])


def midpoints(seen: Curve) -> Float[ndarray, " m"]:
    """The middle of every interval."""
    return _sums(seen.alphas) / 2


def between(seen: Curve) -> Float[ndarray, "m t"]:
    """The spline at the middle of every interval: (g₀ + g₁) / 2 − h² (g₀″ + g₁″) / 16."""
    h = np.diff(seen.alphas)[:, None]
    return _sums(seen.slopes) / 2 - h**2 * _sums(curvatures(seen.alphas, seen.slopes)) / 16


def curvatures(alphas: Float[ndarray, " n"], values: Float[ndarray, "n t"]) -> Float[ndarray, "n t"]:
    """Second derivatives, at its nodes, of the cubic spline through the values ("not-a-knot" at both ends).

    On even nodes such a spline integrates like the trapezoid rule with the ends put right, and so converges as fast
    as that does on a smooth bump; unlike it, it allows more nodes in one place than in another.
    """
    h = np.diff(alphas)
    inner = np.arange(1, len(h))
    system, right = np.zeros((len(alphas), len(alphas))), np.zeros_like(values)
    system[inner, inner - 1], system[inner, inner + 1] = h[:-1], h[1:]
    system[inner, inner] = 2 * (h[:-1] + h[1:])
    system[0, :3] = h[1], -(h[0] + h[1]), h[0]
    system[-1, -3:] = h[-1], -(h[-2] + h[-1]), h[-2]
    right[1:-1] = 6 * np.diff(np.diff(values, axis=0) / h[:, None], axis=0)
    return np.linalg.solve(system, right)


def _sums(x: ndarray) -> ndarray:
    """Each entry plus its follower."""
    return x[:-1] + x[1:]
