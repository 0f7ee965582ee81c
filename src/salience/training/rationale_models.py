"""Training of rationale models: as accurate as can be, from a given share of the tokens."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from salience.core.files import claim, fingerprint, locked, write_json
from salience.core.passes import forward
from salience.core.rows import each_text
from salience.core.types import Batch, Model
from salience.data import Source
from salience.data.examples import Example, encode_examples, examples, labels_in, sampled
from salience.errors import BadInput, choose
from salience.models.loading import load, load_to_train
from salience.models.rationale import KINDS, Rationale, RationaleKind
from salience.training.distillation import Callbacks, save_model
from salience.training.loop import Epoch, Probe, Recipe, epoch_from, fit
from salience.training.monitors import accuracy
from salience.training.multipliers import DampedAscent
from salience.training.objectives import TASK, Objective, Step, Term, every, labelled, task_loss

ASCENT = DampedAscent(rate=0.2, damping=10.0, smoothing=0.7, high=5.0)
"""How the multiplier of the rate changes. The update of the paper, λ · exp(0.01 c̄) from 1e-4, takes thousands of steps.

Until λ has grown, its models select all tokens, and then too few; both ends are flat, and a generator leaves them
slowly or not at all. Here training starts at the rate, and the multiplier holds it there.
"""

CALIBRATED = 1000
"""Training texts that the threshold of a finished model is set on."""

Texts = Source | Sequence[Example]
SAVE_EVERY = 500
"""Steps between checkpoints within an epoch."""


# ------------------------------------------------------------------------------------------------------ the objective


def excess_rate(step: Step, *, rate: float) -> Float[Tensor, " b"]:
    """The constraint on the expected share of selected tokens: mean_t P(z_t ≠ 0) − rate = 0."""
    return _nonzero(step).sum(1) / step.batch.content.sum(1).clamp_min(1) - rate


def incoherence(step: Step) -> Float[Tensor, " b"]:
    """The expected share of neighbours of which one is selected: P(z_t = 0) P(z_t+1 ≠ 0) + P(z_t ≠ 0) P(z_t+1 = 0)."""
    p, pairs = _nonzero(step), step.batch.content[:, 1:] & step.batch.content[:, :-1]
    changes = (1 - p[:, :-1]) * p[:, 1:] + p[:, :-1] * (1 - p[:, 1:])
    return (changes * pairs).sum(1) / step.batch.content.sum(1).clamp_min(1)


def reinforced_task(step: Step) -> Float[Tensor, " b"]:
    """The task loss, whose gradient has REINFORCE's part: (L − L̄) ∇ log p(z | x), with L̄ that of the other texts.

    Paper: Lei et al. 2016, arXiv:1606.04155, section 4; the baseline L̄ reduces the variance and adds no bias
    """
    loss = task_loss(step)
    others = (loss.sum() - loss) / max(1, len(loss) - 1)
    log_p = _log_probability(step)
    return loss + (loss - others).detach() * (log_p - log_p.detach())


def _nonzero(step: Step) -> Float[Tensor, "b t"]:
    assert step.output.selection is not None, "only a rationale model selects tokens"
    return step.output.selection.log_nonzero.exp() * step.batch.content


def _log_probability(step: Step) -> Float[Tensor, " b"]:
    """log p(z | x) of the tokens that were drawn, Σ_t z_t log p_t + (1 − z_t) log(1 − p_t)."""
    assert step.output.selection is not None, "only a rationale model selects tokens"
    z, log_p = step.output.selection.z, step.output.selection.log_nonzero
    log_q = torch.log(-torch.expm1(log_p.clamp_max(-1e-6)))
    return (torch.where(z > 0, log_p, log_q) * step.batch.content).sum(1)


def rationale_objective(kind: RationaleKind, rate: float, coherence: float = 0.0) -> Objective:
    """L_task + λ (share of selected tokens − rate) + coherence · changes, with λ such that the share is the rate.

    ``lei`` estimates the gradient of the expected task loss by REINFORCE; ``hardkuma`` differentiates through z. The
    expectations of the other terms are exact for both.

    Papers: Lei et al. 2016, arXiv:1606.04155, whose λ is constant; Bastings et al. 2019, arXiv:1905.08160
    """
    check_rate(rate)
    if not coherence >= 0:
        raise BadInput(f"coherence={coherence} must be at least 0")
    reinforced = Term(reinforced_task, over=labelled, attention=False, name=TASK.name)
    few = Term(excess_rate, 0.0, settings={"rate": rate}, over=every, attention=False, name="rate", ascent=ASCENT)
    whole = Term(incoherence, coherence, over=every, attention=False)
    task = reinforced if choose(kind, KINDS, "kind of rationale model") == "lei" else TASK
    return Objective((task, few, *([whole] if coherence else [])))


def check_rate(rate: float) -> None:
    """Raise unless the rate is a share of the tokens that a model can select."""
    if not 0 < rate < 1:
        raise BadInput(f"rate={rate} must be above 0 and below 1; it is the share of tokens that are selected")


# ------------------------------------------------------------------------------------------------------ measures


def calibrate(model: Rationale, texts: Sequence[Example], rate: float) -> None:
    """Set the threshold of the model so that it selects this share of the tokens of these texts.

    With the threshold ½, a generator that selects each token with probability 0.2 would select none at all.
    """

    def work(batch: Batch, _: list[int]) -> list[Tensor]:
        chosen = forward(model, batch).selection
        assert chosen is not None
        return [p[content].exp().cpu() for p, content in zip(chosen.log_nonzero, batch.content, strict=True)]

    each = each_text(model, encode_examples(model, texts), work)
    weights = torch.cat([torch.full_like(p, 1 / (len(p) * len(each))) for p in each if len(p)])
    p, order = torch.cat(each).float().sort(descending=True)
    # The threshold lies between the last token that is selected and the next one.
    last = int((weights[order].double().cumsum(0) - rate).abs().argmin())
    after = p[last + 1] if last + 1 < len(p) else torch.zeros(())
    model.module.least.fill_((p[last] + after) / 2)


@dataclass(frozen=True, slots=True)
class SelectionMonitor:
    """Measures a rationale model: ``accuracy``, and ``selected``, the mean share of tokens that it selects."""

    texts: Sequence[Example]

    def __call__(self, model: Model) -> Mapping[str, float]:
        return {"accuracy": accuracy(model, self.texts), "selected": selected(model, self.texts)}


def selected(model: Model, texts: Sequence[Example]) -> float:
    """The mean share of its tokens that a text's selection has; 1 for a model that reads whole texts."""
    return float(np.mean([z.mean() if len(z) else 0.0 for z in selections(model, texts)]))


