"""Does co-occurrence alone recover the dictionary? Words are looked up by counts, and compared with alignments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from salience.data.pairs import Pair
from salience.dynamics.alignment import diagonal
from salience.dynamics.dictionary import CoOccurrence, TokenPair
from salience.errors import BadInput

Word = tuple[int, str]
"""0 for the language of the sources and 1 for that of the answers, and the word without case."""


@dataclass(frozen=True, slots=True, eq=False)
class Recovery:
    """For every pair, the share of the answer's aligned words whose partner is found, by the way it is looked up."""

    shares: Mapping[str, Float[np.ndarray, " n"]]
    """By ``association`` n(o, i) / (n(o) n(i)), by ``counts`` n(o, i), by ``place`` in the text, and by ``chance``."""
    unknown: float
    """The share of the aligned words that no training pair holds."""


def recovery(train: Sequence[Pair], test: Sequence[Pair]) -> Recovery:
    """Count the words of the training pairs, and look up every aligned word of the test pairs.

    A word is found if the source word with the highest count is one that it is aligned with. ``chance`` draws a source
    word at random.
    """
    linked = [pair for pair in test if pair.sure]
    if not linked:
        raise BadInput("no test pair has a word alignment, which says what the dictionary should hold")
    numbers: dict[Word, int] = {}
    known = [_numbered(pair, numbers) for pair in train]
    trained = len(numbers)
    tested = [_numbered(pair, numbers) for pair in linked]
    counts = CoOccurrence.of(known, len(numbers))
    rows = [_found(counts, source, answer, pair) for (source, answer), pair in zip(tested, linked, strict=True)]
    words = [answer[o] for (_, answer), pair in zip(tested, linked, strict=True) for o in {o for _, o in pair.sure}]
    return Recovery(
        {name: np.array([row[name] for row in rows]) for name in rows[0]},
        float(np.mean([word >= trained for word in words])),
    )


def _numbered(pair: Pair, numbers: dict[Word, int]) -> TokenPair:
    """The words of both texts as numbers, without case; new words get the next number."""
    source, answer = (
        [numbers.setdefault((side, word), len(numbers)) for word in text.casefold().split()]
        for side, text in enumerate((pair.source, pair.answer))
    )
    return source, answer


def _found(counts: CoOccurrence, source: Sequence[int], answer: Sequence[int], pair: Pair) -> dict[str, float]:
    """The share of the answer's aligned words that each way of looking up finds; ties count as a draw among them."""
    partners = np.zeros((len(answer), len(source)), dtype=bool)
    for i, o in pair.sure:
        partners[o, i] = True
    aligned = partners.any(1)
    scores = {
        "association": counts.association(answer, source),
        "counts": counts.counts(answer, source),
        "place": diagonal(*partners.shape),
        "chance": np.zeros(partners.shape),
    }
    return {name: float(_hits(values[aligned], partners[aligned]).mean()) for name, values in scores.items()}


def _hits(scores: Float[np.ndarray, "t s"], partners: np.ndarray) -> Float[np.ndarray, " t"]:
    """The chance that the highest of a row is a partner, if ties are drawn."""
    top = scores == scores.max(1, keepdims=True)
    return (top & partners).sum(1) / top.sum(1)
