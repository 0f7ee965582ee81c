"""What teaching came to, as a page and as charts."""

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from salience.errors import BadInput
from salience.views.charts import drawn

if TYPE_CHECKING:
    from salience.teaching import Taught

TOLD = {
    "accuracy": "accuracy",
    "penalty": "penalty (distance from the explanation)",
    "attention_mass": "attention on explained tokens",
    "agreement": "rank correlation with the explanation",
    "held_out_agreement": "rank correlation with a method that did not teach",
    "comprehensiveness": "comprehensiveness of attention",
    "sufficiency": "sufficiency of attention (lower is better)",
}


def page(found: "Taught", *, title: str = "Trained with explanations") -> str:
    """A page that stands alone: teacher beside student, and every measure through the epochs."""
    rows = "".join(
        f"<tr><th scope=row>{escape(TOLD.get(name, name))}</th>{_cell(found.before.get(name))}{_cell(value)}</tr>"
        for name, value in found.epochs[-1].measures.items()
    )
    scores = "".join(
        f"<tr><th scope=row>accuracy on {escape(name)}</th>{_cell(found.scores.get(f'teacher/{name}'))}{_cell(of)}</tr>"
        for name, of in found.scores.items()
        if not name.startswith("teacher/")
    )
    course = "".join(
        f"<tr><th scope=row>{escape(k)}</th><td>{escape(str(v))}</td></tr>" for k, v in found.course.items()
    )
    chart = through_epochs(found, "svg").decode()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main><h1>{escape(title)}</h1>"
        f"<table><thead><tr><th></th><th>teacher</th><th>student</th></tr></thead><tbody>{rows}{scores}</tbody></table>"
        f"<h2>Through the epochs</h2><figure>{chart}</figure><h2>The course</h2><table>{course}</table>"
        "</main></body></html>\n"
    )


def _cell(value: float | None) -> str:
    return f"<td>{'' if value is None else f'{value:.3f}'}</td>"


def through_epochs(found: "Taught", kind: str) -> bytes:
    """One small chart for each measure; epoch 0 is the teacher."""
    import altair as alt

    epochs = [(0, found.before), *((e.number, e.measures) for e in found.epochs)]
    values = [
        {"epoch": number, "measure": TOLD.get(name, name), "value": value}
        for number, measures in epochs
        for name, value in measures.items()
    ]
    if not values:
        raise BadInput("nothing was measured through the epochs: give validation texts")
    chart: Any = (
        alt.Chart(alt.Data(values=values), width=190, height=120)
        .mark_line(point=True, color="#2f6f9f")
        .encode(
            x=alt.X("epoch:O", axis=alt.Axis(labelAngle=0)), y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False))
        )
        .facet(alt.Facet("measure:N", title=None, sort=list(TOLD.values())), columns=3)
        .resolve_scale(y="independent", x="independent")
    )
    return drawn(chart, kind)


def trade_off(found: "Mapping[str, Taught]", kind: str, *, against: str = "agreement") -> bytes:
    """Accuracy against a measure of attention, a point for each course: what looking right costs."""
    import altair as alt

    values = [
        {"course": name, "accuracy": t.epochs[-1].measures["accuracy"], against: t.epochs[-1].measures[against]}
        for name, t in found.items()
        if against in t.epochs[-1].measures
    ]
    if not values:
        raise BadInput(f"no course was measured for {against}: give validation texts")
    base: Any = alt.Chart(alt.Data(values=values), width=360, height=260).encode(
        x=alt.X(f"{against}:Q", title=TOLD.get(against, against), scale=alt.Scale(zero=False)),
        y=alt.Y("accuracy:Q", title="accuracy on validation texts", scale=alt.Scale(zero=False)),
    )
    points = base.mark_point(filled=True, size=70, color="#2f6f9f")
    return drawn(points + base.mark_text(align="left", dx=8).encode(text="course:N"), kind)


_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#1c1f24;background:#fdfdfb;margin:0}
main{max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0}
th,td{padding:.25rem .9rem .25rem 0;text-align:left;border-bottom:1px solid #e3e2dd}
td{font-variant-numeric:tabular-nums}figure{margin:0;overflow-x:auto}
"""
