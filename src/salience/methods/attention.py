"""Methods based on attention weights: alone, with their gradients, or traced through the layers."""

from collections.abc import Iterable, Sequence
from functools import partial, reduce
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from salience.core.passes import Needs, Pass, one_pass
from salience.core.rows import distinct_texts
from salience.core.types import Attribution, Batch, Block, Model, Reduction, Replays, Site, Targets
from salience.errors import BadInput, UnsupportedModel, choose
from salience.methods.sinks import separate_sink

Layer = int | Literal["all"] | None
"""A layer number, counted from the end if negative. ``"all"`` is for ``explain``: one explanation per layer."""
QueryRow = Literal["auto", "cls", "last", "mean"]
ROWS = get_args(QueryRow)
Heads = Literal["mean", "max"] | Sequence[int]
Sign = Literal["signed", "positive"]
SIGNS = get_args(Sign)

UNIT = 2**30
"""Flow capacities are rounded to multiples of 1 / UNIT, the largest power of two that fits 32-bit integers."""


def _layer_of(model: Model, _: Batch, /, *, layer: Layer = None, heads: Heads = "mean", **__: object) -> Reduction:
    """Keep one layer, with its heads combined."""
    number = layer_number(layer, model, of=model.layers)

    def reduction(site: Site, a: Float[Tensor, "b h q t"]) -> Float[Tensor, "b 1 q t"] | None:
        return _merged(a, heads)[:, None] if site.layer == number else None

    return reduction


def _mixed_with_residual(model: Model, batch: Batch, /, **_: object) -> Reduction:
    """Keep the mean over heads, mixed with the residual."""

    def reduction(_: Site, a: Float[Tensor, "b h q t"]) -> Float[Tensor, "b 1 q t"]:
        if model.single_query:
            raise UnsupportedModel(_one_query(model, "attention_rollout"))
        return _with_residual(a, model, batch)[:, None]

    return reduction


@one_pass(Needs.ATTENTION, reduce=_layer_of)
def attention(
    result: Pass, *, layer: Layer = None, heads: Heads = "mean", row: QueryRow = "auto", without_sink: bool = False
) -> Attribution:
    """The attention weight of each token at the position the classifier reads: a_i, averaged over heads.

    The last layer is used unless ``layer`` names another one. ``without_sink`` sets the score of the first token to 0,
    on which decoders rest much of their attention.

    Paper: Bahdanau et al. 2015, arXiv:1409.0473; whether it is an explanation: Jain & Wallace 2019, arXiv:1902.10186
    Cost: 1 forward
    Needs: attention weights
    """
    number = layer_number(layer, result.model, of=result.model.layers)
    scores = _read(result.output.attention[0][:, 0], result.model, result.batch, row, result.target)
    attribution = Attribution(scores, settings={"layer": number}, signed=False)
    return separate_sink(attribution, result.model, result.batch, without_sink=without_sink)


@one_pass(Needs.ATTENTION, reduce=_mixed_with_residual)
def attention_rollout(result: Pass, *, row: QueryRow = "auto", without_sink: bool = False) -> Attribution:
    """Attention multiplied through all layers, with half of each step through the residual: Π_l (½ A_l + ½ I).

    ``without_sink`` sets the score of a decoder's first token to 0.

    Paper: Abnar & Zuidema 2020, arXiv:2005.00928, section 3
    Cost: 1 forward
    Needs: attention weights from every token to every token
    """
    scores = readout(result.model, result.batch, row, result.target)
    for step in reversed(result.output.attention):  # a row times a matrix costs much less than a matrix times a matrix
        scores = (scores[..., None] * step[:, 0]).sum(1)  # sum() rounds less than a product does
    attribution = Attribution(scores, signed=False)
    return separate_sink(attribution, result.model, result.batch, without_sink=without_sink)


@one_pass(Needs.ATTENTION)
def attention_flow(result: Pass, *, row: QueryRow = "auto") -> Attribution:
    """The maximum flow from each token to the readout, with ½ A_l + ½ I as the capacities between layers.

    Paper: Abnar & Zuidema 2020, arXiv:2005.00928, section 3
    Cost: 1 forward, and one maximum flow per token on the CPU
    Needs: attention weights from every token to every token
    """
    steps = torch.stack(
        [_with_residual(a, result.model, result.batch) for a in _token_to_token(result, "attention_flow")], 1
    )
    r = readout(result.model, result.batch, row, result.target)
    flows = torch.zeros_like(r)
    for text, n in enumerate(result.batch.mask.sum(1).tolist()):
        flow = _maximum_flows(steps[text, :, :n, :n].cpu().double().numpy(), r[text, :n].cpu().double().numpy())
        flows[text, :n] = torch.from_numpy(flow).to(flows)
    return Attribution(flows, signed=False)


