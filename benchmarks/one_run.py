"""One run in a process of its own: a Wanted as JSON on standard input, a Spent as JSON on standard output."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import PIPE
from subprocess import run as call
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import torch
from benchmarks import setting

import salience
from salience.runs.driver import explain_data


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run by input_x_gradient, and on what it is to be done."""

    model: str
    data: str
    engine: str = "local"
    workers: int = 1
    threads: int = 2
    """Of the whole run: local processes share them out."""
    rows_per_part: int = 1000
    warm: str | None = None
    """Data that the model, loaded by then, has explained before the clock starts. Without, all starts from nothing."""

    def spent(self) -> "Spent":
        command = [sys.executable, "-m", "benchmarks.one_run"]
        done = call(command, input=json.dumps(asdict(self)), stdout=PIPE, text=True, check=True, cwd=setting.ROOT)
        return Spent(**json.loads(done.stdout.splitlines()[-1]))


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds by the wall clock and of this process's threads, and the largest megabytes that it held."""

    wall: float
    cpu: float
    peak: float
    part: float
    """Seconds from one part to the next, from the first to the last: without the start."""
    parts: int


def main(wanted: Wanted) -> Spent:
    torch.set_num_threads(wanted.threads)
    model = salience.load(wanted.model) if wanted.warm else wanted.model
    with TemporaryDirectory() as folder:
        if wanted.warm:
            explain_data(model, wanted.warm, Path(folder, "warm"), "input_x_gradient", workers=1)
        wall, cpu = perf_counter(), process_time()
        explain_data(
            model,
            wanted.data,
            Path(folder, "run"),
            "input_x_gradient",
            engine=wanted.engine,
            workers=wanted.workers,
            rows_per_part=wanted.rows_per_part,
        )
        wall, cpu = perf_counter() - wall, process_time() - cpu
        written = sorted(part.stat().st_mtime for part in Path(folder, "run", "parts").iterdir())
        part = (written[-1] - written[0]) / max(1, len(written) - 1)
        return Spent(wall, cpu, peak(), part, len(written))


def peak() -> float:
    """Megabytes at most, of this process alone: ru_maxrss would begin with those of the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields: Mapping[str, str] = dict(line.split(":", 1) for line in lines)
    return int(fields["VmHWM"].split()[0]) / 1e3


if __name__ == "__main__":
    print(json.dumps(asdict(main(Wanted(**json.load(sys.stdin))))))
