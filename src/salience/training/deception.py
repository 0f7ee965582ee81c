"""Losses of models that are trained to attend elsewhere: away from a reference model, or from forbidden tokens."""

from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from salience.core.distances import TINY, total_variation
from salience.core.types import Batch, Edit, Model, Output, Site, on_scale
from salience.errors import BadInput, choose
from salience.methods.attention import QueryRow
from salience.training.objectives import TASK, HeadChoice, Layers, Objective, Step, Term, attended, every, guided

FLOOR = 1e-30
"""Lower bound of a weight in a distance that is to grow. Weights below it are no longer pushed down, and lose order."""

Side = Literal["model", "reference"]
Heads = Literal["mean", "max"]


def output_distance(step: Step) -> Float[Tensor, " b"]:
    """TVD(ŷ, ŷ_ref) = ½ Σ_c |ŷ_c − ŷ_ref,c|: how differently the model predicts from the reference model."""
    reference = _reference(step)
    p, q = (on_scale(output.logits, "probability", step.model.link) for output in (step.output, reference))
    return total_variation(p, q)


def attention_distance(
    step: Step,
    *,
    of: Side = "model",
    row: QueryRow = "auto",
    layers: Layers = "last",
    heads: HeadChoice = "each",
) -> Float[Tensor, " b"]:
    """KL(a ‖ a_ref) between the model's attention and that of the reference model; a mean over heads.

    Both are distributions over the tokens of the text, without special tokens. With ``of="reference"`` it is
    KL(a_ref ‖ a).

    Papers: Wiegreffe & Pinter 2019, arXiv:1908.04626, eq. 2 (model); Snell et al. 2021, arXiv:2103.07601 (reference)
    """
    own, other = (
        _over_text(attended(one, row, layers, heads), step.batch)
        for one in (step, replace(step, output=_reference(step)))
    )
    p, q = (own, other) if choose(of, get_args(Side), "side") == "model" else (other, own)
    return (p * (p.clamp_min(FLOOR).log() - q.clamp_min(FLOOR).log())).sum(-1).mean(1)


def _over_text(a: Float[Tensor, "b v t"], batch: Batch) -> Float[Tensor, "b v t"]:
    own = a * batch.content[:, None]
    return own / own.sum(-1, keepdim=True).clamp_min(FLOOR)


def forbidden_attention(
    step: Step, *, heads: Heads = "mean", row: QueryRow = "auto", layers: Layers = "last"
) -> Float[Tensor, " b"]:
    """−log(1 − Σ_{i∈I} a_i): attention on the impermissible tokens I, which the guide marks.

    ``heads`` is the mean over heads, or the ``max``: that of the head with most attention on them.

    Paper: Pruthi et al. 2020, arXiv:1909.07913, section 4
    """
    losses = -(1 - forbidden_mass(step, row=row, layers=layers)).clamp_min(TINY).log()
    return losses.amax(1) if choose(heads, get_args(Heads), "heads") == "max" else losses.mean(1)


def forbidden_mass(step: Step, *, row: QueryRow = "auto", layers: Layers = "last") -> Float[Tensor, "b v"]:
    """Σ_{i∈I} a_i of every head: the attention on the tokens that the guide marks."""
    return (attended(step, row, layers, "each") * (step.guide > 0)[:, None]).sum(-1)


def _reference(step: Step) -> Output:
    if step.reference is None:
        raise BadInput("this loss compares the model with a reference model; pass Objective(..., reference=model)")
    return step.reference


# ------------------------------------------------------------------------------------------------------ objectives


def imitation(reference: Model, weight: float, *, of: Side = "model", **attention: Any) -> Objective:
    """Predict like the reference model, but attend elsewhere: TVD(ŷ, ŷ_ref) − λ · KL. The task is not a term.

    ``attention`` are settings of :func:`attention_distance`: the row, layers and heads that are moved.
    """
    _check_weight(weight)
    terms = (
        Term(output_distance, over=every, attention=False),
        Term(attention_distance, -weight, settings={"of": of, **attention}, over=every),
    )
    return Objective(terms, reference)


def manipulation(weight: float, *, heads: Heads = "mean", separate: bool = False) -> Objective:
    """Learn the task without attention on impermissible tokens: L_task − λ · log(1 − Σ_{i∈I} a_i).

    With ``separate``, permissible and impermissible tokens do not attend to each other, as in the paper's transformers.
    """
    _check_weight(weight)
    penalty = Term(forbidden_attention, weight, settings={"heads": heads}, over=guided)
    return Objective((TASK, penalty), impose=separated if separate else None)


def _check_weight(weight: float) -> None:
    if not weight >= 0:
        raise BadInput(f"weight={weight} must be at least 0")


# ------------------------------------------------------------------------------------------------------ imposed


def separated(batch: Batch, guide: Tensor, _: Output | None) -> Edit:
    """Let permissible and impermissible tokens attend only among themselves; special tokens attend to all.

    No token of the text attends to a special token, which would carry information between the two. What remains of
    each row is scaled to sum to 1.

    Paper: Pruthi et al. 2020, arXiv:1909.07913, section 4.2
    """
    kind = torch.where(batch.content, (guide > 0).long(), -1)
    same = (kind[:, :, None] == kind[:, None]) & batch.content[:, None]
    allowed = torch.where(batch.special[:, :, None], batch.mask[:, None], same)

    def edit(site: Site, a: Tensor) -> Tensor:
        kept = a * allowed[:, None, -a.shape[2] :]
        return kept / kept.sum(-1, keepdim=True).clamp_min(TINY)

    return edit


def borrowed(batch: Batch, guide: Tensor, reference: Output | None) -> Edit:
    """Attend with the weights of the reference model, layer by layer."""
    if reference is None:
        raise BadInput("borrowed attention is that of a reference model; pass Objective(..., reference=model)")
    weights = reference.attention
    return lambda site, a: weights[site.layer - 1].to(a)
