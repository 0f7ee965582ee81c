"""Beyond saliency of tokens: what learned masks and rationale models add to it, and what they cost.

On each data set one classifier is trained, and explained by attention, by saliency methods and by gates that were
trained for it (DiffMask); beside it, a model that selects its own input is trained from the same start. All are
measured for faithfulness, plausibility and cost in one table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from salience.core.types import Model
from salience.data.examples import Example, sampled
from salience.evaluation.table import Evaluation
from salience.models.loading import load
from salience.papers.compared import Comparison, compare
from salience.training.diffmask import RECIPE as GATES
from salience.training.diffmask import train_gates
from salience.training.loop import Epoch, Recipe, TrainingProgress
from salience.training.rationale_models import RationaleResult, RationaleTraining, train_rationale_model

METHODS = ("attention", "gradient", "input_x_gradient", "integrated_gradients", "occlusion", "diff_mask")
"""Of the classifier. Interactions, summed to tokens, belong here too."""

SELECTING = ("selection", "input_x_gradient")
"""Of the rationale model."""

FAITHFULNESS, PLAUSIBILITY = ("comprehensiveness", "sufficiency"), ("token_f1", "auprc")

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
    """Functions called at each stage and training step."""

    stage: Callable[[str], None] = field(default=lambda _: None)
    step: Callable[[TrainingProgress], None] | None = None


@dataclass(frozen=True, slots=True)
class BeyondResult:
    """The results on one data set: two comparisons, and what was trained for them."""

    data: str
    classifier: Comparison
    rationale: Comparison
    accuracy: Mapping[str, float]
    selected: float
    """Share of the tokens that the rationale model reads."""
    seconds: Mapping[str, float]
    """Of each training."""


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
    shared: dict[str, Any] = {"tests": {data: test}}

    def trained(name: str, training: RationaleTraining) -> RationaleResult:
        callbacks.stage(f"{data}: training the {name}")
        return train_rationale_model(model, texts, place / name, training, **shared)

    plain = trained("classifier", RationaleTraining(None, recipe=size.recipe))
    rationale = trained("rationale-model", RationaleTraining("hardkuma", size.rate, recipe=size.recipe))
    classifier = load(plain.model)
    callbacks.stage(f"{data}: training the gates")
    gates = train_gates(classifier, [e.text for e in texts], place / "gates", recipe=size.gates, report=callbacks.step)
    callbacks.stage(f"{data}: measuring")
    compared = _compared(classifier, data, held_out, METHODS, gates=str(gates.folder))
    trainings = {"classifier": plain.epochs, "rationale model": rationale.epochs, "gates": gates.epochs}
    return BeyondResult(
        data,
        compared,
        _compared(load(rationale.model), data, held_out, SELECTING),
        {name: result.tests[data]["accuracy"] for name, result in (("classifier", plain), ("rationale", rationale))},
        rationale.tests[data]["selected"],
        {name: _seconds(epochs) for name, epochs in trainings.items()},
    )


def _compared(model: Model, data: str, texts: Sequence[Example], methods: Sequence[str], **settings: Any) -> Comparison:
    metrics = (*FAITHFULNESS, *(PLAUSIBILITY if any(e.rationale for e in texts) else ()))
    return compare(model, data, texts, methods, metrics, **{f"diff_mask.{k}": v for k, v in settings.items()})


def _seconds(epochs: Sequence[Epoch]) -> float:
    return sum(epoch.seconds for epoch in epochs)


# ------------------------------------------------------------------------------------------------------ the table


def rows(result: BeyondResult) -> list[dict[str, Any]]:
    """One row per explanation: its model, its scores by metric, and its seconds per text."""
    return [
        {
            "model": name,
            "method": method,
            **{m: comparison.evaluation.cells[method, m].estimate.mean for m in comparison.evaluation.metrics},
            "seconds": comparison.seconds.get(method),
        }
        for name, comparison in (("classifier", result.classifier), ("rationale model", result.rationale))
        for method in comparison.evaluation.methods
    ]


def table(result: BeyondResult) -> tuple[list[str], list[list[str]]]:
    """The rows as text, below their heads."""
    metrics = list(result.classifier.evaluation.metrics)
    heads = ["model", "method", *metrics, "ms per text"]
    lines = [
        [row["model"], row["method"], *(f"{row[m]:.3f}" for m in metrics), _milliseconds(row["seconds"])]
        for row in rows(result)
    ]
    return heads, lines


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.1f}"


def answer(result: BeyondResult) -> list[str]:
    """What each kind of explanation adds, and what it costs, in words."""
    evaluation, seconds = result.classifier.evaluation, result.classifier.seconds
    sentences = [_against(evaluation, metric) for metric in evaluation.metrics]
    once = result.seconds["gates"]
    dearer = seconds["occlusion"] - seconds["diff_mask"]
    paid = f"after {once / dearer:,.0f} texts it is cheaper than occlusion" if dearer > 0 else "it never pays off"
    kept = result.accuracy["rationale"] - result.accuracy["classifier"]
    return [
        *sentences,
        f"diff_mask takes {_milliseconds(seconds['diff_mask'])} ms per text, occlusion "
        f"{_milliseconds(seconds['occlusion'])}; its gates took {once:,.0f} s to train, so {paid}.",
        f"The rationale model reads {result.selected:.0%} of the tokens; its accuracy is "
        f"{result.accuracy['rationale']:.3f}, {kept:+.3f} from the classifier of whole texts.",
    ]


def _against(evaluation: Evaluation, metric: str) -> str:
    """Where DiffMask stands among the methods of the classifier."""
    cells = {name: evaluation.cells[name, metric].estimate.mean for name in METHODS if name in evaluation.methods}
    higher = evaluation.cells["diff_mask", metric].better == "higher"
    order = sorted(cells, key=lambda name: -cells[name] if higher else cells[name])
    place = order.index("diff_mask") + 1
    return (
        f"{metric}: diff_mask is number {place} of {len(order)} ({cells['diff_mask']:.3f}); the best is {order[0]} "
        f"({cells[order[0]]:.3f})."
    )
