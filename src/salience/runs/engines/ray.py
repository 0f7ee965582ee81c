"""The Ray engine: Ray Data sends shards to a pool of actors on any number of machines and streams the parts back.

Every machine must have the data and the model under the same names as this one. If a machine is lost, its unfinished
shards are processed again elsewhere.
"""

import gc
import logging
import os
import pickle
import signal
import socket
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from uuid import uuid4

import pyarrow as pa
import torch

from salience.data import Shard
from salience.errors import BadInput, SalienceError
from salience.models.loading import Checkpoint
from salience.runs.parts import About, Advance, Event, Part
from salience.runs.worker import Job, Worker

AHEAD = 2
"""Shards assigned to an actor at a time: the current one and the next, so that it never waits."""

TRIES = 3
"""Number of workers that may die on a shard before it is given up, and of pools that may fail without a result."""

SILENT = {"RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_USAGE_STATS_ENABLED": "0"}
"""Environment of a connection: no log lines on standard error, no usage statistics."""

OURS = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
"""Environment of a cluster started here: it uses the packages of this process."""

HERE = "local"
"""Ray's address for a new cluster on this machine."""

TIMEOUT = 5.0
"""Seconds to wait for a cluster to accept a connection."""


def cluster(job: Job, shards: Iterable[Shard], workers: int | None, address: str | None) -> Iterator[Event]:
    """Run the job on a Ray cluster, by default with one worker per CPU or GPU.

    Without an address, a cluster is started on this machine.
    """
    if workers is not None and workers < 1:
        raise BadInput(f"workers={workers} must be at least 1")
    waiting = {shard.number: shard for shard in shards}
    with _marks() as marks, _connected(address, workers and workers * _cpus(job)) as ray:
        failed = 0
        while waiting:
            before = len(waiting)
            try:
                size = min(before, workers or _capacity(ray.cluster_resources(), job))
                yield from _parts(_rows(ray, job, list(waiting.values()), size, marks), waiting)
                why = f"it lost {len(waiting)} parts."
            except ray.exceptions.RayError as error:
                why = _reason(error)
            # A pool of actors fails if it finishes all shards while one of its actors is still being started.
            failed = failed + 1 if len(waiting) == before else 0
            if failed == TRIES:
                raise SalienceError(_failure(why))


def _parts(rows: Generator[dict[str, Any]], waiting: dict[int, Shard]) -> Iterator[Event]:
    """Yield the finished parts and remove them from `waiting`."""
    with closing(rows):
        for row in rows:
            # A shard is processed twice if its machine is lost just after finishing it.
            if (shard := waiting.pop(row["number"], None)) is not None:
                about = About.from_json(row["about"])
                yield Advance(about.texts, about.tokens)
                yield Part(shard, row["data"], about)


# ------------------------------------------------------------------------------------------------------ the actors


class Actor:
    """A worker of the pool. Errors are returned as data, because Ray would wrap them in its own exceptions."""

    def __init__(self, job: bytes, threads: int, marks: str, folder: str) -> None:
        self.job, self.marks = job, marks
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        torch.set_num_threads(threads)
        if os.path.isdir(folder):  # file names may be relative to the folder where the run was started
            os.chdir(folder)

    @cached_property
    def worker(self) -> Worker:
        return Worker(pickle.loads(self.job))

    def __call__(self, rows: pa.Table) -> pa.Table:
        (row,) = rows.to_pylist()
        try:
            part = self._part(Shard(**row))
            return _table(row["number"], part.data, part.about.to_json(), None)
        except SalienceError as error:
            return _table(row["number"], b"", "", error)
        except Exception as error:  # not every exception can be pickled
            failure = RuntimeError(f"{type(error).__name__} in a worker: {' '.join(str(error).split())}")
            return _table(row["number"], b"", "", failure)

    def _part(self, shard: Shard) -> Part:
        with _marked(Path(gettempdir()) / f"{self.marks}-{shard.number}") as deaths:
            if deaths >= TRIES:
                raise SalienceError(
                    f"{deaths} workers died on rows {shard.first} to {shard.first + shard.rows - 1} of the data. The "
                    "usual cause is lack of memory: use fewer workers per machine, or fewer rows per part. Finished "
                    "parts are saved; run the same command to resume."
                )
            *_, part = self.worker(shard)
        assert isinstance(part, Part)
        return part


@contextmanager
def _marked(mark: Path) -> Generator[int]:
    """Count how often this shard was started on this machine and never finished; Ray itself would retry forever."""
    with mark.open("ab") as file:
        deaths = file.tell()
        file.write(b".")
    try:
        yield deaths
    finally:
        mark.unlink(missing_ok=True)


@contextmanager
def _marks() -> Generator[str]:
    """The file name prefix of a run's marks. Marks left by dead workers on this machine are deleted at the end."""
    name = f"salience-{uuid4().hex}"
    try:
        yield name
    finally:
        for mark in Path(gettempdir()).glob(f"{name}-*"):
            mark.unlink(missing_ok=True)


def _table(number: int, data: bytes, about: str, error: Exception | None) -> pa.Table:
    row = {"number": number, "data": data, "about": about, "error": pickle.dumps(error)}
    return pa.Table.from_pylist([row])


def _cpus(job: Job) -> int:
    return job.threads or 1


def _gpus(job: Job) -> int:
    model = job.model
    named = isinstance(model, Checkpoint)
    device = str(model.options.get("device") if named else next(model.module.parameters()).device)
    return int(device.startswith("cuda"))


