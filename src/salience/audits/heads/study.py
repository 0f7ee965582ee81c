"""What each attention head does, which heads matter, and whether these are the heads that explain."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from salience.audits.heads.gates import Removed, Task, gate_gradients, losses, remove_each
from salience.audits.heads.importance import RankAgreement, means, normalised, rank_agreement, same
from salience.audits.heads.overlap import Looked, looked, marks_of, saliency
from salience.audits.heads.pruning import Pruning, prune
from salience.audits.heads.roles import ROLES, Role, measure_roles, role_of
from salience.audits.weights import check_labels
from salience.core.executor import Report
from salience.core.stats import Estimate, estimate, share
from salience.core.text import Encoded
from salience.core.types import Model
from salience.data.examples import Example, encode_examples
from salience.data.texts import examples_of
from salience.errors import BadInput, UnsupportedModel, choose
from salience.explanations.explainer import AnyMethod, Configured, prepare
from salience.models.loading import as_model
from salience.training.loop import labels_of

Part = Literal["roles", "importance", "pruning", "overlap"]
PARTS: tuple[Part, ...] = get_args(Part)
DEFAULT_METHOD = "occlusion"
ENCODER_DECODER = "an encoder-decoder; `salience alignment` reads the heads of its cross-attention"


@dataclass(frozen=True, slots=True)
class Head:
    """One head: what it attends to, and how much it matters. What was not measured is empty or None."""

    layer: int
    """Layers and heads are numbered from 1."""
    number: int
    role: Role | None
    roles: Mapping[Role, Estimate]
    """The score of each role; see :data:`THRESHOLDS`."""
    importance: float | None = None
    """Mean |dL/dξ| over texts, l2-normalised by layer: from 0 to 1."""
    gradient: Estimate | None = None
    """Mean |dL/dξ| over texts."""
    increase: Estimate | None = None
    """How much the loss increases when the head is removed."""
    accuracy: Estimate | None = None
    """The change of accuracy when it is removed."""
    saliency: Mapping[str, Estimate] = field(default_factory=dict[str, Estimate])
    """Spearman's ρ of its attention with the scores of each method."""
    rationale: Estimate | None = None
    """The probability that a token marked by people has more of its attention than an unmarked one."""


@dataclass(frozen=True, slots=True)
class PlausibleHead:
    """The head that attends most to what people marked, on every second text with marks; measured on the others."""

    layer: int
    number: int
    rationale: Estimate
    """As :attr:`Head.rationale`. Measured on the texts that it was chosen by, the best of many would be too good."""


