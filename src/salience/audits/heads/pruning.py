"""How many heads can be removed? The least important are masked step by step, and in random order as a control."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from salience.audits.heads.gates import Layers, Task, gate_gradients, losses
from salience.audits.heads.importance import normalised
from salience.core.executor import Report
from salience.core.shares import count_of
from salience.core.stats import Difference, Estimate, paired_difference, share, table_interval, within

STEP = 0.1
"""The share of heads that is masked in one step."""


@dataclass(frozen=True, slots=True)
class PruningStep:
    """Accuracy with some heads masked: the least important ones, and as many in random order."""

    masked: int
    accuracy: Estimate
    difference: Difference
    """Accuracy minus that of the whole model, on the same texts."""
    random: Estimate
    """The mean over random orders; its interval covers new texts and new orders."""


@dataclass(frozen=True, slots=True)
class Pruning:
    """The curve of accuracy by the number of masked heads. Heads are ranked on other texts than they are tested on."""

    heads: int
    ranked: int
    tested: int
    orders: int
    steps: tuple[PruningStep, ...]

    @property
    def removable(self) -> float:
        """The largest share of heads that is masked before accuracy first falls significantly."""
        fallen = [step.masked for step in self.steps if step.difference.clear and step.difference.mean < 0]
        kept = [step.masked for step in self.steps if not fallen or step.masked < fallen[0]]
        return max(kept) / self.heads


def prune(
    ranked: Task, tested: Task, heads: Sequence[int], *, orders: int = 5, seed: int = 0, report: Report | None = None
) -> Pruning:
    """Mask the least important tenth of all heads, measure their importance again, and so on until none is left.

    Heads are ranked on some texts and tested on others. ``orders`` random orders are the control.

    Paper: Michel et al. 2019, arXiv:1905.10650, section 4
    """
    total = sum(heads)
    size = count_of(STEP, total)
    counts = [*range(0, total, size), total]
    rows: dict[str, list[Float[np.ndarray, " n"]]] = {"own": [], **{f"random {n}": [] for n in range(orders)}}
    shuffled = [np.random.default_rng([seed, n]).permutation(total) for n in range(orders)]
    masked: list[int] = []
    for done, count in enumerate(counts):
        masked += _least_important(ranked, heads, masked, count - len(masked))
        rows["own"].append(_right(tested, heads, masked))
        for n, order in enumerate(shuffled):
            rows[f"random {n}"].append(_right(tested, heads, order[:count].tolist()))
        if report is not None:
            report(done + 1, len(counts))
    control = np.array([rows[f"random {n}"] for n in range(orders)])
    steps = [_step(count, rows["own"], control, at) for at, count in enumerate(counts)]
    return Pruning(total, len(ranked), len(tested), orders, tuple(steps))


def _least_important(task: Task, heads: Sequence[int], masked: Sequence[int], count: int) -> list[int]:
    """The heads that matter least while the others are masked: Σ |dL/dξ| over texts, l2-normalised by layer."""
    if not count:
        return []
    slopes = np.concatenate(gate_gradients(task, _kept(heads, masked)), 1)
    importance = normalised(heads)(np.abs(slopes).sum(0, keepdims=True))[0]
    importance[list(masked)] = np.inf
    return np.argsort(importance, kind="stable")[:count].tolist()


def _right(task: Task, heads: Sequence[int], masked: Sequence[int]) -> Float[np.ndarray, " n"]:
    return losses(task, _kept(heads, masked))[1].astype(float)


def _kept(heads: Sequence[int], masked: Sequence[int]) -> Layers:
    kept = np.ones(sum(heads), dtype=bool)
    kept[list(masked)] = False
    return tuple(np.split(kept, np.cumsum(heads)[:-1]))


def _step(
    count: int, own: Sequence[Float[np.ndarray, " n"]], control: Float[np.ndarray, "o s n"], at: int
) -> PruningStep:
    table = control[:, at]
    mean = float(table.mean())
    low, high = within(table_interval(table), mean, (0.0, 1.0))
    return PruningStep(
        count,
        share(own[at]),
        paired_difference(own[at], own[0]),
        Estimate(mean, float(low), float(high), table.shape[1]),
    )
