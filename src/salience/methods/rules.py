"""Propagation rules as modified derivatives.

A rule keeps an operation's value and changes its derivative, so that gradient × input at the embeddings *is* the
propagated relevance (Ali et al. 2022; Achtibat et al. 2024). The model's own code runs; torch lets a mode stand in
for its functions, by the public protocol ``TorchFunctionMode``. No class is patched and no model code is copied.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.overrides import TorchFunctionMode

from salience.errors import UnsupportedModel

Table = Mapping[Callable[..., Any], Callable[..., Any]]
"""Functions of torch, each with the function of the same signature that stands in for it."""

Whole = Callable[[Callable[[Tensor], Tensor], Tensor, Tensor], Tensor]
"""The rule of an elementwise function, from the function, its input and its output."""

ACTIVATIONS = (
    torch.tanh, Tensor.tanh, torch.relu, Tensor.relu, fn.relu, fn.relu6, fn.gelu, fn.silu, fn.mish, fn.elu, fn.selu,
    fn.celu, fn.leaky_relu, fn.hardtanh, fn.hardswish,
)  # fmt: skip
"""Elementwise functions with f(0) = 0."""

SQUASHED = (torch.sigmoid, Tensor.sigmoid, fn.sigmoid, fn.logsigmoid, fn.softplus)
"""Elementwise functions with f(0) ≠ 0."""

SOFTMAX = (torch.softmax, Tensor.softmax, fn.softmax)
MATMUL = (
    torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, torch.bmm, Tensor.bmm, torch.mm, Tensor.mm,
    torch.einsum,
)  # fmt: skip
TIMES = (
    torch.mul, Tensor.mul, torch.multiply, Tensor.multiply, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__,
)  # fmt: skip
ROOTS = (torch.rsqrt, Tensor.rsqrt, torch.sqrt, Tensor.sqrt, torch.std, Tensor.std)
POWERS = (torch.pow, Tensor.pow, Tensor.__pow__)
FUSED = (
    fn.scaled_dot_product_attention, fn.multi_head_attention_forward, torch.baddbmm, Tensor.baddbmm, torch.gru,
    torch.rnn_tanh, torch.rnn_relu, torch.lstm_cell, torch.gru_cell,
)  # fmt: skip
"""Many steps in one kernel, with products inside that no rule could reach."""


class Rules(TorchFunctionMode):
    """While it is entered, the functions of a table are stood in for. Inside a stand-in torch is itself again."""

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.table = {**{f: _refused(f) for f in FUSED}, **table}

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self.table.get(func, func)(*args, **(kwargs or {}))


def _refused(function: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedModel(
            f"the model calls {function.__name__}, which takes several steps at once: relevance cannot be followed "
            "through it. Choose a gradient method such as integrated_gradients."
        )

    return refuse


@contextmanager
def following(module: nn.Module, table: Table, whole: Whole | None) -> Generator[None]:
    """The module's functions by their rules, and its activations each as a whole; undone when the block ends."""
    handles: list[torch.utils.hooks.RemovableHandle] = []
    try:
        if whole is not None:
            handles += [part.register_forward_hook(_as_a_whole(whole)) for part in composed_activations(module)]
        with Rules(table):
            yield
    finally:
        for handle in handles:
            handle.remove()


def composed_activations(module: nn.Module) -> list[nn.Module]:
    """Activations that transformers writes as products and powers: the rules of their parts are not theirs."""
    return [part for part in module.modules() if type(part).__module__.rpartition(".")[2] == "activations"]


def _as_a_whole(whole: Whole) -> Callable[[nn.Module, tuple[Any, ...], Any], Any]:
    return lambda part, args, output: whole(part.forward, args[0], output)


class _Sloped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, slope: Tensor) -> Tensor:  # noqa: ARG004
        ctx.save_for_backward(slope)
        # A copy: models may go on in place (DeBERTa adds its position scores so), which a view would not allow.
        return y.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0] * ctx.saved_tensors[0], None, None


def sloped(x: Tensor, y: Tensor, slope: Tensor | float) -> Tensor:
    """The value ``y`` with dy/dx := slope."""
    found: Any = _Sloped.apply(x, y.detach(), torch.as_tensor(slope, dtype=y.dtype, device=y.device).detach())
    return found


def share(y: Tensor, x: Tensor, epsilon: float) -> Tensor:
    """y / (x + ε sign x), and 0 where that would divide by 0."""
    x = x + epsilon * torch.where(x >= 0, 1.0, -1.0).to(x)
    return torch.where(x == 0, 0, y / torch.where(x == 0, 1, x))


def variables(*operands: object) -> int:
    """How many operands depend on the input. Parameters are frozen, so only those ask for a gradient."""
    return sum(isinstance(o, Tensor) and o.requires_grad for o in operands)
