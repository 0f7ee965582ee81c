"""Worker processes: each has its share of the threads, and ends when the process that started it does."""

import os
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from threading import Thread

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
            processes.shutdown(wait=False, cancel_futures=True)
            raise


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
