"""Measure the tests that replace attention against a loop over texts, and the whole audit of the bundled model.

python -m benchmarks.audits                                  everything
python -m benchmarks.audits --only audit_permutation         one of them, or several
python -m benchmarks.audits --threads 1 --clock cpu          on a busy machine

The loop runs one text at a time, as a whole: its candidates share a pass, its shuffles do not. It is timed on a few
texts between the rounds of the batched version, and extrapolated by their tokens.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from time import perf_counter

import torch
from benchmarks import setting
from benchmarks.figures import CLOCKS, Figure, arguments, measure

import salience
from salience.audits.adversary import adversarial
from salience.audits.permutation import shuffled
from salience.audits.weights import Attended
from salience.core.distances import total_variation
from salience.core.passes import forward
from salience.core.randomness import by_token
from salience.core.types import Site
from salience.models.pooled import Pooled

SHUFFLES = 100


@dataclass(frozen=True, slots=True)
class Setup:
    model: Pooled
    texts: Sequence[str]
    repeats: int
    clock: str
    threads: int


def adversary(s: Setup) -> Iterator[Figure]:
    """500 steps with 5 candidates for each of 500 texts."""
    yield from _against_loop(s, "adversary", s.texts[:500], sample=3, one=partial(_one_adversary, s.model))


def permutation(s: Setup) -> Iterator[Figure]:
    """100 shuffles of every text."""
    yield from _against_loop(s, "permutation", s.texts, sample=20, one=partial(_one_permutation, s.model))


def _against_loop(
    s: Setup, test: str, texts: Sequence[str], sample: int, one: Callable[[str], object]
) -> Iterator[Figure]:
    chosen = texts[:: len(texts) // sample][:sample]
    lengths = {text: len(encoded) for text, encoded in zip(texts, s.model.encode(texts), strict=True)}
    scale = sum(lengths[t] for t in texts) / sum(lengths[t] for t in chosen)
    one(chosen[0])  # what torch does once
    runners = {
        "batched": partial(_timed, s, lambda: salience.audit(s.model, texts, tests=test)),
        "loop": partial(_timed, s, lambda: [one(text) for text in chosen]),
    }
    seconds = setting.rounds(runners, s.repeats)
    batched = median(seconds["batched"])
    speedup = median(loop * scale / ours for ours, loop in zip(seconds["batched"], seconds["loop"], strict=True))
    yield Figure(f"audit_{test}", f"{test} of {len(texts):,} SST-2 texts, bundled BiLSTM", batched, "s", "≤ 60")
    yield Figure(f"audit_{test}", f"the same, one text at a time ({sample} texts, extrapolated)", speedup, "×", "≥ 20")


def _timed(s: Setup, run: Callable[[], object]) -> float:
    clock = CLOCKS[s.clock]
    start = clock()
    run()
    return clock() - start


def _whole(model: Pooled, text: str) -> Attended:
    """One text, whose passes start at its embeddings."""
    return replace(Attended.of(model, model.batch(model.encode([text]))), start=None)


def _one_adversary(model: Pooled, text: str) -> None:
    adversarial(_whole(model, text))


def _one_permutation(model: Pooled, text: str) -> float:
    own = _whole(model, text)
    keys = by_token(own.batch, 0, lambda n, g: torch.rand(n, SHUFFLES, generator=g))

    def edit(site: Site, a: torch.Tensor, number: int) -> torch.Tensor:
        return shuffled(a, keys[..., number], own.visible)

    logits = [forward(model, own.batch, edit_attention=partial(edit, number=i)).logits for i in range(SHUFFLES)]
    changes = total_variation(torch.cat(logits).softmax(-1), own.probabilities)
    return float(changes.quantile(0.5))


def whole(s: Setup) -> Iterator[Figure]:
    """The command without arguments, from start to end."""
    before, start = getrusage(RUSAGE_CHILDREN), perf_counter()
    code = f"import torch; torch.set_num_threads({s.threads}); from salience.cli import main; main()"
    subprocess.run([sys.executable, "-c", code, "audit", "--quiet"], check=True, stdout=subprocess.DEVNULL)
    wall, after = perf_counter() - start, getrusage(RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    what = "salience audit, all tests without retraining, bundled transformer and sample"
    yield Figure("audit", what, cpu if s.clock == "cpu" else wall, "s", "≤ 120")


BENCHMARKS: Mapping[str, Callable[[Setup], Iterator[Figure]]] = {
    "audit_adversary": adversary,
    "audit_permutation": permutation,
    "audit": whole,
}


def main() -> None:
    asked = arguments(__doc__, list(BENCHMARKS)).parse_args()
    torch.set_num_threads(asked.threads)
    model = salience.load("sentiment_bilstm")
    texts = setting.test_sentences()
    measure(BENCHMARKS, Setup(model, texts, asked.repeats, asked.clock, asked.threads), asked)


if __name__ == "__main__":
    main()
