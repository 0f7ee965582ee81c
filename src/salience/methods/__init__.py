"""All attribution methods, looked up by function name."""

from collections.abc import Callable
from typing import Any

from salience.core.erasure import replaced
from salience.core.passes import Needs, Pass, differentiate, forward, one_pass
from salience.core.rows import Erased, Pack, Rows, erased_values, observed, value
from salience.core.types import Attribution, Targets
from salience.errors import choose
from salience.methods.attention import (
    attention,
    attention_flow,
    attention_relevance,
    attention_rollout,
    attention_x_gradient,
    value_zeroing,
)
from salience.methods.control import position, random, uniform
from salience.methods.decoding import coherence, fit_head
from salience.methods.gradient import gradient, input_x_gradient, smooth_grad
from salience.methods.interactions import (
    INTERACTIONS,
    Pairwise,
    archipelago,
    by_token,
    find_interaction,
    integrated_hessians,
    pairwise_occlusion,
    shapley_interaction,
    shapley_taylor,
)
from salience.methods.layers import layer_saliency
from salience.methods.learned import diff_mask, selection
from salience.methods.path import gradient_shap, integrated_gradients
from salience.methods.perturbation import lime, occlusion
from salience.methods.propagation import deep_lift, lrp
from salience.methods.relevance import attention_x_relevance, output_relevance
from salience.methods.shapley import kernel_shap, partition_shap

__all__ = [
    "CONTROLS",
    "INTERACTIONS",
    "METHODS",
    "Attribution",
    "Erased",
    "Needs",
    "Pack",
    "Pairwise",
    "Pass",
    "Rows",
    "Targets",
    "archipelago",
    "attention",
    "attention_flow",
    "attention_relevance",
    "attention_rollout",
    "attention_x_gradient",
    "attention_x_relevance",
    "by_token",
    "coherence",
    "deep_lift",
    "diff_mask",
    "differentiate",
    "erased_values",
    "find_interaction",
    "find_method",
    "fit_head",
    "forward",
    "gradient",
    "gradient_shap",
    "input_x_gradient",
    "integrated_gradients",
    "integrated_hessians",
    "kernel_shap",
    "layer_saliency",
    "lime",
    "lrp",
    "observed",
    "occlusion",
    "one_pass",
    "output_relevance",
    "pairwise_occlusion",
    "partition_shap",
    "position",
    "random",
    "replaced",
    "selection",
    "shapley_interaction",
    "shapley_taylor",
    "smooth_grad",
    "uniform",
    "value",
    "value_zeroing",
]

METHODS: tuple[Callable[..., Any], ...] = (
    gradient,
    input_x_gradient,
    smooth_grad,
    integrated_gradients,
    gradient_shap,
    lrp,
    deep_lift,
    occlusion,
    lime,
    kernel_shap,
    partition_shap,
    attention,
    attention_rollout,
    attention_flow,
    attention_x_gradient,
    attention_relevance,
    value_zeroing,
    output_relevance,
    attention_x_relevance,
    layer_saliency,
    diff_mask,
    selection,
    random,
    uniform,
    position,
)
"""All methods that :func:`salience.explain` knows by name."""


def find_method(name: str) -> Callable[..., Any]:
    """Return the method with this name."""
    by_name = {m.__name__: m for m in METHODS}
    return by_name[choose(name, by_name, "method")]


CONTROLS = ("random", "uniform", "position")
"""Explanations that ignore the model. Every evaluation table includes them."""
