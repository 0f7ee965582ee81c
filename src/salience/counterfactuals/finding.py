"""Counterfactuals of single texts: the smallest edits that change a decision."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import torch

from salience.core.characters import to_json
from salience.core.target import Target
from salience.core.text import overlaps
from salience.core.types import Model
from salience.counterfactuals.edits import EDITS, Edit, EditKind, Words, like, words_changed
from salience.counterfactuals.filling import Filler, filler_of
from salience.counterfactuals.search import GREEDY, Goal, Judge, Options, Search, State, edited_places, in_order, search
from salience.data.examples import encode_silently
from salience.data.texts import texts_of
from salience.errors import BadInput, choose
from salience.explanations.explainer import AnyMethod, Configured, default_method, explain_all, prepare
from salience.explanations.explanation import Explanation
from salience.models.loading import as_model

How = Literal["beam", "greedy"]
BEAM, REACH, MOST = 4, 10, 6
"""The drafts that a beam search keeps, the words at which each is edited, and the most edits."""
RATED = 12
"""The edits of different words whose fluency is measured."""
PROPOSED = 20
"""The words that the language model proposes for a place."""


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """An edited text and the model's decision on it; of a nearest text the label that was asked for, if there is one.

    ``changed`` is the Levenshtein distance to the original in words, ``minimality`` its share of the original's words.
    ``fluency`` is the mean log-probability of the edited text's tokens minus that of the original's: 0 for a text that
    is as likely, negative for one that is less so; None without a language model.
    """

    text: str
    edits: tuple[Edit, ...]
    label: str
    probability: float
    changed: int
    minimality: float
    fluency: float | None = None


@dataclass(frozen=True, slots=True)
class Counterfactuals:
    """The counterfactuals of one text, the smallest change first; if there are none, the ``nearest`` text.

    ``to`` is the label that was asked for; None for any other than the predicted one.
    """

    text: str
    label: str
    probability: float
    to: str | None
    results: tuple[Counterfactual, ...]
    nearest: Counterfactual | None
    method: str
    model: str
    settings: Mapping[str, Any]

    @property
    def flipped(self) -> bool:
        """Whether an edit was found that changes the decision."""
        return bool(self.results)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, as printed by ``--json``."""
        return asdict(self) | {"settings": dict(self.settings), "flipped": self.flipped}

    def to_json(self) -> str:
        """Return one line of JSON, in which every character is safe to print."""
        return to_json(self.to_dict())

    def _repr_html_(self) -> str:
        from salience.views.counterfactuals import fragment

        return fragment([self])


class NothingToEdit(BadInput):
    """A text without a word that may be edited."""


@dataclass(frozen=True, slots=True, eq=False)
class Proposals:
    """Where edits come from: their kinds, the language model that proposes words, and words of the user's own.

    A word of ``candidates`` is replaced by these words only.
    """

    kinds: tuple[EditKind, ...]
    filler: Filler | None
    candidates: Mapping[str, Sequence[str]]
    count: int = PROPOSED

    def options(self, words: Words, places: Sequence[int]) -> dict[int, list[Edit]]:
        """The possible edits at every place, proposed in the context of the original text."""
        options: dict[int, list[Edit]] = {at: [] for at in places}
        if "delete" in self.kinds and len(words.editable) > 1:
            for at in places:
                options[at].append(Edit(at, "delete", words[at]))
        own = {at: self.candidates[words[at].casefold()] for at in places if words[at].casefold() in self.candidates}
        for at, replacements in own.items():
            options[at] += [Edit(at, "replace", words[at], like(word, words[at])) for word in replacements]
        if self.filler is not None:
            kinds = [kind for kind in ("replace", "insert") if kind in self.kinds]
            wanted = [(at, kind) for at in places for kind in kinds if kind == "insert" or at not in own]
            for edit in self._proposed(self.filler, words, wanted):
                options[edit.at].append(edit)
        return options

    @property
    def why_none(self) -> str:
        """Why a text may have no edit, and what to do."""
        if "delete" not in self.kinds and self.filler is None:
            return "none of its words has candidates. Add its words (--candidates), or allow to delete (--edits delete)"
        return (
            "without its only word there is no text, and no replacement was proposed. Allow replacements (--edits "
            "replace), or give words of your own (--candidates)"
        )

    def _proposed(self, filler: Filler, words: Words, wanted: Sequence[tuple[int, str]]) -> list[Edit]:
        """Words of the language model for places and kinds, other than the word itself and the one before it."""
        if not wanted:
            return []
        spans = [(words.spans[at], kind == "insert") for at, kind in wanted]
        edits: list[Edit] = []
        for (at, kind), proposed in zip(wanted, filler.words(words.text, spans, self.count), strict=True):
            near = {words[i].casefold() for i in (at - 1, at) if i >= 0}
            for word in proposed:
                if word.casefold() not in near:
                    before = words[at] if kind == "replace" else ""
                    edits.append(Edit(at, kind, before, like(word, before) if before else word))  # pyright: ignore
        return edits


