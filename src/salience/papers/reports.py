"""Reports of papers, as pages that stand alone."""

from dataclasses import asdict
from typing import Any

from salience.papers.sallm import Result, compared, looked
from salience.views.charts import drawn
from salience.views.pages import document, figure, table


def sallm(result: Result) -> str:
    """The variants beside each other, what became of attention, and what it was made with."""
    grid = [(f"{one['weight']:g}", f"{one['share']:g}", f"{100 * one['validation']:.2f}") for one in result.grid]
    settings = {"model": result.model, "method": result.method, "seeds": result.size.seeds, **asdict(result.recipe)}
    del settings["seed"]
    return document(
        "SalLM: attention taught by explanations",
        f"<p>Accuracy in per cent: mean ± standard deviation over {result.size.seeds} seeds. The difference from "
        "vanilla is that of the test answers, with a 95 % interval of a bootstrap over texts and seeds; the p-values "
        "of the three differences are not corrected for their number. The poster's own figures are those of BERT-base "
        "over 3 seeds.</p>",
        table(*compared(result)),
        figure(by_seed(result, "svg")),
        f"<h2>What became of attention</h2>{table(*looked(result))}",
        "<p>On validation texts, against the teacher's explanations; the row of vanilla is that teacher itself, and "
        "the teacher of iterative is the student of sallm. "
        "Agreement is a rank correlation, held-out agreement that with occlusion, which taught nobody. "
        "Comprehensiveness and sufficiency are those of attention as an explanation of the model it belongs to.</p>",
        f"<h2>Chosen on validation texts alone</h2>{table(('λ', 'share', 'validation accuracy'), grid)}"
        f"<p>λ = {result.chosen['weight']:g} and a share of {result.chosen['share']:g}, by the first seed, which is "
        "one of those above.</p>",
        f"<h2>Settings</h2>{table((), [(name, str(value)) for name, value in settings.items()])}",
    )


def by_seed(result: Result, kind: str) -> bytes:
    """Test accuracy of every seed, a column for each variant; a bar at the mean."""
    import altair as alt

    values = [
        {"variant": row.variant, "data": name, "accuracy": value, "seed": seed}
        for row in result.rows
        for name, spread in {"test": row.test, **row.others}.items()
        for seed, value in enumerate(spread.values)
    ]
    order = [row.variant for row in result.rows]
    base: Any = alt.Chart().encode(x=alt.X("variant:N", sort=order, title=None, axis=alt.Axis(labelAngle=0)))
    y = alt.Y("accuracy:Q", title="accuracy, %", scale=alt.Scale(zero=False))
    points = base.mark_circle(size=60, color="#2f6f9f", opacity=0.7).encode(y=y)
    means = base.mark_tick(width=40, color="#1c1f24", thickness=2).encode(y=alt.Y("mean(accuracy):Q"))
    chart: Any = (
        alt.layer(points, means, data=alt.Data(values=values), width=340, height=220)
        .facet(alt.Facet("data:N", title=None, sort=["test", *result.rows[0].others]), columns=2)
        .resolve_scale(y="independent")
    )
    return drawn(chart, kind)
