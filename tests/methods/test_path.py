"""Integrated gradients and gradient SHAP against slow loops, against captum, and against what theory promises."""

from collections.abc import Callable
from functools import cache
from typing import Any

import captum.attr
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import CubicSpline
from torch import Tensor

from salience.core import rows
from salience.core.erasure import replaced
from salience.core.passes import forward, frozen, resolve
from salience.core.randomness import generators
from salience.core.target import Target
from salience.core.types import Attribution, Batch, Model, Targets
from salience.errors import BadInput, ImpreciseScores
from salience.explanations.explainer import explain
from salience.methods import quadrature
from salience.methods.path import gradient_shap, integrated_gradients
from shapes import TEXTS, build

SHAPES = ("bert", "gpt2", "modernbert", "llama_lm", "pooled_bilstm")
RULES = {
    "gauss_legendre": "gausslegendre",
    "midpoint": "riemann_middle",
    "left": "riemann_left",
    "right": "riemann_right",
    "trapezoid": "riemann_trapezoid",
}


@cache
def model_of(shape: str, seed: int = 0) -> Model:
    return build(shape, seed)


def given_texts(model: Model, texts: tuple[str, ...] = TEXTS) -> tuple[Batch, Targets]:
    batch = model.batch(model.encode(texts))
    return batch, resolve(model, [Target()], forward(model, batch).logits)


def network(model: Model, batch: Batch) -> Callable[[Tensor], Tensor]:
    """Embeddings to logits for copies of one text, as captum calls it."""
    return lambda e: model(batch.take(torch.zeros(len(e), dtype=torch.long)), embeddings=e).logits


def gradient_at(model: Model, batch: Batch, target: Targets, e: Tensor) -> Tensor:
    with frozen(model.module), torch.enable_grad():
        leaf = e.detach().requires_grad_()
        return torch.autograd.grad(target(model(batch, embeddings=leaf).logits).sum(), leaf)[0]


def relative(results: Tensor, true: Tensor) -> float:
    return float((results - true).abs().max() / true.abs().max())


# ------------------------------------------------------------------------------------------------- fixed rules


@pytest.mark.parametrize("shape", SHAPES)
def test_a_rule_is_the_weighted_sum_of_gradients_at_its_nodes(shape: str):
    model = model_of(shape)
    batch, target = given_texts(model)
    results = integrated_gradients(model, batch, target, nodes=6, rule="midpoint", baseline="mean")
    e, b = model.embed(batch), replaced(model, batch, batch.content, "mean")
    mean = sum(gradient_at(model, batch, target, b + (k + 0.5) / 6 * (e - b)) for k in range(6)) / 6
    true = ((e - b) * mean).sum(-1) * batch.mask
    assert relative(results.scores, true) < 1e-5
    ends = target(forward(model, batch).logits) - target(forward(model, batch, embeddings=b).logits)
    assert torch.allclose(results.gaps["completeness"], true.sum(1) - ends, atol=1e-4)
    assert results.settings == {"baseline": "mean", "rule": "midpoint"}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", ["bert", "gpt2", "pooled_mlp"])
def test_equals_captum_integrated_gradients(shape: str, rule: str):
    model, nodes = model_of(shape), 7
    batch, target = given_texts(model, TEXTS[3:])
    e, b = model.embed(batch), replaced(model, batch, batch.content, "zero")
    with frozen(model.module):
        theirs = captum.attr.IntegratedGradients(network(model, batch)).attribute(
            e, b, target=int(target.labels), n_steps=nodes, method=RULES[rule]
        )
    # captum's trapezoid divides by the number of nodes, not of intervals, so that its weights sum to (n - 1) / n.
    true = theirs.sum(-1) * (nodes / (nodes - 1) if rule == "trapezoid" else 1)
    ours = integrated_gradients(model, batch, target, baseline="zero", nodes=nodes, rule=rule)
    assert relative(ours.scores, true.float()) < 1e-5


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_integrates_what_it_promises(rule: str):
    alphas, weights = quadrature.fixed(rule, 12)
    assert weights.sum() == pytest.approx(1)
    degree = {"gauss_legendre": 23, "midpoint": 1, "trapezoid": 1}.get(rule, 0)
    for power in range(degree + 1):
        assert weights @ alphas**power == pytest.approx(1 / (power + 1)), f"α^{power}"
    assert abs(weights @ alphas ** (degree + 1) - 1 / (degree + 2)) > 1e-12 or rule == "gauss_legendre"


