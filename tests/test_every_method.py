"""One table: every method × every model shape. Adding a method to METHODS enrols it here."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from salience.core.passes import forward, resolve
from salience.core.settings import settings_of
from salience.core.target import Target
from salience.core.types import Attribution, Model
from salience.errors import UnsupportedModel
from salience.methods import METHODS
from salience.models.gates import Gates, new_gates
from shapes import LANGUAGE_MODELS, POOLED, RATIONALES, SEQ2SEQ, SHAPES, TEXTS, build
from untouched import budget, close, state

SMALLER: dict[str, dict[str, Any]] = {
    "integrated_gradients": {"tolerance": 0.1},
    "smooth_grad": {"samples": 3},
    "gradient_shap": {"samples": 3},
    "lime": {"samples": 20},
    "kernel_shap": {"tolerance": 0.3, "max_samples": 160},
    "partition_shap": {"max_evals": 30},
    "layer_saliency": {"layer": 1, "decode": "identity"},  # the tiny shapes have no LM head; test_layers.py decodes
}
"""Settings that keep slow methods quick; the properties hold for any."""

SQUARE = ("attention_rollout", "attention_flow", "attention_relevance", "value_zeroing")
UNSUPPORTED = {(m, s) for m in SQUARE for s in (*POOLED, SEQ2SEQ)} | {("value_zeroing", "deberta_v2")}
UNSUPPORTED |= {("attention_x_relevance", s) for s in SHAPES if s not in POOLED}
UNSUPPORTED |= {("selection", s) for s in (*SHAPES, SEQ2SEQ)}
UNSUPPORTED |= {(m, "pooled_orthogonal_lstm") for m in ("lrp", "deep_lift")}  # there is no rule for its cell
"""Pairs that must be refused, because the model lacks what the method reads."""

ALL = (*SHAPES, SEQ2SEQ)
CASES = [(m, s) for m in METHODS for s in ALL if (m.__name__, s) not in UNSUPPORTED]
CASES += [(m, s) for m in METHODS if m.__name__ in ("selection", "gradient", "occlusion") for s in RATIONALES]
REFUSED = [(m, s) for m in METHODS for s in ALL if (m.__name__, s) in UNSUPPORTED]


def names(case: list[tuple[Any, str]]) -> list[str]:
    return [f"{m.__name__}-{s}" for m, s in case]


@cache
def model_of(shape: str) -> Model:
    return build(shape, dtype=torch.float64)


@cache
def gates_of(model: Model) -> Gates:
    return new_gates(model, seed=1)


def settings(method: Any, model: Model) -> dict[str, Any]:
    """The settings of a method: smaller ones, and what has to be trained for a model, untrained."""
    if method.__name__ == "diff_mask":
        return {"gates": gates_of(model)}
    return SMALLER.get(method.__name__, {})


def run(method: Any, model: Model, texts: tuple[str, ...] = TEXTS) -> Attribution:
    """The method on one batch, explaining the label that each text is given on its own."""
    batch = model.batch(model.encode(texts))
    target = resolve(model, [Target()], forward(model, batch).logits)
    result = method(model, batch, target, **settings(method, model))
    return result if isinstance(result, Attribution) else Attribution(result)


@pytest.mark.parametrize(("method", "shape"), CASES, ids=names(CASES))
def test_every_method_on_every_shape(method: Any, shape: str):
    model = model_of(shape)
    before = state(model)
    many = run(method, model)
    assert state(model) == before, "the method changed the model"

    batch = model.batch(model.encode(TEXTS))
    scale = float(forward(model, batch).logits.abs().max())
    assert many.scores.shape == batch.ids.shape
    assert many.scores.isfinite().all()
    assert (many.scores[~batch.mask] == 0).all()

    with budget(model, 2 * batch.width):
        small = run(method, model)
    assert close(small.scores, many.scores, scale), "the budget changed the scores"

    alones = [run(method, model, (text,)).scores[0] for text in TEXTS]
    assert torch.equal(run(method, model, TEXTS[:1]).scores[0], alones[0]), "the same call gave other scores"
    for row, alone in enumerate(alones):
        near = close(many.scores[row, : len(alone)], alone, scale)
        assert near, "the company of other texts changed the scores"


READERS = [(m, s) for m, s in CASES if "Cost: none" not in (m.__doc__ or "")]


@pytest.mark.parametrize(("method", "shape"), READERS, ids=names(READERS))
def test_the_model_is_untouched_after_an_exception(method: Any, shape: str):
    model = model_of(shape)
    batch = model.batch(model.encode(TEXTS))
    target = resolve(model, [Target()], forward(model, batch).logits)
    with broken(model):
        before = state(model)
        with pytest.raises(RuntimeError, match="broken on purpose"):
            method(model, batch, target, **settings(method, model))
        assert state(model) == before


@pytest.mark.parametrize(("method", "shape"), REFUSED, ids=names(REFUSED))
def test_unsupported_combinations_are_refused(method: Any, shape: str):
    model = model_of(shape)
    before = state(model)
    with pytest.raises(UnsupportedModel):
        run(method, model)
    assert state(model) == before


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.__name__)
def test_every_method_documents_its_paper_and_cost(method: Any):
    for line in ("Paper:", "Cost:", "Needs:"):
        assert line in (method.__doc__ or ""), f"{method.__name__} lacks {line}"
    for name, parameter in settings_of(method).items():
        assert parameter.default is not parameter.empty, f"{method.__name__}: setting {name} has no default"


@pytest.mark.parametrize("shape", LANGUAGE_MODELS)
def test_a_contrast_is_the_difference_of_its_two_sides(shape: str):
    model = model_of(shape)
    batch = model.batch(model.encode(TEXTS))
    ixg = next(m for m in METHODS if m.__name__ == "input_x_gradient")
    logits = forward(model, batch).logits
    targets = (Target(5), Target(9), Target(5, against=9))
    a, b, ab = (ixg(model, batch, resolve(model, [t], logits)).scores for t in targets)
    assert close(ab, a - b, float(logits.abs().max()))


@contextmanager
def broken(model: Model) -> Iterator[None]:
    """The last leaf module that a pass runs through raises."""
    ran: list[nn.Module] = []
    leaves = [m for m in model.module.modules() if not list(m.children()) and not isinstance(m, nn.Embedding)]
    handles = [m.register_forward_hook(lambda m, *_: ran.append(m)) for m in leaves]
    forward(model, model.batch(model.encode(TEXTS[:1])))
    for handle in handles:
        handle.remove()
    handle = ran[-1].register_forward_pre_hook(_raise)
    try:
        yield
    finally:
        handle.remove()


def _raise(*_: Any) -> None:
    raise RuntimeError("broken on purpose")