def selections(model: Model, texts: Sequence[Example]) -> list[Bool[np.ndarray, " t"]]:
    """Which tokens of every text are selected, special ones left out; all of them by a model that reads whole texts."""

    def work(batch: Batch, _: list[int]) -> list[Bool[np.ndarray, " t"]]:
        chosen = forward(model, batch).selection
        z = torch.ones_like(batch.content) if chosen is None else chosen.z > 0
        return [row[content].cpu().numpy() for row, content in zip(z, batch.content, strict=True)]

    return each_text(model, encode_examples(model, texts), work)


# ------------------------------------------------------------------------------------------------------ training


@dataclass(frozen=True, slots=True)
class RationaleTraining:
    """Settings of :func:`train_rationale_model`. Without a ``kind``, the model reads whole texts, for comparison."""

    kind: RationaleKind | None = "hardkuma"
    rate: float = 0.2
    coherence: float = 0.0
    recipe: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        self.objective  # noqa: B018  checks the settings

    @property
    def objective(self) -> Objective:
        return Objective() if self.kind is None else rationale_objective(self.kind, self.rate, self.coherence)


@dataclass(frozen=True, slots=True)
class RationaleResult:
    """A trained rationale model, with the measures of every epoch and of the test sets."""

    folder: Path
    training: RationaleTraining
    epochs: tuple[Epoch, ...]
    tests: Mapping[str, Mapping[str, float]]

    @property
    def model(self) -> Path:
        """The folder that :func:`salience.load` reads."""
        return self.folder / "model"


