"""Measure what metrics cost beside the forward passes that they need.

python -m benchmarks.evaluation                   on all-MiniLM-L6-v2
python -m benchmarks.evaluation --model FOLDER    on your own encoder
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from benchmarks import setting
from benchmarks.figures import CLOCKS, Figure, arguments, measure
from benchmarks.setting import Raw, ratio
from torch import Tensor

from salience.batching import pack
from salience.methods import find
from salience.metrics.erasing import measured
from salience.metrics.faithfulness import comprehensiveness, sufficiency, top
from salience.models.huggingface import HuggingFace
from salience.types import Batch, Targets

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
    for rows in pack([len(e) for e in encoded], s.model.budget):
        batch = s.model.batch([encoded[i] for i in rows])
        target = Targets(torch.zeros(len(batch), dtype=torch.long), None, "probability", s.model.link)
        yield batch, find("random")(s.model, batch, target), target


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
    mask, found = s.model.replacements["mask"], list[Tensor]()
    for batch, scores, _ in batches(s):
        tops = [top(scores, batch, share) for share in SHARES]
        wheres = [batch.mask & False, *tops, *(batch.content & ~t for t in tops)]
        for row in range(len(batch)):
            length = int(batch.mask[row].sum())
            rows = {tuple(torch.where(w[row], mask, batch.ids[row])[:length].tolist()) for w in wheres}
            found += [torch.tensor(ids) for ids in rows]
    return found


BENCHMARKS: Mapping[str, Callable[[Setup], Iterator[Figure]]] = {"erasure": erasure}


def main() -> None:
    asked = arguments(__doc__, list(BENCHMARKS)).parse_args()
    torch.set_num_threads(asked.threads)
    model = setting.classifier(Path(asked.model) if asked.model else setting.minilm())
    measure(BENCHMARKS, Setup(model, setting.sentences()[:200], asked.repeats, asked.clock), asked)


if __name__ == "__main__":
    main()
