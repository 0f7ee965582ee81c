"""Measure the web page: how long answers take, alone and with many clients, and whether memory stays the same.

python -m benchmarks.serve                       everything; about five minutes
python -m benchmarks.serve --seconds 10 --requests 500 --rows 10000

The server is a process of its own at a free port of this machine; the clients are threads of this one.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import httpx
import psutil
from tests.server.large import write_large_run

SENTENCE = (
    "Still, this flick is fun, and host to some truly excellent sequences that stay with you for days after you have "
    "left the cinema behind."
)
ASKED = {"text": SENTENCE, "methods": ["input_x_gradient"]}
START = 300.0
"""Seconds to wait for the server."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured, the number, and what it should be."""

    name: str
    value: str
    goal: str


def timed(call: Callable[[], httpx.Response]) -> float:
    """The milliseconds of one answer, which must be a success."""
    began = perf_counter()
    answer = call()
    answer.raise_for_status()
    return 1000 * (perf_counter() - began)


def spread(times: Sequence[float]) -> str:
    ordered = sorted(times)
    return f"{median(ordered):.0f} ms median, {ordered[int(0.95 * (len(ordered) - 1))]:.0f} ms at 95 %"


def alone(client: httpx.Client, repeats: int) -> list[Figure]:
    """One client, a warm server."""
    page = client.get("/")
    size = len(page.content) + sum(len(client.get(part).content) for part in _parts(page.text))
    run = {"run": "out/large"}
    calls: dict[str, tuple[Callable[[], httpx.Response], str]] = {
        "first page": (lambda: client.get("/"), "under 100 ms"),
        "prediction with input × gradient, 25 words": (lambda: client.post("/api/explain", json=ASKED), "under 150 ms"),
        "page of the run": (lambda: client.get("/run", params=run), "under 200 ms"),
        "page of the run, by confidence": (
            lambda: client.get("/run", params={**run, "sort": "confidence"}),
            "under 200 ms",
        ),
        "text search over the run": (lambda: client.get("/run", params={**run, "search": "9999"}), "under 1 s"),
    }
    figures = [Figure("size of the first page with its files", f"{size / 1000:.0f} KB", "under 300 KB")]
    for name, (call, goal) in calls.items():
        first = timed(call)
        times = [timed(call) for _ in range(repeats)]
        figures.append(Figure(name, f"{spread(times)} (first {first:.0f} ms)", goal))
    return figures


def _parts(page: str) -> list[str]:
    """The addresses of the style and of the scripts that a page loads."""
    return [piece.partition('"')[0] for piece in page.split('"') if piece.startswith("/static/")]


def together(address: str, clients: int, seconds: float) -> list[Figure]:
    """Many clients at once for a while."""
    end = perf_counter() + seconds

    def ask(_: int) -> list[float]:
        times: list[float] = []
        with httpx.Client(base_url=address, timeout=60) as client:
            while perf_counter() < end:
                times.append(timed(lambda: client.post("/api/explain", json=ASKED)))
        return times

    with ThreadPoolExecutor(clients) as threads:
        times = [t for own in threads.map(ask, range(clients)) for t in own]
    value = f"{len(times):,} answers, no error, {spread(times)}, slowest {max(times):.0f} ms"
    return [Figure(f"{clients} clients for {seconds:g} s", value, "no error, none above 2 s")]


def growth(client: httpx.Client, server: psutil.Process, requests: int) -> list[Figure]:
    """The memory of the server before and after many requests."""
    for _ in range(200):
        client.post("/api/explain", json=ASKED).raise_for_status()
    before = server.memory_info().rss
    for _ in range(requests):
        client.post("/api/explain", json=ASKED).raise_for_status()
    after = server.memory_info().rss
    value = f"{before / 2**20:.0f} MB before, {after / 2**20:.0f} MB after"
    return [Figure(f"memory over {requests:,} requests", value, "the same")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 100_000), ("repeats", 20), ("clients", 16), ("seconds", 60), ("requests", 5000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/serve.json"))
    given = parser.parse_args()
    with TemporaryDirectory() as place:
        out = Path(place, "out")
        write_large_run(out / "large", given.rows)
        command = [sys.executable, "-m", "benchmarks.serve_one", str(out)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                address = str(server.stdout and server.stdout.readline()).strip()
                with httpx.Client(base_url=address, timeout=60) as client:
                    _wait(client)
                    figures = [*alone(client, given.repeats), *together(address, given.clients, given.seconds)]
                    figures += growth(client, psutil.Process(server.pid), given.requests)
            finally:
                server.terminate()
    load = psutil.getloadavg()[0]
    for figure in figures:
        print(f"{figure.name:<45} {figure.value}   (goal: {figure.goal})", flush=True)
    print(f"load of the machine: {load:.1f} on {psutil.cpu_count()} cores")
    facts = {"load": load, "figures": {f.name: {"value": f.value, "goal": f.goal} for f in figures}}
    given.out.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _wait(client: httpx.Client) -> None:
    """Ask until the server answers; it listens before its models are loaded."""
    client.post("/api/predict", json={"text": SENTENCE}, timeout=START).raise_for_status()


if __name__ == "__main__":
    main()
