"""A text as a tree of groups, split top down where the interaction across the split is weakest."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring units: what they contribute by themselves, and what their two halves do together.

    The effect of a group is the sum of the effects of its halves and of the interactions ``across`` them: where that is
    not 0, the effects of the halves do not add up.
    """

    start: int
    end: int
    """The first unit, and one past the last."""
    effect: float
    across: float
    halves: tuple["Group", ...] = ()

    def walk(self, depth: int = 0) -> Iterator[tuple[int, "Group"]]:
        """Yield every group with its depth, a group before its halves."""
        yield depth, self
        for half in self.halves:
            yield from half.walk(depth + 1)


def hierarchy(matrix: Sequence[Sequence[float]], scores: Sequence[float]) -> Group:
    """Split the text where the mean strength of the interactions across the split is lowest, and each part again.

    The effect of a unit by itself is its score without its share, one half, of its interactions.

    Paper: top down as HEDGE, Chen et al. 2020, arXiv:2004.02015; the interactions are those of the matrix
    """
    M = np.array(matrix, dtype=float)
    alone = np.array(scores, dtype=float) - M.sum(1) / 2
    return _group(M, alone, 0, len(alone))


def _group(M: Float[np.ndarray, "u u"], alone: Float[np.ndarray, " u"], start: int, end: int) -> Group:
    if end - start < 2:
        return Group(start, end, float(alone[start:end].sum()), 0.0)
    cut = min(range(start + 1, end), key=lambda k: np.abs(M[start:k, k:end]).mean())
    halves = _group(M, alone, start, cut), _group(M, alone, cut, end)
    across = float(M[start:cut, cut:end].sum())
    return Group(start, end, sum(half.effect for half in halves) + across, across, halves)
