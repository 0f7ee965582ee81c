"""Distillation of explanations: train a teacher, explain its training set, and train a student with a penalty.

All results are saved in one folder. If the process is stopped, the same call resumes.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from filelock import FileLock

from salience.core.files import complete, complete_folder, differences, locked
from salience.core.settings import check, settings_of
from salience.core.types import Model
from salience.data import Source
from salience.data.examples import Example, check_labels, encode_examples, examples, labels_in, sampled
from salience.data.source import described
from salience.errors import BadInput, choose
from salience.explanations.explainer import explain, prepare
from salience.models import load, load_to_train
from salience.models.loading import Checkpoint
from salience.runs.driver import RunProgress, explain_data
from salience.training.guides import FORMS, Form, by_explanations, by_rationales, shuffled_guides, uniform_guides
from salience.training.loop import Epoch, Probe, Recipe, TrainingProgress, epoch_from, fit
from salience.training.monitors import AttentionMonitor, accuracy, agreeing_heads, mean_length
from salience.training.objectives import PENALTIES, Objective, Schedule, regularised, smoothed

Control = Literal["shuffled", "uniform", "smoothed"]
CONTROLS = get_args(Control)
"""The variants without which a gain of the others proves nothing."""

Variant = Literal["vanilla", "sallm", "fine_tuned", "iterative", "refreshed", Control]
VARIANTS = get_args(Variant)

WITHOUT_TEACHER = ("vanilla", "smoothed")
"""The variants that need no explanations."""

AGREE = "agreeing"
"""The value of ``heads`` that selects those which agree best with the explanations before training."""

AGREEING = 500
"""Number of texts used to select them."""

LONG = 64
"""Mean number of tokens above which texts count as long."""

SAVE_EVERY = 500
"""Steps between checkpoints within an epoch."""


@dataclass(frozen=True, slots=True)
class Distillation:
    """Settings of :func:`distil`. They are saved, and a folder that was started with other settings is refused.

    ``vanilla`` trains on the task alone. ``sallm`` trains a student from the same initial weights as the teacher, and
    ``fine_tuned`` continues from the teacher itself. ``iterative`` repeats ``sallm`` for several rounds, each student
    the teacher of the next. ``refreshed`` replaces the teacher's explanations with the student's own before every
    epoch after the first.

    Three controls show what a penalty does without the information in the explanations. ``shuffled`` is ``sallm`` with
    the weights of each explanation at random tokens of its text, ``uniform`` with the same weight on all tokens, and
    ``smoothed`` has label smoothing of the same λ as its penalty.
    """

    variant: Variant = "sallm"
    method: str = "input_x_gradient"
    """The source of explanations: the name of a method, or ``rationale`` for human rationales in the data."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    form: Form = "binary"
    share: float = 0.2
    penalty: str = "attention_to_explanation"
    penalty_settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    weight: float = 1.0
    anneal: Schedule = "constant"
    rounds: int = 3
    recipe: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        choose(self.variant, VARIANTS, "variant")
        choose(self.form, FORMS, "form")
        if self.rounds < 1:
            raise BadInput(f"rounds={self.rounds} must be at least 1")
        if not 0 < self.share <= 1:
            raise BadInput(f"share={self.share} must be above 0 and at most 1; it is the fraction of tokens to mark")
        if self.method != "rationale":
            prepare(self.method, self.settings)
        elif self.variant in ("fine_tuned", "iterative", "refreshed"):
            raise BadInput(f"variant {self.variant!r} needs a teacher, but human rationales do not; use 'sallm'")
        if self.penalty == "contrast" and self.variant == "refreshed":
            raise BadInput(
                "contrast needs explanations of every label, but the variant 'refreshed' explains only one; use 'sallm'"
            )
        if self.variant == "uniform" and self._ignores_uniform:
            raise BadInput(
                f"{self.penalty} is constant if an explanation marks all tokens alike, so the variant 'uniform' would "
                "teach nothing; use 'shuffled'"
            )
        self.objective  # noqa: B018  checks the settings of the penalty

    @property
    def _ignores_uniform(self) -> bool:
        criterion = self.penalty_settings.get("criterion", "outside")
        return self.penalty == "contrast" or (self.penalty == "gradient_to_explanation" and criterion == "outside")

    @property
    def objective(self) -> Objective:
        return regularised(_penalty(self.penalty), self.weight, self.anneal, **self._checked())

    def _checked(self) -> dict[str, Any]:
        penalty = _penalty(self.penalty)
        for name, value in self.penalty_settings.items():
            choose(name, settings_of(penalty), "setting", self.penalty)
            if (name, value) != ("heads", AGREE):
                check(penalty, name, value)
        return dict(self.penalty_settings)


