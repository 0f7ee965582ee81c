"""Whether training has moved attention to the explanation, and what that did to the rest: measured after each epoch."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from math import nan
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from salience.batching import pack
from salience.explainer import targets
from salience.lessons import Example, read
from salience.methods import find
from salience.methods.attention import Row
from salience.metrics.agreement import spearman
from salience.metrics.faithfulness import comprehensiveness, sufficiency
from salience.objectives import UNKNOWN, Heads, Layers, Lesson, Objective, attended
from salience.passes import forward, frozen
from salience.train import guides_of, labels_of
from salience.types import Attribution, Batch, Encoded, Model, Target

Packed = tuple[Sequence[Example], Sequence[Encoded]]
Item = TypeVar("Item")


def accuracy(model: Model, examples: Sequence[Example]) -> float:
    """Share of texts whose label is predicted: all labels of a text, where there may be several.

    For a regression it is the correlation of the predicted numbers with the true ones.
    """
    answers = [
        (forward(model, model.batch(encoded)).logits, labels_of(model, some))
        for some, encoded in packed(model, [e for e in examples if e.label is not None])
    ]
    return _accuracy(model, answers)


def _accuracy(model: Model, answers: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Of logits and labels, batch by batch."""
    if not answers:
        return nan
    logits, labels = (torch.cat([side.detach().cpu() for side in sides]) for sides in zip(*answers, strict=True))
    known = (labels != UNKNOWN).reshape(len(labels), -1).all(1)
    logits, labels = logits[known], labels[known]
    if model.link == "softmax":
        return float((logits.argmax(1) == labels).float().mean())
    if model.link == "sigmoid":
        return float(((logits > 0) == (labels > 0.5)).all(1).float().mean())
    return float(np.corrcoef(logits[:, 0].numpy(), labels[:, 0].numpy())[0, 1])


@dataclass(frozen=True, slots=True)
class Guards:
    """A probe for :func:`salience.train.fit`.

    ``attention_mass`` is what the attended row gives to explained tokens, ``agreement`` its rank correlation with the
    explanation, ``held_out_agreement`` the same with a method that did not teach it. ``comprehensiveness`` and
    ``sufficiency`` are those of attention itself: whether it explains better, or only looks better.
    """

    examples: Sequence[Example]
    """Held out from training, with guides."""
    objective: Objective
    row: Row = "auto"
    layers: Layers = "last"
    heads: Heads = "mean"
    held_out: str | None = "occlusion"
    sample: int = 100
    """Texts that the last three are measured on, at most."""
    tokens: int = 6000
    """Tokens of these texts, at most: they are passed many times."""

    def __call__(self, model: Model) -> Mapping[str, float]:
        guided = [e for e in self.examples if e.guide]
        if not guided:
            return {"accuracy": accuracy(model, self.examples)}
        answers: list[tuple[Tensor, Tensor]] = []
        looked: list[dict[str, list[float]]] = []
        for some, encoded in packed(model, self.examples):
            with frozen(model.module):
                lesson = _lesson(model, some, encoded, graph=self.objective.penalty is not None)
                answers.append((lesson.output.logits.detach(), lesson.labels))
                looked.append(self._looked(lesson))
        erased = self._erased(model, sampled(guided, self._count(model, guided)))
        return {"accuracy": _accuracy(model, answers), **_means(looked), **_means(erased)}

    def _count(self, model: Model, guided: Sequence[Example]) -> int:
        return max(1, min(self.sample, round(self.tokens / mean_length(model, guided))))

    def _looked(self, lesson: Lesson) -> dict[str, list[float]]:
        a = attended(lesson, self.row, self.layers, self.heads).mean(1).detach()
        e = _explained(lesson)
        marked = (e > 0) & lesson.batch.content
        told = {"attention_mass": (a * marked).sum(1).tolist(), "agreement": _agreement(a, e, lesson.batch)}
        if self.objective.penalty is not None:
            with torch.enable_grad():
                told["penalty"] = self.objective.penalty(lesson).tolist()
        guided = lesson.guided.tolist()
        return {name: list(compress(values, guided)) for name, values in told.items()}

    def _erased(self, model: Model, guided: Sequence[Example]) -> Iterator[dict[str, list[float]]]:
        for some, encoded in packed(model, guided):
            lesson = _lesson(model, some, encoded)
            a, batch = attended(lesson, self.row, self.layers, self.heads).mean(1), lesson.batch
            target = targets(
                model, Target(kind="logit" if model.link == "identity" else "probability"), lesson.output.logits
            )
            told = {
                "comprehensiveness": comprehensiveness(model, batch, a, target).tolist(),
                "sufficiency": sufficiency(model, batch, a, target).tolist(),
            }
            if self.held_out is not None:
                scores = find(self.held_out)(model, batch, target)
                scores = scores.scores if isinstance(scores, Attribution) else scores
                told["held_out_agreement"] = _agreement(a, scores, batch)
            yield told


