"""The work of a run: one shard of the data in, one part of the run out. It is the same in every engine."""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from salience.data import Reader, Rejected, Row, Shard, Source
from salience.errors import BadInput, BadModel, TruncatedText
from salience.explainer import Asked, each_layer, explain_encoded, prepare
from salience.explanation import Explanation
from salience.models import load
from salience.types import Encoded, Model, Target

PROBE = "Naïve cats won't re-read §7 — 東京, 42% 🙂 …"
"""A text whose tokens tell one tokenizer from another."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model by name, with what :func:`salience.load` needs to load it, here or in another process."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def load(self) -> Model:
        return load(self.name, **self.options)

    def on_cpu(self) -> "Checkpoint":
        return Checkpoint(self.name, {**self.options, "device": None})


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker must know: the model, the methods, the explained number, and where the texts are."""

    model: Checkpoint | Model
    digest: str
    method: tuple[str | Callable[..., Any], ...]
    settings: Mapping[str, Any]
    target: Target
    source: Source
    threads: int | None = None
    """CPU threads of a worker in a process of its own."""
    budget: int | None = None
    """Tokens per pass, where the model's own choice is not wanted."""


@dataclass(frozen=True, slots=True)
class Advance:
    """Some texts of a part are done."""

    texts: int
    tokens: int


