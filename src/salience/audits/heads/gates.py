"""Gates on heads: the loss of every text as a function of gates ξ that multiply the output of each head.

The output of a head is linear in its attention weights, so a gate on the weights is a gate on the output. With ξ = 0 a
head is removed, as if its columns of the output projection were 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from salience.core.executor import Report
from salience.core.passes import Needs, differentiate, forward
from salience.core.rows import Rows, answers, each_text
from salience.core.text import Encoded
from salience.core.types import Batch, Edit, Model, Site, Start, Targets

Layers = tuple[Bool[np.ndarray, " h"], ...]
"""Which heads of every layer are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """Texts and the labels that a model should predict for them, as columns of its output."""

    model: Model
    encoded: Sequence[Encoded]
    labels: Int[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.encoded)

    def take(self, rows: Sequence[int]) -> "Task":
        return Task(self.model, [self.encoded[i] for i in rows], self.labels[list(rows)])

    def targets(self, batch: Batch, items: Sequence[int]) -> Targets:
        """log p of the label of each text, which is −L."""
        labels = torch.from_numpy(self.labels[list(items)]).to(batch.ids.device)
        return Targets(labels, None, "log_probability", self.model.link)


def gate(kept: Layers | None) -> Edit | None:
    """An edit that multiplies the weights of every head by its gate: 1 if it is kept, 0 if not."""
    if kept is None or all(layer.all() for layer in kept):
        return None

    def edit(site: Site, a: Float[Tensor, "b h q t"]) -> Float[Tensor, "b h q t"]:
        gates = torch.from_numpy(kept[site.layer - 1]).to(a)
        return a * gates[:, None, None]

    return edit


def gate_gradients(
    task: Task, kept: Layers | None = None, *, report: Report | None = None
) -> list[Float[np.ndarray, "n h"]]:
    """dL/dξ of every head on every text, by layer: Σ_qk A_qk ∂L/∂A_qk, at ξ = 1.

    Each text has gates of its own, as if it were a batch of one.

    Paper: Michel et al. 2019, arXiv:1905.10650, section 3.2
    """
    model, edit = task.model, gate(kept)

    def work(batch: Batch, items: list[int]) -> list[list[Tensor]]:
        needs = Needs.ATTENTION_GRADIENT
        result = differentiate(model, batch, task.targets(batch, items), needs=needs, edit_attention=edit)
        pairs = zip(result.output.attention, result.attention_gradient, strict=True)
        slopes = [-(a.double() * g.double()).sum((2, 3)).cpu() for a, g in pairs]
        return [[layer[i] for layer in slopes] for i in range(len(items))]

    return _by_layer(each_text(model, task.encoded, work, report=report))


def losses(task: Task, kept: Layers | None = None) -> tuple[Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """The loss of every text, and whether its label is predicted, with only some heads kept."""
    edit = gate(kept)

    def work(batch: Batch, items: list[int]) -> list[tuple[float, bool]]:
        logits = forward(task.model, batch, edit_attention=edit).logits
        return _read(logits, task.targets(batch, items))

    rows = each_text(task.model, task.encoded, work)
    return np.array([loss for loss, _ in rows]), np.array([right for _, right in rows])


def _read(logits: Float[Tensor, "k c"], target: Targets) -> list[tuple[float, bool]]:
    right = logits.argmax(1) == target.labels
    return list(zip((-target(logits)).double().tolist(), right.tolist(), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Removed:
    """What removing each head does to every text, by layer: the increase of the loss, and whether it is right."""

    increase: list[Float[np.ndarray, "n h"]]
    right: list[Bool[np.ndarray, "n h"]]


def remove_each(task: Task, heads: Sequence[int], *, report: Report | None = None) -> Removed:
    """Remove one head at a time. The layers below it are run once for all heads of a layer."""
    model = task.model

    def work(batch: Batch, items: list[int]) -> list[list[tuple[float, bool]]]:
        whole = forward(model, batch, hidden=model.can_start())
        target = task.targets(batch, items)
        before = torch.tensor([loss for loss, _ in _read(whole.logits, target)], dtype=torch.float64)
        columns: list[tuple[Tensor, Tensor]] = []
        for layer, count in enumerate(heads, 1):
            start = Start(layer - 1, whole.hidden[layer - 1]) if layer > 1 and whole.hidden else None
            columns.append(_without(model, batch, target, layer, count, start))
        loss, right = (torch.cat(parts, 1) for parts in zip(*columns, strict=True))
        return [
            list(zip((own - b).tolist(), marks.tolist(), strict=True))
            for own, b, marks in zip(loss, before, right, strict=True)
        ]

    rows = np.array(each_text(model, task.encoded, work, report=report), dtype=float)
    ends = np.cumsum(heads)[:-1]
    increase, right = (np.split(rows[..., i], ends, axis=1) for i in (0, 1))
    return Removed(list(increase), [marks.astype(bool) for marks in right])


def _without(
    model: Model, batch: Batch, target: Targets, layer: int, heads: int, start: Start | None
) -> tuple[Float[Tensor, "b h"], Bool[Tensor, "b h"]]:
    """The loss without each head of a layer, and whether the label is predicted."""
    text = torch.arange(len(batch), device=batch.ids.device).repeat_interleave(heads)
    head = torch.arange(heads, device=text.device).repeat(len(batch))

    def edit(site: Site, rows: Int[Tensor, " k"], a: Float[Tensor, "k h q t"]) -> Float[Tensor, "k h q t"]:
        if site.layer != layer:
            return a
        removed = torch.nn.functional.one_hot(head[rows], heads).bool()
        return a.masked_fill(removed[:, :, None, None], 0)

    logits = answers(model, Rows(batch, text, edit_attention=edit, start=start))
    loss, right = zip(*_read(logits, target.take(text)), strict=True)
    shape = (len(batch), heads)
    return torch.tensor(loss, dtype=torch.float64).view(shape), torch.tensor(right).view(shape)


def _by_layer(rows: Sequence[Sequence[Tensor]]) -> list[Float[np.ndarray, "n h"]]:
    return [torch.stack(layer).numpy() for layer in zip(*rows, strict=True)]
