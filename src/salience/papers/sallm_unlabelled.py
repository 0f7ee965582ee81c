"""A few labelled texts and many without labels: do a teacher's explanations add to its predictions?

The teacher learns the labelled texts. Students also see the unlabelled ones: with the teacher's predictions as labels,
with its explanations as a penalty on attention, or with both. A student with explanations of the labelled texts alone
tells whether the unlabelled ones matter. All students are trained for the same number of steps, and read as many labels
at each: where only the labelled texts have a label, they are read more often.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from salience.core.stats import Difference, Spread
from salience.core.types import Model
from salience.data.examples import Example
from salience.errors import BadInput
from salience.papers.students import Batches, Setup, Student, compared, run_students, spread, table_of
from salience.papers.trainings import Facts, Report, majority, marks, mostly, unlearnt
from salience.papers.verdict import NO_BETTER, ONLY_SHUFFLED, by_verdict, verdict
from salience.training.guides import shuffled_guides
from salience.training.monitors import correct, predicted
from salience.training.objectives import Objective, attention_to_explanation, regularised

TEACHER, PSEUDO = "labelled only", "pseudo-labels"
FEW, EXPLAINED, BOTH = "explanations of labelled texts", "explanations of all texts", "pseudo-labels and explanations"
CONTROLS = {
    FEW: "shuffled explanations of labelled texts",
    EXPLAINED: "shuffled explanations of all texts",
    BOTH: "pseudo-labels and shuffled explanations",
}
"""Each way of teaching with explanations, and its control."""

BASELINES = {
    PSEUDO: (TEACHER,),
    FEW: (TEACHER,),
    EXPLAINED: (TEACHER, PSEUDO, FEW),
    BOTH: (PSEUDO,),
    CONTROLS[FEW]: (TEACHER,),
    CONTROLS[EXPLAINED]: (TEACHER,),
    CONTROLS[BOTH]: (PSEUDO,),
}
"""What each student is compared with, beside its control. It has to be better than the first."""

NAMES = (TEACHER, PSEUDO, FEW, EXPLAINED, BOTH, *CONTROLS.values())


@dataclass(frozen=True, slots=True)
class Row:
    """Accuracy of one kind of student, in per cent."""

    name: str
    accuracy: Spread | None
    """None if this was not run."""
    against: Mapping[str, Difference] = field(default_factory=dict[str, Difference])
    """The differences from the students that it is compared with."""
    against_shuffled: Difference | None = None
    unlearnt: int = 0
    """The number of seeds whose student is no better than the most frequent label."""
    learnt: bool = True
    """Whether most of the students that it is compared with have learnt the task."""

    @property
    def verdict(self) -> str:
        if self.accuracy is None:
            return "not run"
        first = next(iter(BASELINES.get(self.name, ())), "")
        return verdict(
            self.against.get(first),
            self.against_shuffled,
            seeds=len(self.accuracy.values),
            controlled=self.name in CONTROLS,
            gain=f"better than {first}",
            learnt=self.learnt,
        )


@dataclass(frozen=True, slots=True)
class UnlabelledProcedure:
    """Trains one student on labelled and unlabelled texts."""

    setup: Setup
    unlabelled: int

    def cost(self, student: Student) -> float:
        """The explained texts without labels come on top of the labelled ones."""
        return 2.0 if student.name in (EXPLAINED, CONTROLS[EXPLAINED]) else 1.0

    def __call__(self, student: Student) -> Facts:
        setup = self.setup
        model = self._trained(student)
        right = correct(model, setup.test_texts())
        return {"name": student.name, "seed": student.seed, "correct": {"test": marks(right)}}

    def _trained(self, student: Student) -> Model:
        setup, count = self.setup, self.setup.texts
        texts = setup.training_texts(student.seed)[: count + self.unlabelled]
        if student.name == TEACHER:
            model = setup.fitted(student, texts[:count], Objective(), self._batches(student, count))
            setup.save(student, model)
            return model
        teacher = setup.teacher(TEACHER, student.seed)
        texts[count:] = _answered(teacher, texts[count:])
        if student.name == PSEUDO:
            return setup.fitted(student, texts, Objective(), self._batches(student, len(texts)))
        objective, guided = regularised(attention_to_explanation, setup.weight), setup.explained(teacher, texts)
        if student.name in CONTROLS.values():
            guided = shuffled_guides(teacher, guided, seed=student.seed)
        if student.name in (BOTH, CONTROLS[BOTH]):
            return setup.fitted(student, guided, objective, self._batches(student, len(texts)))
        if student.name in (FEW, CONTROLS[FEW]):
            return setup.fitted(student, guided[:count], objective, self._batches(student, count))
        guided[count:] = [replace(e, label=None) for e in guided[count:]]
        return setup.fitted(student, guided, objective, self._batches(student, count, self.unlabelled))

    def _batches(self, student: Student, labelled: int, others: int = 0) -> Batches:
        """Steps of as many labelled texts for every student, with the others, if any, on top of them."""
        batch = self.setup.recipe.batch
        steps = -(-(self.setup.texts + self.unlabelled) // batch)

        def of(epoch: int) -> list[list[int]]:
            rng = Random(f"{student.seed}/{epoch}")
            read: list[int] = []
            while len(read) < steps * batch:
                read += rng.sample(range(labelled), labelled)
            more = rng.sample(range(labelled, labelled + others), others)
            return [
                read[i * batch : (i + 1) * batch] + more[i * others // steps : (i + 1) * others // steps]
                for i in range(steps)
            ]

        return of


def _answered(teacher: Model, texts: list[Example]) -> list[Example]:
    """The texts with the predictions of the teacher as labels."""
    return [replace(e, label=answer) for e, answer in zip(texts, predicted(teacher, texts), strict=True)]


def students(setup: Setup) -> list[Student]:
    return [Student(name, seed, () if name == TEACHER else (TEACHER,)) for name in NAMES for seed in range(setup.seeds)]


def settings(unlabelled: int) -> dict[str, Any]:
    """What must not change between calls, besides the setup."""
    return {"unlabelled": unlabelled}


def run(
    setup: Setup, *, unlabelled: int = 1000, workers: int = 1, report: Report = lambda _: None
) -> dict[Student, Facts]:
    """Train all students of the experiment; if stopped, the same call resumes."""
    if len(setup.training_texts(0)) < setup.texts + unlabelled:
        raise BadInput(f"{setup.train.name} has fewer than {setup.texts} + {unlabelled} labelled texts")
    procedure = UnlabelledProcedure(setup, unlabelled)
    return run_students(setup, procedure, students(setup), settings(unlabelled), workers=workers, report=report)


def rows(setup: Setup, results: Mapping[Student, Facts]) -> list[Row]:
    """The accuracy of each kind of student, against others and against shuffled explanations."""
    whole = {n for n in NAMES if sum(s.name == n for s in results) == setup.seeds}
    tables = {name: table_of(results, name, "test") for name in NAMES if name in whole}
    pairs: dict[tuple[str, str], Any] = {}
    for name, own in tables.items():
        others = [other for other in (*BASELINES.get(name, ()), CONTROLS.get(name)) if other in tables]
        pairs |= {(name, other): (own, tables[other]) for other in others}
    differences, most = compared(pairs), majority(setup.test_texts())
    failed = {name: unlearnt(spread(own), most) for name, own in tables.items()}

    def row(name: str) -> Row:
        if name not in tables:
            return Row(name, None)
        accuracy = spread(tables[name])
        against = {other: d for other in BASELINES.get(name, ()) if (d := differences.get((name, other))) is not None}
        control = differences.get((name, CONTROLS.get(name, "")))
        learnt = mostly((failed.get(other, 0) for other in (*against, CONTROLS.get(name, ""))), setup.seeds)
        return Row(name, accuracy, against, control, failed[name], learnt)

    return [row(name) for name in NAMES]


def summary(listed: Sequence[Row]) -> list[str]:
    """Where explanations and predictions of the teacher help, in words."""
    words = {
        "helps": "Better than the same student without explanations, and than with shuffled ones",
        NO_BETTER: "Better than the same student without explanations, but not than with shuffled ones",
        ONLY_SHUFFLED: "Better than with shuffled explanations, but not than the same student without",
        "harms": "Worse than the same student without explanations",
    }
    explained = by_verdict([(row.name, row.verdict) for row in listed if row.name in CONTROLS], words)
    return [*explained, *(f"{PSEUDO}: {row.verdict}." for row in listed if row.name == PSEUDO)]
