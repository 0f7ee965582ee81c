"""Measures of attention during training: does it match the explanation, and does it explain the model any better?"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from salience.core.passes import exclusive, resolve
from salience.core.rows import batches, predict
from salience.core.target import Kind, Target
from salience.core.types import Attribution, Batch, Model
from salience.data.examples import Example, encode_examples, sampled
from salience.methods import find_method
from salience.methods.attention import QueryRow
from salience.metrics.agreement import spearman
from salience.metrics.faithfulness import comprehensiveness, sufficiency
from salience.training.loop import guides_of, labels_of
from salience.training.objectives import UNKNOWN, HeadChoice, Layers, Objective, Step, attended, guided, task_loss

Result = TypeVar("Result")


def accuracy(model: Model, examples: Sequence[Example]) -> float:
    """The fraction of texts predicted correctly; a multi-label text counts if all its labels are correct.

    For a regression model, the correlation of predictions with true values.
    """
    labelled = [e for e in examples if e.label is not None]
    if not labelled:
        return nan
    return _accuracy(model, predict(model, encode_examples(model, labelled)), labels_of(model, labelled).cpu())


def predicted(model: Model, examples: Sequence[Example]) -> list[int]:
    """The column of the predicted label of each text, for a classifier with one label per text."""
    return predict(model, encode_examples(model, examples)).argmax(1).tolist()


def correct(model: Model, examples: Sequence[Example]) -> list[bool]:
    """Whether each text is classified correctly, for a classifier with one label per text."""
    return [a == b for a, b in zip(predicted(model, examples), labels_of(model, examples).tolist(), strict=True)]


def _accuracy(model: Model, logits: Tensor, labels: Tensor) -> float:
    known = (labels != UNKNOWN).reshape(len(labels), -1).all(1)
    logits, labels = logits[known], labels[known]
    if model.link == "softmax":
        return float((logits.argmax(1) == labels).float().mean())
    if model.link == "sigmoid":
        return float(((logits > 0) == (labels > 0.5)).all(1).float().mean())
    return float(np.corrcoef(logits[:, 0].numpy(), labels[:, 0].numpy())[0, 1])


@dataclass(frozen=True, slots=True)
class AttentionMonitor:
    """Measures attention on held-out texts; the measure of a :class:`salience.training.loop.Probe`.

    ``attention_mass`` is the attention on explained tokens, ``agreement`` its rank correlation with the explanation,
    and ``held_out_agreement`` its rank correlation with a method that was not used in training. ``comprehensiveness``
    and ``sufficiency`` measure the faithfulness of attention itself: whether it explains the model better, or only
    looks better.
    """

    examples: Sequence[Example]
    """Held-out examples with guides."""
    objective: Objective
    row: QueryRow = "auto"
    layers: Layers = "last"
    heads: HeadChoice = "mean"
    held_out: str | None = "occlusion"
    sample: int = 100
    """Maximum number of texts for the last three measures."""
    tokens: int = 6000
    """Maximum number of tokens of these texts, each of which is run many times."""

    def __call__(self, model: Model) -> Mapping[str, float]:
        if not any(e.guide for e in self.examples):
            return {"accuracy": accuracy(model, self.examples)}
        accuracy_, values = self._measured(model)
        return {"accuracy": accuracy_, **{name: float(np.nanmean(each)) for name, each in values.items()}}

    def by_text(self, model: Model) -> dict[str, list[float]]:
        """Every measure of attention for each held-out text, or for each of the sample; NaN without an explanation."""
        return self._measured(model)[1]

    def _measured(self, model: Model) -> tuple[float, dict[str, list[float]]]:
        """Accuracy, and every other measure by text."""
        graph = bool(self.objective.penalties)

        def read(step: Step) -> tuple[Tensor, dict[str, list[float]]]:
            return step.output.logits.detach().cpu(), self._attention(step)

        results = each_step(model, self.examples, read, graph=graph)
        order = [i for rows, _ in results for i in rows]
        logits = torch.cat([logits for _, (logits, _) in results])
        labels = labels_of(model, [self.examples[i] for i in order]).cpu()
        explained = [e for e in self.examples if e.guide]
        sample = sampled(explained, self._count(model, explained))
        faithfulness = each_step(model, sample, self._faithfulness)
        attention = [(rows, measures) for rows, (_, measures) in results]
        return _accuracy(model, logits, labels), {**_by_text(attention), **_by_text(faithfulness)}

    def _count(self, model: Model, examples: Sequence[Example]) -> int:
        return max(1, min(self.sample, round(self.tokens / mean_length(model, examples))))

    def _attention(self, step: Step) -> dict[str, list[float]]:
        a = attended(step, self.row, self.layers, self.heads).mean(1).detach()
        e = _explained(step)
        marked = (e > 0) & step.batch.content
        measures = {"attention_mass": (a * marked).sum(1).tolist(), "agreement": _agreement(a, e, step.batch)}
        for term in self.objective.penalties:
            with torch.enable_grad():
                measures["penalty"] = term.loss(step, **term.settings).tolist()
        chosen = guided(step.labels, step.guide).tolist()
        return {n: [v if c else nan for v, c in zip(values, chosen, strict=True)] for n, values in measures.items()}

    def _faithfulness(self, step: Step) -> dict[str, list[float]]:
        model, batch = step.model, step.batch
        a = attended(step, self.row, self.layers, self.heads).mean(1)
        kind: Kind = "logit" if model.link == "identity" else "probability"
        target = resolve(model, [Target(kind=kind)], step.output.logits)
        measures = {
            "comprehensiveness": comprehensiveness(model, batch, a, target).tolist(),
            "sufficiency": sufficiency(model, batch, a, target).tolist(),
        }
        if self.held_out is not None:
            result = find_method(self.held_out)(model, batch, target)
            scores = result.scores if isinstance(result, Attribution) else result
            measures["held_out_agreement"] = _agreement(a, scores, batch)
        return measures


def agreeing_heads(model: Model, examples: Sequence[Example], count: int = 4) -> list[tuple[int, int]]:
    """The ``count`` (layer, head) pairs with the most attention on explained tokens."""

    def mass(step: Step) -> Tensor:
        marked = ((_explained(step) > 0) & step.batch.content)[:, None]
        return (attended(step, layers="all", heads="each") * marked).sum(2).sum(0)

    results = each_step(model, [e for e in examples if e.guide], mass)
    return _highest(model, [result for _, result in results], count)


def important_heads(model: Model, examples: Sequence[Example], count: int = 4) -> list[tuple[int, int]]:
    """The ``count`` (layer, head) pairs without which the loss would change most: E |Σ A ⊙ ∂L/∂A|.

    This is the gradient of a factor on the output of a head, at 1.

    Paper: Michel et al. 2019, Are Sixteen Heads Really Better than One?, arXiv:1905.10650, eq. 2
    """

    def importance(step: Step) -> Tensor:
        attention = list(step.output.attention)
        gradients = torch.autograd.grad(task_loss(step).sum(), attention)
        each = [(a * g).sum((2, 3)).abs().sum(0).detach() for a, g in zip(attention, gradients, strict=True)]
        return torch.cat(each)

    results = [result for _, result in each_step(model, examples, importance, graph=True)]
    return _highest(model, results, count)


def _highest(model: Model, results: Sequence[Tensor], count: int) -> list[tuple[int, int]]:
    """The (layer, head) pairs with the highest sums, counted from 1."""
    if not results:
        return []
    total = torch.stack(list(results)).sum(0)
    heads = len(total) // model.layers
    return [(int(i) // heads + 1, int(i) % heads + 1) for i in total.argsort(descending=True)[:count]]


def mean_length(model: Model, examples: Sequence[Example]) -> float:
    """The mean length of the texts in tokens, from a sample."""
    return float(np.mean([len(e) for e in encode_examples(model, sampled(examples, 100))]))


def each_step(
    model: Model, examples: Sequence[Example], read: Callable[[Step], Result], *, graph: bool = False
) -> list[tuple[list[int], Result]]:
    """Apply ``read`` to the examples batch by batch; returns the indices of each batch with its result.

    The model is frozen. With ``graph``, attention and embeddings can be differentiated.
    """
    encoded = encode_examples(model, examples)

    def work(batch: Batch, items: list[int]) -> Result:
        chosen = [examples[i] for i in items]
        with exclusive(model), torch.set_grad_enabled(graph):
            embeddings = model.embed(batch).requires_grad_() if graph else None
            output = model(batch, embeddings=embeddings, attention="differentiable" if graph else "read")
            guide = guides_of(chosen, batch.encoded, batch.ids.device)
            return read(Step(model, batch, output, labels_of(model, chosen), guide))

    return list(batches(model, encoded, work))


def _explained(step: Step) -> Float[Tensor, "b t"]:
    """The explanation of each text; with one per label, that of the true label."""
    if step.guide.dim() == 2:
        return step.guide
    labels = step.labels.masked_fill(step.labels == UNKNOWN, 0)
    return step.guide[torch.arange(len(labels)), labels]


def _agreement(a: Tensor, b: Tensor, batch: Batch) -> list[float]:
    """Spearman's correlation over the tokens of each text; 0 if either side is constant."""
    return [
        spearman(x[kept].double().numpy(), y[kept].double().numpy())
        for x, y, kept in zip(a.cpu(), b.cpu(), batch.content.cpu(), strict=True)
    ]


def _by_text(results: Iterable[tuple[Sequence[int], Mapping[str, Sequence[float]]]]) -> dict[str, list[float]]:
    """Measures in the order of the texts, from those of the texts of each batch."""
    merged: dict[str, dict[int, float]] = {}
    for rows, measures in results:
        for name, values in measures.items():
            merged.setdefault(name, {}).update(zip(rows, values, strict=True))
    return {name: [values[i] for i in sorted(values)] for name, values in merged.items()}
