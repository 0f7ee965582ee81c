"""Training of encoder-decoders on pairs of texts, with the same loop and checkpoints as :func:`fit`."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from salience.core.text import Encoded
from salience.core.types import Batch
from salience.data.pairs import Pair, WordLink, word_of_token
from salience.errors import BadInput, Diverged, TruncatedText
from salience.models.identity import digest
from salience.models.seq2seq import Answers, Decoded, Seq2Seq
from salience.training.loop import Epoch, Probe, Recipe, State, TrainingProgress, Update, diverged, one_epoch, order

TRANSLATION = Recipe(epochs=6, batch=64, rate=2e-3, warmup=0.05, decay=0.0)
"""Trains the default configuration on Multi30k."""

ANSWER = "answer"
"""The name of the loss of the answer."""


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """A tokenised pair. ``links`` are (token of the source, token of the answer)."""

    source: Encoded
    answer: Encoded
    links: tuple[WordLink, ...] = ()

    def __len__(self) -> int:
        return len(self.source) + len(self.answer)


@dataclass(frozen=True, slots=True, eq=False)
class PairStep:
    """The pass of one training step: sources, answers, and what the model says."""

    batch: Batch
    answers: Answers
    links: Bool[Tensor, "b t s"]
    """Which token of the source each token of the answer is aligned with."""
    output: Decoded


Penalty = Callable[[PairStep], Float[Tensor, " b"]]
"""(step) -> one value per pair."""


def encode_pairs(model: Seq2Seq, pairs: Sequence[Pair]) -> list[EncodedPair]:
    """Tokenise pairs. Sources and answers that are too long are truncated without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncatedText)
        sources = model.encode([pair.source for pair in pairs])
    return [_encoded(pair, source, model) for pair, source in zip(pairs, sources, strict=True)]


def _encoded(pair: Pair, source: Encoded, model: Seq2Seq) -> EncodedPair:
    whole, most = model.encode_answer(pair.answer), model.config.longest - 1
    answer = Encoded(whole.text, whole.ids[:most], whole.tokens[:most], whole.offsets[:most], whole.special[:most])
    if not pair.sure:
        return EncodedPair(source, answer)
    own, theirs = (word_of_token(one.text, one.offsets) for one in (source, answer))
    links = [(s, t) for s, a in enumerate(own) for t, b in enumerate(theirs) if (a, b) in pair.sure]
    return EncodedPair(source, answer, tuple(links))


def forced(model: Seq2Seq, pairs: Sequence[EncodedPair]) -> PairStep:
    """Run the model on pairs, with the answers given."""
    batch, answers = model.batch([p.source for p in pairs]), model.answers([p.answer.ids for p in pairs])
    links = torch.zeros(len(pairs), answers.inputs.shape[1], batch.width, dtype=torch.bool)
    for row, pair in zip(links, pairs, strict=True):
        for s, t in pair.links:
            row[t, s] = True
    return PairStep(batch, answers, links.to(batch.ids.device), model.force(batch, answers))


def answer_loss(step: PairStep) -> Float[Tensor, " b"]:
    """−log p(y | x) of each pair, summed over the tokens of the answer and the one that ends it."""
    logits, outputs = step.output.logits, step.answers.outputs
    losses = nn.functional.cross_entropy(logits.flatten(0, 1), outputs.flatten(), reduction="none")
    return (losses.view(outputs.shape) * step.answers.mask).sum(1)


def fit_pairs(
    model: Seq2Seq,
    pairs: Sequence[Pair],
    *,
    penalty: Penalty | None = None,
    weight: float = 0.0,
    recipe: Recipe = TRANSLATION,
    probes: Sequence[Probe] = (),
    report: Callable[[TrainingProgress], None] | None = None,
    folder: str | Path | None = None,
    save_every: int | None = None,
) -> Iterator[Epoch]:
    """Train an encoder-decoder in place, one epoch at a time: mean −log p of a token + λ · penalty.

    With a ``folder``, a checkpoint is saved there after every epoch and every ``save_every`` steps; the same call
    resumes from it and ends with the same weights. ``probes`` and ``report`` are those of :func:`salience.fit`.
    """
    if not pairs:
        raise BadInput("there is nothing to train on: pass at least one pair")
    if weight < 0:
        raise BadInput(f"weight={weight} must be at least 0")
    tokens = encode_pairs(model, pairs)
    place = None if folder is None else Path(folder)
    named = (getattr(penalty, "__qualname__", repr(penalty)), weight)
    identity = "" if place is None else _digest(model, tokens, named, recipe)
    with model.executor.lock:
        state = State.begin(model, identity, -(-len(pairs) // recipe.batch), recipe)
    if place is not None:
        state.resume(place)
    yield from state.history
    update = partial(_update, model, pairs, tokens, penalty, weight, state, place)
    for number in range(len(state.history) + 1, recipe.epochs + 1):
        yield one_epoch(model, state, order(tokens, recipe, number), update, probes, report, place, save_every)


def _update(
    model: Seq2Seq,
    pairs: Sequence[Pair],
    tokens: Sequence[EncodedPair],
    penalty: Penalty | None,
    weight: float,
    state: State,
    place: Path | None,
    rows: Sequence[int],
) -> Update:
    with model.executor.lock:
        state.seed_step()
        step = forced(model, [tokens[i] for i in rows])
        losses = {ANSWER: answer_loss(step).sum() / step.answers.mask.sum()}
        weights = {ANSWER: 1.0}
        if penalty is not None:
            losses["penalty"], weights["penalty"] = penalty(step).mean(), weight
        loss = sum((weights[name] * value for name, value in losses.items()), torch.zeros(()))
        ids = [pairs[i].id for i in rows]
        if not bool(torch.isfinite(loss)):
            raise Diverged(diverged(state, ids, place))
        state.optimiser.zero_grad()
        loss.backward()
        state.descend(ids, place)
    return Update({name: float(value.detach()) for name, value in losses.items()}, weights)


def _digest(model: Seq2Seq, tokens: Sequence[EncodedPair], named: tuple[str, float], recipe: Recipe) -> str:
    result = blake2b(digest(model).encode(), digest_size=16)
    for value in (recipe, named, *tokens):
        result.update(repr(value).encode())
    return result.hexdigest()
