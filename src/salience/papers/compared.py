"""What the papers that compare methods share: one table of methods by metrics, and what each method costs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from salience.errors import UnsupportedModel
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
    left_out: Mapping[str, str]
    """Methods that this model cannot be explained by, and why."""


def compared(
    model: Model,
    data: str,
    given: Sequence[Example],
    methods: Sequence[str],
    metrics: Sequence[str],
    *,
    needed: Sequence[str] = (),
    report: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> Comparison:
    """All methods that the model can be explained by on all texts, and each of them timed by itself on some.

    A method that the paper is about is ``needed``: a model that lacks what it takes is refused.
    """
    texts = [e.text for e in sampled(given, TIMED)]
    own = {name: _own(name, settings) for name in methods}
    left = {name: why for name in methods if (why := _refusal(model, texts[0], name, own[name], name in needed))}
    kept = [name for name in methods if name not in left]
    found = evaluate(model, given, kept, metrics=metrics, report=report, **settings)
    return Comparison(data, found, {name: _seconds(model, texts, name, own[name]) for name in kept}, left)


def _own(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key.partition(".")[2]: value for key, value in settings.items() if key.startswith(f"{method}.")}


def _refusal(model: Model, text: Any, method: str, settings: Mapping[str, Any], needed: bool) -> str | None:
    """Why the model cannot be explained by a method."""
    try:
        explain(model, text, method, **settings)
    except UnsupportedModel as error:
        if needed:
            raise
        return str(error)
    return None


def _seconds(model: Model, texts: Sequence[Any], method: str, settings: Mapping[str, Any]) -> float:
    explain(model, texts[:2], method, **settings)  # what is done once for a model is not a text's cost
    began = perf_counter()
    explain(model, texts, method, **settings)
    return (perf_counter() - began) / len(texts)
