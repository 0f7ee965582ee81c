"""Random numbers that depend only on the seed and the text, never on the other texts of the batch."""

from collections.abc import Callable
from typing import TypeVar
from zlib import crc32

import torch
from torch import Tensor

from salience.core.types import Batch

Drawn = TypeVar("Drawn")


def generators(batch: Batch, seed: int) -> list[torch.Generator]:
    """Return one CPU generator per row, seeded by the seed and the row's own tokens."""
    rows = zip(batch.ids.tolist(), batch.mask.sum(1).tolist(), strict=True)
    return [torch.Generator().manual_seed(_seed(ids[:length], seed)) for ids, length in rows]


def _seed(ids: list[int], seed: int) -> int:
    return (seed * 0x9E3779B1 + crc32(repr(ids).encode())) % 2**63


class Draws:
    """Numbered random draws for every text, from the text's own generator. Any draw can be repeated.

    The first time, a text's draws must be requested in order. A pass that is retried gets the same numbers again.
    """

    def __init__(self, batch: Batch, seed: int) -> None:
        self._generators = generators(batch, seed)
        self._states = [[g.get_state()] for g in self._generators]

    def __call__(self, text: int, number: int, draw: Callable[[torch.Generator], Drawn]) -> Drawn:
        generator, states = self._generators[text], self._states[text]
        generator.set_state(states[number])
        result = draw(generator)
        if number + 1 == len(states):
            states.append(generator.get_state())
        return result


def by_token(batch: Batch, seed: int, draw: Callable[[int, torch.Generator], Tensor]) -> Tensor:
    """Draw for every text from its own generator, given its number of tokens; zeros on padding."""
    lengths = batch.mask.sum(1).tolist()
    return padded([draw(n, g) for n, g in zip(lengths, generators(batch, seed), strict=True)], batch)


def padded(rows: list[Tensor], batch: Batch) -> Tensor:
    """Stack per-row tensors of different lengths into one tensor, with zeros on padding."""
    out = rows[0].new_zeros(len(batch), batch.width, *rows[0].shape[1:])
    for target, row in zip(out, rows, strict=True):
        target[: len(row)] = row
    return out.to(batch.ids.device)
