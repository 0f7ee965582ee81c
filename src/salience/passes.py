"""The two kinds of pass that every method is made of: forward, and forward with one backward.

Both run on the model as it is, in evaluation mode with parameters frozen, and give it back as it was.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import Flag, auto
from inspect import Parameter, signature
from threading import RLock
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from salience.errors import BadModel
from salience.types import Attribution, Batch, Edit, Model, Output, Prefix, SharesPrefix, Targets, Weights

TargetsOf = Callable[[Float[Tensor, "b c"]], Targets]
"""Chooses the explained number once the logits are known, so that a prediction needs no pass of its own."""


Seen = TypeVar("Seen", Output, Prefix)


_TURN = RLock()


class Needs(Flag):
    """What a one-pass method reads."""

    NOTHING = 0
    GRADIENT = auto()
    """df/d embeddings."""
    HIDDEN = auto()
    """Every layer's hidden states and df/d hidden."""
    ATTENTION = auto()
    """Every layer's attention weights."""
    ATTENTION_GRADIENT = auto()
    """The weights and df/d weights."""
    WRITTEN_OUT = auto()
    """Attention made of single operations: nothing reaches into a fused kernel."""


_BACKWARD = Needs.GRADIENT | Needs.HIDDEN | Needs.ATTENTION_GRADIENT


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One forward and, where gradients are needed, one backward pass over a batch.

    ``gradient`` is df/d embeddings; ``hidden_gradient[l]`` and ``attention_gradient[l]`` follow the tuples of Output.
    What was not asked for is empty.
    """

    model: Model
    batch: Batch
    target: Targets
    output: Output
    gradient: Tensor | None = None
    hidden_gradient: tuple[Tensor, ...] = ()
    attention_gradient: tuple[Tensor, ...] = ()


@contextmanager
def frozen(module: nn.Module) -> Generator[None]:
    """Evaluation mode and no gradients for parameters; every flag is restored, also after an exception.

    Passes take turns: hooks and flags belong to the module, so a pass of another thread would see them.
    """
    with _TURN:
        training = [m for m in module.modules() if m.training]
        learning = [p for p in module.parameters() if p.requires_grad]
        try:
            for m in training:
                m.training = False
            for p in learning:
                p.requires_grad_(False)
            yield
        finally:
            for m in training:
                m.training = True
            for p in learning:
                p.requires_grad_(True)


def forward(
    model: Model,
    batch: Batch,
    *,
    embeddings: Tensor | None = None,
    edit_attention: Edit | None = None,
    edit_hidden: Edit | None = None,
    hidden: bool = False,
    attention: Weights | None = None,
) -> Output:
    """A forward pass without a graph."""
    with frozen(model.module), torch.no_grad():
        output = model(
            batch,
            embeddings=embeddings,
            edit_attention=edit_attention,
            edit_hidden=edit_hidden,
            hidden=hidden,
            attention=attention,
        )
    return _finite(output, model)


def remember(model: SharesPrefix, batch: Batch) -> Prefix:
    """A forward pass without a graph that keeps what :func:`resume` goes on from."""
    with frozen(model.module), torch.no_grad():
        return _finite(model.prefix(batch), model)


def resume(
    model: SharesPrefix, prefix: Prefix, texts: Tensor, starts: Tensor, rest: Batch, *, embeddings: Tensor | None = None
) -> Output:
    """A forward pass without a graph over ``rest`` alone, after the first ``starts`` tokens of ``texts``."""
    with frozen(model.module), torch.no_grad():
        return _finite(model.resume(prefix, texts, starts, rest, embeddings), model)


def observe(model: Model, batch: Batch, target: Targets | TargetsOf, needs: Needs) -> Pass:
    """The cheapest pass that sees all that is needed: without a backward pass where no gradient is."""
    if needs & _BACKWARD:
        return differentiate(model, batch, target, needs=needs)
    output = forward(model, batch, attention=_weights(needs))
    return Pass(model, batch, _chosen(target, output), output)


def differentiate(
    model: Model,
    batch: Batch,
    target: Targets | TargetsOf,
    *,
    needs: Needs = Needs.GRADIENT,
    embeddings: Tensor | None = None,
    edit_hidden: Edit | None = None,
    within: AbstractContextManager[object] | None = None,
) -> Pass:
    """A forward and a backward pass of the explained number, to everything that is needed, at once.

    The model, but not the choice of the explained number, runs ``within`` the context if one is given: that is how
    propagation rules take the place of the model's own derivatives.
    """
    with frozen(model.module), torch.enable_grad():
        start = model.embed(batch) if embeddings is None else embeddings
        leaf = start.detach().requires_grad_()
        with within or nullcontext():
            output = model(
                batch,
                embeddings=leaf,
                edit_hidden=edit_hidden,
                hidden=Needs.HIDDEN in needs,
                attention=_weights(needs),
            )
        chosen = _chosen(target, _finite(output, model))
        wanted = {
            "gradient": (leaf,) if Needs.GRADIENT in needs else (),
            "hidden": output.hidden,
            "attention": output.attention if Needs.ATTENTION_GRADIENT in needs else (),
        }
        found = _gradients(chosen(output.logits).sum(), wanted)
    gradient = found["gradient"][0] if found["gradient"] else None
    return Pass(model, batch, chosen, _detached(output), gradient, found["hidden"], found["attention"])


def _weights(needs: Needs) -> Weights | None:
    if needs & (Needs.ATTENTION_GRADIENT | Needs.WRITTEN_OUT):
        return "differentiable"
    return "read" if Needs.ATTENTION in needs else None


def _chosen(target: Targets | TargetsOf, output: Output) -> Targets:
    return target if isinstance(target, Targets) else target(output.logits.detach())


def _gradients(value: Tensor, wanted: Mapping[str, tuple[Tensor, ...]]) -> dict[str, tuple[Tensor, ...]]:
    """Gradients of one number to groups of tensors, in one backward pass; 0 where it does not depend on one."""
    inputs = [x for group in wanted.values() for x in group]
    found = iter(torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True))
    return {name: tuple(next(found) for _ in group) for name, group in wanted.items()}


def _detached(output: Output) -> Output:
    return Output(
        output.logits.detach(),
        output.embeddings.detach(),
        tuple(h.detach() for h in output.hidden),
        tuple(a.detach() for a in output.attention),
    )


def _finite(output: Seen, model: Model | SharesPrefix) -> Seen:
    if not output.logits.isfinite().all():
        raise BadModel(
            f"{model.name} returned NaN or infinite logits, so nothing can be explained. "
            "Check its weights; half precision on a CPU is a common cause (load it with dtype='float32')."
        )
    return output


class OnePass:
    """A method whose scores are read off one forward and one backward pass.

    Several of them, asked for together, share that pass. Called like any other method, it makes the pass itself.
    """

    def __init__(self, read: Callable[..., Tensor | Attribution], needs: Needs) -> None:
        self.read, self.needs = read, needs
        self.__name__, self.__doc__, self.__module__ = read.__name__, read.__doc__, read.__module__
        settings = [p for p in signature(read).parameters.values() if p.kind is Parameter.KEYWORD_ONLY]
        place = [Parameter(n, Parameter.POSITIONAL_ONLY) for n in ("model", "batch", "target")]
        self.__signature__ = signature(read).replace(parameters=[*place, *settings])

    def __call__(self, model: Model, batch: Batch, target: Targets, /, **settings: Any) -> Tensor | Attribution:
        return self.read(observe(model, batch, target, self.needs), **settings)

    def __repr__(self) -> str:
        return f"<method {self.__name__}>"


def one_pass(needs: Needs = Needs.NOTHING) -> Callable[[Callable[..., Tensor | Attribution]], OnePass]:
    """Make a method of a function that reads scores off a :class:`Pass`."""
    return lambda read: OnePass(read, needs)
