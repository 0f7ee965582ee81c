"""The peak memory of a call above the model's own, in a process that does nothing else.

python -m benchmarks.memory FOLDER ours|captum NODES    integrated gradients of the text on standard input
python -m benchmarks.memory decoder METHOD TOKENS       a method on a decoder with the dimensions of SmolLM2-135M
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event, Thread
from time import process_time

import torch
from benchmarks import setting
from benchmarks.run import by_captum

from salience.explanations.explainer import explain


def resident() -> float:
    """Megabytes in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def integrated(folder: str, who: str, nodes: int) -> None:
    model, text = setting.classifier(Path(folder)), sys.stdin.read()
    run = {
        "ours": lambda n, t: explain(model, t, "integrated_gradients", nodes=n),
        "captum": lambda n, t: by_captum(model, [t], n),
    }[who]
    run(2, "a first pass loads what stays loaded")
    peak, _ = measured(partial(run, nodes, text))
    print(json.dumps([len(model.encode([text])[0]), peak]))


def on_decoder(method: str, tokens: int) -> None:
    model = setting.smollm2()
    explain(model, "a first pass loads what stays loaded", method)
    peak, seconds = measured(partial(explain, model, " ".join(["word"] * tokens), method))
    print(json.dumps([tokens, peak, seconds]))


def measured(run: Callable[[], object]) -> tuple[float, float]:
    """Megabytes that the call holds at most, and its processor time."""
    before, peak, done = resident(), [0.0], Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], resident())

    watcher, began = Thread(target=watch), process_time()
    watcher.start()
    run()
    seconds = process_time() - began
    done.set()
    watcher.join()
    return peak[0] - before, seconds


def main(what: str, *more: str) -> None:
    torch.set_num_threads(2)
    if what == "decoder":
        on_decoder(more[0], int(more[1]))
    else:
        integrated(what, more[0], int(more[1]))


if __name__ == "__main__":
    main(*sys.argv[1:])
