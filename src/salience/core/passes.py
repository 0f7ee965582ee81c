"""The two kinds of pass that all methods use: forward, and forward with backward.

Both run the model in evaluation mode with frozen parameters, and restore its state afterwards.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import Flag, auto
from inspect import Parameter, signature
from itertools import islice
from typing import Any, TypeGuard, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from salience.core.target import Target
from salience.core.types import (
    Attribution,
    Batch,
    Chain,
    Chains,
    Edit,
    LastAttention,
    Model,
    Output,
    Prefix,
    ReducesAttention,
    Reduction,
    Selection,
    SharesPrefix,
    Site,
    Start,
    Targets,
    Weights,
)
from salience.errors import BadInput, BadModel

AnyOutput = TypeVar("AnyOutput", Output, Prefix)


class Needs(Flag):
    """What a one-pass method needs."""

    NOTHING = 0
    GRADIENT = auto()
    """df/d embeddings."""
    HIDDEN_STATES = auto()
    """Every layer's hidden states."""
    HIDDEN = auto()
    """The hidden states and df/d hidden."""
    ATTENTION = auto()
    """Every layer's attention weights."""
    ATTENTION_GRADIENT = auto()
    """The weights and df/d weights."""
    WRITTEN_OUT = auto()
    """Attention computed step by step, not by a fused kernel."""
    FOLLOWED = auto()
    """Attention by torch functions that rules can replace, such as scaled_dot_product_attention."""


Within = Callable[[], AbstractContextManager[object]]
"""Returns a context that the model runs in."""

