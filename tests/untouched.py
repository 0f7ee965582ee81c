"""What must stay as it is when a model is explained: the model itself, and its scores under another budget."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from salience.core.types import Model


@contextmanager
def budget(model: Model, tokens: int) -> Iterator[None]:
    before, model.executor.budget = model.executor.budget, tokens
    try:
        yield
    finally:
        model.executor.budget = before


def state(model: Model) -> dict[str, Any]:
    """Everything about a model that a method might disturb."""
    module = model.module
    config = getattr(module, "config", None)
    return {
        "hooks": {
            name: [len(getattr(m, h)) for h in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")]
            for name, m in module.named_modules()
        },
        "modes": {name: m.training for name, m in module.named_modules()},
        "classes": {name: type(m) for name, m in module.named_modules()},
        "attributes": {name: sorted(vars(m)) for name, m in module.named_modules()},
        "parameters": {n: (p.requires_grad, p._version, p.data_ptr(), p.grad) for n, p in module.named_parameters()},
        "config": config.to_dict() if hasattr(config, "to_dict") else config,
        "kernels": {
            name: m.config._attn_implementation
            for name, m in module.named_modules()
            if hasattr(getattr(m, "config", None), "_attn_implementation")
        },
    }


def close(a: Tensor, b: Tensor, scale: float, tolerance: float = 1e-5) -> bool:
    return bool((a - b).abs().max() <= tolerance * max(scale, float(b.abs().max())))
