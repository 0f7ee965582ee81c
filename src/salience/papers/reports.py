"""Reports of papers, as self-contained HTML pages."""

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from salience.evaluation.advice import advice
from salience.papers import elephant as _elephant
from salience.papers.comparison import Comparison
from salience.papers.layer_saliency import LayerSaliencyResult as Layers
from salience.papers.sallm import SallmResult, comparison_table, looked
from salience.views import plots
from salience.views.evaluation import curves, grid, legend, points
from salience.views.pages import document, listed, panels, settings_table, table
from salience.views.plots import Axis, Line
from salience.views.schemes import BLUE, INK


def sallm(result: SallmResult) -> str:
    """The report of SalLM: accuracy by variant, measures of attention, and settings."""
    grid = [(f"{one['weight']:g}", f"{one['share']:g}", f"{100 * one['validation']:.2f}") for one in result.grid]
    settings = {"model": result.model, "method": result.method, "seeds": result.size.seeds, **asdict(result.recipe)}
    del settings["seed"]
    return document(
        "SalLM: attention trained with explanations",
        f"<p>Accuracy in per cent: mean ± standard deviation over {result.size.seeds} seeds. Differences from vanilla "
        "and from shuffled are in test accuracy, with 95 % intervals that cover new texts and, with several seeds, new "
        "seeds; the p-values are corrected for all comparisons of the table (Holm). shuffled is taught by the same "
        "explanations at random tokens, uniform by all tokens alike; a gain counts only if both differences are "
        "significant. fine_tuned goes on from the teacher, so it is trained twice as long as all others. "
        "The poster's figures are for BERT-base over 3 seeds.</p>",
        table(*comparison_table(result)),
        by_seed(result),
        f"<h2>Effect on attention</h2>{table(*looked(result))}",
        "<p>Measured on validation texts against the teacher's explanations. The vanilla row is the teacher itself; "
        "the teacher of iterative is the student of sallm. Agreement is the rank correlation with the teacher's "
        "explanation, and held-out agreement the rank correlation with occlusion, which was not used in training. "
        "Comprehensiveness and sufficiency measure attention as an explanation of its own model.</p>",
        f"<h2>Selection on validation texts</h2>{table(('λ', 'share', 'validation accuracy'), grid)}"
        f"<p>Selected with the first seed: λ = {result.chosen['weight']:g} and a share of "
        f"{result.chosen['share']:g}.</p>",
        f"<h2>Settings</h2>{settings_table(settings)}",
    )


def by_seed(result: SallmResult) -> str:
    """Test accuracy by variant, one panel per data set: one point per seed, with a tick at the mean."""
    import altair as alt

    order = [row.variant for row in result.rows]
    of = {
        name: {row.variant: row.test if name == "test" else row.others[name] for row in result.rows}
        for name in ("test", *result.rows[0].others)
    }
    charts: dict[str, bytes] = {}
    for name, spreads in of.items():
        values = [{"variant": v, "x": x} for v, spread in spreads.items() for x in spread.values]
        base: Any = alt.Chart(alt.Data(values=values), width=plots.SMALL - 60, height=26 * len(order)).encode(
            y=alt.Y("variant:N", sort=order, title=None, axis=alt.Axis(ticks=False, domain=False))
        )
        x = alt.X("x:Q", title="accuracy, %", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5))
        dots = base.mark_circle(size=60, color=BLUE, opacity=0.7).encode(x=x)
        charts[name] = plots.svg(dots + base.mark_tick(color=INK, thickness=2, size=18).encode(x="mean(x):Q"))
    rows = [(v, *("  ".join(f"{x:.2f}" for x in of[name][v].values) for name in of)) for v in order]
    return panels(charts, "Accuracy of every seed by variant; a tick is the mean", (("", *of), rows))


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
        f"{by_layer(result)}"
        f"{table(('layer', 'mean log-probability of its own word', 'top-1 accuracy', 'mean reciprocal rank'), rows)}"
        f"<p>From this curve alone, the method selects layer {result.chosen}.</p>"
    )


def elephant(results: Sequence[Comparison]) -> str:
    """The report on attention and saliency methods, with a section per data set."""
    parts: list[str] = []
    for one in results:
        answers = listed(_elephant.answer(one.evaluation))
        parts.append(f"{_comparison(one)}<h3>Attention or saliency?</h3>{answers}")
    return document("Attention as an explanation, compared with saliency methods", *parts)


_HIDING = (
    " The hiding and revealing areas are equal, because they read the same curve from opposite ends; count them once."
)


def _comparison(one: Comparison) -> str:
    evaluation = one.evaluation
    seconds = [(name, f"{1000 * value:.1f}") for name, value in one.seconds.items()]
    both = {"hiding_area", "revealing_area"} <= set(evaluation.metrics)
    left_out = "".join(f"<li>{escape(name)}: {escape(why)}</li>" for name, why in one.left_out.items())
    return (
        f"<h2>{escape(one.data)}, {escape(evaluation.model)}</h2>{listed(advice(evaluation))}"
        f"{grid(evaluation)}"
        f"<p>{escape(legend(evaluation))}.{_HIDING if both else ''}</p>"
        f"{points(evaluation)}{curves(evaluation)}"
        f"<h3>Milliseconds per text, on this machine</h3>{table((), seconds)}"
        + (f"<h3>Left out</h3><ul>{left_out}</ul>" if left_out else "")
    )


def by_layer(result: Layers) -> str:
    """The coherence of each layer, next to the quality of its explanation. Both tables stand on the page."""
    evaluation = result.comparison.evaluation
    quality = evaluation.metrics[0]
    own = {
        int(name.rpartition("_")[2]): evaluation.cells[name, quality].estimate.mean
        for name in evaluation.methods
        if name.startswith("layer_saliency_layer_")
    }
    coherence = {c.layer: c.reciprocal_rank for c in result.coherence}
    series = [
        Line(name, list(of), list(of.values()))
        for name, of in (("mean reciprocal rank of its own word", coherence), (quality.replace("_", " "), own))
        if of
    ]
    charts = {line.name: plots.panel(line, Axis("layer", "d", values=line.x)) for line in series}
    return panels(charts, "Coherence and quality by layer", None)