_BY_BLOCK = (Needs.GRADIENT, Needs.GRADIENT | Needs.FOLLOWED)
_BACKWARD = Needs.GRADIENT | Needs.HIDDEN | Needs.ATTENTION_GRADIENT


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One forward and, where gradients are needed, one backward pass over a batch.

    Several targets of one text share the forward pass: there is one row per target, and what they share is a view.
    ``gradient`` is df/d embeddings; ``hidden_gradient[l]`` and ``attention_gradient[l]`` match the tuples of Output.
    What was not requested is empty.
    """

    model: Model
    batch: Batch
    target: Targets
    output: Output
    gradient: Tensor | None = None
    hidden_gradient: tuple[Tensor, ...] = ()
    attention_gradient: tuple[Tensor, ...] = ()
    reduced: bool = False
    """Whether the attention is what a reduction kept of the weights, instead of the weights themselves."""


@contextmanager
def frozen(module: nn.Module) -> Generator[None]:
    """Set evaluation mode and freeze all parameters; every flag is restored, even after an exception."""
    parts = list(module.modules())  # walked once: this precedes every pass
    training = [m for m in parts if m.training]
    learning = [p for m in parts for p in m.parameters(recurse=False) if p.requires_grad]
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


@contextmanager
def exclusive(model: Model | SharesPrefix) -> Generator[None]:
    """Freeze the model and lock it for this thread, since hooks and flags are shared by all users of the module."""
    with model.executor.lock, frozen(model.module):
        yield


def embedded(model: Model, batch: Batch) -> Float[Tensor, "b t d"]:
    """Return the word embeddings of a batch. A pass of another thread may put others in their place, hence the lock."""
    with model.executor.lock, torch.no_grad():
        return model.words(batch.ids).detach()  # enable_input_require_grads() makes the layer's output a leaf


def forward(
    model: Model,
    batch: Batch,
    *,
    embeddings: Tensor | None = None,
    edit_attention: Edit | None = None,
    edit_hidden: Edit | None = None,
    hidden: bool = False,
    attention: Weights | None = None,
    start: Start | None = None,
) -> Output:
    """Run a forward pass without a graph."""
    with exclusive(model), torch.no_grad():
        output = model(
            batch,
            embeddings=embeddings,
            edit_attention=edit_attention,
            edit_hidden=edit_hidden,
            hidden=hidden,
            attention=attention,
            start=start,
        )
    return _finite(output, model)


def from_attention(model: Model, last: LastAttention, weights: Float[Tensor, "b h 1 t"]) -> Float[Tensor, "b c"]:
    """Run what follows the last attention without a graph, and return the logits."""
    with exclusive(model), torch.no_grad():
        logits = last(weights)
    _check_finite(logits, model)
    return logits


def remember(model: SharesPrefix, batch: Batch) -> Prefix:
    """Run a forward pass without a graph that keeps the state for :func:`resume`."""
    with exclusive(model), torch.no_grad():
        return _finite(model.prefix(batch), model)


def resume(
    model: SharesPrefix, prefix: Prefix, texts: Tensor, starts: Tensor, rest: Batch, *, embeddings: Tensor | None = None
) -> Output:
    """Run a forward pass without a graph over ``rest`` only, after the first ``starts`` tokens of ``texts``."""
    with exclusive(model), torch.no_grad():
        return _finite(model.resume(prefix, texts, starts, rest, embeddings), model)


def observe(
    model: Model,
    batch: Batch,
    target: Targets | Sequence[Target],
    needs: Needs,
    *,
    embeddings: Tensor | None = None,
    edit_attention: Edit | None = None,
    edit_hidden: Edit | None = None,
) -> Pass:
    """Run the cheapest pass that provides what is needed: no backward pass if no gradient is needed.

    An unresolved target is resolved from this pass, so the prediction needs no pass of its own.
    """
    edits: dict[str, Any] = {"edit_attention": edit_attention, "edit_hidden": edit_hidden}
    if needs & _BACKWARD:
        return differentiate(model, batch, target, needs=needs, embeddings=embeddings, **edits)
    hidden = Needs.HIDDEN_STATES in needs
    output = forward(model, batch, embeddings=embeddings, hidden=hidden, attention=_weights(needs), **edits)
    rows = _rows(batch, target)
    output = _expanded(output, len(rows))
    return Pass(model, rows, _resolved(model, target, output.logits), output)


def _rows(batch: Batch, target: Targets | Sequence[Target]) -> Batch:
    """The batch with one row per target: one text may have several."""
    count = len(target) if isinstance(target, Targets) else len(batch)
    if count == len(batch):
        return batch
    if len(batch) != 1:
        raise ValueError(f"{count} targets for {len(batch)} texts; only a single text can have several")
    return replace(
        batch.take(torch.zeros(count, dtype=torch.long, device=batch.ids.device)), encoded=batch.encoded * count
    )


def _expanded(output: Output, rows: int) -> Output:
    """The output of one text as that of so many equal rows, without a copy."""
    if rows == len(output.logits):
        return output

    def expand(x: Tensor) -> Tensor:
        return x.expand(rows, *x.shape[1:])

    return Output(
        expand(output.logits),
        expand(output.embeddings),
        tuple(map(expand, output.hidden)),
        tuple(map(expand, output.attention)),
        _changed(output.selection, expand),
        None if output.relevance is None else expand(output.relevance),
    )


def _changed(selection: Selection | None, change: Callable[[Tensor], Tensor]) -> Selection | None:
    return None if selection is None else Selection(change(selection.z), change(selection.log_nonzero))


def reduce_attention(model: Model, batch: Batch, target: Targets | Sequence[Target], reduction: Reduction) -> Pass:
    """Run a forward pass that keeps only what the reduction makes of each layer's attention weights.

    Where the model can reduce them as it runs, the weights of all layers are never held at the same time.
    """
    if not isinstance(model, ReducesAttention):
        return reduced(observe(model, batch, target, Needs.ATTENTION), reduction)
    with exclusive(model), torch.no_grad():
        output = _finite(model.reduce_attention(batch, reduction), model)
    rows = _rows(batch, target)
    output = _expanded(output, len(rows))
    return Pass(model, rows, _resolved(model, target, output.logits), output, reduced=True)


def reduced(result: Pass, reduction: Reduction) -> Pass:
    """Reduce the attention weights of a pass that holds them all."""
    kept = (reduction(Site(n), weights) for n, weights in enumerate(result.output.attention, 1))
    output = replace(result.output, attention=tuple(weights for weights in kept if weights is not None))
    return replace(result, output=output, reduced=True)


def differentiate(
    model: Model,
    batch: Batch,
    target: Targets | Sequence[Target],
    *,
    needs: Needs = Needs.GRADIENT,
    embeddings: Tensor | None = None,
    edit_attention: Edit | None = None,
    edit_hidden: Edit | None = None,
    within: Within = nullcontext,
) -> Pass:
    """Run a forward pass, and a backward pass from the explained number to everything that is needed.

    Several targets of one text have one backward pass each, all through the graph of one forward pass. The model, but
    not the selection of the explained number, runs inside the context ``within``. Propagation rules use this to replace
    the model's own derivatives. A text whose graph would not fit in memory is differentiated block by block.
    """
    with exclusive(model), torch.enable_grad():
        start = model.embed(batch) if embeddings is None else embeddings
        leaf = start.detach().requires_grad_()
        if needs in _BY_BLOCK and edit_attention is edit_hidden is None and _too_long(model, batch):
            return _block_by_block(model, batch, target, leaf, within)
        with within():
            output = model(
                batch,
                embeddings=leaf,
                edit_attention=edit_attention,
                edit_hidden=edit_hidden,
                hidden=bool(needs & (Needs.HIDDEN | Needs.HIDDEN_STATES)),
                attention=_weights(needs),
            )
        rows = _rows(batch, target)
        logits = _finite(output, model).logits.expand(len(rows), -1)
        resolved = _resolved(model, target, logits)
        groups = (
            (leaf,) if Needs.GRADIENT in needs else (),
            output.hidden if Needs.HIDDEN in needs else (),
            output.attention if Needs.ATTENTION_GRADIENT in needs else (),
        )
        values, summed = _values(resolved, logits, len(rows) == len(batch))
        gradients = iter(_by_row(_gradients(values, [x for group in groups for x in group]), summed))
    own, hidden, attention = (tuple(islice(gradients, len(group))) for group in groups)
    seen = _expanded(_detached(output), len(rows))
    return Pass(model, rows, resolved, seen, own[0] if own else None, hidden, attention)


def _too_long(model: Model, batch: Batch) -> TypeGuard[Any]:
    return isinstance(model, Chains) and model.too_long(batch)


def _block_by_block(
    model: Any, batch: Batch, target: Targets | Sequence[Target], leaf: Float[Tensor, "b t d"], within: Within
) -> Pass:
    """Differentiate from the last block to the first, each with a graph of its own that is dropped after it."""
    with within():
        chain: Chain = model.chain(batch, leaf)
    rows = _rows(batch, target)
    logits = _finite(chain.output, model).logits.expand(len(rows), -1)
    resolved = _resolved(model, target, logits)
    values, summed = _values(resolved, logits, len(rows) == len(batch))
    gradients = _gradients(values, [chain.last])
    with within():
        for block, x in zip(reversed(chain.blocks), reversed(chain.inputs), strict=True):
            entering = x.detach().requires_grad_()
            gradients = _gradients(block(entering), [entering], gradients)
    (gradient,) = _by_row(_gradients(chain.first, [leaf], gradients), summed)
    return Pass(model, rows, resolved, _expanded(_detached(chain.output), len(rows)), gradient)


def _gradients(
    y: Tensor, inputs: Sequence[Tensor], slopes: Sequence[tuple[Tensor, ...]] | None = None
) -> list[tuple[Tensor, ...]]:
    """dy/dx of every input x, for each number in y, or for each slope at y; 0 where y does not depend on x."""
    ends = [(value, None) for value in y] if slopes is None else [(y, slope) for slope in slopes]
    return [
        torch.autograd.grad(end, inputs, slope, retain_graph=n < len(ends), allow_unused=True, materialize_grads=True)
        for n, (end, slope) in enumerate(ends, 1)
    ]


def _by_row(gradients: Sequence[tuple[Tensor, ...]], summed: bool) -> Sequence[Tensor]:
    """The gradients of every input, those of all numbers in one tensor; if ``summed``, with a last row, their sum."""
    rows = (
        [*gradients, tuple(torch.stack(same).sum(0) for same in zip(*gradients, strict=True))] if summed else gradients
    )
    return rows[0] if len(rows) == 1 else [torch.cat(same) for same in zip(*rows, strict=True)]


def _values(target: Targets, logits: Float[Tensor, "n c"], together: bool) -> tuple[Float[Tensor, " m"], bool]:
    """The numbers to differentiate, and whether one that is the sum of the others was left out.

    Where each number has a text of its own, the sum of all has the gradients of each.
    """
    values = target(logits)
    if together:
        return values.sum()[None], False
    return (values[:-1], True) if target.sums else (values, False)


def resolve(model: Model, target: Sequence[Target], logits: Float[Tensor, "b c"]) -> Targets:
    """Resolve the target of every row to a column: one target for all rows, or one per row; by default the prediction.

    The targets of a batch may differ only in their labels.
    """
    first = target[0]
    if model.link == "identity" and first.kind != "logit":
        raise BadInput(
            f"{model.name} is a regression model: its output is a number, not a probability; use kind='logit'"
        )
    columns = _columns(model, target, logits)
    against = None if first.against is None else torch.full_like(columns, model.resolve(first.against))
    if against is not None and bool((columns == against).any()):
        raise BadInput(_same_label(model.label(int(against[0])), named=first.label is not None))
    resolved = Targets(columns, against, first.kind, model.link)
    return replace(resolved, value=resolved(logits))


def _columns(model: Model, target: Sequence[Target], logits: Tensor) -> Int[Tensor, " b"]:
    known = [_column(model, t) for t in target]
    columns = torch.tensor([-1 if c is None else c for c in known], device=logits.device).expand(len(logits))
    return torch.where(columns < 0, logits.argmax(1), columns) if None in known else columns


def _column(model: Model, target: Target) -> int | None:
    if target.column is not None or target.label is None:
        return target.column
    return model.resolve(target.label)


def _same_label(label: str, *, named: bool) -> str:
    if named:
        return f"target and against are both {label!r}: their difference is always 0"
    return (
        f"a text is predicted {label!r}, which is also the label in against: their difference is always 0. Name the "
        "target, or leave out against"
    )


def _weights(needs: Needs) -> Weights | None:
    if Needs.ATTENTION_GRADIENT in needs:
        return "differentiable"
    if Needs.WRITTEN_OUT in needs:
        return "written_out"
    if Needs.FOLLOWED in needs:
        return "followed"
    return "read" if Needs.ATTENTION in needs else None


def _resolved(model: Model, target: Targets | Sequence[Target], logits: Float[Tensor, "b c"]) -> Targets:
    return target if isinstance(target, Targets) else resolve(model, target, logits.detach())


def _detached(output: Output) -> Output:
    return Output(
        output.logits.detach(),
        output.embeddings.detach(),
        tuple(h.detach() for h in output.hidden),
        tuple(a.detach() for a in output.attention),
        _changed(output.selection, Tensor.detach),
        output.relevance,
    )


def _finite(output: AnyOutput, model: Model | SharesPrefix) -> AnyOutput:
    _check_finite(output.logits, model)
    return output


def _check_finite(logits: Tensor, model: Model | SharesPrefix) -> None:
    if not logits.isfinite().all():
        raise BadModel(
            f"{model.name} returned NaN or infinite logits, so nothing can be explained. "
            "Check its weights; half precision on a CPU is a common cause (load it with dtype='float32')."
        )


Reduce = Callable[..., Reduction]
"""(model, batch, settings by keyword) -> what a method needs of each layer's attention weights."""

