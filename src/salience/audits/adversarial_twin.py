"""Can a model be trained to predict the same with other attention? (Wiegreffe & Pinter 2019, section 4)"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from jaxtyping import Float

from salience.audits.adversary import FAR
from salience.audits.finding import MARGIN, Finding, Measure, Verdict, only_if_better
from salience.audits.frozen_weights import guided_by
from salience.audits.study import Study, standard_name
from salience.core.distances import total_variation
from salience.core.settings import NotNegative
from salience.core.shares import percent
from salience.core.types import Model
from salience.errors import BadInput
from salience.training.deception import imitation
from salience.training.twins import probabilities

WEIGHTS = (0.0, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2)
"""The weights λ that are tried."""

LOSS = MARGIN
"""The accuracy that an adversary may lose and still count as predicting the same."""


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A twin trained against the base model with one λ, and what it does on every text."""

    weight: float
    model: Model
    correct: Float[np.ndarray, " n"]
    change: Float[np.ndarray, " n"]
    """TVD between its output and that of the base model."""
    distance: Float[np.ndarray, " n"]
    """JSD between its attention and that of the base model."""


def adversaries(study: Study, weights: Sequence[float]) -> list[Trained]:
    """Train a twin for each λ: L = TVD(ŷ_a, ŷ_b) − λ · KL(a_a ‖ a_b)."""
    base = study.standard()
    p = probabilities(base, study.examples)
    trained: list[Trained] = []
    for weight in weights:
        model = study.twin(_name(weight), imitation(base, weight), seed=1)
        change = total_variation(probabilities(model, study.examples), p).numpy()
        trained.append(Trained(weight, model, study.correct(model), change, study.distances(base, model)))
    return trained


def adversarial_twin(study: Study, *, weights: Sequence[NotNegative] = WEIGHTS) -> Finding:
    """Can a model be trained to predict the same with other attention?"""
    if not weights:
        raise BadInput("weights of adversarial_twin is empty; give at least one λ")
    base = study.standard()
    correct, trained = study.correct(base), adversaries(study, weights)
    curve = {one.weight: _measured(one) for one in trained}
    accuracies = {weight: accuracy.estimate.mean for weight, (accuracy, _, _) in curve.items()}
    distances = {weight: distance.estimate.mean for weight, (_, _, distance) in curve.items()}
    weight, alike = furthest(accuracies, distances, float(correct.mean()))
    imitated = max(accuracies.values()) >= float(correct.mean()) - LOSS
    best = next(one for one in trained if one.weight == weight)
    accuracy, change, distance = curve[weight]
    by_base, by_best = guided_by(study, base, "standard"), guided_by(study, best.model, "adversary")
    lead = Measure.between("accuracy with frozen weights, the model's − the adversary's", by_base, by_best)
    points = f"{100 * LOSS:g} points of accuracy"
    kind = "The furthest adversary within" if alike else "The most accurate far adversary, and none is within"
    return Finding(
        test="adversarial_twin",
        question="Can a model be trained to predict the same with other attention?",
        measures=(
            lead,
            Measure.of("accuracy, the model's twin", correct, "share"),
            Measure.of("accuracy with frozen weights, the model's", by_base, "share"),
            Measure.of("accuracy with frozen weights, the adversary's", by_best, "share"),
            *chain(*curve.values()),
        ),
        expected="no adversary is far; or its weights, unlike the model's, do not help a model without context",
        verdict=_verdict(imitated, alike, distance, lead),
        answer=(
            f"{kind} {points} (λ = {best.weight:g}): accuracy {accuracy.mean} (base {percent(correct.mean(), 1)}), TVD "
            f"{change}, JSD {distance}. Frozen in a model without context, the base's weights give "
            f"{percent(by_base.mean(), 1)}, the adversary's {percent(by_best.mean(), 1)}; difference {lead}."
        ),
        source="Wiegreffe & Pinter 2019, arXiv:1908.04626, section 4",
    )


def _measured(one: Trained) -> tuple[Measure, Measure, Measure]:
    """Accuracy, change of the output and distance of attention."""
    return (
        Measure.of(f"accuracy, λ = {one.weight:g}", one.correct, "share"),
        Measure.of(f"change of the output (TVD), λ = {one.weight:g}", one.change, "size"),
        Measure.of(f"distance of attention (JSD), λ = {one.weight:g}", one.distance, "size"),
    )


def furthest(accuracy: Mapping[float, float], distance: Mapping[float, float], base: float) -> tuple[float, bool]:
    """The λ of the furthest twin that is as accurate as the base; and whether there is one.

    It is chosen among the twins with JSD > 0.4, as in the paper, if there are any: one that only imitates is no
    adversary. If none of these is as accurate, it is that of the most accurate.
    """
    far = [weight for weight, value in distance.items() if value > FAR] or list(distance)
    if alike := [weight for weight in far if accuracy[weight] >= base - LOSS]:
        return max(alike, key=lambda weight: distance[weight]), True
    return max(far, key=lambda weight: accuracy[weight]), False


def _verdict(imitated: bool, alike: bool, distance: Measure, lead: Measure) -> Verdict:
    """Without an adversary that is as accurate and far, attention stands; with one, its weights must be worse.

    If no twin is as accurate, not even the one that only imitates (λ = 0), nothing is known about other attention.
    """
    if not imitated:
        return "unclear"
    if not alike or distance.estimate.high < FAR:
        return "explanation"
    return only_if_better(lead.estimate) if distance.estimate.low > FAR else "unclear"


def _name(weight: float) -> str:
    return f"adversarial-{weight:g}"


def adversarial_twin_twins(*, weights: Sequence[NotNegative] = WEIGHTS) -> Sequence[str]:
    """The names of the twins that the test trains."""
    return [standard_name(0), *map(_name, weights), "mlp-guided-by-standard", "mlp-guided-by-adversary"]
