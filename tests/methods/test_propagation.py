"""lrp and deep_lift against slow literal versions, against lxt's numbers and against captum."""

import json
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from captum.attr import DeepLift
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, MixtralConfig

import salience
from salience.core.passes import Needs, differentiate, forward, resolve
from salience.core.target import Target
from salience.core.types import Attribution, Batch, Model
from salience.errors import BadInput, UnsupportedModel
from salience.methods.gradient import input_x_gradient
from salience.methods.propagation import RULE_SETS, _identity_of, _rescaled, deep_lift, lrp, relevance, rescale
from salience.methods.recurrent import stepwise
from salience.methods.rules import Rules, apply_rules, damped, layer_norm, linear, scaled, share, sloped
from salience.models.pooled import Pooled
from shapes import POOLED, SHAPES, TEXTS, build, tokenizer

FIXTURE = json.loads((Path(__file__).parent / "fixtures" / "attnlrp_lxt.json").read_text("utf-8"))
BIAS_FREE = ("llama", "qwen3", "llama_lm", "qwen3_lm")


@cache
def model_of(shape: str) -> Model:
    return build(shape)


def double(shape: str) -> Model:
    model = build(shape)
    model.module.double()
    return model


def run(method: Callable[..., Attribution], model: Model, target: Target | None = None, **given: Any) -> Attribution:
    batch = model.batch(model.encode(TEXTS))
    return method(model, batch, resolve(model, [target or Target()], forward(model, batch).logits), **given)


def gradient_x_input(f: Callable[[Tensor], Tensor], x: Tensor, table: Any) -> Tensor:
    leaf = x.detach().requires_grad_()
    with Rules(table):
        value = f(leaf)
    return torch.autograd.grad(value.sum(), leaf)[0] * x


# Feed-forward networks: the rules as they are printed, one connection at a time.


def stabiliser(z: float, epsilon: float) -> float:
    return epsilon if z >= 0 else -epsilon


def by_hand(layers: list[nn.Linear], act: Callable[[Tensor], Tensor], x: Tensor, epsilon: float, gamma: float) -> list:
    """R_i = Σ_j (p_ij + γ p'_ij) / (z_j + γ z'_j + ε) R_j, activations by identity; starts at the first output."""
    inputs = [x]
    for layer in layers[:-1]:
        inputs.append(act(layer(inputs[-1])))
    R = [float(layers[-1](inputs[-1])[0])] + [0.0] * (layers[-1].out_features - 1)
    for layer, a in zip(reversed(layers), reversed(inputs), strict=True):
        w, b, below = layer.weight.tolist(), layer.bias.tolist(), [0.0] * len(a)
        for j, R_j in enumerate(R):
            p = [float(a[i]) * w[j][i] for i in range(len(a))]
            up = sum(p) + b[j] > 0
            boosted = [q * (1 + gamma * ((q > 0) == up)) for q in p]
            z = sum(boosted) + b[j] * (1 + gamma * ((b[j] > 0) == up))
            for i in range(len(a)):
                below[i] += boosted[i] / (z + stabiliser(z, epsilon)) * R_j
        R = below
    return R


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10_000),
    st.sampled_from([0.0, 1e-6, 0.1]),
    st.sampled_from([0.0, 0.25, 2.0]),
    st.sampled_from([nn.functional.relu, torch.tanh, nn.functional.gelu, nn.functional.silu]),
)
def test_epsilon_and_gamma_rule_connection_by_connection(seed: int, epsilon: float, gamma: float, act: Any):
    torch.manual_seed(seed)
    layers = [nn.Linear(4, 5).double(), nn.Linear(5, 3).double(), nn.Linear(3, 2).double()]
    x = torch.randn(4, dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        return layers[2](act(layers[1](act(layers[0](x)))))[0]

    for layer in layers:
        layer.requires_grad_(False)
    ours = gradient_x_input(f, x, relevance("attnlrp", epsilon, gamma))
    slow = torch.tensor(by_hand(layers, act, x, epsilon, gamma), dtype=torch.float64)
    assert torch.allclose(ours, slow, rtol=1e-7, atol=1e-9 * float(1 + slow.abs().max()))


def test_the_gamma_rule_on_positive_inputs_is_w_plus_gamma_w_plus():
    torch.manual_seed(0)
    x, w = torch.rand(5, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)
    z = w @ x
    w_gamma = w + 0.5 * w.clamp(min=0)
    shares = x * w_gamma / (w_gamma @ x)[:, None]
    j = int(z.argmax())
    assert z[j] > 0
    ours = gradient_x_input(lambda x: nn.functional.linear(x, w)[j], x, relevance("attnlrp", 0.0, 0.5))
    assert torch.allclose(ours, shares[j] * z[j])


def test_conv1d_of_gpt2_follows_the_linear_rule():
    torch.manual_seed(0)
    x, w, b = (torch.randn(*s, dtype=torch.float64) for s in ((2, 4), (4, 3), (3,)))
    table = relevance("attnlrp", 0.05, 0.3)
    as_linear = gradient_x_input(lambda x: nn.functional.linear(x, w.T, b), x, table)
    assert torch.equal(gradient_x_input(lambda x: torch.addmm(b, x, w), x, table), as_linear)


# LSTMs: the published procedure, one time step at a time (Arras et al. 2017).


def lrp_linear(h_in: np.ndarray, w: np.ndarray, h_out: np.ndarray, R_out: np.ndarray, epsilon: float) -> np.ndarray:
    """w is inputs × outputs; the share of the bias is dropped."""
    sign = np.where(h_out >= 0, 1.0, -1.0)
    return (w * h_in[:, None] / (h_out + epsilon * sign) * R_out).sum(1)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


class OneWay:
    """One direction of an LSTM on one text, forward and back."""

    def __init__(self, weights: dict[str, np.ndarray], suffix: str, x: np.ndarray):
        self.wx, self.wh = weights[f"lstm.weight_ih_l0{suffix}"], weights[f"lstm.weight_hh_l0{suffix}"]
        bias = weights[f"lstm.bias_ih_l0{suffix}"] + weights[f"lstm.bias_hh_l0{suffix}"]
        T, d = len(x), self.wh.shape[1]
        self.x, self.d = x, d
        self.pre, self.h, self.c = np.zeros((T, 4 * d)), np.zeros((T + 1, d)), np.zeros((T + 1, d))
        for t in range(T):
            self.pre[t] = self.wx @ x[t] + self.wh @ self.h[t - 1] + bias  # h[-1] is the zero start
            i, f, g, o = self.gates(t)
            self.c[t] = f * self.c[t - 1] + i * g
            self.h[t] = o * np.tanh(self.c[t])

    def gates(self, t: int) -> tuple[np.ndarray, ...]:
        i, f, g, o = np.split(self.pre[t], 4)
        return sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)

    def back(self, R_from_above: np.ndarray, epsilon: float) -> np.ndarray:
        T, d = len(self.x), self.d
        signal = slice(2 * d, 3 * d)
        R_x, R_h, R_c = np.zeros_like(self.x), np.zeros((T + 1, d)), np.zeros((T + 1, d))
        R_h[:T] = R_from_above
        for t in reversed(range(T)):
            i, f, g, _ = self.gates(t)
            R_c[t] += R_h[t]
            R_c[t - 1] = lrp_linear(f * self.c[t - 1], np.eye(d), self.c[t], R_c[t], epsilon)
            R_g = lrp_linear(i * g, np.eye(d), self.c[t], R_c[t], epsilon)
            R_x[t] = lrp_linear(self.x[t], self.wx[signal].T, self.pre[t, signal], R_g, epsilon)
            R_h[t - 1] += lrp_linear(self.h[t - 1], self.wh[signal].T, self.pre[t, signal], R_g, epsilon)
        return R_x


