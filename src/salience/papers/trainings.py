"""Trainings of a grid, as jobs that are run once each, with the time that the rest will take."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import nan
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, TypeVar

from salience.core.files import claim
from salience.core.jobs import Facts, run_jobs, stored
from salience.core.stats import Spread
from salience.core.types import Model
from salience.data import Source
from salience.data.examples import Example, examples
from salience.data.source import described
from salience.errors import Diverged, UnsupportedModel
from salience.evaluation.evaluator import unsupported


class Job(Protocol):
    """A training. Its text is a name that no other training has."""

    @property
    def needs(self) -> "Sequence[Job]":
        """The trainings that must be finished before this one."""
        ...

    def __hash__(self) -> int: ...


One = TypeVar("One", bound=Job)


Given = TypeVar("Given", bound=Job, contravariant=True)


class Procedure(Protocol[Given]):
    """What a training does; sent to other processes, so it holds descriptions of data rather than data."""

    def __call__(self, job: Given, /) -> Mapping[str, Any]: ...

    def cost(self, job: Given, /) -> float:
        """The expected cost of a training, in any unit."""
        ...


SECONDS = "seconds"
"""The field of a result that holds the time of its training."""

DIVERGED = "diverged"
"""The field of a training without a result that says why: its loss, or that of its teacher, is not a number."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of many trainings, with the seconds that the rest will take; NaN if that is not known yet."""

    name: str
    done: int
    of: int
    left: float
    diverged: str = ""
    """Why the last training has no result."""


Report = Callable[[Progress], None]


def results_of(folder: Path, jobs: Sequence[One]) -> dict[One, Facts]:
    """The results of the trainings that are finished, without those that have diverged."""
    return _with_results(_done(folder, jobs))


def diverged(folder: Path, jobs: Sequence[One]) -> dict[One, str]:
    """Why trainings have no result, though they were run."""
    return {job: facts[DIVERGED] for job, facts in _done(folder, jobs).items() if DIVERGED in facts}


def _done(folder: Path, jobs: Sequence[One]) -> dict[One, Facts]:
    results = stored(folder, map(str, jobs), dict)
    return {job: results[str(job)] for job in jobs if str(job) in results}


def _with_results(done: Mapping[One, Facts]) -> dict[One, Facts]:
    return {job: facts for job, facts in done.items() if DIVERGED not in facts}


def seconds_left(
    procedure: Procedure[One], done: Mapping[One, Facts], rest: Iterable[One], rate: float, workers: int
) -> float:
    """The time of the trainings that are left, at the speed of those that are done, or at ``rate`` per unit of cost.

    NaN if neither is known.
    """
    spent = sum(procedure.cost(job) for job in done)
    seconds = sum(facts[SECONDS] for facts in done.values())
    return sum(map(procedure.cost, rest)) * (seconds / spent if spent else rate) / workers


def run_all(
    procedure: Procedure[One],
    jobs: Sequence[One],
    folder: Path,
    *,
    workers: int = 1,
    rate: float = nan,
    report: Report = lambda _: None,
    kept: Callable[[One], bool] = lambda _: True,
) -> dict[One, Facts]:
    """Run the trainings that are not finished, in their order as far as their needs allow, and return all results.

    A training that diverges has no result and would have none if it were run again; neither have those that need it.
    ``rate`` is the expected time per unit of cost, until the first training has been timed. ``report`` is called
    before the first training and after each. ``kept`` tells whether the model of a finished training is still there;
    one that is gone is trained again if others need it.
    """
    done = _done(folder, jobs)
    needed = {one for job in jobs if job not in done for one in job.needs}
    done = {job: facts for job, facts in done.items() if job not in needed or DIVERGED in facts or kept(job)}
    todo = [job for job in jobs if job not in done]

    def tell(name: str, failed: str = "") -> None:
        left = seconds_left(procedure, _with_results(done), [job for job in todo if job not in done], rate, workers)
        report(Progress(name, len(done), len(jobs), left, failed))

    tell("")
    named, needs = {str(job): job for job in jobs}, {str(job): list(map(str, job.needs)) for job in jobs}
    timed = {name: partial(_timed, procedure, job, folder) for name, job in named.items()}
    for name, facts in run_jobs(timed, folder, workers=workers, needs=needs, done=[*map(str, done)]):
        done[named[name]] = facts
        tell(name, facts.get(DIVERGED, ""))
    return _with_results({job: done[job] for job in jobs})


def _timed(procedure: Procedure[One], job: One, folder: Path) -> Facts:
    began = monotonic()
    if teachers := diverged(folder, job.needs):
        return {DIVERGED: f"{next(iter(teachers))}, which it learns from, has diverged", SECONDS: 0.0}
    try:
        return {**procedure(job), SECONDS: monotonic() - began}
    except Diverged as error:
        return {DIVERGED: str(error), SECONDS: monotonic() - began}


# ------------------------------------------------------------------------------------------------------ texts


def content_of(source: Source) -> str:
    """What identifies the texts and labels of a source; rationales may be added later, and are claimed apart."""
    return json.dumps(described(replace(source, rationale=None, spans="characters")))


@lru_cache(maxsize=64)
def texts_of(source: Source, content: str) -> tuple[Example, ...]:
    """The labelled texts of a source, read once in every process; ``content`` identifies what is read."""
    return tuple(e for e in examples(source) if e.label is not None)


def check_methods(model: Model, text: Example, methods: Iterable[str]) -> None:
    """Refuse methods that the model does not support before anything is trained."""
    for method in sorted(methods):
        if (reason := unsupported(model, text.text, method)) is not None:
            raise UnsupportedModel(reason)


Claim = Callable[[Path, Mapping[str, Any], str], None]
""":func:`claim`, or :func:`compare`, which writes nothing."""


def claim_rationales(file: Path, train: Source, claim: Claim = claim) -> None:
    """Refuse a folder whose students learnt from other rationales, or from rationales that were read otherwise."""
    claim(file, described(train), "students of rationales that were read otherwise")


def majority(texts: Sequence[Example]) -> float:
    """The accuracy of always answering with the most frequent label, in per cent."""
    labels = Counter(e.label for e in texts)
    return 100 * max(labels.values()) / labels.total()


def unlearnt(accuracy: Spread, majority: float) -> int:
    """The number of seeds whose student is no better than the most frequent label: its training has failed."""
    return sum(value <= majority for value in accuracy.values)


def mostly(unlearnt: Iterable[int], seeds: int) -> bool:
    """Whether most seeds of each kind of student have learnt the task."""
    return all(2 * number < seeds for number in unlearnt)


def failures(unlearnt: Mapping[str, int], seeds: int, lost: Mapping[One, str]) -> list[str]:
    """In words, which students have not learnt the task, by name with their number of seeds, or have diverged."""
    named = [f"{name} ({number} of {seeds})" for name, number in unlearnt.items() if number]
    sentences = [
        f"Students that are no better than the most frequent label: {', '.join(named)}. Their training failed; "
        "differences between them say nothing about explanations. Try another learning rate, or more steps."
    ]
    return [*(sentences if named else []), *(f"{job} has no result: {why}" for job, why in lost.items())]


def marks(right: Sequence[bool]) -> str:
    """Whether each text is classified correctly, as a text of zeros and ones."""
    return "".join("01"[one] for one in right)
