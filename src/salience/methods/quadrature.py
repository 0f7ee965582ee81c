"""Integrals over [0, 1]: fixed rules, and an adaptive spline that adds nodes where its error is largest.

Everything here is a pure function of numbers. Columns are the tokens of one text, integrated at the same nodes.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from salience.errors import BadInput, choose

Rule = Literal["gauss_legendre", "midpoint", "trapezoid", "left", "right"]
QUADRATURE_RULES = get_args(Rule)

ROUNDINGS = 4
"""The error of an integral that is accepted as rounding, in units of one number's rounding error."""
FIRST = np.linspace(0, 1, 11)
"""The nodes that every curve starts with. They include both ends, so that f is known there."""
FIRST_GAIN, GAIN = 8, 16
"""What halving an interval divides the spline's error by: 2⁴ for a cubic spline, less while its nodes are few."""


def fixed(rule: str, nodes: int) -> tuple[Float[ndarray, " n"], Float[ndarray, " n"]]:
    """Return nodes on [0, 1] and their weights, which sum to 1."""
    choose(rule, QUADRATURE_RULES, "rule")
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
    """The slopes g of each column at the nodes evaluated so far, and the height f that they add up to: f′ = Σ_t g_t.

    ``errors`` is the typical error of the spline's integral of each column on each interval: an estimate, not a bound.
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
        """The typical error of the worst column. Signs differ between intervals, so errors add in squares."""
        return float(np.hypot.reduce(np.c_[self.errors, self.missing()]).max())

    def pieces(self) -> Float[ndarray, "m t"]:
        """∫ g of the spline on each interval: h (g₀ + g₁) / 2 − h³ (g₀″ + g₁″) / 24."""
        h = np.diff(self.alphas)[:, None]
        return h * _sums(self.slopes) / 2 - h**3 * _sums(curvatures(self.alphas, self.slopes)) / 24

    def missing(self) -> Float[ndarray, " m"]:
        """The error of a column on each interval, derived from the difference between their sum and the rise of f.

        The total error is exact, and so reveals what happens between the nodes; how it is divided among the columns is
        unknown. If the errors of T columns are independent, each has 1/√T of the total, and the worst about 3/√T.
        """
        columns = max(1, np.count_nonzero(self.slopes.any(0)))
        return np.abs(self.pieces().sum(1) - np.diff(self.heights)) * min(1, 3 / np.sqrt(columns))


def initial_curve(slopes: Float[ndarray, "n t"], heights: Float[ndarray, " n"]) -> Curve:
    """The curve at the FIRST nodes; every other node is used to measure how well the rest predict it."""
    coarse = Curve(FIRST[::2], slopes[::2], heights[::2], np.zeros((len(FIRST) // 2, slopes.shape[1])))
    return refine(coarse, np.arange(len(FIRST) // 2), slopes[1::2], heights[1::2], FIRST_GAIN)


def refine(
    curve: Curve, intervals: ndarray, slopes: Float[ndarray, "k t"], heights: Float[ndarray, " k"], gain: int = GAIN
) -> Curve:
    """Halve some intervals of the curve, given g and f at their midpoints.

    If the spline differs from the new g by d on an interval of width h, its error there was roughly a parabola over
    the interval, of area 2/3 h d. Halving divides d by the ``gain``, and so leaves each half with
    2/3 · h/2 · d/gain = h d / (3 gain). Where g is less smooth, ``missing`` shows it.
    """
    h = np.diff(curve.alphas)[intervals, None]
    expected = h * np.abs(slopes - spline_at_midpoints(curve)[intervals]) / (3 * gain)
    errors = curve.errors.copy()
    errors[intervals] = expected
    return Curve(
        np.insert(curve.alphas, intervals + 1, midpoints(curve)[intervals]),
        np.insert(curve.slopes, intervals + 1, slopes, axis=0),
        np.insert(curve.heights, intervals + 1, heights),
        np.insert(errors, intervals, expected, axis=0),
    )


def intervals_to_halve(curve: Curve, tolerance: float, most: int, digits: float = 0.0) -> ndarray:
    """Return the intervals to halve next: none once the error is within the tolerance or ``most`` nodes are used.

    Otherwise these are the intervals with at least half the error of the worst one, the worst first if not all fit.
    ``digits`` is the relative rounding error of the numbers, which more nodes cannot reduce: an error of a few times
    that is accepted, and intervals narrower than that are not halved.
    """
    room, largest = most - len(curve.alphas), np.abs(curve.integral).max()
    rounding = ROUNDINGS * digits * max(largest, np.abs(curve.heights).max())
    if room < 1 or curve.error <= max(tolerance * largest, rounding):
        return np.array([], dtype=int)
    worst = np.maximum(curve.errors.max(1), curve.missing()) * (np.diff(curve.alphas) > ROUNDINGS * digits)
    chosen = np.flatnonzero((worst > 0) & (worst >= worst.max() / 2))
    return np.sort(chosen[np.argsort(-worst[chosen], kind="stable")][:room])


def midpoints(curve: Curve) -> Float[ndarray, " m"]:
    """Return the midpoint of every interval."""
    return _sums(curve.alphas) / 2


def spline_at_midpoints(curve: Curve) -> Float[ndarray, "m t"]:
    """Evaluate the spline at the midpoint of every interval: (g₀ + g₁) / 2 − h² (g₀″ + g₁″) / 16."""
    h = np.diff(curve.alphas)[:, None]
    return _sums(curve.slopes) / 2 - h**2 * _sums(curvatures(curve.alphas, curve.slopes)) / 16


def curvatures(alphas: Float[ndarray, " n"], values: Float[ndarray, "n t"]) -> Float[ndarray, "n t"]:
    """Return the second derivatives at the nodes of the cubic spline through the values ("not-a-knot" at both ends).

    On evenly spaced nodes, such a spline integrates like the trapezoid rule with a correction at both ends, so it
    converges as fast as that rule on a smooth bump; unlike that rule, it allows uneven nodes.
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
    """Each entry plus the next one."""
    return x[:-1] + x[1:]
