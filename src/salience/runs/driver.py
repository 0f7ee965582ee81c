"""Explain a whole data set into a run folder, with progress reports and cost estimates."""

import json
import platform
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from hashlib import blake2b
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import psutil
import pyarrow as pa
import torch

import salience
from salience import data as _data
from salience.core.files import complete, locked
from salience.core.target import Target
from salience.core.text import Encoded, Text
from salience.core.types import Model
from salience.data import Row, Shard, Source
from salience.data.rows import check_ids
from salience.data.texts import in_memory, texts_of
from salience.errors import BadInput, choose
from salience.explanations.explainer import AnyMethod, as_list, as_target
from salience.models.identity import digest
from salience.models.loading import Checkpoint, as_model
from salience.runs.engines import check_engine, local
from salience.runs.explaining import Explaining
from salience.runs.folder import (
    FORMAT,
    Parts,
    check_limit,
    check_same_run,
    missing_shards,
    read_manifest,
    write_manifest,
)
from salience.runs.parts import About, Event, Part, to_parquet
from salience.runs.run import Run, open_run
from salience.runs.worker import Job, Task, Worker

EVERY = 0.5
"""Minimum seconds between progress reports, except after a finished part."""

MINIMUM_ROWS = 100
"""Rows to read before too many rejected ones can stop a run."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Progress of a run. ``texts`` counts all finished texts; tokens, seconds and rates start after the first batch."""

    texts: int
    of: int
    rejected: int
    truncated: int
    tokens: int
    seconds: float
    memory: int
    """Bytes of memory used by this process and its workers on this machine."""
    before: int = 0
    """Texts finished before the clock started: those of earlier starts and of the first batch."""

    @property
    def texts_per_second(self) -> float:
        return (self.texts - self.before) / max(self.seconds, 1e-9)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(self.seconds, 1e-9)

    @property
    def remaining(self) -> float | None:
        """Estimated seconds left, at the current rate."""
        rate = self.texts_per_second
        return (self.of - self.texts - self.rejected) / rate if rate else None

    def to_dict(self) -> dict[str, Any]:
        rates = {name: getattr(self, name) for name in ("texts_per_second", "tokens_per_second", "remaining")}
        return asdict(self) | rates


