"""The highest-scoring share of tokens; ties go to the first."""

import numpy as np
from jaxtyping import Bool, Float

from salience.core.shares import count_of


def top_share(scores: Float[np.ndarray, " n"], share: float) -> Bool[np.ndarray, " n"]:
    """Return a mask of the highest-scoring share.

    >>> top_share(np.array([1.0, 3.0, 3.0, 0.0]), 0.25).tolist()
    [False, True, False, False]
    """
    marks = np.zeros(len(scores), dtype=bool)
    marks[np.argsort(-np.asarray(scores), kind="stable")[: count_of(share, len(scores))]] = True
    return marks
