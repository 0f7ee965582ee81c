"""Language models in half precision, and attention with a sink of its own."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, GptOssConfig

import salience
from salience.core.passes import forward
from salience.core.types import Model
from shapes import TEXTS, tokenizer

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 48, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None,
}  # fmt: skip


def language_model(kind: type, **own: Any) -> Model:
    torch.manual_seed(0)
    words = tokenizer("bare")
    module = AutoModelForCausalLM.from_config(kind(**{**SIZES, **own, "vocab_size": len(words)}))
    return salience.wrap(module.eval(), words, name=kind.__name__)


def large_logits() -> Model:
    """A model whose logits are all about 384, where numbers of bfloat16 are 2 apart, while its states are about 1."""
    torch.manual_seed(0)
    words = tokenizer("bare")
    config = GPT2Config(
        n_embd=128, n_layer=2, n_head=4, n_positions=64, vocab_size=len(words), bos_token_id=0, eos_token_id=0,
        tie_word_embeddings=False, initializer_range=0.2,
    )  # fmt: skip
    module: Any = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        signs = torch.randn(128).sign()
        module.transformer.ln_f.weight.fill_(0.1)
        module.transformer.ln_f.bias.copy_(signs)
        module.lm_head.weight.copy_(3 * signs + module.lm_head.weight)
    return salience.wrap(module, words, name="large")


def test_occlusion_in_bfloat16_sees_what_large_logits_hide():
    model: Any = large_logits()
    exact = [torch.tensor(e.scores) for e in salience.explain(model, TEXTS, "occlusion", target=5)]
    module = model.module.bfloat16()
    half = [torch.tensor(e.scores) for e in salience.explain(model, TEXTS, "occlusion", target=5)]
    errors = [float((a - b).norm() / a.norm()) for a, b in zip(exact, half, strict=True)]
    assert max(errors) < 0.15, errors
    assert module.dtype == torch.bfloat16
    assert not any(part._forward_hooks for part in module.modules())


def test_the_passes_of_one_run_share_the_wide_output_layer(monkeypatch: pytest.MonkeyPatch):
    model: Any = large_logits()
    model.module.bfloat16()
    layer, copies, linear = model.module.lm_head, list[torch.Tensor](), torch.nn.functional.linear

    def watched(x: torch.Tensor, weight: torch.Tensor, *bias: Any) -> torch.Tensor:
        if weight.dtype == torch.float32 and weight.shape == layer.weight.shape:
            copies.append(weight)  # which keeps it, so that no other gets its address
        return linear(x, weight, *bias)

    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    model.executor.budget = 20
    before = salience.explain(model, TEXTS[0], "occlusion", target=5)
    assert len(copies) > 4
    assert len({id(copy) for copy in copies}) == 1
    with torch.no_grad():
        layer.weight.mul_(2)
    after = salience.explain(model, TEXTS[0], "occlusion", target=5)
    assert after[0].value == pytest.approx(2 * before[0].value, rel=1e-3)


def test_the_wide_output_layer_follows_changes_and_is_trained():
    model: Any = large_logits()
    layer = model.module.bfloat16().lm_head
    batch = model.batch(model.encode(TEXTS))

    def work(_: list[int]) -> torch.Tensor:
        logits = forward(model, batch).logits
        with torch.no_grad():
            layer.weight.mul_(2)
        return logits

    (_, first), (_, second) = model.executor.run([1, 1], work, alone=True)
    assert torch.allclose(second, 2 * first, rtol=1e-3)
    layer.requires_grad_(True)
    with torch.enable_grad():
        model.network(batch, {}).logits.sum().backward()
    assert layer.weight.grad.abs().sum() > 0


def test_soft_caps_run_in_float32():
    model: Any = language_model(Gemma2Config, initializer_range=0.2)
    model.module.bfloat16()
    logits = forward(model, model.batch(model.encode(TEXTS))).logits
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, logits.bfloat16().float())


@pytest.fixture
def gpt_oss() -> Model:
    model: Any = language_model(GptOssConfig, num_local_experts=4, num_experts_per_tok=2, sliding_window=4)
    for block in model.module.model.layers:
        block.self_attn.sinks.data.normal_()
    return model


def test_attention_with_a_sink_is_that_of_transformers(gpt_oss: Model):
    module: Any = gpt_oss.module
    batch = gpt_oss.batch(gpt_oss.encode(TEXTS))
    ours = forward(gpt_oss, batch, attention="read")
    with torch.no_grad():
        module.set_attn_implementation("eager")
        theirs = module(input_ids=batch.ids, attention_mask=batch.mask.long(), output_attentions=True)
    for a, b in zip(ours.attention, theirs.attentions, strict=True):
        kept = batch.mask[:, None, :, None]
        assert torch.allclose(a * kept, b * kept, atol=1e-6)
        assert (a.sum(-1)[batch.mask[:, None].expand(-1, a.shape[1], -1)] < 1).all()
    assert torch.allclose(ours.logits, forward(gpt_oss, batch).logits, atol=1e-5)


@pytest.mark.parametrize("method", ["attention", "attention_rollout", "value_zeroing", "lrp", "attention_x_gradient"])
def test_models_with_a_sink_can_be_explained(gpt_oss: Model, method: str):
    for e in salience.explain(gpt_oss, TEXTS, method):
        assert any(e.scores)
