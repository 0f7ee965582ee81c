"""Remove and retrain (ROAR): does masking the highest-scoring tokens before training reduce accuracy more than masking
random tokens?
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from salience.core.files import complete, fingerprint
from salience.core.rows import predict
from salience.core.shares import portion
from salience.core.stats import Spread
from salience.core.target import Target
from salience.core.text import Encoded
from salience.core.types import Model
from salience.data.examples import Example, encode_examples
from salience.errors import BadInput
from salience.explanations.explainer import Configured, explain_all, prepare
from salience.models.identity import digest
from salience.training.loop import Make, Recipe, fit, labels_of

ROAR_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class RoarCurve:
    """Test accuracy by the share of tokens masked before training, one row per seed."""

    shares: tuple[float, ...]
    accuracy: tuple[tuple[float, ...], ...]

    @property
    def means(self) -> np.ndarray:
        """The mean over seeds at every share."""
        return np.array(self.accuracy).mean(0)

    def at(self, share: float) -> Spread:
        """The accuracies of all seeds at one share."""
        place = self.shares.index(share)
        return Spread(tuple(row[place] for row in self.accuracy))


RoarReport = Callable[[str, int, float, float], None]
"""Called with (method, seed, share, accuracy) for each point of a curve."""


def roar(
    make: Make,
    train: Sequence[Example],
    test: Sequence[Example],
    method: str | Sequence[str],
    *,
    shares: Sequence[float] = ROAR_SHARES,
    seeds: Sequence[int] = range(5),
    recursive: bool = True,
    recipe: Recipe = Recipe(),  # noqa: B008
    folder: str | Path | None = None,
    report: RoarReport = lambda *_: None,
    **settings: Any,
) -> dict[str, RoarCurve]:
    """Remove and retrain: mask the highest-scoring share of tokens of every text, and train a new model.

    Returns the curve of each method, and always that of random. The gold label is explained. With ``recursive``, the
    model of each share chooses the tokens to mask for the next one, and masked tokens stay masked; otherwise the first
    model, trained on whole texts, chooses all of them. With a ``folder``, finished curves are saved there and reused.
    Other arguments are settings of the methods, as for :func:`salience.explain`.

    Paper: Hooker et al. 2019 (ROAR), arXiv:1806.10758; Madsen et al. 2022 (recursive), arXiv:2110.08412
    """
    steps = tuple(sorted(set(shares)))
    if steps[0] != 0 or steps[-1] > 1:
        raise BadInput(f"the shares of ROAR must start at 0 and end at 1 at most, not {list(steps)}")
    names = dict.fromkeys([*([method] if isinstance(method, str) else method), "random"])
    configured = prepare(list(names), settings)  # reject unknown methods before the first training
    methods = dict(zip(names, configured, strict=True))
    rounds, first = _Rounds(make, train, test, steps, recursive, recipe, report, methods), make(0)
    labels_of(first, [*train, *test])  # reject unknown labels, too
    store = None if folder is None else _Store(Path(folder), rounds.identity(first))
    rows = [_rows(rounds, list(names), seed, store) for seed in seeds]
    return {name: RoarCurve(steps, tuple(tuple(row[name]) for row in rows)) for name in names}


def _rows(rounds: "_Rounds", names: Sequence[str], seed: int, store: "_Store | None") -> dict[str, list[float]]:
    """The accuracies of every method for one seed; saved ones are read."""
    rows = {} if store is None else {name: row for name in names if (row := store.read(name, seed)) is not None}
    if missing := [name for name in names if name not in rows]:
        ends = rounds.ends(seed)
        for name in missing:
            rows[name] = rounds.row(name, seed, ends)
            if store is not None:
                store.write(name, seed, rows[name])
    return rows


@dataclass(frozen=True, slots=True)
class _Rounds:
    make: Make
    train: Sequence[Example]
    test: Sequence[Example]
    steps: tuple[float, ...]
    recursive: bool
    recipe: Recipe
    report: RoarReport
    methods: Mapping[str, Configured]

    def ends(self, seed: int) -> "_Ends":
        """Train the models shared by all methods: on whole texts, and on fully masked texts."""
        reader = self.make(seed)
        whole = [_Texts.of(reader, some) for some in (self.train, self.test)]
        model, accuracy = self.trained(whole, seed)
        bare = self.trained([some.bare() for some in whole], seed)[1] if self.steps[-1] == 1 else None
        return _Ends(whole, model, accuracy, bare)

    def row(self, method: str, seed: int, ends: "_Ends") -> list[float]:
        """Test accuracy at every share, with a new model for each."""
        row = [ends.accuracy]
        self.report(method, seed, self.steps[0], row[0])
        texts, explainer = ends.whole, ends.model
        for share in self.steps[1:]:
            if share == 1 and ends.bare is not None:
                row.append(ends.bare)
            else:
                configured = self.configured(method, seed)
                masked = [each.masked(explainer, configured, share) for each in texts]
                model, accuracy = self.trained(masked, seed)
                row.append(accuracy)
                texts, explainer = (masked, model) if self.recursive else (texts, explainer)
            self.report(method, seed, share, row[-1])
        return row

    def configured(self, method: str, seed: int) -> Configured:
        """A method with its settings; random scores differ between seeds."""
        one = self.methods[method]
        return replace(one, settings={**one.settings, "seed": seed}) if method == "random" else one

    def trained(self, texts: Sequence["_Texts"], seed: int) -> tuple[Model, float]:
        """Train a new model on the first texts; returns it with its accuracy on the second."""
        model = self.make(seed)
        for _ in fit(model, self.train, encoded=texts[0].encoded, recipe=replace(self.recipe, seed=seed)):
            pass
        return model, texts[1].accuracy(model)

    def identity(self, model: Model) -> str:
        """A digest of everything the accuracies depend on, except method and seed."""
        data = [(e.id, e.text, e.label) for some in (self.train, self.test) for e in some]
        usual = {name: prepare(name, {})[0].settings for name in self.methods}
        changed = sorted((name, one.settings) for name, one in self.methods.items() if one.settings != usual[name])
        settings = (self.steps, self.recursive, replace(self.recipe, seed=0), *changed)
        return fingerprint(digest(model), data, settings)


@dataclass(frozen=True, slots=True)
class _Ends:
    """The ends of the curves of one seed, which are the same for all methods."""

    whole: Sequence["_Texts"]
    model: Model
    accuracy: float
    bare: float | None
    """Accuracy with every token masked, if the shares include 1."""


@dataclass(frozen=True, slots=True)
class _Store:
    """Saved rows, one small file each."""

    folder: Path
    identity: str

    def read(self, method: str, seed: int) -> list[float] | None:
        file = self._file(method, seed)
        if not file.exists():
            return None
        stored = json.loads(file.read_text("utf-8"))
        if stored["identity"] != self.identity:
            raise BadInput(
                f"{file} was computed with another model, data or settings; choose another folder, or delete the file"
            )
        return stored["accuracy"]

    def write(self, method: str, seed: int, row: Sequence[float]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with complete(self._file(method, seed)) as file:
            file.write(json.dumps({"identity": self.identity, "accuracy": row}).encode())

    def _file(self, method: str, seed: int) -> Path:
        return self.folder / f"{method}-seed-{seed}.json"


def racu(method: RoarCurve, random: RoarCurve) -> float:
    """The area between the curves of random and the method, relative to that between random and its final accuracy.

    1: the highest-scoring tokens are all that the task needs. 0: no better than random. NaN if the accuracy of random
    does not fall.

    Paper: Madsen et al. 2022, arXiv:2110.08412, section 4.2
    """
    if method.shares != random.shares:
        raise BadInput(f"the two curves must have the same shares, not {method.shares} and {random.shares}")
    a, b = method.means, random.means
    whole = np.trapezoid(b - b[-1], random.shares)
    return float(np.clip(np.trapezoid(b - a, random.shares) / whole, -1, 1)) if whole > 0 else nan


@dataclass(frozen=True, slots=True)
class _Texts:
    """Examples as a model reads them, with some of their tokens masked."""

    examples: Sequence[Example]
    whole: Sequence[Encoded]
    """The texts before masking."""
    gone: Sequence[frozenset[int]]
    """The masked tokens of each text."""
    mask: int

    @classmethod
    def of(cls, model: Model, examples: Sequence[Example]) -> "_Texts":
        ids = model.replacements
        mask = ids.get("mask", ids.get("unk"))
        if mask is None:
            raise BadInput(
                f"{model.name} has neither a mask token nor an unknown token to replace tokens with; use another model"
            )
        return cls(examples, encode_examples(model, examples), [frozenset()] * len(examples), mask)

    @property
    def encoded(self) -> list[Encoded]:
        return [
            replace(
                e,
                ids=tuple(self.mask if i in gone else x for i, x in enumerate(e.ids)),
                special=tuple(s or i in gone for i, s in enumerate(e.special)),
            )
            for e, gone in zip(self.whole, self.gone, strict=True)
        ]

    def masked(self, model: Model, method: Configured, share: float) -> "_Texts":
        """Mask the highest-scoring tokens until the share is reached; masked tokens stay masked."""
        encoded = self.encoded
        unmasked = [i for i, e in enumerate(encoded) if not all(e.special)]
        wanted = [Target(self.examples[i].single_label) for i in unmasked]
        gone = list(self.gone)
        rows = explain_all(model, [encoded[i] for i in unmasked], [method], wanted)
        for i, (explained,) in zip(unmasked, rows, strict=True):
            content = [t for t, s in enumerate(self.whole[i].special) if not s]
            left = sorted((t for t in content if t not in gone[i]), key=lambda t: -explained.scores[t])
            count = max(0, portion(share, len(content)) - len(gone[i]))
            gone[i] = gone[i] | frozenset(left[:count])
        return replace(self, gone=gone)

    def bare(self) -> "_Texts":
        """Mask every token."""
        return replace(self, gone=[frozenset(t for t, s in enumerate(e.special) if not s) for e in self.whole])

    def accuracy(self, model: Model) -> float:
        right = predict(model, self.encoded).argmax(1) == labels_of(model, self.examples).cpu()
        return float(right.double().mean())
