"""Agreement of rankings against its definition, read literally, and chance against all orders."""

from itertools import permutations
from math import isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from salience.dynamics import Agreement, accuracy_match, agreement, chance

NUMBERS = st.lists(st.integers(-3, 3), min_size=2, max_size=6)


def literal(u: list[int], v: list[int], hundredths: int) -> float:
    """1[#{j : v_j > v_{argmax u}} < ⌈share · n⌉], mean over the maxima of u."""
    n = len(u)
    allowed = -(-hundredths * n // 100)
    marks = [sum(v[j] > v[i] for j in range(n)) < allowed for i in range(n) if u[i] == max(u)]
    return sum(marks) / len(marks)


@settings(deadline=None, max_examples=60)
@given(st.data(), NUMBERS, st.sampled_from([5, 20, 50]))
def test_agreement_is_its_definition(data: st.DataObject, v: list[int], hundredths: int):
    u = data.draw(st.lists(st.integers(-3, 3), min_size=len(v), max_size=len(v)))
    result = agreement(np.array(u, float), np.array(v, float), hundredths / 100)
    assert result == pytest.approx(literal(u, v, hundredths))


@settings(deadline=None, max_examples=30)
@given(NUMBERS, st.sampled_from([5, 20, 50]))
def test_chance_is_the_mean_over_all_orders(v: list[int], hundredths: int):
    u = list(range(len(v)))
    every = [literal(u, list(order), hundredths) for order in permutations(v)]
    assert chance(np.array(v, float), hundredths / 100) == pytest.approx(sum(every) / len(every))


def test_five_percent_of_forty_tokens_are_two():
    v = np.arange(40.0)
    assert agreement(np.eye(40)[38], v) == 1
    assert agreement(np.eye(40)[37], v) == 0
    assert chance(v) == 2 / 40


def test_uniform_scores_agree_as_by_chance_and_single_tokens_do_not_count():
    v = np.array([3.0, 1.0, 2.0])
    assert agreement(np.full(3, 0.2), v) == chance(v) == pytest.approx(1 / 3)
    assert isnan(agreement(np.ones(1), np.ones(1)))
    assert isnan(chance(np.ones(1)))


def test_it_is_not_symmetric():
    u, v = np.array([0.9, 0.1, *[0.0] * 38]), np.array([5.0, 6.0, *[0.0] * 38])
    assert agreement(u, v) == 1
    assert agreement(np.array([0.9, 0.1, 0.0]), np.array([5.0, 6.0, 0.0])) == 0


def test_agreement_over_texts_has_intervals_chance_and_tau():
    rng = np.random.default_rng(0)
    vs = [rng.normal(size=int(n)) for n in rng.integers(5, 30, size=60)]
    us = [v + 0.3 * rng.normal(size=len(v)) for v in vs]
    result = Agreement.between("u, v", [*us, np.ones(1)], [*vs, np.ones(1)])
    assert result.agreement.n == 60
    assert result.agreement.low < result.agreement.mean < result.agreement.high
    assert result.agreement.mean == pytest.approx(np.mean([agreement(u, v) for u, v in zip(us, vs, strict=True)]))
    assert result.lead.low > 0
    assert result.times == pytest.approx(result.agreement.mean / result.chance.mean)
    assert result.tau.mean == pytest.approx(np.mean([kendalltau(u, v)[0] for u, v in zip(us, vs, strict=True)]))
    unrelated = Agreement.between("u, v", us, [rng.permutation(v) for v in vs])
    assert unrelated.lead.high < 0
    each = [agreement(u, v) - 3 * chance(v) for u, v in zip(us, vs, strict=True)]
    assert result.lead.mean == pytest.approx(np.mean(each))


def test_a_text_with_several_rankings_counts_with_their_mean():
    rng = np.random.default_rng(0)
    us, vs = ([rng.normal(size=(3, 12)) for _ in range(20)] for _ in range(2))
    result = Agreement.between("u, v", us, vs)
    singly = Agreement.between("u, v", np.concatenate(us), np.concatenate(vs))
    for name in ("agreement", "chance", "lead", "tau"):
        assert getattr(result, name).mean == pytest.approx(getattr(singly, name).mean)
        assert (getattr(result, name).n, getattr(singly, name).n) == (20, 60)


def test_the_accuracy_at_which_another_seed_agrees_more():
    assert accuracy_match(0.3, [0.1, 0.3, 0.31, 0.2], [0.5, 0.6, 0.7, 0.8]) == 0.7
    assert isnan(accuracy_match(0.9, [0.1, 0.3], [0.5, 0.6]))
