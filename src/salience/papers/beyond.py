"""Beyond saliency of tokens: what interactions, learned masks and rationale models add to it, and what they cost.

On each data set one classifier is trained, and explained by attention, by saliency methods, by interactions summed to
tokens, and by gates that were trained for it (DiffMask); beside it, models that select their own input are trained from
the same start. All are measured for faithfulness, plausibility and cost in one table.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from salience.core.files import complete, fingerprint, write_json
from salience.core.stats import Difference, Estimate, differences, estimate, paired_difference
from salience.core.types import Model
from salience.data import source
from salience.data.examples import Example, encode_examples, sampled
from salience.data.rationales import marked
from salience.evaluation.evaluator import unsupported
from salience.evaluation.runs import evaluate_data
from salience.evaluation.table import Cell
from salience.explanations.explainer import AnyMethod
from salience.methods.interactions import by_token, pairwise_occlusion
from salience.models.identity import digest
from salience.models.loading import load
from salience.models.rationale import KINDS, RationaleKind
from salience.papers.comparison import TIMED, Comparison, seconds_per_text
from salience.runs.driver import RunProgress
from salience.runs.folder import read_manifest
from salience.runs.run import Run
from salience.training import distillation
from salience.training.diffmask import RECIPE as GATES
from salience.training.diffmask import GatesResult, train_gates
from salience.training.loop import Epoch, Recipe, TrainingProgress
from salience.training.monitors import correct
from salience.training.rationale_models import RationaleResult, RationaleTraining, selections, train_rationale_model

METHODS = ("attention", "gradient", "input_x_gradient", "integrated_gradients", "occlusion", "diff_mask")
"""Of the classifier, beside interactions."""

INTERACTIONS = "pairwise_occlusion"
PASSES = 5000
"""Passes per text, on average, that interactions may take; where they would take more, they are left out."""

SELECTING = ("selection", "input_x_gradient")
"""Of the rationale models."""

PART = 20
"""Texts that are measured before their numbers are saved."""

CLASSIFIER = "classifier"
FAITHFULNESS, PLAUSIBILITY = ("comprehensiveness", "sufficiency"), ("token_f1", "roc_auc", "auprc")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is trained and measured."""

    train: int | None
    test: int
    recipe: Recipe
    gates: Recipe
    rate: float = 0.2


