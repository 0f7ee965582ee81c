"""Views of an evaluation: a table in the terminal, an HTML page, charts, CSV and JSON."""

import csv
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib.metadata import version
from io import StringIO
from math import isfinite
from typing import Any

from rich.table import Table
from rich.text import Text

import salience
from salience.core.characters import to_json as safe_json
from salience.core.stats import MINIMUM
from salience.evaluation.advice import TESTED, advice, details, plural, verdict
from salience.evaluation.table import Cell, Evaluation
from salience.views import plots
from salience.views.pages import document, listed, panels, parts, table
from salience.views.plots import Axis, Line
from salience.views.schemes import BLUE, SOFT

ARROWS = {"higher": "↑", "lower": "↓"}
STAR = "*"
"""Marks methods that are significantly better than random."""


def heading(evaluation: Evaluation, metric: str) -> str:
    """The name of a metric with an arrow for the better direction.

    Underscores become spaces, so that long names can wrap.
    """
    return f"{metric.replace('_', ' ')} {ARROWS[evaluation.cells[evaluation.methods[0], metric].better]}"


def shown(cell: Cell) -> str:
    """The mean above its interval, to keep columns narrow."""
    e = cell.estimate
    if e.n == 0:
        return "–"
    return f"{e.mean:.3f}{STAR if cell.beats_random else ''}\n{e.interval}"


def rows(evaluation: Evaluation) -> Iterator[list[str]]:
    for method in evaluation.methods:
        yield [method, *(shown(evaluation.cells[method, metric]) for metric in evaluation.metrics)]


def headline(sentences: Sequence[str]) -> list[str]:
    """The advice without its reasons and remarks, to be read in a few seconds.

    >>> headline(["For m on these texts, use lrp: it is best (n = 9 texts).", "Caution: position is better."])
    ['For m on these texts, use lrp.']
    """
    return [_shortened(sentence) for sentence in sentences if not sentence.startswith(CAUTION)]


def cautions(sentences: Sequence[str]) -> list[str]:
    """The sentences that warn of a conclusion; they are never left out."""
    return [sentence for sentence in sentences if sentence.startswith(CAUTION)]


CAUTION = "Caution:"


def _shortened(sentence: str) -> str:
    bare, removed = sentence, 1
    while removed:
        bare, removed = re.subn(r" ?\([^()]*\)", "", bare)
    return f"{re.split(r': (?:it|each) is |[.;] ', bare)[0].rstrip('.')}."


