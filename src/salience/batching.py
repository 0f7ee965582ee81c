"""Rows into passes: sorted by length, packed to a token budget that memory can hold."""

from collections.abc import Iterator, Sequence

import psutil
import torch
from jaxtyping import Int
from torch import Tensor

from salience.types import Batch, Encoded
from salience.words import numbers

OPENING = 24
"""What one more pass costs by itself, in tokens: rows share a pass as long as less than this is wasted."""


FAST = {"cpu": 1024}
"""Tokens beyond which a larger pass is no faster: on a CPU the states of a pass should stay in its cache."""

FASTEST = 16384
"""The same for accelerators."""


def fits_memory(bytes_per_token: int, device: torch.device) -> int:
    """How many tokens one pass should hold: what is fast, or what half of the free memory has room for."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    return max(1, min(FAST.get(device.type, FASTEST), free // 2 // bytes_per_token))


OUT_OF_MEMORY = ("allocate memory", "out of memory", "could not create a primitive")
"""How a CPU's lack of memory reads: torch has no exception of its own for it, and oneDNN gives no reason."""


def ran_out(error: BaseException) -> bool:
    """Whether memory was the trouble."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)


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
        words=rows([numbers(e.text, e.offsets, e.special) for e in encoded], -1, torch.long),
    )


def pack(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices grouped so that rows × longest row stays within the budget and little is padding, longest group first.

    >>> pack([3, 9, 2, 8], budget=18)
    [[1, 3], [0, 2]]
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [order[part] for part in runs([lengths[i] for i in order], budget)]


def chunks(rows: int, width: int, budget: int) -> Iterator[slice]:
    """Slices of ``rows`` that hold at most ``budget`` tokens each, and at least one row."""
    step = max(1, budget // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def fitting(batch: Batch, rows: Int[Tensor, " r"], budget: int) -> Iterator[tuple[slice, Batch]]:
    """Rows of the batch, taken as often and in the order listed, in parts that fit; each without needless padding."""
    lengths = batch.mask.sum(1)[rows].tolist()
    for part in runs(lengths, budget):
        yield part, batch.take(rows[part]).cut(slice(max(lengths[part])))


def runs(lengths: Sequence[int], budget: int) -> Iterator[slice]:
    """Consecutive rows, as many at a time as hold at most ``budget`` tokens when padded to the longest of them.

    A run also ends where padding would cost more than a pass of its own.

    >>> list(runs([2, 2, 5, 5, 1], budget=10))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    start, longest, useful = 0, 0, 0
    for row, length in enumerate(lengths):
        longest, useful = max(longest, length), useful + length
        held = longest * (row - start + 1)
        if row > start and (held > budget or held - useful > OPENING):
            yield slice(start, row)
            start, longest, useful = row, length, length
    if lengths:
        yield slice(start, len(lengths))
