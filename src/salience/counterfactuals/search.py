"""The search for edits that change a decision, in the order of an explanation; every draft is judged by the model."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from salience.core.rows import predict
from salience.core.types import Model, on_scale
from salience.counterfactuals.edits import Edit, Words
from salience.data.examples import encode_silently

State = tuple[Edit, ...]
"""Edits in the order of their words."""

Options = Mapping[int, Sequence[Edit]]
"""The possible edits of each word."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The decision to leave, and the one to reach; None for any other."""

    label: int
    to: int | None

    def reached(self, p: Float[Tensor, " c"]) -> bool:
        best = int(p.argmax())
        return best == self.to if self.to is not None else best != self.label

    def closeness(self, p: Float[Tensor, " c"]) -> float:
        """The probability of the label to reach, or of all others together."""
        return float(p[self.to]) if self.to is not None else 1 - float(p[self.label])


class Judge:
    """The probabilities of edited texts. Equal texts are passed once."""

    def __init__(self, model: Model, words: Words) -> None:
        self.model, self.words = model, words
        self.known: dict[str, Float[Tensor, " c"]] = {}

    def __call__(self, states: Iterable[State]) -> dict[State, Float[Tensor, " c"]]:
        texts = {state: self.words.edited(state) for state in states}
        new = [text for text in dict.fromkeys(texts.values()) if text not in self.known]
        if new:
            probabilities = on_scale(
                predict(self.model, encode_silently(self.model, new)), "probability", self.model.link
            )
            self.known |= zip(new, probabilities, strict=True)
        return {state: self.known[text] for state, text in texts.items()}


@dataclass(frozen=True, slots=True)
class Search:
    """How to search: ``beam`` drafts are kept, and each is edited at the next ``reach`` words of the order.

    A greedy search keeps one draft and edits the words strictly in order.
    """

    beam: int
    reach: int
    most: int
    """The most edits of a draft."""
    wanted: int = 1
    """How many different drafts are looked for."""


KEPT = 5
"""The edits of a word that a beam search tries together with others."""

GREEDY = Search(beam=1, reach=1, most=1_000)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The drafts that reach the goal, and the closest of those that do not."""

    reached: tuple[State, ...]
    nearest: State
    steps: int
    """The number of words that were edited until the goal was reached, or until the search gave up."""


def search(judge: Judge, goal: Goal, order: Sequence[int], options: Options, how: Search) -> Outcome:
    """Edit one more word of each draft at a time, and keep the drafts that are closest to the goal.

    Drafts that reach the goal are not edited further. The search ends when enough different ones are known, one step
    after the first at the latest, or when there is nothing left to edit.
    """
    drafts: list[State] = [()]
    reached: list[State] = []
    nearest, closest, steps = (), -1.0, 0
    while drafts and steps < how.most:
        grown = judge(dict.fromkeys(new for draft in drafts for new in _grown(draft, order, options, how.reach)))
        if not grown:
            break
        steps += 1
        earlier = len(reached)
        reached += [state for state, p in grown.items() if goal.reached(p)]
        rest = sorted(((goal.closeness(p), state) for state, p in grown.items() if not goal.reached(p)), reverse=True)
        if rest and rest[0][0] > closest:
            closest, nearest = rest[0]
        drafts = [state for _, state in rest[: how.beam]]
        options = _narrowed(options, goal, grown) if steps == 1 and how.beam > 1 else options
        if earlier or len({edited_places(state) for state in reached}) >= how.wanted:
            break
    return Outcome(_pruned(judge, goal, reached), nearest, steps)


def _grown(draft: State, order: Sequence[int], options: Options, reach: int) -> Iterator[State]:
    """The draft with one more word edited: the next ones in the order. The last word is never deleted."""
    taken = {edit.at for edit in draft}
    last = sum(edit.kind == "delete" for edit in draft) + 1 == len(options)
    for at in [at for at in order if at not in taken and options.get(at)][:reach]:
        for edit in options[at]:
            if not (last and edit.kind == "delete"):
                yield tuple(sorted((*draft, edit)))


def _narrowed(options: Options, goal: Goal, single: Mapping[State, Float[Tensor, " c"]]) -> Options:
    """Keep the edits of each word that brought the goal closest when they were made alone."""
    ranked = sorted(single, key=lambda state: -goal.closeness(single[state]))
    tried: dict[int, list[Edit]] = {}
    for (edit,) in ranked:
        tried.setdefault(edit.at, []).append(edit)
    return {at: tried[at][:KEPT] if at in tried else edits for at, edits in options.items()}


def edited_places(state: State) -> frozenset[tuple[int, bool]]:
    """The words that are edited, and those before which a word is inserted."""
    return frozenset((edit.at, edit.kind == "insert") for edit in state)


def _pruned(judge: Judge, goal: Goal, reached: Sequence[State]) -> tuple[State, ...]:
    """Take back every edit without which the goal is still reached: one of each draft at a time, judged together."""
    before, states = None, tuple(reached)
    while states != before:
        fewer = {state: [_without(edit, state) for edit in state if len(state) > 1] for state in states}
        p = judge(short for many in fewer.values() for short in many)
        before = states
        states = tuple(next((short for short in fewer[s] if goal.reached(p[short])), s) for s in states)
    return states


def _without(edit: Edit, state: State) -> State:
    return tuple(one for one in state if one is not edit)


def in_order(scores: Sequence[float], places: Sequence[int]) -> list[int]:
    """The places by their scores, the highest first; ties in the order of the text."""
    return sorted(places, key=lambda at: -scores[at])


def at_random(places: Sequence[int], seed: int) -> list[int]:
    """The places in a random order."""
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed)).tolist()
    return [places[i] for i in order]
