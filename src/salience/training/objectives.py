"""Training objectives: the task loss, and penalties that compare attention or gradients with an explanation.

A loss is a plain function of a :class:`Step` that returns one value per text; its settings are keyword arguments.
Every loss is computed from the same forward pass as the prediction. Gradients flow through the attention or the input
gradients that a penalty compares; the explanation is a constant.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import cos, log, pi
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from salience.core.distances import TINY
from salience.core.passes import forward
from salience.core.types import Batch, Edit, Model, Output, Weights
from salience.errors import BadInput, UnsupportedModel, choose
from salience.methods.attention import QueryRow, readout
from salience.training.multipliers import Ascent

UNKNOWN = -100
"""The label of an unlabelled text, which the task loss ignores."""

Divergence = Literal["kl", "reverse_kl", "mse", "order"]
DIVERGENCES = get_args(Divergence)
Space = Literal["probability", "softmax_of_probability", "logit"]
SPACES = get_args(Space)
Shape = Literal["normalised", "softmax"]
SHAPES = get_args(Shape)
Layers = Literal["last", "all"] | Sequence[int]
HeadChoice = Literal["mean", "each"] | Sequence[int] | Sequence[tuple[int, int]]
Schedule = Literal["constant", "rise", "fall", "cosine"]
SCHEDULES = get_args(Schedule)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The forward pass of one training step, with its labels and explanations.

    ``labels`` are columns of the logits, or ``UNKNOWN``; for multi-label classification and regression they have the
    shape of the logits. ``guide`` has one weight per token: 0 on special tokens, and 0 everywhere in a text without
    an explanation. For ``contrast`` it has one such row per label. ``reference`` is the output of the objective's
    frozen reference model on the same batch, if there is one.
    """

    model: Model
    batch: Batch
    output: Output
    labels: Tensor
    guide: Float[Tensor, "b t"] | Float[Tensor, "b c t"]
    reference: Output | None = None


Loss = Callable[..., Float[Tensor, " b"]]
"""(step, **settings) -> one value per text."""

Over = Callable[[Tensor, Tensor], Bool[Tensor, " b"]]
"""(labels, guide) -> which texts a loss is averaged over."""

Impose = Callable[[Batch, Tensor, Output | None], Edit]
"""(batch, guide, output of the reference model) -> the edit of attention that every pass of training uses."""


def labelled(labels: Tensor, guide: Tensor) -> Bool[Tensor, " b"]:
    """Select the texts with a label."""
    return (labels != UNKNOWN).reshape(len(labels), -1).all(1)


def guided(labels: Tensor, guide: Tensor) -> Bool[Tensor, " b"]:
    """Select the texts with an explanation."""
    return (guide != 0).flatten(1).any(1)


def every(labels: Tensor, guide: Tensor) -> Bool[Tensor, " b"]:
    """Select all texts."""
    return torch.ones(len(labels), dtype=torch.bool, device=labels.device)


# ------------------------------------------------------------------------------------------------------ the task


def task_loss(step: Step) -> Float[Tensor, " b"]:
    """Cross-entropy, mean binary cross-entropy (multi-label) or squared error (regression); 0 for unlabelled texts."""
    logits, labels = step.output.logits, step.labels
    if step.model.link == "softmax":
        return nn.functional.cross_entropy(logits, labels, reduction="none", ignore_index=UNKNOWN)
    known = (labels != UNKNOWN).all(1)
    labels = labels.masked_fill(~known[:, None], 0).to(logits)
    if step.model.link == "sigmoid":
        loss = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)
    else:
        loss = (logits - labels).square().mean(1)
    return loss * known


