"""Explaining a whole data set into a run folder, by an engine, with an eye on how it goes."""

import json
import platform
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import psutil
import torch

import salience
from salience import data as _data
from salience.data import Row, Shard, Source
from salience.engines import local
from salience.errors import BadInput, choose
from salience.explainer import AnyMethod, as_target, each_layer, explain_encoded, listed, prepare, targets
from salience.explanation import Explanation
from salience.runs import FORMAT, Parts, Run, agreed, locked, open_run, read_manifest, write_manifest
from salience.types import Encoded, Model, Target
from salience.work import About, Checkpoint, Event, Job, Part, Worker, columns, digest

ENGINES = ("local", "ray")
EVERY = 0.5
"""Seconds between reports of progress, but for those of finished parts."""

ENOUGH = 100
"""Rows to be seen before their share of bad ones can stop a run."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. ``texts`` counts all that is done; tokens, seconds and rates begin after the first batch."""

    texts: int
    of: int
    rejected: int
    truncated: int
    tokens: int
    seconds: float
    memory: int
    """Bytes held by this process and its workers on this machine."""
    before: int = 0
    """Texts that were done when the clock began: those of earlier starts, and of the first batch of this one."""

    @property
    def texts_per_second(self) -> float:
        return (self.texts - self.before) / max(self.seconds, 1e-9)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)

    @property
    def remaining(self) -> float | None:
        """Seconds, if the rest goes like what is done."""
        rate = self.texts_per_second
        return (self.of - self.texts - self.rejected) / rate if rate else None

    def to_dict(self) -> dict[str, Any]:
        rates = {name: getattr(self, name) for name in ("texts_per_second", "tokens_per_second", "remaining")}
        return asdict(self) | rates


def explain_data(
    model: Model | Checkpoint | str,
    data: Source | str | Path,
    out: str | Path,
    method: AnyMethod | Sequence[AnyMethod] = "integrated_gradients",
    *,
    target: Target | str | int | None = None,
    against: str | int | None = None,
    kind: str = "logit",
    engine: str = "local",
    workers: int | Literal["auto"] | None = None,
    address: str | None = None,
    budget: int | None = None,
    rows_per_part: int = 1000,
    limit: int | None = None,
    max_rejected: float = 0.1,
    report: Callable[[Progress], None] | None = None,
    **settings: Any,
) -> Run:
    """Explain every text of a data set into the run folder ``out``; called again, it goes on where it stopped.

    ``model`` is a name or folder, or a loaded model. ``data`` is a file, folder, glob or data set name, or a
    :func:`salience.data.source` with its columns named. Rows that cannot be used go to ``rejected.jsonl``; when they
    are more than ``max_rejected`` of all, the run stops. ``report`` is told of the progress. ``workers`` are processes,
    one per GPU if left out; ``"auto"`` starts one for every core once the work turns out to be long.

    >>> explain_data("sentiment", "reviews.jsonl", "run", "integrated_gradients", nodes=16)     # doctest: +SKIP
    """
    _check(engine, workers, address, rows_per_part, limit)
    wanted = as_target(target, against, kind)
    known = Checkpoint(model) if isinstance(model, str) else model
    auto, workers = workers == "auto", None if workers == "auto" else workers
    count = (workers or usual_workers(known)) if engine == "local" else 0
    with locked(folder := Path(out)):
        plan = planned(known, data, method, settings, wanted, rows_per_part, limit, here=count == 1, budget=budget)
        before = agreed(folder, plan.identity)
        if before is not None and before["finished"] is not None and before["limit"] == limit:
            return open_run(folder)
        _begun(folder, plan, engine, limit, before)
        parts = Parts(folder)
        done = parts.prepare(plan.shards)
        waiting = [shard for shard in plan.shards if shard.number not in done]
        tally = _Tally.of(done.values(), plan, max_rejected, report)
        # Closed at once, whatever stops the run: an error may be kept, and with it what an engine has started.
        with closing(_events(plan, waiting, count, workers, address, auto=auto)) as events:
            for event in events:
                if isinstance(event, Part):
                    parts.commit(event)
                tally.add(event)
        tally.check(least=1)
        _ended(folder, plan, tally)
    return open_run(folder)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to do, and what tells it from any other."""

    job: Job
    model: Model
    """The same as the job's, loaded."""
    shards: tuple[Shard, ...]
    identity: Mapping[str, Any]
    seen: Mapping[str, tuple[int, int]]
    """Size and time of each data file when it was looked at."""


def _check(engine: str, workers: object, address: str | None, rows_per_part: int, limit: int | None) -> None:
    choose(engine, ENGINES, "engine")
    if isinstance(workers, str):
        choose(workers, ("auto",), "number of workers")
    for name, value in (("workers", workers), ("rows_per_part", rows_per_part), ("limit", limit)):
        if isinstance(value, int) and value < 1:
            raise BadInput(f"{name}={value} must be at least 1")
    if address is not None and engine != "ray":
        raise BadInput("an address is for the engine 'ray'; the engine 'local' is this machine")


