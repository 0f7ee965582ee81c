"""Binary trees over the units of a text, which join the most closely related neighbours first. No model is needed."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Range = tuple[int, int]
"""A run of neighbours: the first index, and one past the last."""

WITHIN_WORD, APOSTROPHE, CONNECTOR, COMMA, STOP, BRACKET, SEPARATOR = 20, 15, 2, 10, 20, 100, 1000
"""The bonus for joining pieces of a word, and the penalties for joining across each kind of punctuation."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The text of one leaf, and whether it continues the word of the leaf before it."""

    text: str
    inside: bool = False
    separator: bool = False
    """Whether it is a special token between two texts, which are not joined before each of them is complete."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Leaves 0 to n − 1, and inner clusters n, n + 1, ... in the order of joining; the last is the root.

    >>> Tree(3, ((0, 1), (3, 2))).members
    (1, 2, 4, 3, 7)
    """

    leaves: int
    children: tuple[tuple[int, int], ...]

    @property
    def root(self) -> int:
        return self.leaves + len(self.children) - 1

    @property
    def members(self) -> tuple[int, ...]:
        """The leaves of every cluster, as a bit mask."""
        bits = [1 << leaf for leaf in range(self.leaves)]
        for left, right in self.children:
            bits.append(bits[left] | bits[right])
        return tuple(bits)

    @property
    def splits(self) -> int:
        """The number of splits until only leaves remain: one per cluster and coalition of the siblings above it.

        >>> balanced(4).splits, balanced(8).splits
        (5, 21)
        """
        times = {self.root: 1}
        for cluster in reversed(range(self.leaves, self.root + 1)):
            times |= dict.fromkeys(self.children[cluster - self.leaves], 2 * times[cluster])
        return sum(count for cluster, count in times.items() if cluster >= self.leaves)


def balanced(n: int) -> Tree:
    """Split the leaves in half, recursively.

    >>> balanced(3)
    Tree(leaves=3, children=((1, 2), (0, 3)))
    """
    children: list[tuple[int, int]] = []

    def join(start: int, end: int) -> int:
        if end - start == 1:
            return start
        middle = (start + end) // 2
        children.append((join(start, middle), join(middle, end)))
        return n + len(children) - 1

    if n:
        join(0, n)
    return Tree(n, tuple(children))


def neighbours(pieces: Sequence[Piece]) -> Tree:
    """Repeatedly join the two neighbours with the highest score: words first, then phrases, then sentences.

    The scores are those of the text masker of the package shap; ties go to the leftmost pair.
    """
    groups: list[tuple[Range, int]] = [((i, i + 1), i) for i in range(len(pieces))]
    matched: set[int] = set()
    scores = [_affinity(pieces, matched, a, b) for (a, _), (b, _) in pairwise(groups)]
    children: list[tuple[int, int]] = []
    while scores:
        at = scores.index(max(scores))
        (((start, _), left), ((_, end), right)) = groups[at : at + 2]
        groups[at : at + 2] = [((start, end), len(pieces) + len(children))]
        children.append((left, right))
        if (pieces[start].text, pieces[end - 1].text) == ("(", ")"):
            matched |= {start, end - 1}
        del scores[at]
        for near in range(max(0, at - 1), min(len(scores), at + 1)):
            scores[near] = _affinity(pieces, matched, groups[near][0], groups[near + 1][0])
    return Tree(len(pieces), tuple(children))


def _affinity(pieces: Sequence[Piece], matched: set[int], a: Range, b: Range) -> int:
    """The score for joining the run a with the run b after it. Short runs are joined first."""
    first, before, after, last = pieces[a[0]].text, pieces[a[1] - 1].text, pieces[b[0]].text, pieces[b[1] - 1].text
    alone = b[1] - b[0] == 1
    ending = alone or (b[1] - b[0] == 2 and last in ("t", "s"))
    score = a[0] - b[1]
    score += WITHIN_WORD * pieces[b[0]].inside
    score += APOSTROPHE * (after == "'" and ending)
    score += APOSTROPHE * (before == "'" and after in ("t", "s"))
    score -= SEPARATOR * (pieces[a[0]].separator != pieces[b[1] - 1].separator)
    score -= BRACKET * (after == "(" and b[0] not in matched)
    score -= BRACKET * (before == ")" and a[1] - 1 not in matched)
    score -= 2 * (first == "(")
    score -= CONNECTOR * (before in CONNECTORS or after in CONNECTORS)
    score -= COMMA * (before == ",") + STOP * (before in STOPS)
    # Punctuation alone is joined to what precedes it; anything longer would be joined across it.
    score -= (1 if alone else COMMA) * (after == ",") + (1 if alone else STOP) * (after in STOPS)
    return score


CONNECTORS = ("but", "and", "or")
STOPS = (".", "?", "!")


def pruned(tree: Tree, kept: Sequence[int]) -> Tree:
    """Keep only some leaves of the tree, renumbered in the order of ``kept``.

    >>> pruned(Tree(3, ((0, 1), (3, 2))), [1, 2])
    Tree(leaves=2, children=((0, 1),))
    """
    renumbered: dict[int, int | None] = dict.fromkeys(range(tree.leaves))
    renumbered |= {leaf: number for number, leaf in enumerate(kept)}
    children: list[tuple[int, int]] = []
    for cluster, (left, right) in enumerate(tree.children, tree.leaves):
        one, other = renumbered[left], renumbered[right]
        if one is None or other is None:
            renumbered[cluster] = other if one is None else one
        else:
            renumbered[cluster] = len(kept) + len(children)
            children.append((one, other))
    return Tree(len(kept), tuple(children))


def of_text(spelled: Sequence[str], units: Sequence[int], words: Sequence[int]) -> Tree:
    """Return the tree of a text. Special tokens are joined as in the package shap, then pruned."""
    content = [i for i, unit in enumerate(units) if unit >= 0]
    leaves: dict[int, list[int]] = {}
    for i, unit in enumerate(units):
        leaves.setdefault(unit if unit >= 0 else -1 - i, []).append(i)
    pieces = [
        Piece("", separator=content[:1] < [tokens[0]] < content[-1:])
        if unit < 0
        else _piece("".join(spelled[i] for i in tokens), *_before(tokens[0], spelled, words))
        for unit, tokens in leaves.items()
    ]
    return pruned(neighbours(pieces), [leaf for leaf, unit in enumerate(leaves) if unit >= 0])


def _before(i: int, spelled: Sequence[str], words: Sequence[int]) -> tuple[str, bool]:
    """The text of the previous token, and whether it belongs to the same word."""
    return (spelled[i - 1], words[i - 1] == words[i] >= 0) if i else ("", False)


def _piece(text: str, before: str, same_word: bool) -> Piece:
    """A token that continues a word never counts as punctuation or a conjunction, whatever its characters."""
    inside = same_word and before[-1:].isalnum() and any(map(str.isalpha, text))
    return Piece("" if inside else text.strip(), inside)
