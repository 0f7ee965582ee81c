"""The training loop: a generator of epochs that can be stopped and resumed."""

import json
import shutil
from collections.abc import Callable, Container, Generator, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from salience.core.executor import Executor
from salience.core.files import complete_folder, read_object
from salience.core.rows import lengths
from salience.core.shares import count_of
from salience.core.text import Encoded
from salience.core.types import Model
from salience.data.examples import Example, encode_examples
from salience.errors import BadInput, BadModel, Diverged
from salience.models.identity import digest
from salience.models.loading import as_model
from salience.training.objectives import TASK, UNKNOWN, Objective, Step

BATCHES_PER_WINDOW = 32
"""Batches whose texts are sorted by length together, to reduce padding."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Hyperparameters of training: AdamW with linear warm-up and linear decay of the learning rate."""

    epochs: int = 3
    batch: int = 32
    rate: float = 2e-5
    warmup: float = 0.1
    """Fraction of all steps."""
    decay: float = 0.01
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name}={getattr(self, name)} must be at least 1")
        if not self.rate > 0:
            raise BadInput(f"rate={self.rate} must be above 0")

    def rate_at(self, step: int, total: int) -> float:
        """The learning rate of a step, counted from 0: linear warm-up to ``rate``, then linear decay to 0."""
        warm = count_of(self.warmup, total)
        return self.rate * min((step + 1) / warm, (total - step) / max(1, total - warm))


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Progress of training, reported after every step."""

    epoch: int
    step: int
    of: int
    loss: float


@dataclass(frozen=True, slots=True)
class Epoch:
    """The result of one pass over the examples: the mean loss and weight of each term, by name."""

    number: int
    losses: Mapping[str, float]
    weights: Mapping[str, float]
    seconds: float
    measures: Mapping[str, float] = field(default_factory=dict[str, float])
    """Measured by probes at the end of the epoch."""
    steps: Mapping[int, Mapping[str, float]] = field(default_factory=dict[int, Mapping[str, float]])
    """Measured by probes at steps within the epoch, by number of completed steps."""

    @property
    def task(self) -> float:
        """The task loss, or 0 if the objective has none."""
        return self.losses.get(TASK.name, 0.0)

    @property
    def penalty(self) -> float:
        """The unweighted sum of all terms except the task."""
        return sum(loss for name, loss in self.losses.items() if name != TASK.name)


Measure = Callable[[Model], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Probe:
    """A measurement taken during training: after every epoch, or after each number of steps in ``steps``.

    Step 0 is before the first update.

    >>> 200 in Probe(lambda model: {}, steps=range(0, 1001, 100)).steps
    True
    """

    measure: Measure
    steps: Container[int] | None = None


@dataclass(frozen=True, slots=True)
class Recorder:
    """Records something of the model elsewhere, such as in a file, after each number of steps in ``steps``.

    ``record`` is called with the model and the number of steps; step 0 is before the first update. A training that is
    resumed calls it again for steps after the checkpoint, with the same model.
    """

    record: Callable[[Model, int], None]
    steps: Container[int]


def fit(
    model: object,
    examples: Sequence[Example],
    *,
    encoded: Sequence[Encoded] | None = None,
    objective: Objective = Objective(),  # noqa: B008
    recipe: Recipe = Recipe(),  # noqa: B008
    probes: Sequence[Probe | Recorder] = (),
    report: Callable[[TrainingProgress], None] | None = None,
    folder: str | Path | None = None,
    save_every: int | None = None,
    refresh: Callable[[Model, Sequence[Example]], Sequence[Example]] | None = None,
    batches: Callable[[int], Sequence[Sequence[int]]] | None = None,
) -> Iterator[Epoch]:
    """Train the model in place, one epoch at a time: a loaded model, a ``(model, tokenizer)`` pair or a pipeline.

    With a ``folder``, a checkpoint is saved there after every epoch and, unless ``refresh`` is used, every
    ``save_every`` steps. Called again with the same arguments, training resumes from the checkpoint and ends with the
    same weights. ``probes`` measure or record the model after epochs or at chosen steps, and ``report`` is called after
    every step. ``encoded`` overrides how the examples' texts are tokenised. ``refresh`` returns the examples with new
    guides before every epoch except the first; it must not change their number or texts. ``batches`` returns, for an
    epoch counted from 1, the places of the examples that each step reads; every epoch has as many steps. By default
    each example is read once, among others of similar length.

    >>> for epoch in fit(model, examples, objective=regularised(penalty, weight=1.0)): ...        # doctest: +SKIP
    """
    model = _trainable(model, examples)
    tokens = encode_examples(model, examples) if encoded is None else encoded
    place = None if folder is None else Path(folder)
    identity = "" if place is None else training_digest(model, [*examples, *(encoded or ())], objective, recipe)
    with model.executor.lock:  # a pass of another thread freezes the parameters
        read = partial(order, tokens, recipe) if batches is None else batches
        state = State.begin(model, identity, len(read(1)), recipe)
    if place is not None:
        state.resume(place)
    yield from state.history
    for number in range(len(state.history) + 1, recipe.epochs + 1):
        if refresh is not None and number > 1:
            examples = refresh(model, examples)
        update = partial(_update, model, examples, tokens, objective, state, place)
        # Refreshed guides depend on the model at the start of the epoch, which a checkpoint does not hold.
        often = None if refresh else save_every
        yield one_epoch(model, state, read(number), update, probes, report, place, often)


def one_epoch(
    model: Model,
    state: "State",
    batches: Sequence[Sequence[int]],
    update: "Callable[[Sequence[int]], Update]",
    probes: Sequence[Probe | Recorder],
    report: Callable[[TrainingProgress], None] | None,
    place: Path | None,
    save_every: int | None,
) -> Epoch:
    """Update the model from the batches of one epoch that are not done yet, with its measurements and checkpoints."""
    began, number = monotonic(), len(state.history) + 1
    state.measure(model, probes, only=0)
    with training_mode(model), own_random_numbers(model):
        for rows in batches[state.step - (number - 1) * state.per_epoch :]:
            result = update(rows)
            state.add(result)
            state.measure(model, probes)
            if report is not None:
                report(TrainingProgress(number, state.step, state.total, result.loss))
            if place is not None and save_every and state.step % save_every == 0:
                state.save(place)
    measures = {k: v for p in _measuring(probes) if p.steps is None for k, v in p.measure(model).items()}
    state.close(number, monotonic() - began, measures)
    if place is not None:
        state.save(place)
    return state.history[-1]


def _measuring(probes: Sequence[Probe | Recorder]) -> list[Probe]:
    return [p for p in probes if isinstance(p, Probe)]


def _trainable(model: object, examples: Sequence[Example]) -> Model:
    """The model, if there is something to train it on and it is at hand to be trained in place."""
    if not examples:
        raise BadInput("there is nothing to train on: pass at least one example")
    if isinstance(model, str | Path):
        raise BadInput(f"a model is trained in place, so load it first: model = salience.load({str(model)!r})")
    return as_model(model)


@dataclass(frozen=True, slots=True)
class Update:
    """The losses and weights of one step, by term."""

    losses: Mapping[str, float]
    weights: Mapping[str, float]

    @property
    def loss(self) -> float:
        return sum(self.weights[name] * loss for name, loss in self.losses.items())


def _update(
    model: Model,
    examples: Sequence[Example],
    encoded: Sequence[Encoded],
    objective: Objective,
    state: "State",
    place: Path | None,
    rows: Sequence[int],
) -> Update:
    """Update the model from one batch, split to fit the token budget; each term is averaged over the whole batch."""
    weights = {**objective.weights_at(state.step / max(1, state.total - 1)), **state.weights}
    chosen, tokens = [examples[i] for i in rows], [encoded[i] for i in rows]
    counts = objective.counts(labels_of(model, chosen), guides_of(chosen, tokens, model.words.weight.device))
    losses = dict.fromkeys(objective.names, 0.0)

    def work(items: list[int]) -> tuple[Sequence[Tensor | None], dict[str, float]]:
        part = [chosen[i] for i in items]
        terms = objective(step_of(model, part, [tokens[i] for i in items], objective))
        means = {name: total / max(1, counts[name]) for name, total in terms.items()}
        loss = sum((weights[name] * mean for name, mean in means.items()), torch.zeros(()))
        if not bool(torch.isfinite(loss)):
            raise Diverged(diverged(state, [e.id for e in part], place))
        # backward() would leave partial gradients behind if it ran out of memory.
        gradients = torch.autograd.grad(loss, state.learning, allow_unused=True)
        return gradients, {name: float(mean.detach()) for name, mean in means.items()}

    with model.executor.lock:
        state.seed_step()
        state.optimiser.zero_grad()
        for _, (gradients, means) in state.executor.run(lengths(tokens), work):
            _accumulate(state.learning, gradients)
            losses = {name: losses[name] + mean for name, mean in means.items()}
        state.descend([e.id for e in chosen], place)
        state.ascend(objective, weights, losses)
    return Update(losses, weights)


def _accumulate(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


def diverged(state: "State", ids: Sequence[str], place: Path | None, what: str = "loss") -> str:
    saved = f" The last checkpoint is saved in {place}." if place is not None and _checkpoints(place) else ""
    texts = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
    return (
        f"the {what} is not a number at step {state.step + 1} of {state.total}, in the texts {texts}.{saved} A lower "
        "learning rate or a smaller weight usually helps."
    )


def step_of(model: Model, examples: Sequence[Example], encoded: Sequence[Encoded], objective: Objective) -> Step:
    """Run the model on some examples and collect what the objective needs."""
    batch = model.batch(encoded)
    guide = guides_of(examples, encoded, batch.ids.device)
    return objective.step(model, batch, labels_of(model, examples), guide)


def labels_of(model: Model, examples: Sequence[Example]) -> Tensor:
    """The labels as a tensor: columns of the logits, 0/1 per label (multi-label), or values (regression)."""
    device = model.words.weight.device
    if model.link == "softmax":
        return torch.tensor([UNKNOWN if e.label is None else _column(model, e) for e in examples], device=device)
    return torch.tensor([_columns(model, e) for e in examples], dtype=torch.float32, device=device)


def _column(model: Model, example: Example) -> int:
    if isinstance(example.label, str | int):
        return model.resolve(example.label)
    raise BadInput(f"the label of {example.id!r} is {example.label!r}; {model.name} learns one label per text")


def _columns(model: Model, example: Example) -> list[float]:
    label, count = example.label, len(model.labels)
    if label is None:
        return [float(UNKNOWN)] * count
    if model.link == "identity":
        if isinstance(label, int | float):
            return [float(label)]
        raise BadInput(
            f"the label of {example.id!r} is {label!r}; {model.name} is a regression model and needs a number"
        )
    labels = [label] if isinstance(label, str | int) else label
    if isinstance(labels, float):
        raise BadInput(f"the label of {example.id!r} is {label!r}; expected a label name or an integer")
    positive = {model.resolve(one) for one in labels}
    return [float(i in positive) for i in range(count)]


def guides_of(examples: Sequence[Example], encoded: Sequence[Encoded], device: torch.device) -> Tensor:
    """The guides as one padded tensor; zeros for examples without a guide."""
    width = max(map(len, encoded))
    per_label = max((len(e.guide) for e in examples if e.guide and isinstance(e.guide[0], tuple)), default=0)
    rows: list[Any] = []
    for example, tokens in zip(examples, encoded, strict=True):
        empty = (0.0,) * len(tokens)
        guide: Any = example.guide or ((empty,) * per_label if per_label else empty)
        each = guide if per_label else (guide,)
        if any(len(one) != len(tokens) for one in each):
            raise BadInput(f"the guide of {example.id!r} must have one weight for each of its {len(tokens)} tokens")
        rows.append([[*one, *(0.0,) * (width - len(one))] for one in each])
    guides = torch.tensor(rows, dtype=torch.float32, device=device)
    return guides if per_label else guides[:, 0]


def order(encoded: Sequence[Sized], recipe: Recipe, epoch: int) -> list[list[int]]:
    """The batches of an epoch in random order; within a window, texts are sorted by length before batching."""
    rng = torch.Generator().manual_seed(recipe.seed * 1_000_003 + epoch)
    shuffled = torch.randperm(len(encoded), generator=rng).tolist()
    batches: list[list[int]] = []
    for start in range(0, len(shuffled), BATCHES_PER_WINDOW * recipe.batch):
        window = sorted(shuffled[start : start + BATCHES_PER_WINDOW * recipe.batch], key=lambda i: -len(encoded[i]))
        batches += [window[at : at + recipe.batch] for at in range(0, len(window), recipe.batch)]
    return [batches[i] for i in torch.randperm(len(batches), generator=rng).tolist()]


@contextmanager
def training_mode(model: Model) -> Generator[None]:
    """Put the model in training mode, and restore its modes afterwards; a pass of another thread changes them too."""
    module, lock = model.module, model.executor.lock
    with lock:
        modes = [(part, part.training) for part in module.modules()]
        module.train()
    try:
        yield
    finally:
        with lock:
            for part, mode in modes:
                part.training = mode


def own_random_numbers(model: Model) -> AbstractContextManager[None]:
    """Seed each training step without changing the caller's random state."""
    device = model.words.weight.device
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


