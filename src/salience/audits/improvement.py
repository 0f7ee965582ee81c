"""Can training make attention an explanation? (Mohankumar et al. 2020; Tutek & Šnajder 2020)

Twins are trained whose states keep apart, or keep the identity of their word; then the tests of permutation, adversary,
erasure and correlation are run again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from salience.audits.adversarial_twin import LOSS
from salience.audits.adversary import Search, adversarial
from salience.audits.correlation import correlated
from salience.audits.erasure import fractions_to_flip
from salience.audits.finding import Finding, Kind, Measure, Verdict, by_difference
from salience.audits.permutation import permuted
from salience.audits.study import Study
from salience.audits.weights import Attended
from salience.core.passes import forward
from salience.core.settings import Count, NotNegative
from salience.core.shares import percent
from salience.training.objectives import TASK, Objective, Term, every
from salience.training.states import conicity, conicity_of, masked_words, tying


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of training a twin."""

    name: str
    terms: tuple[Term, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def twin(self) -> str:
        """The name of the twin in its folder, which differs by its width."""
        return f"{self.name}-{self.changes['hidden']}"


def diverse_states(
    study: Study,
    *,
    weight: NotNegative = 0.5,
    hidden: Count = 128,
    search: Search = Search(),  # noqa: B008
) -> Finding:
    """Does training with diverse states make attention an explanation?

    ``hidden`` are the units of the LSTM, which reads in one direction.
    """
    return _improved(
        study,
        _diverse(weight, hidden),
        search,
        test="diverse_states",
        question="Does training with diverse states make attention an explanation?",
        source="Mohankumar et al. 2020, arXiv:2004.14243",
    )


def word_tying(
    study: Study,
    *,
    weight: NotNegative = 1.0,
    hidden: Count = 64,
    search: Search = Search(),  # noqa: B008
) -> Finding:
    """Does training with states that keep their word make attention an explanation?

    ``hidden`` are the units of each direction of the BiLSTM; embeddings are twice as wide, like the states.
    """
    return _improved(
        study,
        _tied(weight, hidden),
        search,
        test="word_tying",
        question="Does training with states that keep their word make attention an explanation?",
        source="Tutek & Šnajder 2020, arXiv:2005.09379",
    )


def _diverse(weight: float, hidden: int) -> tuple[Variant, ...]:
    shape = {"encoder": "lstm", "hidden": hidden}
    penalty = Term(conicity, weight, over=every, attention=False, hidden=True)
    return (
        Variant("lstm", changes=shape),
        Variant(f"diverse-{weight:g}", (penalty,), shape),
        Variant("orthogonal", changes={**shape, "encoder": "orthogonal_lstm"}),
    )


def _tied(weight: float, hidden: int) -> tuple[Variant, ...]:
    shape = {"encoder": "bilstm", "embedding": 2 * hidden, "hidden": hidden}
    losses = {"tied": tying, "masked": masked_words}
    return (
        Variant("wide", changes=shape),
        *(
            Variant(f"{name}-{weight:g}", (Term(loss, weight, over=every, attention=False, hidden=True),), shape)
            for name, loss in losses.items()
        ),
        Variant("joined", changes={**shape, "joined": True}),
    )


# ------------------------------------------------------------------------------------------------------ the tests again

TESTED = (
    "median change of the output when shuffled (TVD)",
    "distance of an adversary (JSD)",
    "fraction to flip, attention",
    "fraction to flip, random",
    "τ(attention, gradient)",
    "conicity",
)


def examined(study: Study, variant: Variant, search: Search) -> dict[str, np.ndarray]:
    """Train a variant; returns its accuracy and the numbers of the tests, for every text."""
    model = study.twin(variant.twin, Objective((TASK, *variant.terms)), **variant.changes)

    def test(attended: Attended) -> dict[str, Tensor]:
        fractions = fractions_to_flip(attended, seed=study.seed, never=1.0)
        numbers = (
            permuted(attended, seed=study.seed).change,
            adversarial(attended, search=search, seed=study.seed).distance,
            fractions["attention"],
            fractions["random"],
            correlated(attended, ["attention, gradient"]).tau[0],
            conicity_of(forward(model, attended.batch, hidden=True).hidden[-1], attended.batch),
        )
        return {name: attended.of_several_tokens(values) for name, values in zip(TESTED, numbers, strict=True)}

    values = study.each(test, model)
    return {"accuracy": study.correct(model), **{name: values[name] for name in TESTED}}


def _improved(
    study: Study, variants: Sequence[Variant], search: Search, *, test: str, question: str, source: str
) -> Finding:
    results = {variant.name: examined(study, variant, search) for variant in variants}
    plain, first, *_ = results
    lead = Measure.of(f"{TESTED[0]}, {first} − {plain}", results[first][TESTED[0]] - results[plain][TESTED[0]])
    rows = {
        (what, name): Measure.of(f"{what}, {name}", values[what], _kind(what))
        for what in results[plain]
        for name, values in results.items()
    }
    listed = "; ".join(
        f"{name} {percent(values['accuracy'].mean(), 1)}, {rows[TESTED[0], name].mean}, {rows['conicity', name].mean}"
        for name, values in results.items()
    )
    return Finding(
        test=test,
        question=question,
        measures=(lead, *rows.values()),
        expected=f"the prediction then depends more on attention, and accuracy loses at most {100 * LOSS:g} points",
        verdict=_verdict(lead, Measure.between("", results[first]["accuracy"], results[plain]["accuracy"])),
        answer=f"Accuracy, change of the output when attention is shuffled (TVD), and conicity: {listed}.",
        source=source,
    )


def _kind(what: str) -> Kind:
    """τ alone can be negative."""
    return "share" if what == "accuracy" else "number" if what.startswith("τ") else "size"


def _verdict(lead: Measure, accuracy: Measure) -> Verdict:
    """A gain counts only if accuracy is not significantly lower by more than is allowed."""
    verdict = by_difference(lead.estimate, more_is_explanation=True)
    return "unclear" if verdict == "explanation" and accuracy.estimate.high < -LOSS else verdict


def diverse_states_twins(
    *,
    weight: NotNegative = 0.5,
    hidden: int = 128,
    search: Search = Search(),  # noqa: B008
) -> Sequence[str]:
    """The names of the twins that the test trains."""
    return [variant.twin for variant in _diverse(weight, hidden)]


def word_tying_twins(
    *,
    weight: NotNegative = 1.0,
    hidden: int = 64,
    search: Search = Search(),  # noqa: B008
) -> Sequence[str]:
    """The names of the twins that the test trains."""
    return [variant.twin for variant in _tied(weight, hidden)]