@dataclass(frozen=True, slots=True)
class HeadStudy:
    """The heads of a model on some texts."""

    model: str
    texts: int
    heads: tuple[Head, ...]
    chance: Mapping[Role, float]
    """The role scores of uniform attention."""
    accuracy: Estimate | None = None
    agreement: RankAgreement | None = None
    """Of importance by gradient with importance by removal, mean |change of the loss|; both normalised by layer."""
    signed: RankAgreement | None = None
    """Of −dL/dξ with the change of the loss: does the gradient tell which removals help?"""
    pruning: Pruning | None = None
    overlap: Mapping[str, RankAgreement] = field(default_factory=dict[str, RankAgreement])
    """Of the importance of heads with their agreement with each method, and with people (``rationale``)."""
    plausible: "PlausibleHead | None" = None
    plausibility: Mapping[str, Estimate] = field(default_factory=dict[str, Estimate])
    """The same probability as :attr:`Head.rationale`, for the scores of each method."""

    def of(self, layer: int) -> list[Head]:
        """The heads of a layer."""
        return [head for head in self.heads if head.layer == layer]

    @property
    def layers(self) -> int:
        return max(head.layer for head in self.heads)

    @property
    def counts(self) -> dict[Role | None, int]:
        """The number of heads of each role; None for those without one."""
        every: list[Role | None] = [*ROLES, None]
        return {role: sum(head.role == role for head in self.heads) for role in every}


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What was measured of every head on every text; heads of all layers side by side."""

    heads: tuple[int, ...]
    """Heads of each layer."""
    roles: Float[np.ndarray, "n h 7"]
    uniform: Float[np.ndarray, "n 7"]
    right: Float[np.ndarray, " n"] | None = None
    slopes: Float[np.ndarray, "n h"] | None = None
    removed: Removed | None = None
    saliency: Mapping[str, Looked] = field(default_factory=dict[str, Looked])
    rationale: Mapping[str, Looked] = field(default_factory=dict[str, Looked])
    pruning: Pruning | None = None


Named = Callable[[str], Report | None]
"""Called with the name of each stage; returns what to call with its progress."""


def heads(
    model: object,
    data: object,
    *,
    parts: Sequence[str] = PARTS,
    methods: AnyMethod | Sequence[AnyMethod] = DEFAULT_METHOD,
    orders: int = 5,
    seed: int = 0,
    text_column: str = "text",
    pair_column: str | None = None,
    report: Named = lambda _: None,
    **settings: Any,
) -> HeadStudy:
    """Find out what every attention head does on texts, which are given as for :func:`salience.explain`.

    ``parts`` are ``roles``, ``importance`` (by the gradient of a gate, and by removal), ``pruning`` (accuracy as the
    least important heads are masked, with ``orders`` random orders beside it) and ``overlap`` (of important heads with
    those that agree with ``methods`` and with rationales). All but the roles need texts with labels; a language model
    predicts the last token of each text. Settings are those of the methods.

    >>> heads(model, examples, parts=["roles"])                                       # doctest: +SKIP
    """
    chosen = _parts(parts)
    configured = prepare(methods, settings) if "overlap" in chosen else []
    examples = examples_of(data, text_column=text_column, pair_column=pair_column)
    if not examples:
        raise BadInput("there are no texts to read the heads on: pass at least one text")
    known = as_model(model)
    task = _task(known, examples, labelled=chosen != {"roles"})
    measured = _measure(task, examples, chosen, configured, orders, seed, report)
    return _study(task, measured, seed)


def _parts(names: Sequence[str]) -> set[str]:
    listed = [names] if isinstance(names, str) else list(names)
    chosen = {choose(name, PARTS, "part of a study of heads") for name in listed}
    if not chosen:
        raise BadInput(f"name at least one part: {', '.join(PARTS)}")
    return chosen | {"roles"} | ({"importance"} if "overlap" in chosen else set())


# ------------------------------------------------------------------------------------------------------ the task


def _task(model: Model, examples: Sequence[Example], *, labelled: bool) -> Task:
    """The texts and labels; the label of a text for a language model is its own last token."""
    if getattr(model.module.config, "is_encoder_decoder", False) if hasattr(model.module, "config") else False:
        raise UnsupportedModel(f"{model.name} is {ENCODER_DECODER}")
    if model.single_query:
        raise UnsupportedModel(
            f"{model.name} has no attention heads from token to token: it has a single query over all tokens. Use a "
            "transformer, or `salience audit`"
        )
    encoded = encode_examples(model, examples)
    if getattr(model, "generates", False):
        cut = [_continued(own, example) for own, example in zip(encoded, examples, strict=True)]
        return Task(model, [text for text, _ in cut], np.array([last for _, last in cut]))
    if not labelled:
        return Task(model, encoded, np.zeros(len(encoded), dtype=int))
    check_labels(model)
    if missing := [e.id for e in examples if e.label is None]:
        raise BadInput(
            f"{len(missing)} of {len(examples)} texts have no label, such as {missing[0]!r}; the importance of heads "
            "is that for the labels. Name their column (--label-column), or study the roles alone (--part roles)"
        )
    labels = labels_of(model, examples).cpu().numpy()
    if len(set(labels.tolist())) == 1:
        raise BadInput(
            f"all {len(labels)} texts have the label {model.label(int(labels[0]))!r}; the importance of heads needs "
            "texts of at least two labels. Add others, or study the roles alone (--part roles)"
        )
    return Task(model, encoded, labels)


def _continued(encoded: Encoded, example: Example) -> tuple[Encoded, int]:
    """A text without its last token, and that token; special tokens at its end are left out."""
    at = max((i for i, special in enumerate(encoded.special) if not special), default=0)
    if at < 2:
        raise BadInput(
            f"the text {example.id!r} is too short: a language model predicts its last token from the others"
        )
    tuples = ("ids", "tokens", "offsets", "special", "segments", "units")
    kept = {name: value[:at] for name in tuples if (value := getattr(encoded, name)) is not None}
    return replace(encoded, **kept), encoded.ids[at]


# ------------------------------------------------------------------------------------------------------ measuring


def _measure(
    task: Task,
    examples: Sequence[Example],
    parts: set[str],
    methods: Sequence[Configured],
    orders: int,
    seed: int,
    report: Named,
) -> Measured:
    model, encoded = task.model, task.encoded
    layers, uniform = measure_roles(model, encoded, report=report("reading roles"))
    measured = Measured(tuple(layer.shape[1] for layer in layers), np.concatenate(layers, 1), uniform)
    if parts != {"roles"}:
        measured = replace(measured, right=losses(task)[1].astype(float))
    if "importance" in parts:
        slopes = np.concatenate(gate_gradients(task, report=report("differentiating gates")), 1)
        removed = remove_each(task, measured.heads, report=report("removing heads"))
        measured = replace(measured, slopes=slopes, removed=removed)
    if "overlap" in parts:
        scores = saliency(model, encoded, methods, report=report("explaining"))
        marks = None if getattr(model, "generates", False) else marks_of(examples, encoded)
        by_method, by_people = looked(model, encoded, scores, marks, report=report("comparing attention"))
        measured = replace(measured, saliency=by_method, rationale=by_people)
    if "pruning" in parts:
        measured = replace(measured, pruning=_pruned(task, measured.heads, orders, seed, report))
    return measured


def _pruned(task: Task, heads: Sequence[int], orders: int, seed: int, report: Named) -> Pruning:
    """Heads are ranked on every second text and tested on the others."""
    if len(task) < 2:
        raise BadInput("a pruning curve needs at least two texts: heads are ranked on half of them, tested on the rest")
    ranked, tested = (task.take(range(first, len(task), 2)) for first in (0, 1))
    return prune(ranked, tested, heads, orders=orders, seed=seed, report=report("pruning"))


# ------------------------------------------------------------------------------------------------------ results


def _study(task: Task, measured: Measured, seed: int) -> HeadStudy:
    defined = measured.uniform
    study = HeadStudy(
        task.model.name,
        len(task),
        _heads(measured),
        {role: float(value) for role, value in zip(ROLES, means(defined), strict=True)},
        accuracy=None if measured.right is None else share(measured.right),
        pruning=measured.pruning,
    )
    if measured.slopes is None or measured.removed is None:
        return study
    scale = normalised(measured.heads)
    increase, magnitude = np.concatenate(measured.removed.increase, 1), np.abs(measured.slopes)
    agreements = {name: own.heads for name, own in measured.saliency.items()}
    people = next(iter(measured.rationale.values()), None)
    if people is not None:
        agreements["rationale"] = people.heads
    return replace(
        study,
        agreement=rank_agreement(magnitude, np.abs(increase), scales=(scale, scale), seed=seed),
        signed=rank_agreement(-measured.slopes, increase, seed=seed),
        overlap={
            name: rank_agreement(magnitude, own, scales=(scale, same), seed=seed) for name, own in agreements.items()
        },
        plausible=None if people is None else _plausible(study.heads, people.heads),
        plausibility={
            name: estimate(own.reference, (0, 1))
            for name, own in measured.rationale.items()
            if own.reference is not None
        },
    )


def _plausible(heads: Sequence[Head], values: Float[np.ndarray, "n h"]) -> PlausibleHead | None:
    known = values[~np.isnan(values).any(1)]
    if len(known) < 2:
        return None
    best = int(known[::2].mean(0).argmax())
    return PlausibleHead(heads[best].layer, heads[best].number, estimate(known[1::2, best], (0, 1)))


def _heads(measured: Measured) -> tuple[Head, ...]:
    places = [(layer, number) for layer, count in enumerate(measured.heads, 1) for number in range(1, count + 1)]
    roles = measured.roles
    plain = [
        Head(
            layer,
            number,
            role_of(means(roles[:, at])),
            {role: estimate(roles[:, at, n], (0, 1)) for n, role in enumerate(ROLES)},
        )
        for at, (layer, number) in enumerate(places)
    ]
    return tuple(_with_importance(head, measured, at) for at, head in enumerate(plain))


def _with_importance(head: Head, measured: Measured, at: int) -> Head:
    if measured.slopes is None or measured.removed is None or measured.right is None:
        return head
    magnitude = np.abs(measured.slopes)
    right = np.concatenate(measured.removed.right, 1)[:, at].astype(float)
    people = next(iter(measured.rationale.values()), None)
    return replace(
        head,
        importance=float(normalised(measured.heads)(magnitude.mean(0, keepdims=True))[0, at]),
        gradient=estimate(magnitude[:, at]),
        increase=estimate(np.concatenate(measured.removed.increase, 1)[:, at]),
        accuracy=estimate(right - measured.right, (-1, 1)),
        saliency={name: estimate(own.heads[:, at], (-1, 1)) for name, own in measured.saliency.items()},
        rationale=None if people is None else estimate(people.heads[:, at], (0, 1)),
    )
