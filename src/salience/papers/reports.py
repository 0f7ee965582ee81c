"""Reports of papers, as self-contained HTML pages."""

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from salience.evaluation.advice import advice
from salience.papers import elephant as _elephant
from salience.papers.compared import Comparison
from salience.papers.layer_saliency import LayerSaliencyResult as Layers
from salience.papers.sallm import SallmResult, comparison_table, looked
from salience.views.charts import drawn
from salience.views.evaluation import curves, grid, legend, points
from salience.views.pages import document, figure, table


def sallm(result: SallmResult) -> str:
    """The report of SalLM: accuracy by variant, measures of attention, and settings."""
    grid = [(f"{one['weight']:g}", f"{one['share']:g}", f"{100 * one['validation']:.2f}") for one in result.grid]
    settings = {"model": result.model, "method": result.method, "seeds": result.size.seeds, **asdict(result.recipe)}
    del settings["seed"]
    return document(
        "SalLM: attention trained with explanations",
        f"<p>Accuracy in per cent: mean ± standard deviation over {result.size.seeds} seeds. Differences from vanilla "
        "and from shuffled are in test accuracy, with 95 % intervals that cover new texts and, with several seeds, new "
        "seeds; the p-values are not corrected for multiple comparisons. shuffled is taught by the same explanations "
        "at random tokens, uniform by all tokens alike; a gain counts only if both differences are significant. "
        "The poster's figures are for BERT-base over 3 seeds.</p>",
        table(*comparison_table(result)),
        figure(by_seed(result, "svg")),
        f"<h2>Effect on attention</h2>{table(*looked(result))}",
        "<p>Measured on validation texts against the teacher's explanations. The vanilla row is the teacher itself; "
        "the teacher of iterative is the student of sallm. Agreement is the rank correlation with the teacher's "
        "explanation, and held-out agreement the rank correlation with occlusion, which was not used in training. "
        "Comprehensiveness and sufficiency measure attention as an explanation of its own model.</p>",
        f"<h2>Selection on validation texts</h2>{table(('λ', 'share', 'validation accuracy'), grid)}"
        f"<p>Selected with the first seed: λ = {result.chosen['weight']:g} and a share of "
        f"{result.chosen['share']:g}.</p>",
        f"<h2>Settings</h2>{table((), [(name, str(value)) for name, value in settings.items()])}",
    )


def by_seed(result: SallmResult, kind: str) -> bytes:
    """A chart of test accuracy by variant: one point per seed, with a tick at the mean."""
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
    """The report of decoded layer saliency, with a section per data set."""
    return document(
        "Decoded layer saliency, layer by layer",
        "<p>Layer 0 is the embeddings. The paper reports no numbers to compare with.</p>",
        *(_layers(result) for result in results),
    )


def _layers(result: Layers) -> str:
    rows = [
        (str(c.layer), f"{c.log_probability:.2f}", f"{c.recovery:.3f}", f"{c.reciprocal_rank:.3f}")
        for c in result.coherence
    ]
    return (
        f"{_comparison(result.comparison)}<h3>Can a layer's words be decoded?</h3>"
        f"{figure(by_layer(result, 'svg'))}"
        f"{table(('layer', 'mean log-probability of its own word', 'top-1 accuracy', 'mean reciprocal rank'), rows)}"
        f"<p>From this curve alone, the method selects layer {result.chosen}.</p>"
    )


def elephant(results: Sequence[Comparison]) -> str:
    """The report on attention and saliency methods, with a section per data set."""
    parts: list[str] = []
    for one in results:
        answers = "".join(f"<li>{escape(sentence)}</li>" for sentence in _elephant.answer(one.evaluation))
        parts.append(f"{_comparison(one)}<h3>Attention or saliency?</h3><ul>{answers}</ul>")
    return document("Attention as an explanation, compared with saliency methods", *parts)


_HIDING = (
    " The hiding and revealing areas are equal, because they read the same curve from opposite ends; count them once."
)


def _comparison(one: Comparison) -> str:
    evaluation = one.evaluation
    sentences = "".join(f"<li>{escape(sentence)}</li>" for sentence in advice(evaluation))
    seconds = [(name, f"{1000 * value:.1f}") for name, value in one.seconds.items()]
    both = {"hiding_area", "revealing_area"} <= set(evaluation.metrics)
    left_out = "".join(f"<li>{escape(name)}: {escape(why)}</li>" for name, why in one.left_out.items())
    drawn_curves = figure(curves(evaluation, "svg"), fills=True) if evaluation.curves else ""
    return (
        f"<h2>{escape(one.data)}, {escape(evaluation.model)}</h2><ul>{sentences}</ul>"
        f"{grid(evaluation)}"
        f"<p>{escape(legend(evaluation))}.{_HIDING if both else ''}</p>"
        f"{figure(points(evaluation, 'svg'), fills=True)}{drawn_curves}"
        f"<h3>Milliseconds per text, on this machine</h3>{table((), seconds)}"
        + (f"<h3>Left out</h3><ul>{left_out}</ul>" if left_out else "")
    )


def by_layer(result: Layers, kind: str) -> bytes:
    """A chart of the coherence of each layer, next to the quality of its explanation."""
    import altair as alt

    evaluation = result.comparison.evaluation
    quality = evaluation.metrics[0]
    values = [
        {"layer": c.layer, "what": "mean reciprocal rank of its own word", "value": c.reciprocal_rank}
        for c in result.coherence
    ]
    values += [
        {
            "layer": int(name.rpartition("_")[2]),
            "what": quality.replace("_", " "),
            "value": evaluation.cells[name, quality].estimate.mean,
        }
        for name in evaluation.methods
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
