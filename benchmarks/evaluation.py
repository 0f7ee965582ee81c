"""Measure what metrics cost beside the forward passes that they need, and how many they need.

python -m benchmarks.evaluation                   on all-MiniLM-L6-v2 and on the bundled model
python -m benchmarks.evaluation --model FOLDER    on your own encoder instead of MiniLM
python -m benchmarks.evaluation --only rows       the rows that `salience evaluate` passes
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from benchmarks import setting
from benchmarks.figures import CLOCKS, Figure, arguments, measure
from benchmarks.setting import Raw, ratio
from torch import Tensor

import salience
from salience.core.executor import pack
from salience.core.types import Batch, Targets
from salience.data import source
from salience.data.examples import examples
from salience.evaluation.evaluator import DEFAULT_METHODS, DEFAULT_METRICS
from salience.methods import CONTROLS, find_method
from salience.metrics import find_metrics
from salience.metrics.erasing import measured
from salience.metrics.faithfulness import comprehensiveness, sufficiency, top
from salience.models.huggingface import HuggingFace

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True, slots=True)
class Setup:
    model: HuggingFace
    texts: list[str]
    repeats: int
    clock: str


def erasure(s: Setup) -> Iterator[Figure]:
    """Comprehensiveness and sufficiency in five bins, against plain forward passes of the same erased texts."""
    raw = replace(Raw.of(s.model, s.texts), ids=sorted(erased(s), key=len, reverse=True))
    times = setting.race({"ours": partial(ours, s), "raw": partial(plain, raw)}, s.repeats, CLOCKS[s.clock])
    what = f"comprehensiveness and sufficiency of {len(s.texts)} sentences by {len(raw.ids):,} raw forward passes"
    yield Figure("erasure", what, ratio(times, "ours", "raw"), limit="≤ 1.30")


def batches(s: Setup) -> Iterator[tuple[Batch, Tensor, Targets]]:
    """Each with scores that cost nothing."""
    encoded = s.model.encode(s.texts)
    for rows in pack([len(e) for e in encoded], s.model.executor.budget):
        batch = s.model.batch([encoded[i] for i in rows])
        target = Targets(torch.zeros(len(batch), dtype=torch.long), None, "probability", s.model.link)
        yield batch, find_method("random")(s.model, batch, target).scores, target


def ours(s: Setup) -> None:
    """From texts to numbers, tokenizing and all."""
    for batch, scores, target in batches(s):
        measured(s.model, batch, [scores], target, [(comprehensiveness, {}), (sufficiency, {})])


def plain(raw: Raw) -> None:
    for ids, mask in raw.batches():
        with torch.no_grad():
            raw.module(input_ids=ids, attention_mask=mask)


def erased(s: Setup) -> list[Tensor]:
    """The ids of every erased text that is needed, each once."""
    mask, copies = s.model.replacements["mask"], list[Tensor]()
    for batch, scores, _ in batches(s):
        tops = [top(scores, batch, share) for share in SHARES]
        wheres = [batch.mask & False, *tops, *(batch.content & ~t for t in tops)]
        for row in range(len(batch)):
            length = int(batch.mask[row].sum())
            rows = {tuple(torch.where(w[row], mask, batch.ids[row])[:length].tolist()) for w in wheres}
            copies += [torch.tensor(ids) for ids in rows]
    return copies


# ------------------------------------------------------------------------------------------------------ rows passed


def rows(_: Setup) -> Iterator[Figure]:
    """The rows that the evaluation of the bundled sample passes, against one pass per method, metric and erasure."""
    model, texts = salience.load(), examples(source(setting.SAMPLE, id="id", rationale="rationale_spans"))
    salience.evaluate(model, texts[:1])  # what is found out about a model once
    passed: list[int] = []

    def count(_: torch.nn.Module, _args: tuple[Any, ...], named: dict[str, Any]) -> None:
        passed.append(len(named["input_ids"]))

    handle = model.module.register_forward_pre_hook(count, with_kwargs=True)
    try:
        salience.evaluate(model, texts)
    finally:
        handle.remove()
    asked = sum(naive(int(n)) for n in model.batch(model.encode([e.text for e in texts])).content.sum(1))
    what = f"rows passed by the evaluation of {len(texts)} texts, {sum(passed):,}, by the {asked:,} that are asked for"
    yield Figure("rows", what, sum(passed) / asked, limit="≤ 0.35")


def naive(tokens: int) -> int:
    """The erased copies of a text of so many tokens that all methods and metrics ask for, the whole text included."""
    copies = {
        "comprehensiveness": 5,
        "sufficiency": 5,
        "hiding_area": 21,
        "decision_flip": tokens,
        "loo_spearman": tokens,
    }
    assert {m.name for m in find_metrics(DEFAULT_METRICS)} == copies.keys()
    return (len(DEFAULT_METHODS) + len(CONTROLS)) * sum(1 + number for number in copies.values())


def seconds(_: Setup) -> Iterator[Figure]:
    """The whole command, start and all, on two free cores."""
    started = perf_counter()
    subprocess.run([sys.executable, "-c", "from salience.cli import main; main()", "evaluate", "--quiet"], check=True)
    yield Figure("seconds", "salience evaluate, on the bundled model and sample", perf_counter() - started, "s", "≤ 30")


BENCHMARKS: Mapping[str, Callable[[Setup], Iterator[Figure]]] = {"erasure": erasure, "rows": rows, "seconds": seconds}


def main() -> None:
    asked = arguments(__doc__, list(BENCHMARKS)).parse_args()
    torch.set_num_threads(asked.threads)
    ours = not {"erasure"} & set(asked.only)
    model = salience.load() if ours else setting.classifier(Path(asked.model) if asked.model else setting.minilm())
    measure(BENCHMARKS, Setup(model, setting.sentences()[:200], asked.repeats, asked.clock), asked)


if __name__ == "__main__":
    main()
