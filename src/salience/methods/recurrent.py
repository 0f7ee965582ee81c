"""torch's fused LSTM computed step by step, so that a rule can be applied to each step."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from salience.errors import UnsupportedModel

LstmStep = Callable[[Tensor, Tensor, Tensor, Sequence[Tensor]], tuple[Tensor, Tensor]]
"""(x_t, h_{t-1}, c_{t-1}, weights) -> (h_t, c_t); the weights are W_x, W_h and, if present, b_x, b_h."""


def stepwise(step: LstmStep) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Return a replacement for ``torch.lstm``, packed or padded, with any number of layers and directions."""

    def lstm(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        if isinstance(args[1], Tensor):
            data, sizes, start, weights, bias, layers, _, _, bidirectional = args
            outputs, h, c = _layers(data.split(sizes.tolist()), start, weights, bias, layers, bidirectional, step)
            return torch.cat(outputs), h, c
        x, start, weights, bias, layers, _, _, bidirectional, batch_first = args
        steps = x.unbind(1 if batch_first else 0)
        outputs, h, c = _layers(steps, start, weights, bias, layers, bidirectional, step)
        return torch.stack(outputs, 1 if batch_first else 0), h, c

    return lstm


def _layers(
    x: Sequence[Tensor],
    start: Sequence[Tensor],
    weights: Sequence[Tensor],
    bias: bool,
    layers: int,
    bidirectional: bool,
    step: LstmStep,
) -> tuple[list[Tensor], Tensor, Tensor]:
    directions, each = 1 + bidirectional, 4 if bias else 2
    if len(weights) != layers * directions * each:
        raise UnsupportedModel("LSTMs with projections (proj_size) are not supported")
    ends: list[tuple[Tensor, Tensor]] = []
    for layer in range(layers):
        by_direction: list[list[Tensor]] = []
        for number in range(layer * directions, (layer + 1) * directions):
            own = weights[number * each : (number + 1) * each]
            outputs, end = _run(x, start[0][number], start[1][number], own, number % directions == 1, step)
            by_direction.append(outputs)
            ends.append(end)
        x = [torch.cat(both, -1) for both in zip(*by_direction, strict=True)]
    return list(x), torch.stack([h for h, _ in ends]), torch.stack([c for _, c in ends])


def _run(
    x: Sequence[Tensor], h: Tensor, c: Tensor, weights: Sequence[Tensor], backwards: bool, step: LstmStep
) -> tuple[list[Tensor], tuple[Tensor, Tensor]]:
    """Run one direction. Packed rows are sorted by length: at step t only the first len(x_t) rows are updated, and the
    others keep their state."""
    outputs: list[Tensor] = []
    for x_t in reversed(x) if backwards else x:
        n = len(x_t)
        h_t, c_t = step(x_t, h[:n], c[:n], weights)
        outputs.append(h_t)
        h, c = torch.cat([h_t, h[n:]]), torch.cat([c_t, c[n:]])
    return outputs[::-1] if backwards else outputs, (h, c)
