"""A text as a tree of groups, split top down where the interaction across the split is weakest."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring units: what they contribute by themselves, and what their two halves do together.

    The effect of a group is the sum of the effects of its halves and of the interactions ``across`` them: where that is
    not 0, the effects of the halves do not add up. Strengths without a sign are no part of an effect.
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


def hierarchy(matrix: Sequence[Sequence[float]], scores: Sequence[float], *, signed: bool = True) -> Group:
    """Split the text where the mean strength of the interactions across the split is lowest, and each part again.

    The effect of a unit by itself is its score without its share, one half, of its interactions. Interactions that are
    not ``signed`` are strengths, which scores do not contain: they only decide where the text is split.

    Paper: top down as HEDGE, Chen et al. 2020, arXiv:2004.02015; the interactions are those of the matrix
    """
    M = np.array(matrix, dtype=float)
    joint = M if signed else np.zeros_like(M)
    effects = joint / 2 + np.diag(np.array(scores, dtype=float) - joint.sum(1) / 2)
    return _group(M, effects, 0, len(M))


def _group(M: Float[np.ndarray, "u u"], effects: Float[np.ndarray, "u u"], start: int, end: int) -> Group:
    effect = float(effects[start:end, start:end].sum())
    if end - start < 2:
        return Group(start, end, effect, 0.0)
    cut = min(range(start + 1, end), key=lambda k: np.abs(M[start:k, k:end]).mean())
    halves = _group(M, effects, start, cut), _group(M, effects, cut, end)
    return Group(start, end, effect, float(M[start:cut, cut:end].sum()), halves)
