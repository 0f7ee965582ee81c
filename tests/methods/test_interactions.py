"""Interactions against literal enumeration, a model with a planted product, finite differences, and shapiq."""

import sys
from collections.abc import Callable, Generator
from functools import cache
from itertools import combinations, permutations
from math import comb, factorial

import numpy as np
import pytest
import torch
from torch import Tensor

import salience
from salience.core.erasure import replaced
from salience.core.passes import forward, resolve
from salience.core.target import Target
from salience.core.types import Batch, Model, Targets
from salience.errors import BadInput
from salience.methods.interactions import (
    INTERACTIONS,
    Pairwise,
    archipelago,
    by_token,
    integrated_hessians,
    pairwise_occlusion,
    shapley_interaction,
    shapley_taylor,
)
from salience.methods.interactions.games import (
    _of_order,
    _prefixes,
    archipelago_game,
    enumerated,
    merged,
    occluded,
    sampled,
)
from salience.methods.interactions.hessians import log_rule
from salience.methods.perturbation import unit_numbers
from shapes import build

Value = Callable[[frozenset[int]], float]


def random_game(n: int, seed: int = 0) -> Value:
    """A game whose value of every coalition is a random number."""
    values = np.random.default_rng(seed).normal(size=2**n)
    return lambda S: float(values[sum(1 << i for i in S)])


def play_alone(game: Generator[Tensor, Tensor, Pairwise], F: Value) -> Pairwise:
    """Answer the coalitions of a game from a function of sets."""
    z = next(game)
    while True:
        y = torch.tensor([F(frozenset(np.flatnonzero(row).tolist())) for row in z.numpy()], dtype=torch.float64)
        try:
            z = game.send(y)
        except StopIteration as stop:
            return stop.value


def delta(F: Value, S: frozenset[int], i: int, j: int) -> float:
    return F(S | {i, j}) - F(S | {i}) - F(S | {j}) + F(S)


def subsets(units: set[int]) -> list[frozenset[int]]:
    return [frozenset(c) for size in range(len(units) + 1) for c in combinations(sorted(units), size)]


def taylor_of(F: Value, n: int, i: int, j: int) -> float:
    """Eq. 3 of the paper, literally."""
    rest = subsets(set(range(n)) - {i, j})
    return 2 / n * sum(delta(F, S, i, j) / comb(n - 1, len(S)) for S in rest)


def interaction_of(F: Value, n: int, i: int, j: int) -> float:
    """Grabisch & Roubens: weights (n − s − 2)! s! / (n − 1)!."""
    rest = subsets(set(range(n)) - {i, j})
    return sum(factorial(n - len(S) - 2) * factorial(len(S)) / factorial(n - 1) * delta(F, S, i, j) for S in rest)


def shapley_of(F: Value, n: int, i: int) -> float:
    """Over all orders."""
    orders = list(permutations(range(n)))
    befores = [frozenset(o[: o.index(i)]) for o in orders]
    return sum(F(S | {i}) - F(S) for S in befores) / len(orders)


