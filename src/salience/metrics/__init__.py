"""Metrics of explanations: one number per text for faithfulness, plausibility or robustness."""

from collections.abc import Callable, Sequence
from typing import Any

from salience.errors import BadInput, choose
from salience.metrics.agreement import loo_kendall, loo_spearman
from salience.metrics.faithfulness import (
    comprehensiveness,
    decision_flip,
    deletion_area,
    hiding_area,
    infidelity,
    insertion_area,
    log_odds,
    revealing_area,
    sufficiency,
)
from salience.metrics.metric import Metric, as_metric
from salience.metrics.plausibility import auprc, average_precision, iou_f1, roc_auc, token_f1
from salience.metrics.robustness import input_invariance, max_sensitivity, parameter_randomisation

__all__ = [
    "METRICS",
    "Metric",
    "as_metric",
    "auprc",
    "average_precision",
    "comprehensiveness",
    "decision_flip",
    "deletion_area",
    "find_metric",
    "find_metrics",
    "hiding_area",
    "infidelity",
    "input_invariance",
    "insertion_area",
    "iou_f1",
    "log_odds",
    "loo_kendall",
    "loo_spearman",
    "max_sensitivity",
    "parameter_randomisation",
    "revealing_area",
    "roc_auc",
    "sufficiency",
    "token_f1",
]

METRICS: tuple[Metric, ...] = (
    comprehensiveness,
    sufficiency,
    log_odds,
    decision_flip,
    deletion_area,
    insertion_area,
    hiding_area,
    revealing_area,
    infidelity,
    loo_spearman,
    loo_kendall,
    token_f1,
    iou_f1,
    auprc,
    average_precision,
    roc_auc,
    max_sensitivity,
    input_invariance,
    parameter_randomisation,
)
"""All metrics that :func:`salience.evaluate` knows by name."""

TRIALS = ("shortcuts", "roar", "simulatability", "agreement", "needle")
"""Tests that need several models, or a model trained for the test; see ``salience trial``."""

AnyMetric = str | Metric | Callable[..., Any]
"""The name of a metric, a metric, or a function ``(model, batch, scores, target) -> one number per text``."""


def find_metric(metric: AnyMetric) -> Metric:
    """Find a metric by name, or wrap a function of your own as a metric.

    >>> find_metric("comprehensiveness")
    <metric comprehensiveness>
    """
    if not isinstance(metric, str):
        return as_metric(metric)
    if metric in TRIALS:
        raise BadInput(
            f"{metric} trains or compares several models, so it is not a metric; run `salience trial {metric}`"
        )
    by_name = {m.name: m for m in METRICS}
    return by_name[choose(metric, by_name, "metric")]


def find_metrics(metrics: AnyMetric | Sequence[AnyMetric]) -> list[Metric]:
    """Find one or several metrics, without duplicates."""
    listed = [metrics] if isinstance(metrics, str) or callable(metrics) else metrics
    return list({m.name: m for m in map(find_metric, listed)}.values())