# ------------------------------------------------------------------------------------------------------ checkpoints


@dataclass(slots=True)
class State:
    """The mutable state of a training run."""

    module: nn.Module
    recipe: Recipe
    digest: str
    per_epoch: int
    learning: list[nn.Parameter]
    optimiser: torch.optim.Optimizer
    executor: Executor
    """Training's own, whose budget is saved: dropout depends on how a batch is split."""
    step: int = 0
    sums: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Sums of losses and weights over the steps of this epoch, by term."""
    measured: dict[int, dict[str, float]] = field(default_factory=dict[int, dict[str, float]])
    """Measured by probes at steps of this epoch."""
    history: list[Epoch] = field(default_factory=list[Epoch])
    multipliers: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """The multiplier of each constraint, and its moving average."""

    @classmethod
    def begin(cls, model: Model, digest: str, per_epoch: int, recipe: Recipe) -> "State":
        learning = [p for p in model.module.parameters() if p.requires_grad]
        # A step that is not fused takes as long as the passes where most parameters are word embeddings.
        optimiser = torch.optim.AdamW(_groups(model.module, recipe.decay), lr=recipe.rate, fused=True)
        return cls(model.module, recipe, digest, per_epoch, learning, optimiser, Executor(model.executor.budget))

    @property
    def total(self) -> int:
        return self.per_epoch * self.recipe.epochs

    def seed_step(self) -> None:
        """Seed the random numbers of this step, such as those of dropout."""
        seed = self.recipe.seed * 1_000_003 + self.step
        if all(p.device.type == "cpu" for p in self.learning):
            # torch.manual_seed also formats a stack for every kind of device, a tenth of the time of a small step.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def descend(self, ids: Sequence[str], place: Path | None) -> None:
        """Step along the gradients, clipped, at the learning rate of this step."""
        norm = nn.utils.clip_grad_norm_(self.learning, self.recipe.clip)
        if not bool(torch.isfinite(norm)):
            raise Diverged(diverged(self, ids, place, what="gradient"))
        for group in self.optimiser.param_groups:
            group["lr"] = self.recipe.rate_at(self.step, self.total)
        self.optimiser.step()

    @property
    def weights(self) -> dict[str, float]:
        """The multipliers of the constraints, by term."""
        return {name: weight for name, (weight, _) in self.multipliers.items()}

    def ascend(self, objective: Objective, weights: Mapping[str, float], losses: Mapping[str, float]) -> None:
        """Change the multipliers of the constraints by how far this step was from them."""
        for name, ascent in objective.ascents.items():
            weight, average = self.multipliers.get(name, [weights[name], 0.0])
            self.multipliers[name] = list(ascent(weight, average, losses[name]))

    def add(self, update: Update) -> None:
        self.step += 1
        for name, loss in update.losses.items():
            losses, weights = self.sums.get(name, [0.0, 0.0])
            self.sums[name] = [losses + loss, weights + update.weights[name]]

    def measure(self, model: Model, probes: Sequence[Probe | Recorder], only: int | None = None) -> None:
        """Run the probes due at this step; with ``only``, do so at that step alone."""
        if only is not None and self.step != only:
            return
        for p in probes:
            if isinstance(p, Recorder) and self.step in p.steps:
                p.record(model, self.step)
        due = [p for p in _measuring(probes) if p.steps is not None and self.step in p.steps]
        if due and self.step not in self.measured:
            self.measured[self.step] = {k: v for p in due for k, v in p.measure(model).items()}

    def close(self, number: int, seconds: float, measures: Mapping[str, float]) -> None:
        losses, weights = ({k: s[i] / self.per_epoch for k, s in self.sums.items()} for i in range(2))
        self.history.append(Epoch(number, losses, weights, seconds, dict(measures), self.measured))
        self.sums, self.measured = {}, {}

    def save(self, folder: Path) -> None:
        """Write a checkpoint atomically, then delete older ones."""
        into = folder / f"checkpoint-{self.step:07d}-{len(self.history):03d}"
        with complete_folder(into) as part:
            save_file(_tensors(self.module), part / "model.safetensors")
            slots = {f"{i}.{name}": t for i, s in self._slots().items() for name, t in s.items()}
            save_file(slots, part / "state.safetensors")
            facts = {
                "digest": self.digest,
                "budget": self.executor.budget,
                "step": self.step,
                "sums": self.sums,
                "measured": self.measured,
                "history": list(map(asdict, self.history)),
                "multipliers": self.multipliers,
            }
            (part / "state.json").write_text(json.dumps(facts), "utf-8")
        for old in _checkpoints(folder):
            if old != into:
                shutil.rmtree(old)

    def _slots(self) -> dict[int, dict[str, Tensor]]:
        """The optimiser's state of each parameter."""
        state: Any = self.optimiser.state_dict()["state"]
        return {
            i: {name: torch.as_tensor(value).contiguous() for name, value in slot.items()} for i, slot in state.items()
        }

    def resume(self, folder: Path) -> None:
        """Load the newest checkpoint, if there is one; refuse a checkpoint of a different training run."""
        if not (checkpoints := _checkpoints(folder)):
            return
        newest = checkpoints[-1]
        facts, stored, slots = _read_checkpoint(newest)
        if facts["digest"] != self.digest:
            raise BadInput(
                f"{folder} holds a checkpoint of another model, or with other examples, recipe or objective. Use "
                "another folder, or delete this one to start over."
            )
        with torch.no_grad():
            for name, values in _tensors(self.module).items():
                values.copy_(stored[name])
        state: dict[int, dict[str, Tensor]] = {}
        for name, values in slots.items():
            number, _, slot = name.partition(".")
            state.setdefault(int(number), {})[slot] = values
        whole: Any = self.optimiser.state_dict()
        self.optimiser.load_state_dict({**whole, "state": state})
        self.executor.budget, self.step, self.sums = facts["budget"], facts["step"], facts["sums"]
        self.measured, self.multipliers = _by_step(facts["measured"]), facts.get("multipliers", {})
        self.history = [epoch_from(stored) for stored in facts["history"]]


