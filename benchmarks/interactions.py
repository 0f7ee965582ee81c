"""Interactions relative to the raw forward passes that they need, and the time of a counterfactual.

python -m benchmarks.interactions                          everything
python -m benchmarks.interactions --only occlusion         one of them, or several

Both sides take turns in one process, on one thread. Raw: plain transformers calls on prepared ids, batched to the same
number of tokens. The ratio includes everything salience adds: tokenising, checks, and building the result.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from time import perf_counter, process_time

import torch
from benchmarks.setting import decoder, race, ratio

import salience
from salience.models.huggingface import HuggingFace

TWENTY = "the film is not bad at all but it is far too long and the story never comes to life"
TWELVE = "the film is not bad at all but it is too long"


@dataclass(frozen=True, slots=True)
class Setup:
    model: HuggingFace
    repeats: int
    clock: Callable[[], float]

    def against(self, ours: Callable[[], object], raw: Callable[[], object]) -> str:
        times = race({"ours": ours, "raw": raw}, self.repeats, self.clock)
        spread = [a / b for a, b in zip(times["ours"], times["raw"], strict=True)]
        return f"{ratio(times, 'ours', 'raw'):.2f} × ({min(spread):.2f} to {max(spread):.2f})"


def words(model: HuggingFace, text: str, count: int) -> torch.Tensor:
    """The ids of a text, all of whose words are single tokens."""
    (encoded,) = model.encode([text])
    assert len(text.split()) == count == len(encoded) - sum(encoded.special), encoded.tokens
    return torch.tensor(encoded.ids)


def read(model: HuggingFace, ids: torch.Tensor, erased: torch.Tensor, mask: int) -> None:
    """Read copies of a text with words masked, packed to the budget."""
    first = (len(ids) - erased.shape[1]) // 2  # a special token at both ends, or none
    rows = ids.repeat(len(erased), 1)
    rows[:, first : first + erased.shape[1]][erased] = mask
    for part in rows.split(max(1, model.executor.budget // len(ids))):
        with torch.no_grad():
            model.module(input_ids=part, attention_mask=torch.ones_like(part))


def up_to_two(n: int) -> torch.Tensor:
    """No word erased, each one, and each pair."""
    chosen = [(), *((i,) for i in range(n)), *combinations(range(n), 2)]
    return torch.tensor([[i in some for i in range(n)] for some in chosen])


def occlusion(s: Setup) -> Iterator[str]:
    """All pairs of 20 words: 211 copies."""
    ids, mask = words(s.model, TWENTY, 20), s.model.replacements["mask"]
    ours = partial(salience.explain_interactions, s.model, TWENTY, "pairwise_occlusion")
    raw = partial(read, s.model, ids, up_to_two(20), mask)
    yield f"pairwise_occlusion of 20 words by 211 raw forwards: {s.against(ours, raw)}"


def causal(s: Setup) -> Iterator[str]:
    """The same on a causal model, whose copies share a prefix."""
    model = decoder(s.model.tokenizer)
    (encoded,) = model.encode([TWENTY])
    n = len(encoded) - sum(encoded.special)
    ours = partial(salience.explain_interactions, model, TWENTY, "pairwise_occlusion")
    raw = partial(read, model, torch.tensor(encoded.ids), up_to_two(n), s.model.replacements["mask"])
    yield f"pairwise_occlusion of 20 words on a causal model by its raw forwards: {s.against(ours, raw)}"


def taylor(s: Setup) -> Iterator[str]:
    """All coalitions of 12 words: 4,096 copies."""
    ids, mask = words(s.model, TWELVE, 12), s.model.replacements["mask"]
    every = (torch.arange(4096)[:, None] >> torch.arange(12) & 1).bool()
    ours = partial(salience.explain_interactions, s.model, TWELVE, "shapley_taylor")
    raw = partial(read, s.model, ids, every, mask)
    yield f"shapley_taylor of 12 words by 4,096 raw forwards: {s.against(ours, raw)}"


def counterfactual(s: Setup) -> Iterator[str]:
    """Seconds for one text, the model already loaded; deletions and replacements by beam search."""
    times = race({"ours": partial(salience.counterfactual, s.model, TWENTY)}, s.repeats, s.clock)["ours"]
    yield f"counterfactual of 20 words: {min(times):.2f} to {max(times):.2f} s"


BENCHMARKS = {f.__name__: f for f in (occlusion, causal, taylor, counterfactual)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), default=list(BENCHMARKS), metavar="NAME")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="cpu", help="cpu is steadier on a busy machine")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    s = Setup(salience.load(), asked.repeats, {"wall": perf_counter, "cpu": process_time}[asked.clock])
    for name in asked.only:
        for line in BENCHMARKS[name](s):
            print(line, flush=True)


if __name__ == "__main__":
    main()
