"""What an evaluation comes to: methods by metrics, with intervals, differences and controls."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from salience.stats import Difference, Estimate

CONTROLS = ("random", "uniform", "position")
"""Explanations that know nothing of the model. They are in every table."""

Better = Literal["higher", "lower"]
Aspect = Literal["faithfulness", "leave_one_out", "plausibility", "robustness"]
"""What a metric is about: what the model uses, what single tokens do, what people have marked, what holds still."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One method by one metric."""

    method: str
    metric: str
    aspect: Aspect
    better: Better
    estimate: Estimate
    against_random: Difference | None
    """None for the row of random itself."""
    against_best: Difference | None
    """None for the best method itself, and for controls."""
    beats_random: bool
    """Beyond doubt: with the p-value corrected for the number of methods."""
    values: tuple[float, ...]
    """A number for every text, NaN where it is undefined."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Methods by metrics, and what they rest on."""

    model: str
    texts: int
    truncated: int
    """Texts of which the model saw only a part, being too long for it. What it did not see is not measured."""
    ids: tuple[str, ...] = field(repr=False)
    methods: tuple[str, ...]
    """The controls are the last."""
    metrics: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell] = field(repr=False)
    """By method and metric."""
    curves: Mapping[str, Mapping[str, tuple[float, ...]]] = field(repr=False)
    """Mean curves by metric and method, from nothing to everything."""
    gaps: Mapping[str, Mapping[str, Estimate]] = field(repr=False)
    """How far methods miss what theory promises, by method and name of the gap."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)

    @property
    def real(self) -> list[str]:
        """The methods that are no controls."""
        return [m for m in self.methods if m not in CONTROLS]

    def ahead(self, one: str, other: str, metric: str) -> bool:
        """Whether the mean of the one is better than that of the other."""
        a, b = self.cells[one, metric], self.cells[other, metric]
        lead = a.estimate.mean - b.estimate.mean
        return lead > 0 if a.better == "higher" else lead < 0

    def best(self, metric: str) -> str:
        """The method with the best mean, controls left out."""
        cells = [self.cells[m, metric] for m in self.real]
        return best_of({c.method: c.estimate for c in cells}, cells[0].better)


def best_of(estimates: Mapping[str, Estimate], better: Better) -> str:
    """The name with the best mean."""
    sign = 1 if better == "higher" else -1
    return max(estimates, key=lambda name: sign * estimates[name].mean if estimates[name].n else -inf)