def agreeing_heads(model: Model, examples: Sequence[Example], count: int = 4) -> list[tuple[int, int]]:
    """The (layer, head) pairs whose attention already agrees best with the explanations."""
    sums: Tensor | None = None
    for some, encoded in packed(model, [e for e in examples if e.guide]):
        lesson = _lesson(model, some, encoded)
        views = attended(lesson, layers="all", heads="each")
        marked = ((_explained(lesson) > 0) & lesson.batch.content)[:, None]
        mass = (views * marked).sum(2).sum(0)
        sums = mass if sums is None else sums + mass
    if sums is None:
        return []
    heads = len(sums) // model.layers
    return [(int(i) // heads + 1, int(i) % heads + 1) for i in sums.argsort(descending=True)[:count]]


def mean_length(model: Model, examples: Sequence[Example]) -> float:
    """In tokens."""
    return float(np.mean([len(e) for e in read(model, sampled(examples, 100))]))


def sampled(items: Sequence[Item], count: int) -> list[Item]:
    """So many of them at even distances: data is often sorted by its labels.

    >>> sampled(range(10), 4)
    [0, 2, 5, 7]
    """
    return [items[i * len(items) // count] for i in range(count)] if len(items) > count else list(items)


def packed(model: Model, examples: Sequence[Example]) -> Iterator[Packed]:
    encoded = read(model, examples)
    for rows in pack([len(e) for e in encoded], model.budget):
        yield [examples[i] for i in rows], [encoded[i] for i in rows]


def _lesson(model: Model, examples: Sequence[Example], encoded: Sequence[Encoded], *, graph: bool = False) -> Lesson:
    batch = model.batch(encoded)
    if graph:
        with torch.enable_grad():
            output = model(batch, embeddings=model.embed(batch).requires_grad_(), attention="differentiable")
    else:
        output = forward(model, batch, attention="read")
    return Lesson(model, batch, output, labels_of(model, examples), guides_of(examples, encoded, batch.ids.device))


def _explained(lesson: Lesson) -> Float[Tensor, "b t"]:
    """The explanation; where there is one of every label, that of the true label."""
    if lesson.guide.dim() == 2:
        return lesson.guide
    labels = lesson.labels.masked_fill(lesson.labels == UNKNOWN, 0)
    return lesson.guide[torch.arange(len(labels)), labels]


def _agreement(a: Tensor, b: Tensor, batch: Batch) -> list[float]:
    """Spearman's correlation over each text's tokens; 0 where one of them is all ties."""
    return [
        spearman(x[kept].double().numpy(), y[kept].double().numpy())
        for x, y, kept in zip(a.cpu(), b.cpu(), batch.content.cpu(), strict=True)
    ]


def _means(told: Iterable[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for some in told:
        for name, values in some.items():
            found.setdefault(name, []).extend(values)
    return {name: float(np.mean(values)) for name, values in found.items()}