@one_pass(Needs.ATTENTION_GRADIENT)
def attention_x_gradient(result: Pass, *, layer: Layer = None, sign: Sign = "signed") -> Attribution:
    """The first-order effect of the attention that a token receives: Σ_h Σ_q a_qi · ∂f/∂a_qi.

    The last layer is used unless ``layer`` names another one. ``sign="positive"`` drops negative terms before the sum.

    Paper: Serrano & Smith 2019, arXiv:1906.03731; with the positive part Barkan et al. 2021, arXiv:2204.11073
    Cost: 1 forward, 1 backward
    Needs: attention weights with gradients
    """
    number = layer_number(layer, result.model, of=result.model.layers)
    effect = (result.output.attention[number - 1] * result.attention_gradient[number - 1]).float()
    kept = effect.relu() if choose(sign, SIGNS, "sign") == "positive" else effect
    scores = _real(kept.sum(1), result.model, result.batch).sum(1)
    return Attribution(scores, settings={"layer": number}, signed=sign == "signed")


@one_pass(Needs.ATTENTION_GRADIENT)
def attention_relevance(result: Pass, *, row: QueryRow = "auto") -> Attribution:
    """Relevance propagated through all layers by attention that supports the target: R ← R + mean_h (∇A ⊙ A)⁺ R.

    Paper: Chefer et al. 2021, arXiv:2103.15679, eq. 5 and 6
    Cost: 1 forward, 1 backward
    Needs: attention weights with gradients, from every token to every token
    """
    relevance = torch.eye(result.batch.width, device=result.batch.ids.device)
    for a, g in zip(_token_to_token(result, "attention_relevance"), result.attention_gradient, strict=True):
        relevance = relevance + _real((a * g).float().relu().mean(1), result.model, result.batch) @ relevance
    return Attribution(_read(relevance, result.model, result.batch, row, result.target), signed=False)


def value_zeroing(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    layer: Layer = None,
    row: QueryRow = "auto",
    without_sink: bool = False,
) -> Attribution:
    """How much each token's value vector changes the others: C_ij = 1 − cos(x_i, x_i without value j), over all layers.

    Each layer is run again on its own inputs with one value vector set to zero. Rows of C are normalised, and the C of
    all layers are multiplied; with ``layer`` only that layer's C is used. ``without_sink`` sets the score of a
    decoder's first token to 0.

    Paper: Mohebbi et al. 2023, arXiv:2301.12971, section 3
    Cost: 1 forward, plus 1 per token
    Needs: attention that can be edited, from every token to every token
    """
    if model.single_query:
        raise UnsupportedModel(_one_query(model, "value_zeroing"))
    if not isinstance(model, Replays):
        raise UnsupportedModel(
            f"value_zeroing runs single layers again, which {model.name} cannot do (its adapter has no replay()); "
            "use attention_rollout or occlusion"
        )
    chosen = slice(None) if layer is None else slice((n := layer_number(layer, model, of=model.layers)) - 1, n)
    texts, same = distinct_texts(batch)
    with model.replay(texts) as blocks:
        changes = [_changes(block, model, texts) for block in blocks[chosen]]
    attribution = Attribution(_read(_product(changes)[same], model, batch, row, target), signed=False)
    return separate_sink(attribution, model, batch, without_sink=without_sink)


def layer_number(layer: Layer, model: Model, *, of: int, first: int = 1) -> int:
    """Return the layer number, from ``first`` to ``of``: counted from the end if negative, the last if None."""
    if layer is None:
        return of
    if layer == "all":
        raise BadInput(
            "a method reads one layer at a time; layer='all' is supported by salience.explain, which runs the method "
            "once per layer"
        )
    number = layer + of + 1 if layer < 0 else layer
    if not first <= number <= of:
        raise BadInput(f"there is no layer {layer}: {model.name} has layers {first} to {of}, and -1 is the last")
    return number


def _merged(a: Float[Tensor, "b h q t"], heads: Heads) -> Float[Tensor, "b q t"]:
    """Combine the heads into one weight per pair of positions."""
    if isinstance(heads, str):
        return a.mean(1) if choose(heads, ("mean", "max"), "heads") == "mean" else a.amax(1)
    if not heads or not all(1 <= n <= a.shape[1] for n in heads):
        raise BadInput(f"heads={list(heads)} is not valid: the heads are numbered 1 to {a.shape[1]}")
    return a[:, [n - 1 for n in heads]].mean(1)


def _real(a: Float[Tensor, "b q t"], model: Model, batch: Batch) -> Float[Tensor, "b q t"]:
    """Set the weights from and to padding to zero. A single query is never padding."""
    kept = a * batch.mask[:, None]
    return kept if model.single_query else kept * batch.mask[..., None]


