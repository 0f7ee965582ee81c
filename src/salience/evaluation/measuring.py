"""Computes every metric for every explanation, one number per text."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from salience.core.erasure import Erasure
from salience.core.rows import Erased, batches, erased_values
from salience.core.stats import UNLIMITED, Limits
from salience.core.target import Kind, Target
from salience.core.text import Encoded, Span
from salience.core.types import Attribution, Batch, Model, Targets
from salience.data.rationales import marked
from salience.errors import BadInput
from salience.explanations.explainer import Configured, columns, explain_batch, explain_batches, settled
from salience.explanations.explanation import Explanation
from salience.methods import CONTROLS, find_method
from salience.metrics import Metric
from salience.metrics.erasing import measured

LEAVE_ONE_OUT = "occlusion"
"""The method that erases one token at a time."""

Rationale = tuple[Span, ...] | None
Explained = Mapping[str, Sequence[Explanation]]
"""Explanations by name, in the order of the texts."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts as the model reads them, with their targets and rationales, and explanations that exist already."""

    encoded: Sequence[Encoded]
    targets: Sequence[Target]
    rationales: Sequence[Rationale]
    explained: Explained


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """What was measured of some texts: arrays with one row per text and one column per method."""

    methods: tuple[str, ...]
    values: Mapping[str, Float[np.ndarray, "n k"]]
    """By metric; NaN where a metric is undefined."""
    curves: Mapping[str, Float[np.ndarray, "n k p"]]
    """By metric, for the areas."""
    gaps: Mapping[str, Mapping[str, Float[np.ndarray, " n"]]]
    """By method and name of the gap."""
    settings: Mapping[str, Mapping[str, Any]]
    """The settings of each method, as recorded with the first text."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What to measure: the metrics with their settings, the methods that explain, and how tokens are erased."""

    model: Model
    methods: Sequence[Configured]
    metrics: Sequence[Metric]
    settings: Mapping[str, Mapping[str, Any]]
    erase: Erasure

    @property
    def kind(self) -> Kind:
        """What is read from an erased text: the probability of the label, or the output of a regression model."""
        return "logit" if self.model.link == "identity" else "probability"

    @property
    def limits(self) -> dict[str, Limits]:
        """Between which values each metric lies; the output of a regression model has no limits."""
        free = [m.name for m in self.metrics if m.needs == "erasure" and self.kind != "probability"]
        return {m.name: UNLIMITED if m.name in free else m.limits for m in self.metrics}

    @property
    def passes(self) -> int:
        """How often every text is processed: once, and once more for each changed model."""
        changed = [m for m in self.metrics if m.needs == "changed_model"]
        return 1 + sum(self._settings(m).get("samples", 1) for m in changed)

    def __call__(self, texts: Texts) -> Iterator[list[int] | Numbers]:
        """Explain and measure the texts. Yields the indices of the texts of each batch and pass, then the numbers."""
        methods = settled(self.model, self.methods)
        done = dict[int, _Text]()
        for items, result in batches(self.model, texts.encoded, lambda b, i: self._batch(b, i, texts, methods)):
            done |= zip(items, result, strict=True)
            yield items
        every = [done[i] for i in range(len(texts.encoded))]
        values = {m.name: np.array([one.values[m.name] for one in every]) for m in self._by_text}
        for metric in (m for m in self.metrics if m.needs == "changed_model"):
            values[metric.name] = yield from self._by_changed_models(metric, texts, every)
        names = tuple(every[0].explained)
        yield Numbers(
            names,
            {m.name: values[m.name] for m in self.metrics},
            {m.name: np.stack([one.curves[m.name] for one in every]) for m in self.metrics if m.curve},
            {name: gaps for name in names if (gaps := _gaps([one.explained[name] for one in every]))},
            {name: dict(every[0].explained[name].settings) for name in names},
        )

    @property
    def _by_text(self) -> list[Metric]:
        return [m for m in self.metrics if m.needs != "changed_model"]

    def _settings(self, metric: Metric) -> dict[str, Any]:
        """The settings of a metric, defaults included."""
        usual = {name: p.default for name, p in metric.settings.items() if p.default is not p.empty}
        return usual | dict(self.settings.get(metric.name, {}))

    # -------------------------------------------------------------------------------------- one batch

    def _batch(self, batch: Batch, items: list[int], texts: Texts, methods: Sequence[Configured]) -> list["_Text"]:
        """Explain and measure one batch, which remembers its erased copies: no method or metric passes them again."""
        batch = batch.remembering(self.model)
        rows = explain_batch(self.model, batch, methods, [texts.targets[i] for i in items])
        names = columns(methods)
        results = [
            _Text({name: own[i] for name, own in texts.explained.items()} | dict(zip(names, row, strict=True)), {}, {})
            for i, row in zip(items, rows, strict=True)
        ]
        self._query(batch, results)
        for metric in (m for m in self.metrics if m.needs == "rationale"):
            for i, one in zip(items, results, strict=True):
                one.values[metric.name] = list(self._plausible(metric, texts, i, one))
        return results

    def _query(self, batch: Batch, results: Sequence["_Text"]) -> None:
        by_need = {need: [m for m in self.metrics if m.needs == need] for need in ("erasure", "leave_one_out", "model")}
        if not any(by_need.values()):
            return
        names = list(results[0].explained)
        scores = [_padded([one.explained[name].scores for one in results], batch.ids.device) for name in names]
        target = self._target(batch, results)
        self._erase(by_need["erasure"], batch, scores, target, results)
        self._leave_one_out(by_need["leave_one_out"], batch, target, results)
        for metric in by_need["model"]:
            own = self.settings.get(metric.name, {})
            numbers = [_checked(metric, metric.read(self.model, batch, s, target, **own), len(results)) for s in scores]
            for row, one in enumerate(results):
                one.values[metric.name] = [float(of_method[row]) for of_method in numbers]

    def _target(self, batch: Batch, results: Sequence["_Text"]) -> Targets:
        """The explained label of every text, with its number for the whole text."""
        device = batch.ids.device
        labels = torch.tensor([column_of(self.model, r.explained[CONTROLS[0]]) for r in results], device=device)
        target = Targets(labels, None, self.kind, self.model.link)
        whole = Erased(torch.arange(len(batch), device=device), batch.mask & False)
        return replace(target, value=erased_values(self.model, batch, target, whole, self.erase))

    def _erase(
        self,
        metrics: Sequence[Metric],
        batch: Batch,
        scores: Sequence[Tensor],
        target: Targets,
        results: Sequence["_Text"],
    ) -> None:
        if not metrics:
            return
        chosen = [(m, self.settings.get(m.name, {})) for m in metrics]
        of_methods = measured(self.model, batch, scores, target, chosen, erase=self.erase)
        for column, metric in enumerate(metrics):
            own = [of_method[column] for of_method in of_methods]
            for row, one in enumerate(results):
                one.values[metric.name] = [float(m.value[row]) for m in own]
                if metric.curve:
                    one.curves[metric.name] = np.stack([m.curve[:, row].numpy() for m in own if m.curve is not None])

    def _leave_one_out(
        self, metrics: Sequence[Metric], batch: Batch, target: Targets, results: Sequence["_Text"]
    ) -> None:
        """Compare scores with the effect of erasing single tokens; occlusion, which is that effect, gets no value."""
        if not metrics:
            return
        attribution: Attribution = find_method(LEAVE_ONE_OUT)(self.model, batch, target, erase=self.erase)
        alone = attribution.scores.cpu().double().numpy()
        for row, (one, content) in enumerate(zip(results, batch.content.cpu().numpy(), strict=True)):
            for metric in metrics:
                effects = alone[row][content]
                one.values[metric.name] = [self._correlation(metric, e, effects) for e in one.explained.values()]

    def _correlation(self, metric: Metric, e: Explanation, effects: np.ndarray) -> float:
        single = (e.method, e.settings.get("window"), e.settings.get("unit")) == (LEAVE_ONE_OUT, 1, "token")
        if single and e.settings.get("erase") in (None, self.erase):
            return np.nan
        return metric.read(np.array(e.content), effects)

    def _plausible(self, metric: Metric, texts: Texts, i: int, one: "_Text") -> Iterator[float]:
        rationale = texts.rationales[i]
        truth = None if rationale is None else marks(rationale, texts.encoded[i])
        for e in one.explained.values():
            own = self.settings.get(metric.name, {})
            yield np.nan if truth is None else metric.read(np.array(e.content), truth, **own)

    # -------------------------------------------------------------------------------------- by changed models

    def _by_changed_models(
        self, metric: Metric, texts: Texts, every: Sequence["_Text"]
    ) -> Generator[list[int], None, Float[np.ndarray, "n k"]]:
        """Compare explanations of changed models with those of the model itself; the largest value counts."""
        assert metric.prepare is not None
        targets = [one.explained[CONTROLS[0]].target for one in every]
        names = columns(self.methods)
        values = np.full((len(every), len(every[0].explained)), np.nan)
        places = {name: place for place, name in enumerate(every[0].explained)}
        for model in metric.prepare(self.model, **self.settings.get(metric.name, {})):
            for rows in explain_batches(model, texts.encoded, settled(model, self.methods), targets):
                for i, again in rows.items():
                    for name, e in zip(names, again, strict=True):
                        number = metric.read(np.array(every[i].explained[name].content), np.array(e.content))
                        values[i, places[name]] = np.fmax(values[i, places[name]], number)
                yield list(rows)
        return values


