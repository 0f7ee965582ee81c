"""DiffMask on the bundled model: how long gates take to train on SST-2, and an explanation against one forward pass.

python -m benchmarks.learned                                            both, on two threads
python -m benchmarks.learned --only diff_mask --threads 1 --clock cpu   the explanation alone, on a busy machine
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from benchmarks.figures import CLOCKS, Figure, arguments, measure
from benchmarks.setting import DATA, race, ratio

import salience
from salience.core.passes import forward
from salience.core.rows import each_text
from salience.core.types import Model
from salience.data import source
from salience.data.examples import examples
from salience.models.gates import new_gates
from salience.training.diffmask import train_gates

EXPLAINED = 200
"""Texts that are explained."""


@dataclass(frozen=True, slots=True)
class Setup:
    model: Model
    texts: Sequence[str]
    repeats: int
    clock: Callable[[], float]


def gates(s: Setup) -> Iterator[Figure]:
    """Train gates with the defaults of the command."""
    with TemporaryDirectory() as folder:
        began = s.clock()
        result = train_gates(s.model, s.texts, Path(folder) / "gates")
        seconds = s.clock() - began
    yield Figure("gates", f"training gates on {len(s.texts):,} sentences of SST-2", seconds, "s", "≤ 600")
    for name, value in result.epochs[-1].measures.items():
        yield Figure("gates", f"{name}, after training", value, "")


def diff_mask(s: Setup) -> Iterator[Figure]:
    """An explanation against the forward passes alone, both in batches."""
    texts = list(s.texts[:EXPLAINED])
    own, encoded = new_gates(s.model), s.model.encode(texts)

    def raw() -> None:
        each_text(s.model, encoded, lambda batch, _: list(forward(s.model, batch).logits))

    runners = {"ours": lambda: salience.explain(s.model, texts, "diff_mask", gates=own), "raw": raw}
    times = race(runners, s.repeats, s.clock)
    what = f"diff_mask of {EXPLAINED} sentences by one forward pass"
    yield Figure("diff_mask", what, ratio(times, "ours", "raw"), limit="≤ 1.5")


BENCHMARKS: Mapping[str, Callable[[Setup], Iterator[Figure]]] = {"diff_mask": diff_mask, "gates": gates}


def main() -> None:
    asked = arguments(__doc__, list(BENCHMARKS)).parse_args()
    torch.set_num_threads(asked.threads)
    texts = [str(e.text) for e in examples(source(DATA / "sst2" / "train.jsonl.gz"))]
    measure(BENCHMARKS, Setup(salience.load(), texts, asked.repeats, CLOCKS[asked.clock]), asked)


if __name__ == "__main__":
    main()