def _penalty(name: str) -> Callable[..., Any]:
    by_name = {p.__name__: p for p in PENALTIES}
    return by_name[choose(name, by_name, "penalty")]


@dataclass(frozen=True, slots=True)
class DistillationResult:
    """The trained student, with its measures and scores."""

    folder: Path
    course: Mapping[str, Any]
    before: Mapping[str, float]
    """Measures of the teacher."""
    epochs: tuple[Epoch, ...]
    scores: Mapping[str, float]
    """Accuracy of the student by test set; keys that start with ``teacher/`` are the teacher's."""
    tested: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fingerprints of the test sets, by the same names."""

    @property
    def student(self) -> Path:
        """The folder of the trained model, which transformers can load directly."""
        return self.folder / "student"


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Functions called at each stage, training step, explained batch and epoch."""

    stage: Callable[[str], None] | None = None
    step: Callable[[TrainingProgress], None] | None = None
    explained: Callable[[RunProgress], None] | None = None
    epoch: Callable[[str, Epoch], None] | None = None

    def announce(self, stage: str) -> None:
        if self.stage is not None:
            self.stage(stage)


def distil(
    model: str,
    data: Source,
    out: str | Path,
    distillation: Distillation = Distillation(),  # noqa: B008
    *,
    validation: Source | None = None,
    tests: Mapping[str, Source] | None = None,
    unlabelled: Source | None = None,
    teacher: str | Path | None = None,
    explanations_folder: str | Path | None = None,
    callbacks: Callbacks = Callbacks(),  # noqa: B008
    **options: Any,
) -> DistillationResult:
    """Train a teacher on the task, explain the data with it, and train a student with a penalty on its attention.

    ``data`` must name its label column. ``validation`` is evaluated after every epoch and ``tests`` at the end; tests
    may come from other domains. ``unlabelled`` texts contribute to the penalty only, with explanations of the teacher's
    predictions. ``teacher`` is the folder of an already trained teacher, and ``explanations_folder`` a place to share
    its explanations between several calls. ``options`` are passed to :func:`salience.models.load_to_train`.

    >>> distil("sentiment", source("train.jsonl", label="label"), "out", Distillation())       # doctest: +SKIP
    """
    if data.label is None:
        raise BadInput("the data must name the column of its labels, for example source('train.jsonl', label='label')")
    with locked(folder := Path(out), "course.json"):
        data_sets = _Data.read(data, validation, unlabelled)
        test_sets = {name: examples(source) for name, source in (tests or {}).items()}
        data_sets.check(test_sets, distillation)
        shared = Path(explanations_folder or folder)
        procedure = _Procedure(model, options, distillation, folder, data_sets, callbacks, teacher, shared)
        arguments = {"model": model, "options": options, "teacher": None if teacher is None else str(teacher)}
        _check_same_settings(folder, {**arguments, "course": _plain(distillation), **data_sets.described()})
        result = _read_result(folder)
        if result is None:
            before, epochs = procedure.run()
            result = _write_result(DistillationResult(folder, _plain(distillation), before, tuple(epochs), {}))
        fingerprints = {name: described(source) for name, source in (tests or {}).items()}
        untested = [name for name in fingerprints if result.tested.get(name) != fingerprints[name]]
        if untested:
            callbacks.announce(f"testing on {', '.join(untested)}")
            scores = {**result.scores, **procedure.test({name: test_sets[name] for name in untested})}
            result = _write_result(replace(result, scores=scores, tested={**result.tested, **fingerprints}))
        return result


