"""Propagation rules as modified derivatives.

A rule keeps an operation's value and changes its derivative, so that gradient × input at the embeddings *is* the
propagated relevance (Ali et al. 2022; Achtibat et al. 2024). The model's own code runs; its calls to torch functions
are replaced through the public ``TorchFunctionMode``. No class is patched and no model code is copied.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.overrides import TorchFunctionMode

from salience.errors import UnsupportedModel

RuleTable = Mapping[Callable[..., Any], Callable[..., Any]]
"""Maps torch functions to replacements with the same signature."""

ActivationRule = Callable[[Callable[[Tensor], Tensor], Tensor, Tensor], Tensor]
"""(elementwise function, its input, its output) -> the output with the rule's derivative."""

ACTIVATIONS = (
    torch.tanh, Tensor.tanh, torch.relu, Tensor.relu, fn.relu, fn.relu6, fn.gelu, fn.silu, fn.mish, fn.elu, fn.selu,
    fn.celu, fn.leaky_relu, fn.hardtanh, fn.hardswish,
)  # fmt: skip
"""Elementwise functions with f(0) = 0."""

SIGMOIDS = (torch.sigmoid, Tensor.sigmoid, fn.sigmoid)
SQUASHED = (
    *SIGMOIDS, fn.logsigmoid, fn.softplus, torch.erf, Tensor.erf, torch.exp, Tensor.exp,
)  # fmt: skip
"""Other elementwise functions. Most have f(0) ≠ 0; erf occurs in activations that are written out."""

SOFTMAX = (torch.softmax, Tensor.softmax, fn.softmax)
MATMUL = (
    torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, torch.bmm, Tensor.bmm, torch.mm, Tensor.mm,
    torch.einsum,
)  # fmt: skip
TIMES = (
    torch.mul, Tensor.mul, torch.multiply, Tensor.multiply, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__,
)  # fmt: skip
ROOTS = (torch.rsqrt, Tensor.rsqrt, torch.sqrt, Tensor.sqrt, torch.std, Tensor.std)
DIVIDED = (torch.div, Tensor.div, torch.true_divide, Tensor.true_divide, Tensor.__truediv__)
IN_PLACE = (Tensor.mul_, Tensor.div_, Tensor.__itruediv__)
POWERS = (torch.pow, Tensor.pow, Tensor.__pow__)
FUSED = (
    fn.scaled_dot_product_attention, fn.multi_head_attention_forward, torch.baddbmm, Tensor.baddbmm, torch.gru,
    torch.rnn_tanh, torch.rnn_relu, torch.lstm_cell, torch.gru_cell,
)  # fmt: skip
"""Fused kernels, with products inside that no rule can reach."""


def _named(names: str) -> frozenset[Callable[..., Any]]:
    """Return all forms of the functions with these names, such as torch.tanh and Tensor.tanh."""
    owners = (torch, Tensor, fn)
    return frozenset(getattr(o, name) for name in names.split() for o in owners if hasattr(o, name))


UNRULED = _named(
    "exp expm1 exp2 erf erfc log log1p log2 sin cos reciprocal square prod cumprod addcmul addcdiv log_softmax "
    "softplus logsigmoid softsign glu normalize cosine_similarity pow_"
) | {Tensor.__rtruediv__, Tensor.__rpow__}
"""Functions that no rule conserves relevance through. As parts of a written-out activation they are replaced."""

GROUPED = _named("grouped_mm _grouped_mm")
"""Products with one matrix for every group of rows, as for experts. The second name is what the first calls."""

ROUTERS = ("Router", "TopKGating", "MoEV1Gate")
"""Suffixes of the transformers modules that compute how much each expert counts for a token."""
ROUTING = UNRULED | {*DIVIDED, *IN_PLACE}
"""Functions that keep their derivative inside a router, like softmax: normalised weights do not conserve relevance."""

CASTS = (Tensor.to, Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.type_as)
ELEMENTWISE = (
    _named("add sub subtract neg exp expm1 erf square clamp sigmoid log1p softplus maximum minimum")
    | _named("__add__ __radd__ __sub__ __rsub__ __neg__ __rtruediv__ __rpow__")
    | {*ACTIVATIONS, *SQUASHED, *TIMES, *DIVIDED, *POWERS, *CASTS}
)
"""Functions of which activations are composed: f(x)_i depends on x_i only, and on constants."""


