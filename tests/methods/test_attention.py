"""Attention methods against slow, literal versions of their papers' formulas."""

from functools import cache
from time import process_time
from weakref import ReferenceType, ref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor

import salience
from salience.core.passes import OnePass, forward, frozen, resolve
from salience.core.target import Target
from salience.core.types import Attribution, Batch, Model, Site, Targets
from salience.errors import BadInput, UnsupportedModel
from salience.methods.attention import (
    _maximum_flows,
    attention,
    attention_flow,
    attention_relevance,
    attention_rollout,
    attention_x_gradient,
    value_zeroing,
)
from shapes import POOLED, SHAPES, TEXTS, build

SQUARE = [s for s in SHAPES if s not in POOLED]
TEXT = TEXTS[3]


@cache
def model_of(shape: str) -> Model:
    return build(shape)


def one(model: Model, text: str = TEXT) -> tuple[Batch, Targets]:
    batch = model.batch(model.encode([text]))
    return batch, resolve(model, [Target()], forward(model, batch).logits)


def scores(result: Tensor | Attribution) -> Tensor:
    return (result.scores if isinstance(result, Attribution) else result)[0]


def weights_and_gradients(model: Model) -> tuple[list[Tensor], list[Tensor]]:
    """By autograd on the model itself, one layer at a time."""
    batch, target = one(model)
    with frozen(model.module), torch.enable_grad():
        output = model(batch, embeddings=model.embed(batch).requires_grad_(), attention="differentiable")
        f = target(output.logits)[0]
        gradients = [torch.autograd.grad(f, a, retain_graph=True, allow_unused=True)[0] for a in output.attention]
    assert all(g is not None for g in gradients), "a layer's weights are not in the graph"
    return [a.detach()[0] for a in output.attention], [g[0] for g in gradients]


def felt(model: Model, batch: Batch) -> Tensor:
    """The share of each position of the last layer in what the logits feel: ‖∂ logits / ∂ h_L‖ by position."""
    with frozen(model.module), torch.enable_grad():
        output = model(batch, embeddings=model.embed(batch).requires_grad_(), hidden=True)
        mixed = output.logits @ torch.randn(output.logits.shape[1], generator=torch.Generator().manual_seed(0))
        strength = torch.autograd.grad(mixed.sum(), output.hidden[-1])[0].norm(dim=-1)
    return strength / strength.sum(1, keepdim=True)


def read_row(model: Model, rows: Tensor, text: str = TEXT) -> Tensor:
    """The row of the position that the classifier reads."""
    return felt(model, one(model, text)[0])[0].to(rows) @ rows


def close(a: Tensor, b: Tensor, tolerance: float = 1e-5) -> bool:
    return bool((a.double() - b.double()).abs().max() <= tolerance * b.abs().max())


@pytest.mark.parametrize("shape", SQUARE)
def test_the_classifier_reads_the_positions_that_its_logits_depend_on(shape: str):
    model = model_of(shape)
    batch = model.batch(model.encode(TEXTS))
    assert torch.equal(model.read_from(batch), felt(model, batch))


@pytest.mark.parametrize("shape", SQUARE)
def test_attention_is_the_mean_row_of_the_last_layer(shape: str):
    model = model_of(shape)
    batch, target = one(model)
    a = forward(model, batch, attention="read").attention[-1][0]
    got = scores(attention(model, batch, target))
    assert close(got, sum(read_row(model, a[h]) for h in range(len(a))) / len(a))
    assert got.sum().item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("shape", POOLED)
def test_attention_of_a_pooled_model_is_its_one_query(shape: str):
    model = model_of(shape)
    batch, target = one(model)
    a = forward(model, batch, attention="read").attention[0][0, 0, 0]
    for row in ("auto", "cls", "mean"):
        assert torch.equal(scores(attention(model, batch, target, row=row)), a)