def _capacity(resources: Mapping[str, float], job: Job) -> int:
    """The number of actors that the cluster currently has resources for."""
    count = resources.get("GPU", 0) if _gpus(job) else resources.get("CPU", 0) // _cpus(job)
    return max(1, int(count))


# ------------------------------------------------------------------------------------------------------ the data set


def _rows(ray: Any, job: Job, shards: list[Shard], size: int, marks: str) -> Generator[dict[str, Any]]:
    """Yield the results of the actors as they arrive. Each shard is one block, so shards are scheduled separately."""
    # Ray Data restarts dead actors and retries their shards without limit.
    data = ray.data.from_items([asdict(shard) for shard in shards], override_num_blocks=len(shards)).map_batches(
        Actor,
        fn_constructor_args=(_packed(ray, _on_its_own_device(job)), _cpus(job), marks, os.getcwd()),
        batch_size=1,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=AHEAD),
        num_cpus=_cpus(job),
        num_gpus=_gpus(job),
    )
    data.context.enable_progress_bars = False
    data.context.execution_no_progress_timeout_s = -1  # one shard may take hours
    for bundle in data.iter_internal_ref_bundles():
        for row in (row for block in bundle.block_refs for row in ray.get(block).to_pylist()):
            if (error := pickle.loads(row["error"])) is not None:
                raise error
            yield row


def _on_its_own_device(job: Job) -> Job:
    """Use the one GPU that Ray makes visible to each actor."""
    if isinstance(job.model, Checkpoint) and _gpus(job):
        return replace(job, model=replace(job.model, options={**job.model.options, "device": "cuda"}))
    return job


def _packed(ray: Any, job: Job) -> bytes:
    try:
        return ray.cloudpickle.dumps(job)
    except Exception as error:
        raise BadInput(
            f"the model or the method cannot be sent to the workers ({error}). Pass the model by name, and a method "
            "that can be pickled."
        ) from error


def _reason(error: Exception) -> str:
    why = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {why}"


def _failure(why: str) -> str:
    return (
        f"the cluster failed {TRIES} times: {why} The usual cause is lack of memory, a machine without the same "
        "packages, salience included, or, in Python, an earlier run of this process that started a cluster of its own: "
        "use a new process then. Finished parts are saved; run the same command to resume."
    )


# ------------------------------------------------------------------------------------------------------ the cluster


@contextmanager
def _connected(address: str | None, cpus: int | None) -> Generator[Any]:
    """Connect to a cluster, or start one. Only what is started or connected here is shut down afterwards."""
    place = address or os.environ.get("RAY_ADDRESS") or HERE
    with ExitStack() as stack:
        stack.enter_context(_environment(SILENT | OURS if place == HERE else SILENT))
        ray = _library()
        stack.enter_context(_quiet("ray.data"))
        if not ray.is_initialized():
            stack.enter_context(_quiet("ray"))
            stack.callback(ray.shutdown)
            _connect(ray, place, cpus)
        else:
            _check_same(address, ray.get_runtime_context().gcs_address)
            stack.callback(gc.collect)  # Ray Data leaves reference cycles that keep its actors alive
        yield ray


def _library() -> Any:
    try:
        ray = import_module("ray")
        import_module("ray.data")
    except ImportError as error:
        raise BadInput(f"the engine 'ray' is not installed ({error}): pip install 'salience[ray]'") from error
    return ray


def _connect(ray: Any, place: str, cpus: int | None) -> None:
    ours = {"num_cpus": cpus, "include_dashboard": False} if place == HERE else {}
    try:
        _check_open(place)
        with _no_errors_shown(), _own_termination():
            ray.init(place, log_to_driver=False, logging_level=logging.CRITICAL, **ours)
    except Exception as error:  # Ray raises a plain Exception if its processes do not start in time
        why = " ".join(str(error).split())
        if place == HERE:
            raise SalienceError(
                f"Ray could not start a cluster on this machine: {why} Run the same command again when the machine is "
                "less busy, or use the engine 'local'."
            ) from error
        raise BadInput(
            f"there is no Ray cluster at {place!r} ({why}). On a machine of the cluster, pass HOST:PORT of its head "
            "node, as printed by `ray start`, or 'auto'."
        ) from error


def _check_open(place: str) -> None:
    """Check that the port is open, because Ray itself would wait for minutes."""
    if "://" in place:
        raise ValueError("addresses of Ray Client are not supported")
    host, colon, port = place.rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT).close()


def _check_same(address: str | None, connected: str) -> None:
    if address not in (None, "auto") and _resolved(address) != _resolved(connected):
        raise BadInput(
            f"this process is connected to the Ray cluster at {connected}, not at {address}; leave out the address, or "
            "call ray.shutdown() first"
        )


def _resolved(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        return f"{socket.gethostbyname(host)}:{port}"
    except OSError:
        return address


@contextmanager
def _environment(values: Mapping[str, str]) -> Generator[None]:
    """Set environment variables for Ray, and restore all of Ray's variables afterwards."""

    def rays() -> dict[str, str]:
        return {name: os.environ[name] for name in os.environ if name.startswith("RAY_") or name == "PYTHONBREAKPOINT"}

    before = rays()
    os.environ.update(values)
    try:
        yield
    finally:
        for name in rays().keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _no_errors_shown() -> Generator[None]:
    """Redirect the file descriptor of standard error, because Ray writes to it while starting even when silenced."""
    saved = os.dup(2)
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


@contextmanager
def _quiet(name: str) -> Generator[None]:
    """Silence a logger."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _own_termination() -> Generator[None]:
    """Restore the SIGTERM handler that Ray replaces while connecting."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
