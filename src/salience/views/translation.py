"""Views of a translator: agreement of attention and relevance, alignment error rates, and a heat map."""

from html import escape
from math import isnan
from typing import TYPE_CHECKING

from salience.core.shares import percent
from salience.core.stats import Estimate
from salience.views.alignment import written
from salience.views.pages import document, figure, listed, table
from salience.views.trials import Table

if TYPE_CHECKING:
    from salience.dynamics.translation import Translation


def agreement_table(result: "Translation") -> Table:
    """A(u, v) of every pair of scores, beside chance."""
    rows = [
        [
            f"A({row.of})",
            percent(row.agreement.mean, 1),
            _interval(row.agreement),
            percent(row.chance.mean, 1),
            f"{row.tau.mean:.3f}",
        ]
        for row in result.agreement
    ]
    return ("", "agreement", "95 % interval", "chance", "Kendall's τ"), rows


def _interval(share: Estimate) -> str:
    return "–" if isnan(share.low) else f"{percent(share.low, 1)} to {percent(share.high, 1)}"


def alignment_table(result: "Translation") -> Table:
    """Alignment error rates with their intervals, one column per data set."""
    kinds = list(dict.fromkeys(row.scores for one in result.aligned for row in one.rows))
    rates = [{row.scores: row.error_rate for row in one.rows} for one in result.aligned]
    rows = [[kind, *(written(of[kind]) if kind in of else "" for of in rates)] for kind in kinds]
    unknown = ["unknown source words", *(percent(one.unknown, 1) for one in result.aligned)]
    return ("AER ↓", *(f"{one.data} ({one.pairs} pairs)" for one in result.aligned)), [*rows, unknown]


def notes(result: "Translation") -> list[str]:
    """What the numbers mean."""
    return [
        f"BLEU {result.bleu:.1f} ({result.signature}).",
        "A(u, v) is the share of sub-word tokens of the answer whose highest source token by u is in the top 5 % by v, "
        "with the answer given; a mean over texts. Chance is its exact mean over all orders of v.",
        "The alignment error rate (AER) counts links to the source word with the highest score; 95 % intervals are "
        "from a bootstrap over pairs. Silver alignments are made by another aligner and have errors themselves.",
    ]


def page(result: "Translation", maps: bytes | None = None) -> str:
    """A self-contained HTML page."""
    aligned = f"<h2>Alignment</h2>{table(*alignment_table(result))}" if result.aligned else ""
    shown = f"<h2>Which word made each word</h2>{figure(maps)}" if maps else ""
    return document(
        f"Translation: {escape(result.model)}",
        f"<h2>Agreement</h2>{table(*agreement_table(result))}",
        aligned,
        listed(notes(result)),
        shown,
    )
