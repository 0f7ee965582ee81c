"""Students of small experiments: named ways of training on one data set, each with several seeds."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np

from salience.core.files import claim, compare, locked
from salience.core.stats import Difference, Spread, corrected, paired_difference
from salience.core.types import Model
from salience.data import Source
from salience.data.examples import Example, check_labels, labels_in, sampled
from salience.errors import BadInput
from salience.explanations.explainer import prepare
from salience.models import load, load_to_train
from salience.models.identity import digest
from salience.papers.trainings import (
    Claim,
    Facts,
    Procedure,
    Report,
    check_methods,
    claim_rationales,
    diverged,
    results_of,
    run_all,
    texts_of,
)
from salience.training.distillation import save_model
from salience.training.guides import by_teacher
from salience.training.loop import Recipe, fit
from salience.training.objectives import Objective

Batches = Callable[[int], Sequence[Sequence[int]]]
"""The places of the texts that each step of an epoch reads."""


@dataclass(frozen=True, slots=True)
class Student:
    """A way of training with a seed, and the names of the ways of training that it learns from."""

    name: str
    seed: int
    teachers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name.replace(' ', '-')}-seed-{self.seed}"

    @property
    def needs(self) -> "tuple[Student, ...]":
        return tuple(Student(name, self.seed) for name in self.teachers)


@dataclass(frozen=True, slots=True)
class Setup:
    """What all students of an experiment share; sent to other processes, so it holds no texts."""

    model: str
    train: Source
    test: Source
    folder: Path
    texts: int
    """The number of training texts."""
    tested: int | None
    """Test texts, at even distances; None for all."""
    seeds: int
    recipe: Recipe
    method: str = "input_x_gradient"
    share: float = 0.2
    weight: float = 1.0
    contents: tuple[str, str] = ("", "")
    """What identifies the content of the training and of the test texts."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def labels(self) -> list[str] | int:
        return labels_in(texts_of(self.train, self.contents[0]), self.train.name)

    def training_texts(self, seed: int) -> list[Example]:
        """All labelled texts in the random order of a seed; the first ``texts`` of them are for training."""
        labelled = list(texts_of(self.train, self.contents[0]))
        Random(seed).shuffle(labelled)
        return labelled

    def test_texts(self) -> list[Example]:
        texts = texts_of(self.test, self.contents[1])
        return sampled(texts, self.tested or len(texts))

    def new_model(self, seed: int) -> Model:
        return load_to_train(self.model, self.labels, seed=seed, **self.options)

    def fitted(
        self, student: Student, train: Sequence[Example], objective: Objective, batches: Batches | None = None
    ) -> Model:
        """A new model trained on these texts, each once per epoch unless the ``batches`` of an epoch are given."""
        model, recipe = self.new_model(student.seed), replace(self.recipe, seed=student.seed)
        list(fit(model, train, objective=objective, recipe=recipe, batches=batches))
        return model

    def diverged(self, students: Sequence[Student]) -> dict[Student, str]:
        """Why students have no result, though they were trained."""
        return diverged(self.folder / "trainings", students)

    def saved(self, student: Student) -> Path:
        return self.folder / "teachers" / str(student)

    def save(self, student: Student, model: Model) -> None:
        save_model(model, self.saved(student))

    def teacher(self, name: str, seed: int) -> Model:
        return load(self.saved(Student(name, seed)), **self.options)

    def explained(self, teacher: Model, texts: Sequence[Example], labels: Sequence[int] | None = None) -> list[Example]:
        """The texts with the explanations of a teacher as guides."""
        (method,) = prepare(self.method, {})
        return by_teacher(teacher, texts, method, share=self.share, labels=labels)


def run_students(
    setup: Setup,
    procedure: Procedure[Student],
    students: Sequence[Student],
    settings: Mapping[str, Any],
    *,
    workers: int = 1,
    report: Report = lambda _: None,
    check: Callable[[Model], None] = lambda _: None,
) -> dict[Student, Facts]:
    """Train all students that are not trained yet; a folder that holds those of another experiment is refused.

    ``check`` raises if the experiment is not possible with the model that students start from.
    """
    if (count := len(texts := setup.training_texts(0))) < setup.texts:
        raise BadInput(f"{setup.train.name} has {count} labelled texts; {setup.texts} are needed")
    check_labels(setup.labels, {setup.test.name: setup.test_texts()})
    check_methods(start := setup.new_model(0), texts[0], [setup.method])
    check(start)
    with locked(setup.folder, "settings.json"):
        _claim(setup, start, settings, claim)
        (folder := setup.folder / "trainings").mkdir(exist_ok=True)
        return run_all(
            procedure, students, folder, workers=workers, report=report, kept=lambda s: setup.saved(s).exists()
        )


def finished(setup: Setup, students: Sequence[Student], settings: Mapping[str, Any]) -> dict[Student, Facts]:
    """The results of the students that are trained, also while others are being trained."""
    if not (setup.folder / "settings.json").exists():
        raise BadInput(f"{setup.folder} holds no trainings; run the command without --finished first")
    _claim(setup, setup.new_model(0), settings, compare)
    return results_of(setup.folder / "trainings", students)


def _claim(setup: Setup, start: Model, settings: Mapping[str, Any], claim: Claim) -> None:
    """Refuse a folder that holds the students of other settings, or of another model that they start from."""
    named = ("texts", "tested", "weight", "share", "method")
    facts = {
        **{name: getattr(setup, name) for name in named},
        "model": digest(start),
        "recipe": {name: value for name, value in asdict(setup.recipe).items() if name != "seed"},
        "data": setup.contents[0],
        "test": setup.contents[1],
    }
    claim(setup.folder / "settings.json", {**facts, **settings}, "another experiment")
    if setup.train.rationale is not None:
        claim_rationales(setup.folder / "rationales.json", setup.train, claim)


# ------------------------------------------------------------------------------------------------------ comparisons


def table_of(results: Mapping[Student, Facts], name: str, test: str) -> np.ndarray:
    """For every seed and text of a test set, 100 if the student of this name is right and 0 otherwise."""
    own = sorted((s for s in results if s.name == name), key=lambda s: s.seed)
    return np.array([[100.0 * int(c) for c in results[s]["correct"][test]] for s in own])


Name = TypeVar("Name", bound=Hashable)


def spread(table: np.ndarray) -> Spread:
    return Spread(tuple(np.nanmean(table, 1).tolist()))


def compared(pairs: Mapping[Name, tuple[np.ndarray, np.ndarray]]) -> dict[Name, Difference]:
    """Paired differences by name; their p-values are corrected by Holm for all of them.

    A text for which a value is undefined is left out of its difference.
    """
    differences = [paired_difference(*_defined(a, b)) for a, b in pairs.values()]
    (each,) = corrected(differences)
    return dict(zip(pairs, each, strict=True))


def _defined(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    known = ~np.isnan(a + b).any(0)
    return a[:, known], b[:, known]
