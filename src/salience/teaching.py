"""Teacher, explanations, student: a model is trained, explains its training set, and a student learns to look there.

Everything lies in one folder and is made once: stopped at any moment, the same call goes on where it was.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from salience.data import Source
from salience.errors import BadInput, choose
from salience.explainer import explain
from salience.guards import Guards, accuracy, agreeing_heads
from salience.lessons import Example, Form, by_explanations, by_rationales, examples, read
from salience.models import load, load_to_train
from salience.objectives import PENALTIES, Anneal, Objective
from salience.runner import Progress, explain_data
from salience.runs import complete, differences, locked
from salience.settings import settings_of
from salience.train import Epoch, Recipe, Step, fit
from salience.types import Model

Variant = Literal["vanilla", "sallm", "fine_tuned", "iterative", "refreshed"]
VARIANTS = get_args(Variant)

AGREEING = 500
"""Texts by which heads that agree with the explanations are found."""


@dataclass(frozen=True, slots=True)
class Course:
    """What is taught, and how. All of it is recorded, and a folder that was begun with another course is refused.

    ``vanilla`` is the model trained on the task alone. ``sallm`` teaches a student that starts where the teacher
    started, ``fine_tuned`` the teacher itself. ``iterative`` does what sallm does over and over, each student the
    teacher of the next; ``refreshed`` explains the student anew before every epoch.
    """

    variant: Variant = "sallm"
    method: str = "input_x_gradient"
    """Which explanations: a method's name, or ``rationale`` for those that people have marked in the data."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    form: Form = "binary"
    share: float = 0.2
    penalty: str = "attention_to_explanation"
    penalty_settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    weight: float = 1.0
    anneal: Anneal = "constant"
    rounds: int = 3
    recipe: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        choose(self.variant, VARIANTS, "variant")
        if not 0 < self.share <= 1:
            raise BadInput(
                f"share={self.share} is not above 0 and at most 1; it is the part of the tokens that is marked"
            )
        if self.method == "rationale" and self.variant in ("iterative", "refreshed"):
            raise BadInput(f"{self.variant} makes its explanations anew, and people's rationales stay as they are")
        self.objective  # noqa: B018  its settings are checked

    @property
    def objective(self) -> Objective:
        return Objective(partial(_penalty(self.penalty), **self._checked()), self.weight, self.anneal)

    def _checked(self) -> dict[str, Any]:
        known = settings_of(_penalty(self.penalty))
        for name in self.penalty_settings:
            choose(name, known, f"setting of {self.penalty}")
        return dict(self.penalty_settings)


def _penalty(name: str) -> Callable[..., Any]:
    by_name = {p.__name__: p for p in PENALTIES}
    return by_name[choose(name, by_name, "penalty")]


@dataclass(frozen=True, slots=True)
class Taught:
    """What teaching came to."""

    folder: Path
    course: Mapping[str, Any]
    before: Mapping[str, float]
    """What the guards measured of the teacher."""
    epochs: tuple[Epoch, ...]
    scores: Mapping[str, float]
    """Accuracy of the student, by the name of the data; ``teacher/`` before a name is the teacher's."""

    @property
    def student(self) -> Path:
        """The folder of the trained model; transformers loads it as it is."""
        return self.folder / "student"


@dataclass(frozen=True, slots=True)
class Telling:
    """Who is told how it goes: what is done now, every step, every explained batch, every epoch."""

    stage: Callable[[str], None] | None = None
    step: Callable[[Step], None] | None = None
    explained: Callable[[Progress], None] | None = None
    epoch: Callable[[str, Epoch], None] | None = None

    def now(self, what: str) -> None:
        if self.stage is not None:
            self.stage(what)


