"""Measure what training with stored explanations costs beside the plain training step.

python -m benchmarks.training                   on all-MiniLM-L6-v2
python -m benchmarks.training --model FOLDER    on your own encoder
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from benchmarks import setting
from benchmarks.figures import CLOCKS, Figure, arguments, measure
from benchmarks.setting import ratio
from torch import nn

from salience.data.examples import Example
from salience.models.huggingface import HuggingFace
from salience.training.guides import shaped
from salience.training.loop import Recipe, fit
from salience.training.objectives import Objective, attention_to_explanation, gradient_to_explanation, regularised

BATCH, STEPS = 32, 8


@dataclass(frozen=True, slots=True)
class Setup:
    model: HuggingFace
    examples: list[Example]
    repeats: int
    clock: str

    def race(self, runners: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
        return setting.race(runners, self.repeats, CLOCKS[self.clock])


def step(s: Setup) -> Iterator[Figure]:
    """A step with the attention penalty, against a plain loop with eager attention on the same batches."""
    runners: dict[str, Callable[[], object]] = {
        "plain": partial(plain, s.model, s.examples),
        "vanilla": partial(taught, s, Objective()),
        "attention": partial(taught, s, regularised(attention_to_explanation)),
        "all layers and heads": partial(taught, s, regularised(attention_to_explanation, layers="all", heads="each")),
        "gradient": partial(taught, s, regularised(gradient_to_explanation, 0.01)),
    }
    times = s.race(runners)
    for name, limit in (("vanilla", None), ("attention", "≤ 1.15"), ("all layers and heads", None), ("gradient", None)):
        yield Figure("step", f"{name} by a plain step with eager attention", ratio(times, name, "plain"), limit=limit)


def taught(s: Setup, objective: Objective) -> None:
    list(fit(s.model, s.examples, objective=objective, recipe=Recipe(epochs=1, batch=BATCH, rate=1e-9)))


def plain(model: HuggingFace, examples: list[Example]) -> None:
    """What anyone would write: shuffled batches sorted by length in a window, cross-entropy, AdamW."""
    module = model.module
    before = module.config._attn_implementation
    module.set_attn_implementation("eager")
    module.train()
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-9)
    ordered = sorted(
        ((e, r) for e, r in zip(examples, model.encode([e.text for e in examples]), strict=True)),
        key=lambda pair: -len(pair[1]),
    )
    for start in range(0, len(ordered), BATCH):
        some = ordered[start : start + BATCH]
        batch = model.batch([r for _, r in some])
        logits = module(input_ids=batch.ids, attention_mask=batch.mask.long()).logits
        loss = nn.functional.cross_entropy(logits, torch.tensor([int(e.label) for e, _ in some]))
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimiser.step()
        loss.item()
    module.eval()
    module.set_attn_implementation(before)


BENCHMARKS: Mapping[str, Callable[[Setup], Iterator[Figure]]] = {"step": step}


def main() -> None:
    asked = arguments(__doc__, list(BENCHMARKS)).parse_args()
    torch.set_num_threads(asked.threads)
    model = setting.classifier(Path(asked.model) if asked.model else setting.minilm())
    draw = torch.Generator().manual_seed(0)
    examples: list[Example] = []
    texts = setting.sentences()[: BATCH * STEPS]
    for number, (text, read) in enumerate(zip(texts, model.encode(texts), strict=True)):
        scores = torch.rand(len(read), generator=draw).tolist()
        examples.append(Example(str(number), text, number % 2, None, shaped(scores, read.special, "binary", 0.2)))
    measure(BENCHMARKS, Setup(model, examples, asked.repeats, asked.clock), asked)


if __name__ == "__main__":
    main()
