"""Scores of one text for every token of an answer: the passes that each method needs, and no others."""

from collections.abc import Iterator, Sequence
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
"""The bytes of gradients or weights that are kept at once, about; further tokens of the answer get another pass."""


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
    results: dict[int, Attribution] = {}
    values: Tensor | None = None
    for group in _groups(methods):
        parts = [_look(model, batch, part, group) for part in _parts(model, batch, group, targets)]
        values = parts[0][0]
        results |= {id(m): _joined([part[1][n] for part in parts]) for n, m in enumerate(group)}
    values = (forward(model, batch).logits[0] if values is None else values)[list(steps)]
    if len(results) < len(methods):
        copies, known = model.batch([text] * len(steps)), replace(targets, value=values)
        rows = copies.remembering(model) if memory is None else replace(copies, memory=memory)
        others = [m for m in methods if id(m) not in results]
        results |= {id(m): _attribution(m.method(model, rows, known, **m.settings)) for m in others}
    return Scored(values, tuple(results[id(m)] for m in methods))


def _targets(model: Model, batch: Batch, steps: Sequence[int]) -> Targets:
    """The labels to explain. Each token of an answer is read from one position, the whole answer from all of these."""
    labels = torch.tensor(list(steps), device=batch.ids.device)
    whole = model.read_from(batch)[0]
    at = whole.nonzero()[:, 0]
    each = torch.cat([torch.nn.functional.one_hot(at, batch.width).to(whole), whole[None]])
    whole_last = len(steps) > 1 and list(steps) == list(range(len(each)))
    return Targets(labels, None, "logit", "identity", read_from=each[labels], sums=whole_last)


def _groups(methods: Sequence[Configured]) -> list[list[Configured]]:
    """The methods that need one pass, those together that share it."""
    one_pass = [m for m in methods if isinstance(m.method, OnePass)]
    alone = [m for m in one_pass if m.method.own is not None]  # pyright: ignore[reportFunctionMemberAccess]
    shared = [m for m in one_pass if m not in alone]
    return [*([shared] if shared else []), *([m] for m in alone)]


def _look(
    model: Model, batch: Batch, targets: Targets, group: Sequence[Configured]
) -> tuple[Float[Tensor, " c"], list[Attribution]]:
    """f of all labels, and the scores of every method, from one pass."""
    first: Any = group[0].method
    if len(group) == 1:
        result: Pass = first.see(model, batch, targets, **group[0].settings)
    else:
        result = observe(model, batch, targets, _needs(group))
    scores: list[Any] = [m.method.scores(result, **m.settings) for m in group]  # pyright: ignore[reportFunctionMemberAccess]
    return result.output.logits[0], [_attribution(one) for one in scores]


def _needs(group: Sequence[Configured]) -> Needs:
    return reduce(or_, (m.method.needs for m in group))  # pyright: ignore[reportFunctionMemberAccess]


def _parts(model: Model, batch: Batch, group: Sequence[Configured], targets: Targets) -> Iterator[Targets]:
    """As many targets at a time as there is room for their gradients, or for the weights that they read."""
    needs, width = _needs(group), batch.width
    numbers = width * model.words.embedding_dim
    if Needs.HIDDEN in needs:
        numbers *= 1 + model.layers
    if Needs.ATTENTION_GRADIENT in needs:
        numbers += model.layers * int(getattr(model.module.config, "num_attention_heads", 1)) * width**2  # pyright: ignore
    elif Needs.ATTENTION in needs:
        numbers += width**2
    count = max(1, ROOM // (4 * numbers))
    if count >= len(targets):
        yield targets
        return
    for start in range(0, len(targets), count):
        yield targets.take(slice(start, start + count))


def _attribution(result: Tensor | Attribution) -> Attribution:
    return result if isinstance(result, Attribution) else Attribution(result, signed=None)


def _joined(parts: Sequence[Attribution]) -> Attribution:
    """The rows of several attributions by one method, in order."""
    first = parts[0]
    if len(parts) == 1:
        return first
    settings = {
        name: torch.cat([p.settings[name] for p in parts]) if isinstance(value, Tensor) else value  # pyright: ignore
        for name, value in first.settings.items()
    }
    gaps = {name: torch.cat([p.gaps[name] for p in parts]) for name in first.gaps}
    return Attribution(torch.cat([p.scores for p in parts]), gaps, settings, first.signed)