# ------------------------------------------------------------------------------------------------- chosen nodes


@pytest.mark.parametrize("shape", SHAPES)
def test_the_typical_error_is_that_of_most_texts(shape: str):
    true, expected, scale = [], [], []
    for seed in range(2):
        model = model_of(shape, seed)
        batch, target = given_texts(model)
        results = integrated_gradients(model, batch, target, max_nodes=1000)
        exact = integrated_gradients(model, batch, target, nodes=150)
        true += (results.scores - exact.scores).abs().amax(1).tolist()
        expected += results.gaps["typical_error"].tolist()
        scale += results.scores.abs().amax(1).tolist()
    true, expected, scale = (np.array(v) for v in (true, expected, scale))
    assert (expected <= 0.01 * scale).all(), "it stopped too early"
    assert np.mean(true <= expected) >= 0.75
    assert np.mean(true <= 0.01 * scale) >= 0.8
    assert (true <= 0.03 * scale).all()


def test_completeness_holds_when_the_nodes_are_enough():
    model = model_of("bert")
    batch, target = given_texts(model)
    results = integrated_gradients(model, batch, target, tolerance=1e-4, max_nodes=2000)
    b = replaced(model, batch, batch.content, results.settings["baseline"])
    ends = target(forward(model, batch).logits) - target(forward(model, batch, embeddings=b).logits)
    assert torch.allclose(results.scores.sum(1), ends, atol=1e-3)
    assert torch.allclose(results.gaps["completeness"], results.scores.sum(1) - ends, atol=1e-4)


def test_a_tighter_tolerance_takes_more_nodes_and_misses_less():
    model = model_of("bert")
    batch, target = given_texts(model)
    exact = integrated_gradients(model, batch, target, nodes=300).scores
    results = [integrated_gradients(model, batch, target, tolerance=t, max_nodes=2000) for t in (0.01, 1e-3, 1e-4)]
    nodes = torch.stack([f.settings["nodes"] for f in results])
    assert (nodes.diff(dim=0) >= 0).all()
    assert (nodes.sum(1).diff() > 0).all()
    misses = [float((f.scores - exact).abs().max()) for f in results]
    assert misses[2] < misses[0]


def test_no_text_gets_more_nodes_than_allowed_and_its_error_is_reported():
    model = model_of("bert")
    batch, target = given_texts(model)
    free = integrated_gradients(model, batch, target, tolerance=1e-4, max_nodes=2000)
    held = integrated_gradients(model, batch, target, tolerance=1e-4, max_nodes=20)
    assert (free.settings["nodes"] > 20).all()
    assert (held.settings["nodes"] == 20).all()
    assert (held.gaps["typical_error"] > 1e-4 * held.scores.abs().amax(1)).all()


@pytest.mark.parametrize("baseline", ["mean", "pad"])
def test_a_model_whose_embeddings_require_gradients_is_explained_all_the_same(baseline: str):
    plain, prepared = build("bert"), build("bert")
    prepared.module.enable_input_require_grads()  # as for training adapters, or with gradient checkpointing
    results = [explain(m, TEXTS[0], "integrated_gradients", baseline=baseline) for m in (plain, prepared)]
    assert results[0] == results[1]


@pytest.mark.parametrize("shape", ["bert", "gpt2"])
def test_the_nodes_of_a_text_do_not_depend_on_the_other_texts_of_the_batch(shape: str):
    model = model_of(shape)
    batch, target = given_texts(model)
    together = integrated_gradients(model, batch, target)
    for row, text in enumerate(TEXTS):
        alone = integrated_gradients(model, *given_texts(model, (text,)))
        assert int(alone.settings["nodes"]) == int(together.settings["nodes"][row])
        assert torch.allclose(alone.scores[0], together.scores[row, : alone.scores.shape[1]], atol=1e-4)


