"""DiffMask on the bundled model: how long gates take to train on SST-2, and an explanation against one forward pass.

python -m benchmarks.learned                       both, on two threads
python -m benchmarks.learned --only apply          the explanation alone

The targets: trained in less than 600 seconds, and explained in at most 1.5 × the time of one forward pass.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import torch
from benchmarks.setting import DATA, race, ratio

import salience
from salience.core.passes import forward
from salience.core.rows import each_text
from salience.data import source
from salience.data.examples import examples
from salience.models.gates import new_gates
from salience.training.diffmask import train_gates


def training(texts: list[str], limit: int | None) -> str:
    """Train with the defaults of the command."""
    with TemporaryDirectory() as folder:
        began = perf_counter()
        result = train_gates(salience.load(), texts[:limit], Path(folder) / "gates")
        measures = ", ".join(f"{name} {value:.3f}" for name, value in result.epochs[-1].measures.items())
        return f"training on {len(texts[:limit]):,} texts: {perf_counter() - began:.0f} s; {measures}"


def applying(texts: list[str], repeats: int) -> str:
    """An explanation against the forward passes alone, both in batches."""
    model = salience.load()
    gates, encoded = new_gates(model), model.encode(texts)

    def raw() -> None:
        each_text(model, encoded, lambda batch, _: list(forward(model, batch).logits))

    runners = {"diff_mask": lambda: salience.explain(model, texts, "diff_mask", gates=gates), "forward": raw}
    times = race(runners, repeats, process_time)
    return f"diff_mask on {len(texts)} texts: {ratio(times, 'diff_mask', 'forward'):.2f} × one forward pass"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["train", "apply"])
    parser.add_argument("--limit", type=int, help="train on so many texts only")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    texts = [str(e.text) for e in examples(source(DATA / "sst2" / "train.jsonl.gz"))]
    if chosen.only != "train":
        print(applying(texts[:200], chosen.repeats))
    if chosen.only != "apply":
        print(training(texts, chosen.limit))


if __name__ == "__main__":
    main()
