"""Decoders of many families: an answer is explained as each of its tokens is after the tokens before it."""

from functools import cache
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    OPTConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen3Config,
)

import salience
from salience.core.prompts import Prompt
from salience.core.types import Attribution, Targets
from salience.errors import UnsupportedModel
from salience.generation import explain_answer
from salience.methods import find_method
from salience.models.huggingface import HuggingFace
from shapes import tokenizer

PROMPT, ANSWER = "A fine film: the plot", "is a mess"

TOKENIZER = tokenizer("bpe")
SIZES = {
    "vocab_size": len(TOKENIZER),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
WIDE = {**GROUPED, "head_dim": 8}
SLIDING = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts_per_tok": 2, "router_aux_loss_coef": 0.0}

FAMILIES: dict[str, Any] = {
    "gpt2": lambda: GPT2Config(**SIZES),
    "llama": lambda: LlamaConfig(**GROUPED),
    "mistral": lambda: MistralConfig(**GROUPED, sliding_window=4),
    "qwen2": lambda: Qwen2Config(**GROUPED),
    "qwen3": lambda: Qwen3Config(**WIDE),
    "gemma2": lambda: Gemma2Config(**WIDE, **SLIDING, query_pre_attn_scalar=8, attn_logit_softcapping=2.0),
    "gemma3": lambda: Gemma3TextConfig(**WIDE, **SLIDING, query_pre_attn_scalar=8),
    "phi3": lambda: Phi3Config(**GROUPED),
    "gpt_neox": lambda: GPTNeoXConfig(**SIZES),
    "opt": lambda: OPTConfig(**SIZES, ffn_dim=32, word_embed_proj_dim=32, init_std=0.2),
    "bloom": lambda: BloomConfig(**SIZES),
    "falcon": lambda: FalconConfig(**SIZES, alibi=False, new_decoder_architecture=False),
    "olmo2": lambda: Olmo2Config(**GROUPED),
    "mixtral": lambda: MixtralConfig(**GROUPED, **EXPERTS, num_local_experts=4),
    "qwen2_moe": lambda: Qwen2MoeConfig(
        **GROUPED, **EXPERTS, num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16
    ),
    "gpt_oss": lambda: GptOssConfig(**WIDE, **EXPERTS, num_local_experts=4, sliding_window=4),
    "mamba": lambda: MambaConfig(
        vocab_size=len(TOKENIZER), hidden_size=32, num_hidden_layers=2, state_size=4, pad_token_id=1
    ),
}

SINGLE = ("mixtral", "qwen2_moe", "gpt_oss", "gemma2")
"""Families without double precision: mixtures of experts, and a softmax in single precision whose masks overflow."""

METHODS = ("input_x_gradient", "lrp", "occlusion", "attention")

REFUSED = {
    ("bloom", "lrp"): "calls baddbmm, a fused operation",
    ("falcon", "lrp"): "FalconForCausalLM computes something else when its attention weights are requested",
    ("falcon", "attention"): "FalconForCausalLM computes something else when its attention weights are requested",
    ("mamba", "lrp"): "only 0 of 2 attention layers of mamba",
    ("mamba", "attention"): "only 0 of 2 attention layers of mamba",
}
"""What a family has not, and what is said about it."""


@cache
def model_of(family: str) -> HuggingFace:
    config: PreTrainedConfig = FAMILIES[family]()
    torch.manual_seed(0)
    dtype = torch.float32 if family in SINGLE else torch.float64
    module = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    model = salience.wrap(module, TOKENIZER, name=family)
    assert isinstance(model, HuggingFace)
    return model


def next_token(model: HuggingFace, method: str, ids: list[int], token: int) -> list[float]:
    """The scores of a text for its next token."""
    batch = model.batch([model.encode_prompt(Prompt.of(ids))])
    target = Targets(torch.tensor([token]), None, "log_probability", "softmax")
    result = find_method(method)(model, batch, target)
    scores = result.scores if isinstance(result, Attribution) else result
    return scores[0].tolist()


CASES = [pytest.param(f, m) for f in FAMILIES for m in METHODS if (f, m) not in REFUSED]


@pytest.mark.parametrize(("family", "method"), CASES)
def test_an_answer_is_explained_token_by_token(family: str, method: str):
    model = model_of(family)
    e = explain_answer(model, PROMPT, method, answer=ANSWER)
    prompt = list(model.encode_prompt(Prompt.of(PROMPT)).ids)
    answer = TOKENIZER.convert_tokens_to_ids(list(e.answer_tokens))
    for t, token in enumerate(answer):
        expected = next_token(model, method, prompt + answer[:t], token)
        assert list(e.matrix[t][: len(expected)]) == pytest.approx(
            expected, abs=1e-4 if family in SINGLE else 1e-5, rel=1e-3
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_context_cite_deletes_words_of_the_prompt(family: str):
    e = explain_answer(model_of(family), PROMPT, "context_cite", answer=ANSWER, samples=16, per="answer")
    assert len(e.total) == len(e.source_tokens)
    assert any(e.total)
    assert not any(score for score, special in zip(e.total, e.source_special, strict=True) if special)


@pytest.mark.parametrize(("family", "method"), REFUSED)
def test_what_a_family_has_not_is_refused_by_name(family: str, method: str):
    with pytest.raises(UnsupportedModel, match=REFUSED[family, method]):
        explain_answer(model_of(family), PROMPT, method, answer=ANSWER)
