"""The training loop: one visible function, a generator of epochs, that goes on where it was stopped."""

import json
import os
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from salience.batching import pack
from salience.errors import BadInput, BadModel
from salience.lessons import Example, read
from salience.objectives import UNKNOWN, Lesson, Objective
from salience.types import Encoded, Model
from salience.work import digest

WINDOW = 32
"""Batches that are drawn at once and sorted by length, so that little is padding."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is trained: AdamW with a linear warm-up and a linear decline."""

    epochs: int = 3
    batch: int = 32
    rate: float = 2e-5
    warmup: float = 0.1
    """Share of all steps."""
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
        """The learning rate of a step, counted from 0: up to the full one in a line, and down to 0 in another."""
        warm = max(1, round(self.warmup * total))
        return self.rate * min((step + 1) / warm, (total - step) / max(1, total - warm))


@dataclass(frozen=True, slots=True)
class Step:
    """How far training is, told after every step."""

    epoch: int
    step: int
    of: int
    loss: float
    weight: float
    """λ at this step."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one round over the examples came to; losses are means over its steps."""

    number: int
    task: float
    penalty: float
    weight: float
    seconds: float
    measures: Mapping[str, float] = field(default_factory=dict[str, float])
    """What the probe has measured after it."""


Probe = Callable[[Model], Mapping[str, float]]


