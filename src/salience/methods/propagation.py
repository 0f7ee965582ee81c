"""Methods that propagate the prediction backwards through the model by rules other than derivatives."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as fn

from salience.core.erasure import Replacement, replaced, usual
from salience.core.passes import Needs, Pass, differentiate, one_pass
from salience.core.rows import in_order
from salience.core.settings import NotNegative
from salience.core.target import Target
from salience.core.types import Attribution, Batch, Model, Output, Targets
from salience.errors import BadInput, UnsupportedModel, choose
from salience.methods import rules as op
from salience.methods.gradient import dot
from salience.methods.recurrent import stepwise
from salience.methods.rules import apply_rules, damped, scaled, share, sloped, variables
from salience.methods.sinks import separate_sink

RuleSet = Literal["attnlrp", "cp", "conservative"]
RULE_SETS = get_args(RuleSet)
EXPERTS = ("Experts", "SparseMoeBlock", "Router")
"""Suffixes of the transformers modules that send tokens to different experts."""
_NEGLIGIBLE = 1e-6
_WRITTEN_OUT = Needs.GRADIENT | Needs.WRITTEN_OUT


def _by_rules(
    model: Model,
    batch: Batch,
    target: Targets | Sequence[Target],
    /,
    *,
    rules: RuleSet | None = None,
    epsilon: NotNegative | None = None,
    gamma: NotNegative = 0.0,
    **_: object,
) -> Pass:
    """Run a pass whose derivatives follow the rules."""
    rules, epsilon = _defaults(model, rules, epsilon)
    table = relevance(rules, epsilon, gamma)
    router = None if rules == "attnlrp" else Tensor.detach
    within = partial(apply_rules, model.module, table, _WHOLE.get(rules), router=router)
    needs = Needs.GRADIENT | (Needs.FOLLOWED if fuses(rules, epsilon) else Needs.WRITTEN_OUT)
    return differentiate(model, batch, target, needs=needs, within=within)


@one_pass(own=_by_rules)
def lrp(
    result: Pass,
    *,
    rules: RuleSet | None = None,
    epsilon: NotNegative | None = None,
    gamma: NotNegative = 0.0,
    without_sink: bool = False,
) -> Attribution:
    """Layer-wise relevance propagation: the explained number is distributed backwards, layer by layer.

    Linear layers use R_i = Σ_j x_i w_ij / (z_j + ε sign z_j) R_j. In LSTMs all relevance goes to the signal and none to
    the gates. ``rules`` selects the rules for the rest of a transformer: ``attnlrp``, ``cp`` (the same with attention,
    gates and the weights of experts held constant) or ``conservative`` (gradient × input with attention, the weights of
    experts and the norms' standard deviations held constant).

    ``without_sink`` sets the score of a decoder's first token to 0.

    Paper: Bach et al. 2015, 10.1371/journal.pone.0130140; LSTM: Arras et al. 2017, arXiv:1706.07206; transformers:
    Ali et al. 2022, arXiv:2202.07304, Achtibat et al. 2024, arXiv:2402.05602
    Cost: 1 forward, 1 backward
    Needs: an embedding layer; SDPA attention, or attention that can be computed step by step
    """
    assert result.gradient is not None
    scores = dot(result.gradient, result.output.embeddings) * result.batch.mask
    gap = scores.sum(1) - _initial_relevance(result.target, result.output)
    rules, epsilon = _defaults(result.model, rules, epsilon)
    attribution = Attribution(scores, gaps={"conservation": gap}, settings={"rules": rules, "epsilon": epsilon})
    return separate_sink(attribution, result.model, result.batch, without_sink=without_sink)


def _defaults(model: Model, rules: RuleSet | None, epsilon: float | None) -> tuple[RuleSet, float]:
    """Fill in the model's default rules and epsilon where they are not set."""
    # The attention of a single query weights states like a gate, and gates get no relevance (Arras et al. 2017).
    default_epsilon = 1e-3 if model.single_query else 1e-6
    return rules or ("cp" if model.single_query else "attnlrp"), default_epsilon if epsilon is None else epsilon


def _initial_relevance(target: Targets, output: Output) -> Float[Tensor, " b"]:
    """The relevance of the logits, Σ_c z_c ∂f/∂z_c: equal to f for a logit or a difference of two logits."""
    if output.relevance is not None:
        return target(output.relevance)
    with torch.enable_grad():
        z = output.logits.detach().requires_grad_()
        (slope,) = torch.autograd.grad(target(z).sum(), z)
    return (z.detach() * slope).sum(1)


def fuses(rules: str, epsilon: float) -> bool:
    """Whether attention can run as one fused kernel: the ε of q kᵀ is unused, or too small to affect a score."""
    return rules != "attnlrp" or epsilon <= _NEGLIGIBLE


def relevance(rules: str, epsilon: float, gamma: float) -> op.RuleTable:
    """Build the table of replacement functions for one set of rules."""
    choose(rules, RULE_SETS, "rules")
    if epsilon < 0 or gamma < 0:
        raise BadInput(f"epsilon={epsilon} and gamma={gamma} must not be negative")
    linear = partial(_linear, epsilon=epsilon, gamma=gamma)
    table: dict[Callable[..., Any], Callable[..., Any]] = {
        fn.linear: linear,
        torch.addmm: lambda bias, x, weight: linear(x, weight.T, bias),
        torch.lstm: stepwise(partial(_lstm_step, epsilon=epsilon)),
        fn.layer_norm: _layer_norm,
        fn.rms_norm: _rms_norm,
        **{f: partial(_constant, f) for f in op.ROOTS},
        **{f: partial(_power, f) for f in op.POWERS},
    }
    if rules != "conservative":
        table |= {f: op.without_rule(f) for f in op.UNRULED}
        table |= {f: partial(_by_constant, f) for f in (*op.DIVIDED, *op.IN_PLACE)}
        table |= {f: partial(_power, op.without_rule(f)) for f in op.POWERS}
    if rules != "attnlrp":
        table |= {f: partial(_constant, f) for f in op.SOFTMAX}
    table |= {f: partial(_matmul, f, epsilon, rules) for f in (*op.MATMUL, *op.GROUPED)}
    if fuses(rules, epsilon):
        table[fn.scaled_dot_product_attention] = partial(_attention, rules=rules, epsilon=epsilon)
    if rules != "conservative":
        table |= {f: partial(_times, f) for f in op.TIMES}
        table |= {f: partial(_activation, f) for f in op.ACTIVATIONS}
    if rules == "cp":
        table |= {f: partial(_gated, f) for f in op.TIMES}
        table |= {f: partial(_gate, f) for f in op.SIGMOIDS}
        table |= {f: partial(_gate, partial(_activation, f)) for f in op.ACTIVATIONS}
    return table


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, epsilon: float, gamma: float) -> Tensor:
    """R_i = Σ_j (p_ij + γ p'_ij) / (Σ_i p_ij + γ p'_ij + ε sign) R_j with p_ij = x_i w_ij; the sum includes the bias.

    p' is the part of p with the sign of z_j. For x ≥ 0 and z_j > 0 this is the usual w + γ w⁺; the denominator never
    moves closer to 0 because of γ.
    """
    if gamma == 0:
        return op.linear(x, weight, bias, epsilon)
    z = fn.linear(x, weight, bias)
    boosted = z + gamma * torch.where(z > 0, _with_sign(1, x, weight, bias), _with_sign(-1, x, weight, bias))
    return sloped(boosted, z, share(z, boosted, epsilon))


