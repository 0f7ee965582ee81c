"""Does the model need attention at all? (Wiegreffe & Pinter 2019, section 3.1)"""

from collections.abc import Sequence

import numpy as np

from salience.audits.finding import Finding, Measure, only_if_better
from salience.audits.study import Study, standard_name
from salience.core.settings import Count
from salience.core.shares import percent


def uniform_attention(study: Study, *, seeds: Count = 3) -> Finding:
    """Does the model need attention at all?"""
    own = np.array([study.correct(study.standard(seed)) for seed in range(seeds)])
    uniform = np.array(
        [study.correct(study.twin(f"uniform-{seed}", seed=seed, scoring="uniform")) for seed in range(seeds)]
    )
    lead = Measure.between("accuracy, own − uniform attention", own, uniform)
    return Finding(
        test="uniform_attention",
        question="Does the model need attention at all?",
        measures=(
            lead,
            Measure.of("accuracy, own attention", own.mean(0), "share"),
            Measure.of("accuracy, uniform attention", uniform.mean(0), "share"),
        ),
        expected="a model trained with uniform attention is less accurate",
        verdict=only_if_better(lead.estimate),
        answer=(
            f"Accuracy of twins over {seeds} seeds: {percent(own.mean(), 1)} with attention of their own, "
            f"{percent(uniform.mean(), 1)} with uniform attention; the difference is {lead}."
        ),
        source="Wiegreffe & Pinter 2019, arXiv:1908.04626, section 3.1",
    )


def uniform_attention_twins(*, seeds: Count = 3) -> Sequence[str]:
    """The names of the twins that the test trains."""
    return [name for seed in range(seeds) for name in (standard_name(seed), f"uniform-{seed}")]
