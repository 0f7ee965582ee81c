"""How long does it take to train a pair of twins, and how much does following 50 sentences add?

Usage: python benchmarks/dynamics.py SST2_FOLDER [EPOCHS]

Trains the standard classifier and its twin with uniform attention on all of SST-2, with the default shape and recipe,
and measures the time of recording 50 sentences at 30 checkpoints within that same training, so that the load of the
machine counts for both.
"""

import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import torch

from salience.core.types import Model
from salience.data import examples, source
from salience.data.examples import sampled
from salience.dynamics.classifiers import RECIPE, Classifiers
from salience.dynamics.recording import Following

SENTENCES, CHECKPOINTS = 50, 30


def main(data: Path, epochs: int) -> None:
    torch.set_num_threads(1)
    train, test = (examples(source(next(data.glob(f"{part}.*")), label="label")) for part in ("train", "test"))
    total = [0.0, 0.0]
    with TemporaryDirectory() as folder:
        classifiers = Classifiers.new(
            Path(folder),
            train,
            sampled(test, SENTENCES),
            recipe=replace(RECIPE, epochs=epochs),
            checkpoints=CHECKPOINTS,
        )
        recording = timed()
        for name, changes in (("standard", {}), ("uniform", {"scoring": "uniform"})):
            recording.clear()
            start = perf_counter(), process_time()
            _, followed = classifiers(name, **changes)
            wall, cpu = perf_counter() - start[0], process_time() - start[1]
            share = sum(recording) / (cpu - sum(recording))
            print(
                f"{name}: {wall:.0f} s, {cpu:.0f} s of CPU time, {followed.steps[-1]} steps, accuracy "
                f"{followed.accuracy[-1]:.2f} on {SENTENCES} sentences; recording them {len(recording)} times took "
                f"{sum(recording):.1f} s of CPU time, {share:.1%} of the training"
            )
            total = [total[0] + wall, total[1] + cpu]
    print(f"pair of twins: {total[0]:.0f} s, {total[1]:.0f} s of CPU time on one thread (the bound is 180 s)")


def timed() -> list[float]:
    """The CPU time of every recording, from now on."""
    times: list[float] = []
    record = Following.record

    def measured(self: Following, model: Model, step: int) -> None:
        start = process_time()
        record(self, model, step)
        times.append(process_time() - start)

    Following.record = measured
    return times


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else RECIPE.epochs)
