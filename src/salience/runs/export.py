"""Write the explanations of a run to one file: JSON Lines, CSV, Parquet, or rationales of the ERASER benchmark."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from salience.core.ranking import top_share
from salience.errors import BadInput, choose, unknown
from salience.explanations.explanation import Explanation
from salience.runs.texts import ExplainedText

FORMATS = ("jsonl", "csv", "parquet", "eraser")
ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}

WORDS = pa.schema(
    [
        ("id", pa.string()),
        ("label", pa.string()),
        ("prediction", pa.string()),
        ("target", pa.string()),
        ("method", pa.string()),
        ("word", pa.string()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("score", pa.float64()),
    ]
)
"""The long form: one row per text, method and word. Columns that were kept follow, as ``kept_NAME``."""

AT_ONCE = 256
"""Texts to hold in memory."""


def format_of(path: Path, format: str | None) -> str:
    """The format as requested, or by the ending of the file."""
    ending = ENDINGS.get(path.suffix.lower())
    if format is None:
        if ending is None:
            what = unknown(path.suffix or path.name, ENDINGS, "ending")
            raise BadInput(f"{what} Choose one of them, or name the format (--format).")
        return ending
    chosen = choose(format, FORMATS, "format")
    if ending not in (None, "jsonl" if chosen == "eraser" else chosen):
        raise BadInput(f"{path} ends in {path.suffix}, but the format is {chosen}; change one of them")
    return chosen


def write(file: IO[bytes], texts: Iterable[ExplainedText], format: str, kept: Sequence[str], share: float) -> None:
    """Write texts in a format; ``kept`` names the columns that were kept, and ``share`` is for ERASER."""
    if format == "parquet":
        _write_parquet(file, texts, kept)
    elif format == "csv":
        _write_csv(file, texts, kept)
    else:
        lines: Callable[[ExplainedText], Iterator[dict[str, Any]]]
        lines = (lambda text: _eraser_lines(text, share)) if format == "eraser" else _json_lines
        for text in texts:
            file.writelines(f"{json.dumps(line, ensure_ascii=False)}\n".encode() for line in lines(text))


def long_form(text: ExplainedText) -> Iterator[dict[str, Any]]:
    """One row per method and word."""
    shared = {"id": text.id, "label": text.label, "prediction": text.prediction}
    kept = {f"kept_{name}": value for name, value in text.kept.items()}
    for column, e in text.explanations.items():
        for word in e.words():
            own = {"target": e.target.name, "method": column, "word": word.text, "start": word.start, "end": word.end}
            yield {**shared, **own, "score": word.score, **kept}


def long_schema(kept: Sequence[str]) -> pa.Schema:
    return pa.schema([*WORDS, *(pa.field(f"kept_{name}", pa.string()) for name in kept)])


def _json_lines(text: ExplainedText) -> Iterator[dict[str, Any]]:
    kept = {"kept": dict(text.kept)} if text.kept else {}
    return ({**e.to_dict(), **kept} for e in text.explanations.values())


def _eraser_lines(text: ExplainedText, share: float) -> Iterator[dict[str, Any]]:
    return (eraser_line(text.id, e, share) for e in text.explanations.values())


def _write_parquet(file: IO[bytes], texts: Iterable[ExplainedText], kept: Sequence[str]) -> None:
    schema = long_schema(kept)
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        waiting = iter(texts)
        while some := list(islice(waiting, AT_ONCE)):
            writer.write_table(pa.Table.from_pylist([row for text in some for row in long_form(text)], schema))


def _write_csv(file: IO[bytes], texts: Iterable[ExplainedText], kept: Sequence[str]) -> None:
    names = [_safe(name) for name in long_schema(kept).names]
    for number, text in enumerate(texts):
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerows([names] if number == 0 else [])
        writer.writerows([_safe(cell) for cell in row.values()] for row in long_form(text))
        file.write(lines.getvalue().encode())


def _safe(cell: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would take for a formula, so that it cannot run."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell


def eraser_line(name: str, e: Explanation, share: float) -> dict[str, Any]:
    """One line of ERASER predictions: soft scores and hard spans of whitespace-separated words."""
    spans = [m.span() for m in re.finditer(r"\S+", e.text)]
    soft = [0.0] * len(spans)
    for (a, b), score, special in zip(e.offsets, e.scores, e.special, strict=True):
        if not special and a < b:
            at = next(i for i, (_, end) in enumerate(spans) if a < end or i == len(spans) - 1)
            soft[at] += score
    hard = np.flatnonzero(top_share(np.array(soft), share)).tolist()
    return {
        "annotation_id": name,
        "rationales": [
            {
                "docid": name,
                "hard_rationale_predictions": [{"start_token": a, "end_token": b} for a, b in _runs(hard)],
                "soft_rationale_predictions": soft,
            }
        ],
        "classification": max(e.probabilities, key=lambda label: e.probabilities[label]),
        "classification_scores": dict(e.probabilities),
    }


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Group consecutive numbers into half-open spans.

    >>> _runs([1, 2, 5])
    [(1, 3), (5, 6)]
    """
    spans: list[tuple[int, int]] = []
    for n in numbers:
        if spans and spans[-1][1] == n:
            spans[-1] = (spans[-1][0], n + 1)
        else:
            spans.append((n, n + 1))
    return spans
