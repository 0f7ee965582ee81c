"""Independent runs in parallel processes, each saved as one small file when it finishes."""

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import torch

from salience.core.files import claim, complete, locked, read_object
from salience.errors import BadInput

Job = Callable[[], Mapping[str, Any]]
"""Returns what is stored as JSON. It is sent to another process, so it must be possible to pickle it."""

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
            if (path := self._path(name)) is not None and path.exists():
                del missing[name]
                yield _stored(path, read)
        for name, result in here(missing) if min(self.workers, len(missing)) < 2 else pool(missing, self.workers):
            self._store(name, result)
            yield read(result)

    def _path(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name}.json"

    def _store(self, name: str, result: Mapping[str, Any]) -> None:
        if (path := self._path(name)) is not None:
            with complete(path) as file:
                file.write((json.dumps(result) + "\n").encode())


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


def here(jobs: Mapping[str, Job]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Run the jobs one after the other in this process, on one thread, as :func:`pool` does."""
    threads = torch.get_num_threads()
    for name, job in jobs.items():
        torch.set_num_threads(1)
        try:
            result = job()
        finally:
            torch.set_num_threads(threads)
        yield name, result


def pool(jobs: Mapping[str, Job], workers: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Run the jobs in processes of one thread each."""
    # A forked process inherits torch's threads in an unknown state; a spawned one starts clean.
    with ProcessPoolExecutor(min(workers, len(jobs)), get_context("spawn"), torch.set_num_threads, (1,)) as processes:
        waiting = {processes.submit(job): name for name, job in jobs.items()}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        finally:
            processes.shutdown(wait=False, cancel_futures=True)


@contextmanager
def study(folder: Path | None, settings: Mapping[str, Any]) -> Generator[None]:
    """Lock the folder of a study for this process; a folder with results of other settings is refused."""
    if folder is None:
        yield
        return
    with locked(folder, MARK):
        claim(folder / MARK, settings, "results of other settings")
        yield
