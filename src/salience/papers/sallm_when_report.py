"""The report of the grid: what to expect, with charts of the gain against the number of training texts."""

from collections.abc import Sequence
from html import escape
from typing import Any

from salience.core.stats import Difference
from salience.papers.sallm import markdown
from salience.papers.sallm_when import Experiment
from salience.papers.sallm_when_table import Cell, accuracy_table, summary
from salience.views import plots
from salience.views.pages import chart, document, settings_table, table
from salience.views.pages import listed as sentences
from salience.views.plots import Axis, Line
from salience.views.schemes import SOFT

NOTES = (
    "Accuracy in per cent, mean ± standard deviation over seeds; a seed draws the training texts and the initial "
    "weights. Differences are in percentage points between students of the same seed, with 95 % intervals that cover "
    "new seeds and new texts; * is significant after Holm's correction for all comparisons of the grid. Shuffled "
    "explanations mark as many tokens of each text, drawn at random: teaching helps only where it is significantly "
    "better than no teaching and than its shuffled control. With one seed, intervals cover new texts alone, and there "
    "is no verdict. Examples saved are the further texts that students without explanations need for the same gain, by "
    "interpolation between the sizes of the grid, with a multi-bootstrap interval; ∞ is beyond them."
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


def gains(listed: Sequence[Cell]) -> str:
    """The gain over no teaching against the number of texts, controls dashed, one chart per test set."""
    head = ("teaching", "texts", "points against no teaching", "95 % interval")
    return "".join(
        f"<h2>{escape(panel)}</h2>{chart(plots.svg(_chart(own)), panel, (head, _rows(own)))}"
        for panel, own in _by_panel(listed).items()
    )


def gains_picture(listed: Sequence[Cell]) -> bytes:
    """The same charts below each other, as one SVG."""
    import altair as alt

    return plots.svg(alt.vconcat(*(_chart(own).properties(title=panel) for panel, own in _by_panel(listed).items())))


Gain = tuple[Cell, Difference]


def _by_panel(listed: Sequence[Cell]) -> dict[str, list[Gain]]:
    """The cells with a gain, by their test set, each with the fewest texts first."""
    shown = [(c, c.against_none) for c in sorted(listed, key=lambda c: c.texts) if c.against_none is not None]
    names = dict.fromkeys(f"{c.data}, tested on {c.test}" for c in listed)
    grouped = {name: [(c, d) for c, d in shown if f"{c.data}, tested on {c.test}" == name] for name in names}
    return {name: own for name, own in grouped.items() if own}


def _rows(own: Sequence[Gain]) -> list[list[str]]:
    return [[str(c.teaching), c.size_name, f"{d.mean:+.1f}", f"{d.low:+.1f} to {d.high:+.1f}"] for c, d in own]


def _chart(own: Sequence[Gain]) -> Any:
    sizes = sorted({c.texts for c, _ in own})
    by_name: dict[str, list[Gain]] = {}
    for c, d in own:
        by_name.setdefault(str(c.teaching), []).append((c, d))
    hues = plots.coloured(list(by_name))
    series = [
        Line(
            name,
            [c.texts for c, _ in of],
            [d.mean for _, d in of],
            hues[name],
            of[0][0].teaching.shuffles,
            [d.low for _, d in of],
            [d.high for _, d in of],
        )
        for name, of in by_name.items()
    ]
    x = Axis("training texts", ",d", (sizes[0] / 1.2, sizes[-1] * 1.2), "log", sizes)
    none = Line("none", sizes, [0.0] * len(sizes), SOFT)
    return plots.lines([*series, none], x, Axis("points against no teaching"))
