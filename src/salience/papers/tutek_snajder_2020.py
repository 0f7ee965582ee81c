"""Staying True to Your Word: states that keep the identity of their word.

Paper: Tutek & Šnajder 2020, arXiv:2005.09379
"""

from salience.audits.improvement import word_tying
from salience.errors import BadInput
from salience.papers.debate import (
    DIRECTIONS_ONLY,
    IMPROVEMENT,
    Experiment,
    Outcome,
    Paper,
    above,
    keeps_accuracy,
    quantities,
)

WEIGHT = 1.0
"""λ of the word-level losses."""


def protocol(experiment: Experiment) -> Outcome:
    """Train a BiLSTM as usual, tied to its words, with masked words and with joined embeddings; test each."""
    if experiment.embedding % 2:
        raise BadInput(
            f"the word vectors are {experiment.embedding} wide; both directions of the BiLSTM together are as wide as "
            "the vectors, so use vectors of an even width"
        )
    study = experiment.study("bilstm", attention=150)
    finding = experiment.finding(
        "bilstm", study, word_tying, weight=WEIGHT, hidden=experiment.embedding // 2, search=experiment.size.search
    )
    accuracy = [finding.measure(f"accuracy, {name}") for name in (f"tied-{WEIGHT:g}", "wide")]
    return Outcome(
        quantities("bilstm", finding.measures),
        {
            "tying keeps accuracy within 2 points": [keeps_accuracy("tied", *accuracy)],
            "tying makes shuffled attention change the output more": [above(finding.measures[0])],
        },
    )


PAPER = Paper(
    name="tutek_snajder_2020",
    title="Staying True to Your Word: (How) Can Attention Become Explanation?",
    source="Tutek & Šnajder 2020, arXiv:2005.09379",
    sizes=IMPROVEMENT,
    protocol=protocol,
    pretrained=True,
    notes=(DIRECTIONS_ONLY,),
)
