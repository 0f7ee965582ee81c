"""Counterfactuals over a data set: how many words must be edited, in the order of each explanation and at random.

An explanation that finds the flip with fewer edits is better, so this is also a test of explanations.
"""

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from math import nan
from pathlib import Path
from typing import Any
from zlib import crc32

from salience.core.files import claim, locked, remove_leftovers, write_json
from salience.core.stats import Difference, Estimate, differences, estimate, share
from salience.core.target import Target
from salience.core.text import Text
from salience.core.types import Model
from salience.counterfactuals.edits import Words, words_changed
from salience.counterfactuals.filling import Filler
from salience.counterfactuals.finding import NothingToEdit, Problem, Proposals, proposals_of, word_scores
from salience.counterfactuals.search import GREEDY, Judge, at_random, in_order, search
from salience.data.examples import Example
from salience.data.texts import examples_of
from salience.errors import BadInput
from salience.explanations.explainer import AnyMethod, Configured, as_list, columns, explain_all, prepare
from salience.models.identity import digest
from salience.models.loading import as_model

RANDOM, PEOPLE = "random", "people"
MARK = "settings.json"


@dataclass(frozen=True, slots=True)
class Edited:
    """What one method did to one text."""

    flipped: bool
    edits: int
    """The words edited, in the method's order, until the decision changed; all of them if it did not."""
    changed: int
    """The words of the edited text that differ, after edits that were not needed are taken back."""
    words: int
    """The words of the text that may be edited."""
    length: int
    """All words of the text, punctuation included."""
    fluency: float | None = None


@dataclass(frozen=True, slots=True)
class MethodResult:
    """The texts edited in the order of one method, or by people."""

    flip_rate: Estimate
    edits: Estimate
    """The share of a text's words that are edited, in order, until the decision changes; 1 if it does not."""
    changed: Estimate
    """The minimality: the share of all words that differ in the end, over the texts whose decision changed."""
    fluency: Estimate
    """The mean log-probability per token minus that of the original, over the texts whose decision changed."""
    against_random: Difference | None = None
    """The difference of the edits to those in random order."""


@dataclass(frozen=True, slots=True)
class CounterfactualStudy:
    """The results by method, with those of random order and, if the data has them, those of people."""

    model: str
    texts: int
    edits: tuple[str, ...]
    results: Mapping[str, MethodResult]
    left_out: int = 0
    """Texts without a word that may be edited."""

    def to_dict(self) -> dict[str, Any]:
        """Return the study as a dictionary, as printed by ``--json``."""
        return asdict(self)


