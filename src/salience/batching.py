"""Rows into passes: sorted by length, packed to a token budget, split again when memory runs out."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from salience.types import Batch, Encoded


def collate(encoded: Sequence[Encoded], pad: int, device: torch.device | str = "cpu") -> Batch:
    """Rows padded on the right to the longest."""
    width = max(len(e) for e in encoded)

    def rows(values: Sequence[Sequence[int]], fill: int, dtype: torch.dtype) -> Tensor:
        padded = [[*v, *[fill] * (width - len(v))] for v in values]
        return torch.tensor(padded, dtype=dtype, device=device)

    segments = None
    if encoded[0].segments is not None:
        segments = rows([e.segments or () for e in encoded], 0, torch.long)
    return Batch(
        ids=rows([e.ids for e in encoded], pad, torch.long),
        mask=rows([[1] * len(e) for e in encoded], 0, torch.bool),
        special=rows([e.special for e in encoded], 1, torch.bool),
        segments=segments,
    )


def pack(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices grouped so that rows × longest row stays within the budget, longest group first.

    >>> pack([3, 9, 2, 8], budget=18)
    [[1, 3], [0, 2]]
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if groups and lengths[groups[-1][0]] * (len(groups[-1]) + 1) <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def chunks(rows: int, width: int, budget: int) -> Iterator[slice]:
    """Slices of ``rows`` that hold at most ``budget`` tokens each, and at least one row."""
    step = max(1, budget // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
