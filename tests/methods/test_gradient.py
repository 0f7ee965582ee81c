"""Gradient methods against autograd on one text at a time, against captum, and on a model whose answer is known."""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any, get_args

import captum.attr
import pytest
import torch
from torch import Tensor

from salience.core.passes import forward, frozen, resolve
from salience.core.randomness import generators
from salience.core.target import Target
from salience.core.types import Batch, Model, Targets
from salience.errors import BadInput, ImpreciseScores, UnsupportedModel
from salience.explanations.explainer import explain
from salience.methods.gradient import Reduction, gradient, input_x_gradient, reduced, smooth_grad
from shapes import SHAPES, TEXTS, build

TEXT = TEXTS[3]
REDUCTIONS: dict[str, Callable[[list[float]], float]] = {
    "l2": lambda g: sum(x * x for x in g) ** 0.5,
    "l1": lambda g: sum(abs(x) for x in g),
    "linf": lambda g: max(abs(x) for x in g),
    "sum": sum,
    "mean_abs": lambda g: sum(abs(x) for x in g) / len(g),
    "squared": lambda g: sum(x * x for x in g),
}


@cache
def model_of(shape: str) -> Model:
    return build(shape, dtype=torch.float64)


def one(model: Model, text: str = TEXT, target: Target = Target()) -> tuple[Batch, Targets]:  # noqa: B008
    batch = model.batch(model.encode([text]))
    return batch, resolve(model, [target], forward(model, batch).logits)


def derivative(model: Model, batch: Batch, target: Targets, e: Tensor) -> Tensor:
    with frozen(model.module), torch.enable_grad():
        leaf = e.detach().requires_grad_()
        return torch.autograd.grad(target(model(batch, embeddings=leaf).logits).sum(), leaf)[0]


def network(model: Model, batch: Batch) -> Callable[[Tensor], Tensor]:
    return lambda e: model(batch.take(torch.zeros(len(e), dtype=torch.long)), embeddings=e).logits


def close(results: Tensor, true: Tensor, tolerance: float = 1e-5) -> bool:
    return bool((results - true).abs().max() <= tolerance * true.abs().max())


@pytest.mark.parametrize("shape", SHAPES)
def test_the_derivative_is_the_limit_of_differences(shape: str):
    """(f(e + hv) − f(e − hv)) / 2h along a random direction of one token, against its gradient."""
    model = model_of(shape)
    batch, target = one(model)
    e = model.embed(batch)
    direction = torch.zeros_like(e)
    direction[0, 2] = torch.randn(e.shape[-1])
    h = 1e-3
    up, down = (target(forward(model, batch, embeddings=e + s * h * direction).logits) for s in (1, -1))
    slope = (derivative(model, batch, target, e) * direction).sum()
    scale = derivative(model, batch, target, e)[0, 2].norm() * direction.norm()
    assert float((slope - (up - down)[0] / (2 * h)).abs()) < 0.02 * float(scale) + 1e-3


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_gradient_is_reduced_by_its_named_norm(reduction: str):
    model = model_of("pooled_bilstm")  # LayerNorm would make the sums vanish
    batch, target = one(model)
    vectors = derivative(model, batch, target, model.embed(batch))[0].tolist()
    true = torch.tensor([[REDUCTIONS[reduction](v) for v in vectors]])
    assert close(gradient(model, batch, target, reduction=reduction).scores, true)


