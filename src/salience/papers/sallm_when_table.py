"""What the grid of :mod:`salience.papers.sallm_when` shows: comparisons with the controls, in points and examples."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import exp, inf, isfinite, isnan, log, nan
from typing import Any

import numpy as np
from jaxtyping import Float

from salience.core.stats import Difference, Spread, holm, multi_bootstrap, paired_difference
from salience.papers.sallm import Table
from salience.papers.sallm_when import ALL, NONE, TEST, Experiment, Teaching, Training
from salience.papers.trainings import Facts

NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Cell:
    """One way of teaching with one number of texts, tested in one domain."""

    data: str
    test: str
    size: int | None
    texts: int
    """The number of training texts; 0 if the cell was not run."""
    teaching: Teaching
    accuracy: Spread | None
    """In per cent, over seeds; None if not all seeds were run."""
    majority: float
    """The accuracy of always answering with the most frequent label of the test texts, in per cent."""
    against_none: Difference | None = None
    """The difference in percentage points; p is corrected for all comparisons of the grid."""
    against_control: Difference | None = None
    bootstrap: tuple[float, float] | None = None
    """The multi-bootstrap interval of the difference from ``none``."""
    saved: tuple[float, float, float] | None = None
    """How many more texts ``none`` would need for this accuracy, with its interval; ±∞ outside the grid."""

    @property
    def size_name(self) -> str:
        return ALL if self.size is None else f"{self.size:,}"

    @property
    def unlearnt(self) -> int:
        """The number of seeds whose student is no better than the most frequent label: its training has failed."""
        return 0 if self.accuracy is None else sum(value <= self.majority for value in self.accuracy.values)

    @property
    def verdict(self) -> str:
        """What teaching did. A gain counts only if it is one against the control as well."""
        if self.accuracy is None:
            return NOT_RUN
        if self.against_none is None:
            return ""
        if not self.against_none.clear:
            return "no difference"
        if self.against_none.mean < 0:
            return "harms"
        if self.teaching.shuffles:
            return "better than none"
        if self.against_control is None:
            return "better than none; control not run"
        return "helps" if self.against_control.clear and self.against_control.mean > 0 else "no better than shuffled"


def cells(experiment: Experiment, results: Mapping[Training, Facts]) -> list[Cell]:
    """All cells of the grid, with their comparisons; p-values are corrected by Holm over all of them."""
    correct = _correct(experiment, results)
    listed = [_cell(experiment, results, correct, job, test) for job, test in _keys(experiment)]
    differences = [d for cell in listed for d in (cell.against_none, cell.against_control) if d is not None]
    corrected = iter(holm([d.p for d in differences]))

    def with_p(d: Difference | None) -> Difference | None:
        return None if d is None else replace(d, p=next(corrected))

    return [
        replace(cell, against_none=with_p(cell.against_none), against_control=with_p(cell.against_control))
        for cell in listed
    ]


def _keys(experiment: Experiment) -> list[tuple[Training, str]]:
    """The first seed of each cell, with each test set."""
    jobs = [job for job in experiment.jobs() if job.seed == 0]
    return [
        (job, test) for name, data in experiment.data.items() for test in data.tests for job in jobs if job.data == name
    ]


Correct = Mapping[tuple[Training, str], Float[np.ndarray, "s t"]]


def _correct(experiment: Experiment, results: Mapping[Training, Facts]) -> Correct:
    """For every cell that was run with all seeds, 100 for every seed and text that is classified correctly."""
    tables: dict[tuple[Training, str], Any] = {}
    for job, test in _keys(experiment):
        seeds = [replace(job, seed=seed) for seed in range(experiment.plan.seeds)]
        if all(one in results for one in seeds):
            tables[job, test] = np.array([[100.0 * int(c) for c in results[one]["correct"][test]] for one in seeds])
    return tables


def _cell(
    experiment: Experiment, results: Mapping[Training, Facts], correct: Correct, job: Training, test: str
) -> Cell:
    majority = _majority(experiment, job.data, test)
    if (own := correct.get((job, test))) is None:
        return Cell(job.data, test, job.size, 0, job.teaching, None, majority)
    accuracy = Spread(tuple(own.mean(1).tolist()))
    cell = Cell(job.data, test, job.size, results[job]["texts"], job.teaching, accuracy, majority)
    plain = correct.get((job.teacher, test))
    if job.teaching.name == NONE or plain is None:
        return cell
    against = paired_difference(own, plain)
    control = job.teaching.control
    other = None if control is None else correct.get((replace(job, teaching=control), test))
    return replace(
        cell,
        against_none=against,
        against_control=None if other is None else paired_difference(own, other),
        bootstrap=multi_bootstrap(own - plain),
        saved=_saved(_curve(results, correct, job, test), cell.texts, float(plain.mean()), against),
    )


def _majority(experiment: Experiment, data: str, test: str) -> float:
    labels = Counter(e.label for e in experiment.tested(experiment.data[data].tests[test]))
    return 100 * max(labels.values()) / labels.total()


# ------------------------------------------------------------------------------------------------------ examples saved

Curve = Sequence[tuple[float, float]]
"""(log of the number of texts, accuracy) of students without explanations, by number."""


def _curve(results: Mapping[Training, Facts], correct: Correct, job: Training, test: str) -> Curve:
    points = {
        results[one]["texts"]: float(marks.mean())
        for (one, name), marks in correct.items()
        if one.data == job.data and name == test and one.teaching.name == NONE
    }
    numbers = sorted(points)
    best = np.maximum.accumulate([points[n] for n in numbers])
    return [(log(n), float(a)) for n, a in zip(numbers, best, strict=True)]


def texts_needed(curve: Curve, accuracy: float) -> float:
    """The number of texts with which the curve reaches an accuracy, log-linear between its points; ±∞ beyond it.

    >>> round(texts_needed([(log(100), 70.0), (log(400), 80.0)], 75.0))
    200
    """
    if not curve or isnan(accuracy):
        return nan
    if accuracy < curve[0][1]:
        return -inf
    for (x, low), (y, high) in pairwise(curve):
        if low <= accuracy < high:
            return exp(x + (y - x) * (accuracy - low) / (high - low))
    return exp(curve[-1][0]) if accuracy == curve[-1][1] else inf


def _saved(curve: Curve, texts: int, plain: float, against: Difference) -> tuple[float, float, float] | None:
    """The texts saved: those that the curve needs for the taught accuracy, less those that were used."""
    if len(curve) < 2:
        return None
    mean, low, high = (texts_needed(curve, plain + d) - texts for d in (against.mean, against.low, against.high))
    return mean, low, high


# ------------------------------------------------------------------------------------------------------ tables


def accuracy_table(listed: Sequence[Cell]) -> Table:
    """Every cell in a row: accuracy, differences, examples saved, verdict."""
    head = ["data", "tested on", "texts", "teaching", "accuracy", "− none", "− shuffled", "examples saved", "verdict"]
    return head, [_row(cell) for cell in listed]


def _row(cell: Cell) -> list[str]:
    number = cell.size_name if cell.size is not None or not cell.texts else f"all ({cell.texts:,})"
    named = [cell.data, cell.test, number, str(cell.teaching)]
    if cell.accuracy is None:
        return [*named, NOT_RUN, "", "", "", ""]
    differences = ["" if d is None else tested(d) for d in (cell.against_none, cell.against_control)]
    return [*named, f"{cell.accuracy:.1f}", *differences, _examples(cell.saved), cell.verdict]


def tested(d: Difference) -> str:
    """A difference in points with its interval, and a star if it is significant."""
    return f"{d:.1f}{'*' if d.clear else ''}"


def _examples(saved: tuple[float, float, float] | None) -> str:
    if saved is None:
        return ""
    mean, low, high = (_number(x) for x in saved)
    return f"{mean} [{low}, {high}]"


def _number(x: float) -> str:
    if isnan(x):
        return "?"
    return f"{round(x):+,}" if isfinite(x) else "+∞" if x > 0 else "−∞"


def summary(listed: Sequence[Cell]) -> list[str]:
    """The findings in words: how many comparisons were made, and where teaching helps or harms."""
    taught = [c for c in listed if c.against_none is not None and not c.teaching.shuffles]
    missing = sum(c.accuracy is None for c in listed)
    tests = sum(d is not None for c in listed for d in (c.against_none, c.against_control))
    sentences = [f"{len(listed) - missing} of {len(listed)} cells were run; {tests} comparisons, corrected by Holm."]
    for verdict, words in (
        ("helps", "Helps, also against shuffled explanations"),
        ("no better than shuffled", "Better than no teaching, but no better than shuffled explanations"),
        ("harms", "Harms"),
    ):
        where = [f"{c.teaching} with {c.texts:,} texts of {c.data} on {c.test}" for c in taught if c.verdict == verdict]
        sentences.append(f"{words}: {'; '.join(where) or 'nowhere'}.")
    failed = [
        f"{c.teaching} with {c.texts:,} texts of {c.data} ({c.unlearnt} of {len(c.accuracy.values)})"
        for c in listed
        if c.accuracy is not None and c.test == TEST and c.unlearnt
    ]
    if failed:
        sentences.append(
            f"Students that are no better than the most frequent label: {', '.join(failed)}. Their training failed; "
            "differences between them say nothing about explanations. Try another learning rate, or more steps."
        )
    return sentences


def to_facts(experiment: Experiment, listed: Sequence[Cell]) -> dict[str, Any]:
    """Everything of the report as plain values."""
    plan = experiment.plan
    settings = {name: getattr(plan, name) for name in ("seeds", "weight", "share", "steps", "limit", "tested")}
    rows = [
        {**asdict(cell), "teaching": str(cell.teaching), "verdict": cell.verdict, "saved": _finite(cell.saved)}
        for cell in listed
    ]
    return {"model": experiment.model, **settings, "recipe": asdict(plan.recipe), "cells": rows}


def _finite(values: Sequence[float] | None) -> list[float | None] | None:
    """The values with None for what is beyond the grid, which JSON cannot hold."""
    return None if values is None else [x if isfinite(x) else None for x in values]
