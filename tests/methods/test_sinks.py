"""The first token of decoders: its share of the scores, and scores without it."""

import pytest
import torch

import salience
from salience.core.erasure import replaced
from salience.core.passes import forward
from salience.errors import BadInput
from shapes import TEXTS, build

METHODS = ["attention", "attention_rollout", "value_zeroing", "lrp"]


@pytest.mark.parametrize("method", METHODS)
def test_the_share_of_the_first_token_is_reported(method: str):
    for e in salience.explain(build("llama_lm"), TEXTS, method):
        assert e.gaps["sink"] == pytest.approx(abs(e.scores[0]) / sum(map(abs, e.scores)), rel=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_without_the_sink_only_the_first_score_is_another(method: str):
    model = build("llama_lm")
    with_sink, without = (salience.explain(model, TEXTS, method, without_sink=w) for w in (False, True))
    for a, b in zip(with_sink, without, strict=True):
        assert b.scores == (0.0, *a.scores[1:])
        assert b.gaps == a.gaps
        assert b.settings["without_sink"] is True


@pytest.mark.parametrize("method", METHODS)
def test_encoders_have_no_sink(method: str):
    model = build("bert")
    assert "sink" not in salience.explain(model, TEXTS, method)[0].gaps
    with pytest.raises(BadInput, match=r"without_sink=True leaves out the first token of decoders, and .* is not one"):
        salience.explain(model, TEXTS[0], method, without_sink=True)


def test_a_path_without_the_sink_keeps_the_first_token():
    model = build("llama_lm")
    for e in salience.explain(model, TEXTS, "integrated_gradients", without_sink=True, nodes=8):
        assert e.scores[0] == 0.0
        batch = model.batch(model.encode([e.text]))
        where = torch.arange(batch.width)[None] > 0
        start = forward(model, batch, embeddings=replaced(model, batch, where, "mean")).logits[0, e.target.column]
        assert sum(e.scores) - e.gaps["completeness"] == pytest.approx(e.value - float(start), abs=1e-4)


def test_a_path_whose_gradients_are_nan_says_why():
    model = build("llama_lm")
    for part in model.module.modules():
        if hasattr(part, "variance_epsilon"):
            part.variance_epsilon = 1e-30
    with pytest.raises(BadInput, match=r"norms divide by the size of a state.*baseline='mean'"):
        salience.explain(model, TEXTS, "integrated_gradients", baseline="zero")
