"""The classifiers whose training is followed: created from the texts, trained once and kept in a folder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from salience.data.examples import Example, encode_examples, labels_in
from salience.dynamics.proxies import WordWeights, word_weights
from salience.dynamics.recording import Followed, Following, checkpoints, read_follow
from salience.errors import BadInput
from salience.models.pooled import Pooled, PooledConfig, stored_tokenizer
from salience.training.loop import Recipe, TrainingProgress, labels_of, training_digest
from salience.training.objectives import Objective
from salience.training.twins import Twins

VOCABULARY, LEAST = 30_000, 3
"""The largest number of words of a model, and how often a word must occur in the training texts."""

SHAPE: Mapping[str, Any] = {
    "encoder": "bilstm",
    "embedding": 300,
    "hidden": 256,
    "attention": 256,
    "scoring": "relu",
}
"""Random embeddings, a BiLSTM, and attention by two layers with ReLU between them, as in the authors' code."""

PROXY: Mapping[str, Any] = {"encoder": "embedding", "embedding": 256, "scoring": "uniform"}
"""The mean of the embeddings, read by a linear layer: all it can learn is which words occur with which label."""

RECIPE = Recipe(epochs=3, batch=32, rate=1e-3, warmup=0.0, decay=0.0)


def labels_to_learn(train: Sequence[Example], followed: Sequence[Example]) -> tuple[str, ...]:
    """The labels of the texts to train on; raise for texts that these classifiers cannot read or learn."""
    for what, examples in (("train on", train), ("follow", followed)):
        if not examples:
            raise BadInput(f"there are no texts to {what}; give more texts, or name others to follow (--test)")
    if pairs := [e.id for e in (*train, *followed) if not isinstance(e.text, str)]:
        raise BadInput(f"{pairs[0]!r} is a pair of texts; the classifiers that are followed read single texts")
    if unlabelled := [e.id for e in train if e.label is None]:
        raise BadInput(f"texts to train on need labels, and {unlabelled[0]!r} has none (--label-column)")
    labels = labels_in(train, "the training data")
    return tuple(map(str, range(labels))) if isinstance(labels, int) else tuple(labels)


@dataclass(frozen=True, slots=True, eq=False)
class Classifiers:
    """Trains classifiers on the same texts, each followed on the same other texts, and keeps them in a folder."""

    folder: Path
    start: Pooled
    """Untrained. Every classifier has its shape, but for the changes that are asked for."""
    train: Sequence[Example]
    followed: Sequence[Example]
    recipe: Recipe = RECIPE
    checkpoints: int = 30
    report: Callable[[str, TrainingProgress], None] | None = None
    """Called with the name of the classifier after every step."""

    @classmethod
    def new(
        cls,
        folder: Path,
        train: Sequence[Example],
        followed: Sequence[Example],
        *,
        shape: Mapping[str, Any] = SHAPE,
        device: str | None = None,
        **fields: Any,
    ) -> "Classifiers":
        """Classifiers of this shape for the words and labels of the training texts; the folder holds the vocabulary."""
        names = labels_to_learn(train, followed)
        folder.mkdir(parents=True, exist_ok=True)
        texts = (str(e.text) for e in train)
        tokenizer = stored_tokenizer(folder / "tokenizer.json", texts, VOCABULARY, least=min(LEAST, len(train)))
        start = Pooled.new(PooledConfig(names, tokenizer.get_vocab_size(), **shape), tokenizer, name="followed")
        start.module.to(device or "cpu")
        return cls(folder, start, train, followed, **fields)

    @property
    def steps(self) -> list[int]:
        """The steps at which texts are recorded."""
        return checkpoints(-(-len(self.train) // self.recipe.batch) * self.recipe.epochs, self.checkpoints)

    def __call__(self, name: str, *, seed: int = 0, **changes: Any) -> tuple[Pooled, Followed]:
        """Return a trained classifier and its course, from the folder or newly trained."""
        following = self.following(name, seed=seed, **changes)
        if not following.finished() and (self.has(name) or not following.file.exists()):
            self._twins.forget(name)  # trained, as a whole or in part, and not recorded: it is trained again
        model = self._twins(name, lambda: self._fresh(seed, changes), seed=seed, recorders=[following.recorder])
        assert isinstance(model, Pooled)
        return model, read_follow(following.file, training=following.training)

    def following(self, name: str, *, seed: int = 0, **changes: Any) -> Following:
        """What is recorded of the training of this name, and where."""
        recipe = replace(self.recipe, seed=seed)
        training = training_digest(self._fresh(seed, changes), self.train, Objective(), recipe)
        return Following(self.folder / f"{name}.parquet", self.followed, self.steps, training)

    def has(self, name: str) -> bool:
        """Whether a trained classifier of this name is in the folder."""
        return self._twins.has(name)

    @property
    def _twins(self) -> Twins:
        return Twins(self.folder / "models", self.train, self.recipe, self.report)

    def _fresh(self, seed: int, changes: Mapping[str, Any]) -> Pooled:
        return self.start.fresh(self.start.labels, seed, **changes)

    def word_weights(self) -> WordWeights:
        """What the labels of the training texts say about words."""
        ids = [e.ids for e in encode_examples(self.start, self.train)]
        columns = labels_of(self.start, self.train).tolist()
        size = self.start.config.vocabulary
        return word_weights(ids, columns, vocabulary=size, classes=len(self.start.labels))
