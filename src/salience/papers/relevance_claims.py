"""The claims of the slides on output relevance, and when each counts as reproduced.

Papers: Snell et al. 2020 (slides and preprint); Snell et al. 2021, arXiv:2103.07601
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any, Literal

from salience.audits.finding import Measure
from salience.core.stats import Estimate
from salience.dynamics.agreement import Agreement
from salience.dynamics.comparison import Comparison, Row
from salience.dynamics.separation import Order
from salience.papers.debate import Check, decided, keeps_accuracy

CLAIMS = (
    "attention correlates with influence under standard training",
    "uniform attention keeps accuracy",
    "deceptive attention keeps accuracy and anti-correlates with influence",
    "relevance and attention start uniform",
    "relevance separates keywords first",
    "r′ of uniform training correlates with standard attention",
    "r′ of uniform training correlates with influence",
    "co-occurrence recovers the dictionary",
    "without co-occurrence, attention fails to learn",
)
"""What the slides say, in their order."""

Verdict = Literal["reproduced", "not reproduced", "undecided", "not comparable"]
"""Undecided: an interval does not tell. Not comparable: what was measured here is not what the slides speak of."""
NEARLY_UNIFORM, SMALL = 0.98, 0.2
"""Attention starts uniform if its entropy is at least this share of the highest; relevance if it varies over tokens by
at most this share of what it does at the end."""


# ------------------------------------------------------------------------------------------------------ results


@dataclass(frozen=True, slots=True)
class Line:
    """One number of a table, on one data set."""

    data: str
    quantity: str
    ours: Estimate | float
    beside: Mapping[str, float | Estimate]
    """What stands beside it, such as chance."""
    slides: str = ""
    """What the slides say of it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether a claim, counted from 1, is reproduced on a data set."""

    claim: int
    data: str
    verdict: Verdict
    figures: str


@dataclass(frozen=True, slots=True)
class Deceptive:
    """What is measured of a deceptive twin, on the texts whose influence is measured."""

    accuracy: Measure
    of_model: Measure
    """The accuracy of the model that it deceives about."""
    agreement: Agreement
    """A(a, Δ) of the twin."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report."""

    title: str
    lines: tuple[Line, ...]
    answers: tuple[Answer, ...]
    notes: tuple[str, ...]
    orders: Mapping[str, Order] = field(default_factory=dict[str, Order])
    """Which comes first, relevance or attention, by data set."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The claims of the slides, and what was found."""

    sections: tuple[Section, ...]
    settings: Mapping[str, Any]

    @property
    def answers(self) -> list[Answer]:
        return [answer for section in self.sections for answer in section.answers]

    def untested(self) -> list[int]:
        """The claims that no section tests."""
        return [n for n in range(1, len(CLAIMS) + 1) if n not in {answer.claim for answer in self.answers}]


# ------------------------------------------------------------------------------------------------------ verdicts


def answer(number: int, data: str, checks: Sequence[Check]) -> Answer:
    """A claim is reproduced if all its checks hold, and not if one fails."""
    results = {check.holds for check in checks}
    verdict: Verdict = "not reproduced" if False in results else "undecided" if None in results else "reproduced"
    return Answer(number, data, verdict, "; ".join(check.figures for check in checks))


# ------------------------------------------------------------------------------------------------------ classification


def lines_of(name: str, result: Comparison) -> list[Line]:
    """The numbers of one data set."""
    rows = [
        Line(
            name,
            f"A({row.final.of})",
            row.final.agreement,
            {"chance": row.final.chance.mean, "τ": row.final.tau, **_at_best(row), "ξ": row.xi},
            SLIDES.get(row.final.of, ""),
        )
        for row in result.rows
    ]
    accuracies = [Line(name, f"accuracy, {who}", e, {}) for who, e in result.accuracies.items()]
    course = result.order
    steps = [
        Line(name, f"{which} half-way by {by}", half, {})
        for which, one in (("r", course.relevance), ("a", course.attention))
        for by, half in (("ranks", one.half), ("size", one.half_size))
    ]
    return [*rows, *accuracies, *steps]


def _at_best(row: Row) -> dict[str, float | Estimate]:
    return {} if row.best is None else {"best": row.best.agreement.agreement, "at step": row.best.step}