def planned(
    model: Model | Checkpoint,
    data: Source | str | Path,
    method: AnyMethod | Sequence[AnyMethod],
    settings: Mapping[str, Any],
    target: Target,
    rows_per_part: int,
    limit: int | None,
    *,
    here: bool = True,
    budget: int | None = None,
) -> Plan:
    """Everything that can be wrong before the work starts is found here, where the model may not do the work itself."""
    asked = prepare(method, settings)
    source = data if isinstance(data, Source) else _data.source(str(data))
    seen = _stats(source)
    loaded = (model if here else model.on_cpu()).load() if isinstance(model, Checkpoint) else model
    targets(loaded, target, torch.zeros(0, len(loaded.labels)))  # an unknown label is found before the work starts
    each = each_layer(loaded, asked)
    named = zip(columns(each), each, strict=True)
    job = Job(model, digest(loaded), listed(method), settings, target, source, budget=budget)
    identity = {
        "format": FORMAT,
        "model": {"name": loaded.name, "digest": job.digest},
        "methods": {c: {"method": a.method.__name__, "settings": dict(a.settings)} for c, a in named},
        "target": asdict(target),
        "data": _data.fingerprint(source),
        "columns": {"text": source.text, "pair": source.pair, "id": source.id, "label": source.label},
        "rows_per_part": rows_per_part,
    }
    shards = tuple(_data.shards(source, rows=rows_per_part, limit=limit))
    return Plan(job, loaded, shards, json.loads(json.dumps(identity, default=str)), seen)


def _stats(source: Source) -> dict[str, tuple[int, int]]:
    found = {file: Path(file).stat() for file in source.files}
    return {file: (stat.st_size, stat.st_mtime_ns) for file, stat in found.items()}


def _begun(folder: Path, plan: Plan, engine: str, limit: int | None, before: Mapping[str, Any] | None) -> None:
    """Write the manifest, and in it this start after the earlier ones. The limit may grow from start to start."""
    if before is not None and (limit or inf) < (before["limit"] or inf):
        raise BadInput(f"{folder} was begun with limit = {before['limit']}, and {limit} is less; use another folder")
    starts = [] if before is None else before["starts"]
    packages = {name: version(name) for name in ("torch", "transformers", "pyarrow")}
    start = {"time": _now(), "engine": engine, "salience": salience.__version__, **packages, "on": platform.platform()}
    write_manifest(folder, {**plan.identity, "limit": limit, "starts": [*starts, start], "finished": None})


def _ended(folder: Path, plan: Plan, tally: "_Tally") -> None:
    if _stats(plan.job.source) != plan.seen and _data.fingerprint(plan.job.source) != plan.identity["data"]:
        raise BadInput(
            f"{plan.job.source.name} changed while it was read, so the run may hold rows of two versions; delete "
            f"{folder} and start again"
        )
    done = {"texts": tally.texts, "rejected": tally.rejected, "truncated": tally.truncated, "time": _now()}
    write_manifest(folder, {**read_manifest(folder), "finished": done})


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _events(
    plan: Plan, shards: Sequence[Shard], local_workers: int, workers: int | None, address: str | None, *, auto: bool
) -> Generator[Event]:
    if not shards:
        return
    if not local_workers:
        from salience.engines import ray

        yield from ray.cluster(plan.job, shards, workers, address)
    elif local_workers > 1:
        yield from local.pool(plan.job, shards, min(len(shards), local_workers))
    elif auto:
        yield from local.as_it_pays(plan.model, plan.job, shards)
    else:
        yield from local.here(plan.model, plan.job, shards)


def usual_workers(model: Model | Checkpoint) -> int:
    """One per device, where a model is loaded by name on any of several."""
    several = isinstance(model, Checkpoint) and model.options.get("device") == "cuda"
    return max(1, torch.cuda.device_count()) if several else 1