def test_a_text_that_is_its_own_baseline_scores_zero():
    model = model_of("bert")
    batch, target = given_texts(model, ("[MASK] [MASK]",))
    results = integrated_gradients(model, batch, target, baseline="mask")
    assert (results.scores == 0).all()
    assert results.settings["nodes"].tolist() == [len(quadrature.FIRST)]


def test_where_embeddings_are_normalised_a_path_from_zero_takes_more_nodes():
    model = model_of("modernbert")
    batch, target = given_texts(model)
    zero, mask = (integrated_gradients(model, batch, target, baseline=b, max_nodes=500) for b in ("zero", "mask"))
    assert (zero.settings["nodes"] > mask.settings["nodes"]).all()


def test_each_explanation_records_its_own_nodes():
    results = explain(model_of("bert"), list(TEXTS), "integrated_gradients", tolerance=0.001)
    assert all(isinstance(e.settings["nodes"], int) and e.settings["nodes"] >= len(quadrature.FIRST) for e in results)
    assert all(set(e.gaps) == {"completeness", "typical_error"} for e in results)
    fixed = explain(model_of("bert"), TEXTS[0], "integrated_gradients", nodes=5)[0]
    assert (fixed.settings["nodes"], fixed.settings["rule"]) == (5, "gauss_legendre")


def half(shape: str) -> Model:
    model = build(shape)
    model.module.bfloat16()
    return model


@pytest.mark.parametrize("shape", ["bert", "gpt2"])
def test_the_nodes_of_a_model_in_half_precision_are_not_wasted_on_its_rounding(shape: str):
    model = half(shape)
    results = integrated_gradients(model, *given_texts(model), max_nodes=500)
    assert (results.settings["nodes"] <= 33).all()


