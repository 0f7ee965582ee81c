"""Intervals that hold: their coverage by simulation, and their formulas against slow or published versions."""

from itertools import combinations, product
from math import inf, isnan, nan

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, binomtest, ttest_1samp
from scipy.stats import t as student

from salience.core.stats import (
    Difference,
    Estimate,
    Moments,
    Spread,
    differences,
    estimate,
    holm,
    mean_interval,
    moments_interval,
    multi_bootstrap,
    paired_difference,
    share,
    share_interval,
    table_interval,
    within,
)

HOLDS = 0.93
"""The least coverage of an interval that is said to be of 95 %."""

SKEWED = {
    "exponential": (lambda rng, size: rng.exponential(size=size), 1.0),
    "lognormal": (lambda rng, size: rng.lognormal(size=size), 1.6487213),
    "beta": (lambda rng, size: rng.beta(5, 0.3, size=size), 0.9433962),
    "half of them 0": (lambda rng, size: rng.integers(0, 2, size=size) * rng.random(size), 0.25),
}
VALUES = {"normal": (lambda rng, size: rng.normal(size=size), 0.0), **SKEWED}


def share_covered(low: np.ndarray, high: np.ndarray, truth: float) -> float:
    """Of the intervals that are given, and some are, how many contain the truth."""
    given = ~np.isnan(low)
    assert given.mean() > 0.5
    return float(((low <= truth) & (truth <= high))[given].mean())


# ------------------------------------------------------------------------------------------------------ coverage


@pytest.mark.parametrize("name", VALUES)
def test_the_interval_of_a_mean_holds(name: str):
    draw, truth = VALUES[name]
    rng = np.random.default_rng(5)
    for n in (8, 9, 10, 12, 15, 20, 30, 50, 100):
        low, high = mean_interval(draw(rng, (6000, n)))
        covered = share_covered(low, high, truth)
        assert covered >= HOLDS, n
        assert covered <= 0.995, f"{n}: wider than it need be"


@pytest.mark.parametrize("name", ["beta", "half of them 0"])
def test_the_interval_within_limits_holds(name: str):
    draw, truth = VALUES[name]
    rng = np.random.default_rng(5)
    for n in (8, 10, 15, 30):
        x = draw(rng, (6000, n))
        free = mean_interval(x)
        low, high = within(free, x.mean(-1), (0, 1))
        assert min(np.nanmin(free[0]), 1 - np.nanmax(free[1])) < 0 <= min(np.nanmin(low), 1 - np.nanmax(high))
        assert share_covered(low, high, truth) == share_covered(*free, truth) >= HOLDS, n


@pytest.mark.parametrize("p", [0.02, 0.1, 0.3, 0.5, 0.95])
def test_the_interval_of_a_share_holds(p: float):
    """Exactly: every number of ones has its probability and its interval."""
    for n in (8, 10, 20, 50, 100):
        covered = 0.0
        for k in range(n + 1):
            e = share([1.0] * k + [0.0] * (n - k))
            covered += binom.pmf(k, n, p) * (e.low <= p <= e.high)
        assert covered >= 0.95, n


