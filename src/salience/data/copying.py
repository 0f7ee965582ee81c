"""Sequences to copy: with and without the co-occurrence statistics that reveal which symbol stands for which."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Int

from salience.errors import BadInput, choose

CopyKind = Literal["permutation", "iid", "distinct"]
COPY_KINDS = get_args(CopyKind)


@dataclass(frozen=True, slots=True)
class Sequences:
    """How sequences of ``length`` symbols are drawn.

    ``permutation``: all symbols, in random order. Every sequence holds every symbol, so no symbol of the answer occurs
    with one symbol of the source more often than with another. ``iid``: independent symbols. ``distinct``: different
    symbols out of half as many more as there are places.

    Paper: Snell et al. 2021, arXiv:2103.07601, section 5
    """

    kind: CopyKind = "permutation"
    length: int = 40

    def __post_init__(self) -> None:
        choose(self.kind, COPY_KINDS, "kind of sequence")
        if self.length < 2:
            raise BadInput(f"length={self.length} must be at least 2")

    @property
    def symbols(self) -> int:
        """The number of different symbols.

        >>> Sequences("permutation").symbols, Sequences("distinct").symbols
        (40, 60)
        """
        return self.length * 3 // 2 if self.kind == "distinct" else self.length

    def draw(self, count: int, rng: np.random.Generator) -> Int[np.ndarray, "n t"]:
        """Draw sequences of symbols, numbered from 0."""
        if self.kind == "iid":
            return rng.integers(self.symbols, size=(count, self.length))
        every = np.tile(np.arange(self.symbols), (count, 1))
        return rng.permuted(every, axis=1)[:, : self.length]