def pooled_by_hand(model: Pooled, x: np.ndarray, label: int, epsilon: float) -> np.ndarray:
    w = {n: p.detach().numpy() for n, p in model.module.named_parameters()}
    ways = [OneWay(w, "", x)]
    states = ways[0].h[:-1]
    if model.config.encoder == "bilstm":
        ways.append(OneWay(w, "_reverse", x[::-1]))
        states = np.concatenate([states, ways[1].h[:-1][::-1]], 1)
    scores = np.tanh(states @ w["key.weight"].T + w["key.bias"]) @ w["query.weight"][0]
    a = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    context = a @ states
    z = w["classifier.weight"] @ context + w["classifier.bias"]
    R = np.zeros_like(z)
    R[label] = z[label]
    R_context = lrp_linear(context, w["classifier.weight"].T, z, R, epsilon)
    R_h = np.stack([lrp_linear(a[t] * states[t], np.eye(len(context)), context, R_context, epsilon)
                    for t in range(len(x))])  # fmt: skip
    d = ways[0].d
    R_x = ways[0].back(R_h[:, :d], epsilon)
    if len(ways) == 2:
        R_x = R_x + ways[1].back(R_h[::-1, d:], epsilon)[::-1]
    return R_x.sum(-1)


@pytest.mark.parametrize("shape", ["pooled_lstm", "pooled_bilstm"])
@pytest.mark.parametrize("epsilon", [None, 0.05])
def test_lstm_rules_step_by_step(shape: str, epsilon: float | None):
    model = double(shape)
    results = run(lrp, model, Target("good"), epsilon=epsilon)
    batch = model.batch(model.encode(TEXTS))
    for row, length in enumerate(batch.mask.sum(1).tolist()):
        x = model.embed(batch)[row, :length].numpy()
        slow = pooled_by_hand(model, x, 2, 1e-3 if epsilon is None else epsilon)
        np.testing.assert_allclose(results.scores[row, :length].numpy(), slow, rtol=1e-9, atol=1e-12)
    assert results.settings == {"rules": "cp", "epsilon": 1e-3 if epsilon is None else epsilon}


@pytest.mark.parametrize("shape", ["pooled_lstm", "pooled_bilstm", "pooled_embedding", "pooled_mlp"])
def test_without_biases_a_pooled_model_loses_nothing(shape: str):
    model = double(shape)
    for name, parameter in model.module.named_parameters():
        if "bias" in name:
            parameter.data.zero_()
    assert run(lrp, model, epsilon=0.0).gaps["conservation"].abs().max() < 1e-12


def test_biases_absorb_relevance_and_the_gap_reports_how_much():
    model = double("pooled_bilstm")
    results = run(lrp, model)
    f = forward(model, model.batch(model.encode(TEXTS))).logits.amax(1)
    assert torch.allclose(results.gaps["conservation"], results.scores.sum(1) - f)
    assert results.gaps["conservation"].abs().max() > 0.1


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_stepwise_lstm_is_the_fused_one(bias: bool, batch_first: bool):
    torch.manual_seed(0)
    lstm = nn.LSTM(3, 4, num_layers=2, bidirectional=True, bias=bias, batch_first=batch_first).double()
    lstm.requires_grad_(False)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 5] if not batch_first else [2, 1, 2, 1, 2]),
                                               batch_first=batch_first, enforce_sorted=False)  # fmt: skip
    for given_x in (x, packed):
        output, (h, c) = lstm(given_x)
        with Rules(rescale(1)):
            same, (h2, c2) = lstm(given_x)
        if given_x is packed:
            output, same = output.data, same.data
        for a, b in ((output, same), (h, h2), (c, c2)):
            assert torch.allclose(a, b)