def teach(
    model: str,
    data: Source,
    out: str | Path,
    course: Course = Course(),  # noqa: B008
    *,
    validation: Source | None = None,
    tests: Mapping[str, Source] | None = None,
    unlabelled: Source | None = None,
    teacher: str | Path | None = None,
    shelf: str | Path | None = None,
    telling: Telling = Telling(),  # noqa: B008
    **options: Any,
) -> Taught:
    """Train a teacher on the task, explain the data with it, and train a student to look where it looked.

    ``data`` names its label column. ``validation`` is measured after every epoch and ``tests`` at the end, also those
    of other domains. ``unlabelled`` texts teach where to look alone, by the teacher's own predictions. A ``teacher``
    that is trained already may be given as a folder, and a ``shelf`` for its explanations, so that several courses
    share them. ``options`` are those of :func:`salience.models.load_to_train`.

    >>> teach("sentiment", source("train.jsonl", label="label"), "out", Course(weight=1.0))       # doctest: +SKIP
    """
    if data.label is None:
        raise BadInput("the data must name the column of its labels, as in source('train.jsonl', label='label')")
    with locked(folder := Path(out), "course.json"):
        lessons = _Lessons.read(data, validation, unlabelled)
        school = _School(model, options, course, folder, lessons, telling, teacher, Path(shelf or folder))
        _agreed(folder, {"model": model, "options": options, "course": _plain(course), **lessons.described()})
        found = _result(folder)
        if found is None:
            before, epochs = school.run()
            found = _ended(Taught(folder, _plain(course), before, tuple(epochs), {}))
        untested = {name: source for name, source in (tests or {}).items() if name not in found.scores}
        if untested:
            telling.now(f"testing on {', '.join(untested)}")
            found = _ended(replace(found, scores={**found.scores, **school.tested(untested)}))
        return found


@dataclass(frozen=True, slots=True)
class _Lessons:
    """The data in memory."""

    data: Source
    train: list[Example]
    validation: list[Example]
    validation_data: Source | None
    unlabelled: list[Example]
    unlabelled_data: Source | None

    @classmethod
    def read(cls, data: Source, validation: Source | None, unlabelled: Source | None) -> "_Lessons":
        held = [] if validation is None else examples(validation)
        more = (
            []
            if unlabelled is None
            else [replace(e, id=f"unlabelled/{e.id}", label=None) for e in examples(unlabelled)]
        )
        return cls(data, examples(data), held, validation, more, unlabelled)

    @property
    def labels(self) -> list[str] | int:
        """The names of the labels in order, or how many there are where they are numbers from 0 on."""
        found = {label for e in self.train if (label := e.label) is not None}
        if all(isinstance(label, int) for label in found):
            numbers = sorted(int(label) for label in found)  # pyright: ignore
            if numbers[0] < 0:
                raise BadInput(f"labels are names, or numbers from 0 on; the data has {numbers[0]}")
            return numbers[-1] + 1
        if all(isinstance(label, str) for label in found):
            return sorted(map(str, found))
        raise BadInput("a classifier's labels are all names or all whole numbers")

    def described(self) -> dict[str, Any]:
        from salience.data import fingerprint

        named = {"data": self.data, "validation": self.validation_data, "unlabelled": self.unlabelled_data}
        return {name: None if source is None else fingerprint(source) for name, source in named.items()}


