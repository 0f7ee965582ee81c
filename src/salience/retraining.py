"""Tests that train again: does a model that never sees the tokens an explanation names do worse than one that misses
tokens drawn at random? And does a student learn its teacher sooner when it is shown the explanations?
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import nan
from pathlib import Path

import numpy as np
from torch import Tensor

from salience.batching import pack
from salience.errors import BadInput
from salience.explainer import explain_all, prepare
from salience.lessons import Example, read, shaped
from salience.objectives import Objective, attention_to_explanation
from salience.passes import forward
from salience.runs import complete
from salience.stats import Spread
from salience.train import Recipe, fit, labels_of
from salience.types import Encoded, Make, Model, Target
from salience.work import digest

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class Curve:
    """Test accuracy by the share of tokens that were masked before training, one row for each seed."""

    shares: tuple[float, ...]
    accuracy: tuple[tuple[float, ...], ...]

    @property
    def means(self) -> np.ndarray:
        return np.array(self.accuracy).mean(0)

    def at(self, share: float) -> Spread:
        place = self.shares.index(share)
        return Spread(tuple(row[place] for row in self.accuracy))


Report = Callable[[str, int, float, float], None]
"""(method, seed, share, accuracy), as each point of a curve is known"""


def roar(
    make: Make,
    train: Sequence[Example],
    test: Sequence[Example],
    method: str | Sequence[str],
    *,
    shares: Sequence[float] = SHARES,
    seeds: Sequence[int] = range(5),
    recursive: bool = True,
    recipe: Recipe = Recipe(),  # noqa: B008
    folder: str | Path | None = None,
    report: Report = lambda *_: None,
) -> dict[str, Curve]:
    """Remove and retrain: the highest-scoring share of tokens of every text is masked, and a new model is trained.

    The curve of each method, and always that of random. The gold label is explained. Recursive: each model explains
    what the next is to miss, what is masked stays masked; otherwise the first model, trained on whole texts, explains
    all. With a ``folder``, every method's curve of a seed is kept there as it is done, and not made again.

    Paper: Hooker et al. 2019 (ROAR), arXiv:1806.10758; Madsen et al. 2022 (recursive), arXiv:2110.08412
    """
    steps = tuple(sorted(set(shares)))
    if steps[0] != 0 or steps[-1] > 1:
        raise BadInput("the shares of ROAR begin at 0, with whole texts, and go to 1 at most")
    names = dict.fromkeys([*([method] if isinstance(method, str) else method), "random"])
    prepare(list(names), {})  # refuses an unknown one before the first training
    rounds, first = _Rounds(make, train, test, steps, recursive, recipe, report), make(0)
    labels_of(first, [*train, *test])  # refuses an unknown one, too
    place = None if folder is None else _Kept(Path(folder), rounds.identity(first))
    found = [_rows(rounds, list(names), seed, place) for seed in seeds]
    return {name: Curve(steps, tuple(tuple(rows[name]) for rows in found)) for name in names}


def _rows(rounds: "_Rounds", names: Sequence[str], seed: int, place: "_Kept | None") -> dict[str, list[float]]:
    """Of one seed, every method's accuracies; those that are kept are read."""
    rows = {} if place is None else {name: row for name in names if (row := place.read(name, seed)) is not None}
    if missing := [name for name in names if name not in rows]:
        ends = rounds.ends(seed)
        for name in missing:
            rows[name] = rounds.row(name, seed, ends)
            if place is not None:
                place.write(name, seed, rows[name])
    return rows


