"""The elephant in the interpretability room: why use attention as explanation when we have saliency methods?

The paper argues, and brings no table: who asks which inputs mattered for a prediction should use a method that looks
at the whole computation, and attention looks at a part of it. Here the question is measured.

Paper: Bastings & Filippova 2020, arXiv:2010.05607
"""

from collections.abc import Callable, Sequence

from salience.evaluation import Evaluation
from salience.evaluator import METRICS, PLAUSIBLE
from salience.lessons import Example
from salience.papers.compared import Comparison, compared
from salience.types import Model

ATTENTION = ("attention", "attention_rollout", "attention_x_gradient")
SALIENCY = ("gradient", "input_x_gradient", "integrated_gradients", "lrp", "occlusion")

SIZES = {"quick": 60, "full": 500}
"""Texts of each data set."""


def run(
    model: Model,
    data: str,
    given: Sequence[Example],
    *,
    report: Callable[[int, int], None] | None = None,
) -> Comparison:
    """The table of one data set. The model needs attention; of the other methods, those it cannot run are left out."""
    metrics = (*METRICS, *(PLAUSIBLE if any(e.rationale for e in given) else ()))
    return compared(model, data, given, (*ATTENTION, *SALIENCY), metrics, needed=ATTENTION[:1], report=report)


def answer(found: Evaluation) -> list[str]:
    """For each metric, the best of either side, and whether the difference may be chance."""
    return [_sentence(found, metric) for metric in found.metrics]


def _sentence(found: Evaluation, metric: str) -> str:
    best = found.best(metric)
    cells = {
        name: found.cells[name, metric]
        for name in (*ATTENTION, *SALIENCY)
        if name in found.methods and found.cells[name, metric].estimate.n
    }
    side = ATTENTION if best in SALIENCY else SALIENCY
    sign = 1 if cells[best].better == "higher" else -1
    rival = max((cells[name] for name in side if name in cells), key=lambda cell: sign * cell.estimate.mean)
    assert rival.against_best is not None
    sure = "whose interval leaves out 0" if rival.against_best.clear else "which may be chance"
    kinds = ("a saliency method", "attention") if best in SALIENCY else ("attention", "a saliency method")
    return (
        f"{metric}: {kinds[0]} is ahead, {best} {cells[best].estimate}; the best of {kinds[1]} is {rival.method} "
        f"{rival.estimate}, a difference of {rival.against_best:.3f}, {sure}."
    )