def test_settings_of_attention_choose_layer_heads_and_row():
    model = model_of("bert")
    batch, target = one(model)
    a = [w[0] for w in forward(model, batch, attention="read").attention]
    cases = [
        ({"layer": 1}, a[0].mean(0)[0]),
        ({"layer": -2}, a[1].mean(0)[0]),
        ({"heads": "max"}, a[2].amax(0)[0]),
        ({"heads": [1, 4]}, (a[2][0, 0] + a[2][3, 0]) / 2),
        ({"row": "last"}, a[2].mean(0)[-1]),
        ({"row": "mean"}, a[2].mean(0).mean(0)),
    ]
    for given_settings, expected in cases:
        assert close(scores(attention(model, batch, target, **given_settings)), expected), given_settings


def test_mean_pooling_reads_the_mean_row():
    model = build("modernbert")
    model.module.config.classifier_pooling = "mean"
    batch, target = one(model)
    a = forward(model, batch, attention="read").attention[-1][0]
    assert close(scores(attention(model, batch, target)), a.mean(0).mean(0))


def test_all_layers_are_numbered_from_one():
    model = model_of("bert")
    results = salience.explain(model, TEXT, "attention", layer="all")
    assert [e.settings["layer"] for e in results] == [1, 2, 3]
    assert results[-1].scores == salience.explain(model, TEXT, "attention")[0].scores


@pytest.mark.parametrize(
    ("given_settings", "says"),
    [
        ({"layer": 4}, "no layer 4: tiny-bert has layers 1 to 3"),
        ({"layer": 0}, "no layer 0"),
        ({"heads": [5]}, "heads are numbered 1 to 4"),
        ({"heads": "sum"}, "Known: mean, max"),
        ({"row": "first"}, "Known: auto, cls, last, mean"),
    ],
)
def test_invalid_settings_list_the_valid_ones(given_settings: dict[str, object], says: str):
    model = model_of("bert")
    with pytest.raises(BadInput, match=says):
        salience.explain(model, TEXT, "attention", **given_settings)


def slow_steps(a: list[Tensor]) -> list[list[list[float]]]:
    """½ mean_h A + ½ I by loops, in Python's own numbers."""
    n = a[0].shape[-1]
    results = []
    for layer in a:
        mean = layer.double().mean(0).tolist()
        mixed = [[0.5 * mean[i][j] + 0.5 * (i == j) for j in range(n)] for i in range(n)]
        results.append([[x / sum(row) for x in row] for row in mixed])
    return results


@pytest.mark.parametrize("shape", SQUARE)
def test_rollout_is_the_sum_over_all_paths(shape: str):
    model = model_of(shape)
    batch, target = one(model)
    steps = slow_steps([a[0] for a in forward(model, batch, attention="read").attention])
    n = len(steps[0])
    below = [[float(i == j) for j in range(n)] for i in range(n)]
    for step in steps:
        below = [[sum(step[i][k] * below[k][j] for k in range(n)) for j in range(n)] for i in range(n)]
    got = scores(attention_rollout(model, batch, target))
    assert close(got, read_row(model, torch.tensor(below)))
    assert got.sum().item() == pytest.approx(1, abs=1e-5)


def linear_programme(steps: np.ndarray, r: np.ndarray, token: int) -> float:
    """The largest flow from the read-out to a token, as a linear programme over the edges."""
    layers, n, _ = steps.shape
    edges = [("out", (layers, i), r[i]) for i in range(n)]
    edges += [
        ((l + 1, i), (l, j), steps[l, i, j])
        for l in range(layers)  # noqa: E741
        for i in range(n)
        for j in range(n)
    ]
    inner = [(l, i) for l in range(layers + 1) for i in range(n) if (l, i) != (0, token)]  # noqa: E741
    balance = np.array([[(b == node) - float(a == node) for a, b, _ in edges] for node in inner])
    gain = [-float(b == (0, token)) for _, b, _ in edges]
    results = linprog(gain, A_eq=balance, b_eq=np.zeros(len(inner)), bounds=[(0, c) for *_, c in edges])
    return -results.fun


@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_flow_is_the_optimum_of_a_linear_programme(n: int, layers: int, seed: int):
    source = np.random.default_rng(seed)
    steps = source.dirichlet(np.full(n, 0.5), (layers, n))
    r = source.dirichlet(np.ones(n))
    expected = [linear_programme(steps, r, token) for token in range(n)]
    np.testing.assert_allclose(_maximum_flows(steps, r), expected, atol=1e-7)


