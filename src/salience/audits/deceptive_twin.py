"""Can this model be changed so that its attention misleads while its predictions stay? (Snell et al. 2021)"""

from collections.abc import Sequence

import numpy as np

from salience.audits.adversary import FAR
from salience.audits.correlation import correlated
from salience.audits.finding import Finding, Measure, Verdict
from salience.audits.study import Study
from salience.audits.weights import SAME_OUTPUT, Attended
from salience.core.distances import total_variation
from salience.core.settings import NotNegative
from salience.core.shares import percent
from salience.core.stats import Estimate
from salience.core.types import Model
from salience.training.deception import imitation
from salience.training.twins import probabilities

WEIGHT = 0.1
"""The weight λ of the distance between both attentions. A copy starts where the distance is flat: less moves little."""


def deceptive_twin(study: Study, *, weight: NotNegative = WEIGHT) -> Finding:
    """Can this model be changed so that its attention misleads while its predictions stay?

    L = TVD(ŷ_P, ŷ_Q) − λ · KL(a_P ‖ a_Q); the twin Q starts as a copy of the model P.
    """
    twin = deceiving(study, weight)
    before, after = _influence(study, study.model), _influence(study, twin)
    change = total_variation(*(probabilities(model, study.examples) for model in (twin, study.model))).numpy()
    lead = Measure.of("τ(attention, leave-one-out) of the twin", after)
    own = Measure.of("τ(attention, leave-one-out) of the model", before)
    fall = Measure.of("τ(attention, leave-one-out), twin − model", after - before)
    same = Measure.share("texts whose output stays", change <= SAME_OUTPUT)
    distance = Measure.of("distance of attention (JSD)", study.distances(study.model, twin), "size")
    correct = [study.correct(model) for model in (study.model, twin)]
    return Finding(
        test="deceptive_twin",
        question="Can this model be changed so that its attention misleads while its predictions stay?",
        measures=(
            lead,
            own,
            Measure.of("change of the output (TVD)", change, "size"),
            same,
            distance,
            Measure.of("accuracy, model", correct[0], "share"),
            Measure.of("accuracy, twin", correct[1], "share"),
            fall,
        ),
        expected="a twin with the same predictions and other attention still attends to influential words",
        verdict=judged(lead.estimate, fall.estimate, distance=distance.estimate, same=same.estimate),
        answer=(
            f"τ(attention, leave-one-out) is {own.mean} in the model and {lead} in a twin that "
            f"predicts the same (TVD at most {SAME_OUTPUT:g}) in {same} of the texts and whose attention is at a "
            f"distance (JSD) of {distance}; accuracy {percent(correct[0].mean(), 1)} and "
            f"{percent(correct[1].mean(), 1)}."
        ),
        source="Snell et al. 2021, arXiv:2103.07601, after Wiegreffe & Pinter 2019, arXiv:1908.04626",
    )


def deceiving(study: Study, weight: float = WEIGHT) -> Model:
    """The twin, which is trained or read from its folder."""
    return study.copied(_name(weight), imitation(study.model, weight, of="reference", **study.tested))


def judged(twin: Estimate, fall: Estimate, *, distance: Estimate, same: Estimate) -> Verdict:
    """Whether the attention of a twin misleads, from its τ with leave-one-out and how far that fell.

    A twin says something only if it predicts the same in most texts. It misleads if its τ is below 0 and below the
    model's: attention that was against influence before was not changed. That it attends to influential words says
    something only if its attention is far from the model's.
    """
    if not same.low > 0.5:
        return "unclear"
    if twin.high < 0 and fall.high < 0:
        return "no explanation"
    return "explanation" if twin.low > 0 and distance.low > FAR else "unclear"


def _influence(study: Study, model: Model) -> np.ndarray:
    """Kendall's τ between attention and leave-one-out for every text."""

    def test(attended: Attended):
        return {"tau": correlated(attended, ["attention, leave-one-out"]).tau[0]}

    return study.each(test, model)["tau"]


def _name(weight: float) -> str:
    return f"deceptive-{weight:g}"


def deceptive_twin_twins(*, weight: NotNegative = WEIGHT) -> Sequence[str]:
    """The names of the twins that the test trains."""
    return [_name(weight)]