@pytest.mark.parametrize("effect", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("name", ["normal", "exponential"])
def test_the_interval_over_seeds_and_texts_holds(name: str, seeds: int, effect: float):
    draw, truth = VALUES[name]
    rng = np.random.default_rng(seeds)
    for texts in (8, 20, 60):
        size = (1500, seeds, texts)
        of_texts, of_seeds = draw(rng, (1500, 1, texts)), effect * rng.normal(size=(1500, seeds, 1))
        d = 0.7 * of_texts + 0.7 * draw(rng, size) + of_seeds
        assert share_covered(*table_interval(d), 1.4 * truth) >= HOLDS, texts


@pytest.mark.parametrize("effect", [0.0, 0.05])
def test_the_interval_of_a_difference_in_accuracy_holds(effect: float):
    """Right or wrong: two models of several seeds, whose accuracies are equal but for their seeds."""
    rng = np.random.default_rng(7)
    for seeds, texts, p in product((2, 5), (10, 50), (0.1, 0.5)):
        own = np.clip(p + effect * rng.uniform(-1, 1, size=(2, 1500, seeds, 1)), 0, 1)
        one, other = rng.random((2, 1500, seeds, texts)) < own
        assert share_covered(*table_interval(one.astype(float) - other), 0.0) >= HOLDS, (seeds, texts, p)


def test_an_interval_is_not_wider_than_seeds_and_texts_make_it():
    rng = np.random.default_rng(3)
    d = 0.5 * rng.normal(size=(3000, 5, 1)) + rng.normal(size=(3000, 5, 100))
    assert share_covered(*table_interval(d), 0.0) <= 0.97


# ------------------------------------------------------------------------------------------------------ too few to say


def test_too_few_texts_have_no_interval():
    rng = np.random.default_rng(0)
    for n in range(1, 8):
        for values in (rng.normal(size=n), np.ones(n), np.zeros(n)):
            e = estimate(values)
            assert (isnan(e.low), isnan(e.high), e.n) == (True, True, n)
            assert e.interval == "too few to say"
        difference = paired_difference(rng.normal(size=(3, n)), np.zeros((3, n)))
        assert isnan(difference.low)
        assert isnan(difference.p)
        assert not difference.clear
    assert str(estimate([0.312])) == "0.312 [too few to say]"
    assert str(paired_difference([1.0, 2.0], [0.0, 0.0])) == "+1.50 [too few to say]"
    assert not isnan(estimate(rng.normal(size=8)).low)


def test_equal_values_have_no_interval_unless_they_are_a_share():
    assert estimate([0.5] * 20).interval == "all equal"
    assert str(paired_difference([2.0] * 9, [1.0] * 9)) == "+1.00 [all equal]"
    assert estimate([1 / 3] * 30).interval == "all equal", "rounding is no spread"
    assert share([1.0] * 10).interval == "0.692 to 1.000"
    assert share([0.0] * 10).interval == "0.000 to 0.308"
    assert estimate([0.0] * 10).interval == "all equal", "a score of 0 in every text is no share"
    assert estimate([0.0, 1.0] * 5) == share([0.0, 1.0] * 5)


def test_differences_of_shares_are_no_shares():
    """One text of 400 that only the first model gets right does not show that it is better."""
    e = estimate([1.0] + [0.0] * 399, (-1, 1))
    assert e.low < 0 < e.high
    mirrored = estimate([-1.0] + [0.0] * 399, (-1, 1))
    assert (mirrored.low, mirrored.high) == pytest.approx((-e.high, -e.low))


def test_bounds_to_decide_by():
    assert estimate([2.0] * 10).bounds == (2.0, 2.0)
    assert all(isnan(bound) for bound in estimate([2.0] * 3).bounds), "too few to decide by"
    e = estimate([0.1, 0.5, 0.3, 0.9, 0.2, 0.4, 0.8, 0.6])
    assert e.bounds == (e.low, e.high)


def test_undefined_values_are_not_counted():
    x = [0.1, 0.4, nan, 0.2, 0.9, 0.3, nan, 0.5, 0.6, 0.1]
    assert estimate(x) == estimate([v for v in x if not isnan(v)])
    assert estimate(x).n == 8
    for nothing in (estimate([nan, nan]), share([nan, nan])):
        assert (nothing.n, isnan(nothing.mean), nothing.interval) == (0, True, "too few to say")


def test_how_results_are_printed():
    assert str(Estimate(0.5, 0.25, 0.75, 9)) == "0.500 [0.250, 0.750]"
    assert Estimate(0.5, 0.25, 0.75, 9).interval == "0.250 to 0.750"
    assert f"{Difference(0.5, -0.25, 0.75, 0.1, 9):.1f}" == "+0.5 [-0.2, +0.8]"
    assert str(Spread((50.0, 52.0))) == "51.00 ± 1.41"
    assert f"{Spread((50.0, 52.0)):.0f}" == "51 ± 1"
    assert f"{Spread((0.5, 0.7)):+.3f}" == "+0.600 ± 0.141"
    assert isnan(Spread((3.0,)).sd)
    assert str(Spread((3.0,))) == "3.00", "one run has no spread"


# ------------------------------------------------------------------------------------------------------ limits


def test_no_interval_leaves_the_limits_of_its_values():
    x = [1.0] * 8 + [0.9, 0.2]
    assert estimate(x).high > 1
    e = estimate(x, (0, 1))
    assert (e.mean, e.low, e.high) == (estimate(x).mean, estimate(x).low, 1)
    assert estimate(np.negative(x), (-1, 1)).low == -1
    assert estimate([0.0] * 8 + [0.1, 3.0], (0, inf)).low == 0
    rounded = estimate([1 + 1e-7] * 9 + [1 + 2e-7], (0, 1))
    assert rounded.low <= rounded.mean == rounded.high, "a mean that rounding has put outside stays in its interval"
    free, bound = differences([x, x], [(-inf, inf), (-1, 1)])
    assert free.high > bound.high == 1
    assert (free.low, free.p) == (bound.low, bound.p)
    assert isnan(estimate([0.5] * 9, (0, 1)).low)


@pytest.mark.parametrize("name", VALUES)
def test_the_moments_of_a_stream_give_the_same_interval(name: str):
    for n in (3, 8, 30):
        x = VALUES[name][0](np.random.default_rng(n), (n,)) + 5
        moments = Moments()
        for value in x.tolist():
            moments.add(value)
        d = x - x.mean()
        expected = (n, x.mean(), (d**2).sum(), (d**3).sum())
        assert (moments.n, moments.mean, moments.squares, moments.cubes) == pytest.approx(expected)
        streamed = moments_interval(moments.n, moments.mean, moments.squares, moments.cubes)
        assert np.allclose(streamed, mean_interval(x), equal_nan=True)


# ------------------------------------------------------------------------------------------------------ formulas

SYMMETRIC = np.array([-3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0]) + 4.0


def test_symmetric_values_have_the_interval_of_student():
    low, high = mean_interval(SYMMETRIC)
    # The standard deviation is 1.887459, and the quantile of t with 8 degrees of freedom 2.306004.
    assert (low, high) == pytest.approx((4 - 2.306004 * 1.887459 / 3, 4 + 2.306004 * 1.887459 / 3), abs=1e-5)


def test_skewed_values_have_the_interval_of_hall_where_it_is_wider():
    for seed, n in product(range(6), (8, 15, 40)):
        x = np.random.default_rng(seed).exponential(size=n) * (1 if seed % 2 else -1)
        mean, sd = x.mean(), x.std(ddof=1)
        k = n * ((x - mean) ** 3).sum() / ((n - 1) * (n - 2) * sd**3) * (1 + 6 / n)
        t = student.ppf(0.975, n - 1) / np.sqrt(n)

        def hall(w: float, k: float = k, n: int = n) -> float:
            return w + k * w**2 / 3 + k**2 * w**3 / 27 + k / (6 * n)

        above, below = (brentq(lambda w, y=y: hall(w) - y, -1e3, 1e3, xtol=1e-13) for y in (t, -t))
        expected = min(mean - sd * t, mean - sd * above), max(mean + sd * t, mean - sd * below)
        assert tuple(map(float, mean_interval(x))) == pytest.approx(expected, rel=1e-6)


def test_the_interval_of_a_share_is_that_of_scipy():
    for n in (8, 13, 40):
        for k in range(n + 1):
            theirs = binomtest(k, n).proportion_ci(method="exact")
            assert share_interval(k, n) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_seeds_widen_the_interval_by_a_quantile_of_few_degrees_of_freedom():
    """Distances add in squares: 12.7062 standard errors of two seeds, 2.7764 of five; 2.3060 of nine texts."""
    texts = 2.306004 * 1.887459 / 3
    for seeds, quantile in (([-0.3, 0.3], 12.706205), ([-0.4, -0.2, 0.0, 0.2, 0.4], 2.776445)):
        d = SYMMETRIC + np.array(seeds)[:, None]
        error = np.std(seeds, ddof=1) / np.sqrt(len(seeds))
        distance = np.sqrt(texts**2 + (quantile * error) ** 2)
        difference = paired_difference(d, 0 * d)
        assert (difference.low, difference.high) == pytest.approx((4 - distance, 4 + distance), abs=1e-4)
        assert (difference.mean, difference.pairs) == (pytest.approx(4), 9)


def test_identical_seeds_do_not_count_as_more_texts():
    rng = np.random.default_rng(2)
    once = rng.normal(0.3, 1, size=(1, 50))
    one, copies = paired_difference(once, 0 * once), paired_difference(np.repeat(once, 5, 0), np.zeros((5, 50)))
    assert (copies.mean, copies.low, copies.high) == pytest.approx((one.mean, one.low, one.high))
    assert copies.pairs == one.pairs == 50
    apart = once + rng.normal(size=(5, 1))
    wider = paired_difference(apart, 0 * apart)
    assert wider.high - wider.low > 2 * (one.high - one.low), "seeds do not count"


def test_the_pairs_are_used():
    rng = np.random.default_rng(0)
    base = rng.normal(size=200) * 10
    difference = paired_difference(base + 1 + rng.normal(size=200) * 0.5, base)
    assert difference.clear
    assert difference.low < 1 < difference.high
    assert difference.high - difference.low < 0.2, "the interval ignores the pairing"
    none = paired_difference(base, base + rng.normal(size=200))
    assert not none.clear
    assert none.p > 0.05


def test_the_p_value_is_where_the_interval_reaches_0():
    for shift in (-4.5, -4.0, -2.5, -5.0):
        ours = paired_difference(SYMMETRIC + shift, np.zeros(9))
        assert ours.p == pytest.approx(ttest_1samp(SYMMETRIC + shift, 0).pvalue, abs=1e-6)
    rng = np.random.default_rng(1)
    for _ in range(20):
        d = rng.exponential(size=(3, 12)) - 0.6
        difference = paired_difference(d, 0 * d)
        assert (difference.p <= 0.05) == (difference.low > 0 or difference.high < 0)
        low, high = table_interval(d, difference.p)
        assert min(abs(low), abs(high)) == pytest.approx(0, abs=1e-6)


def test_differences_that_are_alike_in_all_texts_have_a_p_value():
    ones = np.ones((1, 20))
    assert paired_difference(ones, 0 * ones).p == 2.0**-19, "as likely as 20 equal signs"
    assert paired_difference(ones, 0 * ones).clear
    assert paired_difference(ones, ones).p == 1
    assert not paired_difference(ones, ones).clear
    assert not paired_difference(ones[:, :5], 0 * ones[:, :5]).clear, "too few texts"
    seeds = np.array([[0.2], [0.1], [0.4], [0.3]]) * np.ones((4, 20))
    assert paired_difference(seeds, 0 * seeds).p == pytest.approx(ttest_1samp(seeds[:, 0], 0).pvalue)


def test_a_difference_is_clear_if_both_its_test_and_its_interval_are():
    assert Difference(1.0, 0.5, 1.5, 0.05, 8).clear
    assert Difference(-1.0, -1.5, -0.5, 0.01, 8).clear
    assert not Difference(1.0, 0.5, 1.5, 0.051, 8).clear
    assert not Difference(1.0, -0.1, 2.1, 0.01, 8).clear
    assert not Difference(1.0, 0.0, 2.0, 0.01, 8).clear
    assert not Difference(-1.0, -2.0, 0.0, 0.01, 8).clear
    assert not Difference(1.0, 0.5, 1.5, 0.01, 7).clear, "too few"
    assert Difference(1.0, nan, nan, 0.001, 20).clear, "twenty texts that differ alike have no spread, but a test"


# ------------------------------------------------------------------------------------------------------ tested together


def enumerated(d: np.ndarray) -> list[float]:
    """Corrected p-values from all patterns of signs."""
    scale = np.sqrt((d**2).sum(0))
    statistic = np.abs(d.sum(0)) / scale
    largest = [max(abs((d * np.array(s)[:, None]).sum(0)) / scale) for s in product((-1, 1), repeat=len(d))]
    return [float(np.mean([x >= t - 1e-9 for x in largest])) for t in statistic]


def test_corrected_p_values_are_those_of_all_sign_flips():
    rng = np.random.default_rng(4)
    d = rng.normal(size=(9, 5)) * [1, 10, 0.1, 1, 1] + [0.5, 12, 0, 0.8, 0.1]
    ours = differences(list(d.T))
    assert [x.p for x in ours] == pytest.approx(enumerated(d), abs=0.015)
    assert [x.mean for x in ours] == pytest.approx(d.mean(0).tolist())
    for column, x in zip(d.T, ours, strict=True):
        assert (x.low, x.high) == pytest.approx(tuple(map(float, mean_interval(column))))
    (alone,) = differences([d[:, 3]])
    assert alone.p == pytest.approx(enumerated(d[:, 3:4])[0], abs=0.015)
    assert alone.p < ours[3].p


def test_a_few_texts_are_never_significant():
    for n in (1, 2, 4, 7):
        (difference,) = differences([1 + np.random.default_rng(0).random(n)])
        assert difference.p == pytest.approx(2.0 ** (1 - n), abs=0.02)
        assert not difference.clear
    (difference,) = differences([1 + np.random.default_rng(0).random(20)])
    assert difference.clear
    assert difference.p == pytest.approx(1 / 10_001, rel=1e-9), "one of 10,001, the observed one included"


def test_a_text_without_a_pair_does_not_count():
    d = np.random.default_rng(0).normal(0.6, 1, size=12)
    gaps = np.concatenate([d, [nan, nan]])
    one, other, nothing = differences([d, d + 1, 0 * d])
    again, *_ = differences([gaps, gaps + 1, 0 * gaps])
    assert (again.mean, again.low, again.high, again.pairs) == (one.mean, one.low, one.high, 12)
    assert again.p == pytest.approx(one.p, abs=0.02)
    assert (other.pairs, nothing.p) == (12, 1.0)
    assert differences([]) == []
    (undefined,) = differences([np.full(9, nan)])
    assert (undefined.pairs, undefined.p, isnan(undefined.mean)) == (0, 1.0, True)


def test_the_order_of_texts_and_the_seed_are_all_that_chance_depends_on():
    d = np.random.default_rng(0).normal(size=(30, 3))
    assert differences(list(d.T), seed=1) == differences(list(d.T), seed=1)
    assert [x.p for x in differences(list(d.T), seed=1)] != [x.p for x in differences(list(d.T), seed=2)]


@pytest.mark.parametrize("n", [600, 30_000])
def test_many_texts_have_the_p_value_of_student(n: int):
    """Signs of 600 texts are drawn in two chunks; of 30,000 texts, their sums are drawn instead."""
    d = np.random.default_rng(3).normal(size=(n, 2)) + np.array([1.2, 2.2]) / np.sqrt(n)
    for column in d.T:
        (alone,) = differences([column])
        assert alone.p == pytest.approx(ttest_1samp(column, 0).pvalue, abs=0.02)
        both = differences([column, d[:, 0] - d[:, 1], d[:, 1] - d[:, 0]])
        assert both[0].p > alone.p
    assert both[1].p == both[2].p, "the same difference, read from its other side"


@pytest.mark.parametrize("n", [12, 40])
def test_among_many_equal_columns_one_is_significant_in_one_of_twenty(n: int):
    rng = np.random.default_rng(n)
    wrong = 0
    for _ in range(200):
        shared = rng.exponential(size=(n, 1)) * rng.normal(size=(n, 1))
        methods = shared + rng.normal(size=(n, 4)) * rng.exponential(size=(n, 1))
        d = [methods[:, a] - methods[:, b] for a, b in combinations(range(4), 2)]
        wrong += min(x.p for x in differences(d, draws=199)) <= 0.05
    assert wrong <= 16
    assert wrong >= 2, "the test never rejects"


# ------------------------------------------------------------------------------------------------------ families


def test_holm_is_that_of_the_definition():
    """Reject the smallest p at α / m, the next at α / (m − 1), and so on, up to the first that is not rejected."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        p = rng.uniform(size=rng.integers(1, 9)) ** 3
        for alpha in (0.01, 0.05, 0.2):
            rejected: set[int] = set()
            for rank, i in enumerate(np.argsort(p)):
                if p[i] > alpha / (len(p) - rank):
                    break
                rejected.add(int(i))
            assert {i for i, q in enumerate(holm(p.tolist())) if q <= alpha} == rejected
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    corrected = holm([0.01, nan, 0.04])
    assert corrected[0] == 0.02, "an undefined p-value is no comparison"
    assert isnan(corrected[1])


def test_the_multi_bootstrap_resamples_seeds_and_texts():
    rng = np.random.default_rng(1)
    d = rng.normal(1.0, 1.0, (5, 40)) + rng.normal(0, 0.5, (5, 1))
    slow = [
        np.mean([[d[s, t] for t in texts] for s in seeds])
        for _ in range(3000)
        for seeds, texts in [(rng.integers(0, 5, 5), rng.integers(0, 40, 40))]
    ]
    assert multi_bootstrap(d) == pytest.approx(np.quantile(slow, [0.025, 0.975]), abs=0.05)
    assert multi_bootstrap(d) == multi_bootstrap(d)
    assert multi_bootstrap(d, seed=1) != multi_bootstrap(d)
    seeds_alone = np.repeat(rng.normal(0, 1, (5, 1)), 40, axis=1)
    low, high = multi_bootstrap(seeds_alone)
    assert high - low > 0.5, "texts that agree do not hide that seeds differ"
