"""Word alignments: how well scores of answer × source find the word that a word translates."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import astuple, dataclass
from math import nan

import numpy as np
from jaxtyping import Float

from salience.core.stats import LEVEL, MINIMUM, Estimate
from salience.core.text import Span, spans
from salience.data.pairs import Pair, WordLink, read_pairs, word_of_token, words
from salience.errors import BadInput

DRAWS = 1000
"""Samples of the pairs, drawn with replacement, for each bootstrap interval."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Counts over some pairs, of which the alignment error rate is made."""

    sure: int = 0
    """|A ∩ S|"""
    possible: int = 0
    """|A ∩ P|"""
    made: int = 0
    """|A|"""
    wanted: int = 0
    """|S|"""

    @classmethod
    def of(cls, links: Iterable[WordLink], pair: Pair) -> "Alignment":
        """Compare links with those of a pair; every sure link is possible."""
        made = set(links)
        return cls(len(made & pair.sure), len(made & pair.possible), len(made), len(pair.sure))

    def __add__(self, other: "Alignment") -> "Alignment":
        return Alignment(
            self.sure + other.sure, self.possible + other.possible, self.made + other.made, self.wanted + other.wanted
        )

    @property
    def error_rate(self) -> float:
        """The alignment error rate of all pairs together."""
        if not self.made + self.wanted:
            raise BadInput("no pair has a word alignment; name the fields that hold them")
        return float(_rates(np.array(astuple(self), dtype=float)))


def _rates(counts: Float[np.ndarray, "*d 4"]) -> Float[np.ndarray, "*d"]:
    """AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|).

    Paper: Och & Ney 2000, Improved statistical alignment models
    """
    sure, possible, made, wanted = np.moveaxis(counts, -1, 0)
    return np.asarray(1 - (sure + possible) / (made + wanted))


def error_rate(pairs: Sequence[Alignment], seed: int = 0) -> Estimate:
    """The alignment error rate of all pairs together, with the percentile interval of the bootstrap over pairs."""
    rate, n = sum(pairs, Alignment()).error_rate, len(pairs)
    if n < MINIMUM:
        return Estimate(rate, nan, nan, n)
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=DRAWS)
    rates = _rates(drawn @ np.array([astuple(one) for one in pairs], dtype=float))
    low, high = np.quantile(rates, [LEVEL / 2, 1 - LEVEL / 2])
    return Estimate(rate, float(low), float(high), n)


# ---------------------------------------------------------------------------------------------------- pairs


def read_aligned(gold: str | None, silver: str | None, limit: int | None = None) -> dict[str, list[Pair]]:
    """Read pairs ``src``, ``trg`` with word alignments, and return them by name; raise for files without alignments.

    Gold ones have alignments ``sure`` and ``possible``. Silver ones are of the opposite direction, and have ``align``.
    """
    aligned: dict[str, list[Pair]] = {}
    if gold:
        aligned["gold"] = read_pairs(gold, "src", "trg", sure="sure", possible="possible", limit=limit)
    if silver:
        aligned["silver"] = [pair.reversed() for pair in read_pairs(silver, "src", "trg", sure="align", limit=limit)]
    for name, pairs in aligned.items():
        check_aligned(name, pairs)
    return aligned


def check_aligned(name: str, pairs: Sequence[Pair]) -> None:
    """Raise if none of the pairs has a word alignment."""
    if not any(pair.sure for pair in pairs):
        raise BadInput(f"no pair of {name} has a word alignment; the lists of all of them are empty")


# ---------------------------------------------------------------------------------------------------- links


def diagonal(t: int, s: int) -> Float[np.ndarray, "t s"]:
    """A control that knows nothing but places: minus the distance between two, each as a share of its text.

    Distances are made of whole numbers, so that equal ones tie.

    >>> diagonal(3, 2).tolist()
    [[0.0, -1.0], [-0.5, -0.5], [-1.0, 0.0]]
    """
    i, j, most = np.arange(t)[:, None], np.arange(s)[None], (max(1, t - 1), max(1, s - 1))
    return -abs(i * most[1] - j * most[0]) / (most[0] * most[1])


def by_words(
    matrix: Float[np.ndarray, "t s"], pair: Pair, answer: Sequence[Span], source: Sequence[Span]
) -> Float[np.ndarray, "v w"]:
    """Scores over words: the largest of a source word's tokens, and the mean over the tokens of an answer's word.

    Words without a token, which a truncated text has, score −∞.
    """
    rows, columns = (np.array(word_of_token(text, offsets)) for text, offsets in _sides(pair, answer, source))
    result = np.full((len(words(pair.answer)), len(words(pair.source))), -np.inf)
    for column in range(result.shape[1]):
        if (own := matrix[:, columns == column]).size:
            for row in range(result.shape[0]):
                if (theirs := own[rows == row]).size:
                    result[row, column] = theirs.max(1).mean()
    return result


def _sides(pair: Pair, answer: Sequence[Span], source: Sequence[Span]) -> list[tuple[str, Sequence[Span]]]:
    return [(pair.answer, answer), (pair.source, source)]


def links(scores: Float[np.ndarray, "v w"]) -> list[WordLink]:
    """Link every word of the answer with the source word of the highest score, the first of equals."""
    return [(int(row.argmax()), place) for place, row in enumerate(scores) if np.isfinite(row).any()]


# ---------------------------------------------------------------------------------------------------- words


def source_words(pairs: Iterable[Pair]) -> list[str]:
    """The words and punctuation marks of the sources, without case.

    They are the same whether or not punctuation is set apart, unlike the words that alignments number.

    >>> source_words([Pair("0", "Ein Hut, rot .", "A hat, red .")])
    ['ein', 'hut', ',', 'rot', '.']
    """
    return [pair.source[a:b].casefold() for pair in pairs for a, b in spans(pair.source)]


def unknown_words(pairs: Iterable[Pair], known: Collection[str]) -> float:
    """The share of source words that are not among the known ones, which are :func:`source_words` of other pairs."""
    unknown = [word not in known for word in source_words(pairs)]
    return sum(unknown) / max(1, len(unknown))
