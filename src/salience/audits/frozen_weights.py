"""Do attention weights tell another model which words matter? (Wiegreffe & Pinter 2019, section 3.4)

A classifier that reads each word by itself is trained with attention that is given from outside. Weights that mark
important words help it; arbitrary weights do not.
"""

from collections.abc import Sequence

import numpy as np

from salience.audits.finding import Finding, Measure, by_difference
from salience.audits.study import Study
from salience.core.shares import percent
from salience.core.types import Model
from salience.models.identity import digest
from salience.training.deception import borrowed
from salience.training.objectives import Objective


def frozen_weights(study: Study) -> Finding:
    """Do attention weights tell another model which words matter?"""
    correct = {
        "uniform": study.correct(study.twin("mlp-uniform", encoder="mlp", scoring="uniform")),
        "its own": study.correct(study.twin("mlp-own", encoder="mlp", scoring="tanh")),
        "the model's": guided_by(study, study.model),
    }
    lead = Measure.between("accuracy with weights, the model's − uniform", correct["the model's"], correct["uniform"])
    each = [Measure.of(f"accuracy with weights, {name}", values, "share") for name, values in correct.items()]
    listed = ", ".join(f"{percent(values.mean(), 1)} with {name} weights" for name, values in correct.items())
    return Finding(
        test="frozen_weights",
        question="Do attention weights tell another model which words matter?",
        measures=(lead, *each),
        expected="a model without context is more accurate with these weights than with uniform ones",
        verdict=by_difference(lead.estimate, more_is_explanation=True),
        answer=f"Accuracy of a classifier that reads word by word: {listed}; the model's − uniform {lead}.",
        source="Wiegreffe & Pinter 2019, arXiv:1908.04626, section 3.4",
    )


def guided_by(study: Study, guide: Model, name: str = "model") -> np.ndarray:
    """Which texts a word-by-word classifier gets right that is trained and tested with the attention of a guide.

    A guide that is the audited model, whatever its ``name``, has the same twin: it is trained once.
    """
    objective = Objective(reference=guide, impose=borrowed)
    shared = name if digest(guide) != digest(study.model) else "model"
    twin = study.twin(f"mlp-guided-by-{shared}", objective, encoder="mlp", scoring="fixed")
    return study.correct(twin, objective)


def frozen_weights_twins() -> Sequence[str]:
    """The names of the twins that the test trains."""
    return ["mlp-uniform", "mlp-own", "mlp-guided-by-model"]
