"""Parts of a run: explanations to and from the bytes of a Parquet file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from salience.data import Rejected, Row, Shard
from salience.explanations.explanation import Explanation


@dataclass(frozen=True, slots=True)
class Advance:
    """Progress within a part."""

    texts: int
    tokens: int


@dataclass(frozen=True, slots=True)
class About:
    """The metadata of a part, which is also stored in its file."""

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
    """A finished shard: the bytes of its Parquet file (empty if every row was rejected) and its metadata."""

    shard: Shard
    data: bytes
    about: "About"


Event = Advance | Part


SPANS = pa.list_(pa.list_(pa.int32()))


TARGET = pa.struct([("label", pa.string()), ("against", pa.string()), ("kind", pa.string()), ("column", pa.int32())])
FIXED = pa.schema(
    [
        ("row", pa.int64()),
        ("id", pa.string()),
        ("text", pa.string()),
        ("tokens", pa.list_(pa.string())),
        ("offsets", SPANS),
        ("special", pa.list_(pa.bool_())),
        ("target", TARGET),
        ("value", pa.float64()),
        ("probabilities", pa.list_(pa.struct([("label", pa.string()), ("probability", pa.float64())]))),
        ("pair_at", pa.int32()),
        ("unseen", SPANS),
    ]
)
"""The columns of every part. The columns of the methods follow them."""


def to_parquet(table: pa.Table, about: About) -> bytes:
    """The bytes of a part, whose file also holds its metadata."""
    out = BytesIO()
    pq.write_table(table.replace_schema_metadata({"salience": about.to_json()}), out, compression="zstd")
    return out.getvalue()


def explanation_table(rows: Sequence[Row], explained: Sequence[Mapping[str, Explanation]]) -> pa.Table:
    """One row per text, one column of scores per method."""
    records = [_record(row, by_column) for row, by_column in zip(rows, explained, strict=True)]
    return pa.Table.from_pylist(records, _schema(explained[0], rows[0]) if explained else FIXED)


def _schema(explained: Mapping[str, Explanation], row: Row) -> pa.Schema:
    """The schema of a part. It is the same for all texts of a run, which share their methods, settings and columns."""
    label = [] if row.label is None else [pa.field("label", pa.string())]
    kept = [pa.field("kept", pa.struct([(name, pa.string()) for name, _ in row.kept]))] if row.kept else []
    scores = [pa.field(name, pa.list_(pa.float32())) for name in explained]
    settings = pa.field("settings", pa.struct([(name, pa.string()) for name in explained]))
    signed = pa.field("signed", pa.struct([(name, pa.bool_()) for name in explained]))
    gaps = {name: pa.struct([(gap, pa.float64()) for gap in sorted(e.gaps)]) for name, e in explained.items() if e.gaps}
    return pa.schema(
        [
            *FIXED,
            *label,
            *kept,
            *scores,
            settings,
            signed,
            *([pa.field("gaps", pa.struct(list(gaps.items())))] if gaps else []),
        ]
    )


def _record(row: Row, explained: Mapping[str, Explanation]) -> dict[str, Any]:
    e = next(iter(explained.values()))
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
        "label": row.label,
        "kept": dict(row.kept),
        **{name: e.scores for name, e in explained.items()},
        "settings": {name: json.dumps(e.settings, ensure_ascii=False) for name, e in explained.items()},
        "signed": {name: e.signed for name, e in explained.items()},
        "gaps": {name: dict(e.gaps) for name, e in explained.items()},
    }


def explanations(record: Mapping[str, Any], methods: Mapping[str, str], model: str) -> list[Explanation]:
    """Convert a row of a part to Explanations; ``methods`` maps columns of scores to methods."""
    shared = {name: record[name] for name in ("text", "tokens", "offsets", "special", "target", "value")}
    shared["probabilities"] = {p["label"]: p["probability"] for p in record["probabilities"]}
    shared |= {"pair_at": record["pair_at"], "unseen": record["unseen"] or (), "model": model}
    shared |= {"id": record["id"], "label": record.get("label")}
    return [
        Explanation.from_dict(
            shared
            | {
                "method": method,
                "scores": record[column],
                "settings": json.loads(record["settings"][column]),
                "signed": (record.get("signed") or {}).get(column),
                "gaps": (record.get("gaps") or {}).get(column) or {},
            }
        )
        for column, method in methods.items()
    ]
