"""Views of training with explanations: an HTML page and charts."""

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from salience.errors import BadInput
from salience.views import plots
from salience.views.charts import drawn
from salience.views.pages import document, panels, settings_table, table
from salience.views.plots import Axis, Line
from salience.views.schemes import BLUE

if TYPE_CHECKING:
    from salience.training.distillation import DistillationResult

LABELS = {
    "accuracy": "accuracy",
    "penalty": "penalty (distance from the explanation)",
    "attention_mass": "attention on explained tokens",
    "agreement": "rank correlation with the explanation",
    "held_out_agreement": "rank correlation with a held-out method",
    "comprehensiveness": "comprehensiveness of attention",
    "sufficiency": "sufficiency of attention (lower is better)",
}


def page(result: "DistillationResult", *, title: str = "Trained with explanations") -> str:
    """A self-contained HTML page: teacher and student side by side, and every measure by epoch."""
    measured = [
        (LABELS.get(name, name), _number(result.before.get(name)), _number(value))
        for name, value in result.epochs[-1].measures.items()
    ]
    tested = [
        (f"accuracy on {name}", _number(result.scores.get(f"teacher/{name}")), _number(score))
        for name, score in result.scores.items()
        if not name.startswith("teacher/")
    ]
    return document(
        escape(title),
        table(
            ("", "at start" if result.course.get("method") == "rationale" else "teacher", "student"),
            [*measured, *tested],
        ),
        f"<h2>By epoch</h2>{through_epochs(result)}",
        f"<h2>Settings</h2>{settings_table(result.course)}",
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def through_epochs(result: "DistillationResult") -> str:
    """One panel per measure; epoch 0 is the teacher."""
    epochs = [(0, result.before), *((e.number, e.measures) for e in result.epochs)]
    names = dict.fromkeys(name for _, measures in epochs for name in measures)
    if not names:
        raise BadInput("there are no measures by epoch; pass validation texts")
    series = [
        Line(LABELS.get(name, name), [n for n, m in epochs if name in m], [m[name] for _, m in epochs if name in m])
        for name in sorted(names, key=lambda name: list(LABELS).index(name) if name in LABELS else len(LABELS))
    ]
    x = Axis("epoch", "d", values=[number for number, _ in epochs])
    return panels(
        {line.name: plots.panel(line, x) for line in series},
        "Every measure by epoch",
        plots.numbers(series, "epoch"),
    )


def trade_off(results: "Mapping[str, DistillationResult]", kind: str, *, against: str = "agreement") -> bytes:
    """Accuracy against a measure of attention, one point per course."""
    import altair as alt

    values = [
        {"course": name, "accuracy": t.epochs[-1].measures["accuracy"], against: t.epochs[-1].measures[against]}
        for name, t in results.items()
        if against in t.epochs[-1].measures
    ]
    if not values:
        raise BadInput(f"no course has the measure {against}; pass validation texts")
    base: Any = alt.Chart(alt.Data(values=values), width=480, height=320).encode(
        x=alt.X(f"{against}:Q", title=LABELS.get(against, against), scale=alt.Scale(zero=False)),
        y=alt.Y("accuracy:Q", title="accuracy on validation texts", scale=alt.Scale(zero=False)),
    )
    points = base.mark_point(filled=True, size=70, color=BLUE)
    return drawn(plots.themed(points + base.mark_text(align="left", dx=8, fontSize=13).encode(text="course:N")), kind)