def test_an_lstm_with_projections_is_refused():
    lstm = nn.LSTM(3, 4, proj_size=2)
    with Rules({torch.lstm: stepwise(lambda *_: pytest.fail("no step may run"))}), pytest.raises(UnsupportedModel):
        lstm(torch.randn(5, 2, 3))


# AttnLRP: relevances themselves, not derivatives, through a transformer that is written out.


class Block(nn.Module):
    """Pre-norm attention and a gated feed-forward part, two heads."""

    def __init__(self, d: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.o, self.gate, self.up, self.down = (nn.Linear(d, d) for _ in range(7))

    def forward(self, x: Tensor) -> Tensor:
        n = self.norm1(x)
        q, k, v = (self.heads(f(n)) for f in (self.q, self.k, self.v))
        a = (q @ k.transpose(-1, -2) * 0.7).softmax(-1)
        x = x + self.o((a @ v).transpose(0, 1).reshape(x.shape))
        n = self.norm2(x)
        return x + self.down(nn.functional.gelu(self.gate(n)) * self.up(n))

    def heads(self, x: Tensor) -> Tensor:
        return x.view(len(x), 2, -1).transpose(0, 1)


def R_linear(layer: nn.Linear, x: Tensor, R: Tensor) -> Tensor:
    z = layer(x)
    return x * (R / z @ layer.weight)


def R_norm(norm: nn.LayerNorm, x: Tensor, R: Tensor) -> Tensor:
    """y = γ (x − mean x) / s + β with s constant: one linear map per token."""
    d = x.shape[-1]
    s = (x.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
    centring = torch.eye(d, dtype=x.dtype) - 1 / d
    return x * ((R / norm(x) * norm.weight / s) @ centring)


def R_matmul(A: Tensor, B: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    share = R / (2 * (A @ B))
    return A * (share @ B.transpose(-1, -2)), B * (A.transpose(-1, -2) @ share)


def R_softmax(x: Tensor, R: Tensor) -> Tensor:
    return x * (R - x.softmax(-1) * R.sum(-1, keepdim=True))


def R_sum(a: Tensor, b: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
    return a / (a + b) * R, b / (a + b) * R


def R_block(block: Block, x: Tensor, R: Tensor) -> Tensor:
    n1 = block.norm1(x)
    q, k, v = (block.heads(f(n1)) for f in (block.q, block.k, block.v))
    scores = q @ k.transpose(-1, -2) * 0.7
    mixed = scores.softmax(-1) @ v
    joined = mixed.transpose(0, 1).reshape(x.shape)
    middle = x + block.o(joined)
    n2 = block.norm2(middle)
    gate, up = nn.functional.gelu(block.gate(n2)), block.up(n2)

    R_middle, R_fed = R_sum(middle, block.down(gate * up), R)
    R_product = R_linear(block.down, gate * up, R_fed)
    R_n2 = R_linear(block.gate, n2, R_product / 2) + R_linear(block.up, n2, R_product / 2)
    R_middle = R_middle + R_norm(block.norm2, middle, R_n2)

    R_x, R_attended = R_sum(x, block.o(joined), R_middle)
    R_mixed = block.heads(R_linear(block.o, joined, R_attended))
    R_a, R_v = R_matmul(scores.softmax(-1), v, R_mixed)
    R_q, R_kT = R_matmul(q, k.transpose(-1, -2), R_softmax(scores, R_a))
    parts = ((block.q, R_q), (block.k, R_kT.transpose(-1, -2)), (block.v, R_v))
    R_n1 = sum(R_linear(f, n1, r.transpose(0, 1).reshape(x.shape)) for f, r in parts)
    return R_x + R_norm(block.norm1, x, R_n1)


@pytest.mark.parametrize("seed", range(3))
def test_attnlrp_relevance_by_relevance(seed: int):
    torch.manual_seed(seed)
    net = nn.Sequential(Block(6), Block(6), nn.Linear(6, 2)).double().requires_grad_(False)
    x = torch.randn(5, 6, dtype=torch.float64)
    ours = gradient_x_input(lambda x: net(x)[0, 1], x, relevance("attnlrp", 0.0, 0.0))
    between = net[0](x)
    last = net[1](between)
    R = torch.zeros_like(net(x))
    R[0, 1] = net(x)[0, 1]
    slow = R_block(net[0], x, R_block(net[1], between, R_linear(net[2], last, R)))
    assert torch.allclose(ours, slow, rtol=1e-8, atol=1e-10 * float(slow.abs().max()))


@pytest.mark.parametrize("family", sorted(FIXTURE["models"]))
def test_attnlrp_gives_the_numbers_of_lxt(family: str):
    case = FIXTURE["models"][family]
    config = AutoConfig.for_model(family, **case["config"])
    make = AutoModelForSequenceClassification if family == "bert" else AutoModelForCausalLM
    module = make.from_config(config).double()
    for name, p in module.named_parameters():
        i = torch.arange(p.numel(), dtype=torch.float64).view_as(p)
        value = 0.4 * torch.sin(1.7 * i + crc32(name.encode()) % 1000)
        p.data.copy_(value + 1 if p.dim() == 1 and name.endswith("weight") else value)
    model = salience.wrap(module, tokenizer("wordpiece"), name=family)
    ids = torch.tensor([FIXTURE["ids"]])
    batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool))
    logits = forward(model, batch).logits
    exact = 1e-8 if family in ("bert", "gpt2") else 1e-6  # transformers computes RMS norms in float32
    assert logits[0, case["label"]].item() == pytest.approx(case["value"], rel=exact)
    theirs = torch.tensor(case["scores"], dtype=torch.float64)
    results = lrp(model, batch, resolve(model, [Target()], logits), epsilon=0.0)
    assert torch.allclose(results.scores[0], theirs, rtol=10 * exact, atol=exact * float(theirs.abs().max()))


# Each rule's derivative against a slow restatement.


def random(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(*shape, dtype=torch.float64) for shape in shapes]


def derivatives(f: Callable[..., Tensor], inputs: Sequence[Tensor], g: Tensor) -> tuple[Tensor, ...]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    return torch.autograd.grad(f(*leaves), leaves, g)


def test_a_share_is_a_quotient_with_a_stabiliser_of_the_same_sign():
    y, x = torch.tensor([3.0, -3.0, 2.0, 0.0, 0.0, 1.0]), torch.tensor([2.0, -2.0, -4.0, 1.0, 0.0, 0.0])
    assert torch.equal(share(y, x, 0.0), torch.tensor([1.5, 1.5, -0.5, 0.0, 0.0, 0.0]))
    assert torch.allclose(share(y, x, 0.5)[:4], torch.tensor([1.2, 1.2, -2 / 4.5, 0.0]))
    assert share(y, x, 0.5)[4] == 0


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 0.3])
@pytest.mark.parametrize("biased", [True, False])
def test_the_linear_rule_weight_by_weight(epsilon: float, biased: bool):
    torch.manual_seed(0)
    x, w, b, g = random((2, 3, 4), (5, 4), (5,), (2, 3, 5))
    x[0, 0] = 0  # without a bias, outputs of exactly 0
    bias = b if biased else None
    (ours,) = derivatives(lambda x: linear(x, w, bias, epsilon), [x], g)
    z = nn.functional.linear(x, w, bias)
    slow = torch.zeros_like(x)
    for at in np.ndindex(2, 3):
        for j, z_j in enumerate(z[at].tolist()):
            if z_j != 0:
                slow[at] += w[j] * z_j / (z_j + stabiliser(z_j, epsilon)) * g[at][j]
    assert torch.allclose(ours, slow)
    assert torch.equal(linear(x, w, bias, epsilon), z)


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
@pytest.mark.parametrize("affine", [True, False])
def test_the_rule_of_layer_norm_holds_the_deviation_constant(shape: tuple[int, ...], affine: bool):
    torch.manual_seed(0)
    x, w, b, g = random((2, 3, 4), shape, shape, (2, 3, 4))
    w, b = (w, b) if affine else (None, None)
    dims = tuple(range(-len(shape), 0))

    def slow(x: Tensor) -> Tensor:
        s = (x.var(dims, correction=0, keepdim=True) + 1e-5).sqrt().detach()
        y = (x - x.mean(dims, keepdim=True)) / s
        return y if w is None else y * w + b

    def ours(x: Tensor) -> Tensor:
        return layer_norm(x, shape, w, b, 1e-5)

    assert torch.allclose(ours(x), nn.functional.layer_norm(x, shape, w, b, 1e-5))
    assert torch.allclose(derivatives(ours, [x], g)[0], derivatives(slow, [x], g)[0])