def _with_sign(sign: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Sum all positive x_i w_ij (and b_j), or all negative ones."""
    same, other = sign * (sign * weight).relu(), -sign * (-sign * weight).relu()
    own_bias = None if bias is None else sign * (sign * bias).relu()
    return fn.linear(x.relu(), same, own_bias) + fn.linear(-(-x).relu(), other)


def _matmul(function: Callable[..., Tensor], epsilon: float, rules: str, *operands: Any, **options: Any) -> Tensor:
    """The ε-rule, with half of the relevance to each operand if both depend on the input (AttnLRP, eq. 15)."""
    z = function(*operands, **options)
    parts = 1 if rules == "conservative" else max(1, variables(*operands))
    return sloped(z, z, share(z, z, epsilon).div_(parts))


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    rules: str,
    epsilon: float,
    **others: Any,
) -> Tensor:
    """Fused attention a v with a = softmax(q kᵀ), with derivatives scaled according to the rules of its steps.

    Half of the relevance of a v goes to a, which softmax propagates by its derivative, and q kᵀ is divided equally: 1/4
    for q and k, 1/2 for v. With a held constant, v gets everything. The ε of q kᵀ, inside the kernel, is ignored.
    """
    if rules == "attnlrp":
        either = 1 / max(1, variables(v) + (variables(q, k) > 0))
        each = either / max(1, variables(q, k))
        q, k, v = scaled(q, each), scaled(k, each), scaled(v, either)
    else:
        q, k = q.detach(), k.detach()
    return damped(fn.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, **others), epsilon)


def _times(function: Callable[..., Tensor], a: Any, b: Any) -> Tensor:
    """Half of the relevance to each factor if both depend on the input, otherwise all to the one that does."""
    both = variables(a, b) == 2  # before the call, which may change a in place
    z = function(a, b)
    return scaled(z, 1 / 2) if both else z


def _gated(function: Callable[..., Tensor], a: Any, b: Any) -> Tensor:
    """A product with a gate, the output of an activation: all relevance to the other factor (CP-LRP)."""
    if variables(a, b) < 2 or op.is_gate(a) == op.is_gate(b):
        return _times(function, a, b)
    return function(a.detach(), b) if op.is_gate(a) else function(a, b.detach())


def _gate(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    return op.mark_gate(function(*args, **kwargs))


def _by_constant(function: Callable[..., Tensor], a: Any, b: Any, **options: Any) -> Tensor:
    """A quotient, or a product in place, conserves relevance only if its second operand is constant."""
    return (op.without_rule(function) if variables(b) else function)(a, b, **options)


def _activation(function: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    with torch.no_grad():
        y = function(x, *args, **kwargs)
    return _identity(x, y)


def _identity_of(_: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    return _identity(x, y)


def _gate_of(_: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    return op.mark_gate(_identity(x, y))


_WHOLE: Mapping[str, op.ActivationRule] = {"attnlrp": _identity_of, "cp": _gate_of}
"""The rule for whole activations, by the name of the rules."""


def _identity(x: Tensor, y: Tensor) -> Tensor:
    """The identity rule: relevance is unchanged, which as a derivative is f(x)/x."""
    return sloped(x, y, share(y, x, 0.0))


def _constant(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    return function(*args, **kwargs).detach()


def _power(function: Callable[..., Tensor], x: Tensor, exponent: Any) -> Tensor:
    """Hold x^±½ constant: some models write the standard deviation of their norm this way."""
    y = function(x, exponent)
    return y.detach() if isinstance(exponent, float) and abs(exponent) == 0.5 else y


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """The standard deviation is held constant, the mean is not (LN-rule of Ali et al. 2022)."""
    return op.layer_norm(x, shape, weight, bias, eps)


def _rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    return _identity(x, fn.rms_norm(x, list(shape), weight, eps))


def _lstm_step(x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor], *, epsilon: float) -> tuple[Tensor, Tensor]:
    """All relevance to the signal, none to the gates; sums by ε, tanh by identity (Arras et al. 2017, sec. 3.1)."""
    i, f, g, o = _gates(x, h, weights)
    i, f, o = (gate.sigmoid().detach() for gate in (i, f, o))
    signal = sloped(g, g.tanh(), share(g.tanh(), g, epsilon))
    total = f * c + i * signal
    c = sloped(total, total, share(total, total, epsilon))
    return _identity(c, o * c.tanh()), c


def _gates(x: Tensor, h: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
    bias_x, bias_h = weights[2:] if len(weights) == 4 else (None, None)
    return (fn.linear(x, weights[0], bias_x) + fn.linear(h, weights[1], bias_h)).chunk(4, -1)


def deep_lift(model: Model, batch: Batch, target: Targets, /, *, baseline: Replacement | None = None) -> Attribution:
    """The difference from a baseline, distributed by the slopes between the two: (e_i − b_i) · m_i.

    The rescale rule: an elementwise function propagates Δy/Δx instead of its derivative. Functions of several inputs
    (softmax, norms, products of two factors that both depend on the text) keep their derivative at the text, so the
    scores add up to f(x) − f(b) only for models without them. The gap ``completeness`` is the difference.

    Paper: Shrikumar et al. 2017, arXiv:1704.02685
    Cost: 1 forward, 1 backward, each on twice the rows
    Needs: an embedding layer; attention that can be computed step by step; no mixture of experts
    """
    if any(type(part).__name__.endswith(EXPERTS) for part in model.module.modules()):
        raise UnsupportedModel(_not_paired(f"{model.name} sends tokens to different experts"))
    baseline = baseline or usual(model)
    x, b = model.embed(batch), replaced(model, batch, batch.content, baseline)

    def lift(items: list[int]) -> tuple[Tensor, Tensor]:
        texts = torch.tensor(items, device=x.device)
        return _deep_lift(model, batch.take(texts), target.take(texts), x[texts], b[texts])

    # A packed LSTM sorts its rows, so a pair stays together only if it is alone in its pass.
    alone = any(isinstance(part, nn.LSTM) for part in model.module.modules())
    pairs = list(model.executor.run([2 * batch.width] * len(batch), lift, alone=alone))
    scores, gaps = (in_order(len(batch), ((items, result[i]) for items, result in pairs)) for i in range(2))
    return Attribution(scores, gaps={"completeness": gaps}, settings={"baseline": baseline})


def _deep_lift(
    model: Model, batch: Batch, target: Targets, x: Float[Tensor, "b t d"], b: Float[Tensor, "b t d"]
) -> tuple[Float[Tensor, "b t"], Float[Tensor, " b"]]:
    """Scores and completeness gap of texts that share one pass with their baselines, texts first."""
    rows = torch.arange(len(batch), device=x.device).repeat(2)
    both = target.take(rows)
    within = partial(apply_rules, model.module, rescale(len(batch)), partial(_rescaled, texts=len(batch)))
    result = differentiate(
        model, batch.take(rows), both, needs=_WRITTEN_OUT, embeddings=torch.cat([x, b]), within=within
    )
    assert result.gradient is not None
    scores = dot(result.gradient[: len(batch)], x - b) * batch.mask
    at_x, at_b = both(result.output.logits).chunk(2)
    return scores, scores.sum(1) - (at_x - at_b)


def rescale(texts: int) -> op.RuleTable:
    """Build the table of the rescale rule, for rows that hold the texts followed by their baselines."""
    return {
        **{f: partial(_rescaled_call, texts, f) for f in (*op.ACTIVATIONS, *op.SQUASHED)},
        torch.lstm: stepwise(partial(_rescaled_lstm_step, texts=texts)),
    }


def _rescaled_lstm_step(
    x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor], *, texts: int
) -> tuple[Tensor, Tensor]:
    i, f, g, o = _gates(x, h, weights)
    i, f, o = (_rescaled_call(texts, torch.sigmoid, gate) for gate in (i, f, o))
    c = f * c + i * _rescaled_call(texts, torch.tanh, g)
    return o * _rescaled_call(texts, torch.tanh, c), c


def _rescaled_call(texts: int, function: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _rescaled(lambda x: function(x, *args, **kwargs), x, function(x, *args, **kwargs), texts=texts)


def _rescaled(function: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, *, texts: int) -> Tensor:
    """y = function(x) with dy/dx := Δy/Δx, or the derivative where text and baseline are nearly equal."""
    if not x.requires_grad:
        return y
    if x.shape[0] % (2 * texts):  # merging the batch dimension with tokens or heads keeps the two halves separate
        raise UnsupportedModel(_not_paired(f"the model has {x.shape[0]} rows where {2 * texts} went in"))
    slope, near = _multiplier(function, x.detach().double())
    return torch.where(near, y, sloped(x, y, slope.to(x.dtype)))


def _not_paired(why: str) -> str:
    return (
        f"deep_lift runs every text together with its baseline, but {why}, so the two cannot be matched. Use a "
        "gradient method such as integrated_gradients."
    )


def _multiplier(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Δy/Δx between the two halves of the rows, and a mask of where Δx is too small.

    Computed in double precision whatever the model's dtype: in single precision a small difference is only rounding.
    """
    y = function(x)
    delta = x - x.roll(len(x) // 2, 0)
    near = delta.abs() < torch.finfo(x.dtype).eps ** 0.5
    return (y - y.roll(len(y) // 2, 0)) / delta.masked_fill(near, 1), near
