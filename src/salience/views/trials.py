"""Views of trials: tables for the terminal and for HTML pages, and the curves of remove and retrain."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from math import isnan
from typing import Any

from rich.table import Table as Shown
from rich.text import Text

from salience.core.characters import to_json as safe_json
from salience.core.characters import visible
from salience.core.shares import percent
from salience.core.stats import Spread
from salience.evaluation.advice import plural
from salience.methods import CONTROLS, INTERACTIONS
from salience.trials.agreement import MEASURES, Agreement
from salience.trials.needle import NeedleResult
from salience.trials.roar import RoarCurve, racu
from salience.trials.shortcuts import ShortcutResult
from salience.views import plots
from salience.views.evaluation import as_facts, plain
from salience.views.pages import chart, document, listed, table
from salience.views.plots import Axis, Line

Table = tuple[Sequence[str], Sequence[Sequence[str]]]
"""The header and the rows."""


def terminal(content: Table, width: int = 80) -> list[Shown]:
    """Tables that fit the width, as many as it takes, each with the first column; controls are dim."""
    head, rows = content
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]
    return [_block(content, [0, *columns]) for columns in _fitting(widths, width)]


PAIRS = tuple(method.__name__ for method in INTERACTIONS)

GAP = 2
"""The space between two columns."""


def _fitting(widths: Sequence[int], width: int) -> list[list[int]]:
    """The columns after the first in groups, each as large as fits beside the first.

    >>> _fitting([20, 13, 13, 13, 13, 6], 80)
    [[1, 2, 3, 4], [5]]
    """
    groups, left = [[1]], width - widths[0] - GAP - widths[1]
    for i, needed in enumerate(widths[2:], 2):
        if GAP + needed > left:
            groups.append([])
            left = width - widths[0]
        groups[-1].append(i)
        left -= GAP + needed
    return groups


def _block(content: Table, columns: Sequence[int]) -> Shown:
    head, rows = content
    made = Shown(box=None, pad_edge=False, header_style="bold", padding=(0, 0, 0, GAP))
    for i in columns:
        made.add_column(Text(visible(head[i], keep="")))
    for row in rows:
        made.add_row(*(Text(visible(row[i])) for i in columns), style="dim" if row[0] in CONTROLS else "")
    return made


def shortcuts(results: Sequence[ShortcutResult]) -> Table:
    """Methods by kinds of shortcut. Where two words are planted, also how often both are the strongest."""
    head = ["", *(f"{one.shortcut.kind}: {what}" for one in results for what in _columns(one))]
    names = dict.fromkeys(name for one in results for name in one.found)
    cells = [[name, *(cell for one in results for cell in _shortcut_cells(one, name))] for name in names]
    return head, cells


def _columns(one: ShortcutResult) -> tuple[str, ...]:
    return ("precision ↑", "rank ↓") if one.shortcut.kind == "token" else ("precision ↑", "rank ↓", "both strongest ↑")


def _shortcut_cells(one: ShortcutResult, name: str) -> list[str]:
    if name not in one.found:
        return ["–"] * len(_columns(one))
    result = one.found[name]
    return [str(value) for value in (result.precision, result.rank, result.complete)][: len(_columns(one))]


def shortcut_notes(results: Sequence[ShortcutResult]) -> list[str]:
    """How well each model learnt its shortcut, one sentence per kind, and what pairs are."""
    pairs = dict.fromkeys(name for one in results for name in one.found if name in PAIRS)
    counted = [f"{', '.join(pairs)}: of the strongest pair of words instead of the strongest words"] if pairs else []
    return [
        f"{one.shortcut.kind}: {one.model} used the shortcut after {one.epochs} "
        f"{'epoch' if one.epochs == 1 else 'epochs'}: {one.learnt} (n = {one.texts})"
        for one in results
    ] + counted


def roar(curves: Mapping[str, RoarCurve]) -> Table:
    """Accuracy at every share, ± the standard deviation over seeds, and the RACU of the mean curves."""
    shares = next(iter(curves.values())).shares
    head = ["", *(percent(share) for share in shares), "RACU ↑"]
    return head, [
        [name, *(f"{curve.at(share):.3f}" for share in shares), _racu(name, curves)] for name, curve in curves.items()
    ]


NEGLIGIBLE = 0.05
"""A difference in accuracy that is treated as negligible."""


def roar_notes(curves: Mapping[str, RoarCurve], texts: int) -> list[str]:
    """What the table shows, and cautions where its curves cannot be interpreted."""
    curve = curves["random"]
    notes = [
        f"Accuracy on {texts} test texts by the share of tokens masked before training, mean ± standard deviation over "
        f"{plural(len(curve.accuracy), 'seed')}. The further a method falls below random, the better.",
        "RACU: 1 if the highest-scoring tokens are all that the task needs, 0 if they are no better than random ones, "
        "– if masking random tokens does not reduce accuracy.",
    ]
    if curve.means[0] - curve.means[-1] < NEGLIGIBLE:
        notes.append(
            f"Caution: the models learnt little ({curve.means[0]:.3f} on whole texts, {curve.means[-1]:.3f} at the "
            "largest share). Train for more epochs, at a higher learning rate, or on more texts."
        )
    rising = [name for name, one in curves.items() if one.means.max() - one.means[0] > NEGLIGIBLE]
    if leaking := [name for name in rising if name not in CONTROLS]:  # controls do not know the label
        notes.append(
            f"Caution: the masks of {', '.join(leaking)} leak the label: accuracy rises above that on whole texts. "
            "ROAR explains the gold label."
        )
    return notes


def simulatability_notes(agreement: Mapping[str, Spread], teacher: str, texts: int) -> list[str]:
    """What the table shows."""
    seeds = plural(len(agreement["none"].values), "seed")
    return [
        f"Agreement with {teacher} on {texts} test texts, mean ± standard deviation over {seeds}.",
        "Gain: the increase over students without explanations, paired by seed. Compare it with that of random.",
    ]


def agreement_notes(result: Agreement) -> list[str]:
    """What the table shows."""
    notes = [
        "spearman and kendall: rank correlations, 1 for the same order and 0 for unrelated orders. overlap: the share "
        "of the top fifth of tokens that both have in common. 95 % intervals of the mean over texts."
    ]
    if result.between == "runs":
        least = min(of["spearman"].n for of in result.compared.values())
        notes.append(
            f"{result.texts} texts are in all runs; at least {least} of them have the same label in two runs or more."
        )
    return notes


def _racu(name: str, curves: Mapping[str, RoarCurve]) -> str:
    value = racu(curves[name], curves["random"])
    return "–" if name == "random" or isnan(value) else f"{value:.3f}"


def roar_chart(curves: Mapping[str, RoarCurve]) -> str:
    """Mean accuracy by share of masked tokens, one line per method. The table stands above."""
    hues = plots.coloured(list(curves))
    series = [
        Line(name, list(curve.shares), [curve.at(share).mean for share in curve.shares], hues[name], name in CONTROLS)
        for name, curve in curves.items()
    ]
    x = Axis("share of tokens masked before training", "%", values=next(iter(curves.values())).shares)
    return chart(plots.svg(plots.lines(series, x, Axis("test accuracy", ".2f"))), "Test accuracy by share masked", None)


def simulatability(agreement: Mapping[str, Spread]) -> Table:
    """Agreement of students with their teacher, and the gain over students without explanations."""
    plain = agreement["none"]
    return ["", "agreement ↑", "gain ↑"], [
        [name, f"{spread:.3f}", "–" if name == "none" else _gain(spread, plain)] for name, spread in agreement.items()
    ]


def _gain(spread: Spread, plain: Spread) -> str:
    """The gain, paired by seed."""
    gain = Spread(tuple(a - b for a, b in zip(spread.values, plain.values, strict=True)))
    return f"{gain:+.3f}"


def agreement(result: Agreement) -> Table:
    """Methods, or pairs of methods, by measures of agreement."""
    return ["", *MEASURES], [
        [name, *(str(of[measure]) for measure in MEASURES)] for name, of in result.compared.items()
    ]


NEEDLE = "Planted facts"


def needle_json(result: NeedleResult) -> str:
    """The evaluation with the values of every context, and what the model did with them."""
    return safe_json(plain(as_facts(result.evaluation) | {"trial": _trial(result)}))


def _trial(result: NeedleResult) -> dict[str, Any]:
    return {
        "skipped": result.skipped,
        "probability": result.probability,
        "drop": result.drop,
        "tokens": result.tokens,
        "use": asdict(result.use),
        "notes": result.notes,
    }


def page(title: str, content: Table, notes: Sequence[str] = (), *charts: str) -> str:
    """A self-contained HTML page."""
    return document(escape(title), table(*content), listed(notes), *charts)
