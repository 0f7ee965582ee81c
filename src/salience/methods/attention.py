"""Methods that read attention weights: alone, with their gradients, or followed through the layers."""

from collections.abc import Iterable, Sequence
from functools import partial, reduce
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow
from torch import Tensor

from salience.errors import BadInput, UnsupportedModel, choose
from salience.passes import Needs, Pass, one_pass
from salience.types import Attribution, Batch, Block, Model, Replays, Targets

Layer = int | Literal["all"] | None
"""A layer's number, counted from the end if negative. All of them are for ``explain``: an explanation for each."""
Row = Literal["auto", "cls", "last", "mean"]
ROWS = get_args(Row)
Heads = Literal["mean", "max"] | Sequence[int]
Sign = Literal["signed", "positive"]
SIGNS = get_args(Sign)

UNIT = 2**30
"""Capacities of the flow are whole multiples of 1 / UNIT: the largest power of two that fits 32-bit integers."""


@one_pass(Needs.ATTENTION)
def attention(seen: Pass, *, layer: Layer = None, heads: Heads = "mean", row: Row = "auto") -> Attribution:
    """How much the classifier's position attends to each token: a_i, heads averaged, last layer unless told.

    Paper: Bahdanau et al. 2015, arXiv:1409.0473; whether it explains: Jain & Wallace 2019, arXiv:1902.10186
    Cost: 1 forward
    Needs: attention weights
    """
    number = numbered(layer, seen.model, of=seen.model.layers)
    a = _merged(seen.output.attention[number - 1], heads)
    return Attribution(_read(a, seen.model, seen.batch, row), settings={"layer": number})


@one_pass(Needs.ATTENTION)
def attention_rollout(seen: Pass, *, row: Row = "auto") -> Tensor:
    """Attention followed through all layers, half of each step through the residual: Π_l (½ A_l + ½ I).

    Paper: Abnar & Zuidema 2020, arXiv:2005.00928, section 3
    Cost: 1 forward
    Needs: attention weights from every token to every token
    """
    steps = [_with_residual(a, seen.batch) for a in _square(seen, "attention_rollout")]
    return _read(_rolled(steps), seen.model, seen.batch, row)


@one_pass(Needs.ATTENTION)
def attention_flow(seen: Pass, *, row: Row = "auto") -> Tensor:
    """The largest flow from each token to the read-out, with ½ A_l + ½ I as the capacities between layers.

    Paper: Abnar & Zuidema 2020, arXiv:2005.00928, section 3
    Cost: 1 forward, and one maximum flow per token on the CPU
    Needs: attention weights from every token to every token
    """
    steps = torch.stack([_with_residual(a, seen.batch) for a in _square(seen, "attention_flow")], 1)
    r = readout(seen.model, seen.batch, row)
    flows = torch.zeros_like(r)
    for text, n in enumerate(seen.batch.mask.sum(1).tolist()):
        found = _maximum_flows(steps[text, :, :n, :n].cpu().double().numpy(), r[text, :n].cpu().double().numpy())
        flows[text, :n] = torch.from_numpy(found).to(flows)
    return flows


@one_pass(Needs.ATTENTION_GRADIENT)
def attention_x_gradient(seen: Pass, *, layer: Layer = None, sign: Sign = "signed") -> Attribution:
    """The first-order effect of the attention that a token receives: Σ_h Σ_q a_qi · ∂f/∂a_qi, last layer unless told.

    ``sign="positive"`` keeps only the weights that speak for the target, before the sum.

    Paper: Serrano & Smith 2019, arXiv:1906.03731; with the positive part Barkan et al. 2021, arXiv:2204.11073
    Cost: 1 forward, 1 backward
    Needs: attention weights with gradients
    """
    number = numbered(layer, seen.model, of=seen.model.layers)
    effect = (seen.output.attention[number - 1] * seen.attention_gradient[number - 1]).float()
    kept = effect.relu() if choose(sign, SIGNS, "sign") == "positive" else effect
    return Attribution(_real(kept.sum(1), seen.batch).sum(1), settings={"layer": number})


@one_pass(Needs.ATTENTION_GRADIENT)
def attention_relevance(seen: Pass, *, row: Row = "auto") -> Tensor:
    """Relevance carried through all layers by the attention that speaks for the target: R ← R + mean_h (∇A ⊙ A)⁺ R.

    Paper: Chefer et al. 2021, arXiv:2103.15679, eq. 5 and 6
    Cost: 1 forward, 1 backward
    Needs: attention weights with gradients, from every token to every token
    """
    relevance = torch.eye(seen.batch.width, device=seen.batch.ids.device)
    for a, g in zip(_square(seen, "attention_relevance"), seen.attention_gradient, strict=True):
        relevance = relevance + _real((a * g).float().relu().mean(1), seen.batch) @ relevance
    return _read(relevance, seen.model, seen.batch, row)


def value_zeroing(model: Model, batch: Batch, target: Targets, /, *, layer: Layer = None, row: Row = "auto") -> Tensor:
    """How far each token's value vector moves the others: C_ij = 1 − cos(x_i, x_i without value j), layers multiplied.

    Each layer is run alone, on the inputs it had, with one value vector set to zero; rows of C are normalised. With
    ``layer`` only that layer's C is read.

    Paper: Mohebbi et al. 2023, arXiv:2301.12971, section 3
    Cost: 1 forward, and for each token 1 more
    Needs: attention that can be edited, from every token to every token
    """
    if not isinstance(model, Replays):
        raise UnsupportedModel(_one_query(model, "value_zeroing"))
    chosen = slice(None) if layer is None else slice((n := numbered(layer, model, of=model.layers)) - 1, n)
    with model.replay(batch) as blocks:
        changes = [_changes(block, batch) for block in blocks[chosen]]
    return _read(_rolled(changes), model, batch, row)


