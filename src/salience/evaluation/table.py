"""The result of an evaluation: methods by metrics, with intervals, differences and controls."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from salience.core.frames import frame
from salience.core.stats import UNLIMITED, Difference, Estimate, Limits, differences, estimate
from salience.methods import CONTROLS
from salience.metrics.metric import Aspect, Better, Metric

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True)
class Cell:
    """The result of one method on one metric."""

    method: str
    metric: str
    aspect: Aspect
    better: Better
    estimate: Estimate
    against_random: Difference | None
    """The paired difference from ``random``; None for ``random`` itself."""
    against_best: Difference | None
    """The paired difference from the best method; None for the best method itself and for controls."""
    beaten_by: tuple[str, ...]
    """The methods that are significantly better; p is corrected for all comparisons in the table.

    Methods that are beaten by none are a confidence set: the best are among them in 95 % of evaluations.
    """
    beats_random: bool
    """Whether it is significantly better than ``random``; p is corrected for all comparisons in the table."""
    values: tuple[float, ...]
    """One value per text, NaN where the metric is undefined."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A table of methods by metrics, with everything it was computed from."""

    model: str
    texts: int
    truncated: int
    """The number of texts that were too long for the model. Only the part that the model read is measured."""
    ids: tuple[str, ...] = field(repr=False)
    methods: tuple[str, ...]
    """The methods in the order of the rows; the controls come last."""
    metrics: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell] = field(repr=False)
    """By method and metric."""
    curves: Mapping[str, Mapping[str, tuple[float, ...]]] = field(repr=False)
    """Mean curves by metric and method, over shares of tokens from 0 to 1."""
    gaps: Mapping[str, Mapping[str, Estimate]] = field(repr=False)
    """How far the scores deviate from what the theory of the method guarantees, by method and name of the gap."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    controls: tuple[str, ...] = CONTROLS
    """The rows that ignore the model."""

    @property
    def real(self) -> list[str]:
        """The methods that are not controls."""
        return [m for m in self.methods if m not in self.controls]

    def ahead(self, one: str, other: str, metric: str) -> bool:
        """Whether method ``one`` has a better mean than method ``other``."""
        a, b = self.cells[one, metric], self.cells[other, metric]
        lead = a.estimate.mean - b.estimate.mean
        return lead > 0 if a.better == "higher" else lead < 0

    def best(self, metric: str) -> str:
        """The method with the best mean; controls are not considered."""
        cells = [self.cells[m, metric] for m in self.real]
        return ranked({c.method: c.estimate for c in cells}, cells[0].better)[0]

    def __repr__(self) -> str:
        methods, metrics = ", ".join(self.real), ", ".join(self.metrics)
        return f"<evaluation of {self.model} on {self.texts} texts: {methods} by {metrics}>"

    def to_frame(self) -> "DataFrame":
        """Return a pandas DataFrame with one row per method and metric.

        >>> evaluation.to_frame().pivot(index="method", columns="metric", values="mean")    # doctest: +SKIP
        """
        cells = self.cells.values()
        estimates = [c.estimate for c in cells]
        named = {name: [getattr(c, name) for c in cells] for name in ("method", "metric", "aspect", "better")}
        numbers = {name: [getattr(e, name) for e in estimates] for name in ("mean", "low", "high", "n")}
        return frame({**named, **numbers, "beats_random": [c.beats_random for c in cells]})

    def _repr_html_(self) -> str:
        from salience.views.evaluation import fragment

        return fragment(self)


def ranked(estimates: Mapping[str, Estimate], better: Better) -> list[str]:
    """Names in the order of their means, the best first; those without a value last."""
    sign = 1 if better == "higher" else -1
    return sorted(estimates, key=lambda name: -sign * estimates[name].mean if estimates[name].n else inf)


# ------------------------------------------------------------------------------------------------------ its cells


def compared(
    names: Sequence[str],
    metrics: Sequence[Metric],
    values: Mapping[str, np.ndarray],
    limits: Mapping[str, Limits] | None = None,
    *,
    controls: Sequence[str] = CONTROLS,
    draws: int = 10_000,
    seed: int = 0,
) -> Iterator[Cell]:
    """The cells of a table, from the values of each metric (texts × methods) and their limits.

    All comparisons are tested together: every row with ``random``, and every pair of methods, on every metric. Since
    the best method is known only afterwards, all pairs count. Robustness is tested apart: a control ignores the model,
    so that it is perfectly robust, and comparing with it says nothing.
    """
    known = dict.fromkeys(values, UNLIMITED) | dict(limits or {})
    for robust in (False, True):
        group = [m for m in metrics if (m.aspect == "robustness") == robust]
        columns = {(m.name, name): values[m.name][:, i] for m in group for i, name in enumerate(names)}
        yield from _cells(names, [n for n in names if n not in controls], group, columns, known, draws, seed)


def _cells(
    names: Sequence[str],
    real: Sequence[str],
    metrics: Sequence[Metric],
    columns: Mapping[tuple[str, str], np.ndarray],
    limits: Mapping[str, Limits],
    draws: int,
    seed: int,
) -> Iterator[Cell]:
    estimates = {(m, name): estimate(column, limits[m]) for (m, name), column in columns.items()}
    best_first = {m.name: ranked({name: estimates[m.name, name] for name in real}, m.better) for m in metrics}
    pairs = [
        *((m.name, name, "random") for m in metrics for name in names if name != "random"),
        *((m.name, worse, better) for m in metrics for better, worse in combinations(best_first[m.name], 2)),
    ]
    gaps = [columns[m, a] - columns[m, b] for m, a, b in pairs]
    widest = [limits[m][1] - limits[m][0] for m, _, _ in pairs]
    tested = differences(gaps, [(-width, width) for width in widest], draws=draws, seed=seed)
    difference = dict(zip(pairs, tested, strict=True))
    for metric in metrics:
        for name in names:
            from_random = difference.get((metric.name, name, "random"))
            yield Cell(
                method=name,
                metric=metric.name,
                aspect=metric.aspect,
                better=metric.better,
                estimate=estimates[metric.name, name],
                against_random=from_random,
                against_best=difference.get((metric.name, name, best_first[metric.name][0])) if real else None,
                beaten_by=tuple(
                    a for a in real if _ahead(difference.get((metric.name, name, a)), WORSE[metric.better])
                ),
                beats_random=name in real and metric.aspect != "robustness" and _ahead(from_random, metric.better),
                values=tuple(columns[metric.name, name].tolist()),
            )


WORSE: dict[Better, Better] = {"higher": "lower", "lower": "higher"}


def _ahead(difference: Difference | None, better: Better) -> bool:
    return difference is not None and difference.clear and (difference.mean > 0) == (better == "higher")