@dataclass(frozen=True, slots=True)
class _Data:
    """The data sets in memory."""

    data: Source
    train: list[Example]
    validation: list[Example]
    validation_data: Source | None
    unlabelled: list[Example]
    unlabelled_data: Source | None

    @classmethod
    def read(cls, data: Source, validation: Source | None, unlabelled: Source | None) -> "_Data":
        held_out = [] if validation is None else examples(validation)
        without_labels = [] if unlabelled is None else [replace(e, label=None) for e in examples(unlabelled)]
        return cls(data, examples(data), held_out, validation, without_labels, unlabelled)

    @property
    def labels(self) -> list[str] | int:
        return labels_in(self.train, self.data.name)

    def check(self, tests: Mapping[str, Sequence[Example]], distillation: Distillation) -> None:
        """Refuse data that would otherwise fail only after training."""
        check_labels(self.labels, {"validation": self.validation, **tests})
        if self.unlabelled and (distillation.method == "rationale" or distillation.penalty == "contrast"):
            raise BadInput(
                "unlabelled texts need a teacher's explanations of its predictions; they cannot be combined with human "
                "rationales or with contrast"
            )

    def described(self) -> dict[str, Any]:
        named = {"data": self.data, "validation": self.validation_data, "unlabelled": self.unlabelled_data}
        return {name: None if source is None else described(source) for name, source in named.items()}