def train_rationale_model(
    model: str,
    data: Texts,
    out: str | Path,
    training: RationaleTraining = RationaleTraining(),  # noqa: B008
    *,
    validation: Texts = (),
    tests: Mapping[str, Texts] | None = None,
    callbacks: Callbacks = Callbacks(),  # noqa: B008
    **options: Any,
) -> RationaleResult:
    """Train a classifier that reads only what its generator selects, from a model of any family.

    Data are examples, or a source that names its label column. ``validation`` is measured after every epoch and
    ``tests`` at the end. Finished epochs are saved, and the same call resumes. ``options`` are passed to
    :func:`salience.models.load_to_train`.

    >>> train_rationale_model("sentiment", source("train.jsonl", label="label"), "out")       # doctest: +SKIP
    """
    train, held_out = _read(data), _read(validation)
    test_sets = {name: _read(texts) for name, texts in (tests or {}).items()}
    labels, folder = labels_in(train, data.name if isinstance(data, Source) else "the training data"), Path(out)
    facts = {"model": model, "options": options, "training": asdict(training), "data": fingerprint([*train, *held_out])}
    with locked(folder, "training.json"):
        claim(folder / "training.json", json.loads(json.dumps(facts)), "another training")
        if not (folder / "result.json").exists():
            made = load_to_train(model, labels, seed=training.recipe.seed, **options)
            if training.kind is not None:
                made = Rationale.new(made, training.kind, rate=training.rate, seed=training.recipe.seed)
            epochs = _fitted(made, train, held_out, folder, training, callbacks)
            _calibrated(made, train, training)
            save_model(made, folder / "model")
            write_json(folder / "result.json", {"epochs": [asdict(one) for one in epochs]})
            rmtree(folder / ".training", ignore_errors=True)
        stored = json.loads((folder / "result.json").read_text("utf-8"))
        trained = load(folder / "model", **options)
        measured = {name: SelectionMonitor(texts)(trained) for name, texts in test_sets.items()}
    return RationaleResult(folder, training, tuple(map(epoch_from, stored["epochs"])), measured)


def _read(data: Texts) -> Sequence[Example]:
    if not isinstance(data, Source):
        return data
    if data.label is None:
        raise BadInput("the data must name the column of its labels, for example source('train.jsonl', label='label')")
    return examples(data)


def _fitted(
    model: Model,
    train: Sequence[Example],
    held_out: Sequence[Example],
    folder: Path,
    training: RationaleTraining,
    callbacks: Callbacks,
) -> list[Epoch]:
    def measure(trained: Model) -> Mapping[str, float]:
        _calibrated(trained, train, training)
        return SelectionMonitor(held_out)(trained)

    what = "the model of whole texts" if training.kind is None else f"the {training.kind} model, rate {training.rate:g}"
    callbacks.announce(f"training {what}")
    epochs: list[Epoch] = []
    for epoch in fit(
        model,
        train,
        objective=training.objective,
        recipe=training.recipe,
        probes=[Probe(measure)] if held_out else (),
        report=callbacks.step,
        folder=folder / ".training",
        save_every=SAVE_EVERY,
    ):
        epochs.append(epoch)
        if callbacks.epoch is not None:
            callbacks.epoch("model", epoch)
    return epochs


def _calibrated(model: Model, train: Sequence[Example], training: RationaleTraining) -> None:
    if isinstance(model, Rationale):
        calibrate(model, sampled(train, CALIBRATED), training.rate)


def accuracy_against_rate(
    model: str, data: Texts, out: str | Path, training: RationaleTraining, rates: Sequence[float], **options: Any
) -> list[RationaleResult]:
    """Train one rationale model per rate and, as the last one, a model of the same shape that reads whole texts.

    ``options`` are those of :func:`train_rationale_model`.
    """
    trainings = {f"rate-{rate:g}": replace(training, rate=rate) for rate in rates}
    trainings["whole"] = replace(training, kind=None)
    return [train_rationale_model(model, data, Path(out) / name, one, **options) for name, one in trainings.items()]
