"""Words looked up by co-occurrence: the slides' example, and the shares that follow from it."""

import numpy as np
import pytest

from salience.data.pairs import Pair
from salience.dynamics.recovery import recovery
from salience.errors import BadInput
from salience.papers.output_relevance import AlignedPairs, looked_up

SLIDES = [
    ("This movie is great", "Dieser Film ist großartig"),
    ("This movie is bad", "Dieser Film ist schlecht"),
]


def pairs(*texts: tuple[str, str], linked: bool = True) -> list[Pair]:
    links = frozenset((i, i) for i in range(4)) if linked else frozenset[tuple[int, int]]()
    return [Pair(str(n), *text, links, links) for n, text in enumerate(texts)]


def test_only_the_words_that_tell_the_sentences_apart_are_found_for_sure():
    """n/(n n): great-großartig 1, great-ist 1/2; this-dieser 1/2, and as much with movie and is."""
    result = recovery(pairs(*SLIDES), pairs(SLIDES[0]))
    # großartig: great alone. The other three: a draw among this, movie, is and, at 1/2 as well, great.
    np.testing.assert_allclose(result.shares["association"], [(1 + 3 * 1 / 4) / 4])
    # By counts, the first three tie among this, movie and is; großartig ties among all four.
    np.testing.assert_allclose(result.shares["counts"], [(3 * 1 / 3 + 1 / 4) / 4])
    np.testing.assert_allclose(result.shares["place"], [1.0])
    np.testing.assert_allclose(result.shares["chance"], [1 / 4])
    assert result.unknown == 0


def test_the_place_of_a_word_is_a_share_of_its_text():
    """Both last words are at the end, whatever the lengths; the word in the middle is as far from both in it."""
    links = frozenset({(3, 2), (1, 1)})
    pair = Pair("0", "a b c d", "x y z", links, links)
    np.testing.assert_allclose(recovery([pair], [pair]).shares["place"], [(1 + 1 / 2) / 2])


def test_words_outside_the_training_pairs_are_counted_and_drawn():
    result = recovery(pairs(*SLIDES), pairs(("This movie is odd", "Dieser Film ist merkwürdig")))
    assert result.unknown == pytest.approx(1 / 4)
    np.testing.assert_allclose(result.shares["association"], [(3 * 1 / 3 + 1 / 4) / 4])


def test_pairs_without_alignments_are_left_out_or_refused():
    mixed = [*pairs(SLIDES[0]), *pairs(SLIDES[1], linked=False)]
    assert len(recovery(pairs(*SLIDES), mixed).shares["chance"]) == 1
    with pytest.raises(BadInput, match="no test pair has a word alignment"):
        recovery(pairs(*SLIDES), pairs(SLIDES[0], linked=False))


@pytest.mark.parametrize(("words", "verdict"), [(20, "reproduced"), (3, "not reproduced")])
def test_the_claim_is_judged_by_chance(words: int, verdict: str):
    """Texts of other words are told apart by co-occurrence; texts of three words hardly are."""
    rng = np.random.default_rng(0)
    drawn = [rng.integers(0, words, 8) for _ in range(120)]
    made = [
        Pair(str(n), " ".join(f"s{w}" for w in row), " ".join(f"t{w}" for w in row), diagonal, diagonal)
        for n, row in enumerate(drawn)
        for diagonal in [frozenset((i, i) for i in range(8))]
    ]
    (answer,) = looked_up(AlignedPairs(made[:50], made[50:], by_people=True)).answers
    assert (answer.claim, answer.verdict) == (8, verdict)
    assert "by chance" in answer.figures
    (answer,) = looked_up(AlignedPairs(made[:50], made[50:])).answers
    assert answer.verdict == "not comparable"
    assert answer.figures.endswith("; the alignments are automatic")
