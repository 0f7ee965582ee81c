"""Counts of shares: exact, and the same everywhere."""

import numpy as np
import pytest
import torch

from salience.core.ranking import top_share
from salience.core.shares import count_of, portion
from salience.core.target import Target
from salience.explanations.explanation import Explanation
from salience.metrics.faithfulness import _counts, top
from salience.training.guides import shaped
from shapes import build

COUNTS = [
    (0.55, 100, 55),
    (0.575, 100, 58),  # 57.49999999999999 in floating point; halves go to the even number
    (0.285, 100, 28),
    (0.07, 50, 4),
    (0.29, 50, 14),
    (0.2, 12, 2),
    (0.5, 5, 2),
    (0.5, 7, 4),
    (0.01, 12, 1),
    (1.0, 9, 9),
    (0.35, 10, 4),
    (1e-05, 300, 1),
]


@pytest.mark.parametrize(("share", "n", "count"), COUNTS)
def test_a_share_has_one_count_everywhere(share: float, n: int, count: int):
    assert count_of(share, n) == count
    assert count_of(np.float64(share), n) == count
    scores = np.random.default_rng(n).permutation(n).astype(float)
    assert top_share(scores, share).sum() == count
    assert sum(shaped(scores.tolist(), [False] * n, "binary", share)) == count
    words = tuple((4 * i, 4 * i + 3) for i in range(n))
    text = " ".join(["and"] * n)
    explanation = Explanation(
        text=text,
        tokens=("and",) * n,
        offsets=words,
        special=(False,) * n,
        scores=tuple(scores.tolist()),
        target=Target("positive"),
        value=1.0,
        probabilities={},
        method="gradient",
        settings={},
        model="sentiment",
    )
    assert len(explanation.top(share)) == sum(explanation.binarised(share)) == count


def test_none_is_a_portion_but_not_a_count():
    assert (portion(0.1, 4), count_of(0.1, 4)) == (0, 1)
    assert (portion(0.0, 9), portion(0.5, 5), portion(0.575, 100), portion(1.0, 3)) == (0, 2, 58, 3)
    assert portion(0.15, 10) == 2


def test_the_highest_scores_are_chosen_and_ties_go_to_the_first():
    assert top_share(np.array([0.0, 5.0, 1.0, 5.0, 5.0]), 0.4).tolist() == [False, True, False, True, False]
    assert top_share(np.array([1.0, 1.0, 1.0]), 0.1).tolist() == [True, False, False]


def test_the_points_of_a_curve_are_shares_too():
    """Points are multiples of 1 / (points − 1): halves of the product are exact, and go to the even number."""
    model = build("bert")
    batch = model.batch(model.encode(["a fine film with a heart", "no heart"]))
    n = batch.content.sum(1).tolist()
    for points in (2, 3, 5, 21):
        expected = [[_half_even(i * size, points - 1) for size in n] for i in range(points)]
        assert _counts(batch, points)[..., 0].tolist() == expected
    scores = torch.randn(batch.ids.shape)
    assert top(scores, batch, 0.5).sum(1).tolist() == [count_of(0.5, size) for size in n]


def _half_even(a: int, b: int) -> int:
    whole, rest = divmod(a, b)
    return whole + (2 * rest > b or (2 * rest == b and whole % 2 == 1))