def counterfactual_data(
    model: object,
    data: object,
    method: AnyMethod | Sequence[AnyMethod] = ("integrated_gradients", "occlusion", "gradient"),
    *,
    edits: Sequence[str] = ("delete", "replace"),
    fill: str | None = None,
    candidates: Mapping[str, Sequence[str]] | None = None,
    limit: int | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    text_column: str = "text",
    edited_column: str | None = None,
    report: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> CounterfactualStudy:
    """Edit the texts of a data set word by word, in the order of each method and at random, until the decision changes.

    At every word the edit that brings the decision closest to changing is made, and the model judges it. ``data`` are
    texts, or a :func:`salience.data.source`; if that names a column of second texts (or with ``edited_column``), these
    are edits by people, which are judged too. With ``out``, finished texts are saved there, and the same call resumes.
    Other arguments are as in :func:`salience.counterfactuals.counterfactual`.
    """
    known = as_model(model)
    methods = prepare([m for m in as_list(method) if m != RANDOM], settings)
    texts = examples_of(data, text_column=text_column, pair_column=edited_column)[:limit]
    proposals = proposals_of(known, edits, fill, candidates or {})
    work = _Work(known, methods, proposals, seed)
    asked = {"fill": fill, "candidates": {k: list(v) for k, v in (candidates or {}).items()}}
    with ExitStack() as stack:
        folder = None if out is None else stack.enter_context(_opened(Path(out), work.identity(texts, asked)))
        rows = [_kept(work, folder, number, e) for number, e in _counted(texts, report)]
    edited = [row for row in rows if row]
    if rows and not edited:
        raise NothingToEdit(f"none of {len(rows)} texts has a word that may be edited; allow other kinds of edits")
    results = {name: _result([row[name] for row in edited if name in row]) for name in _names(edited)}
    compared = _compared(results, edited)
    return CounterfactualStudy(known.name, len(edited), proposals.kinds, compared, len(rows) - len(edited))


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    model: Model
    methods: Sequence[Configured]
    proposals: Proposals
    seed: int

    def identity(self, texts: Sequence[Example], asked: Mapping[str, Any]) -> dict[str, Any]:
        """Everything that the results depend on."""
        methods = [[name, dict(m.settings)] for name, m in zip(columns(self.methods), self.methods, strict=True)]
        return {
            "model": digest(self.model),
            "methods": json.loads(json.dumps(methods, default=str)),
            "edits": list(self.proposals.kinds),
            "seed": self.seed,
            "texts": crc32(repr([e.text for e in texts]).encode()),
            **asked,
        }

    def edited(self, example: Example) -> dict[str, Edited]:
        """What every method does to one text; nothing if it has no word that may be edited.

        All share the proposals and what the model said about equal texts.
        """
        text, by_people = _both(example.text)
        try:
            problem = Problem.of(self.model, text, None, self.proposals)
        except NothingToEdit:
            return {}
        results = {name: self._one(problem, order) for name, order in self._orders(problem).items()}
        return results if by_people is None else results | {PEOPLE: self._people(problem, by_people)}

    def _orders(self, problem: Problem) -> dict[str, list[int]]:
        words, label = problem.words, problem.goal.label
        target = Target(self.model.label(label), column=label)
        (row,) = explain_all(self.model, self.model.encode([words.text]), self.methods, [target])
        named = zip(columns(self.methods), row, strict=True)
        orders = {name: in_order(word_scores(e, words), problem.places) for name, e in named}
        drawn = at_random(problem.places, self.seed + crc32(words.text.encode()))
        return orders | {RANDOM: drawn}

    def _one(self, problem: Problem, order: Sequence[int]) -> Edited:
        outcome = search(problem.judge, problem.goal, order, problem.options, GREEDY)
        words, length = len(problem.places), len(problem.words)
        if not outcome.reached:
            return Edited(False, words, 0, words, length)
        best = max(
            (problem.counterfactual(s) for s in outcome.reached), key=lambda one: (-one.changed, one.probability)
        )
        fluency = _fluency(self.proposals.filler, problem.words.text, best.text)
        return Edited(True, outcome.steps, best.changed, words, length, fluency)

    def _people(self, problem: Problem, text: str) -> Edited:
        """Whether the edit of a person changes the decision too."""
        p = Judge(self.model, Words.of(text))([()])[()]
        changed, words = words_changed(problem.words.text, text), len(problem.places)
        fluency = _fluency(self.proposals.filler, problem.words.text, text)
        return Edited(problem.goal.reached(p), min(changed, words), changed, words, len(problem.words), fluency)


def _fluency(filler: Filler | None, text: str, edited: str) -> float | None:
    return None if filler is None else filler.log_probability(edited) - filler.log_probability(text)


def _both(text: Text) -> tuple[str, str | None]:
    return (text, None) if isinstance(text, str) else text


# ------------------------------------------------------------------------------------------------------ the folder


@contextmanager
def _opened(folder: Path, identity: Mapping[str, Any]) -> Generator[Path]:
    """A folder of finished texts, locked for this process; one that holds other results is refused."""
    with locked(folder, MARK):
        remove_leftovers(folder)
        claim(folder / MARK, identity, "counterfactuals with other settings")
        yield folder


def _kept(work: _Work, folder: Path | None, number: int, example: Example) -> dict[str, Edited]:
    """The results of one text, read if they are known."""
    file = None if folder is None else folder / f"text-{number:06d}.json"
    if file is not None and file.exists():
        try:
            stored: dict[str, Any] = json.loads(file.read_text("utf-8"))
            return {name: Edited(**facts) for name, facts in stored.items()}
        except (ValueError, TypeError) as error:
            raise BadInput(f"{file} is damaged: {error}. Delete it, and run the same command again") from error
    results = work.edited(example)
    if file is not None:
        write_json(file, {name: asdict(one) for name, one in results.items()})
    return results


def _counted(texts: Sequence[Example], report: Callable[[int, int], None] | None) -> Iterable[tuple[int, Example]]:
    for number, example in enumerate(texts):
        yield number, example
        if report is not None:
            report(number + 1, len(texts))


# ------------------------------------------------------------------------------------------------------ the table


def _names(rows: Sequence[Mapping[str, Edited]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _result(every: Sequence[Edited]) -> MethodResult:
    flipped = [one for one in every if one.flipped]
    return MethodResult(
        share([one.flipped for one in every]),
        estimate([_edited(one) for one in every], (0, 1)),
        estimate([one.changed / one.length for one in flipped]),
        estimate([nan if one.fluency is None else one.fluency for one in flipped]),
    )


def _edited(one: Edited) -> float:
    """The share of words edited; people's edits that do not change the decision count as all words."""
    return one.edits / one.words if one.flipped else 1.0


def _compared(results: Mapping[str, MethodResult], rows: Sequence[Mapping[str, Edited]]) -> dict[str, MethodResult]:
    """Each method against random order, on the same texts and tested together."""
    names = [name for name in results if name != RANDOM]
    gaps = [[_edited(row[name]) - _edited(row[RANDOM]) if name in row else nan for row in rows] for name in names]
    tested = dict(zip(names, differences(gaps, [(-1, 1)] * len(names)), strict=True))
    return {name: replace(one, against_random=tested.get(name)) for name, one in results.items()}
