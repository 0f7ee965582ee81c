"""Learning to Deceive with Attention-Based Explanations: models that hide what they use.

Paper: Pruthi et al. 2020, arXiv:1909.07913
"""

from collections.abc import Iterator
from dataclasses import replace

from salience.audits.auditor import POOLED, TUNED
from salience.audits.finding import Finding
from salience.audits.manipulation import HIDDEN, WEIGHTS, manipulation
from salience.core.shares import percent
from salience.papers.debate import Check, Experiment, Outcome, Paper, Size, below, exceeds, quantities

SHAPES = {
    "embedding": {"encoder": "embedding", "scoring": "dot"},
    "bilstm": {"encoder": "bilstm", "hidden": 64, "scoring": "dot"},
}

TRANSFORMER = replace(TUNED, epochs=4, batch=16)


def _published(model: str, removed: float, *pairs: tuple[float, float | None]) -> Iterator[tuple[str, float]]:
    """Percentages of accuracy with the tokens removed, and of accuracy and attention for each λ."""
    yield f"{model}: accuracy, tokens removed", removed / 100
    for weight, (accuracy, mass) in zip(WEIGHTS, pairs, strict=True):
        yield f"{model}: accuracy, λ = {weight:g}", accuracy / 100
        if mass is not None:
            yield f"{model}: attention on impermissible tokens, λ = {weight:g}", mass / 100


PUBLISHED = {
    "occupation": {
        **dict(_published("embedding", 93.8, (96.3, 51.4), (96.2, 4.6), (96.2, 1.3))),
        **dict(_published("bilstm", 93.3, (96.4, 50.3), (96.4, 0.08), (96.7, None))),
        **dict(_published("transformer", 95.0, (97.2, 13.9), (97.2, 0.007), (97.2, None))),
    },
    "gender": {
        **dict(_published("embedding", 66.8, (100, 99.2), (99.4, 3.4), (99.2, 0.8))),
        **dict(_published("bilstm", 63.3, (100, 96.8), (100, None), (100, None))),
        **dict(_published("transformer", 72.8, (100, 80.8), (99.9, None), (99.9, None))),
    },
    "sst_wiki": {
        **dict(_published("embedding", 48.9, (70.7, 48.4), (67.9, 36.4), (48.4, 8.7))),
        **dict(_published("bilstm", 49.1, (76.9, 77.7), (60.6, 0.04), (61.0, 0.07))),
        **dict(_published("transformer", 50.4, (90.8, 59.0), (90.9, None), (90.6, None))),
    },
}
"""Numbers printed as 0, or as below a bound, are left out. The transformer is BERT with the mean over heads."""


def protocol(experiment: Experiment) -> Outcome:
    """Train every model with each λ, and without the impermissible tokens."""
    findings = {
        name: experiment.finding(name, experiment.study(name, **shape), manipulation, weights=WEIGHTS)
        for name, shape in SHAPES.items()
    }
    if experiment.encoder is not None:
        study = experiment.transformer(replace(TRANSFORMER, epochs=min(4, experiment.size.recipe.epochs)))
        findings["transformer"] = experiment.finding("transformer", study, manipulation, weights=WEIGHTS, separate=True)
    return Outcome(
        [q for name, finding in findings.items() for q in quantities(name, finding.measures[1:], alike=name in SHAPES)],
        {
            f"{name}, λ = {weight:g}: attention on impermissible tokens is below {percent(HIDDEN)}, and accuracy is "
            "above that without these tokens": _hidden(finding, weight)
            for name, finding in findings.items()
            for weight in WEIGHTS[1:]
        },
    )


def _hidden(finding: Finding, weight: float) -> list[Check]:
    own, removed = (finding.measure(f"accuracy, {what}") for what in (f"λ = {weight:g}", "tokens removed"))
    return [
        below(finding.measure(f"attention on impermissible tokens, λ = {weight:g}"), HIDDEN),
        exceeds("accuracy", own, "removed", removed),
    ]


PAPER = Paper(
    name="pruthi_2020",
    title="Learning to Deceive with Attention-Based Explanations",
    source="Pruthi et al. 2020, arXiv:1909.07913",
    sizes={
        "quick": Size(train=2000, test=400, recipe=replace(POOLED, rate=3e-3)),
        "full": Size(train=None, test=None, recipe=replace(POOLED, epochs=15, batch=1)),
    },
    protocol=protocol,
    published=PUBLISHED,
    embedding=128,
    scale=1.0,
    recipes={"occupation": {"epochs": 5}},
    notes=(
        "Trained for a fixed number of epochs; the paper selects the best epoch on validation texts.",
        "The quick size, without --limit and --epochs, makes about 500 updates of 32 texts at a rate of 0.003, the "
        "paper over 100,000 of one text at 0.001; attention is trained far less here.",
        "Scores of attention are divided by the root of the width of the states; the paper's are not.",
        "The paper's transformer is BERT-base.",
    ),
)