@pytest.mark.parametrize("shape", ["bert", "gpt2", "deberta_v2"])
def test_flow_of_a_model(shape: str):
    model = model_of(shape)
    batch, target = one(model, "A fine film.")
    steps = np.array(slow_steps([a[0] for a in forward(model, batch, attention="read").attention]))
    r = read_row(model, torch.eye(len(steps[0])), "A fine film.").numpy()
    expected = torch.tensor([linear_programme(steps, r, token) for token in range(len(r))])
    assert close(scores(attention_flow(model, batch, target)), expected, 1e-6)


def test_flow_is_quick_for_50_tokens_and_6_layers():
    steps = np.random.default_rng(0).dirichlet(np.full(50, 0.3), (6, 50))
    start = process_time()
    _maximum_flows(steps, np.eye(50)[0])
    assert process_time() - start < 2  # measured: 0.04 seconds


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sign", ["signed", "positive"])
def test_attention_x_gradient_by_loops(shape: str, sign: str):
    model = model_of(shape)
    a, g = weights_and_gradients(model)
    for layer in range(model.layers):
        effect = (a[layer] * g[layer]).double()
        expected = [
            sum(max(x, 0) if sign == "positive" else x for x in effect[:, :, i].flatten().tolist())
            for i in range(effect.shape[-1])
        ]
        got = scores(attention_x_gradient(model, *one(model), layer=layer + 1, sign=sign))
        assert close(got, torch.tensor(expected, dtype=torch.float64), 1e-4)


def test_the_last_layer_depends_only_on_the_row_that_is_read():
    """So the sum over queries is, by default, the classifier's own row."""
    model = model_of("bert")
    _, g = weights_and_gradients(model)
    assert g[-1][:, 0].abs().max() > 0
    assert g[-1][:, 1:].abs().max() == 0


@pytest.mark.parametrize("shape", SQUARE)
def test_attention_relevance_by_loops(shape: str):
    model = model_of(shape)
    R = np.eye(one(model)[0].width)
    for a, g in zip(*weights_and_gradients(model), strict=True):
        effect = (a * g).tolist()
        n = range(len(R))
        R = R + np.array([[np.mean([max(0.0, head[i][j]) for head in effect]) for j in n] for i in n]) @ R
    got = scores(attention_relevance(model, *one(model)))
    assert close(got, read_row(model, torch.tensor(R)))


def zeroed_by_whole_passes(model: Model, batch: Batch, layer: int) -> Tensor:
    """C of one layer from full forward passes, each with one column of that layer's attention set to 0."""

    def without(j: int):
        def edit(site: Site, a: Tensor) -> Tensor:
            if site.layer != layer + 1:
                return a
            a = a.clone()
            a[..., j] = 0
            return a

        return forward(model, batch, edit_attention=edit, hidden=True).hidden[layer + 1][0].double()

    whole = forward(model, batch, hidden=True).hidden[layer + 1][0].double()
    columns = [1 - torch.cosine_similarity(whole, without(j), dim=-1) for j in range(batch.width)]
    C = torch.stack(columns, 1)
    return C / C.sum(1, keepdim=True)


@pytest.mark.parametrize("shape", [s for s in SQUARE if s != "deberta_v2"])
def test_value_zeroing_equals_whole_passes_with_one_layer_edited(shape: str):
    model = model_of(shape)
    batch, target = one(model, "Not bad at all")
    C = [zeroed_by_whole_passes(model, batch, layer) for layer in range(model.layers)]
    for layer in range(model.layers):
        got = scores(value_zeroing(model, batch, target, layer=layer + 1))
        assert close(got, read_row(model, C[layer], "Not bad at all"), 1e-4)
    got = scores(value_zeroing(model, batch, target))
    assert close(got, read_row(model, C[2] @ C[1] @ C[0], "Not bad at all"), 1e-4)
    assert got.sum().item() == pytest.approx(1, abs=1e-5)


