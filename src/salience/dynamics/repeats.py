"""Independent runs in parallel processes, each saved as one small file when it finishes."""

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from salience.core.files import claim, complete, locked, read_object
from salience.core.processes import one_thread, pool
from salience.errors import BadInput

Job = Callable[[], Mapping[str, Any]]
"""Returns what is stored as JSON. It is sent to another process, so it must be possible to pickle it."""

Run = Callable[[str, Job], Mapping[str, Any]]
"""Runs a job and saves its result, in the process that has it: a killed study loses only runs in flight."""

Result = TypeVar("Result")

MARK = "settings.json"


@dataclass(frozen=True, slots=True)
class Repeats:
    """Runs by name; with a ``folder``, finished runs are read from it instead of being made again."""

    folder: Path | None = None
    workers: int = 1

    def run(self, jobs: Mapping[str, Job], read: Callable[[Mapping[str, Any]], Result]) -> Iterator[Result]:
        """Yield what ``read`` makes of each result: first of the finished ones, then of the others as they finish."""
        missing = dict(jobs)
        for name in jobs:
            if self.folder is not None and (path := self.folder / f"{name}.json").exists():
                del missing[name]
                yield _stored(path, read)
        run, workers = partial(_saved, self.folder), min(self.workers, len(missing))
        yield from map(read, _here(missing, run) if workers < 2 else _apart(missing, run, workers))


def _stored(path: Path, read: Callable[[Mapping[str, Any]], Result]) -> Result:
    try:
        return read(read_object(path))
    except KeyError as error:
        raise BadInput(f"{path} is damaged: {error} is missing; delete it to run it again") from error
    except (TypeError, ValueError) as error:
        raise BadInput(f"{path} is damaged: {error}; delete it to run it again") from error


def cores() -> int:
    """The number of processes that pay: as many as torch would use threads."""
    return max(1, torch.get_num_threads())


def _saved(folder: Path | None, name: str, job: Job) -> Mapping[str, Any]:
    result = job()
    if folder is not None:
        with complete(folder / f"{name}.json") as file:
            file.write((json.dumps(result) + "\n").encode())
    return result


def _here(jobs: Mapping[str, Job], run: Run) -> Iterator[Mapping[str, Any]]:
    """Run the jobs one after the other in this process."""
    for name, job in jobs.items():
        with one_thread():
            result = run(name, job)
        yield result


def _apart(jobs: Mapping[str, Job], run: Run, workers: int) -> Iterator[Mapping[str, Any]]:
    """Run the jobs in processes of one thread each."""
    with pool(min(workers, len(jobs)), threads=1) as processes:
        for done in as_completed([processes.submit(run, name, job) for name, job in jobs.items()]):
            yield done.result()


@contextmanager
def study(folder: Path | None, settings: Mapping[str, Any]) -> Generator[None]:
    """Lock the folder of a study for this process; a folder with results of other settings is refused."""
    if folder is None:
        yield
        return
    with locked(folder, MARK):
        claim(folder / MARK, settings, "results of other settings")
        yield