@dataclass(frozen=True, slots=True)
class About:
    """What a part holds; it is written into the part's file as well."""

    texts: int
    tokens: int
    truncated: int
    rejected: tuple[Rejected, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> "About":
        data = json.loads(text)
        return cls(**data | {"rejected": tuple(Rejected(**r) for r in data["rejected"])})


@dataclass(frozen=True, slots=True)
class Part:
    """A shard that is done: the bytes of its Parquet file, none if every row was rejected, and what it holds."""

    shard: Shard
    data: bytes
    about: "About"


Event = Advance | Part


class Worker:
    """Holds the model and the open data files; called with a shard, it tells of its progress and then gives the part.

    A worker that loads the model itself makes sure that it is the one the run began with.
    """

    def __init__(self, job: Job, model: Model | None = None) -> None:
        self.job = job
        self.model = model or _same(job)
        self.model.budget = job.budget or self.model.budget
        self.asked = each_layer(self.model, prepare(job.method, job.settings))
        self.reader = Reader(job.source)

    def __call__(self, shard: Shard) -> Iterator[Event]:
        rows, encoded, rejected = self.encoded(shard)
        found: dict[int, list[Explanation]] = {}
        for batch in explain_encoded(self.model, encoded, self.asked, self.wanted(rows)):
            found |= batch
            yield Advance(len(batch), sum(len(encoded[i]) for i in batch))
        truncated = sum(bool(e.unseen) for e in encoded)
        about = About(len(rows), sum(map(len, encoded)), truncated, tuple(rejected))
        yield Part(shard, self.parquet(rows, found, about) if rows else b"", about)

    def wanted(self, rows: Sequence[Row]) -> Target | list[Target]:
        """What is explained: the same of all texts, or of each the label that the data names."""
        if self.job.source.label is None:
            return self.job.target
        return [replace(self.job.target, label=_one_label(row)) for row in rows]

    def parquet(self, rows: Sequence[Row], found: Mapping[int, list[Explanation]], about: About) -> bytes:
        names = columns(self.asked)
        return parquet(rows, [dict(zip(names, found[i], strict=True)) for i in range(len(rows))], about)

    def close(self) -> None:
        """Close the data files."""
        self.reader.close()

    def encoded(self, shard: Shard) -> tuple[list[Row], list[Encoded], list[Rejected]]:
        """The rows of a shard as the model reads them, and those that it cannot."""
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
                    if row.label is not None:
                        self.model.resolve(_one_label(row))
                    encoded += self.model.encode([row.text])
                    rows.append(row)
                except BadInput as error:
                    rejected.append(Rejected(row.number, shard.file, row.line, str(error).removeprefix("text 0 ")))
        return rows, encoded, rejected


def _one_label(row: Row) -> str | int:
    if isinstance(row.label, str | int):
        return row.label
    raise BadInput(f"its label is {row.label!r}, where a name or a whole number can be explained")


def _same(job: Job) -> Model:
    """The job's model, loaded in this process."""
    if not isinstance(job.model, Checkpoint):
        return job.model
    model = job.model.load()
    if (found := digest(model)) != job.digest:
        raise BadModel(
            f"{job.model.name} is not the model that this run began with (its digest is {found}, not {job.digest}). "
            "Every process must find the same weights and tokenizer under that name."
        )
    return model


def digest(model: Model) -> str:
    """What tells one model from another: weights, configuration, labels, and its tokens of a probe."""
    found = blake2b(digest_size=16)
    for name, values in sorted(model.module.state_dict().items()):
        found.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        found.update(values.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    found.update(repr((tuple(model.labels), model.link, model.encode([PROBE])[0].ids)).encode())
    found.update(_configuration(getattr(model.module, "config", None)).encode())
    return found.hexdigest()


def _configuration(config: Any) -> str:
    """What weights alone do not tell, such as the number of heads; without where and by what it was saved."""
    data = config.to_dict() if hasattr(config, "to_dict") else {"": config}
    kept = {k: v for k, v in data.items() if not k.startswith("_") and k not in ("transformers_version", "dtype")}
    return json.dumps(kept, sort_keys=True, default=str)


def columns(asked: Sequence[Asked]) -> list[str]:
    """The names of the score columns: a method's own, with its layer where several are asked for."""
    names = [a.method.__name__ for a in asked]
    found = [
        f"{name}_layer_{a.settings['layer']}" if names.count(name) > 1 and "layer" in a.settings else name
        for name, a in zip(names, asked, strict=True)
    ]
    if len(set(found)) < len(found):
        raise BadInput(f"a run holds each method once, and {max(found, key=found.count)} was asked for twice")
    return found


# ------------------------------------------------------------------------------------------------------ Parquet

SPANS = pa.list_(pa.list_(pa.int32()))
FIXED = pa.schema(
    [
        ("row", pa.int64()),
        ("id", pa.string()),
        ("text", pa.string()),
        ("tokens", pa.list_(pa.string())),
        ("offsets", SPANS),
        ("special", pa.list_(pa.bool_())),
        ("target", pa.struct([("label", pa.string()), ("against", pa.string()), ("kind", pa.string())])),
        ("value", pa.float64()),
        ("probabilities", pa.list_(pa.struct([("label", pa.string()), ("probability", pa.float64())]))),
        ("pair_at", pa.int32()),
        ("unseen", SPANS),
    ]
)
"""The columns of every part; those of the methods follow."""


def parquet(rows: Sequence[Row], found: Sequence[Mapping[str, Explanation]], about: About) -> bytes:
    """The bytes of a part: one row per text, one column of scores per method."""
    schema = _schema(found[0]) if found else FIXED
    records = [_record(row, by_column) for row, by_column in zip(rows, found, strict=True)]
    table = pa.Table.from_pylist(records, schema.with_metadata({"salience": about.to_json()}))
    out = BytesIO()
    pq.write_table(table, out, compression="zstd")
    return out.getvalue()


def _schema(found: Mapping[str, Explanation]) -> pa.Schema:
    """All texts of a run have the same columns, as they are explained by the same methods with the same settings."""
    scores = [pa.field(name, pa.list_(pa.float32())) for name in found]
    settings = pa.field("settings", pa.struct([(name, pa.string()) for name in found]))
    gaps = {name: pa.struct([(gap, pa.float64()) for gap in sorted(e.gaps)]) for name, e in found.items() if e.gaps}
    return pa.schema([*FIXED, *scores, settings, *([pa.field("gaps", pa.struct(list(gaps.items())))] if gaps else [])])


def _record(row: Row, found: Mapping[str, Explanation]) -> dict[str, Any]:
    e = next(iter(found.values()))
    return {
        "row": row.number,
        "id": row.id,
        "text": e.text,
        "tokens": e.tokens,
        "offsets": e.offsets,
        "special": e.special,
        "target": asdict(e.target),
        "value": e.value,
        "probabilities": [{"label": k, "probability": p} for k, p in e.probabilities.items()],
        "pair_at": e.pair_at,
        "unseen": e.unseen,
        **{name: e.scores for name, e in found.items()},
        "settings": {name: json.dumps(e.settings, ensure_ascii=False) for name, e in found.items()},
        "gaps": {name: dict(e.gaps) for name, e in found.items()},
    }


def explanations(record: Mapping[str, Any], methods: Mapping[str, str], model: str) -> list[Explanation]:
    """A row of a part as Explanations; ``methods`` tells which method made each column of scores."""
    shared = {name: record[name] for name in ("text", "tokens", "offsets", "special", "target", "value")}
    shared["probabilities"] = {p["label"]: p["probability"] for p in record["probabilities"]}
    shared |= {"pair_at": record["pair_at"], "unseen": record["unseen"] or (), "model": model}
    return [
        Explanation.from_dict(
            shared
            | {
                "method": method,
                "scores": record[column],
                "settings": json.loads(record["settings"][column]),
                "gaps": (record.get("gaps") or {}).get(column) or {},
            }
        )
        for column, method in methods.items()
    ]