def counterfactual(
    model: object,
    texts: object,
    *,
    to: str | int | None = None,
    method: AnyMethod | None = None,
    edits: Sequence[str] = ("delete", "replace"),
    fill: str | None = None,
    candidates: Mapping[str, Sequence[str]] | None = None,
    how: How = "beam",
    count: int = 3,
    max_edits: int = MOST,
    text_column: str = "text",
    report: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> list[Counterfactuals]:
    """Find the smallest edits of each text that change the model's decision, to the label ``to`` or to any other.

    Words are edited in the order of the scores of ``method`` (by default that of :func:`salience.explain`), and the
    model judges every draft. ``edits`` are some of delete, replace and insert. New words are proposed by the masked
    language model of the model itself or by the model ``fill``; ``candidates`` gives words of your own for words of the
    text. ``how`` is a beam search, or greedy: strictly in the order of the scores. Up to ``count`` counterfactuals are
    returned. They edit different words if there are as many, with the likeliest edit of the same words, and are ranked
    by the words changed, then by fluency, then by probability. ``report`` is called with the number of texts that are
    done and of all. Other arguments are settings of the method.

    >>> counterfactual(model, "The film is not bad.", to="negative")                      # doctest: +SKIP
    """
    for name, number in {"count": count, "max_edits": max_edits}.items():
        if number < 1:
            raise BadInput(f"{name}={number} must be at least 1")
    known = as_model(model)
    (configured,) = prepare(method or default_method(known), settings)
    proposals = proposals_of(known, edits, fill, candidates or {})
    width, reach = (BEAM, REACH) if choose(how, get_args(How), "search") == "beam" else (GREEDY.beam, GREEDY.reach)
    plan = Search(width, reach, max_edits, count)
    goal_label = None if to is None else known.resolve(to)
    many = [_single(text) for text in texts_of(texts, text_column=text_column)]
    results: list[Counterfactuals] = []
    for text in many:
        results.append(_found(known, text, goal_label, configured, proposals, plan, how))
        if report is not None:
            report(len(results), len(many))
    return results


def proposals_of(
    model: Model, edits: Sequence[str], fill: str | None, candidates: Mapping[str, Sequence[str]]
) -> Proposals:
    """Check what may be edited, and load the language model if it is needed."""
    kinds: tuple[Any, ...] = tuple(dict.fromkeys(choose(kind, EDITS, "kind of edit") for kind in edits))
    if not kinds:
        raise BadInput(f"no kind of edit; use some of {', '.join(EDITS)}")
    if model.link != "softmax" or getattr(model, "generates", False):
        raise BadInput(f"{model.name} does not choose one of a few labels, so there is no decision to change")
    own = {word.casefold(): _others(word, given) for word, given in candidates.items()}
    if own and "replace" not in kinds:
        raise BadInput(
            f"candidates replace words, but the edits are {', '.join(kinds)}; add replace, or leave them out"
        )
    needs = fill is not None or "insert" in kinds or ("replace" in kinds and not own)
    return Proposals(kinds, filler_of(model, fill) if needs else None, own)


def _others(word: str, candidates: Sequence[str]) -> tuple[str, ...]:
    """The candidates that are not the word itself."""
    return tuple(one for one in candidates if one.casefold() != word.casefold())


def _single(text: Any) -> str:
    if not isinstance(text, str):
        raise BadInput("a counterfactual edits one text; pairs of texts are not supported")
    return text


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """One text, the decision on it, and the edits that are possible. Words that the model does not read stay."""

    words: Words
    judge: Judge
    goal: Goal
    places: tuple[int, ...]
    options: Options

    @classmethod
    def of(cls, model: Model, text: str, to: int | None, proposals: Proposals) -> "Problem":
        words, (encoded,) = Words.of(text), encode_silently(model, [text])
        places = tuple(at for at in words.editable if not overlaps(words.spans[at], encoded.unseen))
        if not places:
            raise NothingToEdit(f"the text {text[:60]!r} has no word to edit")
        judge = Judge(model, words)
        label = int(judge([()])[()].argmax())
        if label == to:
            raise BadInput(
                f"the text {text[:60]!r} is already predicted {model.label(label)!r}; name another label, or none"
            )
        options = proposals.options(words, places)
        if not any(options.values()):
            raise NothingToEdit(f"there is no edit of {text[:60]!r}: {proposals.why_none}")
        return cls(words, judge, Goal(label, to), places, options)

    def probabilities(self, state: State) -> torch.Tensor:
        return self.judge([state])[state]

    def counterfactual(self, state: State) -> Counterfactual:
        """The text with these edits, and the decision on it."""
        text, p = self.words.edited(state), self.probabilities(state)
        changed, best = words_changed(self.words.text, text), int(p.argmax())
        label = best if self.goal.reached(p) or self.goal.to is None else self.goal.to
        share = changed / len(self.words)
        return Counterfactual(text, state, self.judge.model.label(label), float(p[label]), changed, share)


def word_scores(e: Explanation, words: Words) -> list[float]:
    """The score of every word; words that share a token have the same score."""
    scored = e.words()
    return [
        sum(w.score for w in scored if w.start < end and w.end > start and w.text.strip()) for start, end in words.spans
    ]


def _found(
    model: Model, text: str, to: int | None, configured: Configured, proposals: Proposals, plan: Search, how: str
) -> Counterfactuals:
    problem = Problem.of(model, text, to, proposals)
    target = Target(model.label(problem.goal.label), column=problem.goal.label)
    ((e,),) = explain_all(model, model.encode([text]), [configured], [target])
    order = in_order(word_scores(e, problem.words), problem.places)
    outcome = search(problem.judge, problem.goal, order, problem.options, plan)
    every = list({one.text: one for one in map(problem.counterfactual, outcome.reached)}.values())
    goal = problem.goal
    return Counterfactuals(
        text=text,
        label=model.label(goal.label),
        probability=float(problem.probabilities(())[goal.label]),
        to=None if to is None else model.label(to),
        results=tuple(best_of(text, every, proposals.filler, plan.wanted)),
        nearest=None if every or not outcome.nearest else problem.counterfactual(outcome.nearest),
        method=e.method,
        model=model.name,
        settings={"edits": list(proposals.kinds), "how": how, "count": plan.wanted, "max_edits": plan.most},
    )


def _rank(one: Counterfactual) -> tuple[float, ...]:
    return one.changed, -(one.fluency or 0.0), -one.probability


def best_of(text: str, every: Sequence[Counterfactual], filler: Filler | None, count: int) -> list[Counterfactual]:
    """The likeliest of those that edit the same words, ranked with their fluency; others only if these are too few."""
    ranked = sorted(every, key=_rank)
    first: dict[frozenset[tuple[int, bool]], Counterfactual] = {}
    for one in ranked:
        first.setdefault(edited_places(one.edits), one)
    different = [*first.values()][: max(RATED, count)]
    rest = [one for one in ranked if one not in different][: max(0, count - len(different))]
    return sorted(_with_fluency(text, [*different, *rest], filler), key=_rank)[:count]


def _with_fluency(text: str, every: Sequence[Counterfactual], filler: Filler | None) -> list[Counterfactual]:
    if filler is None or not every:
        return list(every)
    own = filler.log_probability(text)
    return [replace(one, fluency=filler.log_probability(one.text) - own) for one in every]