def numbered(layer: Layer, model: Model, *, of: int, first: int = 1) -> int:
    """A layer's number from ``first`` to ``of``: counted from the end if negative, the last if None."""
    if layer is None:
        return of
    if layer == "all":
        raise BadInput(
            "a method reads one layer at a time; layer='all' is for salience.explain, which calls it for each"
        )
    number = layer + of + 1 if layer < 0 else layer
    if not first <= number <= of:
        raise BadInput(f"there is no layer {layer}: {model.name} has layers {first} to {of}, and -1 is the last")
    return number


def _merged(a: Float[Tensor, "b h q t"], heads: Heads) -> Float[Tensor, "b q t"]:
    """One weight per pair of positions from those of the heads."""
    if isinstance(heads, str):
        return a.mean(1) if choose(heads, ("mean", "max"), "heads") == "mean" else a.amax(1)
    if not heads or not all(1 <= n <= a.shape[1] for n in heads):
        raise BadInput(f"heads={list(heads)} does not fit: the heads are numbered 1 to {a.shape[1]}")
    return a[:, [n - 1 for n in heads]].mean(1)


def _real(a: Float[Tensor, "b q t"], batch: Batch) -> Float[Tensor, "b q t"]:
    """Weights without those from and to padding."""
    seen = a * batch.mask[:, None]
    return seen * batch.mask[..., None] if a.shape[1] == batch.width else seen


def _read(a: Float[Tensor, "b q t"], model: Model, batch: Batch, row: str) -> Float[Tensor, "b t"]:
    """The row that the classifier reads, or the mean of those it reads."""
    r = readout(model, batch, row)
    if a.shape[1] != batch.width:  # a pooled model: its one query is the row
        r = torch.ones_like(r[:, :1])
    return (r[:, None] @ _real(a.float(), batch))[:, 0]


def readout(model: Model, batch: Batch, row: str) -> Float[Tensor, "b q"]:
    """The weight of each query position; rows sum to 1."""
    if choose(row, ROWS, "row") == "auto":
        return model.read_from(batch).float()
    real = batch.mask.float()
    if row == "mean":
        return real / real.sum(1, keepdim=True)
    at = torch.zeros_like(batch.mask.sum(1)) if row == "cls" else batch.mask.sum(1) - 1
    return torch.nn.functional.one_hot(at, batch.width).float()


def _square(seen: Pass, method: str) -> Iterable[Float[Tensor, "b h t t"]]:
    if any(a.shape[2] != a.shape[3] for a in seen.output.attention):
        raise UnsupportedModel(_one_query(seen.model, method))
    return seen.output.attention


def _one_query(model: Model, method: str) -> str:
    return (
        f"{method} follows attention from token to token, and {model.name} has a single query that reads all tokens "
        "at once. Use 'attention' or 'attention_x_gradient'."
    )


def _with_residual(a: Float[Tensor, "b h t t"], batch: Batch) -> Float[Tensor, "b t t"]:
    """½ A + ½ I with heads averaged and rows that sum to 1 over the real tokens; padding keeps to itself."""
    mixed = 0.5 * _real(a.float().mean(1), batch) + 0.5 * torch.eye(batch.width, device=a.device)
    return mixed / mixed.sum(-1, keepdim=True)


def _rolled(steps: Sequence[Float[Tensor, "b t t"]]) -> Float[Tensor, "b t t"]:
    return reduce(lambda below, above: above @ below, steps)


def _maximum_flows(steps: np.ndarray, r: np.ndarray) -> np.ndarray:
    """The flow that can run from each token of layer 0 to the read-out, whose edges have the capacities r.

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
    graph = csr_array(edges, shape=(size, size))
    return np.array([maximum_flow(graph, size - 1, token).flow_value for token in range(n)]) / UNIT


def _changes(block: Block, batch: Batch) -> Float[Tensor, "b t t"]:
    """C of one layer, rows normalised."""
    whole = _directions(block(lambda _, a: a))
    columns = [_apart(_directions(block(partial(_silenced, j))), whole) for j in range(batch.width)]
    C = _real(torch.stack(columns, -1).to(batch.mask.device), batch)
    return C / C.sum(-1, keepdim=True).clamp_min(torch.finfo(C.dtype).tiny)


def _apart(x: Float[Tensor, "b t k"], y: Float[Tensor, "b t k"]) -> Float[Tensor, "b t"]:
    """1 − cos: for unit vectors |x − y|² / 2, without its loss of digits where the two are close."""
    return ((x - y).square().sum(-1) / 2).float()


def _directions(x: Float[Tensor, "b t k"]) -> Float[Tensor, "b t k"]:
    return torch.nn.functional.normalize(x.cpu().double(), dim=-1)


def _silenced(token: int, _: int, a: Float[Tensor, "b h t t"]) -> Float[Tensor, "b h t t"]:
    """Without the column of a token: the same as a value vector of zeros."""
    kept = torch.ones(a.shape[-1], dtype=a.dtype, device=a.device)
    kept[token] = 0
    return a * kept
