"""Towards Transparent and Explainable Attention Models: LSTMs whose states are kept apart.

Paper: Mohankumar et al. 2020, arXiv:2004.14243
"""

from salience.audits.improvement import diverse_states
from salience.papers.debate import (
    DIRECTIONS_ONLY,
    IMPROVEMENT,
    Experiment,
    Outcome,
    Paper,
    above,
    exceeds,
    keeps_accuracy,
    quantities,
)

HIDDEN = 256
WEIGHT = 0.5
"""λ of conicity."""


def protocol(experiment: Experiment) -> Outcome:
    """Train an LSTM as usual, with diverse states and with orthogonal states; test each."""
    study = experiment.study("lstm", attention=128)
    finding = experiment.finding(
        "lstm", study, diverse_states, weight=WEIGHT, hidden=HIDDEN, search=experiment.size.search
    )
    plain, diverse = "lstm", f"diverse-{WEIGHT:g}"
    own, kept_apart = (finding.measure(f"conicity, {name}") for name in (plain, diverse))
    accuracy = [finding.measure(f"accuracy, {name}") for name in (diverse, plain)]
    return Outcome(
        quantities("lstm", finding.measures),
        {
            "diversity training at least halves conicity": [
                exceeds("plain", own, "twice diverse", kept_apart, times=2)
            ],
            "diversity training keeps accuracy within 2 points": [keeps_accuracy("diverse", *accuracy)],
            "diversity training makes shuffled attention change the output more": [above(finding.measures[0])],
        },
    )


PAPER = Paper(
    name="mohankumar_2020",
    title="Towards Transparent and Explainable Attention Models",
    source="Mohankumar et al. 2020, arXiv:2004.14243",
    sizes=IMPROVEMENT,
    protocol=protocol,
    pretrained=True,
    notes=(DIRECTIONS_ONLY,),
)
