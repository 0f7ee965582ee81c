"""Is Attention Interpretable? Weights are set to zero, one or many, until the decision flips.

The paper's hierarchical models (HAN) and flat ones (FLAN) have GRU encoders or none. The classifiers here are flat,
with a BiLSTM or embeddings alone, so only directions can be compared.

Paper: Serrano & Smith 2019, arXiv:1906.03731
"""

from dataclasses import replace

from salience.audits.auditor import POOLED
from salience.audits.erasure import RANKINGS, erasure
from salience.audits.finding import Measure
from salience.papers.debate import (
    Check,
    Experiment,
    Outcome,
    Paper,
    Size,
    accuracy,
    exceeds,
    quantities,
)

SHAPES = {
    "bilstm": {"encoder": "bilstm", "hidden": 50, "attention": 100},
    "embedding": {"encoder": "embedding", "attention": 100},
}


def protocol(experiment: Experiment) -> Outcome:
    """Train both encoders, and erase weights of each."""
    studies = {name: experiment.trained(name, **shape) for name, shape in SHAPES.items()}
    findings = {name: experiment.finding(name, study, erasure) for name, study in studies.items()}
    return Outcome(
        [
            q
            for name, study in studies.items()
            for q in quantities(name, (accuracy(study), *findings[name].measures[1:]), alike=False)
        ],
        {
            f"{name}: gradient and product need fewer weights to flip than attention, random most": _ordered(
                {ranking: finding.measure(f"fraction to flip, {ranking}") for ranking in RANKINGS}
            )
            for name, finding in findings.items()
        },
    )


def _ordered(fractions: dict[str, Measure]) -> list[Check]:
    """Attention needs more weights than the gradient and the product, and random order more than attention."""
    pairs = (("attention", "gradient"), ("attention", "attention_x_gradient"), ("random", "attention"))
    return [exceeds(more, fractions[more], fewer, fractions[fewer]) for more, fewer in pairs]


PAPER = Paper(
    name="serrano_smith_2019",
    title="Is Attention Interpretable?",
    source="Serrano & Smith 2019, arXiv:1906.03731",
    sizes={
        "quick": Size(train=2000, test=200, recipe=POOLED),
        "full": Size(train=None, test=None, recipe=replace(POOLED, rate=4e-4, clip=10.0)),
    },
    protocol=protocol,
    embedding=200,
    notes=(
        "The paper's models are HAN and FLAN with GRU encoders on Yahoo, IMDB, Amazon and Yelp; those here are flat.",
        "Fractions to flip are means over the texts that flip under every ranking.",
    ),
)
