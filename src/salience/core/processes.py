"""Worker processes: each has its share of the threads, and ends when the process that started it does."""

import os
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any

import torch


def end_with_parent() -> None:
    """End this worker process as soon as its parent has ended, even if the parent was killed."""

    def watch() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    Thread(target=watch, daemon=True).start()


def cores() -> int:
    """The number of processes that pay: as many as torch would use threads."""
    return max(1, torch.get_num_threads())


@contextmanager
def pool(workers: int, threads: int) -> Generator[ProcessPoolExecutor]:
    """A pool of processes with this many threads each, which end with this process."""
    # A forked process inherits torch's threads in an unknown state; a spawned one starts clean.
    with ProcessPoolExecutor(workers, get_context("spawn"), _initialise, (threads,)) as processes:
        try:
            yield processes
        except BaseException:
            # Python waits for running work when it exits, which may take an hour. Nothing reads its results any more.
            for process in _running(processes):
                process.terminate()
            processes.shutdown(wait=False, cancel_futures=True)
            raise


def _running(processes: ProcessPoolExecutor) -> list[Any]:
    """The processes of a pool; from Python 3.14 on, ``terminate_workers`` does without them."""
    return list((getattr(processes, "_processes", None) or {}).values())


def _initialise(threads: int) -> None:
    end_with_parent()
    torch.set_num_threads(threads)


@contextmanager
def one_thread() -> Generator[None]:
    """Use one thread, as the processes of a pool do, so that results do not depend on the number of processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