def label_smoothing(step: Step) -> Float[Tensor, " b"]:
    """Divergence of the prediction from a uniform one: KL(u ‖ p) = −log C − Σ_c log p_c / C.

    L_task + λ · KL(u ‖ p) is the loss of label smoothing with ε = λ / (1 + λ), times 1 + λ. For multi-label models
    every label is compared with one half.

    Paper: Szegedy et al. 2016, arXiv:1512.00567, section 7
    """
    logits = _at_least_float32(step.output.logits)
    if step.model.link == "softmax":
        return -logits.log_softmax(-1).mean(-1) - log(logits.shape[-1])
    if step.model.link == "identity":
        raise UnsupportedModel(f"{step.model.name} is a regression model; label smoothing needs a classifier")
    both = nn.functional.logsigmoid(logits) + nn.functional.logsigmoid(-logits)
    return -both.mean(-1) / 2 - log(2)


# ------------------------------------------------------------------------------------------------------ attention


def attention_to_explanation(
    step: Step,
    *,
    row: QueryRow = "auto",
    layers: Layers = "last",
    heads: HeadChoice = "mean",
    divergence: Divergence = "kl",
    space: Space = "probability",
    shape: Shape = "normalised",
) -> Float[Tensor, " b"]:
    """Divergence of attention from the explanation: KL(q ‖ a) = Σ_i q_i (log q_i − log a_i), q = e⁺ / Σ e⁺.

    By default a is the attention row that the classifier reads, averaged over the heads of the last layer. Several
    layers or individual heads are compared one by one and then averaged. ``heads`` also accepts (layer, head) pairs,
    as returned by :func:`salience.training.monitors.agreeing_heads`.

    Paper: SalLM; options follow Joshi et al. 2022 (ER-Test), arXiv:2205.12542
    """
    q = _distribution(step.guide, step.batch, shape)[:, None]
    p = attended(step, row, layers, heads, space)
    return _DISTANCES[choose(divergence, DIVERGENCES, "divergence")](p, q, step.batch.mask[:, None]).mean(1)


def contrast(
    step: Step,
    *,
    row: QueryRow = "auto",
    layers: Layers = "last",
    heads: HeadChoice = "mean",
    space: Space = "probability",
    shape: Shape = "normalised",
) -> Float[Tensor, " b"]:
    """Attention should match the gold label's explanation better than any other label's: CE(−KL(q^y ‖ a), gold).

    The guide holds one explanation per label; an empty explanation is treated as uniform.
    """
    if step.guide.dim() != 3 or step.labels.dim() != 1:
        raise BadInput("contrast needs one label per text and, for each text, an explanation of every label")
    p = attended(step, row, layers, heads, space)
    guides = torch.where((step.guide > 0).any(2, keepdim=True), step.guide, step.batch.content[:, None].to(p))
    scores = [
        -_kl(p, _distribution(guide, step.batch, shape)[:, None], step.batch.mask[:, None]).mean(1)
        for guide in guides.unbind(1)
    ]
    return nn.functional.cross_entropy(torch.stack(scores, 1), step.labels, reduction="none", ignore_index=UNKNOWN)


def attended(
    step: Step,
    row: QueryRow = "auto",
    layers: Layers = "last",
    heads: HeadChoice = "mean",
    space: Space = "probability",
) -> Float[Tensor, "b v t"]:
    """The selected attention rows as distributions over tokens, one per compared layer or head."""
    choose(space, SPACES, "space")
    return torch.cat([_view(step, row, layer, chosen, space) for layer, chosen in _views(step, layers, heads)], 1)


def _views(step: Step, layers: Layers, heads: HeadChoice) -> list[tuple[int, Any]]:
    """The layers, counted from 0, each with its heads."""
    if not isinstance(heads, str) and heads and isinstance(heads[0], tuple | list):
        pairs = [(int(layer), int(head)) for layer, head in heads]  # pyright: ignore
        return [(_layer(step, layer), [h for other, h in pairs if other == layer]) for layer in _unique(pairs)]
    if isinstance(layers, str):
        count = len(step.output.attention)
        chosen = range(count) if choose(layers, ("last", "all"), "layers") == "all" else (count - 1,)
        return [(layer, heads) for layer in chosen]
    return [(_layer(step, layer), heads) for layer in layers]


