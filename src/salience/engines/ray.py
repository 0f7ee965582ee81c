"""A Ray cluster: Ray Data hands the shards to a pool of actors, on however many machines, and streams the parts back.

Every machine must find the data and the model under the same names as this one. A machine that is lost takes no part of
the run with it: what it was at work on is done again elsewhere.
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
from salience.work import About, Advance, Checkpoint, Event, Job, Part, Worker

AHEAD = 2
"""Shards that an actor has at a time: one that it works on and one that waits, so that it never does."""

TRIES = 3
"""Workers that may die over a shard before the shard is held to be the cause."""

SILENT = {"RAY_BACKEND_LOG_LEVEL": "fatal", "RAY_USAGE_STATS_ENABLED": "0"}
"""The environment of a connection: no lines on standard error about what Ray mends by itself, no reports to others."""

OURS = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
"""That of a cluster that is started here: its packages are those of this process."""

HERE = "local"
"""Ray's address for a new cluster on this machine."""

KNOCK = 5.0
"""Seconds in which a cluster must answer."""


def cluster(job: Job, shards: Iterable[Shard], workers: int | None, address: str | None) -> Iterator[Event]:
    """One worker per CPU or GPU of the cluster, or so many. Without an address, a cluster is started here."""
    if workers is not None and workers < 1:
        raise BadInput(f"workers={workers}: a cluster needs at least one")
    waiting = {shard.number: shard for shard in shards}
    with _marks() as marks, _connected(address, workers and workers * _cpus(job)) as ray:
        size = min(len(waiting), workers or _room(ray.cluster_resources(), job))
        with closing(_rows(ray, job, list(waiting.values()), size, marks)) as rows:
            for row in rows:
                # A shard is worked on twice if its machine is lost just after the work.
                if (shard := waiting.pop(row["number"], None)) is not None:
                    about = About.from_json(row["about"])
                    yield Advance(about.texts, about.tokens)
                    yield Part(shard, row["data"], about)
    if waiting:
        raise SalienceError(f"the cluster lost {len(waiting)} of the parts; the same command works on those alone")


# ------------------------------------------------------------------------------------------------------ the actors


class Actor:
    """A worker of the pool. Errors travel as data, since Ray would wrap them in reports of its own."""

    def __init__(self, job: bytes, threads: int, marks: str, folder: str) -> None:
        self.job, self.marks = job, marks
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        torch.set_num_threads(threads)
        if os.path.isdir(folder):  # names of files may be relative to where the run was started
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
        except Exception as error:  # not every exception can travel
            lost = RuntimeError(f"{type(error).__name__} in a worker: {' '.join(str(error).split())}")
            return _table(row["number"], b"", "", lost)

    def _part(self, shard: Shard) -> Part:
        with _marked(Path(gettempdir()) / f"{self.marks}-{shard.number}") as deaths:
            if deaths >= TRIES:
                raise SalienceError(
                    f"{deaths} workers died over rows {shard.first} to {shard.first + shard.rows - 1} of the data. Out "
                    "of memory is the usual cause: use fewer workers per machine, or fewer rows per part. Finished "
                    "parts are kept; the same command goes on from there."
                )
            *_, part = self.worker(shard)
        assert isinstance(part, Part)
        return part


@contextmanager
def _marked(mark: Path) -> Generator[int]:
    """How often the work that follows was begun on this machine and never ended: Ray would begin it again for ever."""
    with mark.open("ab") as file:
        deaths = file.tell()
        file.write(b".")
    try:
        yield deaths
    finally:
        mark.unlink(missing_ok=True)


@contextmanager
def _marks() -> Generator[str]:
    """How the marks of a run are called. Those that dead workers left on this machine are swept up in the end."""
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


def _room(resources: Mapping[str, float], job: Job) -> int:
    """How many actors the cluster has room for, as it is now."""
    room = resources.get("GPU", 0) if _gpus(job) else resources.get("CPU", 0) // _cpus(job)
    return max(1, int(room))


# ------------------------------------------------------------------------------------------------------ the data set


def _rows(ray: Any, job: Job, shards: list[Shard], size: int, marks: str) -> Generator[dict[str, Any]]:
    """What the actors give back, as it comes. A shard is a block, so that each is handed out and returned by itself."""
    # Ray Data by itself restarts actors and begins their shards again, as often as it takes.
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
    try:
        for bundle in data.iter_internal_ref_bundles():
            for row in (row for block in bundle.block_refs for row in ray.get(block).to_pylist()):
                if (error := pickle.loads(row["error"])) is not None:
                    raise error
                yield row
    except ray.exceptions.RayError as error:
        raise SalienceError(_lost(error)) from error


def _on_its_own_device(job: Job) -> Job:
    """Ray shows an actor the one device that it may use."""
    if isinstance(job.model, Checkpoint) and _gpus(job):
        return replace(job, model=replace(job.model, options={**job.model.options, "device": "cuda"}))
    return job


def _packed(ray: Any, job: Job) -> bytes:
    try:
        return ray.cloudpickle.dumps(job)
    except Exception as error:
        raise BadInput(
            f"the model or the method cannot be sent to the workers ({error}); give the model by its name, and a "
            "function that refers to nothing that belongs to this process alone"
        ) from error


def _lost(error: Exception) -> str:
    why = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return (
        f"the cluster could not do the work: {type(error).__name__}: {why} Out of memory is the usual cause, or a "
        "machine without salience: every one needs the same packages. Finished parts are kept; the same command goes "
        "on from there."
    )


# ------------------------------------------------------------------------------------------------------ the cluster


@contextmanager
def _connected(address: str | None, cpus: int | None) -> Generator[Any]:
    """Ray with a connection to a cluster. What is started or connected here, and only that, is ended afterwards."""
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
            stack.callback(gc.collect)  # what Ray Data leaves refers to itself, and the actors live as long as it does
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
    except (OSError, RuntimeError, ValueError) as error:
        why = " ".join(str(error).split())
        if place == HERE:
            raise SalienceError(f"Ray could not start a cluster on this machine: {why}") from error
        raise BadInput(
            f"there is no Ray cluster at {place!r} ({why}). On a machine of the cluster, give HOST:PORT of its head, "
            "as `ray start` prints it, or 'auto'."
        ) from error


def _check_open(place: str) -> None:
    """Knock at the door first: Ray itself would wait for minutes."""
    if "://" in place:
        raise ValueError("addresses of Ray Client are not supported")
    host, colon, port = place.rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK).close()


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
    """Ray's environment with some values; it is as before afterwards, whatever Ray has added to it."""

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
    """Standard error closed, below Python: told to be silent, Ray first says there that it will be."""
    shown = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(shown, 2)
        os.close(shown)


@contextmanager
def _quiet(name: str) -> Generator[None]:
    """No lines of a logger between ours."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _own_termination() -> Generator[None]:
    """SIGTERM ends this process as before: connected to Ray, it would crash. What Ray has started here ends with it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
