"""Tests of methods made visible: tables for the terminal and for pages, and the curves of remove and retrain."""

from collections.abc import Mapping, Sequence
from html import escape
from math import isnan
from typing import Any

from rich.table import Table as Shown

from salience.evaluation import CONTROLS
from salience.retraining import Curve, racu
from salience.seeds import MEASURES, Agreement
from salience.shortcuts import Result
from salience.stats import Spread
from salience.verdict import plural
from salience.views.charts import drawn
from salience.views.evaluation import colours
from salience.views.pages import document, figure, table

Table = tuple[Sequence[str], list[list[str]]]
"""The head, and the rows."""


def terminal(given: Table) -> Shown:
    head, rows = given
    made = Shown(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in head:
        made.add_column(name)
    for row in rows:
        made.add_row(*row, style="dim" if row[0] in CONTROLS else "")
    return made


def shortcuts(found: Sequence[Result]) -> Table:
    """Methods by kinds of shortcut."""
    head = ["", *(f"{one.shortcut.kind}: {what}" for one in found for what in ("precision ↑", "rank ↓"))]
    cells = [
        [name, *(str(value) for one in found for value in (one.found[name].precision, one.found[name].rank))]
        for name in found[0].found
    ]
    return head, cells


def shortcut_notes(found: Sequence[Result]) -> list[str]:
    """What the numbers rest on, a sentence for each kind."""
    return [
        f"{one.shortcut.kind}: {one.model} used the shortcut after {one.epochs} "
        f"{'epoch' if one.epochs == 1 else 'epochs'}: {one.learnt} (n = {one.texts})"
        for one in found
    ]


def roar(found: Mapping[str, Curve]) -> Table:
    """Accuracy at every share, ± the standard deviation over seeds, and the RACU of the means."""
    shares = next(iter(found.values())).shares
    head = ["", *(f"{share:.0%}" for share in shares), "RACU ↑"]
    return head, [
        [name, *(f"{curve.at(share):.3f}" for share in shares), _racu(name, found)] for name, curve in found.items()
    ]


LITTLE = 0.05
"""Of accuracy: a difference that means nothing."""


def roar_notes(found: Mapping[str, Curve], texts: int) -> list[str]:
    """What the numbers are, and whether the models had learnt something that could be lost."""
    curve = found["random"]
    notes = [
        f"accuracy on {texts} test texts by the share of tokens masked before training, mean ± standard deviation over "
        f"{plural(len(curve.accuracy), 'seed')}; a method is good where it falls below random",
        "RACU: 1 if the first tokens named are all that the task needs, 0 if they are no better than random ones, – if "
        "random loses nothing",
    ]
    if curve.means[0] - curve.means[-1] < LITTLE:
        notes.append(
            f"beware: the models learnt little ({curve.means[0]:.3f} on whole texts, {curve.means[-1]:.3f} at the "
            "end); train longer, at a higher rate, or on more texts"
        )
    if telling := [name for name, one in found.items() if one.means.max() - one.means[0] > LITTLE]:
        notes.append(
            f"beware: what {', '.join(telling)} masks gives the label away, for accuracy rises above that on whole "
            "texts: it is the true label that is explained"
        )
    return notes


def simulatability_notes(found: Mapping[str, Spread], teacher: str, texts: int) -> list[str]:
    """What the numbers are."""
    seeds = plural(len(found["none"].values), "seed")
    return [
        f"agreement with {teacher} on {texts} test texts, mean ± standard deviation over {seeds}",
        "gain: over students that are shown no explanation, seed by seed; compare it with that of random",
    ]


def agreement_notes(found: Agreement) -> list[str]:
    """What the numbers are."""
    notes = [
        "spearman and kendall: rank correlations, 1 for the same order and 0 for unrelated ones; overlap: the share of "
        "the highest fifth that both name; 95 % intervals over texts"
    ]
    if found.between == "runs":
        least = min(of["spearman"].n for of in found.compared.values())
        notes.append(f"{found.texts} texts are in all runs; {least} of them, at least, are given the same label in two")
    return notes


def _racu(name: str, found: Mapping[str, Curve]) -> str:
    value = racu(found[name], found["random"])
    return "–" if name == "random" or isnan(value) else f"{value:.3f}"


def roar_chart(found: Mapping[str, Curve], kind: str) -> bytes:
    import altair as alt

    values = [
        {"method": name, "share": share, "accuracy": curve.at(share).mean}
        for name, curve in found.items()
        for share in curve.shares
    ]
    scale = alt.Scale(domain=list(found), range=colours(list(found)))
    chart: Any = (
        alt.Chart(alt.Data(values=values), width=480, height=280)
        .mark_line(point=True)
        .encode(
            x=alt.X("share:Q", title="share of tokens masked before training", axis=alt.Axis(format="%")),
            y=alt.Y("accuracy:Q", title="test accuracy", scale=alt.Scale(zero=False), axis=alt.Axis(format=".2f")),
            color=alt.Color("method:N", title=None, scale=scale),
        )
    )
    return drawn(chart, kind)


def simulatability(found: Mapping[str, Spread]) -> Table:
    """How often students agree with their teacher; the gain is over those that saw no explanation."""
    plain = found["none"]
    return ["", "agreement ↑", "gain ↑"], [
        [name, f"{spread:.3f}", "–" if name == "none" else _gain(spread, plain)] for name, spread in found.items()
    ]


def _gain(spread: Spread, plain: Spread) -> str:
    """Seed by seed."""
    gain = Spread(tuple(a - b for a, b in zip(spread.values, plain.values, strict=True)))
    return f"{gain.mean:+.3f} ± {gain.sd:.3f}"


def agreement(found: Agreement) -> Table:
    return ["", *MEASURES], [[name, *(str(of[measure]) for measure in MEASURES)] for name, of in found.compared.items()]


def page(title: str, given: Table, notes: Sequence[str] = (), picture: bytes | None = None) -> str:
    """A page that stands alone."""
    said = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return document(
        escape(title), table(*given), f"<ul>{said}</ul>" if said else "", figure(picture) if picture else ""
    )
