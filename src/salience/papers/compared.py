"""What the papers that compare methods share: one table of methods by metrics, and what each method costs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from salience.evaluation import Evaluation
from salience.evaluator import evaluate
from salience.explainer import explain
from salience.guards import sampled
from salience.lessons import Example
from salience.types import Model

TIMED = 40
"""Texts by which a method's cost is measured."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One model on one data set."""

    data: str
    found: Evaluation
    seconds: Mapping[str, float]
    """Per text, explained in batches, by method."""


def compared(
    model: Model,
    data: str,
    given: Sequence[Example],
    methods: Sequence[str],
    metrics: Sequence[str],
    *,
    report: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> Comparison:
    """All methods on all texts, and each of them timed by itself on some."""
    found = evaluate(model, given, methods, metrics=metrics, report=report, **settings)
    texts = [e.text for e in sampled(given, TIMED)]
    return Comparison(data, found, {name: _seconds(model, texts, name, settings) for name in methods})


def _seconds(model: Model, texts: Sequence[Any], method: str, settings: Mapping[str, Any]) -> float:
    own = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith(f"{method}.")}
    explain(model, texts[:2], method, **own)  # what is done once for a model is not a text's cost
    began = perf_counter()
    explain(model, texts, method, **own)
    return (perf_counter() - began) / len(texts)