def terminal(evaluation: Evaluation, *, width: int = 80, intervals: bool = True) -> list[Table]:
    """Tables of methods by metrics that fit the width: the means, or the means with their intervals.

    The best method of each column is bold, controls are dim. Long words of a heading are hyphenated.
    """
    first = max(map(len, evaluation.methods))
    column = GAP + (
        max(len(line) for c in evaluation.cells.values() for line in shown(c).split("\n")) if intervals else 6
    )
    at_once = max(1, (width - first) // column)
    blocks = -(-len(evaluation.metrics) // at_once)
    each = -(-len(evaluation.metrics) // blocks)
    room = (width - first) // each - GAP
    starts = range(0, len(evaluation.metrics), each)
    return [_block(evaluation, evaluation.metrics[i : i + each], room, intervals) for i in starts]


GAP = 2
"""The space between two columns."""


def _block(evaluation: Evaluation, metrics: Sequence[str], room: int, intervals: bool) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 0, 0, GAP))
    headings = [_narrow(heading(evaluation, metric), room) for metric in metrics]
    lines = max(map(len, headings))
    for words in ([], *headings):
        made.add_column("\n".join([*[""] * (lines - len(words)), *words]), no_wrap=True)
    for method in evaluation.methods:
        cells = [evaluation.cells[method, metric] for metric in metrics]
        texts = [
            Text(
                shown(c) if intervals else shown(c).partition("\n")[0],
                style="bold" if evaluation.best(c.metric) == method else "",
            )
            for c in cells
        ]
        made.add_row(Text(method), *texts, style="dim" if method in evaluation.controls else "")
    return made


def _narrow(name: str, room: int) -> list[str]:
    """The lines of a heading: one if it fits, or one per word; a word longer than ``room`` is hyphenated.

    >>> _narrow("hiding area ↑", 7), _narrow("sufficiency ↓", 7)
    (['hiding', 'area ↑'], ['suffic-', 'iency ↓'])
    """
    if len(name) <= room:
        return [name]
    *words, arrow = name.split(" ")
    lines = [line for word in words for line in _hyphenated(word, room)]
    return [*lines[:-1], f"{lines[-1]} {arrow}"] if len(lines[-1]) + 2 <= room else [*lines, arrow]


def _hyphenated(word: str, room: int) -> list[str]:
    """The word in pieces of about equal length."""
    if len(word) <= room:
        return [word]
    size = -(-len(word) // -(-len(word) // (room - 1)))
    pieces = [word[i : i + size] for i in range(0, len(word), size)]
    return [*(f"{piece}-" for piece in pieces[:-1]), pieces[-1]]


def legend(evaluation: Evaluation) -> str:
    """The line below the table: the number of texts, the intervals, the erasure and the meaning of the star."""
    least = min((cell.estimate.n for cell in evaluation.cells.values() if cell.estimate.n), default=0)
    fewer = "" if least == evaluation.texts else f", at least {least} per cell"
    cut = f" ({evaluation.truncated} truncated to the maximum length of the model)" if evaluation.truncated else ""
    aspects = {cell.aspect for cell in evaluation.cells.values()}
    erased = f"; erasure: {evaluation.settings['erase']}" if aspects & {"faithfulness", "leave_one_out"} else ""
    star = f"; {STAR} significantly better than random ({TESTED})"
    left_out = "".join(f"; {m} is left out: {why}" for m, why in evaluation.settings.get("left_out", {}).items())
    intervals = "95 % intervals of the mean over texts"
    if evaluation.texts < MINIMUM:
        intervals = f"too few texts for intervals and tests, which need {MINIMUM}"
    return (
        f"n = {plural(evaluation.texts, 'text')}{cut}{fewer}; {intervals}{erased}"
        f"{star if aspects - {'robustness'} else ''}{left_out}"
    )


def to_json(evaluation: Evaluation) -> str:
    """The whole evaluation as JSON, including the values of every text; undefined values are null."""
    return safe_json(plain(as_facts(evaluation)))


def as_facts(evaluation: Evaluation) -> dict[str, Any]:
    """The whole evaluation in plain Python, with its summary in words."""
    cells = [asdict(cell) for cell in evaluation.cells.values()]
    return asdict(evaluation) | {"cells": cells, "verdict": verdict(evaluation)}


def plain(value: Any) -> Any:
    """A value as JSON can represent it; NaN and infinity become null."""
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
    return None if isinstance(value, float) and not isfinite(value) else value


def to_csv(evaluation: Evaluation) -> str:
    """One line per method and metric."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", "metric", "better", "mean", "low", "high", "n", "minus_random", "p", "beats_random"])
    for c in evaluation.cells.values():
        e, floor = c.estimate, c.against_random
        difference = ("", "") if floor is None else (floor.mean, floor.p)
        writer.writerow([c.method, c.metric, c.better, e.mean, e.low, e.high, e.n, *difference, c.beats_random])
    return out.getvalue()


def page(
    evaluation: Evaluation,
    *,
    title: str = "Evaluation of explanations",
    data: str | None = None,
    command: str | None = None,
    notes: Sequence[str] = (),
) -> str:
    """A self-contained HTML page: the summary in words, the table, the charts, and what they were made from."""
    sentences = [*advice(evaluation), *notes]
    pictures = [points(evaluation)]
    if evaluation.curves:
        pictures.append(f"<h2>Curves as tokens are erased</h2>{curves(evaluation)}")
    gaps = [(method, name, str(estimate)) for method, of in evaluation.gaps.items() for name, estimate in of.items()]
    gap_table = table(("method", "gap", "mean and 95 % interval"), gaps)
    return document(
        escape(title),
        listed(sentences),
        grid(evaluation),
        f"<p>{escape(legend(evaluation))}.</p>",
        *pictures,
        f"<h2>Details by metric</h2>{listed(details(evaluation))}",
        f"<h2>Deviation from theoretical guarantees</h2>{gap_table}" if gaps else "",
        f"<h2>How this was made</h2>{table((), origin(evaluation, data, command))}",
        style=_TABLE,
    )


def fragment(evaluation: Evaluation) -> str:
    """The summary in words and the table, for a notebook cell."""
    return parts(listed(advice(evaluation)), grid(evaluation), f"<p>{escape(legend(evaluation))}.</p>")


_TABLE = ".report td, .report thead th { font-size: .8rem; padding-inline-end: .6rem; }"
"""Seven metrics fit the page."""


def origin(evaluation: Evaluation, data: str | None, command: str | None) -> list[tuple[str, str]]:
    """What an evaluation was made from: the model, the data, the command, the settings and the versions."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    settings = {name: safe_json(own) for name, own in evaluation.settings.get("methods", {}).items() if own}
    rows = {
        "model": evaluation.model,
        "data": data,
        "texts": f"{evaluation.texts:,}",
        "command": command,
        "versions": f"salience {salience.__version__}, {packages}, Python {platform.python_version()}",
        **{f"settings of {name}": text for name, text in settings.items()},
    }
    return [(name, text) for name, text in rows.items() if text is not None]


def grid(evaluation: Evaluation) -> str:
    """The table as HTML; the best method of each column is bold."""
    best = {
        (evaluation.methods.index(evaluation.best(metric)), column) for column, metric in enumerate(evaluation.metrics)
    }
    return table(["", *(heading(evaluation, metric) for metric in evaluation.metrics)], rows(evaluation), bold=best)


def points(evaluation: Evaluation) -> str:
    """One panel per metric: the mean of every method with its interval, and a line at the mean of random.

    Each axis spans the values that occur, not those from 0, so that differences can be seen.
    """
    charts: dict[str, bytes] = {}
    for metric in evaluation.metrics:
        cells = {method: evaluation.cells[method, metric] for method in evaluation.methods}
        known = {method: cell.estimate for method, cell in cells.items() if cell.estimate.n}
        floor = known["random"].mean if "random" in known else None
        made = plots.means(
            known,
            Axis(""),
            width=plots.SMALL - 70,
            row=20,
            quiet=list(evaluation.controls),
            reference=floor,
            written="",
        )
        charts[heading(evaluation, metric)] = plots.svg(made)
    return panels(charts, "The mean of every method with its interval, by metric", None)


def curves(evaluation: Evaluation) -> str:
    """For each metric, one panel per method: its mean curve before those of the others."""
    return "".join(_curves(evaluation, metric, of) for metric, of in evaluation.curves.items())


def _curves(evaluation: Evaluation, metric: str, of: Mapping[str, Sequence[float]]) -> str:
    series = [
        Line(
            method,
            [i / (len(curve) - 1) for i in range(len(curve))],
            curve,
            SOFT if method in evaluation.controls else BLUE,
            method == "random",
        )
        for method, curve in of.items()
    ]
    x = Axis(f"share of tokens {DONE.get(metric, 'erased')}", "%", (0, 1), values=(0, 0.5, 1))
    y = Axis(READ.get(metric, "probability"))
    about = f"{heading(evaluation, metric)}: the curve of every method"
    shown = panels(plots.spotlights(series, x, y), about, plots.numbers(series, x.title, at=".0%"))
    note = "Each panel shows the curve of one method before the range of all of them; the dashed line is random."
    return f"<h3>{escape(heading(evaluation, metric))}</h3><p>{note}</p>{shown}"


DONE = {"hiding_area": "hidden", "revealing_area": "revealed", "insertion_area": "inserted"}
READ = {"hiding_area": "share of decisions kept", "revealing_area": "share of decisions kept"}
