"""Measure runs over whole data sets: against the passes alone, by size, and by where they are worked on.

python -m benchmarks.runs                                everything; about two hours on two cores
python -m benchmarks.runs --only run padding             some
python -m benchmarks.runs --texts 200 --rows 1000 10000  smaller, for a first look
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import captum.attr
import torch
from benchmarks import setting
from benchmarks.figures import CLOCKS, Figure, arguments, measure
from benchmarks.one_run import Spent, Wanted
from benchmarks.setting import Raw, ratio

from salience.models.huggingface import HuggingFace
from salience.runs.driver import explain_data

NODES = 16
PARTS = 40
BUNDLED = "sentiment"


@dataclass(frozen=True, slots=True)
class Setup:
    model: HuggingFace
    folder: Path
    """Holds the data and the runs while they are measured, and the model under the name ``model``."""
    texts: int
    rows: Sequence[int]
    repeats: int
    clock: str
    threads: int

    def sentences(self, share: int = 1) -> list[str]:
        """As many as are asked for, or one in ``share`` of them for what takes longer."""
        return setting.sentences()[: max(2, self.texts // share)]

    def file(self, texts: Sequence[str], rows: int | None = None) -> str:
        """The texts as JSON Lines, over again until there are so many rows."""
        handle = Path(mkdtemp(dir=self.folder), "data.jsonl")
        wanted = islice(cycle(texts), len(texts) if rows is None else rows)
        handle.write_text("".join(json.dumps({"text": text}) + "\n" for text in wanted), "utf-8")
        return str(handle)

    def explain(self, data: str, method: str | Sequence[str], **settings: Any) -> None:
        """From file to Parquet in this process, into a new folder every time."""
        explain_data(self.model, data, mkdtemp(dir=self.folder), method, workers=1, **settings)

    def race(self, runners: Mapping[str, Callable[[], Any]]) -> dict[str, list[float]]:
        return setting.race(runners, self.repeats, CLOCKS[self.clock])


def run(s: Setup) -> Iterator[Figure]:
    """From a file to Parquet, against the same passes over ready-made ids and nothing else; and against captum."""
    texts = s.sentences()
    runners = {
        "ours": partial(s.explain, s.file(texts), "input_x_gradient"),
        "raw": Raw.of(s.model, texts).gradients,
        "captum": partial(by_captum, s.model, texts),
    }
    times = s.race(runners)
    what = f"input_x_gradient from file to Parquet by raw passes, {len(texts)} sentences"
    yield Figure("run", what, ratio(times, "ours", "raw"), limit="≤ 1.25")
    what = f"captum's InputXGradient, text by text, by ours, {len(texts)} sentences"
    yield Figure("run", what, ratio(times, "captum", "ours"), limit="≥ 1.4")
    texts = s.sentences(share=4)
    runners = {
        "ours": partial(s.explain, s.file(texts), "integrated_gradients", nodes=NODES),
        "raw": partial(Raw.of(s.model, texts).paths, NODES),
    }
    what = f"integrated_gradients with {NODES} nodes from file to Parquet by raw passes, {len(texts)} sentences"
    yield Figure("run", what, ratio(s.race(runners), "ours", "raw"), limit="≤ 1.10")


def by_captum(model: HuggingFace, texts: Sequence[str]) -> None:
    """captum's InputXGradient in a plain loop; it has to be told the label, which takes a forward pass."""
    for text in texts:
        read = model.tokenizer(text, truncation=True, return_tensors="pt")

        def logits(at: torch.Tensor, mask: torch.Tensor = read.attention_mask) -> torch.Tensor:
            return model.module(inputs_embeds=at, attention_mask=mask).logits

        e = model.module.get_input_embeddings()(read.input_ids).detach()
        with torch.no_grad():
            label = int(logits(e).argmax())
        captum.attr.InputXGradient(logits).attribute(e.requires_grad_(), target=label).sum(-1).tolist()


