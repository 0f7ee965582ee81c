"""Copying: can attention be learnt from sequences without co-occurrence statistics?"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from salience.core.jobs import results, study
from salience.core.stats import Estimate, share
from salience.data.copying import COPY_KINDS, CopyKind, Sequences
from salience.errors import BadInput, choose
from salience.models.recurrence import over_words
from salience.models.seq2seq import Decoded, Seq2SeqConfig, Seq2SeqNetwork

LEARNT = 0.95
"""The token accuracy of a run that succeeds, at its last step; also the share of symbols that attention must be on."""

Size = Literal["quick", "full"]
SEEDS: Mapping[str, int] = {"quick": 4, "full": 20}
"""Runs of each kind."""


@dataclass(frozen=True, slots=True)
class CopyRecipe:
    """How one network learns to copy: Adam on fresh sequences, for a fixed number of steps.

    A failed run goes on to reach full accuracy without aligned attention, so a rate of failures is one of a number of
    steps.
    """

    length: int = 40
    hidden: int = 256
    steps: int = 200
    batch: int = 128
    rate: float = 1e-3
    every: int = 10
    """Steps between measurements."""
    tested: int = 50
    """Sequences of each measurement."""

    def __post_init__(self) -> None:
        if bad := [f.name for f in fields(self) if not getattr(self, f.name) > 0]:
            raise BadInput(f"{bad[0]}={getattr(self, bad[0])} must be above 0")


@dataclass(frozen=True, slots=True)
class CopyPoint:
    """What a network does after a number of steps, with the true symbols as answer so far."""

    step: int
    accuracy: float
    """The share of symbols, and ends of sequences, that are copied."""
    attention: float
    """The share of symbols for which most attention is on the symbol to copy; of the best head if there are several."""
    before: float
    """The same for the place before it,"""
    after: float
    """and the place after it."""


@dataclass(frozen=True, slots=True)
class CopyRun:
    """One training from one seed."""

    kind: CopyKind
    seed: int
    curve: tuple[CopyPoint, ...]
    seconds: float

    @property
    def last(self) -> CopyPoint:
        return self.curve[-1]

    @property
    def learnt(self) -> bool:
        """Whether token accuracy is at least 0.95 at the last step."""
        return self.last.accuracy >= LEARNT

    @property
    def aligned(self) -> bool:
        """Whether most attention is on the symbol to copy for at least 0.95 of the symbols, at the last step."""
        return self.last.attention >= LEARNT

    @property
    def first(self) -> int | None:
        """The first step at which token accuracy is at least 0.95."""
        return next((point.step for point in self.curve if point.accuracy >= LEARNT), None)

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "CopyRun":
        return cls(stored["kind"], stored["seed"], curve_of(stored["curve"]), stored["seconds"])


def curve_of(stored: Sequence[Mapping[str, Any]]) -> tuple[CopyPoint, ...]:
    """The points of a curve that was stored; there is at least one."""
    if not stored:
        raise ValueError("its curve is empty")
    return tuple(CopyPoint(**point) for point in stored)


@dataclass(frozen=True, slots=True)
class Copying:
    """All runs of a study."""

    recipe: CopyRecipe
    runs: tuple[CopyRun, ...]

    def of(self, kind: CopyKind) -> list[CopyRun]:
        return sorted((run for run in self.runs if run.kind == kind), key=lambda run: run.seed)

    @property
    def kinds(self) -> list[CopyKind]:
        return [kind for kind in COPY_KINDS if self.of(kind)]

    def failures(self, kind: CopyKind) -> Estimate:
        """The share of runs that fail, with its exact binomial interval."""
        return share([not run.learnt for run in self.of(kind)], fewest=1)

    def unaligned(self, kind: CopyKind) -> Estimate:
        """The share of runs whose attention is not on the symbols to copy, with its exact binomial interval."""
        return share([not run.aligned for run in self.of(kind)], fewest=1)


def copying(
    kinds: Sequence[CopyKind] = COPY_KINDS,
    *,
    seeds: Sequence[int] = range(SEEDS["quick"]),
    recipe: CopyRecipe = CopyRecipe(),  # noqa: B008
    folder: str | Path | None = None,
    workers: int = 1,
    report: Callable[[CopyRun], None] = lambda _: None,
) -> Copying:
    """Train networks to copy sequences of every kind, one per seed.

    With a ``folder``, each finished run is saved there, and the same call resumes. ``workers`` are processes.

    Paper: Snell et al. 2021, arXiv:2103.07601, section 5
    """
    for kind in kinds:
        choose(kind, COPY_KINDS, "kind of sequence")
    if not kinds or not seeds:
        raise BadInput("there is nothing to run; give at least one kind and one seed")
    place = None if folder is None else Path(folder)
    jobs = {f"{kind}-{seed:03d}": partial(_job, kind, seed, recipe) for seed in seeds for kind in dict.fromkeys(kinds)}
    runs: list[CopyRun] = []
    with study(place, asdict(recipe)):
        for run in results(jobs, CopyRun.of, place, workers=workers):
            runs.append(run)
            report(run)
    return Copying(recipe, tuple(sorted(runs, key=lambda run: (COPY_KINDS.index(run.kind), run.seed))))


def _job(kind: CopyKind, seed: int, recipe: CopyRecipe) -> dict[str, Any]:
    return asdict(copy_run(kind, seed, recipe))


def copy_run(kind: CopyKind, seed: int, recipe: CopyRecipe = CopyRecipe()) -> CopyRun:  # noqa: B008
    """Train one network; ``seed`` sets its weights and its sequences."""
    began, sequences = monotonic(), Sequences(kind, recipe.length)
    network = copier(sequences, recipe, seed)
    curve = tuple(copy_curve(network, sequences, recipe, seed))
    return CopyRun(kind, seed, curve, monotonic() - began)


def copier(sequences: Sequences, recipe: CopyRecipe, seed: int, **changes: Any) -> Seq2SeqNetwork:
    """An untrained network that copies: one layer, one direction, no dropout."""
    shape = Seq2SeqConfig(
        vocabulary=sequences.symbols + 2,  # and the ends of a sequence
        hidden=recipe.hidden,
        layers=1,
        bidirectional=False,
        activation="tanh",
        dropout=0.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Seq2SeqNetwork(replace(shape, **changes))


def copy_curve(network: Seq2SeqNetwork, sequences: Sequences, recipe: CopyRecipe, seed: int) -> Iterator[CopyPoint]:
    """Train the network in place, and yield what it does before the first step, at intervals, and after the last."""
    rng = np.random.default_rng(seed)
    optimiser = torch.optim.Adam(network.parameters(), lr=recipe.rate)
    yield _measured(network, sequences, recipe, rng, 0)
    for step in range(1, recipe.steps + 1):
        symbols = torch.from_numpy(sequences.draw(recipe.batch, rng))
        decoded, answers = _forced(network, symbols, sequences)
        loss = nn.functional.cross_entropy(decoded.logits.flatten(0, 1), answers.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % recipe.every == 0 or step == recipe.steps:
            yield _measured(network, sequences, recipe, rng, step)


def _forced(network: Seq2SeqNetwork, symbols: Int[Tensor, "b t"], sequences: Sequences) -> tuple[Decoded, Tensor]:
    """Run the network on sequences whose copy is given; also returns what it should say."""
    end, start = (torch.full((len(symbols), 1), sequences.symbols + i) for i in range(2))
    source, inputs = torch.cat([symbols, end], 1), torch.cat([start, symbols], 1)
    mask = torch.ones_like(source, dtype=torch.bool)
    # There are far fewer symbols than places, which saves a third of the time.
    h, state = over_words(network.encoder, network.words, source)
    d, _ = over_words(network.decoder, network.answer_words or network.words, inputs, state)
    a = network.attend(d, h, mask)
    return Decoded(network.read_out(d, network.context(a, h)), a, h, d), source


@torch.no_grad()
def _measured(
    network: Seq2SeqNetwork, sequences: Sequences, recipe: CopyRecipe, rng: np.random.Generator, step: int
) -> CopyPoint:
    symbols = torch.from_numpy(sequences.draw(recipe.tested, rng))
    decoded, answers = _forced(network, symbols, sequences)
    accuracy = (decoded.logits.argmax(-1) == answers).double().mean()
    attended = decoded.attention[:, :, :-1].argmax(-1)  # without the end of the sequence
    place = torch.arange(attended.shape[-1])
    at, before, after = (float((attended == place + shift).double().mean((0, 2)).max()) for shift in (0, -1, 1))
    return CopyPoint(step, float(accuracy), at, before, after)


def seeds_of(size: Size) -> range:
    """The seeds of a size."""
    return range(SEEDS[choose(size, get_args(Size), "size")])
