"""Trains a classifier and follows some texts through its training: salience.follow."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from salience.core.files import claim, fingerprint, locked
from salience.core.stats import Estimate, share
from salience.data.examples import Example, sampled
from salience.data.texts import examples_of
from salience.dynamics.classifiers import RECIPE, SHAPE, Classifiers, labels_to_learn
from salience.dynamics.proxies import WordWeights
from salience.dynamics.recording import Followed, FollowedText
from salience.dynamics.separation import Order, order
from salience.errors import BadInput, unknown
from salience.models.loading import check_device
from salience.training.loop import TrainingProgress
from salience.training.twins import seconds_per_training

TESTED = 10
"""Of the texts, every tenth is not trained on if there are no others to follow."""

NAME = "standard"


@dataclass(frozen=True, slots=True, eq=False)
class Dynamics:
    """How the attention of a classifier came to be."""

    data: str
    texts: int
    """Texts that it was trained on."""
    followed: Followed
    """The texts that were asked for, then the sentences that were not trained on."""
    asked: int
    """How many of the followed texts were asked for."""
    accuracy: Estimate
    """The accuracy on the sentences that were not trained on, at the end."""
    order: Order
    """Which comes first, over these sentences: does relevance separate keywords before attention does?"""
    words: WordWeights
    """What the labels of the training texts say about words; keywords are chosen by it."""
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Called while a training is followed."""

    estimated: Callable[[float], None] = lambda _: None
    """Called once before the training, with an estimate of the seconds that it takes."""
    step: Callable[[TrainingProgress], None] = lambda _: None
    """Called after every step."""


def follow(
    data: object,
    texts: str | Sequence[str | Example] = (),
    *,
    test: object | None = None,
    sentences: int = 50,
    checkpoints: int = 30,
    out: str | Path | None = None,
    seed: int = 0,
    training: Mapping[str, Any] | None = None,
    shape: Mapping[str, Any] | None = None,
    device: str | None = None,
    name: str = "the texts",
    callbacks: Callbacks = Callbacks(),  # noqa: B008
) -> Dynamics:
    """Train a BiLSTM with attention on labelled ``data``, and follow attention and output relevance of some texts.

    Besides ``texts``, up to ``sentences`` of ``test`` are followed, or of every tenth text of ``data``, which is then
    not trained on. They are recorded at ``checkpoints`` steps, closer together at the beginning. With a folder ``out``,
    the model and the record (``standard.parquet``) are kept there, and the same call resumes. ``training`` are fields
    of a :class:`salience.training.Recipe` and ``shape`` fields of a :class:`salience.models.PooledConfig` that differ
    from the default.

    >>> follow(examples, ["a fine film ."], out="dynamics").order.relevance_first       # doctest: +SKIP
    """
    _check(sentences, checkpoints, seed)
    check_device(device)
    train, held_out = _divided(examples_of(data), test)
    asked = examples_of(texts) if texts else []
    chosen = sampled(held_out, sentences)
    recipe = replace(RECIPE, **(training or {}))
    _check_labels(labels_to_learn(train, [*asked, *chosen]), chosen)
    facts = {
        "texts": fingerprint(list(train), [*asked, *chosen]),
        "training": fingerprint(recipe, checkpoints, seed),
        "shape": fingerprint({**SHAPE, **(shape or {})}),
    }
    with _folder(out) as folder:
        claim(folder / "dynamics.json", facts, what="another training")
        classifiers = Classifiers.new(
            folder,
            train,
            [*asked, *chosen],
            shape={**SHAPE, **(shape or {})},
            device=device,
            recipe=recipe,
            checkpoints=checkpoints,
            report=lambda _, progress: callbacks.step(progress),
        )
        classifiers.start.encode([e.text for e in asked])  # warns of texts that are too long to be read as a whole
        if not classifiers.has(NAME):
            callbacks.estimated(seconds_per_training(classifiers.start, train, recipe))
        _, followed = classifiers(NAME, seed=seed)
        words = classifiers.word_weights()
    held = replace(followed, texts=followed.texts[len(asked) :])
    accuracy = share([text.correct[-1] for text in held.texts])
    first = order(held, lambda text: weigh(words, text), seed=seed)
    settings = {"seed": seed, "recipe": recipe, "shape": classifiers.start.config}
    return Dynamics(name, len(train), followed, len(asked), accuracy, first, words, settings)


def _check(sentences: int, checkpoints: int, seed: int) -> None:
    for what, number, least in (("sentences", sentences, 1), ("checkpoints", checkpoints, 2), ("seed", seed, 0)):
        if number < least:
            raise BadInput(f"{what}={number} must be at least {least}")


def weigh(words: WordWeights, text: FollowedText) -> Any:
    """How much the words of a text speak for its label, by a regression on the training texts."""
    return words.of(text.ids, text.explained)


def _divided(examples: Sequence[Example], test: object | None) -> tuple[Sequence[Example], Sequence[Example]]:
    """The texts to train on, and labelled texts to follow."""
    if test is not None:
        return examples, [e for e in examples_of(test) if e.label is not None]
    return [e for i, e in enumerate(examples) if i % TESTED], examples[::TESTED]


def _check_labels(labels: Sequence[str], examples: Sequence[Example]) -> None:
    """Refuse a text to follow whose label no training text has."""
    for e in examples:
        if e.single_label is None:
            raise BadInput(f"texts to follow need one label each, and {e.id!r} has {e.label!r} (--label-column)")
        if str(e.single_label) not in labels:
            raise BadInput(unknown(e.single_label, labels, "label", "the training data"))


@contextmanager
def _folder(out: str | Path | None) -> Generator[Path]:
    """The folder that is written to, locked; without one, a temporary folder."""
    if out is None:
        with TemporaryDirectory() as place:
            yield Path(place)
        return
    with locked(Path(out), mark="dynamics.json"):
        yield Path(out)
