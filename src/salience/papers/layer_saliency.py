"""Decoded layer saliency: every layer of a model compared with the usual methods.

The paper compares methods by hiding and revealing words, and reports no table of numbers to compare with. Its claim is
qualitative: layers whose states still decode to their own words explain better than the embeddings.

Paper: Hou & Castanon 2023, Decoding Layer Saliency in Language Transformers, arXiv:2308.05219
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from salience.core.types import Model
from salience.data.examples import Example
from salience.evaluation.evaluator import WITH_RATIONALES
from salience.explanations.explainer import explain
from salience.methods.decoding import Coherence, coherence, fit_head
from salience.papers.comparison import Comparison, compare

COMPARED_METHODS = (
    "gradient",
    "input_x_gradient",
    "integrated_gradients",
    "lrp",
    "occlusion",
    "attention",
    "attention_rollout",
    "layer_saliency",
)
COMPARED_METRICS = ("hiding_area", "revealing_area", "deletion_area", "comprehensiveness", "sufficiency")

FIT = "fit"
"""The value of ``head`` that fits a new one."""

SIZES = {"quick": 60, "full": 500}
"""Number of texts per data set."""


@dataclass(frozen=True, slots=True)
class LayerSaliencyResult:
    """The results of one model on one data set: all methods and layers, and the coherence of each layer."""

    comparison: Comparison
    coherence: tuple[Coherence, ...]
    chosen: int
    """The layer that the method selects by default, without labels or metrics."""


def run(
    model: Model,
    data: str,
    examples: Sequence[Example],
    *,
    decode: str = "restricted",
    head: str | None = None,
    report: Callable[[int, int], None] | None = None,
    **settings: Any,
) -> LayerSaliencyResult:
    """Compare every layer with the other methods on one data set.

    ``decode`` and ``head`` are passed to :func:`salience.methods.layers.layer_saliency`. With ``head="fit"``, a head is
    fitted on the texts themselves, which needs no labels. Other arguments are those of :func:`salience.evaluate`.
    """
    texts = [e.text for e in examples]
    lm = fit_head(model, texts) if head == FIT else head
    metrics = (*COMPARED_METRICS, *(WITH_RATIONALES if any(e.rationale for e in examples) else ()))
    fixed = {"layer_saliency.layer": "all", "layer_saliency.decode": decode, "layer_saliency.head": lm}
    comparison = compare(
        model,
        data,
        examples,
        COMPARED_METHODS,
        metrics,
        needed=COMPARED_METHODS[-1:],
        report=report,
        **{**settings, **fixed},
    )
    curve = coherence(model, texts, head=lm)
    (explanation,) = explain(model, texts[0], "layer_saliency", decode=decode, head=lm)
    return LayerSaliencyResult(comparison, tuple(curve), int(explanation.settings["layer"]))
