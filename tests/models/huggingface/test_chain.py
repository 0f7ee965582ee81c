"""Texts whose graph would not fit in memory are differentiated block by block, with the same result."""

import pytest
import torch

import salience
from salience.core import passes
from salience.generation import explain_answers
from salience.models.huggingface import adapter
from shapes import TEXTS, build

METHODS = ["gradient", "input_x_gradient", "lrp"]


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pretend that there is no memory; the number of texts of every pass that runs block by block."""
    seen: list[int] = []
    one_by_one = passes._block_by_block

    def counted(model, batch, *rest):
        seen.append(len(batch))
        return one_by_one(model, batch, *rest)

    monkeypatch.setattr(passes, "_block_by_block", counted)
    monkeypatch.setattr(adapter, "free_memory", lambda _: 0)
    return seen


@pytest.mark.parametrize("shape", ["bert", "gpt2", "llama_lm", "qwen3_lm"])
def test_predictions_are_explained_as_before(shape: str, blocks: list[int], monkeypatch: pytest.MonkeyPatch):
    model = build(shape, dtype=torch.float64)
    by_block = salience.explain(model, list(TEXTS), METHODS)
    assert blocks
    monkeypatch.undo()
    for one, other in zip(by_block, salience.explain(model, list(TEXTS), METHODS), strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-6)


@pytest.mark.parametrize("shape", ["gpt2_lm", "llama_lm"])
def test_answers_are_explained_as_before(shape: str, blocks: list[int], monkeypatch: pytest.MonkeyPatch):
    model = build(shape, dtype=torch.float64)
    by_block = explain_answers(model, [TEXTS[0]], METHODS, answers=[" Good fun"])
    assert blocks == [1, 1]  # once for both gradients of all tokens, and once for the rules
    monkeypatch.undo()
    for one, other in zip(by_block, explain_answers(model, [TEXTS[0]], METHODS, answers=[" Good fun"]), strict=True):
        assert one.total == pytest.approx(other.total, abs=1e-6)
        for row, same in zip(one.matrix, other.matrix, strict=True):
            assert [v or 0.0 for v in row] == pytest.approx([v or 0.0 for v in same], abs=1e-6)
