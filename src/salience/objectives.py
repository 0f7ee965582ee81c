"""Losses that teach a model where to look, on the same forward pass as its prediction.

A penalty is a plain function of a :class:`Lesson`, one number per text; its settings are keywords. What it compares,
attention or input gradients, keeps its graph; the explanation is a constant.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from salience.errors import BadInput, UnsupportedModel, choose
from salience.methods.attention import Row, readout
from salience.types import Batch, Model, Output

UNKNOWN = -100
"""The label of a text that has none: it takes no part in the task."""

TINY = 1e-12
"""The least probability, so that its logarithm is a number."""

Divergence = Literal["kl", "reverse_kl", "mse", "order"]
DIVERGENCES = get_args(Divergence)
Space = Literal["probability", "softmax_of_probability", "logit"]
SPACES = get_args(Space)
Shape = Literal["normalised", "softmax"]
SHAPES = get_args(Shape)
Layers = Literal["last", "all"] | Sequence[int]
Heads = Literal["mean", "each"] | Sequence[int] | Sequence[tuple[int, int]]
Anneal = Literal["constant", "rise", "fall", "cosine"]
ANNEALS = get_args(Anneal)


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """What the model read and said, and where it should have looked.

    ``labels`` are columns of the logits, ``UNKNOWN`` where there is none; for several labels at once or for a number
    to be predicted they have the shape of the logits. ``guide`` has one weight per token, 0 on special tokens and
    everywhere in a text without an explanation. For ``contrast`` it has one row of them for every label.
    """

    model: Model
    batch: Batch
    output: Output
    labels: Tensor
    guide: Float[Tensor, "b t"] | Float[Tensor, "b c t"]

    @property
    def guided(self) -> Bool[Tensor, " b"]:
        """The texts that have an explanation."""
        return (self.guide != 0).flatten(1).any(1)


Penalty = Callable[..., Float[Tensor, " b"]]
"""(lesson, settings by keyword) -> one number per text."""


# ------------------------------------------------------------------------------------------------------ the task


def task_loss(lesson: Lesson) -> Float[Tensor, " b"]:
    """Cross-entropy, its mean over labels where several may hold, or the squared error of a number; 0 if unknown."""
    logits, labels = lesson.output.logits, lesson.labels
    if lesson.model.link == "softmax":
        return nn.functional.cross_entropy(logits, labels, reduction="none", ignore_index=UNKNOWN)
    known = (labels != UNKNOWN).all(1)
    labels = labels.masked_fill(~known[:, None], 0).to(logits)
    if lesson.model.link == "sigmoid":
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)
    else:
        loss = (logits - labels).square().mean(1)
    return loss * known


def known(lesson: Lesson) -> Bool[Tensor, " b"]:
    """The texts that have a label."""
    return (lesson.labels != UNKNOWN).reshape(len(lesson.batch), -1).all(1)


# ------------------------------------------------------------------------------------------------------ attention


def attention_to_explanation(
    lesson: Lesson,
    *,
    row: Row = "auto",
    layers: Layers = "last",
    heads: Heads = "mean",
    divergence: Divergence = "kl",
    space: Space = "probability",
    shape: Shape = "normalised",
) -> Float[Tensor, " b"]:
    """How far attention is from the explanation: KL(q ‖ a) = Σ_i q_i (log q_i − log a_i), q = e⁺ / Σ e⁺.

    a is the row that the classifier reads, heads averaged, last layer. Several layers or single heads are averaged
    after they were compared. ``heads`` may name (layer, head) pairs, as :func:`agreeing_heads` chooses them.

    Paper: SalLM; the options as in Joshi et al. 2022 (ER-Test), arXiv:2205.12542
    """
    q = _wanted(lesson.guide, lesson.batch, shape)[:, None]
    p = attended(lesson, row, layers, heads, space)
    return _DISTANCES[choose(divergence, DIVERGENCES, "divergence")](p, q, lesson.batch.mask[:, None]).mean(1)


def contrast(
    lesson: Lesson,
    *,
    row: Row = "auto",
    layers: Layers = "last",
    heads: Heads = "mean",
    space: Space = "probability",
    shape: Shape = "normalised",
) -> Float[Tensor, " b"]:
    """Attention should fit the explanation of the gold label better than that of any other: CE(−KL(q^y ‖ a), gold).

    The guide holds an explanation for every label; one that marks nothing counts as even.
    """
    if lesson.guide.dim() != 3 or lesson.labels.dim() != 1:
        raise BadInput("contrast needs single labels and, for each text, an explanation of every label")
    p = attended(lesson, row, layers, heads, space)
    some = torch.where((lesson.guide > 0).any(2, keepdim=True), lesson.guide, lesson.batch.content[:, None].to(p))
    scores = [
        -_kl(p, _wanted(guide, lesson.batch, shape)[:, None], lesson.batch.mask[:, None]).mean(1)
        for guide in some.unbind(1)
    ]
    return nn.functional.cross_entropy(torch.stack(scores, 1), lesson.labels, reduction="none", ignore_index=UNKNOWN)


def attended(
    lesson: Lesson, row: Row = "auto", layers: Layers = "last", heads: Heads = "mean", space: Space = "probability"
) -> Float[Tensor, "b v t"]:
    """The chosen rows of attention as distributions over tokens, one for each layer or head that is compared."""
    choose(space, SPACES, "space")
    return torch.cat([_view(lesson, row, layer, chosen, space) for layer, chosen in _views(lesson, layers, heads)], 1)


def _views(lesson: Lesson, layers: Layers, heads: Heads) -> list[tuple[int, Any]]:
    """The layers from 0 on, each with its heads."""
    if not isinstance(heads, str) and heads and isinstance(heads[0], tuple | list):
        pairs = [(int(layer), int(head)) for layer, head in heads]  # pyright: ignore
        return [(_layer(lesson, layer), [h for other, h in pairs if other == layer]) for layer in _unique(pairs)]
    if isinstance(layers, str):
        count = len(lesson.output.attention)
        chosen = range(count) if choose(layers, ("last", "all"), "layers") == "all" else (count - 1,)
        return [(layer, heads) for layer in chosen]
    return [(_layer(lesson, layer), heads) for layer in layers]


def _unique(pairs: Sequence[tuple[int, int]]) -> list[int]:
    return list(dict.fromkeys(layer for layer, _ in pairs))


def _layer(lesson: Lesson, layer: int) -> int:
    """Layers are numbered from 1, or from the end by negative numbers."""
    count = len(lesson.output.attention)
    found = layer - 1 if layer > 0 else count + layer
    if layer == 0 or not 0 <= found < count:
        raise BadInput(f"there is no layer {layer}: {lesson.model.name} has layers 1 to {count}, and -1 is the last")
    return found


def _view(lesson: Lesson, row: Row, layer: int, heads: Any, space: str) -> Float[Tensor, "b v t"]:
    a = _row(lesson, lesson.output.attention[layer], row)
    if not isinstance(heads, str):
        if not heads or not all(1 <= h <= a.shape[1] for h in heads):
            raise BadInput(f"heads={list(heads)} does not fit: the heads are numbered 1 to {a.shape[1]}")
        a = a[:, [h - 1 for h in heads]]
    together = heads == "mean"
    if not together and isinstance(heads, str):
        choose(heads, ("mean", "each"), "heads")
    mask = lesson.batch.mask[:, None]
    if space == "logit":
        z = a.clamp_min(TINY).log()
        return (z.mean(1, keepdim=True) if together else z).masked_fill(~mask, -torch.inf).softmax(-1)
    a = a.mean(1, keepdim=True) if together else a
    return a if space == "probability" else a.masked_fill(~mask, -torch.inf).softmax(-1)


def _row(lesson: Lesson, a: Float[Tensor, "b h q t"], row: Row) -> Float[Tensor, "b h t"]:
    """What the classifier's query attends to; a pooled model has no other."""
    if a.shape[2] == 1:
        return _wide(a[:, :, 0])
    return _wide(torch.einsum("bq,bhqt->bht", readout(lesson.model, lesson.batch, row).to(a), a))