def test_in_half_precision_every_node_has_its_own_place(monkeypatch: pytest.MonkeyPatch):
    """1 − 1/1024 is 1 in bfloat16, yet a tenth of the last step between far ends is not."""
    model = half("pooled_mlp")
    batch, target = given_texts(model, TEXTS[3:])
    places: list[Tensor] = []
    whole = rows.observe

    def watched(*args: Any, embeddings: Tensor, **others: Any) -> Any:
        places.append(embeddings)
        return whole(*args, embeddings=embeddings, **others)

    monkeypatch.setattr(rows, "observe", watched)
    integrated_gradients(model, batch, target, nodes=1024, rule="left", baseline="mask")
    e, b = model.embed(batch)[0].float(), replaced(model, batch, batch.content, "mask")[0].float()
    exact = torch.stack([b + k / 1024 * (e - b) for k in range(1024)]).bfloat16()
    places = [p for p in places if p is not None and len(p) > 1]
    assert all(p.dtype == torch.bfloat16 for p in places)
    assert (torch.cat(places).float() - exact.float()).abs().max() <= 2**-8 * exact.float().abs().max()
    assert not torch.equal(torch.cat(places)[-1], model.embed(batch)[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rule": "midpoint"}, "needs a number of nodes"),
        ({"rule": "trapezoid", "nodes": 1}, "too few for the trapezoid rule"),
        ({"nodes": 0}, "whole number of at least 1"),
        ({"tolerance": 0.0}, "a number above 0"),
        ({"max_nodes": 9}, "at least 11"),
        ({"rule": "simpson", "nodes": 5}, "'simpson'"),
        ({"baseline": "blank"}, "'blank'"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(BadInput, match=message):
        explain(model_of("bert"), TEXTS[0], "integrated_gradients", **settings)


# ------------------------------------------------------------------------------------------------- the spline


Function = Callable[[np.ndarray], np.ndarray]


def halved(g: Function, rounds: int, seed: int) -> quadrature.Curve:
    """A curve of g with randomly chosen intervals halved."""
    curve, random = quadrature.initial_curve(g(quadrature.FIRST), quadrature.FIRST), np.random.default_rng(seed)
    for _ in range(rounds):
        chosen = np.flatnonzero(random.random(len(curve.alphas) - 1) < 0.3)
        new = quadrature.midpoints(curve)[chosen]
        curve = quadrature.refine(curve, chosen, g(new), new)
    return curve


def settled(g: Function, f: Function, tolerance: float) -> quadrature.Curve:
    curve = quadrature.initial_curve(g(quadrature.FIRST), f(quadrature.FIRST))
    while len(chosen := quadrature.intervals_to_halve(curve, tolerance, 500)):
        new = quadrature.midpoints(curve)[chosen]
        curve = quadrature.refine(curve, chosen, g(new), f(new))
    return curve


def waves(seed: int) -> tuple[Function, Function]:
    """Three smooth columns, and what they climb."""
    rate, phase = np.random.default_rng(seed).uniform(1, 9, (2, 3))
    return (
        lambda a: np.sin(rate * a[:, None] + phase),
        lambda a: -(np.cos(rate * a[:, None] + phase) / rate).sum(1),
    )


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(0, 4))
def test_the_spline_is_scipys(seed: int, rounds: int):
    curve = halved(waves(seed)[0], rounds, seed)
    scipys = CubicSpline(curve.alphas, curve.slopes)
    assert np.allclose(curve.integral, scipys.integrate(0, 1), atol=1e-9)
    assert np.allclose(quadrature.spline_at_midpoints(curve), scipys(quadrature.midpoints(curve)), atol=1e-9)
    assert np.allclose(quadrature.curvatures(curve.alphas, curve.slopes), scipys(curve.alphas, 2), atol=1e-6)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.floats(0.05, 0.95), st.floats(10, 200))
def test_a_peak_is_found_however_narrow(seed: int, place: float, steepness: float):
    """A column that climbs by 1 in one place, possibly between two of the first nodes, and smooth columns."""
    calm, climbed = waves(seed)

    def g(a: np.ndarray) -> np.ndarray:
        return np.c_[steepness / 2 / np.cosh(np.clip(steepness * (a - place), -300, 300)) ** 2, calm(a)]

    def f(a: np.ndarray) -> np.ndarray:
        return np.tanh(steepness * (a - place)) / 2 + climbed(a)

    curve = settled(g, f, 0.01)
    true = np.r_[f(np.ones(1)) - f(np.zeros(1)) - calm_climb(climbed), calm((np.arange(4000) + 0.5) / 4000).mean(0)]
    assert np.abs(curve.integral - true).max() <= 2 * max(curve.error, 1e-4)
    assert curve.error <= 0.01 * np.abs(curve.integral).max()
    assert len(curve.alphas) < 90


def calm_climb(climbed: Function) -> np.ndarray:
    return climbed(np.ones(1)) - climbed(np.zeros(1))


def test_a_peak_between_the_nodes_is_detected_by_the_difference_of_f():
    """Slopes that are 0 at every node say nothing of a jump; f does, and on which interval."""
    jump = quadrature.initial_curve(np.zeros((len(quadrature.FIRST), 1)), (quadrature.FIRST > 0.4).astype(float))
    assert quadrature.intervals_to_halve(jump, 0.01, 500).tolist() == [4]
    flat = quadrature.initial_curve(np.zeros((len(quadrature.FIRST), 1)), np.zeros(len(quadrature.FIRST)))
    assert quadrature.intervals_to_halve(flat, 0.01, 500).tolist() == []


@pytest.mark.parametrize(("columns", "share"), [(1, 1.0), (9, 1.0), (36, 0.5), (900, 0.1)])
def test_of_many_columns_the_worst_has_three_times_the_usual_share(columns: int, share: float):
    """Columns that are 0 everywhere, such as padding, are not counted."""
    slopes = np.zeros((11, columns + 5))
    slopes[:, :columns] = 1 / columns
    jump = quadrature.initial_curve(slopes, np.linspace(0, 1, 11) + (np.linspace(0, 1, 11) > 0.45))
    assert np.allclose(jump.missing(), [0, 0, 0, 0, share, 0, 0, 0, 0, 0], atol=1e-12)


def test_intervals_with_at_least_half_the_error_of_the_worst_are_halved_together():
    missing = np.array([0, 0.9, 0, 0.4, 0.6, 0, 0.46, 0, 0.44, 0])
    curve = quadrature.initial_curve(np.zeros((11, 1)), np.r_[0, missing.cumsum()])
    assert quadrature.intervals_to_halve(curve, 0.01, 500).tolist() == [1, 4, 6]
    assert quadrature.intervals_to_halve(curve, 0.01, 13).tolist() == [1, 4], "the worst first if not all fit"
    assert quadrature.intervals_to_halve(curve, 0.01, 11).tolist() == []


def test_an_error_of_four_roundings_is_accepted():
    """Numbers of about 100 with a relative rounding error of 0.001 are 0.1 apart."""
    for height, accepted in ((0.39, True), (0.41, False)):
        rough = quadrature.initial_curve(np.zeros((11, 1)), 100 + np.r_[0, height, np.zeros(9)] / np.sqrt(2))
        assert (len(quadrature.intervals_to_halve(rough, 0.01, 500, digits=0.001)) == 0) is accepted


def test_the_first_estimate_is_twice_as_careful_as_later_ones():
    """The spline through every other one of the first nodes is too coarse to converge at its full rate."""
    g, f = waves(0)
    first, coarse = quadrature.FIRST, CubicSpline(quadrature.FIRST[::2], g(quadrature.FIRST[::2]))
    curve, differences = quadrature.initial_curve(g(first), f(first)), np.abs(g(first[1::2]) - coarse(first[1::2]))
    assert np.allclose(curve.errors[::2], 0.2 * differences / 24, atol=1e-12)
    assert np.allclose(curve.errors[1::2], curve.errors[::2])
    later, new = np.arange(len(first) - 1), quadrature.midpoints(curve)
    differences = np.abs(g(new) - CubicSpline(first, g(first))(new))
    assert np.allclose(quadrature.refine(curve, later, g(new), f(new)).errors[::2], 0.1 * differences / 48, atol=1e-12)


# ------------------------------------------------------------------------------------------------- gradient SHAP


def shap(model: Model, batch: Batch, target: Targets, samples: int, noise: float, seed: int) -> Tensor:
    """One text, one sample after another, with the numbers its own generator draws."""
    e, n = model.embed(batch), batch.width
    spread = noise * (e.max() - e.min())
    source = generators(batch, seed)[0]
    total = torch.zeros_like(e)
    for _ in range(samples):
        u = torch.rand((), generator=source)
        words = torch.randint(model.words.num_embeddings, (n,), generator=source)
        noisy = e + spread * torch.randn(n, e.shape[-1], generator=source)
        b = torch.where(batch.content[..., None], model.words.weight[words].detach(), e)
        total += (noisy - b) * gradient_at(model, batch, target, u * noisy + (1 - u) * b)
    return total.sum(-1) / samples


@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_shap_is_its_expectation_written_out(shape: str):
    model = model_of(shape)
    batch, target = given_texts(model, TEXTS[3:])
    results = gradient_shap(model, batch, target, samples=4, noise=0.1, seed=3)
    assert relative(results.scores, shap(model, batch, target, 4, 0.1, 3)) < 3e-5


@pytest.mark.parametrize("shape", ["bert", "pooled_mlp"])
def test_captums_gradient_shap_agrees_on_the_same_draws(shape: str, monkeypatch: pytest.MonkeyPatch):
    model, samples = model_of(shape), 5
    batch, target = given_texts(model, TEXTS[3:])
    e, b = model.embed(batch), replaced(model, batch, batch.content, "mask")
    drawn, source = [], generators(batch, 0)[0]
    for _ in range(samples):
        drawn.append(float(torch.rand((), generator=source)))
        torch.randint(model.words.num_embeddings, (batch.width,), generator=source)
    monkeypatch.setattr(np.random, "uniform", lambda *_: np.array(drawn))
    with frozen(model.module):
        theirs = captum.attr.GradientShap(network(model, batch)).attribute(
            e, b, n_samples=samples, stdevs=0.0, target=int(target.labels)
        )
    ours = gradient_shap(model, batch, target, baseline="mask", samples=samples)
    assert relative(ours.scores, theirs.sum(-1)) < 1e-5


def test_gradient_shap_goes_to_integrated_gradients_as_samples_grow():
    model = model_of("pooled_mlp")
    batch, target = given_texts(model)
    exact = integrated_gradients(model, batch, target, baseline="zero").scores
    few, many = (gradient_shap(model, batch, target, baseline="zero", samples=n) for n in (10, 1000))
    assert relative(many.scores, exact) < 0.05
    assert relative(many.scores, exact) < relative(few.scores, exact)
    assert many.gaps["completeness"].abs().max() < 0.05 * exact.abs().sum(1).max()


def test_gradient_shap_reports_its_completeness_gap():
    model = model_of("bert")
    batch, target = given_texts(model, TEXTS[:1])
    results = gradient_shap(model, batch, target, samples=3, seed=1)
    source, low = generators(batch, 1)[0], []
    for _ in range(3):
        torch.rand((), generator=source)
        words = torch.randint(model.words.num_embeddings, (batch.width,), generator=source)
        b = torch.where(batch.content[..., None], model.words.weight[words].detach(), model.embed(batch))
        low.append(target(forward(model, batch, embeddings=b).logits))
    gap = results.scores.sum(1) - (target(forward(model, batch).logits) - torch.stack(low).mean(0))
    assert torch.allclose(results.gaps["completeness"], gap, atol=1e-5)


def test_seeds_differ_and_special_tokens_score_zero():
    model = model_of("bert")
    batch, target = given_texts(model)
    one, two = (gradient_shap(model, batch, target, samples=3, seed=s).scores for s in (0, 1))
    assert not torch.allclose(one, two)
    assert (one[batch.special] == 0).all()


def test_a_fixed_baseline_is_computed_once():
    model = build("bert")
    batch, target = given_texts(model)
    expected = gradient_shap(model, batch, target, baseline="mean", samples=6).scores
    gathered: list[bool] = []
    model.words.register_forward_hook(lambda _, ids, __: gathered.append(len(ids[0]) == model.words.num_embeddings))
    model.executor.budget = batch.width
    assert relative(gradient_shap(model, batch, target, baseline="mean", samples=6).scores, expected) < 1e-5
    assert sum(gathered) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"samples": 0}, "at least 1"), ({"baseline": "vocab"}, "'vocab'")],
)
def test_gradient_shap_refuses_invalid_settings(settings: dict[str, Any], message: str):
    with pytest.raises(BadInput, match=message):
        explain(model_of("bert"), TEXTS[0], "gradient_shap", **settings)


# ------------------------------------------------------------------------------------------------- completeness


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.sampled_from(["zero", "mask", "mean", "pad", "unk"]))
def test_scores_sum_to_what_the_path_climbs(seed: int, baseline: str):
    model = build("pooled_mlp", seed % 50)
    batch, target = given_texts(model, tuple(np.random.default_rng(seed).permutation(TEXTS)[:2]))
    results: Attribution = integrated_gradients(model, batch, target, baseline=baseline, tolerance=1e-3)
    b = replaced(model, batch, batch.content, baseline)
    ends = target(forward(model, batch).logits) - target(forward(model, batch, embeddings=b).logits)
    assert torch.allclose(results.scores.sum(1), ends, atol=2e-2 * float(results.scores.abs().max()) + 1e-4)


def test_an_integral_that_does_not_converge_is_a_warning():
    """At 0, the norm of a decoder makes the slope steep."""
    message = r"did not converge for 1 of 1 texts: with 129 nodes.*Use lrp or occlusion"
    with pytest.warns(ImpreciseScores, match=message):
        explain(build("llama_lm"), TEXTS[:1], "integrated_gradients", baseline="zero")