@dataclass(frozen=True, slots=True, eq=False)
class Elementwise:
    """A tensor as an elementwise function of an earlier one."""

    root: Tensor
    function: Callable[[Tensor], Tensor]


class Rules(TorchFunctionMode):
    """Replaces the functions of a table while it is active, except inside the replacements themselves.

    A product or quotient of two elementwise functions of the same tensor, such as x · Φ(x), is an activation that the
    model writes out. It gets the rule ``whole`` for activations, instead of the rules of its parts.
    """

    def __init__(self, table: RuleTable, whole: ActivationRule | None = None) -> None:
        super().__init__()
        self.table = {**{f: _unsupported(f) for f in FUSED}, **table}
        self.whole = whole
        self.routing = False
        """Whether a router is running."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = func if self.routing and func in ROUTING else self.table.get(func, func)
        y = rule(*args, **kwargs)
        if _in_place(func):
            for record in ("elementwise", "gate"):  # it is another function now
                vars(args[0]).pop(record, None)
            return y
        if self.whole is None or func not in ELEMENTWISE or not y.requires_grad or variables(*kwargs.values()):
            return y
        return self._followed(self.whole, func, args, kwargs, y)

    def _followed(
        self, whole: ActivationRule, func: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], y: Tensor
    ) -> Tensor:
        """Record what ``y`` is an elementwise function of, and apply the rule for activations to them."""
        origins = [_origin(a) if variables(a) else None for a in args]
        known = [o for o in origins if o is not None]
        root = known[0].root
        if any(o.root is not root for o in known) or y.shape != root.shape:
            return y

        def function(x: Tensor) -> Tensor:
            if func in CASTS:
                return known[0].function(x)
            return func(*(a if o is None else o.function(x) for a, o in zip(args, origins, strict=True)), **kwargs)

        if len(known) == 2 and func in (*TIMES, *DIVIDED):
            y = whole(function, root, y)
        vars(y)["elementwise"] = Elementwise(root, function)
        return y


def _in_place(function: Callable[..., Any]) -> bool:
    """Whether a function of torch changes its first argument, by its name: ``add_``, ``__iadd__``, ``__setitem__``."""
    name = getattr(function, "__name__", "")
    if name.endswith("__"):
        return name == "__setitem__" or name in _AUGMENTED
    return name.endswith("_")


_AUGMENTED = {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "div", "pow", "mod", "floordiv")}


def _origin(x: Tensor) -> Elementwise:
    return vars(x).get("elementwise") or Elementwise(x, lambda x: x)


def without_rule(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a derivative that raises, so that it may only be used where nothing is propagated."""

    def unruled(*args: Any, **kwargs: Any) -> Any:
        y = function(*args, **kwargs)
        if variables(y):
            y.register_hook(lambda _: refuse(function))
        return y

    return unruled


def refuse(function: Callable[..., Any]) -> None:
    raise UnsupportedModel(
        f"the model applies {function.__name__} outside of an activation or a norm, and no rule conserves relevance "
        "through it. Use rules='conservative', or a gradient method such as integrated_gradients."
    )


