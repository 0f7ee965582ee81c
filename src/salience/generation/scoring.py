"""Scores of one text for every token of an answer: the passes that each method needs, and no others."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from salience.core.memory import Memory
from salience.core.passes import Needs, OnePass, Pass, forward, observe
from salience.core.text import Encoded
from salience.core.types import Attribution, Batch, Model, Targets
from salience.explanations.explainer import Configured

ROOM = 2**29
"""The bytes of gradients that are kept at once, about; further tokens of the answer get another forward pass."""


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """f of each requested step, and the scores of each method, with one row per step."""

    values: Float[Tensor, " n"]
    attributions: tuple[Attribution, ...]


def scored(
    model: Model,
    text: Encoded,
    methods: Sequence[Configured],
    steps: Sequence[int],
    memory: Memory | None = None,
) -> Scored:
    """Explain some labels of one text, all of them together.

    Gradients of all steps are computed through the graph of one forward pass, and a changed copy of the text is run
    once for all steps. Methods that read the same pass share it. ``memory`` holds the copies that were run before.
    """
    batch = model.batch([text])
    targets = _targets(model, batch, steps)
    shared = [m for m in methods if isinstance(m.method, OnePass) and m.method.own is None]
    needs = reduce(or_, (m.method.needs for m in shared if isinstance(m.method, OnePass)), Needs.NOTHING)
    read: dict[int, Attribution] = {}
    values: Tensor | None = None

    def look(own: Sequence[Configured], needs: Needs, see: Callable[[Targets], Pass]) -> None:
        nonlocal values
        parts: list[list[Attribution]] = [[] for _ in own]
        for part in _parts(model, batch, needs, targets):
            result = see(part)
            values = result.output.logits[0]
            for known, m in zip(parts, own, strict=True):
                known.append(_attribution(m.method.read(result, **m.settings)))  # pyright: ignore[reportFunctionMemberAccess]
        read.update({id(m): _joined(known) for m, known in zip(own, parts, strict=True)})

    if shared:
        look(shared, needs, lambda part: observe(model, batch, part, needs))
    for m in methods:
        if isinstance(m.method, OnePass) and m.method.own is not None:
            look([m], Needs.GRADIENT, lambda part, m=m: m.method.see(model, batch, part, **m.settings))  # pyright: ignore
    if values is None:
        values = forward(model, batch).logits[0]
    targets = replace(targets, value=values[list(steps)])
    if len(read) < len(methods):
        copies = model.batch([text] * len(steps))
        rows = copies.remembering(model) if memory is None else replace(copies, memory=memory)
        read |= {
            id(m): _attribution(m.method(model, rows, targets, **m.settings)) for m in methods if id(m) not in read
        }
    return Scored(values[list(steps)], tuple(read[id(m)] for m in methods))


def _targets(model: Model, batch: Batch, steps: Sequence[int]) -> Targets:
    """The labels to explain. Each token of an answer is read from one position, the whole answer from all of these."""
    labels = torch.tensor(list(steps), device=batch.ids.device)
    whole = model.read_from(batch)[0]
    at = whole.nonzero()[:, 0]
    each = torch.cat([torch.nn.functional.one_hot(at, batch.width).to(whole), whole[None]])
    return Targets(labels, None, "logit", "identity", read_from=each[labels])


def _parts(model: Model, batch: Batch, needs: Needs, targets: Targets) -> Iterator[Targets]:
    """As many targets at a time as there is room for their gradients."""
    size, width = model.words.embedding_dim, batch.width
    numbers = width * size
    if Needs.HIDDEN in needs:
        numbers *= 1 + model.layers
    if Needs.ATTENTION_GRADIENT in needs:
        heads = int(getattr(model.module.config, "num_attention_heads", 1))  # pyright: ignore
        numbers += model.layers * heads * width**2
    count = max(1, ROOM // (4 * numbers)) if needs else len(targets)
    for start in range(0, len(targets), count):
        yield targets.take(slice(start, start + count))


def _attribution(result: Tensor | Attribution) -> Attribution:
    return result if isinstance(result, Attribution) else Attribution(result, signed=None)


def _joined(parts: Sequence[Attribution]) -> Attribution:
    if len(parts) == 1:
        return parts[0]

    def settings(part: Attribution) -> Mapping[str, Any]:
        return part.settings

    names = settings(parts[0])
    return Attribution(
        torch.cat([p.scores for p in parts]),
        {name: torch.cat([p.gaps[name] for p in parts]) for name in parts[0].gaps},
        {
            name: torch.cat([settings(p)[name] for p in parts]) if isinstance(value, Tensor) else value
            for name, value in names.items()
        },
        parts[0].signed,
    )
