"""The task of ``explain_data``: explain every text of a run by the same methods."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import torch

from salience.core.passes import resolve
from salience.core.target import Target
from salience.core.text import Encoded
from salience.core.types import Model
from salience.data import Row, Source
from salience.errors import BadInput
from salience.explanations.explainer import (
    DEFAULTS,
    Configured,
    columns,
    default_method,
    each_layer,
    explain_batches,
    prepare,
    settled,
)
from salience.explanations.explanation import Explanation
from salience.runs.parts import explanation_table


@dataclass(frozen=True, slots=True)
class Explaining:
    """Explains texts. A row that names its target is explained for that label."""

    method: tuple[str | Callable[..., Any], ...] | None
    """If None, the model decides."""
    settings: Mapping[str, Any]
    target: Target

    holds = "explanations"

    def __post_init__(self) -> None:
        prepare(
            DEFAULTS if self.method is None else self.method, self.settings
        )  # unknown names and settings are found before anything is loaded

    def settled(
        self, model: Model, _source: Source, _limit: int | None, _earlier: Mapping[str, Any] | None, /
    ) -> "Explaining":
        resolve(model, [self.target], torch.zeros(0, len(model.labels)))  # raises for an unknown label
        return self

    def identity(self, model: Model) -> dict[str, Any]:
        return {"methods": recorded(self._methods(model)), "target": asdict(self.target)}

    def on(self, model: Model) -> "Explainer":
        return Explainer(model, settled(model, self._methods(model)), self.target)

    def _methods(self, model: Model) -> list[Configured]:
        chosen = default_method(model) if self.method is None else self.method
        return each_layer(model, prepare(chosen, self.settings))


@dataclass(frozen=True, slots=True)
class Explainer:
    """Explains the texts of a shard with one model."""

    model: Model
    methods: Sequence[Configured]
    target: Target

    def encode(self, row: Row) -> Encoded:
        if row.target is not None:
            self.model.resolve(_one_label(row))
        (encoded,) = self.model.encode([row.text])
        return encoded

    def __call__(self, rows: Sequence[Row], encoded: Sequence[Encoded]) -> Iterator[list[int] | pa.Table]:
        targets = [self.target if r.target is None else replace(self.target, label=_one_label(r)) for r in rows]
        done: dict[int, list[Explanation]] = {}
        for batch in explain_batches(self.model, encoded, self.methods, targets):
            done |= batch
            yield list(batch)
        names = columns(self.methods)
        named = [replace(row, label=_label_name(self.model, row.label)) for row in rows]
        yield explanation_table(named, [dict(zip(names, done[i], strict=True)) for i in range(len(rows))])


def recorded(methods: Sequence[Configured]) -> dict[str, Any]:
    """The methods as the manifest records them, by column."""
    named = zip(columns(methods), methods, strict=True)
    return {column: {"method": m.method.__name__, "settings": dict(m.settings)} for column, m in named}


def _one_label(row: Row) -> str | int:
    if isinstance(row.target, str | int):
        return row.target
    raise BadInput(f"its label is {row.target!r}; expected a label name or an integer")


def _label_name(model: Model, label: Any) -> str | None:
    """The model's name of a label of the data; a label that it does not know is kept as it is."""
    if isinstance(label, str | int) and model.link != "identity":
        try:
            return model.label(model.resolve(label))
        except BadInput:
            return str(label)
    return label if isinstance(label, str | None) else json.dumps(label, ensure_ascii=False)
