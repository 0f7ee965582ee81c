"""A translator trained from scratch: tokenizer, encoder-decoder and checkpoints in one folder."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from tokenizers import Tokenizer

from salience.core.files import complete_folder, locked
from salience.data.pairs import Pair
from salience.models.seq2seq import Seq2Seq, Seq2SeqConfig, subword_tokenizer
from salience.training.loop import Epoch, Recipe, TrainingProgress
from salience.training.sequences import TRANSLATION, fit_pairs

VOCABULARY = 8000
"""Subwords of both languages together, special tokens included."""

SAVE_EVERY = 200
"""Steps between checkpoints."""


def train_translator(
    pairs: Sequence[Pair],
    folder: str | Path,
    *,
    vocabulary: int = VOCABULARY,
    tokenizer: Tokenizer | None = None,
    config: Seq2SeqConfig = Seq2SeqConfig(VOCABULARY),  # noqa: B008
    recipe: Recipe = TRANSLATION,
    report: Callable[[TrainingProgress], None] | None = None,
    ended: Callable[[Epoch], None] = lambda _: None,
) -> Seq2Seq:
    """Train an encoder-decoder on pairs, and save it as ``folder``/model. A new tokenizer is trained if none is given.

    ``folder``/start holds the untrained model with its tokenizer, whose training breaks ties by chance, and
    ``folder``/checkpoints the last checkpoint: the same call resumes from it, and returns a finished model at once.
    """
    place = Path(folder)
    with locked(place, "start"):
        start, final = place / "start", place / "model"
        if not start.exists():
            texts = chain.from_iterable((p.source, p.answer) for p in pairs)
            own = tokenizer or subword_tokenizer(texts, vocabulary)
            with complete_folder(start) as part:
                Seq2Seq.new(replace(config, vocabulary=own.get_vocab_size()), own, seed=recipe.seed).save(part)
        model = Seq2Seq.load(start, name=str(final))
        for epoch in fit_pairs(
            model, pairs, recipe=recipe, folder=place / "checkpoints", report=report, save_every=SAVE_EVERY
        ):
            ended(epoch)
        with complete_folder(final) as part:
            model.save(part)
    return model
