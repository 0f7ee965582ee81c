"""A worker turns a shard of the data into a part of the run; every engine uses it."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from salience.core.text import Encoded
from salience.core.types import Model
from salience.data import Reader, Rejected, Row, Shard, Source
from salience.errors import BadInput, BadModel, TruncatedText
from salience.models.identity import digest
from salience.models.loading import Checkpoint
from salience.runs.parts import About, Advance, Event, Part, to_parquet


class Work(Protocol):
    """A task with the model that it uses."""

    def encode(self, row: Row) -> Encoded:
        """Return the text of a row as the model reads it; raise BadInput if the row cannot be used."""
        ...

    def __call__(self, rows: Sequence[Row], encoded: Sequence[Encoded]) -> Iterator[list[int] | pa.Table]:
        """Yield the indices of texts as they are done, and last a table with one row per text."""
        ...


class Task(Protocol):
    """What a run computes for every text. It is sent to every worker."""

    @property
    def holds(self) -> str:
        """What the folder will hold, such as ``explanations``."""
        ...

    def settled(self, model: Model, source: Source, limit: int | None, earlier: Mapping[str, Any] | None, /) -> "Task":
        """Decide, once for all workers, what depends on the model and on the data as a whole.

        ``earlier`` is the manifest of earlier starts in the same folder, which a run with a higher limit continues.
        """
        ...

    def identity(self, model: Model) -> dict[str, Any]:
        """What the manifest records: a run is only resumed by a task with the same identity."""
        ...

    def on(self, model: Model) -> Work: ...


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker needs: the model, the task and the data."""

    model: Checkpoint | Model
    digest: str
    task: Task
    source: Source
    threads: int | None = None
    """CPU threads of a worker process."""
    budget: int | None = None
    """Tokens per pass; by default, the model's own choice."""


class Worker:
    """Holds the model and the open data files; called with a shard, it yields its progress and then the part.

    A worker that loads the model itself checks that it is the model the run was started with.
    """

    def __init__(self, job: Job, model: Model | None = None) -> None:
        self.job = job
        self.model = model or _load_same(job)
        self._budget = self.model.executor.budget
        self.model.executor.budget = job.budget or self._budget
        self.work = job.task.on(self.model)
        self.reader = Reader(job.source)

    def __call__(self, shard: Shard) -> Iterator[Event]:
        rows, encoded, rejected = self.encoded(shard)
        truncated = sum(bool(e.unseen) for e in encoded)
        about = About(len(rows), sum(map(len, encoded)), truncated, tuple(rejected))
        data = b""
        for done in self.work(rows, encoded) if rows else ():
            if isinstance(done, pa.Table):
                data = to_parquet(done, about)
            else:
                yield Advance(len(done), sum(len(encoded[i]) for i in done))
        yield Part(shard, data, about)

    def close(self) -> None:
        """Close the data files, and give the model its own budget back."""
        self.reader.close()
        if self.job.budget is not None:
            self.model.executor.budget = self._budget

    def encoded(self, shard: Shard) -> tuple[list[Row], list[Encoded], list[Rejected]]:
        """The valid rows of a shard, the same rows tokenised, and the rejected rows."""
        rows: list[Row] = []
        encoded: list[Encoded] = []
        rejected: list[Rejected] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TruncatedText)  # recorded with each text, and counted
            for row in self.reader.read(shard):
                if isinstance(row, Rejected):
                    rejected.append(row)
                    continue
                try:
                    encoded.append(self.work.encode(row))
                    rows.append(row)
                except BadInput as error:
                    rejected.append(Rejected(row.number, shard.file, row.line, str(error).removeprefix("text 0 ")))
        return rows, encoded, rejected


def _load_same(job: Job) -> Model:
    """Load the job's model in this process, and check that it is the same."""
    if not isinstance(job.model, Checkpoint):
        return job.model
    model = job.model.load()
    if (loaded := digest(model)) != job.digest:
        raise BadModel(
            f"{job.model.name} is not the model that this run was started with (its digest is {loaded}, not "
            f"{job.digest}). Every process must load the same weights and tokenizer under that name."
        )
    return model