@dataclass(frozen=True, slots=True)
class _Procedure:
    """The steps of distillation. The result of each is saved and reused."""

    model: str
    options: Mapping[str, Any]
    distillation: Distillation
    folder: Path
    data: _Data
    callbacks: Callbacks
    teacher: str | Path | None
    explanations_folder: Path

    @property
    def teacher_folder(self) -> Path:
        return self.folder / "teacher" if self.teacher is None else Path(self.teacher)

    def run(self) -> tuple[Mapping[str, float], list[Epoch]]:
        variant = self.distillation.variant
        if variant in WITHOUT_TEACHER:
            course = self.distillation
            objective = Objective() if variant == "vanilla" else smoothed(course.weight, course.anneal)
            return {}, self._train("student", self._new_model(), self.data.train, objective, [])
        if self.distillation.method == "rationale":
            return self._train_student(self._new_model(), None)
        if self.teacher is None and not (self.folder / "teacher" / "config.json").exists():
            self._train("teacher", self._new_model(), self.data.train, Objective(), [])
        if variant == "iterative":
            return self._iterate()
        student = self._load(self.teacher_folder) if variant == "fine_tuned" else self._new_model()
        return self._train_student(student, self.teacher_folder)

    def test(self, tests: Mapping[str, Sequence[Example]]) -> dict[str, float]:
        student = self._load(self.folder / "student")
        scores = {name: accuracy(student, test) for name, test in tests.items()}
        if self.distillation.variant in WITHOUT_TEACHER or self.distillation.method == "rationale":
            return scores
        teacher = self._load(self.teacher_folder)
        return scores | {f"teacher/{name}": accuracy(teacher, test) for name, test in tests.items()}

    def _load(self, folder: Path) -> Model:
        return load(folder, **self.options)

    def _new_model(self) -> Model:
        return load_to_train(self.model, self.data.labels, seed=self.distillation.recipe.seed, **self.options)

    def _iterate(self) -> tuple[Mapping[str, float], list[Epoch]]:
        """Train F_{r+1} on the explanations of F_r; the last model is the student."""
        teacher, before = self.teacher_folder, list[Mapping[str, float]]()
        for number in range(1, self.distillation.rounds):
            before.append(self._train_student(self._new_model(), teacher, f"round-{number}")[0])
            teacher = self.folder / f"round-{number}"
        last, epochs = self._train_student(self._new_model(), teacher)
        return [*before, last][0], epochs

    def _train_student(
        self, student: Model, teacher: Path | None, name: str = "student"
    ) -> tuple[Mapping[str, float], list[Epoch]]:
        data_sets = self.data
        if teacher is None:
            train = by_rationales(student, data_sets.train)
            held_out = by_rationales(student, data_sets.validation)
            objective = self._objective(student, train)
            before = self._monitor(student, held_out, objective)(student) if held_out else {}
            return before, self._train(name, student, self._controlled(student, train), objective, held_out)
        run = self.explanations_folder / "explanations"
        if teacher != self.teacher_folder:  # the student of an earlier round
            run = self.folder / f"explanations-{teacher.name}"
        train = self._guided(teacher, student, data_sets.train, data_sets.data, run)
        if data_sets.unlabelled_data is not None:
            source = replace(data_sets.unlabelled_data, label=None)
            guided = self._guided(teacher, student, data_sets.unlabelled, source, _sibling(run, "unlabelled"))
            train += [replace(e, id=f"unlabelled/{e.id}") for e in guided]
        held_out = data_sets.validation
        if data_sets.validation_data is not None:
            source = data_sets.validation_data
            held_out = self._guided(teacher, student, held_out, source, _sibling(run, "validation"))
        objective = self._objective(student, train)
        before = self._monitor(student, held_out, objective)(self._load(teacher)) if held_out else {}
        return before, self._train(name, student, self._controlled(student, train), objective, held_out)

    def _controlled(self, student: Model, train: list[Example]) -> list[Example]:
        """The training examples as they are, or with the guides of a control.

        Validation keeps the explanations, and heads are selected by them, so that a control reads the same heads.
        """
        if self.distillation.variant == "shuffled":
            return shuffled_guides(student, train, seed=self.distillation.recipe.seed)
        return uniform_guides(student, train) if self.distillation.variant == "uniform" else train

    def _monitor(self, model: Model, held_out: Sequence[Example], objective: Objective) -> AttentionMonitor:
        """Measure the attention that the penalty reads, and compare it with a method that is not used in training."""
        settings = {k: v for term in objective.penalties for k, v in term.settings.items()}
        attention = {name: settings[name] for name in ("row", "layers", "heads") if name in settings}
        # Occlusion needs one pass per token, which is too slow for long texts.
        slow = mean_length(model, held_out) > LONG
        methods = ("integrated_gradients", "gradient") if slow else ("occlusion", "gradient")
        other = next(m for m in methods if m != self.distillation.method)
        return AttentionMonitor(held_out, objective, **attention, held_out=other)

    def _objective(self, student: Model, train: Sequence[Example]) -> Objective:
        """The objective, with ``heads="agreeing"`` replaced by the selected heads of the student."""
        settings = self.distillation.penalty_settings
        if settings.get("heads") != AGREE:
            return self.distillation.objective
        heads = agreeing_heads(student, sampled([e for e in train if e.guide], AGREEING))
        self.callbacks.announce(f"selected the heads {', '.join(f'{layer}.{head}' for layer, head in heads)}")
        return replace(self.distillation, penalty_settings={**settings, "heads": heads}).objective

    def _guided(
        self, teacher: Path, student: Model, texts: Sequence[Example], data: Source, run: Path
    ) -> list[Example]:
        """The examples with the teacher's explanations as guides; explains the data if necessary."""
        distillation = self.distillation
        self.callbacks.announce(f"explaining {len(texts):,} texts")
        labels = range(len(student.labels)) if distillation.penalty == "contrast" else (None,)
        explanations: dict[str, list[Any]] = {}
        for label in labels:
            place = run if label is None else _sibling(run, f"label-{label}")
            source = replace(data, target=data.label if label is None else None, label=None)
            place.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(place.with_name(f".{place.name}.lock")):  # several trainings may share the explanations
                explained = explain_data(
                    Checkpoint(str(teacher), self.options),
                    source,
                    place,
                    distillation.method,
                    target=label,
                    workers="auto",
                    report=self.callbacks.explained,
                    **distillation.settings,
                )
            for name, row in explained.rows():
                explanations.setdefault(name, []).extend(row)
        return by_explanations(student, texts, explanations, form=distillation.form, share=distillation.share)

    def _train(
        self, name: str, model: Model, train: Sequence[Example], objective: Objective, held_out: Sequence[Example]
    ) -> list[Epoch]:
        """Train a model and save it."""
        truncated = sum(bool(e.unseen) for e in encode_examples(model, train))
        note = f"; {truncated:,} of {len(train):,} texts are truncated" if truncated else ""
        self.callbacks.announce(f"training the {name}{note}")
        held_out = held_out or self.data.validation
        monitor = self._monitor(model, held_out, objective) if held_out else None
        refresh = self._refresh if self.distillation.variant == "refreshed" and name == "student" else None
        epochs: list[Epoch] = []
        for epoch in fit(
            model,
            train,
            objective=objective,
            recipe=self.distillation.recipe,
            probes=() if monitor is None else (Probe(monitor),),
            report=self.callbacks.step,
            folder=self.folder / f".{name}",
            save_every=SAVE_EVERY,
            refresh=refresh,
        ):
            epochs.append(epoch)
            if self.callbacks.epoch is not None:
                self.callbacks.epoch(name, epoch)
        if not (self.folder / name / "config.json").exists():
            save_model(model, self.folder / name)
        return epochs

    def _refresh(self, model: Model, texts: Sequence[Example]) -> list[Example]:
        """The examples with the student's current explanations as guides."""
        distillation = self.distillation
        labels: Any = [e.label for e in texts]
        explained = explain(model, [e.text for e in texts], distillation.method, target=labels, **distillation.settings)
        explanations = {e.id: [x] for e, x in zip(texts, explained, strict=True)}
        return by_explanations(model, texts, explanations, form=distillation.form, share=distillation.share)


