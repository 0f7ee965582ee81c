"""Can this model be changed so that its attention misleads while its predictions stay? (Snell et al. 2021)"""

from collections.abc import Sequence

import numpy as np

from salience.audits.correlation import correlated
from salience.audits.finding import Finding, Measure, by_difference
from salience.audits.study import Study
from salience.audits.weights import SAME_OUTPUT, Attended
from salience.core.distances import total_variation
from salience.core.settings import NotNegative
from salience.core.shares import percent
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
    same = Measure.share("texts whose output stays", change <= SAME_OUTPUT)
    correct = [study.correct(model) for model in (study.model, twin)]
    return Finding(
        test="deceptive_twin",
        question="Can this model be changed so that its attention misleads while its predictions stay?",
        measures=(
            lead,
            own,
            Measure.of("change of the output (TVD)", change),
            same,
            Measure.of("distance of attention (JSD)", study.distances(study.model, twin)),
            Measure.of("accuracy, model", correct[0], "share"),
            Measure.of("accuracy, twin", correct[1], "share"),
        ),
        expected="a twin with the same predictions attends to the same influential words",
        verdict=by_difference(lead.estimate, more_is_explanation=True) if same.estimate.low > 0.5 else "unclear",
        answer=(
            f"τ(attention, leave-one-out) is {own.mean} in the model and {lead} in a twin that "
            f"predicts the same (TVD at most {SAME_OUTPUT:g}) in {same} of the texts; accuracy "
            f"{percent(correct[0].mean(), 1)} and {percent(correct[1].mean(), 1)}."
        ),
        source="Snell et al. 2021, arXiv:2103.07601, after Wiegreffe & Pinter 2019, arXiv:1908.04626",
    )


def deceiving(study: Study, weight: float = WEIGHT) -> Model:
    """The twin, which is trained or read from its folder."""
    return study.copied(_name(weight), imitation(study.model, weight, of="reference", **study.tested))


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
