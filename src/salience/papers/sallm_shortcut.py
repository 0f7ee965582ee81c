"""Does teaching with explanations remove the reliance on a planted word?

A word that agrees with the label in most training texts is inserted into every text. A model may then rely on it. Test
texts contain the word of the other label: the share of decisions that follow it measures the reliance. Some of these
would be wrong without the word as well, so the share of decisions that it changes stands beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from salience.core.stats import Difference, Spread
from salience.core.types import Model
from salience.data.examples import Example
from salience.data.shortcuts import Shortcut, spurious
from salience.papers.students import Setup, Student, compared, run_students, spread, table_of
from salience.papers.trainings import Facts, Report, majority, marks, unlearnt
from salience.papers.verdict import NO_BETTER, ONLY_SHUFFLED, by_verdict, verdict
from salience.training.guides import by_rationales, shuffled_guides
from salience.training.monitors import correct
from salience.training.objectives import (
    Objective,
    attention_to_explanation,
    contrast,
    gradient_to_explanation,
    regularised,
)
from salience.trials.shortcuts import check_vocabulary

CLEAN, SPOILT, HUMAN = "clean teacher", "spoilt teacher", "human rationales"
SHUFFLED, SHUFFLED_HUMAN = "shuffled", "shuffled human rationales"
CONTROLS = {CLEAN: SHUFFLED, HUMAN: SHUFFLED_HUMAN, SPOILT: SHUFFLED}
"""Where explanations come from, and the control with as many marked tokens in each text, drawn at random."""

SOURCES = (*CONTROLS, SHUFFLED, SHUFFLED_HUMAN)

PENALTIES = {"attention": attention_to_explanation, "input gradient": gradient_to_explanation, "contrast": contrast}
WEIGHTS = {"attention": 1.0, "input gradient": 0.1, "contrast": 1.0}
"""λ of each penalty, relative to the weight of the experiment."""


@dataclass(frozen=True, slots=True)
class Row:
    """How far students of one kind rely on the word, in per cent of the decisions."""

    source: str
    penalty: str
    follows: Spread | None
    """Decisions that follow the word of the other label; None if this was not run or is not possible."""
    clean: Spread | None
    """Accuracy on the same texts without the word."""
    changed: Spread | None = None
    """Decisions that are right without the word and follow it."""
    unlearnt: int = 0
    """The number of seeds whose student is no better than the most frequent label without the word."""
    against_before: Difference | None = None
    """The change from the student without explanations; negative if the reliance is lower."""
    against_shuffled: Difference | None = None
    note: str = ""

    @property
    def name(self) -> str:
        return _name(self.source, self.penalty)

    @property
    def verdict(self) -> str:
        """A student that relies less on the word only because it has not learnt the task is no success."""
        if self.follows is None or self.against_before is None:
            return ""
        if self.unlearnt and self.against_before.clear and self.against_before.mean < 0:
            return f"not learnt ({self.unlearnt} of {len(self.follows.values)} seeds)"
        return verdict(
            self.against_before,
            self.against_shuffled,
            seeds=len(self.follows.values),
            controlled=self.source in CONTROLS,
            gain="less than before",
            harm="more reliance",
            helps="less reliance",
            lower=True,
        )


@dataclass(frozen=True, slots=True)
class ShortcutProcedure:
    """Trains one student: on texts without the word, on texts with it, or on those with explanations."""

    setup: Setup
    agreement: float
    shortcut: Shortcut

    def cost(self, student: Student) -> float:
        """A penalty on gradients needs a second backward pass."""
        return 2.0 if "input gradient" in student.name else 1.0

    def __call__(self, student: Student) -> Facts:
        model = self._trained(student)
        plain = _without_words(self.setup, self.shortcut)
        against = spurious(plain, self.shortcut, agreement=0.0, seed=student.seed)
        tests = {"clean": plain, "contradicted": against}
        return {
            "name": student.name,
            "seed": student.seed,
            "correct": {name: marks(correct(model, texts)) for name, texts in tests.items()},
        }

    def _trained(self, student: Student) -> Model:
        setup = self.setup
        plain = setup.training_texts(student.seed)[: setup.texts]
        marked = spurious(plain, self.shortcut, agreement=self.agreement, seed=student.seed)
        if student.name in (CLEAN, SPOILT):
            model = setup.fitted(student, plain if student.name == CLEAN else marked, Objective())
            setup.save(student, model)
            return model
        source, _, penalty = student.name.partition(", ")
        guided = self._guided(student, marked, source, penalty)
        return setup.fitted(student, guided, regularised(PENALTIES[penalty], setup.weight * WEIGHTS[penalty]))

    def _guided(self, student: Student, texts: list[Example], source: str, penalty: str) -> list[Example]:
        setup = self.setup
        if source in (HUMAN, SHUFFLED_HUMAN):
            model = setup.new_model(student.seed)
            guided = by_rationales(model, texts)
        else:
            model = setup.teacher(student.teachers[0], student.seed)
            guided = setup.explained(model, texts, range(len(model.labels)) if penalty == "contrast" else None)
        return guided if source in CONTROLS else shuffled_guides(model, guided, seed=student.seed)


def _without_words(setup: Setup, shortcut: Shortcut) -> list[Example]:
    """The test texts that hold none of the words by themselves."""
    return [e for e in setup.test_texts() if not shortcut.within(str(e.text))]


def students(setup: Setup) -> list[Student]:
    """All students: teachers first, then penalty by penalty."""
    seeds = range(setup.seeds)
    listed = [Student(name, seed) for name in (CLEAN, SPOILT) for seed in seeds]
    for penalty in PENALTIES:
        for source in SOURCES:
            if _possible(setup, source, penalty):
                teachers = {SPOILT: (SPOILT,), HUMAN: (), SHUFFLED_HUMAN: ()}.get(source, (CLEAN,))
                listed += [Student(_name(source, penalty), seed, teachers) for seed in seeds]
    return listed


def _name(source: str, penalty: str) -> str:
    """The name of a kind of student; teachers have no penalty."""
    return f"{source}, {penalty}" if penalty else source


def _possible(setup: Setup, source: str, penalty: str) -> bool:
    """Rationales are of one label, which contrast cannot use."""
    return source not in (HUMAN, SHUFFLED_HUMAN) or (penalty != "contrast" and setup.train.rationale is not None)


def settings(agreement: float, shortcut: Shortcut) -> dict[str, Any]:
    """What must not change between calls, besides the setup."""
    return {"agreement": agreement, "words": list(shortcut.words)}


def run(
    setup: Setup,
    *,
    agreement: float = 0.95,
    shortcut: Shortcut = Shortcut(),  # noqa: B008
    workers: int = 1,
    report: Report = lambda _: None,
) -> dict[Student, Facts]:
    """Train all students of the experiment; if stopped, the same call resumes."""
    procedure = ShortcutProcedure(setup, agreement, shortcut)
    own = settings(agreement, shortcut)
    check = partial(check_vocabulary, shortcut=shortcut)
    return run_students(setup, procedure, students(setup), own, workers=workers, report=report, check=check)


def rows(setup: Setup, results: Mapping[Student, Facts], shortcut: Shortcut = Shortcut()) -> list[Row]:  # noqa: B008
    """The reliance of each kind of student, before and after teaching, in per cent; Holm over all comparisons."""
    names = {s.name for s in students(setup)}
    whole = {name for name in names if sum(s.name == name for s in results) == setup.seeds}
    follows = {name: 100.0 - table_of(results, name, "contradicted") for name in whole}
    clean = {name: table_of(results, name, "clean") for name in whole}
    most = majority(_without_words(setup, shortcut))
    pairs: dict[str, Any] = {}
    for name in whole - {CLEAN, SPOILT}:
        source, _, penalty = name.partition(", ")
        shuffled = f"{CONTROLS.get(source)}, {penalty}"
        pairs |= {f"{name}/before": (follows[name], follows[SPOILT])} if SPOILT in whole else {}
        pairs |= {f"{name}/control": (follows[name], follows[shuffled])} if shuffled in whole else {}
    differences = compared(dict(sorted(pairs.items())))

    def row(source: str, penalty: str) -> Row:
        name = _name(source, penalty)
        if name not in whole:
            possible = not penalty or _possible(setup, source, penalty)
            return Row(source, penalty, None, None, note="not run" if possible else "no rationales of every label")
        before, control = (differences.get(f"{name}/{other}") for other in ("before", "control"))
        accuracy, changed = spread(clean[name]), spread(np.minimum(follows[name], clean[name]))
        return Row(source, penalty, spread(follows[name]), accuracy, changed, unlearnt(accuracy, most), before, control)

    taught = [row(source, penalty) for penalty in PENALTIES for source in SOURCES]
    return [row(CLEAN, ""), row(SPOILT, ""), *taught]


def summary(listed: Sequence[Row]) -> list[str]:
    """Where teaching lowers the reliance, in words."""
    words = {
        "less reliance": "Less reliance than before, and than with shuffled explanations",
        NO_BETTER: "Less reliance than before, but not than with shuffled explanations",
        ONLY_SHUFFLED: "Less reliance than with shuffled explanations, but not than before",
        "more reliance": "More reliance than before",
    }
    taught = [row for row in listed if row.penalty and row.source in CONTROLS and row.follows is not None]
    return by_verdict([(row.name, row.verdict) for row in taught], words)