def explain_data(
    model: object,
    data: object,
    out: str | Path,
    method: AnyMethod | Sequence[AnyMethod] | None = None,
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
    report: Callable[[RunProgress], None] | None = None,
    text_column: str = "text",
    pair_column: str | None = None,
    **settings: Any,
) -> Run:
    """Explain every text of a data set and save the explanations in the run folder ``out``.

    If a run is stopped, the same call resumes it. ``model`` is as for :func:`salience.explain`. ``data`` is a file,
    folder, glob or data set name, or a :func:`salience.data.source` that names its columns; or texts in memory, such as
    a list, a DataFrame or a data set, which are copied into the run folder. Invalid rows are listed in
    ``rejected.jsonl``; the run stops if their fraction exceeds ``max_rejected``. ``report`` is called with the
    progress. ``workers`` is the number of processes, by default one per GPU; ``"auto"`` starts one per core if the run
    takes long enough.

    >>> explain_data("sentiment", "reviews.jsonl", "run", "integrated_gradients", nodes=16)     # doctest: +SKIP
    """
    task = Explaining(None if method is None else as_list(method), settings, as_target(target, against, kind))
    options = RunOptions(
        engine, workers, address, budget, rows_per_part, limit, max_rejected, report, text_column, pair_column
    )
    process_data(task, model, data, out, options)
    return open_run(out)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Where a data set is processed, and how much of it; see :func:`explain_data`."""

    engine: str
    workers: int | Literal["auto"] | None
    address: str | None
    budget: int | None
    rows_per_part: int
    limit: int | None
    max_rejected: float
    report: Callable[[RunProgress], None] | None
    text_column: str = "text"
    pair_column: str | None = None

    def __post_init__(self) -> None:
        check_engine(self.engine, self.address)
        if isinstance(self.workers, str):
            choose(self.workers, ("auto",), "number of workers")
        for name in ("workers", "rows_per_part", "limit"):
            if isinstance(value := getattr(self, name), int) and value < 1:
                raise BadInput(f"{name}={value} must be at least 1")

    @property
    def count(self) -> int | None:
        """The number of workers, if one is given."""
        return None if isinstance(self.workers, str) else self.workers


def process_data(task: Task, model: object, data: object, out: str | Path, options: RunOptions) -> "RunPlan":
    """Work on every text of a data set and save the results in a run folder; see :func:`explain_data`."""
    known, columns = _known(model), (options.text_column, options.pair_column)
    texts = texts_of(data, text_column=columns[0], pair_column=columns[1]) if in_memory(data) else None
    workers, limit = options.count, options.limit
    count = (workers or default_workers(known)) if options.engine == "local" else 0
    with locked(folder := Path(out)):
        source = _source(data, folder, texts, *columns)
        earlier = read_manifest(folder) if (folder / "manifest.json").exists() else None
        plan = plan_run(
            task,
            known,
            source,
            options.rows_per_part,
            limit,
            here=count == 1,
            budget=options.budget,
            earlier=earlier,
        )
        before = check_same_run(folder, plan.identity)
        check_limit(folder, before, limit)
        parts, finished = Parts(folder), before is not None and before["finished"] is not None
        done = parts.intact(plan.shards, finished=finished)
        waiting = missing_shards(plan.shards, done)
        if before is not None and finished and before["limit"] == limit and not waiting:
            parts.prepare(done)
            return plan
        _write_start(folder, plan, options.engine, limit, before)
        parts.prepare(done)
        tally = _Tally.of(done.values(), plan, options.max_rejected, options.report)
        # Close the engine at once on an error: a stored traceback would otherwise keep its processes alive.
        auto = options.workers == "auto"
        with closing(_events(plan, waiting, count, workers, options.address, auto=auto)) as events:
            for event in events:
                if isinstance(event, Part):
                    parts.commit(event)
                tally.add(event)
        tally.check(least=1)
        _write_end(folder, plan, tally)
    return plan


def _known(model: object) -> Model | Checkpoint:
    """A model by name stays a name, so that each worker can load it."""
    if isinstance(model, str | Path):
        return Checkpoint(str(model))
    return model if isinstance(model, Checkpoint) else as_model(model)


def _source(data: Any, folder: Path, texts: Sequence[Text] | None, text: str, pair: str | None) -> Source:
    """The source of a run. Texts in memory become a file of the folder, named by its content, for workers to read."""
    if texts is None:
        return data if isinstance(data, Source) else _data.source(str(data), text=text, pair=pair)
    if not texts:
        raise BadInput("there are no texts to explain; pass at least one")
    pairs = [(t, None) if isinstance(t, str) else t for t in texts]
    if len({second is None for _, second in pairs}) > 1:
        raise BadInput("some of these are texts and some are pairs of texts; explain them in two runs")
    lines = "".join(json.dumps({"text": a} | ({} if b is None else {"pair": b})) + "\n" for a, b in pairs).encode()
    file = folder / f".texts-{blake2b(lines, digest_size=8).hexdigest()}.jsonl"
    if not file.exists():
        with complete(file) as stream:
            stream.write(lines)
    return _data.source(str(file), pair=None if pairs[0][1] is None else "pair")


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The work of a run, and what identifies it."""

    job: Job
    model: Model
    """The job's model, loaded."""
    shards: tuple[Shard, ...]
    identity: Mapping[str, Any]
    seen: Mapping[str, tuple[int, int]]
    """Size and modification time of each data file at the start."""


