"""Do explanations of the same texts agree: by the same method for models that differ in their seed, or by different
methods for one model?
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import nan
from pathlib import Path

import numpy as np

from salience.errors import BadInput
from salience.explanation import Explanation
from salience.metrics.agreement import kendall, overlap, spearman
from salience.runs import Run, open_run
from salience.stats import Estimate, Resampled

MEASURES = {"spearman": spearman, "kendall": kendall, "overlap": overlap}
"""Rank correlations, of which unrelated scores have 0, and the share of the highest fifth that both name."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How much explanations agree, each number a mean over pairs and then over texts."""

    between: str
    """What the pairs are made of: ``runs`` or ``methods``."""
    runs: tuple[str, ...]
    texts: int
    compared: Mapping[str, Mapping[str, Estimate]]
    """By method, or by a pair of methods, and by measure. A text that is given different labels is not counted."""


def agreement(runs: Sequence[str | Path], *, seed: int = 0) -> Agreement:
    """Of several runs, each method against itself from run to run; of one run, its methods against each other."""
    if not runs:
        raise BadInput("name a run, or several to compare")
    opened = [open_run(run) for run in runs]
    for run in opened:
        run.warn_unless_finished()
    rows = [dict(run.rows()) for run in opened]
    shared = [name for name in rows[0] if all(name in other for other in rows)]
    if not shared:
        raise BadInput(f"no text is explained in all of {', '.join(map(str, runs))}; explain the same data")
    if len(runs) > 1:
        between, found = "runs", _between_runs(opened, rows, shared)
    else:
        between, found = "methods", _between_methods(opened[0], rows[0], shared)
    if all(np.isnan(values).all() for values in found.values()):
        raise BadInput(
            "no text is given the same label in two of the runs; explain one label in all of them (--target)"
        )
    drawn = {name: Resampled.of(values, seed=seed) for name, values in found.items()}
    compared = {
        name: {measure: one.estimate(column) for column, measure in enumerate(MEASURES)} for name, one in drawn.items()
    }
    return Agreement(between, tuple(map(str, runs)), len(shared), compared)


Rows = Mapping[str, Sequence[Explanation]]


def _between_runs(opened: Sequence[Run], rows: Sequence[Rows], shared: Sequence[str]) -> dict[str, np.ndarray]:
    methods = [m for m in opened[0].methods if all(m in run.methods for run in opened)]
    if not methods:
        raise BadInput("the runs have no method in common")
    found: dict[str, np.ndarray] = {}
    for method in methods:
        columns = [list(run.methods).index(method) for run in opened]
        each = [[of[name][column] for of, column in zip(rows, columns, strict=True)] for name in shared]
        found[method] = np.array([_pairs(name, some) for name, some in zip(shared, each, strict=True)])
    return found


def _between_methods(run: Run, rows: Rows, shared: Sequence[str]) -> dict[str, np.ndarray]:
    pairs = list(combinations(enumerate(run.methods), 2))
    if not pairs:
        raise BadInput("the run has one method alone; name a second run, or explain by more methods")
    return {
        f"{one}, {other}": np.array([_compared(name, rows[name][a], rows[name][b]) for name in shared])
        for (a, one), (b, other) in pairs
    }


def _pairs(name: str, some: Sequence[Explanation]) -> list[float]:
    """The mean over pairs that explain the same label."""
    table = np.array([_compared(name, a, b) for a, b in combinations(some, 2)])
    known = table[~np.isnan(table[:, 0])]
    return known.mean(0).tolist() if len(known) else [nan] * len(MEASURES)


def _compared(name: str, a: Explanation, b: Explanation) -> list[float]:
    if a.text != b.text:
        raise BadInput(f"{name!r} is another text in one of the runs; explain the same data in all of them")
    if a.tokens != b.tokens:
        raise BadInput(
            f"{name!r} is read as other tokens in one of the runs; scores can be compared only between models with one "
            "tokenizer"
        )
    for e in (a, b):
        if len(e.scores) != len(e.tokens) or not np.isfinite(e.scores).all():
            raise BadInput(f"{e.method} of {name!r} has scores that are missing, NaN or infinite; explain it again")
    if a.target != b.target:
        return [nan] * len(MEASURES)
    x, y = np.array(a.content), np.array(b.content)
    return [measure(x, y) for measure in MEASURES.values()]