def _read(a: Float[Tensor, "b q t"], model: Model, batch: Batch, row: str, target: Targets) -> Float[Tensor, "b t"]:
    """Return the row that the classifier reads, or the mean of the rows it reads."""
    r = readout(model, batch, row, target)
    if model.single_query:  # there is only one row
        r = torch.ones_like(r[:, :1])
    return (r[:, None] @ _real(a.float(), model, batch))[:, 0]


def readout(model: Model, batch: Batch, row: str, target: Targets | None = None) -> Float[Tensor, "b q"]:
    """Return the weight of each query position; rows sum to 1. By default, those that the target is read from."""
    if choose(row, ROWS, "row") == "auto":
        own = None if target is None else target.read_from
        return (model.read_from(batch) if own is None else own).float()
    real = batch.mask.float()
    if row == "mean":
        return real / real.sum(1, keepdim=True)
    at = torch.zeros_like(batch.mask.sum(1)) if row == "cls" else batch.mask.sum(1) - 1
    return torch.nn.functional.one_hot(at, batch.width).float()


def _token_to_token(result: Pass, method: str) -> Iterable[Float[Tensor, "b h t t"]]:
    if result.model.single_query:
        raise UnsupportedModel(_one_query(result.model, method))
    return result.output.attention


def _one_query(model: Model, method: str) -> str:
    return (
        f"{method} follows attention from token to token, but {model.name} has a single query over all tokens. "
        "Use 'attention' or 'attention_x_gradient'."
    )


def _with_residual(a: Float[Tensor, "b h t t"], model: Model, batch: Batch) -> Float[Tensor, "b t t"]:
    """½ A + ½ I, averaged over heads, with rows that sum to 1 over the real tokens; padding attends to itself."""
    mixed = 0.5 * _real(a.float().mean(1), model, batch) + 0.5 * torch.eye(batch.width, device=a.device)
    return mixed / mixed.sum(-1, keepdim=True)


def _product(steps: Sequence[Float[Tensor, "b t t"]]) -> Float[Tensor, "b t t"]:
    return reduce(lambda below, above: above @ below, steps)


def _maximum_flows(steps: np.ndarray, r: np.ndarray) -> np.ndarray:
    """The maximum flow from each token of layer 0 to the readout, whose edges have the capacities r.

    Rounding each capacity to 1 / UNIT changes a flow by at most (edges of its smallest cut) / 2 UNIT.
    """
    layers, n, _ = steps.shape
    nodes = np.arange((layers + 1) * n).reshape(-1, n)
    above = [np.full(n, nodes.size), *(upper.repeat(n) for upper in nodes[1:])]
    below = [nodes[-1], *(np.tile(lower, n) for lower in nodes[:-1])]
    capacity = np.rint(np.concatenate([r, steps.ravel()]) * UNIT).astype(np.int32)
    size = nodes.size + 1
    kept = capacity > 0
    edges = (capacity[kept], (np.concatenate(above)[kept], np.concatenate(below)[kept]))
    # Imported here, as it would delay the start of every command.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    graph = csr_array(edges, shape=(size, size))
    return np.array([maximum_flow(graph, size - 1, token).flow_value for token in range(n)]) / UNIT


def _changes(block: Block, model: Model, batch: Batch) -> Float[Tensor, "b t t"]:
    """C of one layer, with normalised rows."""
    whole = _unit_vectors(block(lambda _, a: a))
    columns = [_cosine_distance(_unit_vectors(block(partial(_without_column, j))), whole) for j in range(batch.width)]
    C = _real(torch.stack(columns, -1).to(batch.mask.device), model, batch)
    return C / C.sum(-1, keepdim=True).clamp_min(torch.finfo(C.dtype).tiny)


def _cosine_distance(x: Float[Tensor, "b t k"], y: Float[Tensor, "b t k"]) -> Float[Tensor, "b t"]:
    """1 − cos, computed as |x − y|² / 2 for unit vectors to keep precision where the two are close."""
    return ((x - y).square().sum(-1) / 2).float()


def _unit_vectors(x: Float[Tensor, "b t k"]) -> Float[Tensor, "b t k"]:
    return torch.nn.functional.normalize(x.cpu().double(), dim=-1)


def _without_column(token: int, _: Site, a: Float[Tensor, "b h t t"]) -> Float[Tensor, "b h t t"]:
    """Set a token's column to zero, which is the same as zeroing its value vector."""
    kept = torch.ones(a.shape[-1], dtype=a.dtype, device=a.device)
    kept[token] = 0
    return a * kept
