"""Metrics that erase tokens and read the prediction again. Metrics computed together share their passes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from salience.core.erasure import Erasure, usual
from salience.core.rows import Erased, read_erased
from salience.core.settings import settings_of
from salience.core.stats import Limits
from salience.core.target import Kind
from salience.core.types import Batch, Link, Model, Targets
from salience.errors import BadInput
from salience.metrics.metric import Better, Metric

Masks = Callable[..., Bool[Tensor, "m b t"]]
"""``(scores, batch, **settings) -> masks`` of the tokens to erase, ``m`` masks per text."""


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """The outputs of the model for every text, whole and under each erasure."""

    scores: Float[Tensor, "b t"]
    batch: Batch
    erased: Bool[Tensor, "m b t"]
    values: Float[Tensor, "m b"]
    """The explained number under each erasure."""
    kept: Bool[Tensor, "m b"]
    """Whether the decision is the same as for the whole text."""
    whole: Float[Tensor, " b"]
    """The explained number of the whole text."""
    kind: Kind
    link: Link


def by_erasure(
    masks: Masks,
    better: Better,
    *,
    limits: Limits,
    curve: bool = False,
    decides: bool = False,
    until_flip: bool = False,
) -> Callable[[Callable[..., Tensor]], Metric]:
    """Make a metric from a function that computes one number per text from :class:`Answers`.

    With ``curve``, the function returns a curve over evenly spaced shares of tokens from 0 to 1 (m × b), and the metric
    is the area under it. With ``until_flip``, erasures after the first that changes the decision are not passed: there,
    the decision counts as changed and the explained number is NaN.
    """

    def metric(read: Callable[..., Tensor]) -> Metric:
        def call(
            model: Model, batch: Batch, scores: Tensor, target: Targets, /, *, erase: Erasure | None = None, **own: Any
        ) -> Float[Tensor, " b"]:
            ((result,),) = measured(model, batch, [scores], target, [(made, own)], erase=erase)
            return result.value

        made = Metric(read, "faithfulness", better, "erasure", masks, curve, decides, until_flip, limits, call)
        return made

    return metric


def _settings_for(metric: Metric, settings: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """The settings that one of the two functions of the metric takes."""
    return {name: settings.get(name, metric.settings[name].default) for name in settings_of(function)}


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """One metric of one explanation: a value per text and, for areas, the curve."""

    value: Float[Tensor, " b"]
    curve: Float[Tensor, "m b"] | None = None


def measured(
    model: Model,
    batch: Batch,
    every: Sequence[Float[Tensor, "b t"]],
    target: Targets,
    metrics: Sequence[tuple[Metric, Mapping[str, Any]]],
    *,
    erase: Erasure | None = None,
) -> list[list[Measured]]:
    """Compute several metrics for several explanations of one batch; equal erasures are passed once."""
    ask = _Asked(model, batch.remembering(model), target, erase or usual(model))
    requested = [(s, m, settings, _masks(m, s, batch, settings)) for s in every for m, settings in metrics]
    nothing = batch.mask[None] & False
    (whole, decision), *others = ask.all([nothing, *(masks for _, m, _, masks in requested if not m.until_flip)])
    at_once = iter(others)
    in_steps = iter(ask.until_flip([masks for _, m, _, masks in requested if m.until_flip], decision[0]))
    results = list[Measured]()
    for scores, metric, settings, masks in requested:
        values, decisions = next(in_steps if metric.until_flip else at_once)
        kept = decisions == decision
        answers = Answers(scores.cpu(), batch, masks.cpu(), values, kept, whole[0], target.kind, target.link)
        results.append(_read(metric, answers, settings))
    return [results[i : i + len(metrics)] for i in range(0, len(results), len(metrics))]


def _masks(metric: Metric, scores: Tensor, batch: Batch, settings: Mapping[str, Any]) -> Bool[Tensor, "m b t"]:
    assert metric.prepare is not None
    return metric.prepare(scores, batch, **_settings_for(metric, settings, metric.prepare))


def _read(metric: Metric, answers: Answers, settings: Mapping[str, Any]) -> Measured:
    value = metric.read(answers, **_settings_for(metric, settings, metric.read)).float()
    if not metric.curve:
        return Measured(value)
    return Measured(torch.trapezoid(value, dx=1 / (len(value) - 1), dim=0), value)


_Outputs = tuple[Float[Tensor, "m b"], Int[Tensor, "m b"]]
"""The explained number and the decision under each erasure of each text."""


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """A model that is asked about erased copies of the texts of a batch."""

    model: Model
    batch: Batch
    target: Targets
    erase: Erasure

    def all(self, every: Sequence[Bool[Tensor, "m b t"]]) -> list[_Outputs]:
        """The outputs under all erasures, in one go."""
        where = torch.cat(list(every))
        text = torch.arange(len(self.batch), device=where.device).repeat(len(where))
        values, decisions = self._read(Erased(text, where.flatten(0, 1)))
        sizes = [len(masks) for masks in every]
        shape = (len(where), len(self.batch))
        return list(zip(values.view(shape).split(sizes), decisions.view(shape).split(sizes), strict=True))

    def until_flip(self, every: Sequence[Bool[Tensor, "m b t"]], decision: Int[Tensor, " b"]) -> list[_Outputs]:
        """The outputs under erasures that are tried one after the other, until the decision changes.

        What comes after a change is not passed: its value is NaN, and its decision that of the change.
        """
        if not every:
            return []
        steps = max(len(masks) for masks in every)
        where = torch.stack([torch.cat([m, m[-1:].expand(steps - len(m), -1, -1)]) for m in every], 1)
        values = torch.full(where.shape[:3], torch.nan)
        decisions = decision.expand(where.shape[:3]).clone()
        new = torch.ones(where.shape[1:3], dtype=torch.bool)
        for step in range(steps):
            if step:
                values[step], decisions[step] = values[step - 1], decisions[step - 1]
                new = (where[step] != where[step - 1]).any(2).cpu()
            kept = decisions[step] == decision
            values[step, ~kept] = torch.nan
            one, text = (new & kept).nonzero(as_tuple=True)
            if len(text):
                rows = Erased(text.to(where.device), where[step][one.to(where.device), text.to(where.device)])
                values[step, one, text], decisions[step, one, text] = self._read(rows)
        return [(values[: len(m), i], decisions[: len(m), i]) for i, m in enumerate(every)]

    def _read(self, rows: Erased) -> tuple[Float[Tensor, " r"], Int[Tensor, " r"]]:
        def read(logits: Tensor, texts: Tensor) -> Tensor:
            wanted = self.target.take(texts)
            return torch.stack([wanted(logits).double(), _decision(logits, wanted).double()], 1)

        values, decisions = read_erased(self.model, self.batch, rows, self.erase, read).cpu().unbind(1)
        return values.float(), decisions.long()


def _decision(logits: Float[Tensor, "b c"], target: Targets) -> Int[Tensor, " b"]:
    """The decision: the most likely label or, for multi-label models, whether the explained label is predicted."""
    if target.link == "sigmoid":
        return (logits.gather(1, target.labels[:, None])[:, 0] > 0).long()
    return logits.argmax(1)


def decided(answers: Answers, what: str) -> Bool[Tensor, "m b"]:
    """Whether each decision is the same as for the whole text; regression models are rejected."""
    if answers.link == "identity":
        raise BadInput(f"{what} needs decisions, and a regression model makes none; use a metric of the output instead")
    return answers.kept