def plan_run(
    task: Task,
    model: Model | Checkpoint,
    data: Source | str | Path,
    rows_per_part: int,
    limit: int | None,
    *,
    here: bool = True,
    budget: int | None = None,
    earlier: Mapping[str, Any] | None = None,
) -> RunPlan:
    """Check all arguments and cut the data into shards, before any work starts.

    ``earlier`` is the manifest of earlier starts in the same folder.
    """
    source = data if isinstance(data, Source) else _data.source(str(data))
    seen = _stats(source)
    loaded = (model if here else model.on_cpu()).load() if isinstance(model, Checkpoint) else model
    settled = task.settled(loaded, source, limit, earlier)
    job = Job(model, digest(loaded), settled, source, budget=budget)
    rationales = {} if source.rationale is None else {"rationale": source.rationale, "spans": source.spans}
    chats = {name: own for name in ("chat", "context", "against") if (own := getattr(source, name)) is not None}
    identity = {
        "format": FORMAT,
        "holds": task.holds,
        "model": {"name": loaded.name, "digest": job.digest},
        **settled.identity(loaded),
        "data": _data.fingerprint(source),
        "columns": {"text": source.text, "pair": source.pair, "id": source.id, "label": source.label}
        | {"target": source.target, "keep": list(source.keep), **rationales, **chats},
        "rows_per_part": rows_per_part,
    }
    shards = tuple(_data.shards(source, rows=rows_per_part, limit=limit))
    if source.id is not None:
        check_ids(source, limit=limit)
    return RunPlan(job, loaded, shards, json.loads(json.dumps(identity, default=str)), seen)


def _stats(source: Source) -> dict[str, tuple[int, int]]:
    stats = {file: Path(file).stat() for file in source.files}
    return {file: (stat.st_size, stat.st_mtime_ns) for file, stat in stats.items()}


def _write_start(folder: Path, plan: RunPlan, engine: str, limit: int | None, before: Mapping[str, Any] | None) -> None:
    """Write the manifest and add this start to it."""
    starts = [] if before is None else before["starts"]
    packages = {name: version(name) for name in ("torch", "transformers", "pyarrow")}
    start = {"time": _now(), "engine": engine, "salience": salience.__version__, **packages, "on": platform.platform()}
    write_manifest(
        folder,
        {
            **plan.identity,
            "outputs": len(plan.model.labels),
            "limit": limit,
            "starts": [*starts, start],
            "finished": None,
        },
    )


def _write_end(folder: Path, plan: RunPlan, tally: "_Tally") -> None:
    if _stats(plan.job.source) != plan.seen and _data.fingerprint(plan.job.source) != plan.identity["data"]:
        raise BadInput(
            f"{plan.job.source.name} changed during the run, so the results may mix two versions of it. Delete "
            f"{folder} and start again."
        )
    counts = {"texts": tally.texts, "rejected": tally.rejected, "truncated": tally.truncated}
    done = {**counts, "parts": len(plan.shards), "time": _now()}
    write_manifest(folder, {**read_manifest(folder), "finished": done})


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _events(
    plan: RunPlan, shards: Sequence[Shard], local_workers: int, workers: int | None, address: str | None, *, auto: bool
) -> Generator[Event]:
    if not shards:
        return
    if not local_workers:
        from salience.runs.engines import ray

        yield from ray.cluster(plan.job, shards, workers, address)
    elif local_workers > 1:
        yield from local.pool(plan.job, shards, min(len(shards), local_workers))
    elif auto:
        yield from local.auto(plan.model, plan.job, shards)
    else:
        yield from local.here(plan.model, plan.job, shards)


def default_workers(model: Model | Checkpoint) -> int:
    """One worker per GPU for a model that is loaded by name on CUDA, otherwise one."""
    several = isinstance(model, Checkpoint) and model.options.get("device") == "cuda"
    return max(1, torch.cuda.device_count()) if several else 1


