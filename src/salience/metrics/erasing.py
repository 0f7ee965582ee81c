"""Metrics that take tokens away and ask the model again. Those that are asked for together share their passes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from salience.batching import runs
from salience.erasure import Erasure, eraser, usual
from salience.errors import BadInput
from salience.evaluation import Better
from salience.passes import forward
from salience.settings import settings_of
from salience.types import Batch, Kind, Link, Model, Targets

Masks = Callable[..., Bool[Tensor, "m b t"]]
"""(scores, batch, settings by keyword) -> the tokens to take away, ``m`` times from every text."""


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """What the model says of every text, whole and under each of its erasures."""

    scores: Float[Tensor, "b t"]
    batch: Batch
    erased: Bool[Tensor, "m b t"]
    values: Float[Tensor, "m b"]
    """The explained number."""
    kept: Bool[Tensor, "m b"]
    """Whether the decision is still that of the whole text."""
    whole: Float[Tensor, " b"]
    """The explained number of the whole text."""
    kind: Kind
    link: Link


class Erasing:
    """A metric by erasure: which tokens to take away, and what to make of the answers.

    Called like any other metric, with ``erase`` for the kind of erasure beside its own settings.
    """

    def __init__(self, read: Callable[..., Tensor], masks: Masks, better: Better, curve: bool) -> None:
        self.read, self.masks, self.curve = read, masks, curve
        self.better: Better = better
        self.__name__, self.__doc__, self.__module__ = read.__name__, read.__doc__, read.__module__
        own = {**settings_of(masks), **settings_of(read)}
        self.defaults = {name: p.default for name, p in own.items()}
        erase = Parameter("erase", Parameter.KEYWORD_ONLY, default=None, annotation=Erasure | None)
        place = [Parameter(n, Parameter.POSITIONAL_ONLY) for n in ("model", "batch", "scores", "target")]
        self.__signature__ = signature(read).replace(parameters=[*place, *own.values(), erase])

    def __call__(
        self,
        model: Model,
        batch: Batch,
        scores: Float[Tensor, "b t"],
        target: Targets,
        /,
        *,
        erase: Erasure | None = None,
        **settings: Any,
    ) -> Float[Tensor, " b"]:
        ((found,),) = measured(model, batch, [scores], target, [(self, settings)], erase=erase)
        return found.value

    def __repr__(self) -> str:
        return f"<metric {self.__name__}>"

    def taken(self, settings: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
        """The settings that one of the metric's two functions takes."""
        return {name: {**self.defaults, **settings}[name] for name in settings_of(function)}


def erasing(masks: Masks, better: Better) -> Callable[[Callable[..., Tensor]], Erasing]:
    """Make a metric of a function that reads one number per text off the :class:`Answers`."""
    return lambda read: Erasing(read, masks, better, curve=False)


def area(masks: Masks, better: Better) -> Callable[[Callable[..., Tensor]], Erasing]:
    """Make a metric of a function that reads a curve (m × b) off the :class:`Answers`: the area under it, from 0 to 1.

    The masks are those of evenly spaced shares from 0 to 1.
    """
    return lambda read: Erasing(read, masks, better, curve=True)


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """One metric of one explanation: a number for every text and, for an area, the curve it lies under."""

    value: Float[Tensor, " b"]
    curve: Float[Tensor, "m b"] | None = None


def measured(
    model: Model,
    batch: Batch,
    every: Sequence[Float[Tensor, "b t"]],
    target: Targets,
    metrics: Sequence[tuple[Erasing, Mapping[str, Any]]],
    *,
    erase: Erasure | None = None,
) -> list[list[Measured]]:
    """Several metrics of several explanations of one batch; what is asked twice is passed once."""
    asked = [[m.masks(s, batch, **m.taken(settings, m.masks)) for m, settings in metrics] for s in every]
    values, decisions = _answers(model, batch, torch.cat([masks for row in asked for masks in row]), target, erase)
    whole, first = values[0], decisions[0]
    start, found = 1, list[list[Measured]]()
    for scores, row in zip(every, asked, strict=True):
        found.append([])
        for (metric, settings), masks in zip(metrics, row, strict=True):
            part = slice(start, start := start + len(masks))
            answers = Answers(
                scores.cpu(),
                batch,
                masks.cpu(),
                values[part],
                decisions[part] == first,
                whole,
                target.kind,
                target.link,
            )
            found[-1].append(_read(metric, answers, settings))
    return found


def _read(metric: Erasing, answers: Answers, settings: Mapping[str, Any]) -> Measured:
    value = metric.read(answers, **metric.taken(settings, metric.read)).float()
    if not metric.curve:
        return Measured(value)
    return Measured(torch.trapezoid(value, dx=1 / (len(value) - 1), dim=0), value)


def _answers(
    model: Model, batch: Batch, erased: Bool[Tensor, "m b t"], target: Targets, kind: Erasure | None
) -> tuple[Float[Tensor, "n b"], Int[Tensor, "n b"]]:
    """The explained number and the decision of each text, first whole and then under each erasure.

    Every pair of a text and a mask is passed once, however often it is asked for.
    """
    kind = kind or usual(model)
    away = eraser(model, kind)
    text, where, places = _distinct(torch.cat([batch.mask[None] & False, erased]))
    lengths = batch.mask.sum(1)[text]
    left = lengths - where.sum(1) if kind == "delete" else lengths
    order = left.argsort(descending=True, stable=True)
    values, decisions = torch.empty(len(text)), torch.empty(len(text), dtype=torch.long)
    for part in runs(left[order].tolist(), model.budget):
        at = order[part]
        rows = batch.take(text[at]).cut(slice(int(lengths[at].max())))
        changed, embeddings = away(rows, where[at, : rows.width])
        logits = forward(model, changed, embeddings=embeddings).logits
        wanted = target.take(text[at])
        values[at.cpu()] = wanted(logits).float().cpu()
        decisions[at.cpu()] = _decision(logits, wanted).cpu()
    return values[places], decisions[places]


def _distinct(
    erased: Bool[Tensor, "n b t"],
) -> tuple[Int[Tensor, " r"], Bool[Tensor, "r t"], Int[Tensor, "n b"]]:
    """Each different pair of a text and a mask once, and where each was asked for."""
    n, b, t = erased.shape
    text = torch.arange(b, device=erased.device).expand(n, b).reshape(-1, 1)
    rows, places = torch.cat([text, erased.reshape(n * b, t)], 1).unique(dim=0, return_inverse=True)
    return rows[:, 0], rows[:, 1:].bool(), places.reshape(n, b).cpu()


def _decision(logits: Float[Tensor, "b c"], target: Targets) -> Int[Tensor, " b"]:
    """What is decided: the likeliest label, or where several may hold, whether the explained one does."""
    if target.link == "sigmoid":
        return (logits.gather(1, target.labels[:, None])[:, 0] > 0).long()
    return logits.argmax(1)


def decided(answers: Answers, what: str) -> Bool[Tensor, "m b"]:
    """Whether each decision is that of the whole text; a regression decides nothing."""
    if answers.link == "identity":
        raise BadInput(f"{what} counts decisions, and a regression model makes none; use one that reads its number")
    return answers.kept
