"""Decoded layer saliency: every layer of a model against the methods that one would use otherwise.

The paper compares them by hiding and revealing words, and has no table of numbers that could be set beside ours; what
it says is a direction: the layers that still speak of their own words explain better than the embeddings do.

Paper: Hou & Castanon 2023, Decoding Layer Saliency in Language Transformers, arXiv:2308.05219
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from salience.evaluator import PLAUSIBLE
from salience.explainer import explain
from salience.lessons import Example
from salience.methods.layers import Coherence, coherence, fit_head
from salience.papers.compared import Comparison, compared
from salience.types import Model

METHODS = (
    "gradient",
    "input_x_gradient",
    "integrated_gradients",
    "lrp",
    "occlusion",
    "attention",
    "attention_rollout",
    "layer_saliency",
)
METRICS = ("hiding_area", "revealing_area", "deletion_area", "comprehensiveness", "sufficiency")

FIT = "fit"
"""In place of a head: fit one."""

SIZES = {"quick": 60, "full": 500}
"""Texts of each data set."""


@dataclass(frozen=True, slots=True)
class Result:
    """One model on one data set: all methods and layers, and how well each layer still knows its words."""

    comparison: Comparison
    coherence: tuple[Coherence, ...]
    chosen: int
    """The layer that the method chooses by itself, without looking at any label or metric."""


def run(
    model: Model,
    data: str,
    given: Sequence[Example],
    *,
    decode: str = "restricted",
    head: str | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Result:
    """The table of one data set. ``decode`` and ``head`` are those of :func:`salience.methods.layers.layer_saliency`.

    With the head ``fit``, one is fitted on the texts themselves, which needs no labels.
    """
    texts = [e.text for e in given]
    lm = fit_head(model, texts) if head == FIT else head
    metrics = (*METRICS, *(PLAUSIBLE if any(e.rationale for e in given) else ()))
    settings = {"layer_saliency.layer": "all", "layer_saliency.decode": decode, "layer_saliency.head": lm}
    found = compared(model, data, given, METHODS, metrics, needed=METHODS[-1:], report=report, **settings)
    curve = coherence(model, texts, head=lm)
    (one,) = explain(model, texts[0], "layer_saliency", decode=decode, head=lm)
    return Result(found, tuple(curve), int(one.settings["layer"]))
