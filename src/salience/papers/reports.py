"""Reports of papers, as pages that stand alone."""

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from salience.papers import elephant as _elephant
from salience.papers.compared import Comparison
from salience.papers.layer_saliency import Result as Layers
from salience.papers.sallm import Result, compared, looked
from salience.verdict import advice
from salience.views.charts import drawn
from salience.views.evaluation import bars, curves, grid, legend
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


# ------------------------------------------------------------------------------------------------------ comparisons


def layer_saliency(results: Sequence[Layers]) -> str:
    """Every layer beside the other methods, a part for each data set."""
    return document(
        "Decoded layer saliency, layer by layer",
        "<p>Layers are those of layer_saliency, from 0, the embeddings. The paper gives no numbers to set beside "
        "these.</p>",
        *(_layers(result) for result in results),
    )


def _layers(result: Layers) -> str:
    known = [
        (str(c.layer), f"{c.log_probability:.2f}", f"{c.recovery:.3f}", f"{c.reciprocal_rank:.3f}")
        for c in result.coherence
    ]
    return (
        f"{_comparison(result.comparison)}<h3>Does a layer still know its words?</h3>"
        f"{figure(by_layer(result, 'svg'))}"
        f"{table(('layer', 'mean log-probability of its own word', 'first choice', 'mean reciprocal rank'), known)}"
        f"<p>The method chooses layer {result.chosen} by itself, by this curve alone.</p>"
    )


def elephant(results: Sequence[Comparison]) -> str:
    """Attention beside the saliency methods, a part for each data set."""
    parts: list[str] = []
    for one in results:
        said = "".join(f"<li>{escape(sentence)}</li>" for sentence in _elephant.answer(one.found))
        parts.append(f"{_comparison(one)}<h3>Attention or saliency?</h3><ul>{said}</ul>")
    return document("Attention as an explanation, beside saliency methods", *parts)


_HIDING = " Hiding and revealing are one curve read from either end, so that their areas are equal: count them as one."


def _comparison(one: Comparison) -> str:
    found = one.found
    said = "".join(f"<li>{escape(sentence)}</li>" for sentence in advice(found))
    seconds = [(name, f"{1000 * value:.1f}") for name, value in one.seconds.items()]
    both = {"hiding_area", "revealing_area"} <= set(found.metrics)
    left = "".join(f"<li>{escape(name)}: {escape(why)}</li>" for name, why in one.left_out.items())
    drawn_curves = figure(curves(found, "svg")) if found.curves else ""
    return (
        f"<h2>{escape(one.data)}, {escape(found.model)}</h2><ul>{said}</ul>"
        f"{grid(found)}"
        f"<p>{escape(legend(found))}.{_HIDING if both else ''}</p>{figure(bars(found, 'svg'))}{drawn_curves}"
        f"<h3>Milliseconds per text, on this machine</h3>{table((), seconds)}"
        + (f"<h3>Left out</h3><ul>{left}</ul>" if left else "")
    )


def by_layer(result: Layers, kind: str) -> bytes:
    """How well each layer knows its own words, beside how well its explanation does."""
    import altair as alt

    found = result.comparison.found
    quality = found.metrics[0]
    values = [
        {"layer": c.layer, "what": "mean reciprocal rank of its own word", "value": c.reciprocal_rank}
        for c in result.coherence
    ]
    values += [
        {
            "layer": int(name.rpartition("_")[2]),
            "what": quality.replace("_", " "),
            "value": found.cells[name, quality].estimate.mean,
        }
        for name in found.methods
        if name.startswith("layer_saliency_layer_")
    ]
    chart: Any = (
        alt.Chart(alt.Data(values=values), width=260, height=160)
        .mark_line(point=True, color="#2f6f9f")
        .encode(
            x=alt.X("layer:O", axis=alt.Axis(labelAngle=0)), y=alt.Y("value:Q", title=None, scale=alt.Scale(zero=False))
        )
        .facet(alt.Facet("what:N", title=None), columns=2)
        .resolve_scale(y="independent")
    )
    return drawn(chart, kind)
