"""Views of what heads are good for: a grid of heads, tables and sentences; in the terminal, as HTML and as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from rich.console import Group, RenderableType
from rich.style import Style
from rich.text import Text

import salience
from salience.audits.heads import THRESHOLDS, Head, HeadStudy, RankAgreement, Role
from salience.core.shares import percent
from salience.core.stats import Estimate
from salience.views import plots
from salience.views.colours import Colour, hexadecimal, ink
from salience.views.evaluation import plain
from salience.views.pages import chart, document, listed, table
from salience.views.plots import Axis, Line
from salience.views.schemes import BLUE, INK, SOFT
from salience.views.trials import Table

TITLE = "What are its attention heads good for?"
LETTERS: Mapping[Role | None, str] = {
    "previous": "P",
    "next": "N",
    "first": "F",
    "separator": "S",
    "duplicate": "D",
    "induction": "I",
    "broad": "B",
    None: "·",
}
COLOURS: Mapping[Role | None, Colour] = {
    "previous": (0, 114, 178),
    "next": (86, 180, 233),
    "first": (230, 159, 0),
    "separator": (213, 94, 0),
    "duplicate": (0, 158, 115),
    "induction": (204, 121, 167),
    "broad": (240, 228, 66),
    None: (221, 221, 221),
}
"""Colours that colour-blind readers can tell apart (Okabe & Ito 2008); the letter says the same."""

LEVELS = "▁▂▃▄▅▆▇█"
SHOWN = 10
"""Heads in the table of the terminal; the page has all."""


# ------------------------------------------------------------------------------------------------------ terminal


def terminal(study: HeadStudy, width: int = 80) -> RenderableType:
    """The grid of heads, one row per layer, in blocks of heads that fit the width."""
    most = max(head.number for head in study.heads)
    fitting = max(1, (width - LABEL) // CELL)
    blocks = [range(start, min(start + fitting, most + 1)) for start in range(1, most + 1, fitting)]
    parts: list[RenderableType] = [Text(heading(study), style="bold")]
    for block in blocks:
        parts += [Text(""), *_block(study, block)]
    return Group(*parts, Text(""), _legend(study))


LABEL, CELL = 9, 4
"""Columns of the names of layers, and of a head."""


def heading(study: HeadStudy) -> str:
    """What was studied."""
    right = "" if study.accuracy is None else f", accuracy {percent(study.accuracy.mean, 1)}"
    return f"{study.model}: {study.layers} layers, {len(study.heads)} heads, {study.texts} texts{right}"


def _block(study: HeadStudy, numbers: Sequence[int]) -> Iterator[Text]:
    yield Text("head".ljust(LABEL) + "".join(f"{n:^{CELL}}" for n in numbers), style="dim")
    for layer in range(1, study.layers + 1):
        line = Text(f"layer {layer}".ljust(LABEL))
        for head in study.of(layer):
            if head.number in numbers:
                line.append(f" {LETTERS[head.role]}{_level(head)}", _paint(head))
                line.append(" ")
        yield line


def _level(head: Head) -> str:
    """The importance as a bar of one character; empty if it was not measured."""
    return " " if head.importance is None else LEVELS[min(len(LEVELS) - 1, int(head.importance * len(LEVELS)))]


def _paint(head: Head) -> Style:
    ground = COLOURS[head.role]
    return Style(color=hexadecimal(ink(ground)), bgcolor=hexadecimal(ground))


def _legend(study: HeadStudy) -> Text:
    counts = study.counts
    names = [f"{LETTERS[role]} {role or 'none'} {count}" for role, count in counts.items() if count]
    bar = "" if study.heads[0].importance is None else f"; {LEVELS[0]} to {LEVELS[-1]} importance"
    return Text("  ".join(names) + bar, style="dim")


# ------------------------------------------------------------------------------------------------------ tables


def heads_table(study: HeadStudy, most: int | None = None) -> Table:
    """One row per head, the most important first, or in the order of layers if importance was not measured."""
    heads = sorted(study.heads, key=lambda head: -(head.importance or 0.0))[:most]
    methods = list(heads[0].saliency)
    columns = [
        "head",
        "role",
        "score",
        *(("importance", "loss when removed", "accuracy") if heads[0].importance is not None else ()),
        *(f"ρ {name}" for name in methods),
        *(("AUC rationale",) if heads[0].rationale is not None else ()),
    ]
    return columns, [_row(head, methods) for head in heads]


def _row(head: Head, methods: Sequence[str]) -> list[str]:
    cells = [f"{head.layer}.{head.number}", head.role or "–", _score(head)]
    if head.importance is not None and head.increase is not None and head.accuracy is not None:
        cells += [f"{head.importance:.2f}", _signed(head.increase), f"{100 * head.accuracy.mean:+.1f}"]
    cells += [_signed(head.saliency[name], ".2f") for name in methods]
    return [*cells, *(() if head.rationale is None else (_spread(head.rationale, ".2f"),))]


def _score(head: Head) -> str:
    """The score of the role, or the highest one of a head without a role."""
    role = head.role or max(head.roles, key=lambda one: _factor(head.roles[one].mean, one))
    name = "" if head.role else f" {role}"
    return f"{head.roles[role].mean:.2f}{name}"


def _factor(score: float, role: Role) -> float:
    return score / THRESHOLDS[role] if score == score else 0.0


def _signed(e: Estimate, form: str = ".3f") -> str:
    return _spread(e, f"+{form}")


def _spread(e: Estimate, form: str) -> str:
    bounds = "" if e.low != e.low else f" [{e.low:{form}}, {e.high:{form}}]"
    return f"{e.mean:{form}}{bounds}"


def pruning_table(study: HeadStudy) -> Table:
    """Accuracy by the share of masked heads."""
    assert study.pruning is not None
    rows = [
        [
            percent(step.masked / study.pruning.heads),
            str(study.pruning.heads - step.masked),
            _spread(step.accuracy, ".3f"),
            _spread(step.random, ".3f"),
        ]
        for step in study.pruning.steps
    ]
    return ("masked", "heads left", "least important first", "random order"), rows


# ------------------------------------------------------------------------------------------------------ sentences


def notes(study: HeadStudy) -> list[str]:
    """What the numbers say, each with its interval."""
    return [*_role_notes(study), *_importance_notes(study), *_pruning_notes(study), *_overlap_notes(study)]


def _role_notes(study: HeadStudy) -> Iterator[str]:
    named = [f"{count} {role}" for role, count in study.counts.items() if role is not None and count]
    rest = study.counts[None]
    yield f"Of {len(study.heads)} heads, {', '.join(named) or 'none'} have a role; {rest} have none."
    undefined = [role for role, value in study.chance.items() if value != value]
    if undefined:
        yield f"No text has a place for {', '.join(undefined)}: these roles were not tested."


def _importance_notes(study: HeadStudy) -> Iterator[str]:
    if study.agreement is None or study.signed is None:
        return
    yield (
        f"Importance by gradient and by removal: {_correlation(study.agreement)} over heads. The sign of the "
        f"gradient and the change of the loss: {_correlation(study.signed)}."
    )
    helped = [f"{h.layer}.{h.number}" for h in study.heads if h.increase is not None and h.increase.high < 0]
    if helped:
        yield f"The loss is lower without {', '.join(helped)} (95 % interval below 0)."


def _pruning_notes(study: HeadStudy) -> Iterator[str]:
    if study.pruning is None:
        return
    p = study.pruning
    how = f"ranked on {p.ranked} texts, tested on {p.tested} others; {p.orders} random orders beside it"
    if p.removable == 1:
        yield f"Accuracy never falls significantly, even without any head: take more texts ({how})."
        return
    yield f"{percent(p.removable)} of the heads can be masked before accuracy falls significantly ({how})."


def _overlap_notes(study: HeadStudy) -> Iterator[str]:
    for name, one in study.overlap.items():
        what = "attend to what people marked" if name == "rationale" else f"agree with {name}"
        yield (
            f"Are important heads those that {what}? {_correlation(one)}; of the top fifth "
            f"{percent(one.overlap.mean)} [{percent(one.overlap.low)}, {percent(one.overlap.high)}] are in both, "
            f"by chance {percent(one.chance)}."
        )
    if study.overlap:
        bound = next(iter(study.overlap.values())).unrelated
        yield (
            "These intervals are for new texts and the same heads. Unrelated rankings of "
            f"{len(study.heads)} heads have ρ between −{bound:.2f} and +{bound:.2f} in 95 % of cases."
        )
    if (best := study.plausible) is not None:
        others = "; ".join(f"{name} {_spread(e, '.2f')}" for name, e in study.plausibility.items())
        yield (
            f"Head {best.layer}.{best.number} attends most to what people marked, on every second text: on the others "
            "a marked token has more of its attention than an unmarked one with probability "
            f"{_spread(best.rationale, '.2f')}; the same for scores, on all texts: {others}."
        )


def _correlation(one: RankAgreement) -> str:
    return f"ρ = {_signed(one.correlation, '.2f')}"


# ------------------------------------------------------------------------------------------------------ pages


def to_json(study: HeadStudy) -> dict[str, Any]:
    """The whole study; undefined values are null."""
    facts = {"thresholds": dict(THRESHOLDS), "notes": notes(study), "salience": salience.__version__}
    return plain(asdict(study) | facts)


def page(study: HeadStudy) -> str:
    """A self-contained HTML page."""
    curve = ""
    if study.pruning is not None:
        curve = f"<h2>How many can be removed?</h2>{_curve(study)}{table(*pruning_table(study))}"
    return document(
        escape(TITLE),
        f"<p>{escape(heading(study))}. Created with salience {salience.__version__}.</p>",
        chart(grid(study), "Every head with its role and importance", None),
        listed(notes(study)),
        curve,
        f"<h2>Every head</h2>{table(*heads_table(study))}",
    )


SIDE, GAP, LEFT, TOP = 44, 4, 76, 30


def grid(study: HeadStudy) -> bytes:
    """The grid as an SVG: a cell per head, with the colour and the letter of its role, and a bar for its importance."""
    most, step = max(head.number for head in study.heads), SIDE + GAP
    width, height = max(LEFT + most * step, 640), TOP + study.layers * step + 90
    numbers = [_label(LEFT + (n - 0.5) * step, 18, str(n), "middle") for n in range(1, most + 1)]
    layers = [_label(LEFT - 10, TOP + (n - 0.42) * step, f"layer {n}", "end") for n in range(1, study.layers + 1)]
    cells = [_cell(head, LEFT + (head.number - 1) * step, TOP + (head.layer - 1) * step) for head in study.heads]
    legend = _legend_cells(study, TOP + study.layers * step + 16)
    body = "".join((*numbers, *layers, *cells, *legend))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="13"><title>{escape(heading(study))}</title>'
        f"{body}</svg>"
    ).encode()


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{INK}">{escape(text)}</text>'


def _cell(head: Head, x: float, y: float) -> str:
    ground = COLOURS[head.role]
    dark = hexadecimal(ink(ground))
    bar = ""
    if head.importance is not None:
        long = (SIDE - 8) * head.importance
        bar = f'<rect x="{x + 4}" y="{y + SIDE - 9}" width="{long:.1f}" height="5" fill="{dark}"/>'
    return (
        f'<g><title>{escape(_described(head))}</title><rect x="{x}" y="{y}" width="{SIDE}" height="{SIDE}" rx="5" '
        f'fill="{hexadecimal(ground)}"/><text x="{x + SIDE / 2}" y="{y + 25}" text-anchor="middle" font-size="17" '
        f'font-weight="600" fill="{dark}">{LETTERS[head.role]}</text>{bar}</g>'
    )


def _described(head: Head) -> str:
    """What the tooltip of a head says."""
    scores = ", ".join(f"{role} {e.mean:.2f}" for role, e in head.roles.items() if e.n)
    importance = "" if head.importance is None else f"; importance {head.importance:.2f}"
    return f"head {head.layer}.{head.number}: {head.role or 'no role'}{importance}; {scores}"


def _legend_cells(study: HeadStudy, y: int) -> Iterator[str]:
    """The roles that occur, with their counts, in two lines, and what the bar is."""
    used: list[tuple[Role | None, int]] = [(role, count) for role, count in study.counts.items() if count]
    for at, (role, count) in enumerate(used):
        x, line = LEFT + (at % 4) * 140, y + (at // 4) * 24
        yield f'<rect x="{x}" y="{line}" width="18" height="18" rx="3" fill="{hexadecimal(COLOURS[role])}"/>'
        letter = f'<text x="{x + 9}" y="{line + 14}" text-anchor="middle" fill="{hexadecimal(ink(COLOURS[role]))}">'
        yield f"{letter}{LETTERS[role]}</text>"
        yield _label(x + 25, line + 14, f"{role or 'no role'} ({count})", "start")
    if study.heads[0].importance is not None:
        yield _label(LEFT, y + 64, "The bar below a letter is the importance of the head in its layer.", "start")


def _curve(study: HeadStudy) -> str:
    """Accuracy by the share of masked heads, with intervals. The table stands below."""
    assert study.pruning is not None
    steps, of = study.pruning.steps, study.pruning.heads
    series = [
        Line(
            name,
            [step.masked / of for step in steps],
            [e.mean for e in each],
            hue,
            dashed,
            [e.low for e in each],
            [e.high for e in each],
        )
        for name, each, hue, dashed in (
            ("least important first", [step.accuracy for step in steps], BLUE, False),
            ("random order", [step.random for step in steps], SOFT, True),
        )
    ]
    made = plots.lines(series, Axis("share of heads masked", "%"), Axis("accuracy"))
    return chart(plots.svg(made), "Accuracy by share of heads masked", None)
