"""Views of training with explanations: an HTML page and charts."""

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from salience.errors import BadInput
from salience.views.charts import drawn
from salience.views.pages import document, figure, table

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
        f"<h2>By epoch</h2>{figure(through_epochs(result, 'svg'))}",
        f"<h2>Settings</h2>{table((), [(name, str(value)) for name, value in result.course.items()])}",
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def through_epochs(result: "DistillationResult", kind: str) -> bytes:
    """One small chart per measure; epoch 0 is the teacher."""
    import altair as alt

    epochs = [(0, result.before), *((e.number, e.measures) for e in result.epochs)]
    values = [
        {"epoch": number, "measure": LABELS.get(name, name), "value": value}
        for number, measures in epochs
        for name, value in measures.items()
    ]
    if not values:
        raise BadInput("there are no measures by epoch; pass validation texts")
    chart: Any = (
        alt.Chart(alt.Data(values=values), width=190, height=120)
        .mark_line(point=True, color="#2f6f9f")
        .encode(
            x=alt.X("epoch:O", axis=alt.Axis(labelAngle=0)), y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False))
        )
        .facet(alt.Facet("measure:N", title=None, sort=list(LABELS.values())), columns=3)
        .resolve_scale(y="independent", x="independent")
    )
    return drawn(chart, kind)


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
    base: Any = alt.Chart(alt.Data(values=values), width=360, height=260).encode(
        x=alt.X(f"{against}:Q", title=LABELS.get(against, against), scale=alt.Scale(zero=False)),
        y=alt.Y("accuracy:Q", title="accuracy on validation texts", scale=alt.Scale(zero=False)),
    )
    points = base.mark_point(filled=True, size=70, color="#2f6f9f")
    return drawn(points + base.mark_text(align="left", dx=8).encode(text="course:N"), kind)
