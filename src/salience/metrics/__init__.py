"""Scores to a number for every text: is the explanation faithful, plausible, in agreement with others?"""

from collections.abc import Callable
from typing import Any

from salience.errors import choose
from salience.evaluation import Aspect, Better
from salience.metrics import faithfulness as _f
from salience.metrics import plausibility as _p
from salience.metrics.erasing import Erasing

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

NAMES = (*(m.__name__ for m in FAITHFULNESS), *LEAVE_ONE_OUT, *(m.__name__ for m in PLAUSIBILITY))


def better(name: str) -> Better:
    """Whether a higher or a lower number speaks for an explanation."""
    by_name: dict[str, Erasing] = {m.__name__: m for m in FAITHFULNESS}
    return by_name[name].better if name in by_name else "higher"


def aspect(name: str) -> Aspect:
    if name in LEAVE_ONE_OUT:
        return "leave_one_out"
    return "faithfulness" if name in {m.__name__ for m in FAITHFULNESS} else "plausibility"


def chosen(names: tuple[str, ...]) -> tuple[list[Erasing], list[str], list[Callable[..., Any]]]:
    """Metrics by name: those by erasure, those by leaving one out, those against marks."""
    for name in names:
        choose(name, NAMES, "metric")
    return (
        [m for m in FAITHFULNESS if m.__name__ in names],
        [name for name in LEAVE_ONE_OUT if name in names],
        [m for m in PLAUSIBILITY if m.__name__ in names],
    )