@dataclass(slots=True)
class _Tally:
    """Counts the finished and rejected rows, and stops the run if too many are rejected."""

    total: int
    max_rejected: float
    report: Callable[[RunProgress], None] | None
    started: float | None = None
    before: int = 0
    texts: int = 0
    tokens: int = 0
    truncated: int = 0
    rejected: int = 0
    first: str = ""
    last_report: float = 0.0

    @classmethod
    def of(
        cls, done: Iterable[About], plan: RunPlan, max_rejected: float, report: Callable[[RunProgress], None] | None
    ) -> "_Tally":
        tally = cls(sum(s.rows for s in plan.shards), max_rejected, report)
        for about in done:
            tally.before += about.texts
            tally._note(about)
        tally.texts = tally.before
        return tally

    def add(self, event: Event) -> None:
        if isinstance(event, Part):
            self._note(event.about)
            self.check(least=MINIMUM_ROWS)
        elif self.started is None:  # the clock starts after the model is loaded
            self.texts += event.texts
            self.before, self.started = self.texts, monotonic()
        else:
            self.texts += event.texts
            self.tokens += event.tokens
        # Measuring memory inspects every process of the machine, so it is not done for every batch.
        if self.report is not None and (isinstance(event, Part) or monotonic() - self.last_report >= EVERY):
            self.last_report = monotonic()
            self.report(self._progress())

    def _note(self, about: About) -> None:
        self.truncated += about.truncated
        self.rejected += len(about.rejected)
        if about.rejected and not self.first:
            bad = about.rejected[0]
            self.first = f"line {bad.line} of {Path(bad.file).name}: {bad.reason}"

    def check(self, least: int) -> None:
        """Raise BadInput if too many of at least ``least`` rows were rejected, or all of them."""
        seen = self.texts + self.rejected
        if seen >= least and self.rejected and (self.rejected > self.max_rejected * seen or not self.texts):
            raise BadInput(
                f"{self.rejected} of {seen} rows cannot be used, more than the allowed {100 * self.max_rejected:g} % "
                f"(the first: {self.first}). They are listed in rejected.jsonl in the run folder. To allow more, use "
                "--max-rejected, or max_rejected in Python."
            )

    def _progress(self) -> RunProgress:
        return RunProgress(
            texts=self.texts,
            of=self.total,
            rejected=self.rejected,
            truncated=self.truncated,
            tokens=self.tokens,
            seconds=0.0 if self.started is None else monotonic() - self.started,
            memory=_memory(),
            before=self.before,
        )


def _memory() -> int:
    this = psutil.Process()
    return sum(map(_resident, (this, *this.children(recursive=True))))


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.Error:  # it has ended meanwhile
        return 0


# ---------------------------------------------------------------------------------------------------- the estimate

ESTIMATE_TEXTS = 64
"""Texts to explain from each of three places in the data."""

ESTIMATE_SECONDS = 15.0
"""How long an estimate may take, apart from reading the data and loading the model."""


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """The estimated cost of a run on this machine."""

    texts: int
    tokens: int
    passes: int
    """Passes of the model, each of up to ``budget`` tokens."""
    budget: int
    seconds: float
    bytes: int
    """Size of the Parquet files."""
    sample: int
    """Number of texts that were explained for the estimate."""


