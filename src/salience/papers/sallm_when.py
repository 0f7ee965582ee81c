"""When does teaching with explanations help? A grid of training sizes × ways of teaching × seeds, with controls.

Every student starts from the same model, learns the same texts as the others of its seed, and is tested in its own
domain and in others. ``none`` learns the task alone and is the teacher of those that learn from saliency.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import nan
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

from salience.core.files import claim, compare, locked
from salience.core.processes import one_thread
from salience.core.rows import predict
from salience.core.types import Model
from salience.data import Source
from salience.data.examples import Example, check_labels, encode_examples, labels_in, sampled
from salience.errors import BadInput, choose
from salience.explanations.explainer import prepare
from salience.methods import METHODS
from salience.models import load, load_to_train
from salience.models.identity import digest
from salience.models.loading import knows
from salience.papers.trainings import (
    Claim,
    Facts,
    Report,
    check_methods,
    claim_rationales,
    content_of,
    diverged,
    marks,
    results_of,
    run_all,
    texts_of,
)
from salience.training.distillation import save_model
from salience.training.guides import Form, by_rationales, by_teacher, shuffled_guides
from salience.training.loop import Recipe, fit
from salience.training.monitors import correct, mean_length
from salience.training.objectives import Objective, attention_to_explanation, regularised

TEST = "test"
"""The name of the test texts of a data set's own domain."""

ALL = "all"

SHUFFLED = "shuffled"
HUMAN = "human"
NONE = "none"
POSITIVE: Form = "positive"


# ------------------------------------------------------------------------------------------------------ teaching


@dataclass(frozen=True, slots=True)
class Teaching:
    """A way of teaching, by its name.

    ``none``; ``human`` for human rationales; or a method, whose highest scores are marked, or all of whose positive
    scores are given with ``:positive``. The controls have the same weights at random tokens: ``shuffled`` for all
    methods, which mark as many tokens, and otherwise ``shuffled:human`` or such as ``shuffled:lrp:positive``.
    """

    name: str

    def __post_init__(self) -> None:
        if self.name == SHUFFLED:
            return
        head, colon, form = self._source.partition(":")
        choose(head, (NONE, HUMAN, SHUFFLED, *(m.__name__ for m in METHODS)), "way of teaching")
        if head in (NONE, HUMAN) and colon:
            raise BadInput(f"{self.name!r} has a form, which only methods have; write {head!r}")
        if colon:
            choose(form, (POSITIVE,), "form", head)
        elif self.shuffles and head != HUMAN:
            raise BadInput(f"{self.name!r} is written {SHUFFLED!r}; it is the control of all methods")

    def __str__(self) -> str:
        return self.name

    @property
    def control(self) -> "Teaching | None":
        """The control without which a gain proves nothing; None for ``none`` and for the controls."""
        if self.name == NONE or self.shuffles:
            return None
        return Teaching(f"{SHUFFLED}:{self.name}" if self.human or self.form == POSITIVE else SHUFFLED)

    @property
    def shuffles(self) -> bool:
        return self.name.partition(":")[0] == SHUFFLED

    @property
    def human(self) -> bool:
        return self._source == HUMAN

    @property
    def method(self) -> str | None:
        """The method that explains the training texts."""
        return None if self._source in (NONE, HUMAN) else self._source.partition(":")[0]

    @property
    def form(self) -> Form:
        return POSITIVE if self._source.endswith(f":{POSITIVE}") else "binary"

    @property
    def _source(self) -> str:
        """What is shuffled, or given as it is. Marks of all methods are as many, so those of the simplest one serve."""
        return "input_x_gradient" if self.name == SHUFFLED else self.name.removeprefix(f"{SHUFFLED}:")


# ------------------------------------------------------------------------------------------------------ trainings


