"""Attention and output relevance of some texts, recorded in one Parquet file while a model is trained."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Float

from salience.core.files import complete
from salience.core.passes import forward
from salience.core.rows import each_text
from salience.core.text import Encoded
from salience.core.types import Batch, Model, Start
from salience.data.examples import Example, encode_examples
from salience.errors import BadInput, UnsupportedModel
from salience.models.pooled import Pooled
from salience.training.loop import Recorder

KEY = b"salience_follow"
"""The name of the metadata of a follow file."""

SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("text", pa.int32()),
        ("attention", pa.list_(pa.float32())),
        ("relevance", pa.list_(pa.list_(pa.float32()))),
        ("probabilities", pa.list_(pa.float32())),
    ]
)
"""One row per step and text. ``relevance`` holds one list per label, with one number per token."""


# ------------------------------------------------------------------------------------------------------ one moment


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The attention and the output relevance of one text, and what the model predicts.

    Relevance is compared between labels: r_tc = W_c h_t − mean over all labels. A constant that is added to all logits
    changes no prediction, and is gone from it.
    """

    attention: Float[np.ndarray, " t"]
    relevance: Float[np.ndarray, "c t"]
    probabilities: Float[np.ndarray, " c"]


def snapshots(model: Model, encoded: Sequence[Encoded]) -> list[Snapshot]:
    """Read attention and relevance of every text, in one forward pass over each."""
    if not isinstance(model, Pooled) or model.link != "softmax":
        raise UnsupportedModel(
            f"{model.name} cannot be followed: output relevance and attention add up to the output only in pooled "
            "classifiers with one label per text"
        )

    def work(batch: Batch, items: list[int]) -> list[Snapshot]:
        output = forward(model, batch, hidden=True, attention="read")
        r = model.last_attention(batch, Start(1, output.hidden[1])).tokens
        r = (r - r.mean(-1, keepdim=True)).transpose(1, 2)
        columns = (output.attention[0][:, 0, 0], r, output.logits.softmax(-1))
        a, r, p = (column.detach().cpu().float().numpy() for column in columns)
        return [Snapshot(a[row, :n], r[row, :, :n], p[row]) for row, n in enumerate(batch.mask.sum(1).tolist())]

    return each_text(model, encoded, work)


# ------------------------------------------------------------------------------------------------------ recording


@dataclass(frozen=True, slots=True, eq=False)
class Following:
    """Records texts at chosen steps of one training. The file is replaced atomically at every step.

    A training that is resumed continues the file. A file of another training is refused.
    """

    file: Path
    examples: Sequence[Example]
    steps: Sequence[int]
    training: str
    """The digest of the training that is followed."""

    @property
    def recorder(self) -> Recorder:
        return Recorder(self.record, self.steps)

    def record(self, model: Model, step: int) -> None:
        """Add one step to the file; later steps, of a training that went on from an earlier checkpoint, are dropped."""
        encoded = encode_examples(model, self.examples)
        before = self._before(step)
        rows = [
            {
                "step": step,
                "text": number,
                "attention": one.attention,
                "relevance": list(one.relevance),
                "probabilities": one.probabilities,
            }
            for number, one in enumerate(snapshots(model, encoded))
        ]
        facts = {
            "training": self.training,
            "labels": list(model.labels),
            "steps": list(self.steps),
            "texts": [_described(model, e, tokens) for e, tokens in zip(self.examples, encoded, strict=True)],
        }
        table = pa.concat_tables([*before, pa.Table.from_pylist(rows, SCHEMA)])
        with complete(self.file) as out:
            pq.write_table(table.replace_schema_metadata({KEY: json.dumps(facts)}), out)

    def _before(self, step: int) -> list[pa.Table]:
        due = [s for s in self.steps if s < step]
        if not due:
            return []
        facts, table = _read(self.file, self.training)
        if not self._same(facts):
            raise BadInput(
                f"{self.file} follows other texts, or other steps; choose another folder, or delete the file"
            )
        known = set(table["step"].to_pylist())
        if missing := [s for s in due if s not in known]:
            raise BadInput(
                f"{self.file} does not hold step {missing[0]}, which this training has left behind; delete the folder "
                "of the training to start over"
            )
        return [table.filter(pc.field("step") < step).replace_schema_metadata(None)]

    def finished(self) -> bool:
        """Whether the file holds all steps of this training and these texts."""
        if not self.file.exists():
            return False
        facts, table = _read(self.file, self.training)
        return self._same(facts) and set(self.steps) <= set(table["step"].to_pylist())

    def _same(self, facts: dict[str, Any]) -> bool:
        """Whether a file records the same texts at the same steps."""
        return facts["steps"] == list(self.steps) and [t["text"] for t in facts["texts"]] == [
            e.text for e in self.examples
        ]


