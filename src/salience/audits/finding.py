"""The result of one test: a question, numbers per text, and what they say about attention."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from salience.core.shares import NO_BREAK, percent
from salience.core.stats import UNLIMITED, Estimate, Limits, estimate, share, table_interval, within

Verdict = Literal["explanation", "no explanation", "unclear"]
"""Whether a number is what it would be if attention were an explanation."""


Kind = Literal["number", "size", "share", "points"]

LIMITS: Mapping[Kind, Limits] = {"number": UNLIMITED, "size": (0, inf), "share": (0, 1), "points": (-1, 1)}
"""What the mean of each kind cannot exceed, nor can its interval."""

MARGIN = 0.02
"""The difference that counts as none: 2 points of accuracy or of weights to erase, 0.02 of τ or of comprehensiveness.

An interval that holds 0 says only that no difference was found; one within the margin says that there is none to speak
of. It is used where a test asks whether something does as well as something else.
"""


@dataclass(frozen=True, slots=True)
class Measure:
    """A number per text, with its mean and interval. NaN marks a text for which it is undefined."""

    name: str
    estimate: Estimate
    values: tuple[float, ...] = field(repr=False)
    kind: Kind = "number"
    """How it is written: a share as a percentage, a difference of shares in points. A size is never negative."""

    @classmethod
    def of(cls, name: str, values: ArrayLike, kind: Kind = "number") -> "Measure":
        numbers = np.asarray(values, dtype=float)
        return cls(name, estimate(numbers, LIMITS[kind]), tuple(numbers.tolist()), kind)

    @classmethod
    def share(cls, name: str, marks: ArrayLike, defined: ArrayLike | None = None) -> "Measure":
        """The share of texts with a mark, among those whose ``defined`` value is not NaN."""
        numbers = np.asarray(marks, dtype=float)
        numbers = numbers if defined is None else np.where(np.isnan(defined), np.nan, numbers)
        return cls(name, share(numbers), tuple(numbers.tolist()), "share")

    @classmethod
    def between(cls, name: str, a: ArrayLike, b: ArrayLike) -> "Measure":
        """The difference a − b of shares, in tables of (seeds × texts); its interval covers new texts and new seeds."""
        d = np.atleast_2d(np.asarray(a, dtype=float) - np.asarray(b, dtype=float))
        each = d.mean(0)
        defined = d[:, ~np.isnan(each)]
        mean = float(defined.mean())
        low, high = within(table_interval(defined), mean, (-1, 1))
        whole = Estimate(mean, float(low), float(high), defined.shape[1])
        return cls(name, whole, tuple(each.tolist()), "points")

    def __str__(self) -> str:
        """The mean and its interval: 62 % [53 %, 70 %], +6.9 points [+0.2, +14.6] or 0.431 [0.400, 0.460].

        Its spaces do not break, so that a line break divides no interval.
        """
        e = self.estimate
        mean = f"{self.mean} points" if self.kind == "points" and not np.isnan(e.mean) else self.mean
        if np.isnan(e.low):
            return mean.replace(" ", NO_BREAK)
        written = f"{mean} [{_written(e.low, self.kind)}, {_written(e.high, self.kind)}]"
        return written.replace(" ", NO_BREAK)

    @property
    def mean(self) -> str:
        """The mean alone; undefined if it is so for every text."""
        return "undefined" if np.isnan(self.estimate.mean) else _written(self.estimate.mean, self.kind)


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one test. The first measure is the one that the verdict rests on."""

    test: str
    question: str
    measures: tuple[Measure, ...]
    expected: str
    """What would be the case if attention were an explanation."""
    verdict: Verdict
    answer: str
    """The numbers in words."""
    source: str
    by_label: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    """Means of some measures for the texts of each predicted label."""

    def measure(self, name: str) -> Measure:
        return next(m for m in self.measures if m.name == name)


def _written(value: float, kind: Kind) -> str:
    if kind == "share":
        return percent(value)
    if kind == "points":
        return f"{round(100 * value, 1) + 0.0:+.1f}".replace("-", "−")
    return f"{round(value, 3) + 0.0:.3f}".replace("-", "−")  # adding 0 takes the sign from −0.000


def by_share(share: Estimate, *, more_is_explanation: bool) -> Verdict:
    """Whether most texts behave as they would if attention were an explanation; unclear if the interval holds ½."""
    return _verdict(share.low > 0.5, share.high < 0.5, more_is_explanation)


def by_difference(difference: Estimate, *, more_is_explanation: bool) -> Verdict:
    """Whether attention does better than what it is compared with; unclear if the interval holds 0."""
    return _verdict(difference.low > 0, difference.high < 0, more_is_explanation)


def as_well_as(difference: Estimate, *, more_is_explanation: bool) -> Verdict:
    """Whether attention does as well as what it is compared with."""
    holds = as_well(difference, more_is_better=more_is_explanation)
    return "unclear" if holds is None else "explanation" if holds else "no explanation"


def only_if_better(difference: Estimate) -> Verdict:
    """Whether attention − a substitute shows that attention is needed: not if the substitute does as well."""
    replaced = as_well(difference, more_is_better=False)
    return "unclear" if replaced is None else "no explanation" if replaced else "explanation"


def as_well(difference: Estimate, *, more_is_better: bool) -> bool | None:
    """Whether the first of two does as well as the second: better, or worse by less than the margin.

    It does not if it is significantly worse, and not only by less than the margin. None if neither is certain.
    No difference in any of enough texts, which has no interval, is no difference.
    """
    low, high = difference.bounds if difference.mean == 0 else (difference.low, difference.high)
    low, high = (low, high) if more_is_better else (-high, -low)
    return True if low > -MARGIN else False if high < 0 else None


def above_chance(verdict: Verdict, lead: Estimate) -> Verdict:
    """The verdict if attention leads over chance. Otherwise it does as well as something that finds nothing either."""
    return verdict if verdict != "explanation" or lead.bounds[0] > 0 else "unclear"


def _verdict(above: bool, below: bool, more_is_explanation: bool) -> Verdict:
    if not above and not below:
        return "unclear"
    return "explanation" if above == more_is_explanation else "no explanation"