def _unique(pairs: Sequence[tuple[int, int]]) -> list[int]:
    return list(dict.fromkeys(layer for layer, _ in pairs))


def _layer(step: Step, layer: int) -> int:
    """Convert a layer number, counted from 1 or negative from the end, to an index."""
    count = len(step.output.attention)
    index = layer - 1 if layer > 0 else count + layer
    if layer == 0 or not 0 <= index < count:
        raise BadInput(f"there is no layer {layer}: {step.model.name} has layers 1 to {count}, and -1 is the last")
    return index


def _view(step: Step, row: QueryRow, layer: int, heads: Any, space: str) -> Float[Tensor, "b v t"]:
    a = _row(step, step.output.attention[layer], row)
    if not isinstance(heads, str):
        if not heads or not all(1 <= h <= a.shape[1] for h in heads):
            raise BadInput(f"heads={list(heads)} is out of range: heads are numbered 1 to {a.shape[1]}")
        a = a[:, [h - 1 for h in heads]]
    averaged = heads == "mean"
    if not averaged and isinstance(heads, str):
        choose(heads, ("mean", "each"), "heads")
    mask = step.batch.mask[:, None]
    if space == "logit":
        z = a.clamp_min(TINY).log()
        return (z.mean(1, keepdim=True) if averaged else z).masked_fill(~mask, -torch.inf).softmax(-1)
    a = a.mean(1, keepdim=True) if averaged else a
    return a if space == "probability" else a.masked_fill(~mask, -torch.inf).softmax(-1)


def _row(step: Step, a: Float[Tensor, "b h q t"], row: QueryRow) -> Float[Tensor, "b h t"]:
    """The attention of the position that the classifier reads."""
    if step.model.single_query:
        return _at_least_float32(a[:, :, 0])
    return _at_least_float32(torch.einsum("bq,bhqt->bht", readout(step.model, step.batch, row).to(a), a))