@pytest.mark.parametrize("n", [2, 3, 5, 6])
def test_the_exact_indices_equal_their_sums_over_all_coalitions(n: int):
    F = random_game(n, seed=n)
    taylor, shapley = (play_alone(enumerated(n, index), F) for index in ("taylor", "shapley"))
    for i, j in combinations(range(n), 2):
        assert float(taylor.matrix[i, j]) == pytest.approx(taylor_of(F, n, i, j))
        assert float(shapley.matrix[i, j]) == pytest.approx(interaction_of(F, n, i, j))
    for i in range(n):
        assert float(taylor.main[i]) == pytest.approx(F(frozenset({i})) - F(frozenset()))
        assert float(shapley.scores[i]) == pytest.approx(shapley_of(F, n, i))
    for result in (taylor, shapley):
        assert torch.equal(result.matrix, result.matrix.T)
        assert float(result.main.sum() + result.matrix.sum() / 2) == pytest.approx(
            F(frozenset(range(n))) - F(frozenset())
        )
        assert float(result.scores.sum()) == pytest.approx(F(frozenset(range(n))) - F(frozenset()))
        assert result.gaps["completeness"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("index", ["taylor", "shapley"])
def test_the_mean_over_all_orders_is_the_index(index: str):
    n, F = 4, random_game(4, seed=1)
    exact = play_alone(enumerated(n, index), F)
    samples = []
    for order in map(torch.tensor, permutations(range(n))):
        rows = _prefixes(order, removed=index == "shapley")
        y = [[F(frozenset(np.flatnonzero(z).tolist())) for z in row] for row in rows.numpy()]
        samples.append(_of_order(order, torch.tensor(y, dtype=torch.float64), index))
    assert torch.allclose(torch.stack([M for M, _ in samples]).mean(0), exact.matrix)
    if index == "shapley":
        assert torch.allclose(torch.stack([gain for _, gain in samples]).mean(0), exact.scores)


@pytest.mark.parametrize("index", ["taylor", "shapley"])
def test_random_orders_keep_the_sum_and_estimate_their_error(index: str):
    n, F = 4, random_game(4, seed=2)
    exact, covered = play_alone(enumerated(n, index), F).matrix, []
    for seed in range(25):
        result = play_alone(sampled(n, index, 12, torch.Generator().manual_seed(seed)), F)
        covered.append(bool((result.matrix - exact).abs()[0, 1] <= result.gaps["error"]))
        assert result.gaps["completeness"] == pytest.approx(0, abs=1e-12)
        assert result.settings["orders"] == 12
    assert np.mean(covered) >= 0.9


def test_fewer_orders_than_an_error_can_be_estimated_from_are_refused():
    with pytest.raises(BadInput, match="orders of shapley_taylor takes a whole number of at least 4"):
        salience.explain_interactions(bert(), TEXT, "shapley_taylor", orders=2)


def test_random_orders_are_exact_for_a_game_of_pairs():
    """Second differences of a quadratic game are the same in every context."""
    rng = np.random.default_rng(0)
    a, c = rng.normal(size=7), np.triu(rng.normal(size=(7, 7)), 1)

    def F(S: frozenset[int]) -> float:
        z = np.array([i in S for i in range(7)], dtype=float)
        return float(a @ z + z @ c @ z)

    for result in (
        play_alone(sampled(7, "taylor", 4, torch.Generator()), F),
        play_alone(sampled(7, "shapley", 4, torch.Generator()), F),
        play_alone(enumerated(7, "shapley"), F),
        play_alone(occluded(7), F),
    ):
        assert np.allclose(result.matrix.numpy(), c + c.T)
        assert np.allclose(result.scores.numpy(), a + (c + c.T).sum(1) / 2)
    strengths = play_alone(archipelago_game(7, 3), F)
    assert np.allclose(strengths.matrix.numpy(), (c + c.T) ** 2)


def test_pairwise_occlusion_and_archipelago_equal_their_formulas():
    n, F, whole = 5, random_game(5, seed=3), frozenset(range(5))
    occlusion, strengths = play_alone(occluded(n), F), play_alone(archipelago_game(n, 2), F)
    for i, j in combinations(range(n), 2):
        inside = delta(F, whole - {i, j}, i, j)
        assert float(occlusion.matrix[i, j]) == pytest.approx(inside)
        assert float(strengths.matrix[i, j]) == pytest.approx((delta(F, frozenset(), i, j) ** 2 + inside**2) / 2)
    assert occlusion.main.tolist() == pytest.approx([F(whole) - F(whole - {i}) for i in range(n)])
    grouped = {unit for units, _ in strengths.groups for unit in units}
    for units, effect in strengths.groups:
        assert effect == pytest.approx(F(frozenset(units)) - F(frozenset()))
        assert [float(strengths.scores[u]) for u in units] == pytest.approx([effect / len(units)] * len(units))
    parts = sum(effect for _, effect in strengths.groups)
    parts += sum(F(frozenset({i})) - F(frozenset()) for i in range(n) if i not in grouped)
    assert strengths.gaps["additivity"] == pytest.approx(parts - (F(whole) - F(frozenset())))


def test_pairs_without_interaction_are_not_merged():
    strength = torch.zeros(4, 4)
    strength[1, 2] = strength[2, 1] = 1.0
    assert merged(strength, top=6) == ((1, 2),)


@pytest.mark.parametrize("index", ["taylor", "shapley"])
def test_shapiq_gives_the_same_indices(index: str):
    if sys.version_info < (3, 12):
        pytest.skip("shapiq needs Python 3.12")
    shapiq = pytest.importorskip("shapiq", reason="shapiq is not installed")
    n, F = 6, random_game(6, seed=4)
    game = shapiq.Game(n, normalize=False)
    game.value_function = lambda Z: np.array([F(frozenset(np.flatnonzero(z).tolist())) for z in Z])
    name = {"taylor": "STII", "shapley": "SII"}[index]
    theirs = shapiq.ExactComputer(n_players=n, game=game)(name, order=2)
    ours = play_alone(enumerated(n, index), F).matrix
    for pair in combinations(range(n), 2):
        assert float(ours[pair]) == pytest.approx(theirs[pair])


# ------------------------------------------------------------------------------------------------------ models


TEXT = "not a truly bad film"


@cache
def bert() -> Model:
    return build("bert", dtype=torch.float64)


def prepared(model: Model, *texts: str) -> tuple[Batch, Targets]:
    batch = model.batch(model.encode(texts))
    return batch, resolve(model, [Target()], forward(model, batch).logits)


def of_words(model: Model, text: str) -> tuple[int, Value]:
    """f of a text as a function of the words that are kept, one pass each."""
    batch, target = prepared(model, text)
    units = unit_numbers(batch, "word")

    @cache
    def F(S: frozenset[int]) -> float:
        gone = (units >= 0) & ~torch.isin(units, torch.tensor(sorted(S), dtype=torch.long))
        return float(target(forward(model, batch, embeddings=replaced(model, batch, gone, "mask")).logits))

    return int(units.max()) + 1, F


def test_the_methods_evaluate_the_model_on_coalitions_of_words():
    n, F = of_words(bert(), TEXT)
    batch, target = prepared(bert(), TEXT, "Good")
    taylor, shapley, occlusion = (
        method(bert(), batch, target)[0] for method in (shapley_taylor, shapley_interaction, pairwise_occlusion)
    )
    for i, j in combinations(range(n), 2):
        assert float(taylor.matrix[i, j]) == pytest.approx(taylor_of(F, n, i, j), abs=1e-5)
        assert float(shapley.matrix[i, j]) == pytest.approx(interaction_of(F, n, i, j), abs=1e-5)
        whole = frozenset(range(n))
        assert float(occlusion.matrix[i, j]) == pytest.approx(delta(F, whole - {i, j}, i, j), abs=1e-5)


@pytest.mark.parametrize("method", INTERACTIONS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("shape", ["bert", "gpt2_lm", "pooled_bilstm"])
def test_a_text_has_the_same_interactions_in_company_and_alone(shape: str, method: Callable[..., list[Pairwise]]):
    model = build(shape, dtype=torch.float64)
    kept = {"orders": 4} if method in (shapley_taylor, shapley_interaction) else {}
    settings = {**kept, **({"nodes": 4} if method is integrated_hessians else {})}
    both = method(model, *prepared(model, TEXT, "Good"), **settings)
    (alone,) = method(model, *prepared(model, TEXT), **settings)
    assert torch.allclose(both[0].matrix, alone.matrix, atol=1e-5)
    assert torch.equal(alone.matrix, alone.matrix.T)
    assert not alone.matrix.diagonal().any()
    assert both[1].matrix.shape == (1, 1)
    assert model.module.training


@pytest.mark.parametrize("method", INTERACTIONS, ids=lambda m: m.__name__)
def test_the_interactions_of_a_word_are_summed_to_its_tokens(method: Callable[..., list[Pairwise]]):
    batch, target = prepared(bert(), "A splendid film", "Good")
    settings = {"nodes": 4} if method is integrated_hessians else {}
    attribution = by_token(method)(bert(), batch, target, **settings)
    results = method(bert(), batch, target, **settings)
    units = unit_numbers(batch, "word")
    for row, result in enumerate(results):
        for unit, score in enumerate(result.scores.tolist()):
            assert float(attribution.scores[row, units[row] == unit].sum()) == pytest.approx(score, abs=1e-6)
    assert by_token(method).__name__ == method.__name__


def test_interactions_summed_to_tokens_are_methods_for_explain_and_evaluate():
    [e] = salience.explain(bert(), TEXT, by_token(shapley_taylor), erase="pad", unit="token")
    assert sum(e.scores) == pytest.approx(e.value - sum_without(bert(), TEXT, "pad"), abs=1e-5)
    assert (e.method, e.settings["erase"]) == ("shapley_taylor", "pad")


def test_the_error_of_interactions_is_no_gap_of_scores():
    batch, target = prepared(bert(), TEXT, "A splendid film")
    assert "error" in shapley_taylor(bert(), batch, target, orders=4)[0].gaps
    assert list(by_token(shapley_taylor)(bert(), batch, target, orders=4).gaps) == ["completeness"]


def sum_without(model: Model, text: str, erase: str) -> float:
    batch, target = prepared(model, text)
    return float(target(forward(model, batch, embeddings=replaced(model, batch, batch.content, erase)).logits))


# ------------------------------------------------------------------------------------------------ a planted product


def test_a_planted_product_is_the_only_interaction():
    """A model whose output is linear in its tokens, but for one product."""
    n, weights = 6, torch.tensor([0.3, -1.0, 2.0, 0.5, 0.0, 1.5], dtype=torch.float64)

    def F(S: frozenset[int]) -> float:
        return float(sum(weights[i] for i in S)) + 3.0 * ({1, 4} <= S)

    for game in (
        enumerated(n, "taylor"),
        enumerated(n, "shapley"),
        occluded(n),
        sampled(n, "taylor", 4, torch.Generator()),
    ):
        matrix = play_alone(game, F).matrix
        assert float(matrix[1, 4]) == pytest.approx(3.0)
        matrix[1, 4] = matrix[4, 1] = 0.0
        assert float(matrix.abs().max()) == pytest.approx(0.0, abs=1e-12)
    assert play_alone(archipelago_game(n, 1), F).groups == (((1, 4), pytest.approx(float(weights[[1, 4]].sum()) + 3)),)


# ------------------------------------------------------------------------------------------------ integrated Hessians


def test_the_log_rule_integrates_products_of_uniform_numbers():
    """∫∫ (αβ)ᵐ dα dβ = 1 / (m + 1)²."""
    u, weights = log_rule(24)
    for power in range(5):
        assert weights @ u**power == pytest.approx(1 / (power + 1) ** 2, rel=1e-6)


def test_integrated_hessians_equal_second_differences_of_the_model():
    """Derivatives by finite differences in double precision, at the same nodes."""
    model = bert()
    batch, target = prepared(model, "a bad film")
    (result,) = integrated_hessians(model, batch, target, nodes=6, unit="token")
    start, end = replaced(model, batch, batch.content, "mask"), model.embed(batch)
    content = batch.content[0].nonzero()[:, 0].tolist()
    n, h = len(content), 1e-3

    def f(scale: np.ndarray) -> float:
        s = torch.zeros(batch.width, dtype=torch.float64)
        s[content] = torch.from_numpy(scale)
        return float(target(forward(model, batch, embeddings=start + s[None, :, None] * (end - start)).logits))

    def second(u: float, i: int, j: int) -> float:
        e = np.eye(n) * h
        x = np.full(n, u)
        corners = f(x + e[i] + e[j]) - f(x + e[i] - e[j]) - f(x - e[i] + e[j]) + f(x - e[i] - e[j])
        return corners / (4 * h * h)

    u, w = log_rule(6)
    for i, j in ((0, 1), (1, n - 1)):
        expected = 2 * sum(w * u * np.array([second(x, i, j) for x in u]))
        assert float(result.matrix[i, j]) == pytest.approx(expected, abs=2e-4)


def test_integrated_hessians_sum_to_the_rise_and_to_integrated_gradients():
    batch, target = prepared(bert(), "a bad film")
    (result,) = integrated_hessians(bert(), batch, target, nodes=64, unit="token")
    [ig] = salience.explain(bert(), "a bad film", "integrated_gradients", nodes=64)
    assert abs(result.gaps["completeness"]) < 1e-3 * float(result.scores.abs().max())
    assert result.scores.tolist() == pytest.approx(list(ig.content), abs=2e-3)


def test_archipelago_finds_words_that_belong_together():
    model = salience.load()
    batch, target = prepared(model, "The film is not bad at all.")
    (result,) = archipelago(model, batch, target, top=1)
    assert [units for units, _ in result.groups] == [(3, 4)]
