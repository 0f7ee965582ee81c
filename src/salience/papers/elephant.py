"""The elephant in the interpretability room: why use attention as explanation when we have saliency methods?

The paper makes an argument and reports no table: to learn which inputs mattered for a prediction, use a method that
takes the whole computation into account; attention covers only a part of it. This module measures the question.

Paper: Bastings & Filippova 2020, arXiv:2010.05607
"""

from collections.abc import Callable, Sequence
from typing import Any

from salience.core.types import Model
from salience.data.examples import Example
from salience.evaluation.advice import TESTED
from salience.evaluation.evaluator import DEFAULT_METRICS, WITH_RATIONALES
from salience.evaluation.table import Evaluation
from salience.papers.comparison import Comparison, compare

ATTENTION = ("attention", "attention_rollout", "attention_x_gradient")
SALIENCY = ("gradient", "input_x_gradient", "integrated_gradients", "lrp", "occlusion")

SIZES = {"quick": 60, "full": 500}
"""Number of texts per data set."""


def run(
    model: Model,
    data: str,
    examples: Sequence[Example],
    *,
    report: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> Comparison:
    """Compare attention with saliency methods on one data set.

    The model must have attention. Other methods that do not support it are left out. Other arguments are those of
    :func:`salience.evaluate`, such as settings of the methods.
    """
    metrics = (*DEFAULT_METRICS, *(WITH_RATIONALES if any(e.rationale for e in examples) else ()))
    methods = (*ATTENTION, *SALIENCY)
    return compare(model, data, examples, methods, metrics, needed=ATTENTION[:1], report=report, **settings)


def answer(evaluation: Evaluation) -> list[str]:
    """One sentence per metric: the best of each side, and whether their difference is significant."""
    return [_sentence(evaluation, metric) for metric in evaluation.metrics]


def _sentence(evaluation: Evaluation, metric: str) -> str:
    best = evaluation.best(metric)
    cells = {
        name: evaluation.cells[name, metric]
        for name in (*ATTENTION, *SALIENCY)
        if name in evaluation.methods and evaluation.cells[name, metric].estimate.n
    }
    side = ATTENTION if best in SALIENCY else SALIENCY
    sign = 1 if cells[best].better == "higher" else -1
    rival = max((cells[name] for name in side if name in cells), key=lambda cell: sign * cell.estimate.mean)
    assert rival.against_best is not None
    verdict = f"which is significant ({TESTED})" if rival.against_best.clear else "which may be due to chance"
    kinds = ("a saliency method", "attention") if best in SALIENCY else ("attention", "a saliency method")
    return (
        f"{metric}: {kinds[0]} is ahead, {best} {cells[best].estimate}; the best of {kinds[1]} is {rival.method} "
        f"{rival.estimate}, a difference of {rival.against_best:.3f}, {verdict}."
    )