@pytest.mark.parametrize("method", [gradient, partial(smooth_grad, samples=2)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", ["bert", "gpt2", "gpt2_lm", "llama", "pooled_mlp"])
def test_a_sum_that_layer_norm_makes_zero_is_refused(shape: str, dtype: torch.dtype, method: Any):
    model = build(shape, dtype=dtype)
    batch, target = one(model)
    if shape in ("llama", "pooled_mlp"):
        assert method(model, batch, target, reduction="sum").scores.abs().max() > 0
    else:
        with pytest.raises(UnsupportedModel, match=r"LayerNorm.*reduction, such as 'l2'"):
            method(model, batch, target, reduction="sum")


def test_gradients_that_are_0_are_not_taken_for_sums_that_cancel():
    assert torch.equal(reduced(torch.zeros(1, 3, 4), "sum"), torch.zeros(1, 3))


@pytest.mark.parametrize("reduction", get_args(Reduction))
def test_only_the_sum_of_a_gradient_has_a_sign(reduction: str):
    model = model_of("pooled_bilstm")
    batch, target = one(model)
    assert gradient(model, batch, target, reduction=reduction).signed == (reduction == "sum")
    assert smooth_grad(model, batch, target, reduction=reduction, samples=2).signed == (reduction == "sum")


def test_products_that_nearly_cancel_are_summed_in_the_models_own_precision():
    model = build("modernbert", dtype=torch.float64)
    batch, target = one(model)
    e = model.embed(batch)
    true = [math.fsum((g * x).tolist()) for g, x in zip(derivative(model, batch, target, e)[0], e[0], strict=True)]
    scores = input_x_gradient(model, batch, target).scores[0]
    assert (scores - torch.tensor(true, dtype=torch.float64)).abs().max() <= 1e-9 * max(map(abs, true))


def test_scores_that_are_rounding_errors_say_so():
    model = build("modernbert", dtype=torch.bfloat16)
    with pytest.warns(ImpreciseScores, match=r"rounding errors.*dtype='float32'"):
        input_x_gradient(model, *one(model))
    for shape, dtype in (("modernbert", torch.float32), ("bert", torch.bfloat16), ("llama", torch.bfloat16)):
        model = build(shape, dtype=dtype)
        assert input_x_gradient(model, *one(model)).scores.any()


@pytest.mark.parametrize("shape", ["bert", "gpt2", "deberta_v2", "pooled_bilstm"])
def test_captums_saliency_and_input_x_gradient_agree(shape: str):
    model = model_of(shape)
    batch, target = one(model)
    e, label = model.embed(batch), int(target.labels)
    with frozen(model.module):
        saliency = captum.attr.Saliency(network(model, batch)).attribute(e.requires_grad_(), label)
        product = captum.attr.InputXGradient(network(model, batch)).attribute(e, label)
    assert close(gradient(model, batch, target, reduction="l1").scores, saliency.sum(-1))
    assert close(input_x_gradient(model, batch, target).scores, product.detach().sum(-1), 3e-5)


@pytest.mark.parametrize("kind", ["logit", "probability", "log_probability"])
def test_the_gradient_is_that_of_the_target(kind: str):
    model = model_of("bert")
    batch, target = one(model, target=Target(2, 0, kind))
    e = model.embed(batch)
    with frozen(model.module), torch.enable_grad():
        leaf = e.detach().requires_grad_()
        z = model(batch, embeddings=leaf).logits[0]
        values = {"logit": z, "probability": z.exp() / z.exp().sum(), "log_probability": z - z.exp().sum().log()}[kind]
        true = torch.autograd.grad(values[2] - values[0], leaf)[0].norm(dim=-1)
    assert close(gradient(model, batch, target).scores, true)


def test_a_linear_models_terms_are_its_input_x_gradient():
    """With even attention the averaging classifier is linear: token t adds u · e_t / T to the logit."""
    model = build("pooled_embedding")
    for part in (model.module.key, model.module.query):
        for p in part.parameters():
            torch.nn.init.zeros_(p)
    batch, target = one(model)
    u = model.module.classifier.weight.detach()[int(target.labels)]
    assert close(input_x_gradient(model, batch, target).scores, model.embed(batch) @ u / batch.width)
    assert close(gradient(model, batch, target).scores, (u.norm() / batch.width).expand(1, batch.width))


def test_where_embeddings_are_normalised_input_x_gradient_vanishes():
    """LayerNorm straight after the embeddings makes f constant along each of them (Euler's theorem)."""
    model = model_of("modernbert")
    batch, target = one(model)
    e = model.embed(batch)
    sizes = gradient(model, batch, target).scores * e.norm(dim=-1)
    # ModernBERT's normalisation subtracts the mean too, and its epsilon is felt at these small embeddings.
    assert float(input_x_gradient(model, batch, target).scores.abs().max()) < 0.02 * float(sizes.max())


@pytest.mark.parametrize("shape", ["bert", "llama_lm", "pooled_bilstm"])
def test_smooth_grad_is_the_mean_of_noisy_gradients(shape: str):
    model = model_of(shape)
    batch, target = one(model)
    e, n = model.embed(batch), batch.width
    source, spread = generators(batch, 5)[0], 0.2 * (e.max() - e.min())
    noisy = [e + spread * torch.randn(n, e.shape[-1], generator=source) for _ in range(4)]
    mean = sum(derivative(model, batch, target, x) for x in noisy) / 4
    results = smooth_grad(model, batch, target, samples=4, noise=0.2, seed=5).scores
    assert close(results, mean.norm(dim=-1), 3e-5)


def test_captums_noise_tunnel_agrees_on_the_same_noise(monkeypatch: pytest.MonkeyPatch):
    model, samples = model_of("bert"), 4
    batch, target = one(model)
    e, source = model.embed(batch), generators(batch, 0)[0]
    drawn = torch.stack([torch.randn(batch.width, e.shape[-1], generator=source) for _ in range(samples)])
    monkeypatch.setattr(torch, "normal", lambda _, deviation: drawn * deviation)
    with frozen(model.module):
        tunnel = captum.attr.NoiseTunnel(captum.attr.Saliency(network(model, batch)))
        theirs = tunnel.attribute(
            e, nt_samples=samples, stdevs=float(0.15 * (e.max() - e.min())), target=int(target.labels), abs=False
        )
    assert close(smooth_grad(model, batch, target, samples=samples, reduction="l2").scores, theirs.norm(dim=-1), 3e-5)


def test_without_noise_smooth_grad_is_the_gradient():
    model = model_of("bert")
    batch, target = one(model)
    assert close(smooth_grad(model, batch, target, samples=2, noise=0.0).scores, gradient(model, batch, target).scores)


def test_more_samples_agree_better_across_seeds():
    model = model_of("pooled_mlp")
    batch, target = one(model)

    def apart(samples: int) -> float:
        a, b = (smooth_grad(model, batch, target, samples=samples, seed=s).scores for s in (0, 1))
        return float((a - b).abs().max())

    assert apart(200) < apart(2)


def test_an_unknown_reduction_is_refused():
    with pytest.raises(BadInput, match="'l3'"):
        explain(model_of("bert"), TEXT, "gradient", reduction="l3")


def test_no_samples_are_refused():
    with pytest.raises(BadInput, match="samples of smooth_grad takes a whole number of at least 1"):
        explain(model_of("bert"), TEXT, "smooth_grad", samples=0)
