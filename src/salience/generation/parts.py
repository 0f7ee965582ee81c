"""Explained answers to and from the rows of a Parquet file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from salience.data import Row
from salience.generation.explanation import AnswerExplanation
from salience.generation.explanation import Row as Scores
from salience.runs.parts import SPANS

EXACT = 2**16
"""The most scores of an answer by one method that are all stored."""
FLOOR = 0.01
"""Of more scores, those of at most this share of the strongest for their token of the answer are left out."""

STRINGS = pa.list_(pa.string())
PART = pa.struct([("name", pa.string()), ("start", pa.int32()), ("end", pa.int32()), ("kind", pa.string())])
FIXED = pa.schema(
    [
        ("row", pa.int64()),
        ("id", pa.string()),
        ("prompt", pa.string()),
        ("answer", pa.string()),
        ("answer_ids", pa.list_(pa.int32())),
        ("answer_tokens", STRINGS),
        ("answer_offsets", SPANS),
        ("source_tokens", STRINGS),
        ("source_offsets", SPANS),
        ("source_special", pa.list_(pa.bool_())),
        ("prompt_tokens", pa.int32()),
        ("parts", pa.list_(PART)),
        ("target", pa.struct([("kind", pa.string()), ("against", pa.string())])),
        ("values", pa.list_(pa.float64())),
        ("generation", pa.string()),
        ("rule", pa.string()),
        ("expression", pa.string()),
    ]
)
"""The columns of every part. The columns of the methods follow them."""

SCORES = pa.struct(
    [
        ("total", pa.list_(pa.float32())),
        ("matrix", pa.list_(pa.list_(pa.struct([("source", pa.int32()), ("score", pa.float32())])))),
        ("seen", pa.list_(pa.int32())),
        ("floor", pa.float64()),
        ("settings", pa.string()),
        ("gaps", pa.string()),
        ("total_gaps", pa.string()),
        ("signed", pa.bool_()),
        ("additive", pa.bool_()),
    ]
)
"""The scores of one method. A score that is not in ``matrix`` is 0, and None from the source token ``seen`` on."""

TEXTS = ("settings", "gaps", "total_gaps")
"""What is stored as JSON for each method."""


def answer_table(rows: Sequence[Row], explained: Sequence[Mapping[str, AnswerExplanation]]) -> pa.Table:
    """One row per answer, one column of scores per method."""
    kept = [pa.field("kept", pa.struct([(name, pa.string()) for name, _ in rows[0].kept]))] if rows[0].kept else []
    schema = pa.schema([*FIXED, *kept, *(pa.field(column, SCORES) for column in explained[0])])
    return pa.Table.from_pylist([_record(row, one) for row, one in zip(rows, explained, strict=True)], schema)


def _record(row: Row, explained: Mapping[str, AnswerExplanation]) -> dict[str, Any]:
    first = next(iter(explained.values()))
    shared = {name: getattr(first, name) for name in FIXED.names if name not in ("row", "id")}
    return {
        **shared,
        "row": row.number,
        "id": row.id,
        "parts": [asdict(part) for part in first.parts],
        "target": asdict(first.target),
        "generation": json.dumps(first.generation, default=str),
        "kept": dict(row.kept),
        **{column: _scores(e) for column, e in explained.items()},
    }


def _scores(e: AnswerExplanation) -> dict[str, Any]:
    floor = FLOOR if len(e.matrix) * len(e.source_tokens) > EXACT else 0.0
    return {
        "total": e.total,
        "matrix": [_strong(row, floor) for row in e.matrix],
        "seen": [sum(score is not None for score in row) for row in e.matrix],
        "floor": floor,
        **{name: json.dumps(getattr(e, name), ensure_ascii=False) for name in TEXTS},
        "signed": e.signed,
        "additive": e.additive,
    }


def _strong(row: Scores, floor: float) -> list[dict[str, Any]]:
    """The scores of a token of the answer that are greater than a share of the strongest."""
    least = floor * max((abs(score) for score in row if score is not None), default=0.0)
    return [{"source": s, "score": v} for s, v in enumerate(row) if v is not None and abs(v) > least]


def answer_explanations(
    record: Mapping[str, Any], methods: Mapping[str, str], model: str
) -> dict[str, AnswerExplanation]:
    """Convert a row of a part to explanations; ``methods`` maps columns of scores to methods."""
    shared = {name: record[name] for name in FIXED.names if name not in ("row", "id")}
    shared |= {"generation": json.loads(record["generation"]), "model": model}
    width = len(record["source_tokens"])
    results: dict[str, AnswerExplanation] = {}
    for column, method in methods.items():
        scores: Mapping[str, Any] = record[column]
        matrix = [_row(*row, width) for row in zip(scores["matrix"], scores["seen"], strict=True)]
        known = {name: json.loads(scores[name]) for name in TEXTS}
        known |= {"total": scores["total"], "signed": scores["signed"], "additive": scores["additive"]}
        results[column] = AnswerExplanation.from_dict({**shared, **known, "matrix": matrix, "method": method})
    return results


def _row(stored: Sequence[Mapping[str, Any]], seen: int, width: int) -> list[float | None]:
    row: list[float | None] = [0.0] * seen + [None] * (width - seen)
    for cell in stored:
        row[cell["source"]] = cell["score"]
    return row