def _described(model: Model, example: Example, encoded: Encoded) -> dict[str, Any]:
    """A text with its tokens as they are written, which of them the model does not know, and its label."""
    label = None if example.single_label is None else model.resolve(example.single_label)
    unknown = model.replacements.get("unk")
    return {
        "text": example.text,
        "tokens": [str(example.text)[start:end] for start, end in encoded.offsets],
        "ids": list(encoded.ids),
        "unknown": [i for i, token in enumerate(encoded.ids) if token == unknown],
        "label": label,
    }


def _read(file: Path, training: str | None) -> tuple[dict[str, Any], pa.Table]:
    """The metadata and the rows of a follow file; with a digest, only of that training."""
    try:
        table = pq.read_table(file)
        facts: dict[str, Any] = dict(json.loads((table.schema.metadata or {})[KEY]))
        if missing := {"training", "labels", "steps", "texts"} - facts.keys() | set(SCHEMA.names) - set(
            table.schema.names
        ):
            raise ValueError(f"it has no {min(missing)}")
    except FileNotFoundError as error:
        raise BadInput(f"there is no file {file}; it is written by salience.follow") from error
    except (pa.ArrowInvalid, KeyError, TypeError, ValueError, OSError) as error:
        raise BadInput(f"{file} is not a follow file, or is damaged: {error}; delete it to train again") from error
    if training is not None and facts["training"] != training:
        raise BadInput(
            f"{file} follows another model, or a training with other texts or another recipe; choose another folder, "
            "or delete the file"
        )
    return facts, table


# ------------------------------------------------------------------------------------------------------ reading


@dataclass(frozen=True, eq=False)
class FollowedText:
    """One text through training; the first axis of all arrays are the steps."""

    text: str
    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    unknown: tuple[int, ...]
    """The tokens that are not in the model's vocabulary."""
    label: int | None
    """The column of the true label, if known."""
    attention: Float[np.ndarray, "s t"]
    relevances: Float[np.ndarray, "s c t"]
    """By label; at every token, the labels add up to 0."""
    probabilities: Float[np.ndarray, "s c"]

    @property
    def explained(self) -> int:
        """The label whose relevance is shown: the true one, or the one that the trained model predicts."""
        return int(self.probabilities[-1].argmax()) if self.label is None else self.label

    @cached_property
    def relevance(self) -> Float[np.ndarray, "s t"]:
        """The relevance for the explained label: larger always means that a token supports it."""
        return self.relevances[:, self.explained]

    @property
    def correct(self) -> Float[np.ndarray, " s"]:
        """1 where the true label is predicted; NaN if it is not known."""
        right = self.probabilities.argmax(1) == self.label
        return np.where(self.label is None, np.nan, right)


@dataclass(frozen=True, slots=True, eq=False)
class Followed:
    """What was recorded of a training."""

    training: str
    labels: tuple[str, ...]
    steps: tuple[int, ...]
    texts: tuple[FollowedText, ...]

    @property
    def accuracy(self) -> Float[np.ndarray, " s"]:
        """The accuracy on the texts whose label is known, by step."""
        known = [text.correct for text in self.texts if text.label is not None]
        return np.mean(known, axis=0) if known else np.full(len(self.steps), np.nan)


def read_follow(file: str | Path, *, training: str | None = None) -> Followed:
    """Read a follow file. With the digest of a ``training``, the file of any other is refused."""
    facts, table = _read(Path(file), training)
    steps = tuple(dict.fromkeys(table["step"].to_pylist()))
    rows: list[list[dict[str, Any]]] = [[] for _ in facts["texts"]]
    for row in table.to_pylist():
        rows[row["text"]].append(row)
    if any(tuple(row["step"] for row in own) != steps for own in rows):
        raise BadInput(f"{file} is damaged: not every text is recorded at every step")
    return Followed(
        facts["training"],
        tuple(facts["labels"]),
        steps,
        tuple(_followed(described, own) for described, own in zip(facts["texts"], rows, strict=True)),
    )


def _followed(described: dict[str, Any], rows: Sequence[dict[str, Any]]) -> FollowedText:
    columns = (np.array([row[name] for row in rows], dtype=np.float32) for name in SCHEMA.names[2:])
    return FollowedText(
        described["text"],
        tuple(described["tokens"]),
        tuple(described["ids"]),
        tuple(described["unknown"]),
        described["label"],
        *columns,
    )


def checkpoints(total: int, count: int) -> list[int]:
    """Up to ``count`` steps from 0 to ``total``, which lie closer together at the beginning.

    >>> checkpoints(1000, 6)
    [0, 40, 160, 360, 640, 1000]
    """
    return sorted({round(total * (i / max(1, count - 1)) ** 2) for i in range(count)} | {0, total})
