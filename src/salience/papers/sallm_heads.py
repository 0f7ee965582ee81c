"""Which heads and layers should a penalty on attention read, if behaviour is to change rather than attention alone?

Every student is measured by the attention of its last layer, whichever heads were trained: its mass on the tokens that
the teacher's explanations mark, its faithfulness, and its agreement with a method that taught nobody. How many
decisions differ from those of the teacher says what else changed. Any penalty changes attention, so every choice has a
control of its own: shuffled explanations, read by the same heads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from salience.core.stats import Difference, Spread
from salience.core.types import Model
from salience.data.examples import Example, sampled
from salience.errors import UnsupportedModel
from salience.papers.students import Setup, Student, compared, run_students, spread, table_of
from salience.papers.trainings import Facts, Report, majority, marks, unlearnt
from salience.papers.verdict import FEWEST_SEEDS
from salience.training.distillation import AGREEING
from salience.training.guides import shuffled_guides
from salience.training.loop import labels_of
from salience.training.monitors import AttentionMonitor, agreeing_heads, important_heads, predicted
from salience.training.objectives import Objective, attention_to_explanation, regularised

NONE, SHUFFLED = "none", "shuffled"
CHOICES = ("last layer", "all layers", "agreeing heads", "important heads")
CONTROLS = {choice: f"{choice}, {SHUFFLED}" for choice in CHOICES}
NAMES = (NONE, *(name for pair in CONTROLS.items() for name in pair))
MEASURES = ("attention_mass", "comprehensiveness", "sufficiency", "held_out_agreement")


@dataclass(frozen=True, slots=True)
class Row:
    """What one choice of heads changed."""

    name: str
    accuracy: Spread | None
    """In per cent; None if this was not run."""
    changed: Spread | None = None
    """Decisions that differ from those of ``none``, in per cent."""
    measures: Mapping[str, Spread] | None = None
    against_none: Difference | None = None
    """The difference in accuracy."""
    against_shuffled: Mapping[str, Difference] = field(default_factory=dict[str, Difference])
    """The differences in ``accuracy`` and in each measure from the same heads with shuffled explanations."""
    unlearnt: int = 0
    """The number of seeds whose student is no better than the most frequent label."""

    @property
    def verdict(self) -> str:
        """What these heads change that shuffled explanations, read by the same heads, do not."""
        if self.accuracy is None or not self.against_shuffled:
            return "not run"
        if len(self.accuracy.values) < FEWEST_SEEDS:
            return "too few seeds"
        clear = {name.replace("_", " "): d.mean for name, d in self.against_shuffled.items() if d.clear}
        shown = (f"{name} {f'{x:+.1f} points' if name == 'accuracy' else f'{x:+.3f}'}" for name, x in clear.items())
        return ", ".join(shown) or "no significant difference"


@dataclass(frozen=True, slots=True)
class HeadsProcedure:
    """Trains one student with a penalty on the chosen heads, and measures its attention."""

    setup: Setup
    measured: int

    def cost(self, _: Student) -> float:
        return 1.0

    def __call__(self, student: Student) -> Facts:
        setup = self.setup
        train, tests = setup.training_texts(student.seed)[: setup.texts], setup.test_texts()
        if student.name == NONE:
            model = setup.fitted(student, train, Objective())
            setup.save(student, model)
            teacher = model
        else:
            teacher = setup.teacher(NONE, student.seed)
            guided = setup.explained(teacher, train)
            chosen = _settings(student.name.removesuffix(f", {SHUFFLED}"), teacher, guided)
            if student.name in CONTROLS.values():
                guided = shuffled_guides(teacher, guided, seed=student.seed)
            model = setup.fitted(student, guided, regularised(attention_to_explanation, setup.weight, **chosen))
        held_out = setup.explained(teacher, sampled(tests, self.measured))
        other = "occlusion" if setup.method != "occlusion" else "gradient"
        measures = AttentionMonitor(held_out, Objective(), held_out=other, sample=self.measured).by_text(model)
        answers = predicted(model, tests)
        return {
            "name": student.name,
            "seed": student.seed,
            "correct": {
                "test": marks([a == b for a, b in zip(answers, labels_of(model, tests).tolist(), strict=True)])
            },
            "answers": answers,
            "measures": {name: measures[name] for name in MEASURES},
        }


def _settings(choice: str, teacher: Model, guided: Sequence[Example]) -> dict[str, Any]:
    """The settings of the penalty. Heads are selected in the teacher: a new classifier uses none of them yet."""
    if choice == "all layers":
        return {"layers": "all"}
    if choice == "agreeing heads":
        return {"heads": agreeing_heads(teacher, guided[:AGREEING])}
    if choice == "important heads":
        return {"heads": important_heads(teacher, guided[:AGREEING])}
    return {}


def students(setup: Setup) -> list[Student]:
    return [Student(name, seed, () if name == NONE else (NONE,)) for name in NAMES for seed in range(setup.seeds)]


def settings(measured: int) -> dict[str, Any]:
    """What must not change between calls, besides the setup."""
    return {"measured": measured}


def run(setup: Setup, *, measured: int = 60, workers: int = 1, report: Report = lambda _: None) -> dict[Student, Facts]:
    """Train all students of the experiment; if stopped, the same call resumes."""
    procedure, own = HeadsProcedure(setup, measured), settings(measured)
    return run_students(setup, procedure, students(setup), own, workers=workers, report=report, check=_check_heads)


def _check_heads(model: Model) -> None:
    """Refuse a model of one head, for which all choices are the same."""
    if model.single_query:
        raise UnsupportedModel(f"{model.name} has a single head of attention; choose a transformer")


def rows(setup: Setup, results: Mapping[Student, Facts]) -> list[Row]:
    """What each choice changed: accuracy, decisions, and the faithfulness of attention; Holm over all comparisons."""
    whole = [n for n in NAMES if sum(s.name == n for s in results) == setup.seeds]
    tables = {name: {"accuracy": table_of(results, name, "test"), **_measures(results, name)} for name in whole}
    pairs: dict[str, Any] = {}
    for name in whole:
        if name != NONE and NONE in whole:
            pairs[f"{name}/{NONE}"] = tables[name]["accuracy"], tables[NONE]["accuracy"]
        if (control := CONTROLS.get(name)) in whole:
            pairs |= {f"{name}/{what}": (own, tables[str(control)][what]) for what, own in tables[name].items()}
    differences, most = compared(pairs), majority(setup.test_texts())

    def row(name: str) -> Row:
        if name not in whole:
            return Row(name, None)
        changed = None
        if name != NONE and NONE in whole:
            changed = spread(100.0 * np.not_equal(_answers(results, name), _answers(results, NONE)))
        measures = {what: spread(tables[name][what]) for what in MEASURES}
        shuffled = {w: differences[f"{name}/{w}"] for w in ("accuracy", *MEASURES) if f"{name}/{w}" in differences}
        accuracy, against = spread(tables[name]["accuracy"]), differences.get(f"{name}/{NONE}")
        return Row(name, accuracy, changed, measures, against, shuffled, unlearnt(accuracy, most))

    return [row(name) for name in NAMES]


def _measures(results: Mapping[Student, Facts], name: str) -> dict[str, np.ndarray]:
    """Each measure of the students of a name, by seed and text."""
    own = sorted((s for s in results if s.name == name), key=lambda s: s.seed)
    return {what: np.array([results[s]["measures"][what] for s in own]) for what in MEASURES}


def _answers(results: Mapping[Student, Facts], name: str) -> np.ndarray:
    """The predicted label of every seed and test text."""
    return np.array([results[s]["answers"] for s in sorted(results, key=lambda s: s.seed) if s.name == name])


def summary(listed: Sequence[Row]) -> list[str]:
    """What each choice of heads changes that shuffled explanations, read by the same heads, do not; in words."""
    return [f"{row.name}, against shuffled: {row.verdict}." for row in listed if row.name in CONTROLS]
