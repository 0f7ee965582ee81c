"""Agreement between explanations of the same texts: between seeds of a model, or between methods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import nan
from pathlib import Path

import numpy as np

from salience.core.stats import Estimate, estimate
from salience.errors import BadInput
from salience.explanations.explanation import Explanation
from salience.metrics.agreement import kendall, overlap, spearman
from salience.runs.run import Run, open_run

MEASURES = {"spearman": spearman, "kendall": kendall, "overlap": overlap}
"""Rank correlations, 0 for unrelated scores, and the overlap of the top fifth of tokens."""

LIMITS = {"spearman": (-1, 1), "kendall": (-1, 1), "overlap": (0, 1)}
"""The smallest and the largest value of each measure."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How much explanations agree; each number is a mean over pairs, then over texts."""

    between: str
    """What is compared: ``runs`` or ``methods``."""
    runs: tuple[str, ...]
    texts: int
    compared: Mapping[str, Mapping[str, Estimate]]
    """Estimates by method, or by pair of methods, and by measure. Texts with different labels are not counted."""


def agreement(runs: Sequence[str | Path]) -> Agreement:
    """Compare each method between several runs or, given one run, its methods with each other."""
    if not runs:
        raise BadInput("there is no run to compare; name a run, or several")
    opened = [open_run(run) for run in runs]
    for run in opened:
        run.warn_unless_finished()
    rows = [run.by_id() for run in opened]
    shared = [name for name in rows[0] if all(name in other for other in rows)]
    if not shared:
        raise BadInput(f"no text is explained in all of {', '.join(map(str, runs))}; explain the same data")
    if len(runs) > 1:
        between, values = "runs", _between_runs(opened, rows, shared)
    else:
        between, values = "methods", _between_methods(opened[0], rows[0], shared)
    if all(np.isnan(table).all() for table in values.values()):
        raise BadInput(
            "no text is explained for the same label in two runs; explain one label in all of them (--target)"
        )
    compared = {
        name: {measure: estimate(column, LIMITS[measure]) for measure, column in zip(MEASURES, table.T, strict=True)}
        for name, table in values.items()
    }
    return Agreement(between, tuple(map(str, runs)), len(shared), compared)


ExplanationsById = Mapping[str, Sequence[Explanation]]


def _between_runs(
    opened: Sequence[Run], rows: Sequence[ExplanationsById], shared: Sequence[str]
) -> dict[str, np.ndarray]:
    methods = [m for m in opened[0].methods if all(m in run.methods for run in opened)]
    if not methods:
        raise BadInput("the runs have no method in common; explain the texts by the same method in all of them")
    values: dict[str, np.ndarray] = {}
    for method in methods:
        columns = [list(run.methods).index(method) for run in opened]
        each = [[of[name][column] for of, column in zip(rows, columns, strict=True)] for name in shared]
        values[method] = np.array([_mean_over_pairs(name, row) for name, row in zip(shared, each, strict=True)])
    return values


def _between_methods(run: Run, rows: ExplanationsById, shared: Sequence[str]) -> dict[str, np.ndarray]:
    pairs = list(combinations(enumerate(run.methods), 2))
    if not pairs:
        raise BadInput("the run has only one method; name a second run, or explain the texts by more methods")
    return {
        f"{one}, {other}": np.array([_compare(name, rows[name][a], rows[name][b]) for name in shared])
        for (a, one), (b, other) in pairs
    }


def _mean_over_pairs(name: str, row: Sequence[Explanation]) -> list[float]:
    """The mean over the pairs that explain the same label."""
    table = np.array([_compare(name, a, b) for a, b in combinations(row, 2)])
    known = table[~np.isnan(table[:, 0])]
    return known.mean(0).tolist() if len(known) else [nan] * len(MEASURES)


def _compare(name: str, a: Explanation, b: Explanation) -> list[float]:
    if a.text != b.text:
        raise BadInput(f"{name!r} is a different text in one of the runs; explain the same data in all of them")
    if a.tokens != b.tokens:
        raise BadInput(
            f"{name!r} has other tokens in one of the runs; scores can only be compared between models with the same "
            "tokenizer"
        )
    for e in (a, b):
        if len(e.scores) != len(e.tokens) or not np.isfinite(e.scores).all():
            raise BadInput(f"{e.method} of {name!r} has scores that are missing, NaN or infinite; explain it again")
    if a.target != b.target:
        return [nan] * len(MEASURES)
    x, y = np.array(a.content), np.array(b.content)
    return [measure(x, y) for measure in MEASURES.values()]
