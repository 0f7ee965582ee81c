"""Beyond saliency of tokens: what interactions, learned masks and rationale models add to it, and what they cost.

On each data set one classifier is trained, and explained by attention, by saliency methods, by interactions summed to
tokens, and by gates that were trained for it (DiffMask); beside it, a model that selects its own input is trained from
the same start. All are measured for faithfulness, plausibility and cost in one table.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from salience.core.files import complete, fingerprint, write_json
from salience.core.stats import Difference, Estimate, differences, estimate, paired_difference
from salience.core.types import Model
from salience.data import source
from salience.data.examples import Example, encode_examples, sampled
from salience.data.rationales import marked
from salience.evaluation.evaluator import unsupported
from salience.evaluation.runs import evaluate_data
from salience.evaluation.table import Cell, Evaluation
from salience.explanations.explainer import AnyMethod
from salience.methods import CONTROLS
from salience.methods.interactions import by_token, pairwise_occlusion
from salience.metrics.metric import Better
from salience.models.identity import digest
from salience.models.loading import load
from salience.papers.compared import TIMED, Comparison, seconds_per_text
from salience.runs.driver import RunProgress
from salience.runs.folder import read_manifest
from salience.runs.run import Run
from salience.training import distillation
from salience.training.diffmask import RECIPE as GATES
from salience.training.diffmask import train_gates
from salience.training.loop import Epoch, Recipe, TrainingProgress
from salience.training.monitors import correct
from salience.training.rationale_models import RationaleResult, RationaleTraining, selections, train_rationale_model

METHODS = ("attention", "gradient", "input_x_gradient", "integrated_gradients", "occlusion", "diff_mask")
"""Of the classifier, beside interactions."""

INTERACTIONS = "pairwise_occlusion"
PASSES = 5000
"""Passes per text, on average, that interactions may take; where they would take more, they are left out."""

SELECTING = ("selection", "input_x_gradient")
"""Of the rationale model."""

PART = 20
"""Texts that are measured before their numbers are saved."""

FAITHFULNESS, PLAUSIBILITY = ("comprehensiveness", "sufficiency"), ("token_f1", "roc_auc", "auprc")

PUBLISHED = {
    "random": (0.316, 0.326, 0.227, 0.238),
    "integrated gradients": (0.376, 0.358, 0.049, 0.484),
    "LIME": (0.379, 0.361, 0.005, 0.603),
    "A2R, a rationale model": (0.474, 0.433, 0.109, 0.320),
    "RTP": (0.567, 0.466, -0.029, 0.851),
    "supervised": (0.670, 0.514, 0.001, 0.638),
}
"""ERASER movies: AUPRC, token F1, sufficiency, comprehensiveness, from the README of RTP. Direction only: its models
and splits differ."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is trained and measured."""

    train: int | None
    test: int
    recipe: Recipe
    gates: Recipe
    rate: float = 0.2