@dataclass(slots=True)
class _Tally:
    """What is done so far, and whether too much of it was rejected."""

    total: int
    most: float
    report: Callable[[Progress], None] | None
    began: float | None = None
    before: int = 0
    texts: int = 0
    tokens: int = 0
    truncated: int = 0
    rejected: int = 0
    first: str = ""
    said: float = 0.0

    @classmethod
    def of(cls, done: Iterable[About], plan: Plan, most: float, report: Callable[[Progress], None] | None) -> "_Tally":
        tally = cls(sum(s.rows for s in plan.shards), most, report)
        for about in done:
            tally.before += about.texts
            tally._note(about)
        tally.texts = tally.before
        return tally

    def add(self, event: Event) -> None:
        if isinstance(event, Part):
            self._note(event.about)
            self.check(least=ENOUGH)
        elif self.began is None:  # what came before was loading
            self.texts += event.texts
            self.before, self.began = self.texts, monotonic()
        else:
            self.texts += event.texts
            self.tokens += event.tokens
        # Counting memory looks at every process of the machine, so it is not done for every batch.
        if self.report is not None and (isinstance(event, Part) or monotonic() - self.said >= EVERY):
            self.said = monotonic()
            self.report(self._progress())

    def _note(self, about: About) -> None:
        self.truncated += about.truncated
        self.rejected += len(about.rejected)
        if about.rejected and not self.first:
            bad = about.rejected[0]
            self.first = f"line {bad.line} of {Path(bad.file).name}: {bad.reason}"

    def check(self, least: int) -> None:
        """Stop where more than a share of at least so many rows is bad, or at the end if all are."""
        seen = self.texts + self.rejected
        if seen >= least and self.rejected and (self.rejected > self.most * seen or not self.texts):
            raise BadInput(
                f"{self.rejected} of {seen} rows cannot be used, more than the share of {self.most:g} that is let pass "
                f"(the first: {self.first}). rejected.jsonl in the run folder lists them; --max-rejected, in Python "
                "max_rejected, lets more pass."
            )

    def _progress(self) -> Progress:
        return Progress(
            texts=self.texts,
            of=self.total,
            rejected=self.rejected,
            truncated=self.truncated,
            tokens=self.tokens,
            seconds=0.0 if self.began is None else monotonic() - self.began,
            memory=_memory(),
            before=self.before,
        )


def _memory() -> int:
    this = psutil.Process()
    return sum(p.memory_info().rss for p in (this, *this.children(recursive=True)))


# ---------------------------------------------------------------------------------------------------- the estimate

SAMPLE = 64
"""Texts of each of three places in the data that are explained to see what a run will cost."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a run would cost here, from a few texts of every part of the data."""

    texts: int
    tokens: int
    passes: int
    """Calls of the model, each of up to ``budget`` tokens."""
    budget: int
    seconds: float
    bytes: int
    """Of the Parquet parts."""
    sample: int
    """Texts that the estimate rests on."""


def estimate(
    model: Model | Checkpoint | str,
    data: Source | str | Path,
    method: AnyMethod | Sequence[AnyMethod] = "integrated_gradients",
    *,
    target: Target | str | int | None = None,
    against: str | int | None = None,
    kind: str = "logit",
    limit: int | None = None,
    **settings: Any,
) -> Estimate:
    """What :func:`explain_data` would cost with one worker, measured on a few texts from all over the data."""
    wanted = as_target(target, against, kind)
    known = Checkpoint(model) if isinstance(model, str) else model
    plan = planned(known, data, method, settings, wanted, SAMPLE, limit)
    with closing(Worker(plan.job, plan.model)) as worker:
        chosen = _spread(plan.shards)
        read = [worker.encoded(shard) for shard in chosen]
        rows, encoded = [row for r, _, _ in read for row in r], [e for _, es, _ in read for e in es]
        if not rows:
            raise BadInput(f"none of {sum(s.rows for s in chosen)} rows from all over the data can be used")
        _explained(worker, rows[:2], encoded[:2])  # the first passes of a process are slow
        with _calls(plan.model) as calls:
            began = monotonic()
            found = _explained(worker, rows, encoded)
            size = len(worker.parquet(rows, found, About(len(rows), 0, 0, ())))
            seconds = monotonic() - began
    more = sum(s.size for s in plan.shards) / sum(s.size for s in chosen)
    return Estimate(
        texts=sum(s.rows for s in plan.shards),
        tokens=round(more * sum(map(len, encoded))),
        passes=round(more * len(calls)),
        budget=plan.model.budget,
        seconds=more * seconds,
        bytes=round(more * size),
        sample=len(rows),
    )


def _explained(worker: Worker, rows: Sequence[Row], encoded: Sequence[Encoded]) -> dict[int, list[Explanation]]:
    batches = explain_encoded(worker.model, encoded, worker.asked, worker.wanted(rows))
    return {number: row for batch in batches for number, row in batch.items()}


@contextmanager
def _calls(model: Model) -> Generator[list[int]]:
    """Grows by one with every pass."""
    calls: list[int] = []
    handle = model.module.register_forward_pre_hook(lambda *_: calls.append(1))
    try:
        yield calls
    finally:
        handle.remove()


def _spread(shards: Sequence[Shard], count: int = 3) -> list[Shard]:
    """Some from all over: the first, the last and those between."""
    if len(shards) <= count:
        return list(shards)
    return [shards[round(i * (len(shards) - 1) / (count - 1))] for i in range(count)]