SIZES = {
    "quick": Size(1000, 60, Recipe(epochs=2, batch=32, rate=1e-4), GATES),
    "full": Size(None, 500, Recipe(epochs=5, batch=32, rate=1e-4), GATES),
}


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Functions called at each stage and training step, and while texts are measured."""

    stage: Callable[[str], None] = field(default=lambda _: None)
    step: Callable[[TrainingProgress], None] | None = None
    measured: Callable[[RunProgress], None] | None = None


# ------------------------------------------------------------------------------------------------------ results


@dataclass(frozen=True, slots=True)
class SelectedMarks:
    """Token F1 of exactly the tokens that a rationale model selects, against those that people marked."""

    f1: Estimate
    random: Estimate
    """That of as many tokens of the same text, drawn at random; its expected value."""
    difference: Difference


@dataclass(frozen=True, slots=True)
class Selecting:
    """What is measured of one rationale model."""

    comparison: Comparison
    accuracy: float
    kept: Difference
    """Its accuracy minus that of the classifier, on the same texts."""
    selected: float
    """Share of the tokens that it reads."""
    marked: SelectedMarks | None


@dataclass(frozen=True, slots=True)
class Explainer:
    """A model, the classifier or a kind of rationale model, and a method that explains it."""

    model: str
    method: str


@dataclass(frozen=True, slots=True)
class Direction:
    """That one explanation is better than another by a metric: what was published, and ours."""

    published: tuple[str, str]
    """The names of the better and the worse one in the published table."""
    metric: str
    ours: tuple[Explainer, Explainer]

    @property
    def judged_by(self) -> str:
        """The trapezoids of AUPRC flatter tied scores, and a selection has hardly any others. ROC AUC counts a tie as
        half: it is ½ for uniform scores, as for random ones.
        """
        return "roc_auc" if self.metric == "auprc" else self.metric


IG, RANDOM, A2R = "integrated gradients", "random", "A2R, a rationale model"
OWN_IG, OWN_RANDOM = Explainer(CLASSIFIER, "integrated_gradients"), Explainer(CLASSIFIER, "random")


def _of_selection(kind: RationaleKind) -> tuple[Direction, ...]:
    own = Explainer(kind, "selection")
    return Direction((A2R, IG), "auprc", (own, OWN_IG)), Direction((IG, A2R), "comprehensiveness", (OWN_IG, own))


DIRECTIONS = (
    *(Direction((IG, RANDOM), metric, (OWN_IG, OWN_RANDOM)) for metric in (*FAITHFULNESS, "auprc")),
    *(direction for kind in KINDS for direction in _of_selection(kind)),
)
"""The published directions, for both kinds of rationale model."""


@dataclass(frozen=True, slots=True)
class BeyondResult:
    """The results on one data set: comparisons of explanations, and what was trained for them."""

    data: str
    classifier: Comparison
    accuracy: float
    """Of the classifier."""
    rationales: Mapping[RationaleKind, Selecting]
    seconds: Mapping[str, float]
    """Of each training."""
    gates: GatesResult
    directions: Mapping[Direction, Difference]
    """The better minus the worse side of each published direction, on the same texts; p is corrected for all."""

    @property
    def comparisons(self) -> dict[str, Comparison]:
        """The explanations of every model."""
        return {CLASSIFIER: self.classifier, **{kind: one.comparison for kind, one in self.rationales.items()}}

    def cell(self, of: Explainer, metric: str) -> Cell:
        """What a metric says of an explanation."""
        return self.comparisons[of.model].evaluation.cells[of.method, metric]


# ------------------------------------------------------------------------------------------------------ a run


def run(
    model: str,
    data: str,
    train: Sequence[Example],
    test: Sequence[Example],
    out: str | Path,
    size: Size,
    *,
    callbacks: Callbacks = Callbacks(),  # noqa: B008
) -> BeyondResult:
    """Train and measure everything on one data set. What is trained is kept in the folder and not trained again."""
    texts, held_out = sampled(train, size.train or len(train)), sampled(test, size.test)
    study = _Study(model, data, texts, held_out, test, Path(out) / data, size, callbacks)
    plain, rationales = study.trained(CLASSIFIER, None), {kind: study.trained(kind, kind) for kind in KINDS}
    classifier = load(plain.model)
    gates = study.gates(classifier)
    compared = study.measured(classifier, CLASSIFIER, METHODS, gates=str(gates.folder))
    right = study.tested(classifier, CLASSIFIER)
    selecting = {kind: study.selecting(load(one.model), kind, right) for kind, one in rationales.items()}
    trainings = {CLASSIFIER: plain.epochs, **{kind: one.epochs for kind, one in rationales.items()}}
    return BeyondResult(
        data,
        compared,
        float(np.mean(right)),
        selecting,
        {name: _seconds(epochs) for name, epochs in {**trainings, "gates": gates.epochs}.items()},
        gates,
        _directions(study.folder, compared.evaluation.metrics),
    )


@dataclass(frozen=True, slots=True)
class _Study:
    """The steps of a run on one data set. Each is finished in the folder before the next begins."""

    model: str
    data: str
    texts: Sequence[Example]
    held_out: Sequence[Example]
    """The texts that are explained."""
    test: Sequence[Example]
    """The texts that accuracy is measured on."""
    folder: Path
    size: Size
    callbacks: Callbacks

    def _stage(self, what: str) -> None:
        self.callbacks.stage(f"{self.data}: {what}")

    def trained(self, name: str, kind: RationaleKind | None) -> RationaleResult:
        self._stage(f"training the {name}")
        training = RationaleTraining(kind, self.size.rate, recipe=self.size.recipe)
        shown = distillation.Callbacks(step=self.callbacks.step)
        return train_rationale_model(self.model, self.texts, self.folder / name, training, callbacks=shown)

    def gates(self, classifier: Model) -> GatesResult:
        self._stage("training the gates")
        texts, place = [e.text for e in self.texts], self.folder / "gates"
        return train_gates(classifier, texts, place, recipe=self.size.gates, report=self.callbacks.step)

    def measured(self, of: Model, name: str, methods: Sequence[str], **gates: str) -> Comparison:
        self._stage(f"measuring the {name}")
        place = _measurements(self.folder, name)
        return _compared(of, self.data, self.held_out, methods, place, self.callbacks.measured, **gates)

    def tested(self, of: Model, name: str) -> Float[np.ndarray, " n"]:
        """Which texts a model gets right."""
        self._stage(f"testing the {name}")
        return np.array(correct(of, self.test), dtype=float)

    def selecting(self, of: Model, kind: RationaleKind, right: Float[np.ndarray, " n"]) -> Selecting:
        """Measure a rationale model; ``right`` says which texts the classifier gets right."""
        comparison = self.measured(of, kind, SELECTING)
        own, chosen = self.tested(of, kind), selections(of, self.test)
        return Selecting(
            comparison,
            float(np.mean(own)),
            paired_difference(own, right),
            float(np.mean([z.mean() for z in chosen if len(z)])),
            _selected_marks(of, self.test, chosen),
        )


def _measurements(place: Path, name: str) -> Path:
    return place / f"of-{name}"


def _seconds(epochs: Sequence[Epoch]) -> float:
    return sum(epoch.seconds for epoch in epochs)


def _selected_marks(
    model: Model, texts: Sequence[Example], chosen: Sequence[Bool[np.ndarray, " t"]]
) -> SelectedMarks | None:
    """F1 = 2 |Z ∩ R| / (|Z| + |R|) over the texts with marks R; of random selections, |Z ∩ R| is |Z| |R| / n."""
    rows: list[tuple[float, float]] = []
    for example, encoded, z in zip(texts, encode_examples(model, texts), chosen, strict=True):
        marks = np.array(marked(example.rationale or (), encoded), dtype=bool)[~np.array(encoded.special)]
        if marks.any():
            total = z.sum() + marks.sum()
            rows.append((2 * (z & marks).sum() / total, 2 * z.sum() * marks.mean() / total))
    if not rows:
        return None
    own, random = np.array(rows).T
    return SelectedMarks(estimate(own, (0, 1)), estimate(random, (0, 1)), paired_difference(own, random))


# ------------------------------------------------------------------------------------------------------ measuring


def _compared(
    model: Model,
    data: str,
    texts: Sequence[Example],
    names: Sequence[str],
    place: Path,
    report: Callable[[RunProgress], None] | None,
    **gates: str,
) -> Comparison:
    """Measure the methods that support the model. Finished texts are saved in the folder and not measured again."""
    settings: dict[str, dict[str, Any]] = {name: dict(gates) if name == "diff_mask" else {} for name in names}
    own: dict[str, Any] = {f"diff_mask.{key}": value for key, value in gates.items()}
    left_out = {n: why for n in names if (why := unsupported(model, texts[0].text, n, **settings[n])) is not None}
    methods: dict[str, AnyMethod] = {name: name for name in names if name not in left_out}
    if names is METHODS and (reason := _too_long(texts)) is not None:
        left_out[INTERACTIONS] = reason
    elif names is METHODS:
        methods[INTERACTIONS] = by_token(pairwise_occlusion)
    known = any(e.rationale for e in texts)
    evaluation = evaluate_data(
        model,
        source(_written(texts, place.with_suffix(".jsonl")), id="id", rationale="rationale" if known else None),
        place,
        list(methods.values()),
        metrics=[*FAITHFULNESS, *(PLAUSIBILITY if known else ())],
        rows_per_part=PART,
        report=report,
        **own,
    )
    some = [e.text for e in sampled(texts, TIMED)]

    def time(name: str) -> float:
        return seconds_per_text(model, some, methods[name], settings.get(name, {}))

    return Comparison(data, evaluation, _timed(time, methods, model, some, place.with_suffix(".json")), left_out)


def _too_long(texts: Sequence[Example]) -> str | None:
    """Why there are no interactions: a pass for every pair of words."""
    counts = [len(str(e.text).split()) for e in texts]
    passes = sum(n * (n + 1) / 2 for n in counts) / len(counts)
    return (
        f"interactions would take {passes:,.0f} passes per text, and {PASSES:,} are allowed"
        if passes > PASSES
        else None
    )


def _written(texts: Sequence[Example], file: Path) -> Path:
    """Write the measured texts to a file, which a run reads."""
    lines = [{"id": e.id, "text": e.text, "rationale": e.rationale} for e in texts]
    with complete(file) as opened:
        opened.writelines(f"{json.dumps(line)}\n".encode() for line in lines)
    return file


def _timed(
    time: Callable[[str], float],
    names: Sequence[str] | Mapping[str, Any],
    model: Model,
    texts: Sequence[Any],
    file: Path,
) -> dict[str, float]:
    """Seconds per text by method; kept in the file, so that the same command prints the same table."""
    facts = fingerprint(digest(model), list(names), texts)
    stored: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    if stored.get("of") != facts:
        stored = {"of": facts, "seconds": {name: time(name) for name in names}}
        write_json(file, stored)
    return stored["seconds"]


def _directions(place: Path, metrics: Sequence[str]) -> dict[Direction, Difference]:
    """The paired differences that the directions are about, tested together."""
    asked = [one for one in DIRECTIONS if one.metric in metrics]

    def values(one: Explainer, metric: str) -> Float[np.ndarray, " n"]:
        return _values(_measurements(place, one.model), one.method, metric)

    columns = [values(d.ours[0], d.judged_by) - values(d.ours[1], d.judged_by) for d in asked]
    return dict(zip(asked, differences(columns), strict=True))


def _values(folder: Path, method: str, metric: str) -> Float[np.ndarray, " n"]:
    """One number per text, in the order of the texts; NaN where the metric is undefined."""
    column = Run(folder, read_manifest(folder)).dataset.to_table(columns=[metric]).column(metric).combine_chunks()
    return column.field(method).to_numpy(zero_copy_only=False).astype(float)
