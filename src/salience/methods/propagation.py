"""Methods that send the prediction back through the model by rules of their own instead of derivatives."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as fn

from salience.batching import chunks
from salience.erasure import Replacement, replaced, usual
from salience.errors import BadInput, UnsupportedModel, choose
from salience.methods import rules as op
from salience.methods.recurrent import stepwise
from salience.methods.rules import following, share, sloped, variables
from salience.models.pooled import Pooled
from salience.passes import Needs, differentiate
from salience.types import Attribution, Batch, Model, Targets

RuleSet = Literal["attnlrp", "cp", "conservative"]
RULES = get_args(RuleSet)
ROUTERS = ("Experts", "SparseMoeBlock", "TopKRouter")
"""How transformers ends the names of modules that send tokens to different experts."""
_SEEN = Needs.GRADIENT | Needs.WRITTEN_OUT


def lrp(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    rules: RuleSet | None = None,
    epsilon: float | None = None,
    gamma: float = 0.0,
) -> Attribution:
    """Layer-wise relevance propagation: the explained number shared out backwards, layer by layer.

    Linear layers by R_i = Σ_j x_i w_ij / (z_j + ε sign z_j) R_j, LSTMs with all relevance for the signal and none for
    the gates, and the rest of a transformer by ``rules``: ``attnlrp``, ``cp`` (the same with attention held constant)
    or ``conservative`` (gradient × input with attention and the norms' standard deviations held constant).

    Paper: Bach et al. 2015, 10.1371/journal.pone.0130140; LSTM: Arras et al. 2017, arXiv:1706.07206; transformers:
    Ali et al. 2022, arXiv:2202.07304, Achtibat et al. 2024, arXiv:2402.05602
    Cost: 1 forward, 1 backward
    Needs: an embedding layer; attention that can be written out
    """
    # A pooled model's attention weighs its states as a gate does, and gates get nothing (Arras et al. 2017).
    pooled = isinstance(model.module, Pooled)
    rules = rules or ("cp" if pooled else "attnlrp")
    epsilon = (1e-3 if pooled else 1e-6) if epsilon is None else epsilon
    table = relevance(rules, epsilon, gamma)
    whole = None if rules == "conservative" else _identity_of
    within = following(model.module, table, whole)
    seen = differentiate(model, batch, target, needs=_SEEN, within=within)
    assert seen.gradient is not None
    scores = _summed(seen.gradient * seen.output.embeddings, batch)
    gap = scores.sum(1) - _started(target, seen.output.logits)
    return Attribution(scores, gaps={"conservation": gap}, settings={"rules": rules, "epsilon": epsilon})


def _summed(products: Float[Tensor, "b t d"], batch: Batch) -> Float[Tensor, "b t"]:
    return products.to(torch.promote_types(products.dtype, torch.float32)).sum(-1) * batch.mask


def _started(target: Targets, logits: Float[Tensor, "b c"]) -> Float[Tensor, " b"]:
    """The relevance that the logits begin with, Σ_c z_c ∂f/∂z_c: f itself for a logit or a difference of two."""
    with torch.enable_grad():
        z = logits.detach().requires_grad_()
        (slope,) = torch.autograd.grad(target(z).sum(), z)
    return (z.detach() * slope).sum(1)


def relevance(rules: str, epsilon: float, gamma: float) -> op.Table:
    """The stand-ins of one set of rules."""
    choose(rules, RULES, "rules")
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
    if rules != "attnlrp":
        table |= {f: partial(_constant, f) for f in op.SOFTMAX}
    table |= {f: partial(_matmul, f, epsilon, rules) for f in op.MATMUL}
    if rules != "conservative":
        table |= {f: partial(_times, f) for f in op.TIMES}
        table |= {f: partial(_activation, f) for f in op.ACTIVATIONS}
    return table


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, epsilon: float, gamma: float) -> Tensor:
    """R_i = Σ_j (p_ij + γ p'_ij) / (Σ_i p_ij + γ p'_ij + ε sign) R_j with p_ij = x_i w_ij and the bias in the sum.

    p' is the part of p that has the sign of z_j: for x ≥ 0 and z_j > 0 this is the familiar w + γ w⁺, and it cannot
    divide by a sum that γ itself has brought near 0.
    """
    z = fn.linear(x, weight, bias)
    boosted = z
    if gamma > 0:
        boosted = z + gamma * torch.where(z > 0, _with_sign(1, x, weight, bias), _with_sign(-1, x, weight, bias))
    return sloped(boosted, z, share(z, boosted, epsilon))


def _with_sign(sign: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The sum of all x_i w_ij (and b_j) that are positive, or of all that are negative."""
    same, other = sign * (sign * weight).relu(), -sign * (-sign * weight).relu()
    own_bias = None if bias is None else sign * (sign * bias).relu()
    return fn.linear(x.relu(), same, own_bias) + fn.linear(-(-x).relu(), other)


def _matmul(function: Callable[..., Tensor], epsilon: float, rules: str, *operands: Any) -> Tensor:
    """The ε-rule, with half of the relevance for each operand if both depend on the input (AttnLRP, eq. 15)."""
    z = function(*operands)
    parts = 1 if rules == "conservative" else max(1, variables(*operands))
    return sloped(z, z, share(z, z, epsilon) / parts)


def _times(function: Callable[..., Tensor], a: Any, b: Any) -> Tensor:
    """Half of the relevance for each factor if both depend on the input, otherwise all for the one that does."""
    z = function(a, b)
    return sloped(z, z, 0.5) if variables(a, b) == 2 else z


def _activation(function: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _identity(x, function(x, *args, **kwargs))


def _identity_of(_: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    return _identity(x, y)


def _identity(x: Tensor, y: Tensor) -> Tensor:
    """R_i = R_i: as a derivative, f(x)/x."""
    return sloped(x, y, share(y, x, 0.0))


def _constant(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    return function(*args, **kwargs).detach()


def _power(function: Callable[..., Tensor], x: Tensor, exponent: Any) -> Tensor:
    """x^±½ is how some models write the standard deviation of their norm."""
    y = function(x, exponent)
    return y.detach() if isinstance(exponent, float) and abs(exponent) == 0.5 else y


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """The standard deviation is held constant, the mean is not (LN-rule of Ali et al. 2022)."""
    dims = tuple(range(-len(shape), 0))
    scale = (x.var(dims, correction=0, keepdim=True) + eps).rsqrt()
    y = (x - x.mean(dims, keepdim=True)) * (scale if weight is None else scale * weight).detach()
    return sloped(y, fn.layer_norm(x, list(shape), weight, bias, eps), 1.0)


def _rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    return _identity(x, fn.rms_norm(x, list(shape), weight, eps))


def _lstm_step(x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor], *, epsilon: float) -> tuple[Tensor, Tensor]:
    """Gates get nothing, signals all; sums by ε, tanh by identity (Arras et al. 2017, sec. 3.1)."""
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
    """The difference to a baseline shared out by slopes between the two: (e_i − b_i) · m_i.

    The rescale rule: an elementwise function passes on Δy/Δx in place of its derivative. What mixes several inputs
    (softmax, norms, products of two things that both depend on the text) keeps its derivative at the text, so the
    scores add up to f(x) − f(b) only for models without any of these; ``gaps`` says by how much they miss it.

    Paper: Shrikumar et al. 2017, arXiv:1704.02685
    Cost: 1 forward, 1 backward, each on twice the rows
    Needs: an embedding layer; attention that can be written out; no mixture of experts
    """
    if any(type(part).__name__.endswith(ROUTERS) for part in model.module.modules()):
        raise UnsupportedModel(_unpaired(f"{model.name} sends tokens to different experts"))
    baseline = baseline or usual(model)
    x, b = model.embed(batch), replaced(model, batch, batch.content, baseline)
    scores, gaps = [], []
    for rows in _pairs(model, batch):
        texts = torch.arange(rows.start, rows.stop, device=x.device)
        found, gap = _lifted(model, batch.take(texts), target.take(texts), x[rows], b[rows])
        scores.append(found)
        gaps.append(gap)
    return Attribution(torch.cat(scores), gaps={"completeness": torch.cat(gaps)}, settings={"baseline": baseline})


def _pairs(model: Model, batch: Batch) -> list[slice]:
    """Which texts share a pass. A packed LSTM sorts its rows, so that only a lone pair is sure to stay together."""
    if any(isinstance(part, nn.LSTM) for part in model.module.modules()):
        return [slice(row, row + 1) for row in range(len(batch))]
    return list(chunks(len(batch), 2 * batch.width, model.budget))


def _lifted(
    model: Model, batch: Batch, target: Targets, x: Float[Tensor, "b t d"], b: Float[Tensor, "b t d"]
) -> tuple[Float[Tensor, "b t"], Float[Tensor, " b"]]:
    """Scores and completeness gap of texts that run in one pass with their baselines below them."""
    rows = torch.arange(len(batch), device=x.device).repeat(2)
    both = target.take(rows)
    within = following(model.module, rescale(len(batch)), partial(_rescaled, texts=len(batch)))
    seen = differentiate(model, batch.take(rows), both, needs=_SEEN, embeddings=torch.cat([x, b]), within=within)
    assert seen.gradient is not None
    scores = _summed(seen.gradient[: len(batch)] * (x - b), batch)
    at_x, at_b = both(seen.output.logits).chunk(2)
    return scores, scores.sum(1) - (at_x - at_b)


def rescale(texts: int) -> op.Table:
    """The stand-ins of the rescale rule for rows that hold the texts, then as many baselines."""
    return {
        **{f: partial(_rescaled_call, texts, f) for f in (*op.ACTIVATIONS, *op.SQUASHED)},
        torch.lstm: stepwise(partial(_plain_lstm_step, texts=texts)),
    }


def _plain_lstm_step(
    x: Tensor, h: Tensor, c: Tensor, weights: Sequence[Tensor], *, texts: int
) -> tuple[Tensor, Tensor]:
    i, f, g, o = _gates(x, h, weights)
    i, f, o = (_rescaled_call(texts, torch.sigmoid, gate) for gate in (i, f, o))
    c = f * c + i * _rescaled_call(texts, torch.tanh, g)
    return o * _rescaled_call(texts, torch.tanh, c), c


def _rescaled_call(texts: int, function: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return _rescaled(lambda x: function(x, *args, **kwargs), x, function(x, *args, **kwargs), texts=texts)


def _rescaled(function: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, *, texts: int) -> Tensor:
    """y = function(x) with dy/dx := Δy/Δx, or the derivative where text and baseline hardly differ."""
    if not x.requires_grad:
        return y
    if x.shape[0] % (2 * texts):  # a view that joins texts with their tokens or heads keeps the halves apart
        raise UnsupportedModel(_unpaired(f"the model has {x.shape[0]} rows where {2 * texts} went in"))
    slope, near = _multiplier(function, x.detach().double())
    return torch.where(near, y, sloped(x, y, slope.to(x.dtype)))


def _unpaired(why: str) -> str:
    return (
        f"deep_lift sets every text beside its baseline, and {why}, so that the two cannot be told apart. Choose a "
        "gradient method such as integrated_gradients."
    )


def _multiplier(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Δy/Δx between the two halves of the rows, and where Δx is too small.

    In double precision, whatever the model's: of a small difference in single precision only rounding is left.
    """
    y = function(x)
    way = x - x.roll(len(x) // 2, 0)
    near = way.abs() < torch.finfo(x.dtype).eps ** 0.5
    return (y - y.roll(len(y) // 2, 0)) / way.masked_fill(near, 1), near
