"""Every method, found by its function's name."""

from collections.abc import Callable
from typing import Any

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
from salience.methods.gradient import gradient, input_x_gradient, smooth_grad
from salience.methods.layers import layer_saliency
from salience.methods.path import gradient_shap, integrated_gradients
from salience.methods.perturbation import kernel_shap, lime, occlusion
from salience.methods.propagation import deep_lift, lrp

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
    attention,
    attention_rollout,
    attention_flow,
    attention_x_gradient,
    attention_relevance,
    value_zeroing,
    layer_saliency,
    random,
    uniform,
    position,
)


def find(name: str) -> Callable[..., Any]:
    """A method by its name."""
    by_name = {m.__name__: m for m in METHODS}
    return by_name[choose(name, by_name, "method")]
