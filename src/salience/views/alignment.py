"""Views of the alignment of cross-attention: a table of heads, sentences, a page and JSON."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from salience.core.shares import percent
from salience.core.stats import Estimate
from salience.views import plots
from salience.views.pages import document, listed, panels, table
from salience.views.plots import Axis
from salience.views.trials import Table

if TYPE_CHECKING:
    from salience.dynamics.cross_attention import AlignedHeads

TITLE = "Does cross-attention find the word that is translated?"


def alignment_table(results: "Sequence[AlignedHeads]") -> Table:
    """Alignment error rates, one row per head and one column per data set and step."""
    names = list(dict.fromkeys(row.scores for row in results[0].rows))
    columns = {f"{one.data}, {step}": _rates(one, step) for one in results for step in _steps(one)}
    rows = [[name, *(written(rates[name]) for rates in columns.values())] for name in names]
    return ("AER ↓", *columns), rows


def _steps(one: "AlignedHeads") -> list[str]:
    return list(dict.fromkeys(row.step for row in one.rows if row.step))


def _rates(one: "AlignedHeads", step: str) -> dict[str, Estimate]:
    """The rate of every row at a step; controls have the same at both."""
    return {row.scores: row.error_rate for row in one.rows if row.step in (step, "")}


def written(e: Estimate) -> str:
    """A rate with its interval, such as ``83.8 % [82.4, 85.0]``."""
    interval = "" if e.low != e.low else f" [{100 * e.low:.1f}, {100 * e.high:.1f}]"
    return f"{percent(e.mean, 1)}{interval}"


def notes(results: "Sequence[AlignedHeads]") -> list[str]:
    """What the numbers say."""
    lines = [_chosen(one) for one in results]
    unknown = [f"{one.data} {percent(one.unknown, 1)}" for one in results if one.unknown is not None]
    if unknown:
        lines.append(f"Source words that the training texts do not contain: {', '.join(unknown)}.")
    long = [f"{one.left_out} of {one.data}" for one in results if one.left_out]
    if long:
        lines.append(f"Pairs that are too long for the model are left out: {', '.join(long)}.")
    return [
        *lines,
        "The attention of a word is that as the decoder predicts it, or one step later, as it reads it. Every word of "
        "the answer is linked with the source word of the highest weight. Silver alignments are made by another "
        "aligner and have errors themselves.",
    ]


def _chosen(one: "AlignedHeads") -> str:
    controls = {row.scores: written(row.error_rate) for row in one.controls}
    return (
        f"{one.data}: {one.chosen.scores}, as the decoder {one.chosen.step} a word, has the lowest error rate on every "
        f"second pair, and {written(one.chosen.error_rate)} on the others, where that of the diagonal is "
        f"{controls['diagonal']} and that of random scores {controls['random']}; {one.pairs} pairs."
    )


def page(name: str, results: "Sequence[AlignedHeads]") -> str:
    """A self-contained HTML page."""
    return document(
        escape(TITLE),
        f"<p>{escape(name)}</p>",
        listed(notes(results)),
        "<p>Alignment error rates with 95 % intervals; the dashed line is the diagonal.</p>",
        _charts(results),
        table(*alignment_table(results)),
    )


def _charts(results: "Sequence[AlignedHeads]") -> str:
    """One panel for each data set and step."""
    charts: dict[str, bytes] = {}
    for one in results:
        controls = [row.scores for row in one.controls]
        for step in _steps(one):
            rates = _rates(one, step)
            made = plots.means(
                rates,
                Axis("", ".0%", (0.0, 1.0)),
                width=plots.SMALL,
                row=22,
                quiet=controls,
                reference=rates["diagonal"].mean,
                written="",
            )
            charts[f"{one.data}, {step} ↓"] = plots.svg(made)
    return panels(charts, "Alignment error rate of every head, by data and step", None)