SIZES = {
    "quick": Size(1000, 60, Recipe(epochs=2, batch=32, rate=1e-4), replace(GATES, epochs=3)),
    "full": Size(None, 500, Recipe(epochs=5, batch=32, rate=1e-4), GATES),
}


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Functions called at each stage and training step, and while texts are measured."""

    stage: Callable[[str], None] = field(default=lambda _: None)
    step: Callable[[TrainingProgress], None] | None = None
    measured: Callable[[RunProgress], None] | None = None


@dataclass(frozen=True, slots=True)
class BeyondResult:
    """The results on one data set: two comparisons, and what was trained for them."""

    data: str
    classifier: Comparison
    rationale: Comparison
    accuracy: Mapping[str, float]
    kept: Difference
    """Accuracy of the rationale model minus that of the classifier, on the same texts."""
    selected: float
    """Share of the tokens that the rationale model reads."""
    marked: "SelectedMarks | None"
    seconds: Mapping[str, float]
    """Of each training."""
    directions: Mapping["Direction", Difference]
    """The first minus the second side of each published direction, on the same texts; p is corrected for all."""


@dataclass(frozen=True, slots=True)
class SelectedMarks:
    """Token F1 of exactly the tokens that a rationale model selects, against those that people marked."""

    f1: Estimate
    random: Estimate
    """That of as many tokens of the same text, drawn at random; its expected value."""
    difference: Difference


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
    place = Path(out) / data
    shown = distillation.Callbacks(step=callbacks.step)

    def trained(name: str, training: RationaleTraining) -> RationaleResult:
        callbacks.stage(f"{data}: training the {name}")
        return train_rationale_model(model, texts, place / name, training, callbacks=shown)

    plain = trained("classifier", RationaleTraining(None, recipe=size.recipe))
    rationale = trained("rationale-model", RationaleTraining("hardkuma", size.rate, recipe=size.recipe))
    classifier, selector = load(plain.model), load(rationale.model)
    callbacks.stage(f"{data}: training the gates")
    gates = train_gates(classifier, [e.text for e in texts], place / "gates", recipe=size.gates, report=callbacks.step)
    folders = {"classifier": place / "of-classifier", "rationale": place / "of-rationale-model"}
    callbacks.stage(f"{data}: measuring the classifier")
    compared = _compared(
        classifier, data, held_out, METHODS, folders["classifier"], callbacks.measured, gates=str(gates.folder)
    )
    callbacks.stage(f"{data}: measuring the rationale model")
    selecting = _compared(selector, data, held_out, SELECTING, folders["rationale"], callbacks.measured)
    callbacks.stage(f"{data}: testing both models")
    right = {name: correct(of, test) for name, of in (("classifier", classifier), ("rationale", selector))}
    trainings = {"classifier": plain.epochs, "rationale model": rationale.epochs, "gates": gates.epochs}
    chosen = selections(selector, test)
    return BeyondResult(
        data,
        compared,
        selecting,
        {name: float(np.mean(each)) for name, each in right.items()},
        paired_difference(right["rationale"], right["classifier"]),
        float(np.mean([z.mean() for z in chosen if len(z)])),
        _selected_marks(selector, test, chosen),
        {name: _seconds(epochs) for name, epochs in trainings.items()},
        _directions(folders, compared.evaluation.metrics),
    )


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


def _seconds(epochs: Sequence[Epoch]) -> float:
    return sum(epoch.seconds for epoch in epochs)


# ------------------------------------------------------------------------------------------------------ the table


def rows(result: BeyondResult) -> list[dict[str, Any]]:
    """One row per explanation: its model, its scores by metric with intervals, and its seconds per text."""
    return [
        {
            "model": name,
            "method": method,
            **{m: _facts(comparison.evaluation.cells[method, m]) for m in comparison.evaluation.metrics},
            "seconds": comparison.seconds.get(method),
        }
        for name, comparison in (("classifier", result.classifier), ("rationale model", result.rationale))
        for method in comparison.evaluation.methods
    ]


def _facts(cell: Cell) -> dict[str, Any]:
    return {**asdict(cell.estimate), "beats_random": cell.beats_random}


def table(result: BeyondResult) -> tuple[list[str], list[list[str]]]:
    """The rows as text, below their heads; * is significantly better than random scores of the same model."""
    metrics = list(result.classifier.evaluation.metrics)
    heads = ["model", "method", *metrics, "ms per text"]
    lines = [
        [row["model"], row["method"], *(_mean(row[m]) for m in metrics), _milliseconds(row["seconds"])]
        for row in rows(result)
    ]
    return heads, lines


def _mean(facts: Mapping[str, Any]) -> str:
    return "–" if isnan(facts["mean"]) else f"{facts['mean']:.3f}{'*' if facts['beats_random'] else ''}"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.1f}"


def left_out(result: BeyondResult) -> list[str]:
    """The methods that were not measured, with the reason."""
    return [f"{name}: {why}" for name, why in (*result.classifier.left_out.items(), *result.rationale.left_out.items())]


def answer(result: BeyondResult) -> list[str]:
    """What each kind of explanation adds, and what it costs, in words."""
    evaluation = result.classifier.evaluation
    new = [name for name in ("diff_mask", INTERACTIONS) if name in evaluation.methods]
    return [
        *(_rank(evaluation, name, metric) for metric in evaluation.metrics for name in new),
        *(_cost(result, name) for name in new),
        f"The rationale model reads {result.selected:.1%} of the tokens; its accuracy is "
        f"{result.accuracy['rationale']:.3f}, {result.kept:.3f} from the classifier of whole texts. It took "
        f"{result.seconds['rationale model']:,.0f} s to train, the classifier {result.seconds['classifier']:,.0f} s.",
        *(_selection(result, metric) for metric in evaluation.metrics),
        *_marked(result),
        *_truncated(evaluation),
    ]


def _selection(result: BeyondResult, metric: str) -> str:
    """Where the selection of the rationale model stands; faithfulness is to another model, plausibility to people."""
    cell = result.rationale.evaluation.cells["selection", metric]
    than_random = f"{metric}: the selection has {cell.estimate}, {_better(cell)} than random"
    if metric in FAITHFULNESS:
        return f"{than_random} scores of the rationale model."
    others = result.classifier.evaluation
    best = others.best(metric)
    return f"{than_random}; the best of the classifier is {best}, {others.cells[best, metric].estimate}."


def _marked(result: BeyondResult) -> list[str]:
    if (of := result.marked) is None:
        return []
    return [
        f"Exactly the selected tokens have a token F1 of {of.f1} with those that people marked, as many at random "
        f"{of.random}; the difference is {of.difference:.3f}."
    ]


def _truncated(evaluation: Evaluation) -> list[str]:
    if not evaluation.truncated:
        return []
    return [
        f"{evaluation.truncated} of {evaluation.texts} texts are longer than the models can read; only what they read "
        "is explained and measured."
    ]


def _better(cell: Cell) -> str:
    return "significantly better" if cell.beats_random else "not significantly better"


def _rank(evaluation: Evaluation, method: str, metric: str) -> str:
    """Where a method stands among those of the classifier."""
    cells = {name: evaluation.cells[name, metric] for name in evaluation.methods if name not in CONTROLS}
    sign = -1 if cells[method].better == "higher" else 1
    order = sorted(cells, key=lambda name: sign * cells[name].estimate.mean)
    return (
        f"{metric}: {method} is number {order.index(method) + 1} of {len(order)}, {cells[method].estimate}, "
        f"{_better(cells[method])} than random; the best is {order[0]}, {cells[order[0]].estimate}."
    )


def _cost(result: BeyondResult, method: str) -> str:
    """What a method costs against occlusion, and when gates have paid for their training."""
    seconds = result.classifier.seconds
    costs = (
        f"{method} takes {_milliseconds(seconds[method])} ms per text, occlusion {_milliseconds(seconds['occlusion'])}"
    )
    if method != "diff_mask":
        return f"{costs}."
    once, saved = result.seconds["gates"], seconds["occlusion"] - seconds[method]
    paid = f"after {once / saved:,.0f} texts it is cheaper than occlusion" if saved > 0 else "it is never cheaper"
    return f"{costs}; its gates took {once:,.0f} s to train, so {paid}."


# ------------------------------------------------------------------------------------------------------ directions

IG, RANDOM, SELECTED = "integrated gradients", "random", "A2R, a rationale model"
OURS = {
    IG: ("classifier", "integrated_gradients"),
    RANDOM: ("classifier", "random"),
    SELECTED: ("rationale", "selection"),
}
ORDER = ("auprc", "token_f1", "sufficiency", "comprehensiveness")
DIRECTIONS = (
    (IG, RANDOM, "comprehensiveness"),
    (IG, RANDOM, "sufficiency"),
    (IG, RANDOM, "auprc"),
    (SELECTED, IG, "auprc"),
    (IG, SELECTED, "comprehensiveness"),
)
"""The published direction is that the first is better than the second."""

Direction = tuple[str, str, str]

JUDGED = {"auprc": "roc_auc"}
"""What our side of a direction is judged by, if not by the published metric.

