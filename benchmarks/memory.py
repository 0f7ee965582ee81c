"""The peak memory of integrated gradients above the model's own: FOLDER ours|captum NODES, text on standard input."""

import json
import sys
from pathlib import Path
from threading import Event, Thread

import torch
from benchmarks import setting
from benchmarks.run import by_captum

from salience.explanations.explainer import explain


def resident() -> float:
    """Megabytes in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def main(folder: str, who: str, nodes: int) -> None:
    torch.set_num_threads(2)
    model, text = setting.classifier(Path(folder)), sys.stdin.read()
    run = {
        "ours": lambda n, t: explain(model, t, "integrated_gradients", nodes=n),
        "captum": lambda n, t: by_captum(model, [t], n),
    }[who]
    run(2, "a first pass loads what stays loaded")
    before, peak, done = resident(), [0.0], Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], resident())

    watcher = Thread(target=watch)
    watcher.start()
    run(nodes, text)
    done.set()
    watcher.join()
    print(json.dumps([len(model.encode([text])[0]), peak[0] - before]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
