"""Many jobs, such as trainings: each is run once, here or in worker processes, and its result is a file of its own.

A killed study loses the jobs in flight and nothing else. Every job uses one thread, so that its result does not depend
on the number of processes, and two processes on two cores are nearly twice as fast as one.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from salience.core.files import claim, locked, read_object, write_json
from salience.core.processes import one_thread, pool
from salience.errors import BadInput, SalienceError

Facts = Mapping[str, Any]
"""A result, as it is stored as JSON."""

Job = Callable[[], Facts]
"""It is sent to another process, so it must be possible to pickle it."""

Run = Callable[[str, Job], Facts]
"""Runs a job and saves its result, in the process that has it."""

Needs = Mapping[str, Sequence[str]]
"""The names of the jobs that must be finished before a job."""

Result = TypeVar("Result")

SETTINGS = "settings.json"


def run_jobs(
    jobs: Mapping[str, Job],
    folder: Path | None = None,
    *,
    workers: int = 1,
    needs: Needs = MappingProxyType({}),
    done: Collection[str] = (),
) -> Iterator[tuple[str, Facts]]:
    """Run all jobs but those that are done, in their order as far as their needs allow; yield each as it finishes.

    With a ``folder``, each result is saved in it.
    """
    todo = in_order([name for name in jobs if name not in done], needs, done)
    own, run, workers = {name: jobs[name] for name in todo}, partial(_saved, folder), min(workers, len(todo))
    yield from _here(own, run) if workers < 2 else _apart(own, run, workers, needs, done)


def results(
    jobs: Mapping[str, Job], read: Callable[[Facts], Result], folder: Path | None = None, *, workers: int = 1
) -> Iterator[Result]:
    """Yield what ``read`` makes of each result: first of those in the folder, then of the others as they finish."""
    done = stored(folder, jobs, read)
    yield from done.values()
    for _, facts in run_jobs(jobs, folder, workers=workers, done=done):
        yield read(facts)


def stored(folder: Path | None, names: Iterable[str], read: Callable[[Facts], Result]) -> dict[str, Result]:
    """What ``read`` makes of each result that is saved in the folder, by the name of its job."""
    if folder is None:
        return {}
    return {name: _read(path, read) for name in names if (path := folder / f"{name}.json").exists()}


def _read(path: Path, read: Callable[[Facts], Result]) -> Result:
    try:
        return read(read_object(path))
    except KeyError as error:
        raise BadInput(f"{path} is damaged: {error} is missing; delete it to run it again") from error
    except (TypeError, ValueError) as error:
        raise BadInput(f"{path} is damaged: {error}; delete it to run it again") from error


def in_order(todo: Sequence[str], needs: Needs, done: Collection[str]) -> list[str]:
    """The jobs in their order, each after those that it needs."""
    ready, rest = set(done), list(todo)
    ordered: list[str] = []
    while rest:
        name = _next(rest, needs, ready)
        if name is None:
            raise SalienceError(f"{rest[0]} needs {', '.join(needs[rest[0]])}, which is not among the jobs")
        rest.remove(name)
        ready.add(name)
        ordered.append(name)
    return ordered


def _next(rest: Sequence[str], needs: Needs, ready: set[str]) -> str | None:
    return next((name for name in rest if ready.issuperset(needs.get(name, ()))), None)


def _saved(folder: Path | None, name: str, job: Job) -> Facts:
    facts = job()
    if folder is not None:
        write_json(folder / f"{name}.json", facts)
    return facts


def _here(jobs: Mapping[str, Job], run: Run) -> Iterator[tuple[str, Facts]]:
    """Run the jobs one after the other in this process."""
    for name, job in jobs.items():
        with one_thread():
            facts = run(name, job)
        yield name, facts


def _apart(
    jobs: Mapping[str, Job], run: Run, workers: int, needs: Needs, done: Collection[str]
) -> Iterator[tuple[str, Facts]]:
    """Run the jobs in processes of one thread each, as many at a time as there are workers."""
    rest, ready = list(jobs), set(done)
    running: dict[Future[Facts], str] = {}
    with _unbroken(), pool(workers, threads=1) as processes:
        while rest or running:
            while len(running) < workers and (name := _next(rest, needs, ready)) is not None:
                rest.remove(name)
                running[processes.submit(run, name, jobs[name])] = name
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name = running.pop(future)
                yield name, future.result()
                ready.add(name)


@contextmanager
def _unbroken() -> Generator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise SalienceError(
            "a worker process ended unexpectedly. The usual cause is lack of memory: use fewer workers. Finished "
            "results are saved; run the same command to resume."
        ) from None


@contextmanager
def study(folder: Path | None, settings: Mapping[str, Any]) -> Generator[None]:
    """Lock the folder of a study for this process; a folder with results of other settings is refused."""
    if folder is None:
        yield
        return
    with locked(folder, SETTINGS):
        claim(folder / SETTINGS, settings, "results of other settings")
        yield
