"""Integrals over [0, 1]: fixed rules, and a spline that asks for more nodes where its integrand bends.

Everything here is a pure function of numbers. Columns are the tokens of one text, integrated at the same nodes.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from salience.errors import BadInput, choose

Rule = Literal["gauss_legendre", "midpoint", "trapezoid", "left", "right"]
RULES = ("gauss_legendre", "midpoint", "trapezoid", "left", "right")

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
    """The integrand g at the nodes seen so far, and the error expected of its spline's integral on each interval."""

    alphas: Float[ndarray, " n"]
    values: Float[ndarray, "n t"]
    errors: Float[ndarray, "m t"]

    @property
    def integral(self) -> Float[ndarray, " t"]:
        """∫ g: on an interval of width h the spline's integral is h (g₀ + g₁) / 2 − h³ (g₀″ + g₁″) / 24."""
        h = np.diff(self.alphas)[:, None]
        return (h * _sums(self.values) / 2 - h**3 * _sums(curvatures(self.alphas, self.values)) / 24).sum(0)

    @property
    def error(self) -> float:
        """The largest column's expected error; those of the intervals, whose signs are independent, add in squares."""
        return float(np.sqrt((self.errors**2).sum(0)).max())

    @property
    def scale(self) -> float:
        """The largest column's integral, which the tolerance is measured by."""
        return float(np.abs(self.integral).max())


def curve(values: Float[ndarray, "n t"]) -> Curve:
    """A curve from its values at the FIRST nodes: every other one is used to see how well the rest foretold it."""
    coarse = Curve(FIRST[::2], values[::2], np.zeros((len(FIRST) // 2, values.shape[1])))
    return refined(coarse, np.arange(len(FIRST) // 2), values[1::2])


def refined(seen: Curve, intervals: ndarray, found: Float[ndarray, "k t"]) -> Curve:
    """The curve with some of its intervals halved, given g at their midpoints.

    Where the spline missed the new value by d on an interval of width h, its error there was about a parabola over
    the interval, of area 2/3 h d. Halving cuts d by 4 at the least wherever g has a second derivative (by 16 where it
    is smooth), which leaves each half with 2/3 · h/2 · d/4 = h d / 12.
    """
    h = np.diff(seen.alphas)[intervals, None]
    expected = h * np.abs(found - between(seen)[intervals]) / 12
    errors = seen.errors.copy()
    errors[intervals] = expected
    return Curve(
        np.insert(seen.alphas, intervals + 1, midpoints(seen)[intervals]),
        np.insert(seen.values, intervals + 1, found, axis=0),
        np.insert(errors, intervals, expected, axis=0),
    )


def unsettled(seen: Curve, tolerance: float, most: int) -> ndarray:
    """The intervals to halve next: none once the error is tolerable or ``most`` nodes are used.

    Otherwise those with at least half the error of the worst, the worst first when there is no room for all.
    """
    room = most - len(seen.alphas)
    if room < 1 or seen.error <= tolerance * seen.scale:
        return np.array([], dtype=int)
    worst = seen.errors.max(1)
    chosen = np.flatnonzero(worst >= worst.max() / 2)
    return np.sort(chosen[np.argsort(-worst[chosen], kind="stable")][:room])


def midpoints(seen: Curve) -> Float[ndarray, " m"]:
    """The middle of every interval."""
    return _sums(seen.alphas) / 2


def between(seen: Curve) -> Float[ndarray, "m t"]:
    """The spline at the middle of every interval: (g₀ + g₁) / 2 − h² (g₀″ + g₁″) / 16."""
    h = np.diff(seen.alphas)[:, None]
    return _sums(seen.values) / 2 - h**2 * _sums(curvatures(seen.alphas, seen.values)) / 16


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