@dataclass(frozen=True, slots=True)
class Training:
    """One training of the grid; ``size`` is None for all texts."""

    data: str
    size: int | None
    teaching: Teaching
    seed: int

    def __str__(self) -> str:
        return f"{self.data}-{self.size or ALL}-{str(self.teaching).replace(':', '.')}-seed-{self.seed}"

    @property
    def teacher(self) -> "Training":
        return replace(self, teaching=Teaching(NONE))

    @property
    def needs(self) -> "tuple[Training, ...]":
        return (self.teacher,) if self.teaching.method else ()


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set: its training texts, and its test texts by domain, its own first."""

    name: str
    train: Source
    tests: Mapping[str, Source]

    @property
    def rationales(self) -> bool:
        return self.train.rationale is not None


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of the grid, and how every student is trained."""

    sizes: tuple[int | None, ...] = (100, 300, 1000, None)
    teachings: tuple[Teaching, ...] = tuple(
        map(Teaching, (NONE, "input_x_gradient", HUMAN, SHUFFLED, "shuffled:human"))
    )
    seeds: int = 5
    first_seed: int = 0
    """The first of the seeds. Seeds behind those of an earlier run tell whether what it found holds for others."""
    weight: float = 1.0
    share: float = 0.2
    recipe: Recipe = field(default_factory=lambda: Recipe(epochs=2, batch=16, rate=2e-4))
    steps: int = 100
    """The fewest steps of a training: small sets are read more often."""
    limit: int | None = None
    """The number of texts that counts as all; None for no limit."""
    tested: int | None = None
    """Texts of each test set, at even distances; None for all."""

    def __post_init__(self) -> None:
        for name in ("seeds", "steps"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name}={getattr(self, name)} must be at least 1")
        if self.first_seed < 0:
            raise BadInput(f"first_seed={self.first_seed} must be 0 or more")
        if any(size is not None and size < 2 for size in self.sizes) or not self.sizes:
            raise BadInput("a training size must be at least 2 texts")
        if self.limit is not None and self.limit < 2:
            raise BadInput(f"limit={self.limit} must be at least 2 texts")

    @property
    def complete(self) -> "Plan":
        """The plan with the teacher and the controls that its ways of teaching need."""
        controls = [t.control for t in self.teachings if t.control is not None]
        return replace(self, teachings=tuple(dict.fromkeys((Teaching(NONE), *self.teachings, *controls))))

    @property
    def numbers(self) -> range:
        """The seeds."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def recipe_for(self, texts: int, seed: int) -> Recipe:
        per_epoch = -(-texts // self.recipe.batch)
        return replace(self.recipe, epochs=max(self.recipe.epochs, -(-self.steps // per_epoch)), seed=seed)


@dataclass(frozen=True, slots=True)
class Experiment:
    """What all trainings of the grid share. It holds descriptions of data, and is sent to other processes."""

    model: str
    data: Mapping[str, DataSet]
    plan: Plan
    folder: Path
    contents: Mapping[Source, str]
    """What identifies the content of each source."""
    lengths: Mapping[str, float]
    """The mean number of tokens of the texts, by data set and by test set."""
    starts: Mapping[str, str] = field(default_factory=dict[str, str])
    """The digest of the model that students start from, by data set."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    passes: Mapping[str, float] = field(default_factory=dict[str, float])
    """The forward passes that take as long as explaining a text, by method."""

    def jobs(self) -> list[Training]:
        """All trainings: small sizes first, and all seeds of a cell before the next."""
        plan = self.plan
        return [
            Training(data.name, size, teaching, seed)
            for size in plan.sizes
            for data in self.data.values()
            if size in self.sizes(data)
            for teaching in plan.teachings
            if data.rationales or not teaching.human
            for seed in plan.numbers
        ]

    def sizes(self, data: DataSet) -> list[int | None]:
        """The sizes of the plan, less those that would train on the same texts as ``all``."""
        sizes, whole = self.plan.sizes, self._count(data, None)
        return [size for size in sizes if size is None or size < whole or None not in sizes]

    def cost(self, job: Training) -> float:
        """The number of tokens passed; a training step passes each three times, forward and backward."""
        explaining = self.passes.get(job.teaching.method or "", 0.0)
        texts = self._count(self.data[job.data], job.size)
        epochs = self.plan.recipe_for(texts, job.seed).epochs
        tested = sum(
            len(self.tested(source)) * self.lengths[f"{job.data}/{name}"]
            for name, source in self.data[job.data].tests.items()
        )
        return (3 * epochs + explaining) * texts * self.lengths[job.data] + tested

    def __call__(self, job: Training) -> Facts:
        """Train one student, and test it."""
        data = self.data[job.data]
        train = self.texts(job)
        model = load_to_train(self.model, labels_in(self.read(data.train), data.name), seed=job.seed, **self.options)
        guided, objective = self._guided(model, train, job), self._objective(job)
        recipe = self.plan.recipe_for(len(train), job.seed)
        (*_, last) = fit(model, guided, objective=objective, recipe=recipe)
        if job.teaching.name == NONE:
            save_model(model, self.saved(job))
        answers = {name: correct(model, self.tested(source)) for name, source in data.tests.items()}
        return {
            "data": job.data,
            "size": job.size,
            "texts": len(train),
            "teaching": str(job.teaching),
            "seed": job.seed,
            "epochs": recipe.epochs,
            "losses": dict(last.losses),
            "correct": {name: marks(right) for name, right in answers.items()},
        }

    def texts(self, job: Training) -> list[Example]:
        """The training texts of a seed, the same for every way of teaching; a smaller set is part of a larger one."""
        data = self.data[job.data]
        labelled = list(self.read(data.train))
        Random(job.seed).shuffle(labelled)
        return labelled[: self._count(data, job.size)]

    def _count(self, data: DataSet, size: int | None) -> int:
        """The number of training texts of a size."""
        available = len(self.read(data.train))
        return min(size or self.plan.limit or available, available)

    def _guided(self, model: Model, train: list[Example], job: Training) -> list[Example]:
        teaching = job.teaching
        if teaching.name == NONE:
            return train
        guided = by_rationales(model, train) if teaching.human else self._explained(train, job)
        return shuffled_guides(model, guided, seed=job.seed) if teaching.shuffles else guided

    def _explained(self, train: list[Example], job: Training) -> list[Example]:
        """The texts with the teacher's explanations of their labels."""
        assert job.teaching.method is not None
        teacher = load(self.saved(job.teacher), **self.options)
        (method,) = prepare(job.teaching.method, {})
        return by_teacher(teacher, train, method, form=job.teaching.form, share=self.plan.share)

    def _objective(self, job: Training) -> Objective:
        if job.teaching.name == NONE:
            return Objective()
        return regularised(attention_to_explanation, self.plan.weight)

    def diverged(self) -> dict[Training, str]:
        """Why trainings have no result, though they were run."""
        return diverged(self.folder / "trainings", self.jobs())

    def saved(self, job: Training) -> Path:
        """The folder of a teacher."""
        return self.folder / "teachers" / str(job)

    def read(self, source: Source) -> tuple[Example, ...]:
        """The labelled texts of a source."""
        return texts_of(source, self.contents[source])

    def tested(self, source: Source) -> list[Example]:
        texts = self.read(source)
        return sampled(texts, self.plan.tested or len(texts))