def _unsupported(function: Callable[..., Any]) -> Callable[..., Any]:
    def unsupported(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedModel(
            f"the model calls {function.__name__}, a fused operation that relevance cannot be propagated through. "
            "Use a gradient method such as integrated_gradients."
        )

    return unsupported


RouterRule = Callable[[Tensor], Tensor]
"""A router's output -> the output with the rule's derivative."""


@contextmanager
def apply_rules(
    module: nn.Module, table: RuleTable, whole: ActivationRule | None, router: RouterRule | None = None
) -> Generator[None]:
    """Apply the rules to the module's functions inside the block.

    ``whole`` is the rule of each activation module, and ``router`` that of every tensor that a router returns.
    """
    rules = Rules(table, whole)
    handles: list[torch.utils.hooks.RemovableHandle] = []
    try:
        if whole is not None:
            handles += [part.register_forward_hook(_activation_hook(whole)) for part in composed_activations(module)]
        for part in routers(module):
            handles.append(part.register_forward_pre_hook(lambda *_: setattr(rules, "routing", True)))
            handles.append(part.register_forward_hook(_router_hook(rules, router)))
        with rules:
            yield
    finally:
        for handle in handles:
            handle.remove()


def routers(module: nn.Module) -> list[nn.Module]:
    """Return the modules that compute the weights of experts."""
    return [part for part in module.modules() if type(part).__name__.endswith(ROUTERS)]


def _router_hook(rules: Rules, router: RouterRule | None) -> Callable[[nn.Module, tuple[Any, ...], Any], Any]:
    def leaving(_: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        rules.routing = False
        if router is None:
            return output
        if isinstance(output, Tensor):
            return router(output)
        return type(output)(router(o) if isinstance(o, Tensor) else o for o in output)

    return leaving


def mark_gate(y: Tensor) -> Tensor:
    """Record that ``y`` is the output of an activation, so that a product with it is recognised as gated."""
    vars(y)["gate"] = True
    return y


def is_gate(x: object) -> bool:
    return isinstance(x, Tensor) and "gate" in vars(x)


def composed_activations(module: nn.Module) -> list[nn.Module]:
    """Return the activations that transformers writes as products and powers; their parts' rules do not apply."""
    return [part for part in module.modules() if type(part).__module__.rpartition(".")[2] == "activations"]


def _activation_hook(whole: ActivationRule) -> Callable[[nn.Module, tuple[Any, ...], Any], Any]:
    return lambda part, args, output: whole(part.forward, args[0], output)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
        z = fn.linear(x, weight, bias)
        ctx.save_for_backward(weight, share(z, z, epsilon))
        return z

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        weight, slope = ctx.saved_tensors
        return (grads[0] * slope) @ weight, None, None, None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    """z = x Wᵀ + b with dz_j/dx_i := w_ij z_j / (z_j + ε sign z_j)."""
    result: Any = _Linear.apply(x, weight, bias, epsilon)
    return result


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        y, _, scale = torch.native_layer_norm(x, shape, weight, bias, eps)
        ctx.dims = tuple(range(-len(shape), 0))
        ctx.save_for_backward(scale if weight is None else scale * weight)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        grad = grads[0] * ctx.saved_tensors[0]
        return grad - grad.mean(ctx.dims, keepdim=True), None, None, None, None


def layer_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """(x − mean x) w / s + b with the standard deviation s held constant."""
    result: Any = _LayerNorm.apply(x, list(shape), weight, bias, eps)
    return result


class _Damped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, epsilon: float) -> Tensor:
        ctx.epsilon = epsilon
        ctx.save_for_backward(z)
        return z.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        return share(z, z, ctx.epsilon).mul_(grads[0]), None


def damped(z: Tensor, epsilon: float) -> Tensor:
    """Return ``z`` with its derivative multiplied by z / (z + ε sign z)."""
    result: Any = _Damped.apply(z, epsilon)
    return result


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.factor, None


def scaled(x: Tensor, factor: float) -> Tensor:
    """Return ``x`` with its derivative multiplied by ``factor``."""
    result: Any = _Scaled.apply(x, factor)
    return result


class _Sloped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, slope: Tensor) -> Tensor:  # noqa: ARG004
        ctx.save_for_backward(slope)
        return y.detach()  # not a view of y: DeBERTa adds position scores in place

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0] * ctx.saved_tensors[0], None, None


def sloped(x: Tensor, y: Tensor, slope: Tensor) -> Tensor:
    """Return ``y`` with dy/dx := slope."""
    result: Any = _Sloped.apply(x, y.detach(), slope.detach())
    return result


@torch.no_grad()
def share(y: Tensor, x: Tensor, epsilon: float) -> Tensor:
    """Return y / (x + ε sign x), and 0 where that would divide by 0."""
    # In place: allocating memory for every step would take longer than the steps.
    total = x.sign().mul_(epsilon).add_(x)
    return torch.div(y, total, out=total).nan_to_num_(0.0, 0.0, 0.0)


def variables(*operands: object) -> int:
    """Count the operands that depend on the input. Parameters are frozen, so only those require a gradient."""
    return sum(isinstance(o, Tensor) and o.requires_grad for o in operands)