def test_zeroing_a_column_of_weights_is_zeroing_a_value_vector():
    model = model_of("bert")
    batch, target = one(model, "Not bad at all")
    C = torch.zeros(batch.width, batch.width, dtype=torch.float64)
    whole = forward(model, batch, hidden=True).hidden[1][0].double()
    value = model.module.bert.encoder.layer[0].attention.self.value
    for j in range(batch.width):
        keep = torch.ones(batch.width, 1)
        keep[j] = 0
        handle = value.register_forward_hook(lambda _, __, v, keep=keep: v * keep)
        C[:, j] = 1 - torch.cosine_similarity(whole, forward(model, batch, hidden=True).hidden[1][0].double(), dim=-1)
        handle.remove()
    expected = (C / C.sum(1, keepdim=True))[0]
    assert close(scores(value_zeroing(model, batch, target, layer=1)), expected, 1e-4)


def test_value_zeroing_runs_every_block_once_per_token_and_twice_more():
    model = model_of("bert")
    batch, target = one(model)
    value_zeroing(model, batch, target)  # the first time, trial passes are added
    calls: list[int] = []
    handles = [b.register_forward_hook(lambda *_: calls.append(1)) for b in model.module.bert.encoder.layer]
    value_zeroing(model, batch, target)
    for handle in handles:
        handle.remove()
    assert len(calls) == model.layers * (batch.width + 2)


def test_a_method_called_by_itself_reads_one_layer():
    model = model_of("bert")
    with pytest.raises(BadInput, match="one layer at a time"):
        value_zeroing(model, *one(model), layer="all")


def test_value_zeroing_says_why_a_model_that_cannot_run_single_layers_is_refused():
    model = build("bert")
    batch, target = one(model)

    class Other:
        """An adapter of one's own, without replay()."""

        def __getattr__(self, name: str) -> object:
            if name == "replay":
                raise AttributeError(name)
            return getattr(model, name)

        def __call__(self, *args: object, **options: object) -> object:
            return model(*args, **options)

    with pytest.raises(UnsupportedModel, match=r"no replay\(\).*attention_rollout"):
        value_zeroing(Other(), batch, target)


@pytest.mark.parametrize("method", [attention_rollout, attention_flow, attention_relevance, value_zeroing])
def test_a_single_query_cannot_be_followed_from_token_to_token(method):
    model = model_of("pooled_bilstm")
    with pytest.raises(UnsupportedModel, match=f"{method.__name__} follows attention from token to token.*'attention'"):
        method(model, *one(model))


def test_value_zeroing_needs_attention_that_can_be_edited():
    model = model_of("deberta_v2")
    with pytest.raises(UnsupportedModel, match="cannot be edited"):
        value_zeroing(model, *one(model))


@pytest.mark.parametrize("shape", ["bert", "gpt2", "llama_lm"])
@pytest.mark.parametrize("method", [attention, attention_rollout])
def test_alone_they_never_hold_the_weights_of_two_layers(shape: str, method: OnePass, monkeypatch: pytest.MonkeyPatch):
    model = model_of(shape)
    batch, target = one(model)
    seen: list[ReferenceType[Tensor]] = []
    assert method.reduce is not None
    reduction = method.reduce(model, batch)

    def watched(site: Site, a: Tensor) -> Tensor | None:
        assert not any(earlier() is not None for earlier in seen)
        seen.append(ref(a))
        return reduction(site, a)

    expected = scores(method(model, batch, target))
    monkeypatch.setattr(method, "reduce", lambda *_, **__: watched)
    assert torch.equal(scores(method(model, batch, target)), expected)
    assert len(seen) == model.layers


@pytest.mark.parametrize("shape", [*SQUARE, "pooled_bilstm"])
def test_scores_are_the_same_alone_and_from_a_shared_pass(shape: str):
    model = model_of(shape)
    methods = ["attention"] if shape in POOLED else ["attention", "attention_rollout"]
    together = salience.explain(model, TEXTS, [*methods, "input_x_gradient"])
    for name in methods:
        shared = [e.scores for e in together if e.method == name]
        for alone, scores in zip(salience.explain(model, TEXTS, name), shared, strict=True):
            assert alone.scores == pytest.approx(scores, abs=1e-6)
