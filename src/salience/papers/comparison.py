"""Shared by the papers that compare methods: a table of methods by metrics, and the cost of each method."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from salience.core.settings import settings_of
from salience.core.types import Model
from salience.data.examples import Example, sampled
from salience.errors import UnsupportedModel
from salience.evaluation.evaluator import evaluate, unsupported
from salience.evaluation.table import Evaluation
from salience.explanations.explainer import AnyMethod, explain
from salience.methods import find_method

TIMED = 40
"""Number of texts used to time a method."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The results of one model on one data set."""

    data: str
    evaluation: Evaluation
    seconds: Mapping[str, float]
    """Seconds per text by method, explained in batches."""
    left_out: Mapping[str, str]
    """Methods that do not support this model, with the reason."""


def compare(
    model: Model,
    data: str,
    examples: Sequence[Example],
    methods: Sequence[str],
    metrics: Sequence[str],
    *,
    needed: Sequence[str] = (),
    report: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> Comparison:
    """Evaluate all methods that support the model, and time each of them on a sample.

    Unsupported methods are left out, but an unsupported method in ``needed`` raises UnsupportedModel.
    """
    texts = [e.text for e in sampled(examples, TIMED)]
    own = {name: _settings_of(name, settings) for name in methods}
    left_out = {name: why for name in methods if (why := unsupported(model, texts[0], name, **own[name])) is not None}
    for name in needed:
        if name in left_out:
            raise UnsupportedModel(left_out[name])
    supported = [name for name in methods if name not in left_out]
    evaluation = evaluate(model, examples, supported, metrics=metrics, report=report, **settings)
    seconds = {name: seconds_per_text(model, texts, name, own[name]) for name in supported}
    return Comparison(data, evaluation, seconds, left_out)


def _settings_of(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one method: those for all methods that it takes, then its own, written ``method.setting``."""
    shared = {key: value for key, value in settings.items() if key in settings_of(find_method(method))}
    own = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith(f"{method}.")}
    return {**shared, **own}


def seconds_per_text(model: Model, texts: Sequence[Any], method: AnyMethod, settings: Mapping[str, Any]) -> float:
    """How long a method takes, explaining in batches."""
    explain(model, texts[:2], method, **settings)  # warm-up: exclude work that is done once per model
    began = perf_counter()
    explain(model, texts, method, **settings)
    return (perf_counter() - began) / len(texts)
