"""Interactions relative to the raw forward passes that they need, and the time of a counterfactual.

python -m benchmarks.interactions --threads 1                          everything
python -m benchmarks.interactions --threads 1 --only pairs --clock cpu       one of them, or several

Both sides take turns in one process. Raw: plain transformers calls on prepared ids, batched to the same
number of tokens. The ratio includes everything salience adds: tokenising, checks, and building the result.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from statistics import median

import torch
from benchmarks.figures import CLOCKS, Figure, arguments, measure
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

    def against(self, ours: Callable[[], object], raw: Callable[[], object]) -> float:
        return ratio(race({"ours": ours, "raw": raw}, self.repeats, self.clock), "ours", "raw")


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


def pairs(s: Setup) -> Iterator[Figure]:
    """All pairs of 20 words: 211 copies."""
    ids, mask = words(s.model, TWENTY, 20), s.model.replacements["mask"]
    ours = partial(salience.explain_interactions, s.model, TWENTY, "pairwise_occlusion")
    raw = partial(read, s.model, ids, up_to_two(20), mask)
    yield Figure("pairs", "pairwise_occlusion of 20 words by 211 raw forwards", s.against(ours, raw), limit="≤ 1.10")


def causal_pairs(s: Setup) -> Iterator[Figure]:
    """The same on a causal model, whose copies share a prefix."""
    model = decoder(s.model.tokenizer)
    (encoded,) = model.encode([TWENTY])
    n = len(encoded) - sum(encoded.special)
    ours = partial(salience.explain_interactions, model, TWENTY, "pairwise_occlusion")
    raw = partial(read, model, torch.tensor(encoded.ids), up_to_two(n), s.model.replacements["mask"])
    what = "pairwise_occlusion of 20 words on a causal model by its raw forwards"
    yield Figure("causal_pairs", what, s.against(ours, raw), limit="≤ 1.10")


def taylor(s: Setup) -> Iterator[Figure]:
    """All coalitions of 12 words: 4,096 copies."""
    ids, mask = words(s.model, TWELVE, 12), s.model.replacements["mask"]
    every = (torch.arange(4096)[:, None] >> torch.arange(12) & 1).bool()
    ours = partial(salience.explain_interactions, s.model, TWELVE, "shapley_taylor")
    raw = partial(read, s.model, ids, every, mask)
    yield Figure("taylor", "shapley_taylor of 12 words by 4,096 raw forwards", s.against(ours, raw), limit="≤ 1.10")


def counterfactual(s: Setup) -> Iterator[Figure]:
    """Seconds for one text, the model already loaded; deletions and replacements by beam search."""
    times = race({"ours": partial(salience.counterfactual, s.model, TWENTY)}, s.repeats, s.clock)["ours"]
    yield Figure("counterfactual", "a counterfactual of 20 words", median(times), "s", "≤ 3")


BENCHMARKS: Mapping[str, Callable[[Setup], Iterator[Figure]]] = {
    f.__name__: f for f in (pairs, causal_pairs, taylor, counterfactual)
}


def main() -> None:
    asked = arguments(__doc__, list(BENCHMARKS)).parse_args()
    torch.set_num_threads(asked.threads)
    measure(BENCHMARKS, Setup(salience.load(), asked.repeats, CLOCKS[asked.clock]), asked)


if __name__ == "__main__":
    main()
