"""How many heads can be removed? The least important are masked step by step, and in random order as a control."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from salience.audits.heads.gates import Layers, Task, gate_gradients, losses
from salience.audits.heads.importance import normalised
from salience.core.randomness import generator
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
