"""Credit that is passed on through an answer's own tokens, to the prompt that made them."""

from collections.abc import Mapping, Sequence

import numpy as np

from salience.errors import BadInput


def check_passed_on(method: str, settings: Mapping[str, object]) -> None:
    """Raise if a method with these settings leaves the answer whole, so that its tokens have no credit to pass on."""
    if settings.get("unit") == "segment" or settings.get("erase") == "delete":
        raise BadInput(
            f"{method} erases parts of the prompt only, so the answer's own tokens have no scores to pass on; use "
            "another method such as lrp, or erase single tokens by replacing them (unit='token', erase='mean')"
        )


def hops(matrix: Sequence[Sequence[float]], prompt: int) -> list[list[float]]:
    """Return, for every token of the answer, the share of each ``prompt`` token, directly or through the answer.

    ``matrix`` has one row per token of the answer, and one column per token of the prompt and of the answer but the
    last. A is the matrix with negative scores and later tokens left out, and rows that sum to 1. For token t, r = A_t;
    then, for k = t−1 down to 0: r ← r + r_{P+k} A_k, and r_{P+k} = 0.

    >>> hops([[3.0, 1.0, 0.0], [0.0, 1.0, 1.0]], 2)
    [[0.75, 0.25], [0.375, 0.625]]
    """
    A = np.maximum(np.array(matrix, dtype=float), 0.0)
    for t in range(len(A)):
        A[t, prompt + t :] = 0.0
    sums = A.sum(1, keepdims=True)
    shares = np.divide(A, sums, out=np.zeros_like(A), where=sums > 0)
    R = np.zeros((len(A), prompt))
    for t, row in enumerate(shares):
        # Every earlier row is already passed on to the prompt, so one step does what the recursion does.
        R[t] = row[:prompt] + row[prompt : prompt + t] @ R[:t]
    return R.tolist()