def fit(
    model: Model,
    examples: Sequence[Example],
    *,
    encoded: Sequence[Encoded] | None = None,
    objective: Objective = Objective(),  # noqa: B008
    recipe: Recipe = Recipe(),  # noqa: B008
    probe: Probe | None = None,
    report: Callable[[Step], None] | None = None,
    folder: str | Path | None = None,
    save_every: int | None = None,
    refresh: Callable[[Model, Sequence[Example]], Sequence[Example]] | None = None,
) -> Iterator[Epoch]:
    """Train the model in place, one epoch at a time.

    With a ``folder``, a checkpoint is kept there after every epoch and, without ``refresh``, every ``save_every``
    steps; called again with the same arguments, training goes on from it and ends with the same weights. ``probe``
    measures the model after each epoch, and ``report`` is told of every step. ``encoded`` is how the model is to read
    the examples, where that is not as their texts stand. ``refresh`` may change the guides of the examples, though
    not their number or texts, before each epoch but the first.

    >>> for epoch in fit(model, examples, objective=Objective(penalty, weight=1.0)): ...        # doctest: +SKIP
    """
    if not examples:
        raise BadInput("there is nothing to train on: no example was given")
    seen = read(model, examples) if encoded is None else encoded
    place = None if folder is None else Path(folder)
    identity = "" if place is None else _digest(model, [*examples, *(encoded or ())], objective, recipe)
    state = _State.begin(model, identity, -(-len(examples) // recipe.batch), recipe)
    if place is not None:
        state.resume(place)
    yield from state.history
    for number in range(len(state.history) + 1, recipe.epochs + 1):
        began = monotonic()
        if refresh is not None and number > 1:
            examples = refresh(model, examples)
        with _training(model.module), _dice(model):
            for rows in _order(seen, recipe, number)[state.step - (number - 1) * state.per_epoch :]:
                said = _step(model, examples, seen, rows, objective, state, place)
                state.add(said)
                if report is not None:
                    report(Step(number, state.step, state.total, said.loss, said.weight))
                # Guides that were made anew are those of the epoch's first step, which a checkpoint does not hold.
                if place is not None and save_every and not refresh and state.step % save_every == 0:
                    state.save(place)
        state.close(number, monotonic() - began, {} if probe is None else probe(model))
        if place is not None:
            state.save(place)
        yield state.history[-1]


@dataclass(frozen=True, slots=True)
class _Said:
    """What one step came to."""

    task: float
    penalty: float
    weight: float

    @property
    def loss(self) -> float:
        return self.task + self.weight * self.penalty


def _step(
    model: Model,
    examples: Sequence[Example],
    encoded: Sequence[Encoded],
    rows: Sequence[int],
    objective: Objective,
    state: "_State",
    place: Path | None,
) -> _Said:
    """One update from one batch, in parts that fit the budget; each term is the mean over all that take part in it."""
    weight = objective.weight_at(state.step / max(1, state.total - 1))
    torch.manual_seed(state.recipe.seed * 1_000_003 + state.step)
    state.optimiser.zero_grad()
    parts = [[rows[i] for i in part] for part in pack([len(encoded[i]) for i in rows], state.budget)]
    labelled = sum(examples[i].label is not None for i in rows)
    guided = sum(_any(examples[i].guide) for i in rows)
    task = penalty = 0.0
    for part in parts:
        lesson = lesson_of(model, [examples[i] for i in part], [encoded[i] for i in part], objective)
        terms = objective(lesson)
        loss = terms.task / max(1, labelled) + weight * terms.penalty / max(1, guided)
        if not bool(torch.isfinite(loss)):
            raise BadModel(_diverged(state, [examples[i].id for i in part], place))
        loss.backward()
        task += float(terms.task.detach()) / max(1, labelled)
        penalty += float(terms.penalty.detach()) / max(1, guided)
    norm = nn.utils.clip_grad_norm_(state.learning, state.recipe.clip)
    if not bool(torch.isfinite(norm)):
        raise BadModel(_diverged(state, [examples[i].id for i in rows], place, what="gradient"))
    for group in state.optimiser.param_groups:
        group["lr"] = state.recipe.rate_at(state.step, state.total)
    state.optimiser.step()
    return _Said(task, penalty, weight)


def _any(guide: object) -> bool:
    """Whether a guide marks anything."""
    if isinstance(guide, tuple):
        return any(map(_any, guide))  # pyright: ignore[reportUnknownArgumentType]
    return bool(guide)


def _diverged(state: "_State", ids: Sequence[str], place: Path | None, what: str = "loss") -> str:
    kept = f" The last checkpoint is kept in {place}." if place is not None and _checkpoints(place) else ""
    some = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
    return (
        f"the {what} is not a number at step {state.step + 1} of {state.total}, in the texts {some}.{kept} A lower "
        "rate or a smaller weight usually helps."
    )


def lesson_of(model: Model, examples: Sequence[Example], encoded: Sequence[Encoded], objective: Objective) -> Lesson:
    """A forward pass over some examples as the model is, with what the objective reads."""
    batch = model.batch(encoded)
    output = model(batch, attention=None if objective.penalty is None else "differentiable")
    return Lesson(model, batch, output, labels_of(model, examples), guides_of(examples, encoded, batch.ids.device))


def labels_of(model: Model, examples: Sequence[Example]) -> Tensor:
    """Columns of the logits; 0 and 1 for each label where several may hold; or numbers, for a regression."""
    device = model.words.weight.device
    if model.link == "softmax":
        return torch.tensor([UNKNOWN if e.label is None else _column(model, e) for e in examples], device=device)
    return torch.tensor([_columns(model, e) for e in examples], dtype=torch.float32, device=device)


def _column(model: Model, example: Example) -> int:
    if isinstance(example.label, str | int):
        return model.resolve(example.label)
    raise BadInput(f"the label of {example.id!r} is {example.label!r}; {model.name} learns one label for each text")


def _columns(model: Model, example: Example) -> list[float]:
    label, count = example.label, len(model.labels)
    if label is None:
        return [float(UNKNOWN)] * count
    if model.link == "identity":
        if isinstance(label, int | float):
            return [float(label)]
        raise BadInput(f"the label of {example.id!r} is {label!r}; {model.name} is a regression and learns numbers")
    several = [label] if isinstance(label, str | int) else label
    if isinstance(several, float):
        raise BadInput(f"the label of {example.id!r} is {label!r}, neither a name nor a whole number")
    held = {model.resolve(one) for one in several}
    return [float(i in held) for i in range(count)]


def guides_of(examples: Sequence[Example], encoded: Sequence[Encoded], device: torch.device) -> Tensor:
    """The guides padded to one tensor; zeros for an example without one."""
    width = max(map(len, encoded))
    several = max((len(e.guide) for e in examples if e.guide and isinstance(e.guide[0], tuple)), default=0)
    rows: list[Any] = []
    for example, seen in zip(examples, encoded, strict=True):
        nothing = (0.0,) * len(seen)
        guide: Any = example.guide or ((nothing,) * several if several else nothing)
        each = guide if several else (guide,)
        if any(len(one) != len(seen) for one in each):
            raise BadInput(f"the guide of {example.id!r} has not one weight for each of its {len(seen)} tokens")
        rows.append([[*one, *(0.0,) * (width - len(one))] for one in each])
    found = torch.tensor(rows, dtype=torch.float32, device=device)
    return found if several else found[:, 0]


def _order(encoded: Sequence[Encoded], recipe: Recipe, epoch: int) -> list[list[int]]:
    """Batches in the random order of an epoch. Those of a window are cut from its texts sorted by length."""
    dice = torch.Generator().manual_seed(recipe.seed * 1_000_003 + epoch)
    shuffled = torch.randperm(len(encoded), generator=dice).tolist()
    batches: list[list[int]] = []
    for start in range(0, len(shuffled), WINDOW * recipe.batch):
        window = sorted(shuffled[start : start + WINDOW * recipe.batch], key=lambda i: -len(encoded[i]))
        batches += [window[at : at + recipe.batch] for at in range(0, len(window), recipe.batch)]
    return [batches[i] for i in torch.randperm(len(batches), generator=dice).tolist()]


@contextmanager
def _training(module: nn.Module) -> Generator[None]:
    """Training mode, and afterwards the mode of before."""
    modes = [(part, part.training) for part in module.modules()]
    module.train()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def _dice(model: Model) -> AbstractContextManager[None]:
    """Training draws its own random numbers, seeded anew for every step; those of the caller are as before."""
    device = model.words.weight.device
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


# ------------------------------------------------------------------------------------------------------ checkpoints


@dataclass(slots=True)
class _State:
    """All that changes while a model is trained."""

    module: nn.Module
    recipe: Recipe
    digest: str
    per_epoch: int
    learning: list[nn.Parameter]
    optimiser: torch.optim.Optimizer
    budget: int
    """Tokens of a pass; kept, since what dropout draws depends on how a batch is divided."""
    step: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    history: list[Epoch] = field(default_factory=list[Epoch])

    @classmethod
    def begin(cls, model: Model, digest: str, per_epoch: int, recipe: Recipe) -> "_State":
        learning = [p for p in model.module.parameters() if p.requires_grad]
        optimiser = torch.optim.AdamW(_groups(model.module, recipe.decay), lr=recipe.rate)
        return cls(model.module, recipe, digest, per_epoch, learning, optimiser, model.budget)

    @property
    def total(self) -> int:
        return self.per_epoch * self.recipe.epochs

    def add(self, said: _Said) -> None:
        self.step += 1
        self.sums = [a + b for a, b in zip(self.sums, (said.task, said.penalty, said.weight), strict=True)]

    def close(self, number: int, seconds: float, measures: Mapping[str, float]) -> None:
        task, penalty, weight = (s / self.per_epoch for s in self.sums)
        self.history.append(Epoch(number, task, penalty, weight, seconds, dict(measures)))
        self.sums = [0.0, 0.0, 0.0]

    def save(self, folder: Path) -> None:
        """A folder that appears under its name when it is complete; older ones are removed after it is there."""
        folder.mkdir(parents=True, exist_ok=True)
        into, part = folder / f"checkpoint-{self.step:07d}-{len(self.history):03d}", folder / ".checkpoint.tmp"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        save_file(_tensors(self.module), part / "model.safetensors")
        slots = {f"{i}.{name}": t for i, s in self._slots().items() for name, t in s.items()}
        save_file(slots, part / "state.safetensors")
        facts = {
            "digest": self.digest,
            "budget": self.budget,
            "step": self.step,
            "sums": self.sums,
            "history": list(map(asdict, self.history)),
        }
        (part / "state.json").write_text(json.dumps(facts), "utf-8")
        if not into.exists():
            os.replace(part, into)
        for old in _checkpoints(folder):
            if old != into:
                shutil.rmtree(old)

    def _slots(self) -> dict[int, dict[str, Tensor]]:
        """What the optimiser remembers of each parameter."""
        found: Any = self.optimiser.state_dict()["state"]
        return {
            i: {name: torch.as_tensor(value).contiguous() for name, value in slot.items()} for i, slot in found.items()
        }

    def resume(self, folder: Path) -> None:
        """Go on from the newest checkpoint, if there is one of this training."""
        if not (found := _checkpoints(folder)):
            return
        facts = json.loads((found[-1] / "state.json").read_text("utf-8"))
        if facts["digest"] != self.digest:
            raise BadInput(
                f"{folder} holds the training of another model, or with other examples, recipe or objective; use "
                "another folder, or delete it to begin anew"
            )
        with torch.no_grad():
            stored = load_file(found[-1] / "model.safetensors")
            for name, values in _tensors(self.module).items():
                values.copy_(stored[name])
        slots = load_file(found[-1] / "state.safetensors")
        state: dict[int, dict[str, Tensor]] = {}
        for name, values in slots.items():
            number, _, slot = name.partition(".")
            state.setdefault(int(number), {})[slot] = values
        whole: Any = self.optimiser.state_dict()
        self.optimiser.load_state_dict({**whole, "state": state})
        self.budget, self.step, self.sums = facts["budget"], facts["step"], facts["sums"]
        self.history = [Epoch(**epoch) for epoch in facts["history"]]


def _groups(module: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Weights decay; biases and norms, which have one dimension, do not."""
    learning = [p for p in module.parameters() if p.requires_grad]
    wide, narrow = ([p for p in learning if (p.dim() > 1) == large] for large in (True, False))
    return [{"params": wide, "weight_decay": decay}, {"params": narrow, "weight_decay": 0.0}]


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, each once, also where two names share one."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, values in module.state_dict().items():
        found.setdefault(values.data_ptr() if values.numel() else id(values), (name, values.contiguous()))
    return dict(found.values())


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*")) if folder.is_dir() else []


def _digest(model: Model, examples: Sequence[Example | Encoded], objective: Objective, recipe: Recipe) -> str:
    """What tells one training from another."""
    found = blake2b(digest(model).encode(), digest_size=16)
    for value in (recipe, objective.weight, objective.anneal, _described(objective.penalty), *examples):
        found.update(repr(value).encode())
    return found.hexdigest()


def _described(penalty: Any) -> object:
    """A penalty by name and settings; its address in memory tells nothing."""
    function = getattr(penalty, "func", penalty)
    return getattr(function, "__name__", None), sorted(getattr(penalty, "keywords", {}).items())
