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

from filelock import FileLock

from salience.data import Source, fingerprint
from salience.errors import BadInput, choose
from salience.explainer import explain, prepare
from salience.guards import Guards, accuracy, agreeing_heads, mean_length, sampled
from salience.lessons import FORMS, Example, Form, by_explanations, by_rationales, examples, labels_in, read
from salience.models import load, load_to_train
from salience.objectives import PENALTIES, Anneal, Objective
from salience.runner import Progress, explain_data
from salience.runs import complete, differences, locked
from salience.settings import check, settings_of
from salience.train import Epoch, Recipe, Step, fit
from salience.types import Model
from salience.work import Checkpoint

Variant = Literal["vanilla", "sallm", "fine_tuned", "iterative", "refreshed"]
VARIANTS = get_args(Variant)

AGREE = "agreeing"
"""Heads that are chosen by how well they agree with the explanations before training."""

AGREEING = 500
"""Texts by which they are found."""

LONG = 64
"""Tokens of a text that is long."""

SAVE_EVERY = 500
"""Steps between checkpoints, beside those of epochs."""


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
        choose(self.form, FORMS, "form")
        if self.rounds < 1:
            raise BadInput(f"rounds={self.rounds} must be at least 1")
        if not 0 < self.share <= 1:
            raise BadInput(
                f"share={self.share} is not above 0 and at most 1; it is the part of the tokens that is marked"
            )
        if self.method != "rationale":
            prepare(self.method, self.settings)
        elif self.variant not in ("vanilla", "sallm"):
            raise BadInput(f"{self.variant} is taught by a teacher, and people's rationales need none; use sallm")
        if self.penalty == "contrast" and self.variant == "refreshed":
            raise BadInput("contrast needs the explanations of every label, which refreshed does not make anew")
        self.objective  # noqa: B018  its settings are checked

    @property
    def objective(self) -> Objective:
        return Objective(partial(_penalty(self.penalty), **self._checked()), self.weight, self.anneal)

    def _checked(self) -> dict[str, Any]:
        penalty = _penalty(self.penalty)
        for name, value in self.penalty_settings.items():
            choose(name, settings_of(penalty), f"setting of {self.penalty}")
            if (name, value) != ("heads", AGREE):
                check(penalty, name, value)
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
    tested: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What was tested on, by the same names."""

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
        held = {name: examples(source) for name, source in (tests or {}).items()}
        lessons.check(held, course)
        school = _School(model, options, course, folder, lessons, telling, teacher, Path(shelf or folder))
        given = {"model": model, "options": options, "teacher": None if teacher is None else str(teacher)}
        _agreed(folder, {**given, "course": _plain(course), **lessons.described()})
        found = _result(folder)
        if found is None:
            before, epochs = school.run()
            found = _ended(Taught(folder, _plain(course), before, tuple(epochs), {}))
        known = {name: _described(source) for name, source in (tests or {}).items()}
        untested = [name for name in known if found.tested.get(name) != known[name]]
        if untested:
            telling.now(f"testing on {', '.join(untested)}")
            scores = school.tested({name: held[name] for name in untested})
            found = _ended(replace(found, scores={**found.scores, **scores}, tested={**found.tested, **known}))
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
        more = [] if unlabelled is None else [replace(e, label=None) for e in examples(unlabelled)]
        return cls(data, examples(data), held, validation, more, unlabelled)

    @property
    def labels(self) -> list[str] | int:
        return labels_in(self.train, self.data.name)

    def check(self, tests: Mapping[str, Sequence[Example]], course: Course) -> None:
        """What would fail only after hours of training."""
        labels = self.labels
        known = set(range(labels)) if isinstance(labels, int) else {*labels, *range(len(labels))}
        for name, given in {"validation": self.validation, **tests}.items():
            for e in given:
                if e.label is not None and e.label not in known:
                    raise BadInput(f"the label of {e.id!r} in {name} is {e.label!r}, which no text for training has")
        if self.unlabelled and (course.method == "rationale" or course.penalty == "contrast"):
            raise BadInput("texts without labels teach by a teacher's explanation of what it predicts, and by no other")

    def described(self) -> dict[str, Any]:
        named = {"data": self.data, "validation": self.validation_data, "unlabelled": self.unlabelled_data}
        return {name: None if source is None else _described(source) for name, source in named.items()}


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
        start = self._loaded(self.teacher_folder) if course.variant == "fine_tuned" else self._fresh()
        return self._taught(start, self.teacher_folder)

    def tested(self, given: Mapping[str, Sequence[Example]]) -> dict[str, float]:
        student = self._loaded(self.folder / "student")
        scores = {name: accuracy(student, some) for name, some in given.items()}
        if self.course.variant == "vanilla" or self.course.method == "rationale":
            return scores
        teacher = self._loaded(self.teacher_folder)
        return scores | {f"teacher/{name}": accuracy(teacher, some) for name, some in given.items()}

    def _loaded(self, folder: Path) -> Model:
        return load(folder, **self.options)

    def _fresh(self) -> Model:
        return load_to_train(self.model, self.lessons.labels, seed=self.course.recipe.seed, **self.options)

    def _rounds(self) -> tuple[Mapping[str, float], list[Epoch]]:
        """F_r explains, F_{r+1} learns from it; the last is the student."""
        teacher, before = self.teacher_folder, list[Mapping[str, float]]()
        for number in range(1, self.course.rounds):
            before.append(self._taught(self._fresh(), teacher, f"round-{number}")[0])
            teacher = self.folder / f"round-{number}"
        last, epochs = self._taught(self._fresh(), teacher)
        return [*before, last][0], epochs

    def _taught(
        self, student: Model, teacher: Path | None, into: str = "student"
    ) -> tuple[Mapping[str, float], list[Epoch]]:
        lessons = self.lessons
        if teacher is None:
            train, held = by_rationales(student, lessons.train), by_rationales(student, lessons.validation)
            objective = self._objective(student, train)
            before = self._guards(student, held, objective)(student) if held else {}
            return before, self._trained(into, student, train, objective, held)
        run = self.shelf / "explanations"
        if teacher != self.teacher_folder:  # that of an earlier round
            run = self.folder / f"explanations-{teacher.name}"
        train = self._guided(teacher, student, lessons.train, lessons.data, run)
        if lessons.unlabelled_data is not None:
            more = replace(lessons.unlabelled_data, label=None)
            guided = self._guided(teacher, student, lessons.unlabelled, more, _beside(run, "unlabelled"))
            train += [replace(e, id=f"unlabelled/{e.id}") for e in guided]
        held = lessons.validation
        if lessons.validation_data is not None:
            held = self._guided(teacher, student, held, lessons.validation_data, _beside(run, "validation"))
        objective = self._objective(student, train)
        before = self._guards(student, held, objective)(self._loaded(teacher)) if held else {}
        return before, self._trained(into, student, train, objective, held)

    def _guards(self, model: Model, held: Sequence[Example], objective: Objective) -> Guards:
        """They look where the penalty looks, and are held against a method that does not teach."""
        look = {name: objective.settings[name] for name in ("row", "layers", "heads") if name in objective.settings}
        # Occlusion passes a text once for each of its tokens: too often, where texts are long.
        usual = ("occlusion", "gradient") if mean_length(model, held) <= LONG else ("integrated_gradients", "gradient")
        return Guards(held, objective, **look, held_out=next(m for m in usual if m != self.course.method))

    def _objective(self, student: Model, train: Sequence[Example]) -> Objective:
        """That of the course; ``heads="agreeing"`` becomes the heads of the student that agree already."""
        settings = self.course.penalty_settings
        if settings.get("heads") != AGREE:
            return self.course.objective
        heads = agreeing_heads(student, sampled([e for e in train if e.guide], AGREEING))
        self.telling.now(f"teaching the heads {', '.join(f'{layer}.{head}' for layer, head in heads)}")
        return replace(self.course, penalty_settings={**settings, "heads": heads}).objective

    def _guided(
        self, teacher: Path, student: Model, given: Sequence[Example], data: Source, run: Path
    ) -> list[Example]:
        """The examples with the teacher's explanations, from a run folder that is made if need be."""
        course = self.course
        self.telling.now(f"explaining {len(given):,} texts")
        every = range(len(student.labels)) if course.penalty == "contrast" else (None,)
        rows: dict[str, list[Any]] = {}
        for label in every:
            place = run if label is None else _beside(run, f"label-{label}")
            source = data if label is None else replace(data, label=None)
            place.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(place.with_name(f".{place.name}.lock")):  # another course may be making it just now
                found = explain_data(
                    Checkpoint(str(teacher), self.options),
                    source,
                    place,
                    course.method,
                    target=label,
                    workers="auto",
                    report=self.telling.explained,
                    **course.settings,
                )
            for name, explained in found.rows():
                rows.setdefault(name, []).extend(explained)
        return by_explanations(student, given, rows, form=course.form, share=course.share)

    def _trained(
        self, into: str, model: Model, train: Sequence[Example], objective: Objective, held: Sequence[Example]
    ) -> list[Epoch]:
        """Train and save."""
        cut = sum(bool(e.unseen) for e in read(model, train))
        more = f"; {cut:,} of {len(train):,} texts are longer than it can read" if cut else ""
        self.telling.now(f"training the {into}{more}")
        place = self.folder / f".{into}"
        held = held or self.lessons.validation
        probe = self._guards(model, held, objective) if held else None
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
            save_every=SAVE_EVERY,
            refresh=refresh,
        ):
            epochs.append(epoch)
            if self.telling.epoch is not None:
                self.telling.epoch(into, epoch)
        if not (self.folder / into / "config.json").exists():
            saved(model, self.folder / into)
        return epochs

    def _anew(self, model: Model, given: Sequence[Example]) -> list[Example]:
        """The student's own explanations of the examples, as it is now."""
        course = self.course
        labels: Any = [e.label for e in given]
        found = explain(model, [e.text for e in given], course.method, target=labels, **course.settings)
        rows = {e.id: [x] for e, x in zip(given, found, strict=True)}
        return by_explanations(model, given, rows, form=course.form, share=course.share)


def _described(source: Source) -> dict[str, Any]:
    """What tells one source from another: what is in it, and which columns are read."""
    return json.loads(json.dumps({**fingerprint(source), "columns": source.columns, "spans": source.spans}))


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
        "tested": found.tested,
    }
    with complete(found.folder / "result.json") as stream:
        stream.write(json.dumps(facts, indent=1, ensure_ascii=False).encode())
    for checkpoints in {place.parent for place in found.folder.glob(".*/checkpoint-*")}:
        shutil.rmtree(checkpoints)
    return found


def _result(folder: Path) -> Taught | None:
    file = folder / "result.json"
    if not file.exists():
        return None
    facts = json.loads(file.read_text("utf-8"))
    epochs = tuple(Epoch(**e) for e in facts["epochs"])
    return Taught(folder, facts["course"], facts["before"], epochs, facts["scores"], facts["tested"])