@dataclass(frozen=True, slots=True)
class _Rounds:
    make: Make
    train: Sequence[Example]
    test: Sequence[Example]
    steps: tuple[float, ...]
    recursive: bool
    recipe: Recipe
    report: Report

    def ends(self, seed: int) -> "_Ends":
        """The trainings in which all methods are alike: on whole texts, and on texts without a single token."""
        reader = self.make(seed)
        whole = [_Texts.of(reader, some) for some in (self.train, self.test)]
        model, accuracy = self.trained(whole, seed)
        bare = self.trained([some.bare() for some in whole], seed)[1] if self.steps[-1] == 1 else None
        return _Ends(whole, model, accuracy, bare)

    def row(self, method: str, seed: int, ends: "_Ends") -> list[float]:
        """Test accuracy at every share, each of another training."""
        found = [ends.accuracy]
        self.report(method, seed, self.steps[0], found[0])
        texts, teller = ends.whole, ends.model
        for share in self.steps[1:]:
            if share == 1 and ends.bare is not None:
                found.append(ends.bare)
            else:
                some = [each.masked(teller, method, share, seed) for each in texts]
                model, accuracy = self.trained(some, seed)
                found.append(accuracy)
                texts, teller = (some, model) if self.recursive else (texts, teller)
            self.report(method, seed, share, found[-1])
        return found

    def trained(self, texts: Sequence["_Texts"], seed: int) -> tuple[Model, float]:
        """A new model of the first texts, and its accuracy on the second."""
        model = self.make(seed)
        for _ in fit(model, self.train, encoded=texts[0].encoded, recipe=replace(self.recipe, seed=seed)):
            pass
        return model, texts[1].accuracy(model)

    def identity(self, model: Model) -> str:
        """What the numbers depend on, beside method and seed."""
        data = [(e.id, e.text, e.label) for some in (self.train, self.test) for e in some]
        settings = (self.steps, self.recursive, replace(self.recipe, seed=0))
        return blake2b(repr((digest(model), data, settings)).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class _Ends:
    """Where the curves of one seed begin and end, whatever the method."""

    whole: Sequence["_Texts"]
    model: Model
    accuracy: float
    bare: float | None
    """Accuracy where every token is masked, if the shares go so far."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """Finished rows, a small file each."""

    folder: Path
    identity: str

    def read(self, method: str, seed: int) -> list[float] | None:
        file = self._file(method, seed)
        if not file.exists():
            return None
        stored = json.loads(file.read_text("utf-8"))
        if stored["identity"] != self.identity:
            raise BadInput(
                f"{file} was made with another model, other data or other settings; choose another folder, or remove it"
            )
        return stored["accuracy"]

    def write(self, method: str, seed: int, row: Sequence[float]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with complete(self._file(method, seed)) as file:
            file.write(json.dumps({"identity": self.identity, "accuracy": row}).encode())

    def _file(self, method: str, seed: int) -> Path:
        return self.folder / f"{method}-seed-{seed}.json"


def racu(method: Curve, random: Curve) -> float:
    """The area between the curves of random and of the method, by that between random and what is left at the end.

    1: the first tokens named are all that the task needs. 0: no better than random. NaN if random loses nothing.

    Paper: Madsen et al. 2022, arXiv:2110.08412, section 4.2
    """
    if method.shares != random.shares:
        raise BadInput("the two curves are not of the same shares")
    a, b = method.means, random.means
    whole = np.trapezoid(b - b[-1], random.shares)
    return float(np.clip(np.trapezoid(b - a, random.shares) / whole, -1, 1)) if whole > 0 else nan


@dataclass(frozen=True, slots=True)
class _Texts:
    """Examples as a model is to read them, some of their tokens masked."""

    examples: Sequence[Example]
    whole: Sequence[Encoded]
    """As they were."""
    gone: Sequence[frozenset[int]]
    """The tokens that are masked, text by text."""
    mask: int

    @classmethod
    def of(cls, model: Model, given: Sequence[Example]) -> "_Texts":
        ids = model.replacements
        mask = ids.get("mask", ids.get("unk"))
        if mask is None:
            raise BadInput(f"{model.name} has neither a mask nor an unknown token to put in a token's place")
        return cls(given, read(model, given), [frozenset()] * len(given), mask)

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

    def masked(self, model: Model, method: str, share: float, seed: int) -> "_Texts":
        """With the highest-scoring tokens masked until the share is reached; those masked before stay so."""
        encoded = self.encoded
        open_ones = [i for i, e in enumerate(encoded) if not all(e.special)]
        settings = {"seed": seed} if method == "random" else {}
        wanted = [Target(_label(self.examples[i])) for i in open_ones]
        gone = list(self.gone)
        rows = explain_all(model, [encoded[i] for i in open_ones], prepare(method, settings), wanted)
        for i, (explained,) in zip(open_ones, rows, strict=True):
            content = [t for t, s in enumerate(self.whole[i].special) if not s]
            left = sorted((t for t in content if t not in gone[i]), key=lambda t: -explained.scores[t])
            count = max(0, round(share * len(content)) - len(gone[i]))
            gone[i] = gone[i] | frozenset(left[:count])
        return replace(self, gone=gone)

    def bare(self) -> "_Texts":
        """With every token masked."""
        return replace(self, gone=[frozenset(t for t, s in enumerate(e.special) if not s) for e in self.whole])

    def accuracy(self, model: Model) -> float:
        encoded, right = self.encoded, 0
        for rows in pack([len(e) for e in encoded], model.budget):
            logits: Tensor = forward(model, model.batch([encoded[i] for i in rows])).logits
            right += int((logits.argmax(1) == labels_of(model, [self.examples[i] for i in rows])).sum())
        return right / len(encoded)


def _label(example: Example) -> str | int | None:
    return example.label if isinstance(example.label, str | int) else None


# ------------------------------------------------------------------------------------------------------ simulatability

NONE = "none"
"""Of a student that is shown no explanation."""

Taught = Callable[[str, int, float], None]
"""(method or ``none``, seed, agreement), after every training"""


def simulatability(
    make: Make,
    teacher: Model,
    train: Sequence[Example],
    test: Sequence[Example],
    method: str | Sequence[str],
    *,
    seeds: Sequence[int] = range(5),
    share: float = 0.1,
    weight: float = 1.0,
    recipe: Recipe = Recipe(),  # noqa: B008
    report: Taught = lambda *_: None,
) -> dict[str, Spread]:
    """How often a student agrees with its teacher on new texts, after learning the teacher's answers to ``train``.

    Its attention is held to the teacher's explanations while it learns; the gain over ``none``, the student that is
    shown none, is what they teach. They mark the same share of tokens for every method, so that none says more by
    saying more words. ``none`` and random are always there.

    Paper: Pruthi et al. 2022, Evaluating Explanations: How Much Do Explanations from the Teacher Aid Students?,
    arXiv:2012.00893
    """
    names = list(dict.fromkeys([*([method] if isinstance(method, str) else method), "random"]))
    prepare(names, {})  # refuses an unknown one before the first training
    _check_alike(teacher, make(0), [*train, *test])
    lessons, truth = _answered(teacher, train), _answered(teacher, test)
    held = Objective(attention_to_explanation, weight)
    courses = {NONE: (lessons, Objective())}
    courses |= {name: (_explained(teacher, lessons, name, share), held) for name in names}
    found: dict[str, Spread] = {}
    for name, (shown, objective) in courses.items():
        agreed: list[float] = []
        for seed in seeds:
            student = make(seed)
            list(fit(student, shown, objective=objective, recipe=replace(recipe, seed=seed)))
            agreed.append(_agreement(_answered(student, test), truth))
            report(name, seed, agreed[-1])
        found[name] = Spread(tuple(agreed))
    return found


def _agreement(answers: Sequence[Example], truth: Sequence[Example]) -> float:
    return float(np.mean([a.label == b.label for a, b in zip(answers, truth, strict=True)]))


def _check_alike(teacher: Model, student: Model, given: Sequence[Example]) -> None:
    if teacher.link == "identity":
        raise BadInput(f"{teacher.name} is a regression model; a student agrees with a teacher that decides")
    for a, b in zip(read(teacher, given), read(student, given), strict=True):
        if a.tokens != b.tokens:
            raise BadInput(
                f"{teacher.name} and {student.name} read texts as other tokens, so that explanations of the one do not "
                "fit the other; take a student with the teacher's tokenizer"
            )


def _answered(model: Model, given: Sequence[Example]) -> list[Example]:
    """The texts with what the model says of them as their labels."""
    encoded = read(model, given)
    found: dict[int, int] = {}
    for rows in pack([len(e) for e in encoded], model.budget):
        said = forward(model, model.batch([encoded[i] for i in rows])).logits.argmax(1).tolist()
        found |= dict(zip(rows, said, strict=True))
    return [replace(e, label=found[i], guide=None) for i, e in enumerate(given)]


def _explained(teacher: Model, given: Sequence[Example], method: str, share: float) -> list[Example]:
    encoded = read(teacher, given)
    rows = explain_all(teacher, encoded, prepare(method, {}), [Target(_label(e)) for e in given])
    return [
        replace(e, guide=shaped(found.scores, found.special, "binary", share))
        for e, (found,) in zip(given, rows, strict=True)
    ]
