"""This machine: the process itself, or a pool of processes that each hold the model."""

import os
import signal
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Thread
from time import monotonic

import psutil
import torch

from salience.data import Shard
from salience.errors import SalienceError
from salience.types import Model
from salience.work import Checkpoint, Event, Job, Part, Worker


def here(model: Model, job: Job, shards: Iterable[Shard]) -> Iterator[Event]:
    """One worker, in this process, with the model that is already there."""
    with closing(Worker(job, model)) as worker:
        for shard in shards:
            yield from worker(shard)


PAYS = 60.0
"""Seconds of work left for which more processes are worth their start."""

EACH = 2**29
"""Bytes that a process needs beside the model's weights."""


def as_it_pays(model: Model, job: Job, shards: Sequence[Shard]) -> Iterator[Event]:
    """The first shard here, to see how long one takes; if the rest is long work, a process for every core.

    Two processes of one thread explain about 1.4 times as much as one of two: between the matrix products, which
    threads share, lies work that they do not.
    """
    began = monotonic()
    yield from here(model, job, shards[:1])
    rest = shards[1:]
    left = (monotonic() - began) / shards[0].rows * sum(shard.rows for shard in rest)
    workers = min(len(rest), _fitting(model))
    on_cpu = isinstance(job.model, Checkpoint) and model.words.weight.device.type == "cpu"
    yield from pool(job, rest, workers) if on_cpu and workers > 1 and left > PAYS else here(model, job, rest)


def _fitting(model: Model) -> int:
    """How many processes the cores, and half of the free memory, have room for."""
    size = sum(p.numel() * p.element_size() for p in model.module.parameters())
    return min(torch.get_num_threads(), psutil.virtual_memory().available // 2 // (size + EACH))


def pool(job: Job, shards: Iterable[Shard], workers: int) -> Iterator[Event]:
    """Several workers, each in a process of its own, with the CPU threads or the devices shared out among them."""
    waiting = iter(shards)
    with _started(job, workers) as processes:
        busy = {pipe: process for pipe, process in processes.items() if _hand_out(pipe, process, waiting)}
        while busy:
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                event = _received(pipe, busy[pipe])
                if isinstance(event, Part) and not _hand_out(pipe, busy[pipe], waiting):
                    del busy[pipe]
                yield event


def _hand_out(pipe: Connection, process: BaseProcess, waiting: Iterator[Shard]) -> bool:
    """Give a worker its next shard, if there is one left."""
    shard = next(waiting, None)
    if shard is not None:
        try:
            pipe.send(shard)
        except OSError:
            raise _died(process) from None
    return shard is not None


def _received(pipe: Connection, process: BaseProcess) -> Event:
    try:
        found = pipe.recv()
    except (EOFError, OSError):
        raise _died(process) from None
    if isinstance(found, BaseException):
        raise found
    return found


def _died(process: BaseProcess) -> SalienceError:
    process.join()
    code = process.exitcode or 0
    why = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    if code == 1:
        return SalienceError(
            f"a worker process could not start ({why}). In a script, call salience under `if __name__ == '__main__':`, "
            "since each worker imports the script again."
        )
    return SalienceError(
        f"a worker process ended before its work was done ({why}). Out of memory is the usual cause: use fewer "
        "workers. Finished parts are kept; the same command goes on from there."
    )


@contextmanager
def _started(job: Job, workers: int) -> Generator[dict[Connection, BaseProcess]]:
    # A forked process inherits torch's threads in an unknown state; a spawned one starts clean.
    context = get_context("spawn")
    pipes = [context.Pipe() for _ in range(workers)]
    processes = [
        context.Process(target=_work, args=(theirs, _share(job, n, workers)), daemon=True)
        for n, (_, theirs) in enumerate(pipes)
    ]
    try:
        for process, (_, theirs) in zip(processes, pipes, strict=True):
            process.start()
            theirs.close()  # so that a worker's end is seen as the end of its pipe
        yield {ours: process for (ours, _), process in zip(pipes, processes, strict=True)}
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
        for process in processes:
            if process.pid is not None:
                process.join()


def _share(job: Job, number: int, workers: int) -> Job:
    """What worker ``number`` gets: a device of its own where there are several, and its share of the CPU's threads."""
    threads = max(1, torch.get_num_threads() // workers)
    model = job.model
    if isinstance(model, Checkpoint) and model.options.get("device") == "cuda":
        device = f"cuda:{number % torch.cuda.device_count()}"
        model = Checkpoint(model.name, {**model.options, "device": device})
    return replace(job, threads=threads, model=model)


def end_with_parent() -> None:
    """In a worker process: end as soon as the driver has ended, also if it was killed, and whatever is under way."""

    def watch() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    Thread(target=watch, daemon=True).start()


def _work(pipe: Connection, job: Job) -> None:
    """The life of a worker process: shards in, events out, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    end_with_parent()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    try:
        with closing(Worker(job)) as worker:
            while True:
                for event in worker(pipe.recv()):
                    pipe.send(event)
    except (EOFError, BrokenPipeError):
        return  # the driver is gone
    except SalienceError as error:
        pipe.send(error)
    except Exception as error:  # not every exception can travel
        pipe.send(RuntimeError(f"{type(error).__name__} in a worker process: {error}"))
