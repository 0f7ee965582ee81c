"""A run of as many texts as wanted, written in seconds: the parts of a real run, with scores that no model made."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from salience.core.target import Target
from salience.core.text import spans
from salience.data import Row, Shard
from salience.explanations.explanation import Explanation
from salience.runs.folder import Part, Parts, write_manifest
from salience.runs.parts import About, explanation_table, to_parquet

SENTENCES = (
    "Still, this flick is fun, and host to some truly excellent sequences that stay with you for days.",
    "Beautiful to look at, but the story never comes alive, and nobody in it seems to want anything at all.",
    "A <script>alert(1)</script> review that a page must show as text, and never run.",
    "Two hours of my life that I will never get back, in a cinema that was far too cold for a film this long.",
)
METHODS = ("integrated_gradients", "attention")


def write_large_run(folder: Path, rows: int, per_part: int = 1000) -> Path:
    """Write a finished run of so many rows; the text of row n ends with the number n."""
    folder.mkdir(parents=True)
    parts = Parts(folder)
    parts.prepare({})
    table, count = _table(per_part), -(-rows // per_part)
    for number in range(count):
        first, size = number * per_part, min(per_part, rows - number * per_part)
        about = About(size, 25 * size, 0, ())
        shard = Shard(number=number, file="", place=first, first=first, line=first, rows=size, size=0)
        parts.commit(Part(shard, to_parquet(_numbered(table.slice(0, size), first), about), about))
    methods = {name: {"method": name} for name in METHODS}
    finished = {"texts": rows, "rejected": 0, "truncated": 0, "parts": count}
    facts = {"model": {"name": "made up", "digest": "0"}, "columns": {"label": "label"}, "limit": None, "starts": []}
    write_manifest(folder, {"format": 3, **facts, "methods": methods, "finished": finished})
    return folder


def _table(rows: int) -> pa.Table:
    rng = np.random.default_rng(0)
    explained = [_explained(SENTENCES[n % len(SENTENCES)], rng) for n in range(rows)]
    labels = rng.choice(["negative", "positive"], rows).tolist()
    made = [
        Row(number=n, id=str(n), text=e["attention"].text, line=n + 1, label=labels[n]) for n, e in enumerate(explained)
    ]
    return explanation_table(made, explained)


def _explained(text: str, rng: np.random.Generator) -> dict[str, Explanation]:
    words, p = spans(text), float(rng.random())
    shared = {
        "text": text,
        "tokens": tuple(text[a:b] for a, b in words),
        "offsets": tuple(words),
        "special": (False,) * len(words),
        "target": Target("positive"),
        "value": p,
        "probabilities": {"negative": 1 - p, "positive": p},
        "settings": {},
        "model": "made up",
    }
    return {m: Explanation(scores=tuple(rng.normal(size=len(words)).tolist()), method=m, **shared) for m in METHODS}


def _numbered(table: pa.Table, first: int) -> pa.Table:
    numbers = np.arange(first, first + len(table))
    texts = [f"{text} {n}" for text, n in zip(table["text"].to_pylist(), numbers, strict=True)]
    columns = {"row": pa.array(numbers), "id": pa.array(map(str, numbers)), "text": pa.array(texts)}
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    return table