def test_damped_scaled_and_sloped_keep_the_value_and_change_the_derivative():
    torch.manual_seed(0)
    x, y, slope, g = random((3, 4), (3, 4), (3, 4), (3, 4))
    x[0, 0] = 0
    for f, value, expected in (
        (lambda x: damped(x, 0.2), x, g * x.abs() / (x.abs() + 0.2)),
        (lambda x: damped(x, 0.0), x, g * (x != 0)),
        (lambda x: scaled(x, 0.25), x, g / 4),
        (lambda x: sloped(x, y, slope), y, g * slope),
    ):
        assert torch.equal(f(x), value)
        assert torch.allclose(derivatives(f, [x], g)[0], expected)


def test_what_a_rule_gives_can_be_changed_in_place():
    torch.manual_seed(0)
    x, w, g = random((3, 4), (4, 4), (3, 4))
    for f in (
        lambda x: linear(x, w, None, 0.1),
        lambda x: layer_norm(x, (4,), None, None, 1e-5),
        lambda x: scaled(x * 2, 0.5),
        lambda x: sloped(x * 2, w[:3].clone(), w[:3]),
    ):
        changed = derivatives(lambda x, f=f: f(x).mul_(3), [x], g)[0]
        assert torch.equal(changed, derivatives(f, [x], 3 * g)[0])


ATTENTION = {
    "plain": {},
    "scaled": {"scale": 0.3},
    "causal": {"is_causal": True},
    "grouped heads": {"enable_gqa": True, "is_causal": True},
    "mask": {"attn_mask": torch.arange(5) < torch.tensor([3, 5])[:, None, None, None]},
    "bias": {"attn_mask": torch.linspace(-2, 1, 25, dtype=torch.float64).view(1, 1, 5, 5)},
}