@dataclass(frozen=True, slots=True)
class _School:
    """The procedure, step by step; what a step has made is kept and not made again."""

    model: str
    options: Mapping[str, Any]
    course: Course
    folder: Path
    lessons: _Lessons
    telling: Telling
    given: str | Path | None
    shelf: Path

    @property
    def teacher_folder(self) -> Path:
        return self.folder / "teacher" if self.given is None else Path(self.given)

    def run(self) -> tuple[Mapping[str, float], list[Epoch]]:
        course = self.course
        if course.variant == "vanilla":
            return {}, self._trained("student", self._fresh(), self.lessons.train, Objective(), [])
        if course.method == "rationale":
            return self._taught(self._fresh(), None)
        if self.given is None and not (self.folder / "teacher" / "config.json").exists():
            self._trained("teacher", self._fresh(), self.lessons.train, Objective(), [])
        if course.variant == "iterative":
            return self._rounds()
        start = load(self.teacher_folder) if course.variant == "fine_tuned" else self._fresh()
        return self._taught(start, self.teacher_folder)

    def tested(self, tests: Mapping[str, Source]) -> dict[str, float]:
        given = {name: examples(source) for name, source in tests.items()}
        student = load(self.folder / "student")
        scores = {name: accuracy(student, some) for name, some in given.items()}
        if self.course.variant == "vanilla" or self.course.method == "rationale":
            return scores
        teacher = load(self.teacher_folder)
        return scores | {f"teacher/{name}": accuracy(teacher, some) for name, some in given.items()}

    def _fresh(self) -> Model:
        return load_to_train(self.model, self.lessons.labels, seed=self.course.recipe.seed, **self.options)

    def _rounds(self) -> tuple[Mapping[str, float], list[Epoch]]:
        """F_r explains, F_{r+1} learns from it; the last is the student."""
        teacher, first = self.teacher_folder, None
        for number in range(1, self.course.rounds):
            into = f"round-{number}"
            if not (self.folder / into / "config.json").exists():
                before, _ = self._taught(self._fresh(), teacher, into)
                first = first or before
            teacher = self.folder / into
        before, epochs = self._taught(self._fresh(), teacher)
        return first or before, epochs

    def _taught(
        self, student: Model, teacher: Path | None, into: str = "student"
    ) -> tuple[Mapping[str, float], list[Epoch]]:
        lessons = self.lessons
        if teacher is None:
            train, held = by_rationales(student, lessons.train), by_rationales(student, lessons.validation)
            objective = self._objective(student, train)
            before = Guards(held, objective)(student) if held else {}
            return before, self._trained(into, student, train, objective, held)
        knowing = load(teacher)
        run = self.shelf / "explanations"
        if teacher != self.teacher_folder:  # that of an earlier round
            run = self.folder / f"explanations-{teacher.name}"
        train = self._guided(knowing, lessons.train, lessons.data, run)
        if lessons.unlabelled_data is not None:
            given = [replace(e, id=e.id.removeprefix("unlabelled/")) for e in lessons.unlabelled]
            train += self._guided(
                knowing, given, replace(lessons.unlabelled_data, label=None), _beside(run, "unlabelled")
            )
        held = lessons.validation
        if lessons.validation_data is not None:
            held = self._guided(knowing, held, lessons.validation_data, _beside(run, "validation"))
        objective = self._objective(student, train)
        before = Guards(held, objective)(knowing) if held else {}
        return before, self._trained(into, student, train, objective, held)

    def _objective(self, student: Model, train: Sequence[Example]) -> Objective:
        """That of the course; ``heads="agreeing"`` becomes the heads of the student that agree already."""
        settings = self.course.penalty_settings
        if settings.get("heads") != "agreeing":
            return self.course.objective
        heads = agreeing_heads(student, [e for e in train if e.guide][:AGREEING])
        self.telling.now(f"teaching the heads {', '.join(f'{layer}.{head}' for layer, head in heads)}")
        return replace(self.course, penalty_settings={**settings, "heads": heads}).objective

    def _guided(self, teacher: Model, given: Sequence[Example], data: Source, run: Path) -> list[Example]:
        """The examples with the teacher's explanations, from a run folder that is made if need be."""
        course = self.course
        self.telling.now(f"explaining {len(given):,} texts")
        every = range(len(teacher.labels)) if course.penalty == "contrast" else (None,)
        rows: dict[str, list[Any]] = {}
        for label in every:
            place = run if label is None else _beside(run, f"label-{label}")
            source = data if label is None else replace(data, label=None)
            found = explain_data(
                teacher, source, place, course.method, target=label, report=self.telling.explained, **course.settings
            )
            for name, explained in found.rows():
                rows.setdefault(name, []).extend(explained)
        return by_explanations(teacher, given, rows, form=course.form, share=course.share)

    def _trained(
        self, into: str, model: Model, train: Sequence[Example], objective: Objective, held: Sequence[Example]
    ) -> list[Epoch]:
        """Train and save."""
        cut = sum(bool(e.unseen) for e in read(model, train))
        more = f"; {cut:,} of {len(train):,} texts are longer than it can read" if cut else ""
        self.telling.now(f"training the {into}{more}")
        place = self.folder / f".{into}"
        held = held or self.lessons.validation
        probe = Guards(held, objective) if held else None
        refresh = self._anew if self.course.variant == "refreshed" and into == "student" else None
        epochs: list[Epoch] = []
        for epoch in fit(
            model,
            train,
            objective=objective,
            recipe=self.course.recipe,
            probe=probe,
            report=self.telling.step,
            folder=place,
            refresh=refresh,
        ):
            epochs.append(epoch)
            if self.telling.epoch is not None:
                self.telling.epoch(into, epoch)
        saved(model, self.folder / into)
        return epochs

    def _anew(self, model: Model, given: Sequence[Example]) -> list[Example]:
        """The student's own explanations of the examples, as it is now."""
        course = self.course
        labels: Any = [e.label for e in given]
        found = explain(model, [e.text for e in given], course.method, target=labels, **course.settings)
        rows = {e.id: [x] for e, x in zip(given, found, strict=True)}
        return by_explanations(model, given, rows, form=course.form, share=course.share)


