"""Many trainings: each is run once, in this process or in several, and its result is kept in a file of its own.

A killed grid loses the trainings in flight and nothing else. Every training uses one thread, so that its result does
not depend on the number of processes, and two processes on two cores are nearly twice as fast as one.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from math import nan
from pathlib import Path
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

from salience.core.files import claim, write_json
from salience.core.processes import one_thread, pool
from salience.data import Source
from salience.data.examples import Example, examples
from salience.errors import BadInput, SalienceError


class Job(Protocol):
    """A training. Its text is a name that no other training has."""

    @property
    def needs(self) -> "Sequence[Job]":
        """The trainings that must be finished before this one."""
        ...

    def __hash__(self) -> int: ...


One = TypeVar("One", bound=Job)


Given = TypeVar("Given", bound=Job, contravariant=True)


class Work(Protocol[Given]):
    """What a training does; sent to other processes, so it holds descriptions of data rather than data."""

    def __call__(self, job: Given, /) -> Mapping[str, Any]: ...

    def cost(self, job: Given, /) -> float:
        """The expected cost of a training, in any unit."""
        ...


Facts = Mapping[str, Any]

SECONDS = "seconds"
"""The field of a result that holds the time of its training."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of many trainings, with the seconds that the rest will take; NaN if that is not known yet."""

    name: str
    done: int
    of: int
    left: float


Report = Callable[[Progress], None]


def results_of(folder: Path, jobs: Iterable[One]) -> dict[One, Facts]:
    """The results of the trainings that are finished."""
    results: dict[One, Facts] = {}
    for job in jobs:
        file = folder / f"{job}.json"
        if file.exists():
            try:
                results[job] = json.loads(file.read_text("utf-8"))
            except ValueError as error:
                raise BadInput(f"{file} is damaged: {error}. Delete it, and the training is run again.") from error
    return results


def seconds_left(work: Work[One], done: Mapping[One, Facts], rest: Iterable[One], rate: float, workers: int) -> float:
    """The time of the trainings that are left, at the speed of those that are done, or at ``rate`` per unit of cost.

    NaN if neither is known.
    """
    spent = sum(work.cost(job) for job in done)
    seconds = sum(facts[SECONDS] for facts in done.values())
    return sum(map(work.cost, rest)) * (seconds / spent if spent else rate) / workers


def run_all(
    work: Work[One],
    jobs: Sequence[One],
    folder: Path,
    *,
    workers: int = 1,
    rate: float = nan,
    report: Report = lambda _: None,
) -> dict[One, Facts]:
    """Run the trainings that are not finished, in their order as far as their needs allow, and return all results.

    ``rate`` is the expected time per unit of cost, until the first training has been timed. ``report`` is called
    before the first training and after each.
    """
    done = results_of(folder, jobs)
    todo = [job for job in jobs if job not in done]

    def tell(name: str) -> None:
        left = seconds_left(work, done, [job for job in todo if job not in done], rate, workers)
        report(Progress(name, len(done), len(jobs), left))

    tell("")
    run = _here if workers == 1 else _in_processes
    for job, facts in run(_Saved(work, folder), todo, set(done), workers):
        done[job] = facts
        tell(str(job))
    return {job: done[job] for job in jobs}


@dataclass(frozen=True, slots=True)
class _Saved(Generic[One]):
    """A training whose result is written as soon as there is one, by the process that has it."""

    work: Work[One]
    folder: Path

    def __call__(self, job: One) -> Facts:
        began = monotonic()
        facts = {**self.work(job), SECONDS: monotonic() - began}
        write_json(self.folder / f"{job}.json", facts)
        return facts


def _here(work: _Saved[One], todo: Sequence[One], done: set[One], _: int) -> Iterator[tuple[One, Facts]]:
    with one_thread():
        for job in in_order(todo, done):
            yield job, work(job)


def in_order(todo: Sequence[One], done: set[One]) -> list[One]:
    """The trainings in their order, each after those that it needs."""
    ready, rest = set[Any](done), list(todo)
    ordered: list[One] = []
    while rest:
        job = _next(rest, ready)
        if job is None:
            raise SalienceError(
                f"{rest[0]} needs {', '.join(map(str, rest[0].needs))}, which is not among the trainings"
            )
        rest.remove(job)
        ready.add(job)
        ordered.append(job)
    return ordered


def _next(rest: Sequence[One], ready: set[Any]) -> One | None:
    return next((job for job in rest if all(need in ready for need in job.needs)), None)


def _in_processes(work: _Saved[One], todo: Sequence[One], done: set[One], workers: int) -> Iterator[tuple[One, Facts]]:
    rest, ready = in_order(todo, done), set[Any](done)
    running: dict[Future[Facts], One] = {}
    with pool(workers, threads=1) as processes:
        while rest or running:
            while len(running) < workers and (job := _next(rest, ready)) is not None:
                rest.remove(job)
                running[processes.submit(work, job)] = job
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                yield job, _result(future)
                ready.add(job)


def _result(future: Future[Facts]) -> Facts:
    try:
        return future.result()
    except BrokenProcessPool:
        raise SalienceError(
            "a worker process ended unexpectedly. The usual cause is lack of memory: use fewer workers. Finished "
            "trainings are saved; run the same command to resume."
        ) from None


# ------------------------------------------------------------------------------------------------------ texts


@lru_cache(maxsize=8)
def texts_of(source: Source, content: str) -> tuple[Example, ...]:
    """The texts of a source, read once in every process; ``content`` identifies what its files hold."""
    return tuple(examples(source))


def claim_rationales(file: Path, train: Source) -> None:
    """Refuse a folder whose students learnt from rationales that were read otherwise."""
    claim(file, {"column": train.rationale, "spans": train.spans}, "students of rationales that were read otherwise")


def marks(right: Sequence[bool]) -> str:
    """Whether each text is classified correctly, as a text of zeros and ones."""
    return "".join("01"[one] for one in right)
