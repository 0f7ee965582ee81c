"""Scores to a number for every text: is the explanation faithful, plausible, steady?"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from salience.errors import BadInput, choose
from salience.evaluation import Aspect, Better
from salience.metrics import faithfulness as _f
from salience.metrics import plausibility as _p
from salience.metrics import robustness as _r
from salience.metrics.erasing import Erasing
from salience.metrics.robustness import Changing

FAITHFULNESS = (
    _f.comprehensiveness,
    _f.sufficiency,
    _f.log_odds,
    _f.decision_flip,
    _f.deletion_area,
    _f.insertion_area,
    _f.hiding_area,
    _f.revealing_area,
    _f.infidelity,
)
"""By erasure."""

PLAUSIBILITY = (_p.token_f1, _p.iou_f1, _p.auprc, _p.average_precision, _p.roc_auc)
"""Against what people have marked."""

LEAVE_ONE_OUT = ("loo_spearman", "loo_kendall")
"""Rank correlation with what taking single tokens away does."""

ROBUSTNESS = (_r.max_sensitivity, _r.input_invariance, _r.parameter_randomisation)
"""Of methods, which explain again."""

ASPECTS: dict[str, Aspect] = {
    **{m.__name__: "faithfulness" for m in FAITHFULNESS},
    **dict.fromkeys(LEAVE_ONE_OUT, "leave_one_out"),
    **{m.__name__: "plausibility" for m in PLAUSIBILITY},
    **{m.__name__: "robustness" for m in ROBUSTNESS},
}
"""What each metric is about."""

EVERY: tuple[Callable[..., Any], ...] = (*FAITHFULNESS, *PLAUSIBILITY, *ROBUSTNESS)
"""The metrics that take settings."""

BETTER: dict[str, Better] = {m.__name__: m.better for m in (*FAITHFULNESS, *ROBUSTNESS)}
"""Whether a higher or a lower number speaks for an explanation; of those that are not here a higher one does."""


class Chosen(NamedTuple):
    """Metrics by how they are measured."""

    erasing: list[Erasing]
    leaving: list[str]
    marking: list[Callable[..., Any]]
    changing: list[Changing]


TRIALS = ("shortcuts", "roar", "simulatability", "agreement")
"""Tests that need more than one model, or one that is made for the purpose."""


def chosen(names: Sequence[str]) -> Chosen:
    """Metrics by name."""
    for name in names:
        if name in TRIALS:
            raise BadInput(
                f"{name} is no metric of one model's explanations, but a test of its own: salience test {name}"
            )
        choose(name, ASPECTS, "metric")
    return Chosen(
        [m for m in FAITHFULNESS if m.__name__ in names],
        [name for name in LEAVE_ONE_OUT if name in names],
        [m for m in PLAUSIBILITY if m.__name__ in names],
        [m for m in ROBUSTNESS if m.__name__ in names],
    )