def _beside(run: Path, name: str) -> Path:
    return run.with_name(f"{run.name}-{name}")


def sweep(model: str, data: Source, out: str | Path, courses: Mapping[str, Course], **given: Any) -> dict[str, Taught]:
    """Several courses by name that share a teacher and its explanations, such as one for each λ."""
    folder = Path(out)
    found: dict[str, Taught] = {}
    teacher = given.pop("teacher", None)
    for name, course in courses.items():
        found[name] = teach(model, data, folder / name, course, teacher=teacher, shelf=folder / "shared", **given)
        if teacher is None and (folder / name / "teacher").is_dir():
            teacher = folder / name / "teacher"
    return found


def saved(model: Model, folder: Path) -> None:
    """A model's folder appears when it is complete."""
    part = folder.with_name(f".{folder.name}.tmp")
    model.save(part)
    shutil.rmtree(folder, ignore_errors=True)
    part.replace(folder)


def _plain(course: Course) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(course), default=str))


def _agreed(folder: Path, course: Mapping[str, Any]) -> None:
    """Write what is taught; a folder that was begun with something else is refused, naming the difference."""
    now = json.loads(json.dumps(course, default=str))
    file = folder / "course.json"
    if not file.exists():
        with complete(file) as stream:
            stream.write(json.dumps(now, indent=1, ensure_ascii=False).encode())
        return
    for name, was, is_now in differences(json.loads(file.read_text("utf-8")), now):
        raise BadInput(f"{folder} was begun with {name} = {was!r}, not {is_now!r}; use another folder")


def _ended(found: Taught) -> Taught:
    """Write the result; the checkpoints of training are no longer needed then."""
    facts = {
        "course": found.course,
        "before": found.before,
        "epochs": [asdict(e) for e in found.epochs],
        "scores": found.scores,
    }
    with complete(found.folder / "result.json") as stream:
        stream.write(json.dumps(facts, indent=1, ensure_ascii=False).encode())
    for checkpoints in found.folder.glob(".*/"):
        shutil.rmtree(checkpoints)
    return found


def _result(folder: Path) -> Taught | None:
    file = folder / "result.json"
    if not file.exists():
        return None
    facts = json.loads(file.read_text("utf-8"))
    return Taught(folder, facts["course"], facts["before"], tuple(Epoch(**e) for e in facts["epochs"]), facts["scores"])
