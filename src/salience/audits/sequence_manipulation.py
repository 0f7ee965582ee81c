"""Can attention hide which word an encoder-decoder uses? (Pruthi et al. 2020, sequence to sequence)"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from salience.audits.finding import Finding, Measure, by_difference
from salience.audits.manipulation import WEIGHTS
from salience.core.files import claim, locked
from salience.core.rows import lengths
from salience.core.settings import NotNegative
from salience.data.copying import REARRANGEMENTS, Rearrangement, rearranged
from salience.data.pairs import Pair
from salience.errors import BadInput, choose
from salience.models.seq2seq import EOS, Seq2Seq, Seq2SeqConfig, symbol_tokenizer
from salience.training.loop import Recipe
from salience.training.objectives import TINY
from salience.training.sequences import EncodedPair, PairStep, encode_pairs, fit_pairs, forced
from salience.training.translators import MARK, VOCABULARY, translator_start

SYMBOLS = 30
RECIPE = Recipe(epochs=15, batch=64, rate=3e-3, warmup=0.05, decay=0.0)
TRANSLATED = Recipe(epochs=5, batch=64, rate=2e-3, warmup=0.05, decay=0.0)
SHAPE = Seq2SeqConfig(0, hidden=128, layers=1, dropout=0.0)

CONTROLS = {"uniform": "uniform attention", "none": "no attention"}
"""The scoring of models that cannot attend, and what they are called."""

STUDIES = "sequences.json"
"""The file that says what a folder holds."""

SequenceTask = Literal[Rearrangement, "translation"]


@contextmanager
def sequence_folder(folder: Path | None) -> Generator[None]:
    """Lock a folder for the checkpoints of studies; one that holds something else is refused."""
    with nullcontext() if folder is None else locked(folder, STUDIES):
        if folder is not None:
            claim(folder / STUDIES, {"audit": sequence_manipulation.__name__})
        yield


@dataclass(frozen=True, slots=True)
class SequenceStudy:
    """The pairs of a task with their alignments, and how its models are made and trained."""

    task: SequenceTask
    train: Sequence[Pair]
    test: Sequence[Pair]
    start: Seq2Seq
    """The model that every training starts from."""
    recipe: Recipe = RECIPE
    folder: Path | None = None
    """Where checkpoints are kept, so that an interrupted audit resumes."""

    def trained(self, name: str, weight: float = 0.0, **changes: str) -> Seq2Seq:
        """Train a copy of the first model, with a penalty on attention to the aligned tokens."""
        model = Seq2Seq.new(replace(self.start.config, **changes), self.start.tokenizer, name=name)
        model.module.load_state_dict(self.start.module.state_dict())
        place = None if self.folder is None else self.folder / f"{self.task}-{name}"
        penalty = aligned_attention if weight else None
        for _ in fit_pairs(model, self.train, penalty=penalty, weight=weight, recipe=self.recipe, folder=place):
            pass
        return model


def rearranging(
    task: Rearrangement, *, train: int = 5000, test: int = 500, folder: Path | None = None, recipe: Recipe = RECIPE
) -> SequenceStudy:
    """A study of random sequences that are copied, reversed, or whose neighbours are swapped."""
    choose(task, REARRANGEMENTS, "task")
    pairs = [rearranged(task, count, symbols=SYMBOLS, seed=seed) for seed, count in enumerate((train, test))]
    tokenizer = symbol_tokenizer(map(str, range(SYMBOLS)))
    config = replace(SHAPE, vocabulary=tokenizer.get_vocab_size())
    return SequenceStudy(task, pairs[0], pairs[1], Seq2Seq.new(config, tokenizer, seed=recipe.seed), recipe, folder)


def translating(
    train: Sequence[Pair], test: Sequence[Pair], *, folder: Path | None = None, recipe: Recipe = TRANSLATED
) -> SequenceStudy:
    """A study of sentences with word alignments, such as Multi30k with those of fast_align."""
    if not any(pair.sure for pair in train):
        raise BadInput("no pair has a word alignment, which says what attention should hide")
    place = None if folder is None else folder / "translation"
    with nullcontext() if place is None else locked(place, MARK):
        start = translator_start(place, train, VOCABULARY, None, SHAPE, recipe)
    return SequenceStudy("translation", train, test, start, recipe, folder)


def aligned_mass(step: PairStep) -> Float[Tensor, " b"]:
    """Attention on the source tokens that each token of the answer is aligned with: a mean over heads and over the
    tokens of the answer that have such a link. NaN for pairs without one.
    """
    return _mass(step).masked_fill(~step.links.any((1, 2)), torch.nan)


def aligned_attention(step: PairStep) -> Float[Tensor, " b"]:
    """−log(1 − mean mass on the aligned tokens); 0 for pairs without a link.

    Paper: Pruthi et al. 2020, arXiv:1909.07913, section 5
    """
    return -(1 - _mass(step)).clamp_min(TINY).log()


def _mass(step: PairStep) -> Float[Tensor, " b"]:
    """The aligned mass, with 0 for pairs without a link: a NaN would make the gradient of the whole batch NaN."""
    mass = (step.output.attention.mean(1) * step.links).sum((1, 2))
    return mass / step.links.any(-1).sum(1).clamp_min(1)


def accuracy_and_mass(model: Seq2Seq, pairs: Sequence[Pair]) -> tuple[np.ndarray, np.ndarray]:
    """For every pair, the share of tokens of the answer that are predicted, and the attention on aligned tokens.

    The token that ends an answer does not count.
    """
    encoded = encode_pairs(model, pairs)
    results = np.full((2, len(pairs)), np.nan)

    def work(items: list[int]) -> Tensor:
        with model.executor.lock, torch.no_grad():
            return _measured(model, [encoded[i] for i in items])

    for items, values in model.executor.run(lengths([e.source for e in encoded]), work):
        results[:, items] = values.double().cpu().numpy()
    return results[0], results[1]


def _measured(model: Seq2Seq, pairs: Sequence[EncodedPair]) -> Float[Tensor, "2 b"]:
    step = forced(model, pairs)
    outputs = step.answers.outputs
    own = step.answers.mask & (outputs != model.ids[EOS])  # that the answer ends is nearly free to predict
    right = (step.output.logits.argmax(-1) == outputs) & own
    return torch.stack([right.sum(1) / own.sum(1), aligned_mass(step)])


def sequence_manipulation(
    study: SequenceStudy,
    *,
    weights: Sequence[NotNegative] = WEIGHTS,
    step: Callable[[str], None] = lambda _: None,
) -> Finding:
    """Can attention hide which word an encoder-decoder uses?

    Models are trained with L = CE − λ · log(1 − mean mass on the aligned words), one with uniform attention, and one
    whose decoder reads only the last state of the encoder.
    """
    if not weights:
        raise BadInput("weights of sequence_manipulation is empty; give at least one λ")
    measured: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for weight in sorted(weights):
        step(f"λ = {weight:g}")
        model = study.trained(f"weight-{weight:g}", weight)
        measured[f"λ = {weight:g}"] = accuracy_and_mass(model, study.test)
    for scoring in ("uniform", "none"):
        step(name := CONTROLS[scoring])
        measured[name] = accuracy_and_mass(study.trained(scoring, scoring=scoring), study.test)
    strongest = f"λ = {max(weights):g}"
    lead = Measure.between(
        f"accuracy, {strongest} − uniform attention", measured[strongest][0], measured["uniform attention"][0]
    )
    rows = [
        measure
        for name, (accuracy, mass) in measured.items()
        for measure in (
            Measure.of(f"accuracy, {name}", accuracy, "share"),
            Measure.of(f"attention on aligned words, {name}", mass, "share"),
        )
    ]
    fall = Measure.between("attention on aligned words", measured[strongest][1], measured["uniform attention"][1])
    hidden = fall.estimate.high < 0
    listed = "; ".join(f"{name}: {a.mean():.1%} with {np.nanmean(m):.1%}" for name, (a, m) in measured.items())
    return Finding(
        test=f"sequence_manipulation ({study.task})",
        question="Can attention hide which word an encoder-decoder uses?",
        measures=(lead, *rows),
        expected="a model with less attention on the aligned words than a uniform one is no better than that one",
        verdict=by_difference(lead.estimate, more_is_explanation=False) if hidden else "unclear",
        answer=f"Accuracy of tokens, and attention on the aligned words: {listed}.",
        source="Pruthi et al. 2020, arXiv:1909.07913",
    )