# ------------------------------------------------------------------------------------------------------ the grid


def run(
    model: str,
    data: Sequence[DataSet],
    out: str | Path,
    plan: Plan = Plan(),  # noqa: B008
    *,
    workers: int = 1,
    report: Report = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> tuple[Experiment, dict[Training, Facts]]:
    """Train every student of the grid that is not trained yet; if stopped, the same call resumes.

    Ways of teaching, sizes, seeds and data sets may be added later. ``options`` are passed to
    :func:`salience.models.load_to_train`.
    """
    folder = Path(out)
    with locked(folder, "grid.json"):
        experiment = prepared(model, data, folder, plan, options, say)
        claim(folder / "grid.json", _settings(experiment), "a grid with other settings")
        for one in data:
            _claim(experiment, one, claim)
        (folder / "trainings").mkdir(exist_ok=True)
        left = len(results_of(folder / "trainings", experiment.jobs())) < len(experiment.jobs())
        experiment, rate = _timed(experiment) if left else (experiment, nan)
        results = run_all(
            experiment,
            experiment.jobs(),
            folder / "trainings",
            workers=workers,
            rate=rate,
            report=report,
            kept=lambda job: experiment.saved(job).exists(),
        )
        return experiment, results


def finished(
    model: str,
    data: Sequence[DataSet],
    out: str | Path,
    plan: Plan = Plan(),  # noqa: B008
    **options: Any,
) -> tuple[Experiment, dict[Training, Facts]]:
    """The results of the trainings that are finished, also while others are running; trains nothing."""
    folder = Path(out)
    if not (folder / "grid.json").exists():
        raise BadInput(f"{folder} holds no grid; run the command without --finished first")
    experiment = prepared(model, data, folder, plan, options, lambda _: None)
    compare(folder / "grid.json", _settings(experiment), "a grid with other settings")
    for one in data:
        _claim(experiment, one, compare)
    return experiment, results_of(folder / "trainings", experiment.jobs())


def _claim(experiment: Experiment, data: DataSet, claim: Claim) -> None:
    """Refuse a folder that holds the results of other texts or rationales of a data set."""
    sources = {"train": data.train, **{f"tests/{name}": source for name, source in data.tests.items()}}
    content = {name: experiment.contents[source] for name, source in sources.items()}
    facts = {"model": experiment.starts[data.name], **content}
    claim(
        experiment.folder / f"data-{data.name}.json",
        facts,
        f"the results of another model or other texts of {data.name}",
    )
    if data.rationales and any(t.human for t in experiment.plan.teachings):
        claim_rationales(experiment.folder / f"rationales-{data.name}.json", data.train, claim)


def prepared(
    model: str,
    data: Sequence[DataSet],
    folder: Path,
    plan: Plan,
    options: Mapping[str, Any],
    say: Callable[[str], None],
) -> Experiment:
    """The experiment, once its data has been read."""
    contents = {source: content_of(source) for one in data for source in (one.train, *one.tests.values())}
    named = {one.name: one for one in data}
    experiment = Experiment(model, named, plan.complete, folder, contents, {}, options=options)
    lengths: dict[str, float] = {}
    starts: dict[str, str] = {}
    for one in data:
        train = experiment.read(one.train)
        labels = labels_in(train, one.name)
        check_labels(labels, {f"{one.name}, {name}": experiment.read(source) for name, source in one.tests.items()})
        if too_many := [size for size in experiment.sizes(one) if size is not None and size > len(train)]:
            raise BadInput(f"{one.name} has {len(train)} labelled texts, not {too_many[0]:,}; use the size all")
        if knows(model, labels):
            say(
                f"{model} is a classifier of the labels of {one.name} already; start from a model that has not learnt "
                "them, or training sizes mean little"
            )
        start = load_to_train(model, labels, **options)
        check_methods(start, train[0], {t.method for t in experiment.plan.teachings if t.method})
        starts[one.name] = digest(start)
        lengths[one.name] = mean_length(start, train)
        for name, source in one.tests.items():
            lengths[f"{one.name}/{name}"] = mean_length(start, experiment.tested(source))
    return replace(experiment, lengths=lengths, starts=starts)


def _settings(experiment: Experiment) -> dict[str, Any]:
    """What must not change between calls: all but the ways of teaching, sizes, seeds and data sets."""
    plan = experiment.plan
    recipe = {name: value for name, value in asdict(plan.recipe).items() if name != "seed"}
    named = {name: getattr(plan, name) for name in ("weight", "share", "steps", "limit", "tested")}
    return {**named, "recipe": recipe}


TIMED = 16
"""The number of texts used to estimate how long trainings take."""


def _timed(experiment: Experiment) -> tuple[Experiment, float]:
    """The experiment with the costs of its methods, and the seconds to pass a token on one thread."""
    data = next(iter(experiment.data.values()))
    texts = experiment.tested(data.tests[TEST])[:TIMED]
    model = load_to_train(experiment.model, labels_in(experiment.read(data.train), data.name), **experiment.options)
    encoded = encode_examples(model, texts)
    methods = sorted({t.method for t in experiment.plan.teachings if t.method})
    with one_thread():
        seconds = _seconds(lambda: predict(model, encoded))
        passes = {name: _seconds(lambda name=name: _explain(model, texts, name)) / seconds for name in methods}
    return replace(experiment, passes=passes), seconds / sum(map(len, encoded))


def _explain(model: Model, texts: Sequence[Example], method: str) -> None:
    (prepared,) = prepare(method, {})
    by_teacher(model, texts, prepared)


def _seconds(work: Callable[[], object]) -> float:
    """How long something takes the second time; the first includes what is done once."""
    work()
    began = monotonic()
    work()
    return monotonic() - began
