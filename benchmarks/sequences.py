"""Measure how long encoder-decoders take to learn.

python -m benchmarks.sequences --threads 1      copying, and a step of translation
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from benchmarks.figures import CLOCKS, Figure, arguments, measure
from torch import nn

from salience.data.copying import Sequences
from salience.dynamics.copying import CopyRecipe, copier, copy_curve, copy_run
from salience.models.seq2seq import Seq2SeqConfig, Seq2SeqNetwork

BATCH, WORDS, STEPS = 64, 15, 10
"""Sentences of a batch of translation, their tokens, and steps."""


@dataclass(frozen=True, slots=True)
class Setup:
    clock: str

    def seconds(self, work: Callable[[], object]) -> float:
        clock = CLOCKS[self.clock]
        start = clock()
        work()
        return clock() - start


def copying(s: Setup) -> Iterator[Figure]:
    """One run of 200 steps, from nothing to its curve."""
    sequences, short = Sequences("iid"), CopyRecipe(steps=1)
    list(copy_curve(copier(sequences, short, 0), sequences, short, 0))  # the first pass prepares kernels
    yield Figure("copying", "one run of 200 steps", s.seconds(partial(copy_run, "iid", 0)), "s", "≤ 60")


def translation(s: Setup) -> Iterator[Figure]:
    """One epoch of Multi30k, 454 steps of 64 sentences, extrapolated from a few."""
    network = Seq2SeqNetwork(Seq2SeqConfig(8000))
    optimiser = torch.optim.AdamW(network.parameters())
    ids, mask = torch.randint(8000, (BATCH, WORDS)), torch.ones(BATCH, WORDS, dtype=torch.bool)

    def steps(count: int) -> None:
        for _ in range(count):
            logits = network(network.words(ids), mask, ids).logits
            optimiser.zero_grad()
            nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
            optimiser.step()

    steps(1)
    yield Figure("translation", "one epoch of Multi30k", 454 * s.seconds(partial(steps, STEPS)) / STEPS / 60, "min")


BENCHMARKS: Mapping[str, Callable[[Setup], Iterator[Figure]]] = {"copying": copying, "translation": translation}


def main() -> None:
    asked = arguments(__doc__, list(BENCHMARKS)).parse_args()
    torch.set_num_threads(asked.threads)
    measure(BENCHMARKS, Setup(asked.clock), asked)


if __name__ == "__main__":
    main()
