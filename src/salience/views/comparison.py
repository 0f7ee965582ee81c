"""Views of comparisons: how far methods agree, where two models differ, and where two runs do."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import isnan

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from salience.core.characters import visible
from salience.core.stats import Estimate
from salience.explanations.explanation import Explanation
from salience.runs.comparison import DifferentText, RunComparison
from salience.views.html import text_of
from salience.views.pages import document, listed, parts, table
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
        "the scores of the words: 1 is the same order, 0 no relation. If a method has no sign, magnitudes are "
        f"compared.</p>{table(['', *names], rows)}</article>"
    )


def _number(value: float | None) -> str:
    """Two digits with a sign; 0 has none, even where it is a rounded negative number."""
    return "–" if value is None else "0.00" if abs(value) < 0.005 else f"{value:+.2f}"


def models(
    predictions: Mapping[str, Mapping[str, float]], rows: Mapping[str, Sequence[Explanation]], shown: str
) -> str:
    """The predictions of some models for one text, what is ``shown`` of each, and the words that differ most."""
    labels = list(dict.fromkeys(name for own in predictions.values() for name in own))
    cells = [
        [model, *(f"{100 * own[name]:.1f} %" if name in own else "–" for name in labels)]
        for model, own in predictions.items()
    ]
    one, other = list(rows)[:2]
    parts = [_words(one, other, e, f) for e, f in zip(rows[one], rows[other], strict=False) if e.method == f.method]
    return (
        f'<article class="salience"><h2>Predictions</h2>{table(["", *map(label, labels)], cells)}</article>'
        f"{shown}{''.join(parts)}"
    )


def _words(one: str, other: str, e: Explanation, f: Explanation) -> str:
    """The words with the largest differences between the shares that two models give them."""
    mine, theirs = shares(e), shares(f)
    if mine.keys() != theirs.keys():
        return f"<p>{escape(e.method)}: the models divide the text into different words, which are not compared.</p>"
    ranked = sorted(mine, key=lambda span: -abs(mine[span] - theirs[span]))[:DIFFERENT]
    rows = [
        [label(e.text[slice(*span)]), *map(_number, (mine[span], theirs[span], theirs[span] - mine[span]))]
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


# ------------------------------------------------------------------------------------------------------ two runs

HEAD = ("id", "text", "label", "one", "other", "distance", "agreement")
SHORT, WIDEST = 60, 12
"""The characters of a text in a table, and of a name or label in a terminal."""


def terminal(result: RunComparison) -> RenderableType:
    """How far two runs agree, then the texts on which they differ most."""
    parts: list[RenderableType] = [Text(line) for line in facts(result)]
    for title, texts in _lists(result):
        parts += [Text(), Text(title, "bold"), _shown(texts)]
    return Group(*parts)


def _shown(texts: Sequence[DifferentText]) -> Table:
    """The text has the room that the other columns leave."""
    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    rows = [_cells(text, WIDEST) for text in texts]
    for name, *column in zip(HEAD, *rows, strict=True):
        least = 8 if name == "text" else max(map(len, (name, *column)))
        made.add_column(name, no_wrap=True, overflow="ellipsis", min_width=least)
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def _cells(text: DifferentText, widest: int = SHORT) -> list[str]:
    words = " ".join(visible(text.text).split())
    one, other = (f"{_cut(label(p), widest)} {100 * c:.0f} %" for p, c in _predictions(text))
    least = "–" if isnan(text.least) else f"{text.least:+.2f}"
    known = "–" if text.label is None else _cut(label(text.label), widest)
    return [_cut(label(text.id), widest), _cut(words, SHORT), known, one, other, f"{text.distance:.2f}", least]


def _predictions(text: DifferentText) -> Iterator[tuple[str, float]]:
    return zip(text.predictions, text.confidences, strict=True)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def facts(result: RunComparison) -> list[str]:
    """What was compared, and how far the runs agree."""
    one, other = (
        f"{visible(r, keep='')} ({visible(m, keep='')})" for r, m in zip(result.runs, result.models, strict=True)
    )
    lines = [
        f"one: {one}; other: {other}",
        f"{result.texts:,} texts of both; {result.only[0]:,} only in one, {result.only[1]:,} only in the other",
        f"same prediction: {_percent(result.same)} of the texts",
        f"distance of the predictions (total variation): {result.distance}",
    ]
    if result.accuracy is not None:
        a, b = result.accuracy
        lines.append(f"accuracy: one {_percent(a)}, other {_percent(b)}")
    lines += [
        f"rank correlation of the words by {visible(method, keep='')}: {value}"
        for method, value in result.agreement.items()
    ]
    return lines


def _percent(share: Estimate) -> str:
    interval = "" if isnan(share.low) else f" [{100 * share.low:.1f}, {100 * share.high:.1f}]"
    return f"{100 * share.mean:.1f} %{interval}"


def _lists(result: RunComparison) -> Iterator[tuple[str, Sequence[DifferentText]]]:
    if result.by_prediction:
        yield "Predictions farthest apart", result.by_prediction
    if result.by_explanation:
        yield "Same prediction, explanations that agree least", result.by_explanation


def page(result: RunComparison) -> str:
    """A self-contained page."""
    return document("Two runs compared", _body(result))


def fragment(result: RunComparison) -> str:
    """The same for a notebook cell."""
    return parts(_body(result))


def _body(result: RunComparison) -> str:
    told = listed(facts(result))
    lists = (f"<h2>{escape(title)}</h2>{table(HEAD, map(_cells, texts))}" for title, texts in _lists(result))
    return told + "".join(lists)