def estimate(
    model: Model | Checkpoint | str,
    data: Source | str | Path,
    method: AnyMethod | Sequence[AnyMethod] | None = None,
    *,
    target: Target | str | int | None = None,
    against: str | int | None = None,
    kind: str = "logit",
    limit: int | None = None,
    within: float = ESTIMATE_SECONDS,
    report: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> CostEstimate:
    """Estimate the cost of :func:`explain_data` with one worker, by explaining a small sample of the data.

    At least one text is explained, and no more than ``within`` seconds allow. ``report`` is called with the progress in
    percent.
    """
    task = Explaining(None if method is None else as_list(method), settings, as_target(target, against, kind))
    return estimate_task(task, model, data, limit=limit, within=within, report=report)


def estimate_task(
    task: Task,
    model: Model | Checkpoint | str,
    data: Source | str | Path,
    *,
    limit: int | None = None,
    within: float = ESTIMATE_SECONDS,
    report: Callable[[int, int], None] | None = None,
) -> CostEstimate:
    """Estimate the cost of a task on every text of a data set; see :func:`estimate`."""
    plan = plan_run(task, Checkpoint(model) if isinstance(model, str) else model, data, ESTIMATE_TEXTS, limit)
    with closing(Worker(plan.job, plan.model)) as worker:
        chosen = _spread(plan.shards)
        read = [worker.encoded(shard) for shard in chosen]
        texts = [text for row in zip_longest(*(zip(r, e, strict=True) for r, e, _ in read)) for text in row if text]
        if not texts:
            raise BadInput(
                f"none of the {sum(s.rows for s in chosen)} sampled rows can be used; check the names of the columns"
            )
        sample = _measured(worker, texts, within, report or (lambda *_: None))
        size = len(to_parquet(pa.concat_tables(sample.tables), About(sample.texts, 0, 0, ())))
    tokens = sum(len(e) for _, e in texts) * sum(s.size for s in plan.shards) / sum(s.size for s in chosen)
    scale = tokens / sample.tokens
    return CostEstimate(
        texts=sum(s.rows for s in plan.shards),
        tokens=round(tokens),
        passes=round(scale * sample.passes),
        budget=plan.model.executor.budget,
        seconds=scale * sample.seconds,
        bytes=round(scale * size),
        sample=sample.texts,
    )


@dataclass(slots=True)
class _Sample:
    """Texts that were explained, and what that took."""

    texts: int = 0
    tokens: int = 0
    tables: list[pa.Table] = field(default_factory=list[pa.Table])
    passes: int = 0
    seconds: float = 0.0

    def explain(self, worker: Worker, texts: Sequence[tuple[Row, Encoded]], count: Callable[[int], None]) -> None:
        """Explain more texts; ``count`` is called with the number of passes so far, and may raise an exception."""
        started, rows, encoded = monotonic(), [row for row, _ in texts], [e for _, e in texts]
        with _counted(worker.model, count) as calls:
            *_, table = worker.work(rows, encoded)
        assert isinstance(table, pa.Table)
        self.tables.append(table)
        self.texts += len(rows)
        self.tokens += sum(map(len, encoded))
        self.passes += len(calls)
        self.seconds += monotonic() - started


class _OutOfTime(Exception):
    """Raised within a pass of the model once an estimate has taken long enough."""


def _measured(
    worker: Worker, texts: Sequence[tuple[Row, Encoded]], within: float, report: Callable[[int, int], None]
) -> _Sample:
    """Explain one text, then two more, four more and so on, until the texts or the time run out."""
    started, sample, first = monotonic(), _Sample(), _Sample()
    # The first passes of a process are slow, so they count only if there are no others.
    first.explain(worker, [min(texts, key=lambda text: len(text[1]))], lambda _: None)

    def count(_: int) -> None:
        passed = (monotonic() - started) / within
        report(round(100 * min(1, max(passed, sample.texts / len(texts)))), 100)
        if passed > 1:
            raise _OutOfTime

    try:
        while (done := sample.texts) < len(texts):
            left, each = within - (monotonic() - started), sample.seconds / max(1, done)
            more = min(done + 1, int(left / each) if each else 1)
            if more < 1:
                break
            sample.explain(worker, texts[done : done + more], count)
    except _OutOfTime:
        pass
    return sample if sample.texts else first


@contextmanager
def _counted(model: Model, count: Callable[[int], None]) -> Generator[list[int]]:
    """A list that grows by one with every pass of the model, before which ``count`` is called."""
    calls: list[int] = []

    def note(*_: object) -> None:
        calls.append(1)
        count(len(calls))

    handle = model.module.register_forward_pre_hook(note)
    try:
        yield calls
    finally:
        handle.remove()


def _spread(shards: Sequence[Shard], count: int = 3) -> list[Shard]:
    """Shards at even distances: the first, the last and some in between."""
    if len(shards) <= count:
        return list(shards)
    return [shards[round(i * (len(shards) - 1) / (count - 1))] for i in range(count)]