SLIDES = {
    "a, Δ": "strongly correlates",
    "a, r′": "correlates",
    "Δ, r′": "correlates",
}
"""What the slides say of an agreement. They give no numbers."""


def answers_of(name: str, result: Comparison, deceptive: Deceptive) -> list[Answer]:
    """Claims 1 to 7 on one data set."""
    correct = {who: Measure.of("accuracy", marks, "share") for who, marks in result.correct.items()}
    own, tau = result.row("a, Δ").final, deceptive.agreement.tau
    return [
        answer(1, name, [_agrees(own), decided(own.tau, 0, f"τ(a, Δ) = {own.tau}")]),
        answer(2, name, [keeps_accuracy("uniform attention", correct["uniform"], correct["standard"])]),
        answer(
            3,
            name,
            [
                keeps_accuracy("the deceptive twin", deceptive.accuracy, deceptive.of_model),
                decided(_negated(tau), 0, f"τ(a, Δ) of the twin {tau}, of the model {own.tau}"),
            ],
        ),
        answer(4, name, [_uniform(result), _small(result)]),
        answer(5, name, [_first(result)]),
        answer(6, name, [_agrees_early(result.row("a, r′"))]),
        answer(7, name, [_agrees_early(result.row("Δ, r′"))]),
    ]


def _agrees(own: Agreement) -> Check:
    return decided(own.lead, 0, f"A({own.of}) = {own.agreement}, {_times(own)}")


def _agrees_early(row: Row) -> Check:
    """Judged at the best step of the second training, as the authors do; that of the end is reported beside it."""
    assert row.best is not None
    early = _agrees(row.best.agreement)
    figures = f"{early.figures}, at step {row.best.step}; {row.final.agreement} at the end, {_times(row.final)}"
    return Check(early.holds, figures)


def _times(own: Agreement) -> str:
    return f"{own.times:.1f} × chance ({own.chance.mean:.3f})"


def _negated(e: Estimate) -> Estimate:
    return Estimate(-e.mean, -e.high, -e.low, e.n)


def _uniform(result: Comparison) -> Check:
    e = result.first_entropy
    return decided(e, NEARLY_UNIFORM, f"entropy of attention, as a share of that of uniform attention {e}")


def _small(result: Comparison) -> Check:
    e = result.first_spread
    return decided(_negated(e), -SMALL, f"spread of relevance over tokens, as a share of that at the end {e}")


def _first(result: Comparison) -> Check:
    order = result.order
    figures = (
        f"lag of attention in steps: {_steps(order.lag)} by ranks, {_steps(order.lag_size)} by size; relevance is "
        f"above chance {_since(order.relevance.first)}, attention {_since(order.attention.first)}"
    )
    return Check(order.relevance_first, figures)


def _since(step: int | None) -> str:
    return "at no step" if step is None else f"from step {step}"


def _steps(e: Estimate) -> str:
    if isnan(e.low):
        return "undetermined" if isnan(e.mean) else f"{e.mean:.0f}"
    return f"{e.mean:.0f} [{e.low:.0f}, {e.high:.0f}]"


NOTES = (
    "A(u, v) is the share of texts in which the highest token of u is among the highest 5 % of v; chance is its mean "
    "over all orders of v. An agreement counts as reproduced if the interval of A − 3 · chance is above 0.",
    "a is attention, Δ influence by leaving one word out, ∇ its gradient form, r′ relevance under uniform attention. "
    "embedding and counts are the co-occurrence proxies: a mean of embeddings, and a logistic regression on counts. r "
    "and a are half-way at the step at which they separate keywords half as well as at the end.",
    "best is the agreement at the recorded step of the second training at which it is highest, which the authors' "
    "code reports; here the step is chosen on every second text, and the agreement measured on the others. a is then "
    "that of the step at which the first training is most accurate. Claims 6 and 7 are judged by it, and what is left "
    "at the end is given beside it. ξ is the accuracy of other seeds when their attention agrees with a as much as at "
    "the end.",
    "The slides give no numbers for these agreements, and none are printed as theirs.",
    "The authors train for 4000 steps of Adam at a constant rate; here the rate falls linearly to 0, for fewer steps. "
    "Texts have no tokens for their beginning and end. Words that occur less than 3 times are unknown.",
    "Influence is that on the log-odds of the true label: with two labels, the difference of their logits.",
)
