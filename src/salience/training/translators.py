"""A translator trained from scratch: tokenizer, encoder-decoder and checkpoints in one folder."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from tokenizers import Tokenizer

from salience.core.files import claim, complete_folder, fingerprint, locked
from salience.data.pairs import Pair
from salience.models.seq2seq import Seq2Seq, Seq2SeqConfig, subword_tokenizer
from salience.training.loop import Epoch, Recipe, TrainingProgress
from salience.training.sequences import TRANSLATION, fit_pairs

VOCABULARY = 8000
"""Subwords of both languages together, special tokens included."""

SAVE_EVERY = 200
"""Steps between checkpoints."""

MARK = "translator.json"
"""The file that says what a folder's translator is trained on, and how."""


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
    A folder that holds another translator is refused.
    """
    place = Path(folder)
    with locked(place, MARK):
        start = translator_start(place, pairs, vocabulary, tokenizer, config, recipe)
        final = place / "model"
        model = replace(start, name=str(final))
        for epoch in fit_pairs(
            model, pairs, recipe=recipe, folder=place / "checkpoints", report=report, save_every=SAVE_EVERY
        ):
            ended(epoch)
        with complete_folder(final) as part:
            model.save(part)
    return model


def translator_start(
    place: Path | None,
    pairs: Sequence[Pair],
    vocabulary: int,
    tokenizer: Tokenizer | None,
    config: Seq2SeqConfig,
    recipe: Recipe,
) -> Seq2Seq:
    """The untrained model with its tokenizer, kept in ``place``/start if a folder is given, which must be locked."""
    if place is None:
        return _untrained(pairs, vocabulary, tokenizer, config, recipe)
    wanted = vocabulary if tokenizer is None else fingerprint(tokenizer.to_str())
    claim_translator(place, pairs, tokenizer=wanted, config=replace(config, vocabulary=0), recipe=recipe)
    if not (start := place / "start").exists():
        with complete_folder(start) as part:
            _untrained(pairs, vocabulary, tokenizer, config, recipe).save(part)
    return Seq2Seq.load(start)


def claim_translator(place: Path, pairs: Sequence[Pair], **settings: object) -> None:
    """Write down what the translator of a folder is trained on, and how; refuse a folder that holds another one."""
    texts = fingerprint([(pair.source, pair.answer) for pair in pairs])
    claim(
        place / MARK, {"pairs": texts, **{name: str(value) for name, value in settings.items()}}, "another translator"
    )


def _untrained(
    pairs: Sequence[Pair], vocabulary: int, tokenizer: Tokenizer | None, config: Seq2SeqConfig, recipe: Recipe
) -> Seq2Seq:
    own = tokenizer or subword_tokenizer(chain.from_iterable((p.source, p.answer) for p in pairs), vocabulary)
    return Seq2Seq.new(replace(config, vocabulary=own.get_vocab_size()), own, seed=recipe.seed)