Settle = Callable[[Model, Mapping[str, Any]], Mapping[str, Any]]
"""(model, settings) -> settings with everything decided that depends only on the model."""


class OnePass:
    """A method whose scores are computed from one forward and one backward pass.

    Several such methods, requested together, share the pass, except those that run a pass of their ``own`` with other
    derivatives than the model's. Called like any other method, it runs the pass itself.
    """

    def __init__(
        self,
        read: Callable[..., Tensor | Attribution],
        needs: Needs,
        settle: Settle | None = None,
        own: Callable[..., Pass] | None = None,
        reduce: Reduce | None = None,
        first_layer: int = 1,
    ) -> None:
        self.read, self.needs, self.settle, self.own, self.reduce = read, needs, settle, own, reduce
        self.first_layer = first_layer
        self.__name__, self.__doc__, self.__module__ = read.__name__, read.__doc__, read.__module__
        settings = [p for p in signature(read).parameters.values() if p.kind is Parameter.KEYWORD_ONLY]
        place = [Parameter(n, Parameter.POSITIONAL_ONLY) for n in ("model", "batch", "target")]
        self.__signature__ = signature(read).replace(parameters=[*place, *settings])

    def __call__(self, model: Model, batch: Batch, target: Targets, /, **settings: Any) -> Tensor | Attribution:
        return self.read(self.see(model, batch, target, **settings), **settings)

    def see(self, model: Model, batch: Batch, target: Targets | Sequence[Target], /, **settings: Any) -> Pass:
        """Run the pass."""
        if self.own is not None:
            return self.own(model, batch, target, **settings)
        if self.reduce is not None:
            return reduce_attention(model, batch, target, self.reduce(model, batch, **settings))
        return observe(model, batch, target, self.needs)

    def scores(self, result: Pass, **settings: Any) -> Tensor | Attribution:
        """Compute the scores from a pass that this method has run or shares with others."""
        if self.reduce is not None and not result.reduced:
            result = reduced(result, self.reduce(result.model, result.batch, **settings))
        return self.read(result, **settings)

    def __repr__(self) -> str:
        return f"<method {self.__name__}>"


def one_pass(
    needs: Needs = Needs.NOTHING,
    *,
    settle: Settle | None = None,
    own: Callable[..., Pass] | None = None,
    reduce: Reduce | None = None,
    first_layer: int = 1,
) -> Callable[[Callable[..., Tensor | Attribution]], OnePass]:
    """Turn a function that computes scores from a :class:`Pass` into a method.

    ``settle`` decides what depends only on the model, once for many batches. ``own`` runs the pass if it does not use
    the model's own derivatives. With ``reduce``, the function gets what is kept of the attention weights, not the
    weights; a pass that is not shared then never holds those of all layers. ``first_layer`` is 0 for methods that can
    read the embeddings, layer 0.
    """
    return lambda read: OnePass(read, needs, settle, own, reduce, first_layer)