def _groups(module: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Parameter groups: weight decay for matrices, none for biases and norms."""
    learning = [p for p in module.parameters() if p.requires_grad]
    matrices, vectors = ([p for p in learning if (p.dim() > 1) == matrix] for matrix in (True, False))
    return [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, with shared tensors listed once."""
    tensors: dict[int, tuple[str, Tensor]] = {}
    for name, values in module.state_dict().items():
        tensors.setdefault(values.data_ptr() if values.numel() else id(values), (name, values.contiguous()))
    return dict(tensors.values())


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*")) if folder.is_dir() else []


def _read_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """The facts, the weights and the state of the optimiser."""
    try:
        weights, slots = (load_file(folder / f"{name}.safetensors") for name in ("model", "state"))
        return read_object(folder / "state.json"), weights, slots
    except (OSError, ValueError, SafetensorError) as error:
        raise BadModel(f"the checkpoint {folder} is damaged: {error}. Delete it to train from the start.") from error


def _by_step(stored: Mapping[str, Any]) -> dict[int, Any]:
    """Convert JSON keys back to step numbers."""
    return {int(step): measures for step, measures in stored.items()}


def epoch_from(stored: Mapping[str, Any]) -> Epoch:
    """Restore an epoch from its JSON form."""
    return replace(Epoch(**stored), steps=_by_step(stored["steps"]))


def training_digest(model: Model, examples: Sequence[Example | Encoded], objective: Objective, recipe: Recipe) -> str:
    """A hash of everything that determines the result of training."""
    result = blake2b(digest(model).encode(), digest_size=16)
    terms = [
        (
            *(t.name, _named(t.loss), _named(t.over), t.weight, t.schedule, sorted(t.settings.items())),
            *([] if t.ascent is None else [t.ascent]),
        )
        for t in objective.terms
    ]
    reference = None if objective.reference is None else digest(objective.reference)
    imposed = () if objective.impose is None else (_named(objective.impose),)
    for value in (recipe, terms, reference, *imposed, *examples):
        result.update(repr(value).encode())
    return result.hexdigest()


def _named(function: object) -> str:
    return getattr(function, "__qualname__", repr(function))


Make = Callable[[int], Model]
"""(seed) -> a new model to train."""