def _wide(x: Tensor) -> Tensor:
    """In single precision, or better where the model has better."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# ------------------------------------------------------------------------------------------------------ gradients

Score = Literal["gradient", "input_x_gradient"]
Criterion = Literal["outside", Divergence]


def gradient_to_explanation(
    lesson: Lesson, *, score: Score = "gradient", criterion: Criterion = "outside", shape: Shape = "normalised"
) -> Float[Tensor, " b"]:
    """Right for the right reasons: no input gradient outside the explanation, Σ_{i∉R} |∂ Σ_c log p_c / ∂e_i|².

    With another ``criterion``, the scores of the gold label are compared with the explanation as attention is. A
    second-order loss: the model runs without fused attention kernels, which have no second derivative.

    Paper: Ross et al. 2017, arXiv:1703.03717, eq. 1; the other criteria Joshi et al. 2022, arXiv:2205.12542
    """
    e, logits = lesson.output.embeddings, _wide(lesson.output.logits)
    if not e.requires_grad:
        raise UnsupportedModel(f"the word embeddings of {lesson.model.name} are frozen, so no gradient reaches them")
    chosen = logits.log_softmax(-1) if lesson.model.link == "softmax" else logits
    if choose(criterion, ("outside", *DIVERGENCES), "criterion") != "outside" and lesson.labels.dim() == 1:
        labels = torch.where(lesson.labels < 0, logits.argmax(1), lesson.labels)
        chosen = chosen.gather(1, labels[:, None])
    (g,) = torch.autograd.grad(chosen.sum(), e, create_graph=True)
    if criterion == "outside":
        outside = lesson.batch.content & (lesson.guide <= 0)
        return _wide(g).square().sum(-1).mul(outside).sum(1)
    scores = (g * e).sum(-1).abs() if choose(score, get_args(Score), "score") == "input_x_gradient" else g.norm(dim=-1)
    scores = _wide(scores) * lesson.batch.content
    p = (scores / scores.sum(1, keepdim=True).clamp_min(TINY))[:, None]
    return _DISTANCES[criterion](p, _wanted(lesson.guide, lesson.batch, shape)[:, None], lesson.batch.mask[:, None])[
        :, 0
    ]


# ------------------------------------------------------------------------------------------------------ distances


def _wanted(guide: Float[Tensor, "b t"], batch: Batch, shape: str) -> Float[Tensor, "b t"]:
    """q: the explanation as a distribution over tokens."""
    if choose(shape, SHAPES, "shape") == "softmax":
        return guide.masked_fill(~batch.content, -torch.inf).softmax(-1).nan_to_num()
    positive = guide.clamp_min(0)
    return positive / positive.sum(1, keepdim=True).clamp_min(TINY)


def _kl(p: Tensor, q: Tensor, _: Tensor) -> Tensor:
    return (torch.special.xlogy(q, q) - q * p.clamp_min(TINY).log()).sum(-1)


def _reverse_kl(p: Tensor, q: Tensor, mask: Tensor) -> Tensor:
    """KL(a ‖ q), with a hundredth of q spread over all tokens: elsewhere log q would be infinite."""
    even = mask / mask.sum(-1, keepdim=True)
    # Not xlogy: where p is 0, as on padding, its derivative is 0 · ∞.
    return (p * (p.clamp_min(TINY).log() - (0.99 * q + 0.01 * even).clamp_min(TINY).log())).sum(-1)


def _mse(p: Tensor, q: Tensor, _: Tensor) -> Tensor:
    return (p - q).square().sum(-1)


def _order(p: Tensor, q: Tensor, mask: Tensor) -> Tensor:
    """Σ_{i∈R} min(p_i / max_{j∉R} p_j − 1, 0)²: explained tokens should stand above all others, no matter how far."""
    inside = (q > 0) & mask
    rest = p.masked_fill(inside | ~mask, 0).amax(-1, keepdim=True).clamp_min(TINY)
    return ((p / rest - 1).clamp_max(0).square() * inside).sum(-1)


_DISTANCES = {"kl": _kl, "reverse_kl": _reverse_kl, "mse": _mse, "order": _order}

PENALTIES = (attention_to_explanation, contrast, gradient_to_explanation)


# ------------------------------------------------------------------------------------------------------ together


class Terms(NamedTuple):
    """The parts of a loss, each summed over the texts that take part in it."""

    task: Float[Tensor, ""]
    penalty: Float[Tensor, ""]


@dataclass(frozen=True, slots=True)
class Objective:
    """L_task + λ · penalty, each the mean over the texts that have a label or an explanation.

    λ is ``weight``, or goes there from 0 (``rise``), from there to 0 (``fall``), or so along a half cosine.
    """

    penalty: Penalty | None = None
    weight: float = 1.0
    anneal: Anneal = "constant"

    def __post_init__(self) -> None:
        choose(self.anneal, ANNEALS, "anneal")
        if not self.weight >= 0:
            raise BadInput(f"weight={self.weight} would reward what is to be penalised; it must be at least 0")

    @property
    def settings(self) -> Mapping[str, Any]:
        """Those that the penalty was given, where it is a partial function."""
        return getattr(self.penalty, "keywords", {})

    def weight_at(self, progress: float) -> float:
        """λ when this share of all steps is done."""
        shares = {"constant": 1.0, "rise": progress, "fall": 1 - progress, "cosine": (1 + cos(pi * progress)) / 2}
        return 0.0 if self.penalty is None else self.weight * shares[self.anneal]

    def __call__(self, lesson: Lesson) -> Terms:
        task = task_loss(lesson).sum()
        if self.penalty is None:
            return Terms(task, torch.zeros_like(task))
        guided = lesson.guided
        # Summed where there is an explanation only: what has none may divide by zero, and 0 · NaN is NaN.
        return Terms(task, self.penalty(lesson)[guided].sum() if bool(guided.any()) else torch.zeros_like(task))