def padding(s: Setup) -> Iterator[Figure]:
    """The share of all tokens passed to the model that are padding."""
    movies = setting.reviews()
    if not movies:
        print("  without the movie reviews: they are not at hand")
    for method, settings, name, texts in (
        ("input_x_gradient", {}, "SST-2 sentences", s.sentences()),
        ("input_x_gradient", {}, "ERASER movie reviews", movies[: max(2, s.texts // 10)]),
        ("integrated_gradients", {"nodes": NODES}, "SST-2 sentences", s.sentences(share=4)),
        ("integrated_gradients", {"nodes": NODES}, "ERASER movie reviews", movies[: max(2, s.texts // 40)]),
    ):
        if texts:
            with counted(s.model.module) as seen:
                s.explain(s.file(texts), method, **settings)
            share = 1 - sum(real for real, _ in seen) / sum(total for _, total in seen)
            yield Figure("padding", f"{method}, {len(texts)} {name}", 100 * share, "%", "≤ 3")


@contextmanager
def counted(module: torch.nn.Module) -> Iterator[list[tuple[int, int]]]:
    """Real and all tokens of every pass."""
    seen: list[tuple[int, int]] = []

    def look(_module: torch.nn.Module, _args: tuple[Any, ...], options: dict[str, Any]) -> None:
        mask = options["attention_mask"]
        seen.append((int(mask.sum()), mask.numel()))

    handle = module.register_forward_pre_hook(look, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()


def together(s: Setup) -> Iterator[Figure]:
    """Methods that share their pass, in one run, against the dearest of them in a run of its own."""
    texts = s.sentences(share=4)
    data = s.file(texts)
    with setting.language_head(Path(s.model.name)) as head:
        layers = {"layer_saliency.layer": "all", "layer_saliency.decode": "restricted", "layer_saliency.head": head}
        alone = {name: partial(s.explain, data, name) for name in ("gradient", "input_x_gradient", "attention")}
        alone["layer_saliency"] = partial(s.explain, data, "layer_saliency", **layers)
        times = s.race({**alone, "together": partial(s.explain, data, list(alone), **layers)})
    dearest = max(alone, key=lambda name: median(times[name]))
    what = f"gradient, input_x_gradient, attention and all layers by {dearest} alone, {len(texts)} sentences"
    yield Figure("together", what, ratio(times, "together", dearest), limit="≤ 1.30")


def growth(s: Setup) -> Iterator[Figure]:
    """Ever more rows with the bundled model, each time in a process of its own: neither time nor memory may add up."""
    few, most = min(s.rows), max(s.rows)
    warm = s.file(s.sentences(), 100)
    wanted = {n: Wanted(BUNDLED, s.file(s.sentences(), n), threads=s.threads, warm=warm) for n in s.rows}
    # The small sizes take seconds, so that chance weighs more in them: three runs of each in every round.
    runners = {str(n): partial(_repeated, w, 1 if n == most else 3) for n, w in wanted.items()}
    results = setting.rounds(runners, s.repeats)
    spent = {n: [one for some in results[str(n)] for one in some] for n in s.rows}
    seconds = {n: median(getattr(one, s.clock) for one in runs) * 1000 / n for n, runs in spent.items()}
    peaks = {n: median(one.peak for one in runs) for n, runs in spent.items()}
    sizes = ", ".join(f"{n:,}" for n in s.rows)
    yield Figure("growth", f"largest by smallest time per row, of {sizes} rows", _spread(seconds), limit="≤ 1.15")
    yield Figure("growth", f"largest by smallest peak memory, of {sizes} rows", _spread(peaks), limit="≤ 1.15")
    for n in s.rows:
        yield Figure("growth", f"1,000 rows, of {n:,}", seconds[n], "s")
        yield Figure("growth", f"peak memory, {n:,} rows", peaks[n], "MB")
    for engine in ("local", *rays()):
        cold = {n: replace(wanted[n], engine=engine, workers=2, warm=None, rows_per_part=500) for n in (few, most)}
        peaks = {n: w.spent().peak for n, w in cold.items()}
        what = f"peak memory of the driver of 2 {engine} workers, {most:,} by {few:,} rows"
        yield Figure("growth", what, peaks[most] / peaks[few], limit="≤ 1.15")


def _repeated(wanted: Wanted, repeats: int) -> list[Spent]:
    return [wanted.spent() for _ in range(repeats)]


def _spread(values: Mapping[int, float]) -> float:
    return max(values.values()) / min(values.values())


def rays() -> tuple[str, ...]:
    """The engine, where it is installed."""
    if find_spec("ray") is None:
        print("  without ray: it is not installed")
        return ()
    return ("ray",)


def engines(s: Setup) -> Iterator[Figure]:
    """Two workers of a Ray cluster on this machine, against two local processes."""
    if rays():
        places = {"local": replace(_minilm(s), workers=2), "ray": replace(_minilm(s), engine="ray", workers=2)}
        yield from _compared("engines", s, places, "MiniLM", s.texts, "≤ 1.15")
        places = {name: replace(wanted, model=BUNDLED) for name, wanted in places.items()}
        yield from _compared("engines", s, places, "the bundled model", 5 * s.texts, None)


def workers(s: Setup) -> Iterator[Figure]:
    """Two processes of one thread each, against one process of two threads."""
    places = {"1 process": _minilm(s), "2 processes": replace(_minilm(s), workers=2)}
    yield from _compared("workers", s, places, "MiniLM", s.texts, None)
    places = {name: replace(wanted, model=BUNDLED) for name, wanted in places.items()}
    yield from _compared("workers", s, places, "the bundled model", 5 * s.texts, None)


def _minilm(s: Setup) -> Wanted:
    return Wanted(str(s.folder / "model"), "", threads=2)


def _compared(
    benchmark: str, s: Setup, places: Mapping[str, Wanted], model: str, rows: int, limit: str | None
) -> Iterator[Figure]:
    """The second place by the first, from the first part to the last; and what remains of the runs, by itself.

    With two workers the first part comes as the second one is half done, or nearly done: parts are small for that.
    """
    data, part = s.file(s.sentences(), rows), max(1, rows // PARTS)
    wanted = {name: replace(place, data=data, rows_per_part=part) for name, place in places.items()}
    results = setting.rounds({name: one.spent for name, one in wanted.items()}, s.repeats)
    one, other = places
    what = f"{other} by {one}, {model}, {rows:,} rows, from the first part to the last"
    times = {name: [spent.part for spent in results[name]] for name in places}
    yield Figure(benchmark, what, ratio(times, other, one), limit=limit)
    for name in places:
        start = median(spent.wall - spent.parts * spent.part for spent in results[name])
        yield Figure(benchmark, f"start and end of {name}, {model}", start, "s")


BENCHMARKS: Mapping[str, Callable[[Setup], Iterator[Figure]]] = {
    f.__name__: f for f in (run, padding, together, growth, engines, workers)
}


def main() -> None:
    parser = arguments(__doc__, list(BENCHMARKS))
    parser.set_defaults(repeats=3)
    parser.add_argument("--texts", type=int, default=2000, help="sentences; a quarter of them for what takes longer")
    sizes = (1000, 10_000, 100_000)
    parser.add_argument("--rows", type=int, nargs="+", default=sizes, help="sizes of data for growth")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    model = setting.classifier(Path(asked.model) if asked.model else setting.minilm())
    with TemporaryDirectory() as folder:
        # Other processes load it by name, so that the head must be in it.
        model.module.save_pretrained(Path(folder, "model"))
        model.tokenizer.save_pretrained(Path(folder, "model"))
        s = Setup(model, Path(folder), asked.texts, asked.rows, asked.repeats, asked.clock, asked.threads)
        measure(BENCHMARKS, s, asked)


if __name__ == "__main__":
    main()
