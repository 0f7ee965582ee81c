"""Layer saliency: the scores of a hidden layer, decoded to words of the input by a language model head."""

from collections.abc import Mapping
from typing import Any, Literal, get_args
from warnings import warn

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from salience.core.erasure import Replacement, replaced, usual
from salience.core.executor import Executor
from salience.core.passes import Needs, Pass, forward, one_pass
from salience.core.rows import Rows, in_order, observed
from salience.core.settings import Fraction, Nodes
from salience.core.types import Attribution, Batch, LanguageHead, Model, Site
from salience.errors import BadInput, ImpreciseScores, choose
from salience.methods import quadrature
from salience.methods.attention import SIGNS, Layer, Sign, layer_number
from salience.methods.decoding import automatic_layer, find_head, head_logits
from salience.methods.gradient import dot, reduced

LayerScore = Literal["input_x_gradient", "gradient", "integrated_gradients"]
SCORES = get_args(LayerScore)
Decode = Literal["softmax", "logits", "restricted", "identity"]
DECODES = get_args(Decode)
Normalise = Literal["rows", "columns"]

CANCELLED = 1e-5
"""Contributions whose sum is less than this share of the sum of their sizes are rounding errors."""


def _settle(model: Model, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Load the head and choose the layer, once for all batches."""
    layer, head = settings["layer"], settings["head"]
    if layer is not None and (layer == 0 or settings["decode"] == "identity"):
        return dict(settings)
    lm = find_head(model, head)
    return {**settings, "head": lm, "layer": automatic_layer(model, lm) if layer is None else layer}


@one_pass(Needs.HIDDEN, settle=_settle, first_layer=0)
def layer_saliency(
    result: Pass,
    *,
    layer: Layer = None,
    score: LayerScore = "input_x_gradient",
    decode: Decode = "softmax",
    normalise: Normalise | None = None,
    position: Fraction = 0.0,
    sign: Sign = "positive",
    head: str | LanguageHead | None = None,
    baseline: Replacement | None = None,
    nodes: Nodes = 20,
) -> Attribution:
    """A layer's contributions, decoded to words of the input: ReLU(D_l v_l), D_l[t, i] = P_l[i, id(x_t)].

    v_i = Σ_k ∂f/∂h_ik · h_ik, and P_l is the LM head's softmax over the vocabulary. Layer 0 is the embeddings, where D
    is the identity; ``layer=None`` chooses the deepest layer that is still coherent (see :func:`coherence`).

    Paper: Hou & Castanon 2023, Decoding Layer Saliency in Language Transformers, arXiv:2308.05219
    Cost: 1 forward, 1 backward for all layers, and the head once per layer; times nodes for integrated_gradients
    Needs: hidden states and a language model head (none for layer 0 or decode="identity")
    """
    _check(score, decode, normalise, sign)
    model, batch = result.model, result.batch
    lm = find_head(model, head) if layer is None or (layer != 0 and decode != "identity") else None
    number = (
        automatic_layer(model, lm) if lm and layer is None else layer_number(layer, model, of=model.layers, first=0)
    )
    v = _contributions(result, number, score, baseline, nodes)
    if lm is None or number == 0 or decode == "identity":
        s, head_settings = v.scores, {"head": None}
    else:
        D = _decoded(model.executor, lm, result.output.hidden[number], batch, decode)
        weights = _weighted(D, batch, position, normalise).to(v.scores)
        s, head_settings = (weights @ v.scores[..., None])[..., 0], lm.description
    s = s.relu() if sign == "positive" else s
    settings = {"layer": number, **head_settings, **v.settings}
    return Attribution(s * batch.content, v.gaps, settings, signed=sign == "signed")


def _check(score: str, decode: str, normalise: str | None, sign: str) -> None:
    choose(score, SCORES, "score")
    choose(decode, DECODES, "decode")
    choose(sign, SIGNS, "sign")
    if normalise is not None:
        choose(normalise, get_args(Normalise), "normalise")
        if decode == "logits":
            raise BadInput(
                "decode='logits' cannot be normalised, as logits have both signs; use decode='restricted' or 'softmax'"
            )


def _contributions(result: Pass, number: int, score: str, baseline: Replacement | None, nodes: int) -> Attribution:
    """v: the contribution of the state at each position to the explained number."""
    h, g = result.output.hidden[number], result.hidden_gradient[number]
    if score == "gradient":
        return Attribution(reduced(g, "l2") * result.batch.mask)
    if score == "input_x_gradient":
        return Attribution(_input_x_gradient(result, number, h, g))
    return _along_path(result, number, baseline or usual(result.model), nodes)


def _input_x_gradient(
    result: Pass, number: int, h: Float[Tensor, "b t k"], g: Float[Tensor, "b t k"]
) -> Float[Tensor, "b t"]:
    """Σ_k g_k h_k. It is 0 where only the direction of a state matters, as before a norm, by Euler's theorem."""
    v, sizes = dot(h, g) * result.batch.mask, dot(h.abs(), g.abs())
    cancelled = (v.abs().amax(1) < CANCELLED * sizes.amax(1))[:, None]
    if bool(cancelled.any()):
        warn(
            f"layer {number} of {result.model.name} is followed by a norm, so the length of its states does not matter "
            "and the contributions of input_x_gradient are 0; choose another layer, or score='integrated_gradients'",
            ImpreciseScores,
            stacklevel=2,
        )
    return v.masked_fill(cancelled, 0.0)


def _along_path(result: Pass, number: int, baseline: Replacement, nodes: int) -> Attribution:
    """Integrated gradients from the baseline input's states at this layer."""
    model, batch = result.model, result.batch
    start = forward(model, batch, embeddings=replaced(model, batch, batch.content, baseline), hidden=True)
    wide = torch.promote_types(start.hidden[number].dtype, torch.float32)
    h = start.hidden[number].to(wide)
    delta = result.output.hidden[number] - h
    alphas, weights = (torch.from_numpy(x).to(h) for x in quadrature.fixed("gauss_legendre", nodes))

    def point(site: Site, rows: Int[Tensor, " k"], states: Tensor) -> Tensor:
        if site.layer != number:
            return states
        text, width = rows // nodes, states.shape[1]
        at = h[text, :width] + alphas[rows % nodes, None, None] * delta[text, :width]
        return at.to(states).requires_grad_()

    text, mean = torch.arange(len(batch), device=h.device).repeat_interleave(nodes), torch.zeros_like(h)
    for part, at_node in observed(model, Rows(batch, text, edit_hidden=point), result.target, Needs.HIDDEN):
        weighted = at_node.hidden_gradient[number] * weights[part.rows % nodes, None, None]
        mean[:, : part.batch.width].index_add_(0, part.text, weighted.to(mean))
    v = dot(mean, delta) * batch.mask
    drop = result.target(result.output.logits) - result.target(start.logits)
    return Attribution(v, {"completeness": v.sum(1) - drop}, {"baseline": baseline})


def _decoded(
    executor: Executor, head: LanguageHead, hidden: Float[Tensor, "b t k"], batch: Batch, decode: str
) -> Float[Tensor, "b t t"]:
    """D[t, i]: the score of the word at t, decoded from the state at i. Only the text's own words are decoded."""
    own = _probabilities(executor, head, hidden, batch) if decode == "softmax" else head(hidden, batch.ids).float()
    if decode == "restricted":
        distinct = own.masked_fill(~_first_occurrences(batch)[:, None], -torch.inf)
        own = (own - distinct.logsumexp(2, keepdim=True)).exp()
    return (own * (batch.mask[:, :, None] & batch.mask[:, None])).transpose(1, 2)


def _probabilities(
    executor: Executor, head: LanguageHead, hidden: Float[Tensor, "b t k"], batch: Batch
) -> Float[Tensor, "b t t"]:
    """The softmax probabilities of the text's own words, at every real state."""
    rows = batch.mask.nonzero()[:, 0]
    P = hidden.new_zeros(*batch.ids.shape, batch.width, dtype=torch.float32)
    P[batch.mask] = in_order(
        len(rows),
        (
            (items, (logits.gather(1, batch.ids[rows[items]]) - logits.logsumexp(1, keepdim=True)).exp())
            for items, logits in head_logits(executor, head, hidden[batch.mask])
        ),
    )
    return P


def _first_occurrences(batch: Batch) -> Bool[Tensor, "b t"]:
    """Real tokens that do not occur earlier in their text."""
    same = batch.ids[:, :, None] == batch.ids[:, None]
    return batch.mask & ~(same.tril(-1) & batch.mask[:, None]).any(2)


def _weighted(
    D: Float[Tensor, "b t t"], batch: Batch, position: float, normalise: str | None
) -> Float[Tensor, "b t t"]:
    """Weight D towards each word's own position, then normalise rows or columns."""
    mixed = D * ((1 - position) + position * torch.eye(batch.width, device=D.device)) if position else D
    if normalise is None:
        return mixed
    return mixed / mixed.sum(2 if normalise == "rows" else 1, keepdim=True).clamp_min(torch.finfo(D.dtype).tiny)
