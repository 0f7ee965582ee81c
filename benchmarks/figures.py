"""Measured numbers, what they are to be, and where they are written."""

import argparse
import json
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, TypeVar

import captum
import torch
import transformers

import salience

CLOCKS = {"wall": perf_counter, "cpu": process_time}
RESULTS = Path(__file__).parent / "results"

Setup = TypeVar("Setup")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number with what it is to be. ``limit`` is None where nothing is promised."""

    benchmark: str
    what: str
    value: float
    unit: str = "×"
    limit: str | None = None

    @property
    def kept(self) -> bool | None:
        if self.limit is None:
            return None
        sign, bound = self.limit.split()
        return self.value <= float(bound) if sign == "≤" else self.value >= float(bound)


Benchmarks = Mapping[str, Callable[[Setup], Iterator[Figure]]]


def arguments(about: str | None, names: Sequence[str]) -> argparse.ArgumentParser:
    """The options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--model", help="folder of a classifier or encoder, all-MiniLM-L6-v2 if absent")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="cpu is steadier on a busy machine")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="where the figures are written")
    return parser


def measure(benchmarks: Benchmarks[Setup], setup: Setup, asked: argparse.Namespace) -> None:
    """Run what was asked for, show each figure and write them all."""
    for name in asked.only:
        print(name, flush=True)
        figures: list[Figure] = []
        for figure in benchmarks[name](setup):
            print(f"  {figure.what}: {figure.value:.3g} {figure.unit} {figure.limit or ''}", flush=True)
            figures.append(figure)
        write(asked.results, name, figures, asked.threads, asked.clock)


def write(results: Path, name: str, figures: Sequence[Figure], threads: int, clock: str) -> None:
    """One JSON file per benchmark, and one Markdown table of all that were ever run."""
    results.mkdir(exist_ok=True)
    about = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "captum": captum.__version__,
        "salience": salience.__version__,
        "machine": platform.machine(),
        "threads": threads,
        "clock": clock,
    }
    data = {"about": about, "figures": [{**asdict(f), "kept": f.kept} for f in figures]}
    (results / f"{name}.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", "utf-8")
    lines = ["| benchmark | figure | measured | promised | kept |", "|---|---|---|---|---|"]
    for path in sorted(results.glob("*.json")):
        lines += [_line(f) for f in json.loads(path.read_text("utf-8"))["figures"]]
    (results / "table.md").write_text("\n".join(lines) + "\n", "utf-8")


def _line(figure: Mapping[str, Any]) -> str:
    kept = {True: "yes", False: "no", None: ""}[figure["kept"]]
    measured = "" if figure["value"] != figure["value"] else f"{figure['value']:.3g} {figure['unit']}"
    return f"| {figure['benchmark']} | {figure['what']} | {measured} | {figure['limit'] or ''} | {kept} |"