The trapezoids of AUPRC flatter tied scores, and a selection has hardly any others. ROC AUC counts a tie as half: it is
½ for uniform scores, as for random ones.
"""


def _directions(folders: Mapping[str, Path], metrics: Sequence[str]) -> dict[Direction, Difference]:
    """The paired differences that the directions are about, tested together."""
    asked = [one for one in DIRECTIONS if one[2] in metrics]

    def values(name: str, metric: str) -> np.ndarray:
        model, method = OURS[name]
        return _values(folders[model], method, JUDGED.get(metric, metric))

    return dict(zip(asked, differences([values(a, m) - values(b, m) for a, b, m in asked]), strict=True))


def _values(folder: Path, method: str, metric: str) -> np.ndarray:
    """One number per text, in the order of the texts; NaN where the metric is undefined."""
    column = Run(folder, read_manifest(folder)).dataset.to_table(columns=[metric]).column(metric).combine_chunks()
    return column.field(method).to_numpy(zero_copy_only=False).astype(float)


def directions(result: BeyondResult) -> list[dict[str, Any]]:
    """The published directions beside ours: one holds where the paired difference is significant in the same order."""
    return [_direction(result, direction, difference) for direction, difference in result.directions.items()]


def _direction(result: BeyondResult, direction: Direction, difference: Difference) -> dict[str, Any]:
    better, worse, metric = direction
    cells = [_cell(result, name, JUDGED.get(metric, metric)) for name in (better, worse)]
    return {
        "metric": metric,
        "judged_by": JUDGED.get(metric, metric),
        "better": better,
        "worse": worse,
        "published": [PUBLISHED[name][ORDER.index(metric)] for name in (better, worse)],
        "ours": [cell.estimate.mean for cell in cells],
        "difference": asdict(difference),
        "verdict": _verdict(difference, cells[0].better),
    }


def _cell(result: BeyondResult, name: str, metric: str) -> Cell:
    model, method = OURS[name]
    return getattr(result, model).evaluation.cells[method, metric]


def _verdict(difference: Difference, better: Better) -> str:
    """Whether the first of two is significantly better than the second."""
    if not difference.clear:
        return "undecided"
    return "holds" if (difference.mean > 0) == (better == "higher") else "does not hold"
