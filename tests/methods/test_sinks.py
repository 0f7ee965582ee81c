"""The first token of decoders: its share of the scores, and scores without it."""

import pytest

import salience
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
