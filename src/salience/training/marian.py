"""Training of Marian-shaped translators on pairs of texts, with the same loop and checkpoints as :func:`fit`."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from salience.core.files import complete_folder, fingerprint, locked
from salience.data.pairs import Pair
from salience.errors import BadInput, Diverged
from salience.models.huggingface.encoder_decoder import EncoderDecoder
from salience.models.huggingface.loading import load
from salience.models.huggingface.translators import MarianShape, new_translator
from salience.models.identity import digest
from salience.models.seq2seq import subword_tokenizer
from salience.training.loop import Epoch, Recipe, State, TrainingProgress, Update, diverged, one_epoch, order
from salience.training.sequences import ANSWER
from salience.training.translators import MARK, SAVE_EVERY, claim_translator

MARIAN = Recipe(epochs=2, batch=32, rate=1.5e-3, warmup=0.1)
"""Trains the default shape on Multi30k."""

VOCABULARY = 3000
"""Subwords of both languages together, special tokens included."""

IGNORED = -100
"""The target at padding, which the loss leaves out."""

TokenPair = tuple[tuple[int, ...], tuple[int, ...]]
"""The tokens of a source and of its answer, each with the token that ends it."""


def train_marian(
    pairs: Sequence[Pair],
    folder: str | Path,
    *,
    vocabulary: int = VOCABULARY,
    shape: MarianShape = MarianShape(),  # noqa: B008
    recipe: Recipe = MARIAN,
    report: Callable[[TrainingProgress], None] | None = None,
) -> EncoderDecoder:
    """Train a Marian-shaped translator and its tokenizer on pairs, and save it as ``folder``/model.

    ``folder``/start holds the untrained model, and ``folder``/checkpoints the last checkpoint: the same call resumes
    from it, and returns a finished model at once. A folder that holds another translator is refused.
    """
    if not pairs:
        raise BadInput("there is nothing to train on: pass at least one pair")
    place = Path(folder)
    with locked(place, MARK):
        claim_translator(place, pairs, vocabulary=vocabulary, shape=shape, recipe=recipe)
        start, final = place / "start", place / "model"
        if not start.exists():
            own = subword_tokenizer(chain.from_iterable((p.source, p.answer) for p in pairs), vocabulary)
            with complete_folder(start) as part:
                new_translator(own, shape, seed=recipe.seed).save(part)
        model = load(start, name=str(final))
        assert isinstance(model, EncoderDecoder)
        for _ in _epochs(model, pairs, recipe, place / "checkpoints", report):
            pass
        with complete_folder(final) as part:
            model.save(part)
    return model


def _epochs(
    model: EncoderDecoder,
    pairs: Sequence[Pair],
    recipe: Recipe,
    place: Path,
    report: Callable[[TrainingProgress], None] | None,
) -> Iterator[Epoch]:
    tokens = _tokens(model, pairs)
    identity = fingerprint(digest(model), recipe, tokens)
    with model.executor.lock:
        state = State.begin(model, identity, -(-len(pairs) // recipe.batch), recipe)
    state.resume(place)
    yield from state.history
    update = partial(_update, model, pairs, tokens, state, place)
    sized = [source + answer for source, answer in tokens]
    for number in range(len(state.history) + 1, recipe.epochs + 1):
        yield one_epoch(model, state, order(sized, recipe, number), update, (), report, place, SAVE_EVERY)


def _tokens(model: EncoderDecoder, pairs: Sequence[Pair]) -> list[TokenPair]:
    """Tokenise pairs; what is longer than the model can read is left out."""
    most = model.window
    sides = [model.tokenizer([getattr(pair, side) for pair in pairs]) for side in ("source", "answer")]
    both: Any = zip(*(side["input_ids"] for side in sides), strict=True)
    return [(_cut(source, most), _cut(answer, most)) for source, answer in both]


def _cut(ids: Sequence[int], most: int) -> tuple[int, ...]:
    """At most so many tokens, of which the last one ends the text."""
    return tuple(ids) if len(ids) <= most else (*ids[: most - 1], ids[-1])


def _update(
    model: EncoderDecoder,
    pairs: Sequence[Pair],
    tokens: Sequence[TokenPair],
    state: State,
    place: Path,
    rows: Sequence[int],
) -> Update:
    """One step along the gradient of the mean −log p(y_t | x, y_<t) over the tokens of the answers and their ends."""
    module, ids = model.module, [pairs[i].id for i in rows]
    pad: Any = model.tokenizer.pad_token_id
    sources, answers = (_padded([tokens[i][side] for i in rows], pad) for side in (0, 1))
    with model.executor.lock:
        state.seed_step()
        logits = module(
            input_ids=sources,
            attention_mask=(sources != pad).long(),
            decoder_input_ids=nn.functional.pad(answers[:, :-1], (1, 0), value=model.start[0]),
            use_cache=False,
        ).logits
        targets = answers.masked_fill(answers == pad, IGNORED)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        if not bool(torch.isfinite(loss)):
            raise Diverged(diverged(state, ids, place))
        state.optimiser.zero_grad()
        loss.backward()
        state.descend(ids, place)
    return Update({ANSWER: float(loss.detach())}, {ANSWER: 1.0})


def _padded(rows: Sequence[Sequence[int]], pad: int) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