def _at_least_float32(x: Tensor) -> Tensor:
    """Convert to at least single precision."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# ------------------------------------------------------------------------------------------------------ gradients

GradientScore = Literal["gradient", "input_x_gradient"]
Criterion = Literal["outside", Divergence]


def gradient_to_explanation(
    step: Step, *, score: GradientScore = "gradient", criterion: Criterion = "outside", shape: Shape = "normalised"
) -> Float[Tensor, " b"]:
    """Right for the right reasons: penalise gradients outside the explanation, Σ_{i∉R} |∂ Σ_c log p_c / ∂e_i|².

    With any other ``criterion``, the gradient scores of the gold label are compared with the explanation in the same
    way as attention. This is a second-order loss: the model runs without fused attention kernels, which have no second
    derivative.

    Paper: Ross et al. 2017, arXiv:1703.03717, eq. 1; other criteria: Joshi et al. 2022, arXiv:2205.12542
    """
    e, logits = step.output.embeddings, _at_least_float32(step.output.logits)
    if not e.requires_grad:
        raise UnsupportedModel(f"the word embeddings of {step.model.name} are frozen, so they receive no gradient")
    chosen = logits.log_softmax(-1) if step.model.link == "softmax" else logits
    if choose(criterion, ("outside", *DIVERGENCES), "criterion") != "outside" and step.labels.dim() == 1:
        labels = torch.where(step.labels < 0, logits.argmax(1), step.labels)
        chosen = chosen.gather(1, labels[:, None])
    (g,) = torch.autograd.grad(chosen.sum(), e, create_graph=True)
    if criterion == "outside":
        outside = step.batch.content & (step.guide <= 0)
        return _at_least_float32(g).square().sum(-1).mul(outside).sum(1)
    scores = (
        (g * e).sum(-1).abs()
        if choose(score, get_args(GradientScore), "score") == "input_x_gradient"
        else g.norm(dim=-1)
    )
    scores = _at_least_float32(scores) * step.batch.content
    p = (scores / scores.sum(1, keepdim=True).clamp_min(TINY))[:, None]
    return _DISTANCES[criterion](p, _distribution(step.guide, step.batch, shape)[:, None], step.batch.mask[:, None])[
        :, 0
    ]


# ------------------------------------------------------------------------------------------------------ distances


def _distribution(guide: Float[Tensor, "b t"], batch: Batch, shape: str) -> Float[Tensor, "b t"]:
    """The explanation q as a distribution over tokens."""
    if choose(shape, SHAPES, "shape") == "softmax":
        return guide.masked_fill(~batch.content, -torch.inf).softmax(-1).nan_to_num()
    positive = guide.clamp_min(0)
    return positive / positive.sum(1, keepdim=True).clamp_min(TINY)


def _kl(p: Tensor, q: Tensor, _: Tensor) -> Tensor:
    return (torch.special.xlogy(q, q) - q * p.clamp_min(TINY).log()).sum(-1)


def _reverse_kl(p: Tensor, q: Tensor, mask: Tensor) -> Tensor:
    """KL(a ‖ q), with 1 % of q spread over all tokens to keep log q finite."""
    uniform = mask / mask.sum(-1, keepdim=True)
    # xlogy would give 0 · ∞ in the derivative where p is 0, as on padding.
    return (p * (p.clamp_min(TINY).log() - (0.99 * q + 0.01 * uniform).clamp_min(TINY).log())).sum(-1)


def _mse(p: Tensor, q: Tensor, _: Tensor) -> Tensor:
    return (p - q).square().sum(-1)


def _order(p: Tensor, q: Tensor, mask: Tensor) -> Tensor:
    """Σ_{i∈R} min(p_i / max_{j∉R} p_j − 1, 0)²: explained tokens should rank above all others, by any margin."""
    inside = (q > 0) & mask
    rest = p.masked_fill(inside | ~mask, 0).amax(-1, keepdim=True).clamp_min(TINY)
    return ((p / rest - 1).clamp_max(0).square() * inside).sum(-1)


_DISTANCES = {"kl": _kl, "reverse_kl": _reverse_kl, "mse": _mse, "order": _order}

PENALTIES = (attention_to_explanation, contrast, gradient_to_explanation)


# ------------------------------------------------------------------------------------------------------ objective


@dataclass(frozen=True, slots=True)
class Term:
    """A loss with its weight λ, averaged over the texts selected by ``over``.

    The schedule keeps λ at ``weight`` (``constant``), raises it linearly from 0 (``rise``), lowers it linearly to 0
    (``fall``), or lowers it along a half cosine (``cosine``). Set ``attention`` if the loss reads attention weights or
    differentiates the model itself; the model then runs without fused attention kernels. Set ``hidden`` if it reads
    hidden states.

    With an ``ascent``, the loss is a constraint, loss ≤ 0 or loss = 0, and λ its multiplier: ``weight`` at first, then
    raised after steps with a loss above 0 and lowered after the others.
    """

    loss: Loss
    weight: float = 1.0
    schedule: Schedule = "constant"
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    over: Over = guided
    attention: bool = True
    hidden: bool = False
    name: str = ""
    ascent: Ascent | None = None

    def __post_init__(self) -> None:
        choose(self.schedule, SCHEDULES, "schedule")
        object.__setattr__(self, "name", self.name or getattr(self.loss, "__name__", type(self.loss).__name__))

    def weight_at(self, progress: float) -> float:
        """λ at a point of training, from 0 at the first step to 1 at the last."""
        shares = {"constant": 1.0, "rise": progress, "fall": 1 - progress, "cosine": (1 + cos(pi * progress)) / 2}
        return self.weight * shares[self.schedule]

    def __call__(self, step: Step) -> Float[Tensor, ""]:
        """Sum the loss over the selected texts."""
        chosen = self.over(step.labels, step.guide)
        if not bool(chosen.any()):
            return step.output.logits.sum() * 0
        # Index before summing: the loss of an excluded text may be NaN, and 0 · NaN is NaN.
        return self.loss(step, **self.settings)[chosen].sum()


TASK = Term(task_loss, over=labelled, attention=False, name="task")
"""The task loss, averaged over the labelled texts."""


@dataclass(frozen=True, slots=True)
class Objective:
    """A weighted sum of losses, Σ λ_i · L_i. The task is an ordinary term and may be left out.

    ``reference`` is a frozen model that also runs on every batch, so that losses can compare the two outputs. An
    adversarial objective uses it for the model to imitate. ``impose`` returns the edit of attention that the model is
    trained with, if its attention is not its own.

    >>> Objective((TASK, Term(attention_to_explanation, weight=0.5))).names
    ('task', 'attention_to_explanation')
    """

    terms: tuple[Term, ...] = (TASK,)
    reference: Model | None = None
    impose: Impose | None = None

    def __post_init__(self) -> None:
        if not self.terms or len(set(self.names)) < len(self.terms):
            raise BadInput(
                f"an objective needs at least one term, and the names of its terms must differ; got {self.names}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(term.name for term in self.terms)

    @property
    def penalties(self) -> tuple[Term, ...]:
        """All terms except the task."""
        return tuple(term for term in self.terms if term.name != TASK.name)

    @property
    def attention(self) -> Weights | None:
        """How the forward pass must return attention weights."""
        return "differentiable" if any(term.attention for term in self.terms) else None

    @property
    def hidden(self) -> bool:
        """Whether the forward pass must return hidden states."""
        return any(term.hidden for term in self.terms)

    def step(self, model: Model, batch: Batch, labels: Tensor, guide: Tensor) -> Step:
        """Run the model, and the reference model, on a batch."""
        reference = None if self.reference is None else forward(self.reference, batch, attention="read")
        edit = None if self.impose is None else self.impose(batch, guide, reference)
        output = model(batch, attention=self.attention, hidden=self.hidden, edit_attention=edit)
        return Step(model, batch, output, labels, guide, reference)

    def weights_at(self, progress: float) -> dict[str, float]:
        return {term.name: term.weight_at(progress) for term in self.terms}

    @property
    def ascents(self) -> dict[str, Ascent]:
        """How the multipliers of the constraints change, by term."""
        return {term.name: term.ascent for term in self.terms if term.ascent is not None}

    def counts(self, labels: Tensor, guide: Tensor) -> dict[str, int]:
        """The number of texts that each term is averaged over."""
        return {term.name: int(term.over(labels, guide).sum()) for term in self.terms}

    def __call__(self, step: Step) -> dict[str, Float[Tensor, ""]]:
        """Each term, summed over its texts."""
        return {term.name: term(step) for term in self.terms}


def regularised(penalty: Loss, weight: float = 1.0, schedule: Schedule = "constant", **settings: Any) -> Objective:
    """Add a penalty to the task: L_task + λ · penalty.

    The task is averaged over the labelled texts, the penalty over the explained texts.

    >>> regularised(attention_to_explanation, 0.5, layers="all").weights_at(0.0)
    {'task': 1.0, 'attention_to_explanation': 0.5}
    """
    _check_weight(weight)
    return Objective((TASK, Term(penalty, weight, schedule, settings)))


def smoothed(weight: float = 1.0, schedule: Schedule = "constant") -> Objective:
    """Add :func:`label_smoothing` to the task, averaged over the labelled texts: a control without explanations.

    >>> smoothed(0.5).weights_at(0.0)
    {'task': 1.0, 'label_smoothing': 0.5}
    """
    _check_weight(weight)
    return Objective((TASK, Term(label_smoothing, weight, schedule, over=labelled, attention=False)))


def _check_weight(weight: float) -> None:
    if not weight >= 0:
        raise BadInput(f"weight={weight} must be at least 0; a negative weight would reward what the penalty measures")