@dataclass(frozen=True, slots=True)
class _Text:
    """One text: its explanations by name, and for each metric a value and a curve per explanation."""

    explained: dict[str, Explanation]
    values: dict[str, list[float]]
    curves: dict[str, Float[np.ndarray, "k p"]]


def marks(rationale: tuple[Span, ...], encoded: Encoded) -> np.ndarray:
    """Which tokens of the text a human rationale marks."""
    return np.array([m > 0 for m, s in zip(marked(rationale, encoded), encoded.special, strict=True) if not s])


def column_of(model: Model, e: Explanation) -> int:
    """The index of the explained output of the model."""
    if e.target.column is not None:
        return e.target.column
    column = model.resolve(e.target.name)
    if model.label(column) != e.target.name:
        raise BadInput(
            f"the token {e.target.name!r} is ambiguous: {model.name} has several tokens with that text, and these "
            "explanations do not record which one; explain the texts again"
        )
    return column


def _gaps(explanations: Sequence[Explanation]) -> dict[str, Float[np.ndarray, " n"]]:
    names = sorted({name for e in explanations for name in e.gaps})
    return {name: np.array([abs(e.gaps.get(name, np.nan)) for e in explanations]) for name in names}


def _padded(rows: Sequence[Sequence[float]], device: torch.device) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *(0.0,) * (width - len(row))] for row in rows], dtype=torch.float64, device=device)


def _checked(metric: Metric, numbers: Any, texts: int) -> np.ndarray:
    values = np.asarray(torch.as_tensor(numbers).detach().cpu(), dtype=float)
    if values.shape != (texts,):
        raise BadInput(
            f"{metric.name} returned values of shape {values.shape} for {texts} texts; return one number per text"
        )
    return values
