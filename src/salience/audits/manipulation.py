"""Can attention hide what a model uses? (Pruthi et al. 2020)"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from jaxtyping import Float

from salience.audits.finding import Finding, Measure, by_difference
from salience.audits.study import Study
from salience.core.settings import NotNegative
from salience.core.shares import percent
from salience.data.examples import Example, encode_examples
from salience.errors import BadInput, UnsupportedModel
from salience.training.deception import Heads, forbidden_mass
from salience.training.deception import manipulation as objective_of
from salience.training.guides import by_rationales
from salience.training.twins import steps

WEIGHTS = (0.0, 0.1, 1.0)
"""The weights λ of the paper."""

HIDDEN = 0.05
"""The attention on impermissible tokens that counts as none."""


@dataclass(frozen=True, slots=True, eq=False)
class Manipulated:
    """A twin trained with one λ, and what it does on every text."""

    weight: float
    correct: Float[np.ndarray, " n"]
    mass: Float[np.ndarray, " n"]
    """Attention on impermissible tokens, a mean over heads; NaN for texts without such tokens."""


def manipulated(study: Study, weights: Sequence[float], heads: Heads, separate: bool) -> list[Manipulated]:
    """Train a twin for each λ: L = CE − λ · log(1 − Σ_{i∈I} a_i), I being the impermissible tokens."""
    assert study.twins is not None
    train = by_rationales(study.model, study.twins.examples)
    tested = by_rationales(study.model, study.examples)
    marked = np.array([any(e.guide or ()) for e in tested])
    results: list[Manipulated] = []
    for weight in weights:
        objective = objective_of(weight, heads=heads, separate=separate)
        model = study.twin(_name(weight, heads, separate), objective, examples=train)
        mass = steps(model, tested, objective, lambda step: forbidden_mass(step).mean(1)).double().numpy()
        correct = replace(study, examples=tested).correct(model, objective)
        results.append(Manipulated(weight, correct, np.where(marked, mass, np.nan)))
    return results


def manipulation(
    study: Study, *, weights: Sequence[NotNegative] = WEIGHTS, heads: Heads = "mean", separate: bool = False
) -> Finding:
    """Can attention hide what a model uses?

    With ``separate``, permissible and impermissible tokens of a transformer do not attend to each other.
    """
    _check(study, weights, separate)
    trained, removed = manipulated(study, sorted(weights), heads, separate), without_tokens(study)
    last = trained[-1]
    lead = Measure.between(f"accuracy, λ = {last.weight:g} − tokens removed", last.correct, removed)
    rows = [
        (
            Measure.of(f"accuracy, λ = {one.weight:g}", one.correct, "share"),
            Measure.of(f"attention on impermissible tokens, λ = {one.weight:g}", one.mass, "share"),
        )
        for one in trained
    ]
    hidden = rows[-1][1].estimate.mean < HIDDEN
    listed = "; ".join(
        f"λ = {one.weight:g}: {percent(accuracy.estimate.mean, 1)} with {percent(mass.estimate.mean, 1)}"
        for one, (accuracy, mass) in zip(trained, rows, strict=True)
    )
    return Finding(
        test="manipulation",
        question="Can attention hide what a model uses?",
        measures=(lead, Measure.of("accuracy, tokens removed", removed, "share"), *chain(*rows)),
        expected="a model without attention on the impermissible tokens is no better than one that never sees them",
        verdict=by_difference(lead.estimate, more_is_explanation=False) if hidden else "unclear",
        answer=(
            f"Accuracy, and attention on the impermissible tokens: {listed}. With these tokens removed, accuracy is "
            f"{percent(float(np.nanmean(removed)), 1)}."
        ),
        source="Pruthi et al. 2020, arXiv:1909.07913",
    )


def _check(study: Study, weights: Sequence[NotNegative], separate: bool) -> None:
    assert study.twins is not None
    if (why := unmarked(study.twins.examples, study.examples)) is not None:
        raise BadInput(why)
    if not weights:
        raise BadInput("weights of manipulation is empty; give at least one λ")
    if study.layer is not None or study.head is not None:
        raise BadInput("manipulation trains all heads of the last layer; leave out the layer and the head")
    if separate and (study.model.single_query or study.model.causal):
        raise UnsupportedModel(
            f"separate keeps tokens of an encoder from attending to each other, and {study.model.name} is "
            f"{'a causal model' if study.model.causal else 'a model with one query'}; leave it out"
        )


def unmarked(train: Sequence[Example], test: Sequence[Example]) -> str | None:
    """Why attention on marked tokens cannot be tested with these texts; None if it can."""
    for what, examples in (("train on", train), ("test on", test)):
        if not any(e.rationale for e in examples):
            return (
                f"no text to {what} marks impermissible tokens: name the column that lists them "
                "(--impermissible-column), or pass examples whose rationale holds their spans"
            )
        if not any(map(removed, examples)):
            return f"without their impermissible tokens, nothing is left of the texts to {what}"
    return None


def without_tokens(study: Study) -> Float[np.ndarray, " n"]:
    """Which texts a twin classifies correctly that never sees the impermissible tokens; NaN if nothing else is left."""
    assert study.twins is not None
    left = [e for e in map(removed, study.twins.examples) if e is not None]
    model = study.twin("removed", examples=left)
    texts = [removed(e) for e in study.examples]
    kept = [e for e in texts if e is not None]
    correct = np.full(len(texts), np.nan)
    known = np.array([e is not None for e in texts])
    correct[known] = replace(study, examples=kept, encoded=encode_examples(model, kept)).correct(model)
    return correct


def removed(example: Example) -> Example | None:
    """The example without its impermissible spans; None if nothing remains.

    >>> removed(Example("0", "she is here", rationale=((0, 3),))).text
    ' is here'
    """
    if not isinstance(example.text, str):
        raise BadInput(f"the text of {example.id!r} is a pair; tokens are removed from single texts only")
    kept, end = "", 0
    for start, stop in sorted(example.rationale or ()):
        kept, end = kept + example.text[end:start], max(end, stop)
    kept += example.text[end:]
    return replace(example, text=kept, rationale=None) if kept.strip() else None


def _name(weight: float, heads: str, separate: bool) -> str:
    return f"manipulated-{weight:g}-{heads}" + ("-separate" if separate else "")


def manipulation_twins(
    *, weights: Sequence[NotNegative] = WEIGHTS, heads: Heads = "mean", separate: bool = False
) -> Sequence[str]:
    """The names of the twins that the test trains."""
    return [*(_name(weight, heads, separate) for weight in weights), "removed"]
