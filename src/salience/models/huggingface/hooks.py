"""Temporary hooks that replace embeddings and read or edit hidden states. All are removed when the block ends."""

from collections.abc import Generator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from salience.core.executor import Executor
from salience.core.types import Edit, Site, Start
from salience.errors import UnsupportedModel


@contextmanager
def replaced_embeddings(
    module: PreTrainedModel, *embeddings: Tensor, layer: nn.Module | None = None
) -> Generator[None]:
    """Make the word embedding layer return ``embeddings``, and check that it is called exactly once for each of them.

    ``inputs_embeds`` is not an option: padded GPT-2 and Llama classifiers would pool the wrong token. ``layer`` is
    another layer than the module's own, such as that of its decoder.
    """
    waiting, calls = list(embeddings), 0

    def replace(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if not waiting or output.shape != waiting[0].shape:
            raise UnsupportedModel(_not_once(module, f"{calls} times, last for {output.shape[-2]} tokens"))
        return waiting.pop(0).clone()  # a copy: CTRL scales its input in place

    handle = (layer or module.get_input_embeddings()).register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()
    if waiting:
        raise UnsupportedModel(_not_once(module, "elsewhere"))


def _not_once(module: PreTrainedModel, how: str) -> str:
    return (
        f"{type(module).__name__} reads its word embeddings {how}, not once for the tokens of the text, so they cannot "
        "be replaced"
    )


def blocks(module: PreTrainedModel) -> nn.ModuleList:
    """Return the transformer's blocks: the outermost module list of the trunk. ALBERT calls its one block often."""
    for child in module.base_model.modules():
        if isinstance(child, nn.ModuleList) and len(child):
            return child
    raise UnsupportedModel(f"{type(module).__name__} has no list of blocks, so its layers cannot be read")


@contextmanager
def hidden_states(module: PreTrainedModel, edit: Edit | None) -> Generator[list[Tensor]]:
    """Collect the input of the first block and the output of every block, after the edit if there is one."""
    seen: list[Tensor] = []

    def keep(hidden: Tensor) -> Tensor:
        hidden = hidden if edit is None else edit(Site(len(seen)), hidden)
        seen.append(hidden)
        return hidden

    def entering(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if seen:
            return None
        if args:
            return (keep(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": keep(kwargs["hidden_states"])}

    def leaving(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple | list):  # a list: OpenAI's GPT
            return type(output)((keep(output[0]), *output[1:]))
        return keep(output)

    parts = list(blocks(module))
    handles = [parts[0].register_forward_pre_hook(entering, with_kwargs=True)]
    handles += [part.register_forward_hook(leaving) for part in parts]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


HALF = (torch.float16, torch.bfloat16)


@contextmanager
def wide_logits(module: PreTrainedModel, executor: Executor) -> Generator[None]:
    """Compute the output layer of a model in half precision in float32.

    Logits of 20 are 0.125 apart in bfloat16, which hides what most tokens change. Soft caps that follow the layer run
    in float32 too. The passes of one run of the executor share a copy of the layer, unless it is being trained.
    """
    layer = output_layer(module)
    if layer is None or layer.weight.dtype not in HALF:
        yield
        return

    def copied() -> dict[str, Tensor]:
        return {name: p.float() for name, p in layer.named_parameters()}  # the bias is missing from most

    def widen(_: nn.Module, args: tuple[Any, ...], __: Tensor) -> Tensor:
        parts = list(layer.parameters())
        trained = torch.is_grad_enabled() and any(p.requires_grad for p in parts)
        key = (layer, *((id(p), 0 if p.is_inference() else p._version) for p in parts))
        wide = copied() if trained else executor.kept(key, copied)
        return nn.functional.linear(args[0].float(), wide["weight"], wide.get("bias"))

    handle = layer.register_forward_hook(widen)
    try:
        yield
    finally:
        handle.remove()


def output_layer(module: PreTrainedModel) -> nn.Linear | None:
    """Return the linear layer that computes the logits; None if they are computed in another way."""
    named = (getattr(module, name, None) for name in ("score", "classifier"))
    return next((p for p in (module.get_output_embeddings(), *named) if type(p) is nn.Linear), None)


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A block with its arguments."""

    block: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def on(self, hidden: Tensor) -> Tensor:
        """Call the block on other states."""
        changed = (
            {"args": (hidden, *self.args[1:])} if self.args else {"kwargs": {**self.kwargs, "hidden_states": hidden}}
        )
        return replace(self, **changed)()

    def __call__(self, **options: Any) -> Tensor:
        """Call the block again, with more options, and return its states."""
        output = self.block(*self.args, **{**self.kwargs, **options})
        return output[0] if isinstance(output, tuple | list) else output


@contextmanager
def block_calls(module: PreTrainedModel) -> Generator[list[Call]]:
    """Collect every call of a block, in order."""
    seen: list[Call] = []

    def entering(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(Call(block, args, kwargs))

    handles = [part.register_forward_pre_hook(entering, with_kwargs=True) for part in blocks(module)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def no_hooks_left(module: nn.Module) -> Generator[None]:
    """Remove the hooks that transformers installs, and does not remove, when attentions are requested."""
    before = {m: set(m._forward_hooks) for m in module.modules()}  # pyright: ignore[reportPrivateUsage]
    marks = {m: dict(vars(m)) for m in module.modules() if isinstance(m, PreTrainedModel)}
    flag = "_output_capturing_hooks_installed"
    try:
        yield
    finally:
        for m, known in before.items():
            for key in set(m._forward_hooks) - known:  # pyright: ignore[reportPrivateUsage]
                del m._forward_hooks[key]  # pyright: ignore[reportPrivateUsage]
        for m, attributes in marks.items():
            if flag not in attributes and flag in vars(m):
                delattr(m, flag)


def with_part(module: nn.Module, path: str, part: nn.Module) -> nn.Module:
    """Return a copy with one part replaced; only the modules on the path to it are copied, and no weights."""
    first, _, rest = path.partition(".")
    clone = copy(module)
    parts = dict(module.named_children())
    vars(clone)["_modules"] = parts | {first: with_part(parts[first], rest, part) if rest else part}
    return clone


def starting_from(module: PreTrainedModel, start: Start) -> nn.Module:
    """Return a copy whose blocks up to ``start.layer`` return the given states instead of running."""
    own = blocks(module)
    path = next(path for path, part in module.named_modules() if part is own)
    skipped = [_returning(block, start.hidden) for block in own[: start.layer]]
    return with_part(module, path, nn.ModuleList([*skipped, *own[start.layer :]]))


def _returning(block: nn.Module, hidden: Tensor) -> nn.Module:
    """A copy of a block, with all its attributes, that returns ``hidden`` in the form that the block does."""
    clone: Any = copy(block)
    clone.forward = lambda *_, **__: hidden
    return clone
