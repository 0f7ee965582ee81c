"""The local engine: one worker in this process, or a pool of worker processes."""

import os
import signal
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import monotonic

import psutil
import torch

from salience.core.processes import end_with_parent
from salience.core.types import Model
from salience.data import Shard
from salience.errors import SalienceError
from salience.models.loading import Checkpoint
from salience.runs.parts import Event, Part
from salience.runs.worker import Job, Worker


def here(model: Model, job: Job, shards: Iterable[Shard]) -> Iterator[Event]:
    """Run one worker in this process, with the loaded model."""
    with closing(Worker(job, model)) as worker:
        for shard in shards:
            yield from worker(shard)


WORTH_A_POOL = 60.0
"""Seconds of remaining work above which a pool of processes is started."""

PROCESS_MEMORY = 2**29
"""Bytes that a process needs in addition to the model's weights."""


def auto(model: Model, job: Job, shards: Sequence[Shard]) -> Iterator[Event]:
    """Time the first shard in this process; if the rest takes long, start one process per core.

    Two processes of one thread each are about 1.4 times as fast as one process of two threads, since only the matrix
    products run in parallel threads.
    """
    started = monotonic()
    yield from here(model, job, shards[:1])
    rest = shards[1:]
    left = (monotonic() - started) / shards[0].rows * sum(shard.rows for shard in rest)
    workers = min(len(rest), _max_processes(model))
    on_cpu = isinstance(job.model, Checkpoint) and model.words.weight.device.type == "cpu"
    yield from pool(job, rest, workers) if on_cpu and workers > 1 and left > WORTH_A_POOL else here(model, job, rest)


def _max_processes(model: Model) -> int:
    """The number of processes that the cores and half of the free memory allow."""
    size = sum(p.numel() * p.element_size() for p in model.module.parameters())
    return min(torch.get_num_threads(), psutil.virtual_memory().available // 2 // (size + PROCESS_MEMORY))


def pool(job: Job, shards: Iterable[Shard], workers: int) -> Iterator[Event]:
    """Run several workers, each in its own process, with the CPU threads or GPUs divided among them."""
    waiting = iter(shards)
    with _started(job, workers) as processes:
        busy = {pipe: process for pipe, process in processes.items() if _hand_out(pipe, process, waiting)}
        while busy:
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                event = _receive(pipe, busy[pipe])
                if isinstance(event, Part) and not _hand_out(pipe, busy[pipe], waiting):
                    del busy[pipe]
                yield event


def _hand_out(pipe: Connection, process: BaseProcess, waiting: Iterator[Shard]) -> bool:
    """Send a worker its next shard; returns False if there is none left."""
    shard = next(waiting, None)
    if shard is not None:
        try:
            pipe.send(shard)
        except OSError:
            raise _died(process) from None
    return shard is not None


def _receive(pipe: Connection, process: BaseProcess) -> Event:
    try:
        message = pipe.recv()
    except (EOFError, OSError):
        raise _died(process) from None
    if isinstance(message, BaseException):
        raise message
    return message


def _died(process: BaseProcess) -> SalienceError:
    process.join()
    code = process.exitcode or 0
    why = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    if code == 1:
        return SalienceError(
            f"a worker process could not start ({why}). In a script, call salience under `if __name__ == '__main__':`, "
            "because each worker imports the script again."
        )
    return SalienceError(
        f"a worker process ended unexpectedly ({why}). The usual cause is lack of memory: use fewer workers. Finished "
        "parts are saved; run the same command to resume."
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
            theirs.close()  # so that the pipe ends when the worker does
        yield {ours: process for (ours, _), process in zip(pipes, processes, strict=True)}
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
        for process in processes:
            if process.pid is not None:
                process.join()


def _share(job: Job, number: int, workers: int) -> Job:
    """The job of worker ``number``, with its own GPU and its share of the CPU threads."""
    threads = max(1, torch.get_num_threads() // workers)
    model = job.model
    if isinstance(model, Checkpoint) and model.options.get("device") == "cuda":
        device = f"cuda:{number % torch.cuda.device_count()}"
        model = Checkpoint(model.name, {**model.options, "device": device})
    return replace(job, threads=threads, model=model)


def _work(pipe: Connection, job: Job) -> None:
    """The main function of a worker process: receive shards and send events until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
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
    except Exception as error:  # not every exception can be pickled
        pipe.send(RuntimeError(f"{type(error).__name__} in a worker process: {error}"))