def steps(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, attn_mask: Tensor | None = None,
          is_causal: bool = False, enable_gqa: bool = False) -> Tensor:  # fmt: skip
    """Attention as torch documents it, step by step."""
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril() if is_causal else attn_mask
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("options", ATTENTION.values(), ids=ATTENTION)
@pytest.mark.parametrize("depend", ["qkv", "kv", "v", "qk"])
@pytest.mark.parametrize("rules", RULE_SETS)
def test_one_kernel_has_the_derivatives_of_its_steps(rules: str, depend: str, options: dict[str, Any]):
    torch.manual_seed(0)
    heads = 2 if "enable_gqa" in options else 4
    inputs = dict(zip("qkv", random((2, 4, 5, 3), (2, heads, 5, 3), (2, heads, 5, 3)), strict=True))
    (g,) = random((2, 4, 5, 3))
    table = relevance(rules, 0.0, 0.0)

    def under_rules(attention: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        def f(*varying: Tensor) -> Tensor:
            with Rules(table):
                return attention(**(inputs | dict(zip(depend, varying, strict=True))), **options)

        leaves = [inputs[name].detach().requires_grad_() for name in depend]
        o = f(*leaves)
        if not o.requires_grad:
            return tuple(torch.zeros_like(leaf) for leaf in leaves)
        return torch.autograd.grad(o, leaves, g, materialize_grads=True)

    def kernel(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, **options)

    for ours, slow in zip(under_rules(kernel), under_rules(steps), strict=True):
        assert torch.allclose(ours, slow)


class Calls(TorchFunctionMode):
    """Counts the calls of one function, also those that a rule makes in its turn."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function, self.count = function, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is self.function
        return func(*args, **(kwargs or {}))


def propagated(model: Model, kernel: str, **settings: Any) -> tuple[Tensor, int]:
    """Scores by the largest of each text, and how often SDPA was called for them."""
    assert isinstance(model, Model)  # asks for all its members, some of which take a pass the first time
    model.module.set_attn_implementation("sdpa")
    batch = model.batch(model.encode(TEXTS))
    target = resolve(model, [Target()], forward(model, batch).logits)
    model.module.set_attn_implementation(kernel)
    with Calls(nn.functional.scaled_dot_product_attention) as calls:
        scores = lrp(model, batch, target, **settings).scores
    return scores / scores.abs().amax(1, keepdim=True), calls.count


FUSED = tuple(s for s in SHAPES if s not in ("deberta_v2", *POOLED))


@pytest.mark.parametrize("rules", RULE_SETS)
@pytest.mark.parametrize("shape", FUSED)
def test_scores_by_sdpa_are_those_of_attention_written_out(shape: str, rules: str):
    model = double(shape)
    for epsilon, gamma, exact in ((0.0, 0.0, True), (None, 0.0, rules != "attnlrp"), (0.0, 0.3, True)):
        ours, calls = propagated(model, "sdpa", rules=rules, epsilon=epsilon, gamma=gamma)
        slow, none = propagated(model, "eager", rules=rules, epsilon=epsilon, gamma=gamma)
        assert (calls, none) == (model.layers, 0)
        # The kernel leaves out the ε of q kᵀ. In float32 rounding alone changes scores by more than that.
        assert (ours - slow).abs().max() < (1e-6 if exact else 1e-4)


@pytest.mark.parametrize("rules", RULE_SETS)
@pytest.mark.parametrize("shape", ["bert", "gpt2", "llama_lm"])
def test_a_large_epsilon_reaches_every_product(shape: str, rules: str):
    model = double(shape)
    ours, calls = propagated(model, "sdpa", rules=rules, epsilon=0.1)
    slow, _ = propagated(model, "eager", rules=rules, epsilon=0.1)
    assert calls == (0 if rules == "attnlrp" else model.layers)
    assert (ours - slow).abs().max() < 1e-6


# What theory promises.


def test_one_attention_layer_conserves_once_its_weights_are_held_constant():
    torch.manual_seed(0)
    W = [torch.randn(4, 4, dtype=torch.float64) for _ in range(3)]
    x, u = torch.randn(5, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        q, k, v = (x @ w for w in W)
        return ((q @ k.T).softmax(-1) @ v).sum(0) @ u

    assert abs(gradient_x_input(f, x, {}).sum() - f(x)) > 0.1 * abs(f(x))
    for rules in ("conservative", "cp"):
        assert torch.isclose(gradient_x_input(f, x, relevance(rules, 0.0, 0.0)).sum(), f(x))


def test_conservative_is_gradient_x_input_with_weights_and_deviations_detached():
    torch.manual_seed(1)
    net = Block(6).double().requires_grad_(False)
    x = torch.randn(5, 6, dtype=torch.float64)

    def norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
        s = (x.var(-1, correction=0, keepdim=True) + norm.eps).sqrt().detach()
        return (x - x.mean(-1, keepdim=True)) / s * norm.weight + norm.bias

    def detached(x: Tensor) -> Tensor:
        n = norm(net.norm1, x)
        q, k, v = (net.heads(f(n)) for f in (net.q, net.k, net.v))
        a = (q @ k.transpose(-1, -2) * 0.7).softmax(-1).detach()
        x = x + net.o((a @ v).transpose(0, 1).reshape(x.shape))
        n = norm(net.norm2, x)
        return x + net.down(nn.functional.gelu(net.gate(n)) * net.up(n))

    ours = gradient_x_input(lambda x: net(x)[0, 1], x, relevance("conservative", 0.0, 0.0))
    assert torch.allclose(ours, gradient_x_input(lambda x: detached(x)[0, 1], x, {}))


@pytest.mark.parametrize("shape", BIAS_FREE)
def test_cp_conserves_exactly_on_models_without_biases(shape: str):
    results = run(lrp, double(shape), rules="cp", epsilon=0.0)
    # 1e-6, though the model is in float64: transformers computes these norms and rotations in float32.
    assert results.gaps["conservation"].abs().max() < 1e-6 * results.scores.abs().max()


FOLLOWED = [shape for shape in SHAPES if shape != "pooled_orthogonal_lstm"]  # lstm_cell has no rule, and is refused


@pytest.mark.parametrize("rules", RULE_SETS)
@pytest.mark.parametrize("shape", FOLLOWED)
def test_rules_change_no_value(shape: str, rules: str):
    model = model_of(shape)
    batch = model.batch(model.encode(TEXTS))
    plain = forward(model, batch).logits
    whole = None if rules == "conservative" else _identity_of
    within = partial(apply_rules, model.module, relevance(rules, 1e-6, 0.2), whole)
    needs = Needs.GRADIENT | Needs.WRITTEN_OUT
    under = differentiate(model, batch, resolve(model, [Target()], plain), needs=needs, within=within)
    assert torch.allclose(under.output.logits, plain, atol=1e-4)


@pytest.mark.parametrize("shape", FOLLOWED)
def test_the_rescale_rule_changes_no_value(shape: str):
    model = model_of(shape)
    batch = model.batch(model.encode(TEXTS[:1])).take(torch.tensor([0, 0]))
    plain = forward(model, batch).logits
    within = partial(apply_rules, model.module, rescale(1), partial(_rescaled, texts=1))
    needs = Needs.GRADIENT | Needs.WRITTEN_OUT
    under = differentiate(model, batch, resolve(model, [Target()], plain), needs=needs, within=within)
    assert torch.allclose(under.output.logits, plain, atol=1e-4)


@pytest.mark.parametrize("method", [partial(lrp, rules="attnlrp"), partial(lrp, rules="cp"), deep_lift])
def test_a_contrast_and_a_probability_are_sums_over_labels(method: Callable[..., Attribution]):
    model = double("bert")
    each = [run(method, model, Target(c)).scores for c in range(3)]
    contrast = run(method, model, Target(2, against=0)).scores
    assert torch.allclose(contrast, each[2] - each[0])

    p = forward(model, model.batch(model.encode(TEXTS))).logits.softmax(1)
    slopes = [p[:, 2] * (float(c == 2) - p[:, c]) for c in range(3)]
    summed = sum(s[:, None] * R for s, R in zip(slopes, each, strict=True))
    assert torch.allclose(run(method, model, Target(2, kind="probability")).scores, summed)


@pytest.mark.parametrize("shape", ["bert", "albert", "pooled_bilstm"])
def test_no_rule_outlives_an_exception(shape: str):
    model = build(shape)
    batch = model.batch(model.encode(TEXTS))
    target = resolve(model, [Target()], forward(model, batch).logits)
    before = input_x_gradient(model, batch, target)
    layer = [m for m in model.module.modules() if isinstance(m, nn.Linear)][-1]
    handle = layer.register_forward_pre_hook(lambda *_: 1 / 0)
    for method in (lrp, deep_lift):
        with pytest.raises(ZeroDivisionError):
            method(model, batch, target)
    handle.remove()
    assert not any(m._forward_hooks for m in model.module.modules())
    assert torch.equal(input_x_gradient(model, batch, target).scores, before.scores)


@pytest.mark.parametrize("table", [relevance("attnlrp", 1e-3, 0.0), rescale(1)])
def test_fused_kernels_are_refused(table: Any):
    q = torch.randn(2, 2, 3, 4)
    with Rules(table), pytest.raises(UnsupportedModel, match="scaled_dot_product_attention"):
        nn.functional.scaled_dot_product_attention(q, q, q)
    attention = nn.MultiheadAttention(4, 2)
    with Rules(table), pytest.raises(UnsupportedModel, match="multi_head_attention_forward"):
        attention(q[0], q[0], q[0])


def test_invalid_settings_are_named():
    with pytest.raises(BadInput, match="Did you mean 'attnlrp'"):
        relevance("attn_lrp", 0.0, 0.0)
    with pytest.raises(BadInput, match="epsilon=-1"):
        run(lrp, model_of("bert"), epsilon=-1.0)


def test_norms_written_in_other_ways_follow_the_same_rule():
    torch.manual_seed(0)
    x, w = (torch.randn(*s, dtype=torch.float64) for s in ((3, 4), (4,)))
    ways = {
        "rms_norm": lambda x: nn.functional.rms_norm(x, (4,), w, 1e-6),
        "rsqrt": lambda x: w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
        "sqrt": lambda x: w * (x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
        "power": lambda x: w * (x * torch.pow(x.pow(2).mean(-1, keepdim=True) + 1e-6, -0.5)),
    }
    for f in ways.values():
        assert torch.allclose(gradient_x_input(f, x, relevance("attnlrp", 0.0, 0.0)), f(x))


# Activations that a model writes out, or calls without registering them.


WRITTEN_OUT: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: x * 0.5 * (1.0 + torch.erf(x / 2**0.5)),
    "gelu_new": lambda x: 0.5 * x * (1.0 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * torch.pow(x, 3.0)))),
    "bloom": lambda x: x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "silu_in_float": lambda x: x.float().sigmoid().type_as(x) * x,
    "mish": lambda x: x * nn.functional.softplus(x).tanh(),
    "times_two_thirds": lambda x: (2 * x) * (x * 0 + 1) / 3,
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_a_written_out_activation_follows_the_rule_for_activations(name: str):
    torch.manual_seed(0)
    f = WRITTEN_OUT[name]
    w, v = torch.randn(2, 6, 6, dtype=torch.float64)
    x, b = torch.randn(2, 1, 6, dtype=torch.float64)
    y = f(x @ w.T)

    leaf = x.clone().requires_grad_()
    with Rules(relevance("attnlrp", 0.0, 0.0), _identity_of):
        out = nn.functional.linear(f(nn.functional.linear(leaf, w)), v)
    ours = torch.autograd.grad(out[0, 1], leaf)[0][0] * x[0]
    slow = [sum(float(x[0, i] * w[j, i] / (w[j] @ x[0]) * v[1, j] * y[0, j]) for j in range(6)) for i in range(6)]
    assert torch.allclose(ours, torch.tensor(slow, dtype=torch.float64), rtol=1e-5 if "float" in name else 1e-9)

    both = torch.cat([x, b]).requires_grad_()
    with Rules(rescale(1), partial(_rescaled, texts=1)):
        out = nn.functional.linear(f(nn.functional.linear(both, w)), v)
    ours = torch.autograd.grad(out[0, 1], both)[0][0] * (x - b)[0]
    m = (f(x @ w.T) - f(b @ w.T)) / ((x - b) @ w.T)
    slow = [sum(float((x - b)[0, i] * w[j, i] * m[0, j] * v[1, j]) for j in range(6)) for i in range(6)]
    assert torch.allclose(ours, torch.tensor(slow, dtype=torch.float64), rtol=1e-5 if "float" in name else 1e-9)


@pytest.mark.parametrize("rules", ["attnlrp", "cp"])
@pytest.mark.parametrize(
    "f",
    [torch.exp, torch.square, lambda x: x**3, lambda x: nn.functional.normalize(x, dim=-1),
     lambda x: x / x.sum(-1, keepdim=True), lambda x: 1 / x, lambda x: x * 1 + torch.sin(x)],
)  # fmt: skip
def test_what_no_rule_conserves_is_refused(f: Callable[[Tensor], Tensor], rules: str):
    x = torch.randn(2, 3, dtype=torch.float64)
    with pytest.raises(UnsupportedModel, match=r"(exp|square|pow|normalize|div|sin).*rules='conservative'"):
        gradient_x_input(f, x, relevance(rules, 0.0, 0.0))
    assert gradient_x_input(f, x, relevance("conservative", 0.0, 0.0)).isfinite().all()


def test_division_by_constants_is_linear():
    x = torch.randn(2, 3, dtype=torch.float64)
    for f in (lambda x: x / 3, lambda x: (x * 1).mul_(2), lambda x: (x * 1).div_(torch.tensor(2.0))):
        assert torch.allclose(gradient_x_input(f, x, relevance("attnlrp", 0.0, 0.0)), f(x))


UNREGISTERED = {
    "big_bird": {"hidden_act": ("gelu_new", "gelu_pytorch_tanh"), "attention_type": "original_full"},
    "nystromformer": {"hidden_act": ("gelu_new", "gelu_pytorch_tanh")},
    "esm": {"mask_token_id": 4, "token_dropout": False},
}


@pytest.mark.parametrize("method", [lrp, partial(lrp, rules="cp"), deep_lift])
@pytest.mark.parametrize("family", UNREGISTERED)
def test_the_same_activation_in_other_words_gives_the_same_scores(
    family: str, method: Callable[..., Attribution], monkeypatch: pytest.MonkeyPatch
):
    """BigBird's and Nyströmformer's heads make their activation in passing; ESM writes it out."""
    tok, results = tokenizer("bare"), []
    for fused in (False, True):
        options = {k: v[fused] if isinstance(v, tuple) else v for k, v in UNREGISTERED[family].items()}
        config = AutoConfig.for_model(
            family, vocab_size=len(tok), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_labels=3,
            intermediate_size=16, initializer_range=0.3, pad_token_id=0, **options,
        )  # fmt: skip
        torch.manual_seed(0)
        module = AutoModelForSequenceClassification.from_config(config).double()
        if fused and family == "esm":
            monkeypatch.setattr("transformers.models.esm.modeling_esm.gelu", nn.functional.gelu)
        model = salience.wrap(module, tok, name=family)
        batch = model.batch(model.encode(TEXTS[1:2]))  # Nyströmformer reads padding
        results.append(method(model, batch, resolve(model, [Target(1)], forward(model, batch).logits)).scores)
    assert (results[0] - results[1]).abs().max() <= 1e-6 * results[1].abs().max()


def test_relevance_of_big_birds_head_connection_by_connection():
    tok = tokenizer("bare")
    config = AutoConfig.for_model(
        "big_bird", vocab_size=len(tok), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0,
        intermediate_size=8, initializer_range=0.5, attention_type="original_full", hidden_act="gelu_new",
    )  # fmt: skip
    torch.manual_seed(0)
    model = salience.wrap(AutoModelForSequenceClassification.from_config(config).double(), tok, name="big bird")
    batch = model.batch(model.encode(TEXTS[:1]))
    within = partial(apply_rules, model.module, relevance("attnlrp", 0.0, 0.0), _identity_of)
    seen = differentiate(model, batch, [Target(1)], needs=Needs.HIDDEN | Needs.WRITTEN_OUT, within=within)
    ours = (seen.output.hidden[-1] * seen.hidden_gradient[-1])[0]

    head, x = model.module.requires_grad_(False).classifier, seen.output.hidden[-1][0, 0]
    z = head.dense.weight @ x + head.dense.bias
    y = nn.functional.gelu(z, approximate="tanh")
    R = [float(head.out_proj.weight[1, j] * y[j]) for j in range(8)]
    slow = [sum(float(x[i] * head.dense.weight[j, i] / z[j]) * R[j] for j in range(8)) for i in range(8)]
    assert torch.allclose(ours[0], torch.tensor(slow, dtype=torch.float64))
    assert (ours[1:] == 0).all()


# DeepLIFT against captum.


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.ELU]))
def test_rescale_is_captums_and_complete_on_a_feed_forward_network(seed: int, act: type[nn.Module]):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 6), act(), nn.Linear(6, 5), act(), nn.Linear(5, 2)).double()
    x, b = torch.randn(2, 3, 4, dtype=torch.float64)
    both = torch.cat([x, b]).requires_grad_()
    with Rules(rescale(3)):
        y = net(both)
    ours = torch.autograd.grad(y[:3, 1].sum(), both)[0][:3] * (x - b)
    theirs = captum(net, x, b, 1)
    assert torch.allclose(ours, theirs, atol=1e-10)
    assert torch.allclose(ours.sum(1), (net(x) - net(b))[:, 1])


@pytest.mark.filterwarnings("ignore:Setting forward, backward hooks")
def captum(net: nn.Module, x: Tensor, b: Tensor, label: int) -> Tensor:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return DeepLift(net).attribute(x, b, target=label).detach()


class Twin(nn.Module):
    """A Pooled model on one text, with a module of its own for each nonlinearity: captum sees only modules."""

    def __init__(self, model: Pooled, length: int):
        super().__init__()
        self.model = model.module
        self.sigmoids = nn.ModuleList(nn.Sigmoid() for _ in range(6 * length))
        self.tanhs = nn.ModuleList(nn.Tanh() for _ in range(4 * length))
        self.projected, self.keyed = nn.Tanh(), nn.Tanh()

    def forward(self, e: Tensor) -> Tensor:
        h = self.states(e)
        a = self.model.query(self.keyed(self.model.key(h)))[..., 0].softmax(-1)
        return self.model.classifier((a[:, None] @ h)[:, 0])

    def states(self, e: Tensor) -> Tensor:
        if self.model.project is not None:
            return self.projected(self.model.project(e))
        if self.model.lstm is None:
            return e
        sigmoids, tanhs = iter(self.sigmoids), iter(self.tanhs)
        ways = [self.one_way(e, "", sigmoids, tanhs)]
        if self.model.lstm.bidirectional:
            ways.append(self.one_way(e.flip(1), "_reverse", sigmoids, tanhs).flip(1))
        return torch.cat(ways, -1)

    def one_way(self, e: Tensor, suffix: str, sigmoids: Any, tanhs: Any) -> Tensor:
        wx, wh, bx, bh = (getattr(self.model.lstm, f"{n}_l0{suffix}")
                          for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))  # fmt: skip
        h = c = e.new_zeros(len(e), wh.shape[1])
        out = []
        for x in e.unbind(1):
            i, f, g, o = (x @ wx.T + bx + h @ wh.T + bh).chunk(4, -1)
            c = next(sigmoids)(f) * c + next(sigmoids)(i) * next(tanhs)(g)
            h = next(sigmoids)(o) * next(tanhs)(
                c.clone()
            )  # captum takes over the whole gradient of what enters a module
            out.append(h)
        return torch.stack(out, 1)


@pytest.mark.parametrize("baseline", ["mask", "zero", "mean"])
@pytest.mark.parametrize("encoder", ["embedding", "mlp", "lstm", "bilstm"])
def test_deep_lift_on_pooled_models_is_captums(encoder: str, baseline: str):
    model = double(f"pooled_{encoder}")
    model.module.eval().requires_grad_(False)
    results = run(deep_lift, model, Target("good"), baseline=baseline)
    batch = model.batch(model.encode(TEXTS))
    for row, length in enumerate(batch.mask.sum(1).tolist()):
        e = model.embed(batch)[row : row + 1, :length]
        b = salience.core.erasure.replacement(model, baseline).expand_as(e)
        theirs = captum(Twin(model, length), e, b, 2).sum(-1)[0]
        assert torch.allclose(results.scores[row, :length], theirs, rtol=1e-6, atol=1e-9)
    assert results.settings == {"baseline": baseline}


def test_deep_lift_refuses_experts_whose_tokens_it_cannot_pair():
    config = MixtralConfig(
        vocab_size=len(tokenizer("bare")), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_labels=2,
        num_attention_heads=2, num_key_value_heads=2, num_local_experts=3, pad_token_id=None,
    )  # fmt: skip
    model = salience.wrap(AutoModelForSequenceClassification.from_config(config), tokenizer("bare"), name="experts")
    with pytest.raises(UnsupportedModel, match=r"experts sends tokens to different experts.*integrated_gradients"):
        run(deep_lift, model)


def test_rescale_refuses_rows_that_it_cannot_pair():
    x = torch.randn(4, 3, requires_grad=True)
    with Rules(rescale(2)):
        torch.tanh(x)
        torch.tanh(x.repeat(5, 1))
        with pytest.raises(UnsupportedModel, match="3 rows where 4 went in"):
            torch.tanh(x[:3])


def test_the_completeness_gap_is_what_is_missing():
    model = double("bert")
    batch = model.batch(model.encode(TEXTS))
    results = run(deep_lift, model, Target(1), baseline="zero")
    b = salience.core.erasure.replaced(model, batch, batch.content, "zero")
    ends = [forward(model, batch, embeddings=e).logits[:, 1] for e in (model.embed(batch), b)]
    assert torch.allclose(results.gaps["completeness"], results.scores.sum(1) - (ends[0] - ends[1]))
