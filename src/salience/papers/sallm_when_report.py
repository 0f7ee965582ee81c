"""The report of the grid: what to expect, with charts of the gain against the number of training texts."""

from collections.abc import Sequence
from html import escape
from math import isfinite
from typing import Any

from salience.core.stats import Difference
from salience.papers.sallm import markdown
from salience.papers.sallm_when import Experiment, Teaching
from salience.papers.sallm_when_table import Cell, accuracy_table, summary
from salience.views import plots
from salience.views.pages import document, panels, settings_table, table
from salience.views.pages import listed as sentences
from salience.views.plots import Axis, Line
from salience.views.schemes import BLUE, ORANGE, SOFT

NOTES = (
    "Accuracy in per cent, mean ± standard deviation over seeds; a seed draws the training texts (of all texts, only "
    "their order) and the initial weights. Differences are in percentage points between students of the same seed, "
    "with 95 % intervals that cover new seeds and new texts; * is significant after Holm's correction for all "
    "comparisons of the grid. Shuffled explanations mark as many tokens of each text, drawn at random: teaching helps "
    "only where it is significantly better than no teaching and than its shuffled control. With one seed, intervals "
    "cover new texts alone, and there is no verdict. Examples saved are the further texts that students without "
    "explanations need for the same gain, by interpolation between the sizes of the grid, with a multi-bootstrap "
    "interval; ∞ is beyond them."
)


def page(experiment: Experiment, listed: Sequence[Cell], *, pretrained: bool = True) -> str:
    """The report as a self-contained page. A model that starts from random weights is marked."""
    plan = experiment.plan
    settings = {
        "model": experiment.model if pretrained else f"{experiment.model} (unpretrained)",
        "seeds": f"{plan.seeds}, from {plan.first_seed}" if plan.first_seed else plan.seeds,
        "λ": f"{plan.weight:g}",
        "share of marked tokens": f"{plan.share:g}",
        "steps": f"at least {plan.steps}",
        "epochs": f"at least {plan.recipe.epochs}",
        "batch": plan.recipe.batch,
        "learning rate": f"{plan.recipe.rate:g}",
        "all": "every text" if plan.limit is None else f"{plan.limit:,} texts",
        "texts per test set": "all" if plan.tested is None else f"{plan.tested:,}",
    }
    charts = gains(listed) if any(c.against_none for c in listed) else ""
    return document(
        "When does teaching with explanations help?",
        sentences(summary(listed, experiment.diverged())),
        charts,
        f"<p>{escape(NOTES)}</p>",
        table(*accuracy_table(listed)),
        f"<h2>Multi-bootstrap intervals</h2>{table(*bootstrap_table(listed))}<p>The difference from no teaching, with "
        "seeds and texts resampled (Sellam et al. 2022). With few seeds these intervals are too short; the verdicts "
        "rest on those above.</p>",
        f"<h2>Settings</h2>{settings_table(settings)}",
    )


def bootstrap_table(listed: Sequence[Cell]) -> tuple[list[str], list[list[str]]]:
    """The multi-bootstrap interval of every difference from no teaching."""
    rows = [
        [c.data, c.test, c.size_name, str(c.teaching), f"{c.against_none.mean:+.1f}", f"{low:+.1f}, {high:+.1f}"]
        for c in listed
        if c.against_none is not None and c.bootstrap is not None
        for low, high in (c.bootstrap,)
    ]
    return ["data", "tested on", "texts", "teaching", "− none", "multi-bootstrap interval"], rows


def tables(listed: Sequence[Cell]) -> str:
    """The table as Markdown."""
    return f"{markdown(accuracy_table(listed))}\n"


LEGEND = "Points gained over no teaching. Solid: by these explanations. Dashed: by their control, shuffled ones."


def gains(listed: Sequence[Cell]) -> str:
    """The gain over no teaching against the number of texts, beside that of the control, for each way of teaching."""
    head = ("teaching", "texts", "points against no teaching", "95 % interval")

    def figure(test: str, own: Sequence[Gain]) -> str:
        charts = {name: plots.svg(one) for name, one in _charts(own).items()}
        return f"<h2>{escape(test)}</h2>{panels(charts, test, (head, _rows(own)))}"

    return f"<p>{LEGEND}</p>" + "".join(figure(test, own) for test, own in _by_test(listed).items())


def gains_picture(listed: Sequence[Cell]) -> bytes:
    """The same charts as one SVG: a column for each way of teaching, a row for each test set."""
    import altair as alt

    rows = {test: _charts(own) for test, own in _by_test(listed).items()}
    charts = [one.properties(title=f"{name}: {test}") for test, row in rows.items() for name, one in row.items()]
    wide = max(map(len, rows.values()))
    return plots.svg(alt.concat(*charts, columns=wide, title=alt.Title(LEGEND, anchor="start", fontWeight="normal")))


Gain = tuple[Cell, Difference]


def _by_test(listed: Sequence[Cell]) -> dict[str, list[Gain]]:
    """The cells with a gain, by their test set, each with the fewest texts first."""
    shown = [(c, c.against_none) for c in sorted(listed, key=lambda c: c.texts) if c.against_none is not None]
    names = dict.fromkeys(f"{c.data}, tested on {c.test}" for c in listed)
    grouped = {name: [(c, d) for c, d in shown if f"{c.data}, tested on {c.test}" == name] for name in names}
    return {name: own for name, own in grouped.items() if own}


def _rows(own: Sequence[Gain]) -> list[list[str]]:
    return [[str(c.teaching), c.size_name, f"{d.mean:+.1f}", f"{d.low:+.1f} to {d.high:+.1f}"] for c, d in own]


BESIDE = 1.03
"""By how much the points of controls are moved to the right, so that two intervals at one size can be told apart."""


def _charts(own: Sequence[Gain]) -> dict[str, Any]:
    """A chart for each way of teaching, with its control; all of them have the same axes."""
    sizes = sorted({c.texts for c, _ in own})
    bounds = [v for _, d in own for v in (d.low, d.high, d.mean, 0.0) if isfinite(v)]
    room = 0.05 * (max(bounds) - min(bounds))
    x = Axis("training texts", ",d", (sizes[0] / 1.2, sizes[-1] * 1.2), "log", sizes)
    y = Axis("points", "+.0f", (min(bounds) - room, max(bounds) + room))
    none = Line("none", [sizes[0] / 1.2, sizes[-1] * 1.2], [0.0, 0.0], SOFT)

    def line(teaching: Teaching, colour: str) -> list[Line]:
        of = [(c.texts * (BESIDE if teaching.shuffles else 1), d) for c, d in own if c.teaching == teaching]
        texts, found = [n for n, _ in of], [d for _, d in of]
        means, low, high = ([getattr(d, what) for d in found] for what in ("mean", "low", "high"))
        return [Line(str(teaching), texts, means, colour, teaching.shuffles, low, high)] if of else []

    taught = dict.fromkeys(c.teaching for c, _ in own if not c.teaching.shuffles) or dict.fromkeys(
        c.teaching for c, _ in own
    )
    return {
        str(one): plots.bare(
            [none, *line(one, BLUE), *([] if one.control is None else line(one.control, ORANGE))], x, y
        )
        for one in taught
    }
