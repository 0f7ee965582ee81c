"""When keywords are separated: probabilities counted pair by pair, and courses whose order is known."""

from math import isnan

import numpy as np
import pytest

from salience.dynamics.recording import Followed, FollowedText
from salience.dynamics.separation import half_way, keywords, order, superiority

STEPS = tuple(range(0, 200, 10))


def test_superiority_counts_pairs():
    rng = np.random.default_rng(0)
    for _ in range(20):
        values = rng.integers(0, 4, size=(3, 7)).astype(float)
        marks = rng.permutation([True] * 2 + [False] * 5)
        for row, result in zip(values, superiority(values, marks), strict=True):
            pairs = [(k, f) for k in row[marks] for f in row[~marks]]
            assert result == pytest.approx(sum((k > f) + 0.5 * (k == f) for k, f in pairs) / len(pairs))


def test_keywords_speak_for_the_label():
    assert keywords(np.array([0.1, 0.9, -0.5, 0.2])).tolist() == [False, True, False, False]
    assert not keywords(np.array([-0.1, -0.9])).any()


def test_the_half_way_step():
    steps = np.array([0.0, 10.0, 20.0, 30.0])
    assert half_way(steps, np.array([0.5, 0.5, 0.7, 0.7])) == pytest.approx(15)
    assert half_way(steps, np.array([0.9, 0.9, 0.9, 0.9])) == 0
    assert half_way(steps, np.array([0.5, 0.9, 0.5, 0.9])) == pytest.approx(25)  # the last time that it rises
    assert isnan(half_way(steps, np.array([0.9, 0.7, 0.6, 0.5])))


def followed(relevance_at: int, attention_at: int, texts: int = 30) -> Followed:
    """Texts whose first token becomes relevant at one step, and attended at another; the others move at random."""
    rng = np.random.default_rng(1)

    def one() -> FollowedText:
        n, s = 8, len(STEPS)
        rises = [[1.0 * (step >= at) for step in STEPS] for at in (relevance_at, attention_at)]
        r, a = (0.1 * rng.normal(size=(s, n)) for _ in range(2))
        for x, rise in zip((r, a), rises, strict=True):
            x[:, 0] += rise
        return FollowedText("text", ("w",) * n, tuple(range(n)), (), 1, a, np.stack([-r, r], 1), np.full((s, 2), 0.5))

    return Followed("", ("no", "yes"), STEPS, tuple(one() for _ in range(texts)))


def first_token(text: FollowedText) -> np.ndarray:
    return np.eye(len(text.tokens))[0]


@pytest.mark.parametrize(("r", "a", "answer"), [(50, 120, True), (120, 50, False), (100, 100, None)])
def test_the_order_is_found(r: int, a: int, answer: bool | None):
    result = order(followed(r, a), first_token)
    assert result.relevance_first is answer
    assert result.relevance.half.mean == pytest.approx(r - 5, abs=5)
    assert result.attention.half.mean == pytest.approx(a - 5, abs=5)
    assert result.lag.low <= result.lag.mean <= result.lag.high
    assert result.lag.mean == pytest.approx(a - r, abs=5)
    assert result.relevance.first is not None
    assert result.relevance.first <= r
    assert result.relevance.lead[-1] == pytest.approx(1, abs=0.2)
    for control in (result.shuffled_relevance, result.shuffled_attention):
        assert control.by_step[-1].mean < 0.75


def test_everything_starts_at_one_half_since_growth_is_compared():
    course = order(followed(50, 120), first_token).relevance
    assert course.by_step[0].mean == 0.5


def test_texts_without_keywords_or_too_few_texts_have_no_answer():
    none = order(followed(50, 120), lambda text: np.zeros(len(text.tokens)))
    assert none.texts == 0
    assert none.relevance_first is None
    assert none.relevance.first is None
    few = order(followed(50, 120, texts=3), first_token)
    assert few.texts == 3
    assert few.relevance_first is None
