"""Random numbers that depend on the seed and the text alone, never on which other texts share the batch."""

from zlib import crc32

import torch
from torch import Tensor

from salience.types import Batch


def generators(batch: Batch, seed: int) -> list[torch.Generator]:
    """One generator per row, seeded by the seed and the row's own tokens; always on the CPU."""
    rows = zip(batch.ids.tolist(), batch.mask.sum(1).tolist(), strict=True)
    return [torch.Generator().manual_seed(_seed(ids[:length], seed)) for ids, length in rows]


def _seed(ids: list[int], seed: int) -> int:
    return (seed * 0x9E3779B1 + crc32(repr(ids).encode())) % 2**63


def padded(rows: list[Tensor], batch: Batch) -> Tensor:
    """Per-row tensors of each row's own length, laid into one tensor with zeros on padding."""
    out = rows[0].new_zeros(len(batch), batch.width, *rows[0].shape[1:])
    for into, row in zip(out, rows, strict=True):
        into[: len(row)] = row
    return out.to(batch.ids.device)
