"""Twins: models trained on the same texts as another, but with other weights, another shape or another objective.

Each twin is trained once and kept in a folder. A training that is stopped resumes from its last checkpoint.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from salience.core.files import complete_folder, read_object
from salience.core.passes import exclusive
from salience.core.rows import each_text
from salience.core.types import Batch, Model
from salience.data.examples import Example, encode_examples, sampled
from salience.errors import BadModel, SalienceError
from salience.models.loading import load
from salience.training.loop import Recipe, Recorder, TrainingProgress, fit, step_of, training_digest
from salience.training.objectives import Objective, Step

SAVE_EVERY = 200
"""Steps between the checkpoints of a training."""


@runtime_checkable
class Reshapes(Protocol):
    """A model that can be created anew with other weights, and in another shape."""

    def fresh(self, labels: Sequence[str], seed: int, **changes: Any) -> Model:
        """Create an untrained model, with these changes of its configuration."""
        ...


def start_of(model: Model, seed: int, **changes: Any) -> Model:
    """Return the model that a twin starts from: untrained, or a copy of the model if it cannot be created anew."""
    if isinstance(model, Reshapes):
        return model.fresh(model.labels, seed, **changes)
    return deepcopy(model)


@dataclass(frozen=True, slots=True, eq=False)
class Twins:
    """Trains twins on some examples and keeps them in a folder, by name."""

    folder: Path
    examples: Sequence[Example]
    recipe: Recipe
    report: Callable[[str, TrainingProgress], None] | None = None
    """Called with the name of the twin after every step."""

    def __call__(
        self,
        name: str,
        start: Callable[[], Model],
        objective: Objective = Objective(),  # noqa: B008
        *,
        examples: Sequence[Example] | None = None,
        seed: int = 0,
        recorders: Sequence[Recorder] = (),
    ) -> Model:
        """Return the twin: from the folder, or trained from the model that ``start`` creates.

        ``examples`` replaces the examples to train on; ``seed`` is that of their order and of dropout. ``recorders``
        follow the training; a twin from the folder calls none.
        """
        model, data = start(), self.examples if examples is None else examples
        recipe = replace(self.recipe, seed=seed)
        facts = {"digest": training_digest(model, data, objective, recipe)}
        place = self.folder / name
        if _facts(place) != facts:
            self._train(name, model, data, objective, recipe, facts, recorders)
        return _loaded(place, model)

    def has(self, name: str) -> bool:
        """Whether a twin of this name is in the folder."""
        return _facts(self.folder / name) is not None

    def forget(self, name: str) -> None:
        """Delete a twin and the checkpoints of its training."""
        for place in (self.folder / name, self.folder / f"{name}.training"):
            if place.exists():
                shutil.rmtree(place)

    def _train(
        self,
        name: str,
        model: Model,
        data: Sequence[Example],
        objective: Objective,
        recipe: Recipe,
        facts: dict[str, Any],
        recorders: Sequence[Recorder],
    ) -> None:
        report = self.report
        follow = None if report is None else lambda progress: report(name, progress)  # pyright: ignore
        checkpoints = self.folder / f"{name}.training"
        if _other(checkpoints, facts):
            shutil.rmtree(checkpoints)
        checkpoints.mkdir(parents=True, exist_ok=True)
        (checkpoints / "twin.json").write_text(json.dumps(facts), "utf-8")
        epochs = list(
            fit(
                model,
                data,
                objective=objective,
                recipe=recipe,
                probes=recorders,
                report=follow,
                folder=checkpoints,
                save_every=SAVE_EVERY,
            )
        )
        with complete_folder(self.folder / name) as part:
            model.save(part)
            (part / "epochs.json").write_text(json.dumps([asdict(epoch) for epoch in epochs]), "utf-8")
            (part / "twin.json").write_text(json.dumps(facts), "utf-8")
        shutil.rmtree(checkpoints)


def _facts(place: Path) -> dict[str, Any] | None:
    """What the folder of a twin says it was trained from; None if there is no such folder."""
    file = place / "twin.json"
    try:
        return read_object(file) if file.exists() else None
    except ValueError as error:
        raise BadModel(f"{file} is damaged: {error}. Delete {place} to train it again.") from error


def _other(checkpoints: Path, facts: dict[str, Any]) -> bool:
    """Whether the checkpoints are those of another training, which nobody can resume any more."""
    return checkpoints.is_dir() and _facts(checkpoints) != facts


def _loaded(place: Path, start: Model) -> Model:
    weight = start.words.weight
    try:
        return load(place, device=str(weight.device), dtype=str(weight.dtype).removeprefix("torch."))
    except SalienceError as error:
        raise BadModel(f"the twin in {place} is damaged: {error}. Delete that folder to train it again.") from error


# ------------------------------------------------------------------------------------------------------ on other texts


def steps(model: Model, examples: Sequence[Example], objective: Objective, read: Callable[[Step], Tensor]) -> Tensor:
    """Return what ``read`` reads of every text, from passes like those of training but with a frozen model."""
    encoded = encode_examples(model, examples)

    def work(batch: Batch, items: list[int]) -> list[Tensor]:
        with exclusive(model), torch.no_grad():
            step = step_of(model, [examples[i] for i in items], [encoded[i] for i in items], objective)
            return list(read(step).cpu())

    return torch.stack(each_text(model, encoded, work))


def probabilities(
    model: Model,
    examples: Sequence[Example],
    objective: Objective = Objective(),  # noqa: B008
) -> Float[Tensor, "n c"]:
    """Return the predicted distribution of every text, with the attention that the objective imposes, if any."""
    return steps(model, examples, objective, lambda step: step.output.logits.float().softmax(-1))


# ------------------------------------------------------------------------------------------------------ time

TIMED = 6
"""Steps that are timed to estimate how long a training takes, after two to warm up."""


def seconds_per_training(model: Model, examples: Sequence[Example], recipe: Recipe) -> float:
    """Estimate how long it takes to train a twin, from a few steps of a copy."""
    few = sampled(examples, (TIMED + 2) * recipe.batch)
    times: list[float] = []
    short = replace(recipe, epochs=1)
    for _ in fit(start_of(model, 0), few, recipe=short, report=lambda _: times.append(monotonic())):
        pass
    timed = times[2:] if len(times) > 3 else times
    per_step = (timed[-1] - timed[0]) / (len(timed) - 1) if len(timed) > 1 else 0.0
    return per_step * recipe.epochs * -(-len(examples) // recipe.batch)
