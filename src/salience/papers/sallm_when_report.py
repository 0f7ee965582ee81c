"""The report of the grid: what to expect, with charts of the gain against the number of training texts."""

from collections.abc import Sequence
from html import escape
from typing import Any

from salience.papers.sallm import markdown
from salience.papers.sallm_when import Experiment
from salience.papers.sallm_when_table import Cell, accuracy_table, summary
from salience.views.charts import drawn
from salience.views.pages import document, figure, table

NOTES = (
    "Accuracy in per cent, mean ± standard deviation over seeds; a seed draws the training texts and the initial "
    "weights. Differences are in percentage points between students of the same seed, with 95 % intervals that cover "
    "new seeds and new texts; * is significant after Holm's correction for all comparisons of the grid. Shuffled "
    "explanations mark as many tokens of each text, drawn at random: teaching helps only where it is significantly "
    "better than no teaching and than its shuffled control. Examples saved are the further texts that students without "
    "explanations need for the same accuracy, by interpolation between the sizes of the grid; ∞ is beyond them."
)


def page(experiment: Experiment, listed: Sequence[Cell], *, pretrained: bool = True) -> str:
    """The report as a self-contained page. A model that starts from random weights is marked."""
    plan = experiment.plan
    settings = {
        "model": experiment.model if pretrained else f"{experiment.model} (unpretrained)",
        "seeds": plan.seeds,
        "λ": f"{plan.weight:g}",
        "share of marked tokens": f"{plan.share:g}",
        "steps": f"at least {plan.steps}",
        "epochs": f"at least {plan.recipe.epochs}",
        "batch": plan.recipe.batch,
        "learning rate": f"{plan.recipe.rate:g}",
        "all": "every text" if plan.limit is None else f"{plan.limit:,} texts",
        "texts per test set": "all" if plan.tested is None else f"{plan.tested:,}",
    }
    chart = figure(gains(listed, "svg")) if any(c.against_none for c in listed) else ""
    return document(
        "When does teaching with explanations help?",
        "<ul>" + "".join(f"<li>{escape(one)}</li>" for one in summary(listed)) + "</ul>",
        chart,
        f"<p>{escape(NOTES)}</p>",
        table(*accuracy_table(listed)),
        f"<h2>Multi-bootstrap intervals</h2>{table(*bootstrap_table(listed))}<p>The difference from no teaching, with "
        "seeds and texts resampled (Sellam et al. 2022). With few seeds these intervals are too short; the verdicts "
        "rest on those above.</p>",
        f"<h2>Settings</h2>{table((), [(name, str(value)) for name, value in settings.items()])}",
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


def gains(listed: Sequence[Cell], kind: str) -> bytes:
    """A chart of the gain over no teaching against the number of texts, the controls dashed, one panel per test set."""
    import altair as alt

    shown = [(c, c.against_none) for c in listed if c.against_none is not None]
    names = list(dict.fromkeys(str(c.teaching) for c, _ in shown))
    panels = list(dict.fromkeys(_panel(c) for c, _ in shown))
    sizes = sorted({c.texts for c, _ in shown})
    values = [
        {
            "panel": _panel(c),
            # Beside each other, so that the intervals do not hide one another.
            "texts": c.texts * 1.07 ** (names.index(str(c.teaching)) - (len(names) - 1) / 2),
            "teaching": str(c.teaching),
            "control": c.teaching.shuffles,
            "gain": d.mean,
            "low": d.low,
            "high": d.high,
        }
        for c, d in shown
    ]
    scale = alt.Scale(type="log", nice=False, domain=[sizes[0] / 1.5, sizes[-1] * 1.5])
    base: Any = alt.Chart().encode(
        x=alt.X("texts:Q", scale=scale, title="training texts", axis=alt.Axis(values=sizes, format=",d")),
        color=alt.Color("teaching:N", sort=names, title=None),
        strokeDash=alt.StrokeDash("control:N", legend=None),
    )
    y = alt.Y("gain:Q", title="points against no teaching")
    lines = base.mark_line(point=True).encode(y=y)
    bars = base.mark_rule(opacity=0.5).encode(y=alt.Y("low:Q", title=""), y2="high:Q")
    zero: Any = alt.Chart().mark_rule(color="#1c1f24").encode(y=alt.datum(0))
    chart: Any = (
        alt.layer(zero, bars, lines, data=alt.Data(values=values), width=300, height=200)
        .facet(alt.Facet("panel:N", title=None, sort=panels), columns=2)
        .resolve_scale(y="independent", x="independent")
    )
    return drawn(chart, kind)


def _panel(cell: Cell) -> str:
    return f"{cell.data}, tested on {cell.test}"
