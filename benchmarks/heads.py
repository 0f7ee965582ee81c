"""Measure the roles and the importance of all heads of the bundled model, over 500 texts.

python -m benchmarks.heads                                   in seconds
python -m benchmarks.heads --threads 1 --clock cpu           on a busy machine, in processor time
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from benchmarks import setting
from benchmarks.figures import CLOCKS, Figure, arguments, measure

import salience
from salience.core.types import Model
from salience.data import Example, examples, source

TEXTS = 500


@dataclass(frozen=True, slots=True)
class Setup:
    model: Model
    texts: Sequence[Example]
    clock: str


def roles_and_importance(s: Setup) -> Iterator[Figure]:
    """One pass with attention, one with its gradients, and one per head."""
    clock = CLOCKS[s.clock]
    start = clock()
    salience.heads(s.model, s.texts, parts=["importance"])
    what = f"head roles and importance of the bundled model over {TEXTS} SST-2 texts"
    yield Figure("heads", what, clock() - start, "s", "≤ 60")


BENCHMARKS: Mapping[str, Callable[[Setup], Iterator[Figure]]] = {"heads": roles_and_importance}


def main() -> None:
    asked = arguments(__doc__, list(BENCHMARKS)).parse_args()
    torch.set_num_threads(asked.threads)
    texts = examples(source(setting.DATA / "sst2" / "test.jsonl", label="label"), limit=TEXTS)
    measure(BENCHMARKS, Setup(salience.load("sentiment"), texts, asked.clock), asked)


if __name__ == "__main__":
    main()
