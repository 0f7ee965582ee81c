"""Checks of names, models and data that need no torch, so that a mistake is reported at once."""

from collections.abc import Iterable, Mapping
from typing import Any

from salience.cli.options import source_of
from salience.errors import choose

METHODS = (
    "gradient", "input_x_gradient", "smooth_grad", "integrated_gradients", "gradient_shap", "lrp", "deep_lift",
    "occlusion", "lime", "kernel_shap", "partition_shap", "attention", "attention_rollout", "attention_flow",
    "attention_x_gradient", "attention_relevance", "value_zeroing", "output_relevance", "attention_x_relevance",
    "layer_saliency", "diff_mask", "selection", "random", "uniform", "position",
)  # fmt: skip
"""The names of ``salience.methods.METHODS``; a test compares them."""

INTERACTIONS = (
    "pairwise_occlusion", "shapley_taylor", "shapley_interaction", "archipelago", "integrated_hessians",
)  # fmt: skip
"""The names of ``salience.methods.INTERACTIONS``; a test compares them."""

ANSWER_METHODS = (
    *(m for m in METHODS if m not in ("output_relevance", "attention_x_relevance", "diff_mask", "selection")),
    "context_cite",
)  # fmt: skip
"""The names of ``salience.generation.ANSWER_METHODS``; a test compares them."""

METRICS = (
    "comprehensiveness", "sufficiency", "log_odds", "decision_flip", "deletion_area", "insertion_area", "hiding_area",
    "revealing_area", "infidelity", "loo_spearman", "loo_kendall", "token_f1", "iou_f1", "auprc", "average_precision",
    "roc_auc", "max_sensitivity", "input_invariance", "parameter_randomisation",
)  # fmt: skip
"""The names of ``salience.metrics.METRICS``."""

ANSWER_METRICS = ("top_1_drop", "top_3_drop", "top_5_drop", "lds", "comprehensiveness", "sufficiency")
"""The names of ``salience.evaluation.answers.ANSWER_METRICS``."""

TRIALS = ("shortcuts", "roar", "simulatability", "agreement", "needle")
"""Commands of their own that are often taken for metrics."""


def check_names(methods: Iterable[str] = (), metrics: Iterable[str] = ()) -> None:
    """Raise for a method or metric that does not exist."""
    for name in methods:
        choose(name, METHODS, "method")
    for name in metrics:
        if name not in TRIALS:
            choose(name, METRICS, "metric")


def check_answer_methods(methods: Iterable[str], metrics: Iterable[str] = ()) -> None:
    """Raise for a method or metric of answers that does not exist. Methods may be written with settings."""
    for written in methods:
        choose(written.partition(":")[0], ANSWER_METHODS, "method")
    for name in metrics:
        choose(name, ANSWER_METRICS, "metric", "an answer")


def check_model(name: str, **options: Any) -> None:
    """Raise if a model cannot be loaded, as far as its files and options say; see :func:`salience.load`."""
    from salience.models.files import check

    check(name, **options)


def check_data(options: Mapping[str, Any], *names: str, labelled: bool = True) -> None:
    """Raise if the data that these options name, such as ``data`` and ``validation``, is missing or lacks a column."""
    for name in names:
        if options.get(name) is not None:
            source_of(options[name], options, labelled=labelled)
