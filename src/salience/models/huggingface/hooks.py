"""Temporary hooks: embeddings replaced, hidden states read and edited. All are gone when the block ends."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from salience.errors import UnsupportedModel
from salience.types import Edit


@contextmanager
def replaced_embeddings(module: PreTrainedModel, embeddings: Tensor) -> Generator[None]:
    """The word embedding layer returns ``embeddings``; that it is asked exactly once is checked.

    ``inputs_embeds`` would not do: padded GPT-2 and Llama classifiers then pool the wrong token.
    """
    asked: list[Tensor] = []

    def replace(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        asked.append(embeddings.clone())  # a copy: CTRL scales what it gets in place
        if len(asked) > 1 or output.shape != embeddings.shape:
            raise UnsupportedModel(_elsewhere(module, f"{len(asked)} times, last for {output.shape[-2]} tokens"))
        return asked[0]

    handle = module.get_input_embeddings().register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()
    if not asked:
        raise UnsupportedModel(_elsewhere(module, "at another place"))


def _elsewhere(module: PreTrainedModel, how: str) -> str:
    return (
        f"{type(module).__name__} reads its word embeddings {how}, not once for the tokens of the text: what is "
        "replaced there would not be what the model sees"
    )


def blocks(module: PreTrainedModel) -> nn.ModuleList:
    """The transformer's blocks: the outermost module list of the trunk. ALBERT calls its one block many times."""
    for child in module.base_model.modules():
        if isinstance(child, nn.ModuleList) and len(child):
            return child
    raise UnsupportedModel(f"{type(module).__name__} has no list of blocks, so its layers cannot be read")


@contextmanager
def hidden_states(module: PreTrainedModel, edit: Edit | None) -> Generator[list[Tensor]]:
    """Collects what enters the first block and leaves each one, after the edit if there is one."""
    seen: list[Tensor] = []

    def keep(hidden: Tensor) -> Tensor:
        hidden = hidden if edit is None else edit(len(seen), hidden)
        seen.append(hidden)
        return hidden

    def entering(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if seen:
            return None
        if args:
            return (keep(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": keep(kwargs["hidden_states"])}

    def leaving(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (keep(output[0]), *output[1:])
        return keep(output)

    parts = list(blocks(module))
    handles = [parts[0].register_forward_pre_hook(entering, with_kwargs=True)]
    handles += [part.register_forward_hook(leaving) for part in parts]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A block with what it was called with."""

    block: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@contextmanager
def block_calls(module: PreTrainedModel) -> Generator[list[Call]]:
    """Collects every call of a block, in order."""
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
    """Removes the hooks that transformers itself installs, and keeps, when asked for attentions."""
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
