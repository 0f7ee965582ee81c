"""Views of comparisons: how far methods agree, where two models differ, and where two runs do."""

from collections.abc import Mapping, Sequence
from html import escape

from salience.explanations.explanation import Explanation
from salience.views.html import text_of
from salience.views.pages import table
from salience.views.sheet import label

Pair = tuple[str, str, float | None]
"""Two names, and the rank correlation between them."""

DIFFERENT = 8
"""The words listed with the largest differences between two models."""


def agreement(pairs: Sequence[Pair]) -> str:
    """The rank correlation between every two methods, as a table; empty for a single method."""
    if not pairs:
        return ""
    names = list(dict.fromkeys(name for one, other, _ in pairs for name in (one, other)))
    known = {frozenset((one, other)): value for one, other, value in pairs}
    rows = [
        [name, *("" if name == other else _number(known.get(frozenset((name, other)))) for other in names)]
        for name in names
    ]
    return (
        f'<article class="salience"><h2>Agreement of the methods</h2><p class="quiet">Rank correlation (Spearman) of '
        f"the scores of the words: 1 is the same order, 0 no relation.</p>{table(['', *names], rows)}</article>"
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}"


def models(predictions: Mapping[str, Mapping[str, float]], rows: Mapping[str, Sequence[Explanation]]) -> str:
    """The predictions of some models for one text, and for each method the words on which the first two differ most."""
    labels = list(dict.fromkeys(name for own in predictions.values() for name in own))
    cells = [
        [model, *(f"{100 * own[name]:.1f} %" if name in own else "–" for name in labels)]
        for model, own in predictions.items()
    ]
    one, other = list(rows)[:2]
    parts = [_words(one, other, e, f) for e, f in zip(rows[one], rows[other], strict=False) if e.method == f.method]
    return (
        f'<article class="salience"><h2>Predictions</h2>{table(["", *map(label, labels)], cells)}</article>'
        f"{''.join(parts)}"
    )


def _words(one: str, other: str, e: Explanation, f: Explanation) -> str:
    """The words with the largest differences between the shares that two models give them."""
    mine, theirs = shares(e), shares(f)
    if mine.keys() != theirs.keys():
        return f"<p>{escape(e.method)}: the models divide the text into different words, which are not compared.</p>"
    ranked = sorted(mine, key=lambda span: -abs(mine[span] - theirs[span]))[:DIFFERENT]
    rows = [
        [label(e.text[slice(*span)]), f"{mine[span]:+.2f}", f"{theirs[span]:+.2f}", f"{theirs[span] - mine[span]:+.2f}"]
        for span in ranked
    ]
    return (
        f'<article class="salience"><h2>{text_of(e.method)}: where they differ most</h2><p class="quiet">Shares of the '
        f"absolute scores of the text.</p>{table(['word', one, other, 'difference'], rows)}</article>"
    )


def shares(e: Explanation) -> dict[tuple[int, int], float]:
    """The share of each word in the sum of the absolute scores of all words."""
    words = e.words()
    total = sum(abs(word.score) for word in words) or 1.0
    return {(word.start, word.end): word.score / total for word in words}
