"""What the grid of :mod:`salience.papers.sallm_when` shows: comparisons with the controls, in points and examples."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import exp, inf, isfinite, log
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float

from salience.core.stats import (
    Difference,
    Spread,
    corrected,
    multi_bootstrap,
    paired_difference,
    percentiles,
    resampled_means,
)
from salience.evaluation.advice import plural
from salience.papers.sallm import Table
from salience.papers.sallm_when import ALL, NONE, TEST, Experiment, Teaching, Training
from salience.papers.trainings import Facts, failures, majority, mostly, unlearnt
from salience.papers.verdict import NO_BETTER, ONLY_SHUFFLED, by_verdict, verdict

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
    """How many more texts ``none`` would need for the same gain, with its interval; ±∞ outside the grid."""
    diverged: int = 0
    """The number of seeds that have no result because their training has diverged."""
    learnt: bool = True
    """Whether most of the students that it is compared with have learnt the task, as their own domain shows."""

    @property
    def size_name(self) -> str:
        return ALL if self.size is None else f"{self.size:,}"

    @property
    def unlearnt(self) -> int:
        """The number of seeds whose student is no better than the most frequent label: its training has failed."""
        return 0 if self.accuracy is None else unlearnt(self.accuracy, self.majority)

    @property
    def verdict(self) -> str:
        """What teaching did. A gain counts only if it is one against the control as well."""
        if self.accuracy is None:
            return f"diverged with {plural(self.diverged, 'seed')}" if self.diverged else NOT_RUN
        seeds, controlled = len(self.accuracy.values), not self.teaching.shuffles
        sides = self.against_none, self.against_control
        return verdict(*sides, seeds=seeds, controlled=controlled, learnt=self.learnt)


def cells(experiment: Experiment, results: Mapping[Training, Facts]) -> list[Cell]:
    """All cells of the grid, with their comparisons; p-values are corrected by Holm over all of them."""
    correct = _correct(experiment, results)
    failed = Counter(replace(job, seed=experiment.plan.first_seed) for job in experiment.diverged())
    keys = _keys(experiment)
    listed = [replace(_cell(experiment, results, correct, *key), diverged=failed[key[0]]) for key in keys]
    columns = corrected([cell.against_none for cell in listed], [cell.against_control for cell in listed])
    return [
        replace(cell, against_none=none, against_control=control, learnt=_learnt(experiment, listed, cell))
        for cell, none, control in zip(listed, *columns, strict=True)
    ]


def _learnt(experiment: Experiment, listed: Sequence[Cell], cell: Cell) -> bool:
    sides = (Teaching(NONE), cell.teaching.control)
    unlearnt = [
        other.unlearnt
        for other in listed
        if (other.data, other.size, other.test) == (cell.data, cell.size, TEST) and other.teaching in sides
    ]
    return mostly(unlearnt, experiment.plan.seeds)


def _keys(experiment: Experiment) -> list[tuple[Training, str]]:
    """The first seed of each cell, with each test set."""
    jobs = [job for job in experiment.jobs() if job.seed == experiment.plan.first_seed]
    return [
        (job, test) for name, data in experiment.data.items() for test in data.tests for job in jobs if job.data == name
    ]


Marks = Float[np.ndarray, "s t"]
"""100 for every seed and text that is classified correctly, and 0 otherwise."""

Correct = Mapping[tuple[Training, str], Marks]


def _correct(experiment: Experiment, results: Mapping[Training, Facts]) -> Correct:
    """What the students of every cell that was run with all seeds classify correctly."""
    tables: dict[tuple[Training, str], Any] = {}
    for job, test in _keys(experiment):
        seeds = [replace(job, seed=seed) for seed in experiment.plan.numbers]
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
        saved=_saved(_curve(results, correct, job, test), cell.texts, own, plain),
    )


def _majority(experiment: Experiment, data: str, test: str) -> float:
    return majority(experiment.tested(experiment.data[data].tests[test]))


# ------------------------------------------------------------------------------------------------------ examples saved

RESAMPLES = 1_000
"""Draws of seeds and texts for the interval of the examples saved."""


def _curve(results: Mapping[Training, Facts], correct: Correct, job: Training, test: str) -> dict[int, Marks]:
    """What students without explanations classify correctly, by their number of training texts."""
    tables = {
        results[one]["texts"]: table
        for (one, name), table in correct.items()
        if one.data == job.data and name == test and one.teaching.name == NONE
    }
    return {n: tables[n] for n in sorted(tables)}


def texts_needed(numbers: Sequence[int], accuracies: Sequence[float], accuracy: float) -> float:
    """The fewest texts with which a rising curve reaches an accuracy, log-linear between its points; ±∞ beyond it.

    >>> round(texts_needed([100, 400], [70.0, 80.0], 75.0))
    200
    """
    if accuracy < accuracies[0]:
        return -inf
    for (few, low), (many, high) in pairwise(zip(numbers, accuracies, strict=True)):
        if accuracy <= low:
            return few
        if accuracy <= high:
            return exp(log(few) + log(many / few) * (accuracy - low) / (high - low))
    return numbers[-1] if accuracy <= accuracies[-1] else inf


def _gain_in_texts(numbers: Sequence[int], accuracies: Sequence[float], texts: int, gain: float) -> float:
    """How many more texts the curve needs for an accuracy that is higher by a gain than with these texts.

    More texts do not harm: a curve that falls is taken to stay as it was.
    """
    rising = np.maximum.accumulate(accuracies).tolist()
    plain = rising[numbers.index(texts)]
    return texts_needed(numbers, rising, plain + gain) - texts_needed(numbers, rising, plain)


def _saved(curve: Mapping[int, Marks], texts: int, own: Marks, plain: Marks) -> tuple[float, float, float] | None:
    """The texts saved, with their multi-bootstrap interval: the curve is resampled with the gain."""
    if len(curve) < 2:
        return None
    numbers = list(curve)
    means, gain = [float(table.mean()) for table in curve.values()], float((own - plain).mean())
    points = np.stack([resampled_means(table, draws=RESAMPLES) for table in curve.values()], 1)
    gains = resampled_means(own - plain, draws=RESAMPLES)
    draws = [_gain_in_texts(numbers, each.tolist(), texts, d) for each, d in zip(points, gains, strict=True)]
    return _gain_in_texts(numbers, means, texts, gain), *percentiles(np.array(draws))


# ------------------------------------------------------------------------------------------------------ tables


def accuracy_table(listed: Sequence[Cell]) -> Table:
    """Every cell in a row: accuracy, differences, examples saved, verdict."""
    head = ["data", "tested on", "texts", "teaching", "accuracy", "− none", "− shuffled", "examples saved", "verdict"]
    return head, [_row(cell) for cell in listed]


def _row(cell: Cell) -> list[str]:
    number = cell.size_name if cell.size is not None or not cell.texts else f"all ({cell.texts:,})"
    named = [cell.data, cell.test, number, str(cell.teaching)]
    if cell.accuracy is None:
        return [*named, cell.verdict, "", "", "", ""]
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
    return f"{round(x):+,}" if isfinite(x) else "+∞" if x > 0 else "−∞"


VERDICTS = {
    "helps": "Helps, also against shuffled explanations",
    NO_BETTER: "Better than no teaching, but no better than shuffled explanations",
    ONLY_SHUFFLED: "Better than shuffled explanations, but no better than no teaching",
    "harms": "Harms",
}


OF_CONTROLS = {"better than none": "Shuffled explanations help", "harms": "Shuffled explanations harm"}


def summary(listed: Sequence[Cell], diverged: Mapping[Training, str] = MappingProxyType({})) -> list[str]:
    """The findings in words: how many comparisons were made, and where teaching helps or harms.

    ``diverged`` are the trainings without a result, with the reason.
    """
    compared = [c for c in listed if c.against_none is not None]
    missing = sum(c.accuracy is None for c in listed)
    tests = sum(d is not None for c in listed for d in (c.against_none, c.against_control))
    sentences = [f"{len(listed) - missing} of {len(listed)} cells were run; {tests} comparisons, corrected by Holm."]
    if missing:
        sentences.append("Verdicts may change with the cells that were not run, as more comparisons are corrected for.")
    where = {c: f"{c.teaching} with {c.texts:,} texts of {c.data} on {c.test}" for c in compared}
    sentences += by_verdict([(name, c.verdict) for c, name in where.items() if not c.teaching.shuffles], VERDICTS)
    for judged, words in OF_CONTROLS.items():
        if names := [name for c, name in where.items() if c.teaching.shuffles and c.verdict == judged]:
            sentences.append(f"{words}: {'; '.join(names)}.")
    seeds = next((len(c.accuracy.values) for c in listed if c.accuracy is not None), 0)
    failed = {f"{c.teaching} with {c.texts:,} texts of {c.data}": c.unlearnt for c in listed if c.test == TEST}
    return [*sentences, *failures(failed, seeds, diverged)]


def to_facts(experiment: Experiment, listed: Sequence[Cell]) -> dict[str, Any]:
    """Everything of the report as plain values."""
    plan = experiment.plan
    settings = {
        name: getattr(plan, name) for name in ("seeds", "first_seed", "weight", "share", "steps", "limit", "tested")
    }
    rows = [{**asdict(cell), "teaching": str(cell.teaching), "verdict": cell.verdict} for cell in listed]
    return {"model": experiment.model, **settings, "recipe": asdict(plan.recipe), "cells": rows}