def _sibling(run: Path, name: str) -> Path:
    return run.with_name(f"{run.name}-{name}")


def sweep(
    model: str, data: Source, out: str | Path, distillations: Mapping[str, Distillation], **options: Any
) -> dict[str, DistillationResult]:
    """Run several named distillations with one teacher and its explanations, for example one per λ.

    ``options`` are passed to :func:`distil`.
    """
    folder = Path(out)
    results: dict[str, DistillationResult] = {}
    teacher = options.pop("teacher", None)
    for name, one in distillations.items():
        results[name] = distil(
            model, data, folder / name, one, teacher=teacher, explanations_folder=folder / "shared", **options
        )
        if teacher is None and (folder / name / "teacher").is_dir():
            teacher = folder / name / "teacher"
    return results


def save_model(model: Model, folder: Path) -> None:
    """Save a model atomically."""
    with complete_folder(folder) as part:
        model.save(part)


def _plain(distillation: Distillation) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(distillation), default=str))


def _check_same_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Save the settings; raise BadInput with the difference if the folder was started with others."""
    now = json.loads(json.dumps(settings, default=str))
    file = folder / "course.json"
    if not file.exists():
        with complete(file) as stream:
            stream.write(json.dumps(now, indent=1, ensure_ascii=False).encode())
        return
    for name, was, is_now in differences(json.loads(file.read_text("utf-8")), now):
        raise BadInput(
            f"{folder} was started with {name} = {was!r}, not {is_now!r}; use the same value or another folder"
        )


def _write_result(result: DistillationResult) -> DistillationResult:
    """Save the result and delete the checkpoints."""
    facts = {
        "course": result.course,
        "before": result.before,
        "epochs": [asdict(e) for e in result.epochs],
        "scores": result.scores,
        "tested": result.tested,
    }
    with complete(result.folder / "result.json") as stream:
        stream.write(json.dumps(facts, indent=1, ensure_ascii=False).encode())
    for checkpoints in {place.parent for place in result.folder.glob(".*/checkpoint-*")}:
        shutil.rmtree(checkpoints)
    return result


def _read_result(folder: Path) -> DistillationResult | None:
    file = folder / "result.json"
    if not file.exists():
        return None
    facts = json.loads(file.read_text("utf-8"))
    epochs = tuple(map(epoch_from, facts["epochs"]))
    return DistillationResult(folder, facts["course"], facts["before"], epochs, facts["scores"], facts["tested"])
