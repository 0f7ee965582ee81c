"""Sequences to copy: with and without the co-occurrence statistics that reveal which symbol stands for which."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Int

from salience.data.pairs import Pair
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


Rearrangement = Literal["copy", "reverse", "flip"]
REARRANGEMENTS = get_args(Rearrangement)


def rearranged(
    kind: Rearrangement, count: int, *, symbols: int = 30, lengths: tuple[int, int] = (4, 12), seed: int = 0
) -> list[Pair]:
    """Random sequences with their copy, their reverse, or with neighbours swapped, and which symbol each comes from.

    Paper: Pruthi et al. 2020, arXiv:1909.07913, section 5

    >>> pair = rearranged("flip", 1, lengths=(4, 4))[0]
    >>> [pair.source.split()[i] for i in (1, 0, 3, 2)] == pair.answer.split()
    True
    """
    choose(kind, REARRANGEMENTS, "task")
    rng = np.random.default_rng([seed, REARRANGEMENTS.index(kind)])
    pairs: list[Pair] = []
    for number in range(count):
        length = int(rng.integers(lengths[0], lengths[1] + 1))
        drawn = [str(symbol) for symbol in rng.integers(symbols, size=length)]
        order = _order(kind, length)
        links = frozenset((s, t) for t, s in enumerate(order))
        pairs.append(Pair(str(number), " ".join(drawn), " ".join(drawn[s] for s in order), links, links))
    return pairs


def _order(kind: Rearrangement, length: int) -> list[int]:
    """The place in the source of each symbol of the answer; the last of an odd number has no neighbour to swap with."""
    if kind == "flip":
        return [t ^ 1 if t ^ 1 < length else t for t in range(length)]
    return list(range(length)) if kind == "copy" else list(reversed(range(length)))
