"""Do heads look where explanations and people do? The attention at the position that is read, token by token.

Document of the question: Bastings & Filippova 2020, arXiv:2010.05607, section 7: attention may serve other users and
goals than faithful explanation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from salience.audits.heads.importance import spearmans
from salience.core.executor import Report
from salience.core.passes import reduce_attention
from salience.core.rows import each_text
from salience.core.target import Target
from salience.core.text import Encoded
from salience.core.types import Batch, Model, Site
from salience.data.examples import Example
from salience.data.rationales import marked
from salience.explanations.explainer import Configured, columns, explain_all
from salience.methods.attention import readout
from salience.metrics.plausibility import roc_auc


@dataclass(frozen=True, slots=True, eq=False)
class Looked:
    """How well the attention of each head agrees with something, for every text; NaN where that is undefined."""

    heads: Float[np.ndarray, "n h"]
    reference: Float[np.ndarray, " n"] | None = None
    """The same for an explanation instead of a head."""


def saliency(
    model: Model, encoded: Sequence[Encoded], methods: Sequence[Configured], *, report: Report | None = None
) -> dict[str, list[Float[np.ndarray, " t"]]]:
    """|scores| of every token of the texts, special ones left out, by method; the prediction is explained."""
    rows = explain_all(model, encoded, methods, [Target()] * len(encoded), report=report)
    return {
        name: [np.abs(np.array(row[at].scores))[~np.array(row[at].special)] for row in rows]
        for at, name in enumerate(columns(methods))
    }


def marks_of(examples: Sequence[Example], encoded: Sequence[Encoded]) -> list[Bool[np.ndarray, " t"]] | None:
    """The tokens that people marked, special ones left out; None if no text has a rationale."""
    if not any(e.rationale for e in examples):
        return None
    return [
        np.array(marked(example.rationale or (), own), dtype=bool)[~np.array(own.special)]
        for example, own in zip(examples, encoded, strict=True)
    ]


def looked(
    model: Model,
    encoded: Sequence[Encoded],
    scores: dict[str, list[Float[np.ndarray, " t"]]],
    marks: list[Bool[np.ndarray, " t"]] | None,
    *,
    report: Report | None = None,
) -> tuple[dict[str, Looked], dict[str, Looked]]:
    """Agreement of every head with the scores of each method, and with what people marked.

    The first is Spearman's ρ over the tokens of a text. The second is the probability that a marked token has more
    attention than an unmarked one, and of each method the same for its scores.
    """

    def work(batch: Batch, items: list[int]) -> list[dict[str, np.ndarray]]:
        return [
            _agreement(rows, {name: own[i] for name, own in scores.items()}, None if marks is None else marks[i])
            for i, rows in zip(items, _attention(model, batch), strict=True)
        ]

    results = each_text(model, encoded, work, report=report)
    table = {name: np.stack([row[name] for row in results]) for name in results[0]}
    by_method = {name: Looked(table[name]) for name in scores}
    if marks is None:
        return by_method, {}
    return by_method, {name: Looked(table["rationale"], table[f"rationale {name}"][:, 0]) for name in scores}


def _agreement(
    rows: Float[np.ndarray, "h t"], scores: dict[str, Float[np.ndarray, " t"]], marks: Bool[np.ndarray, " t"] | None
) -> dict[str, np.ndarray]:
    result = {name: spearmans(rows, np.broadcast_to(own, rows.shape)) for name, own in scores.items()}
    if marks is not None:
        result["rationale"] = np.array([roc_auc(row, marks) for row in rows])
        result |= {f"rationale {name}": np.array([roc_auc(own, marks)]) for name, own in scores.items()}
    return result


def _attention(model: Model, batch: Batch) -> list[Float[np.ndarray, "h t"]]:
    """The attention of all heads of all layers to the tokens of each text, from the position that is read."""
    read = readout(model, batch, "auto")

    def kept(_: Site, a: Float[Tensor, "b h q t"]) -> Float[Tensor, "b h 1 t"]:
        return torch.einsum("bq,bhqt->bht", read.to(a), a)[:, :, None]

    rows = torch.cat(reduce_attention(model, batch, [Target()], kept).output.attention, 1)[:, :, 0].cpu()
    return [row[:, own].double().numpy() for row, own in zip(rows, batch.content.cpu(), strict=True)]
