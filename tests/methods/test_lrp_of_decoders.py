"""lrp of language models against a decoder that is written out, with every rule as a detached or scaled factor."""

from functools import partial
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor
from torch.nn import functional as fn

import salience
from salience.core.passes import forward, resolve
from salience.core.target import Target
from salience.core.types import Model
from salience.methods.propagation import lrp
from shapes import tokenizer

TEXT = "A fine film with no heart and nothing to say."
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
    "intermediate_size": 24, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None,
    "initializer_range": 0.3,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
DENSE = {"num_key_value_heads": 4, "moe_intermediate_size": 12, "n_routed_experts": 4, "num_experts_per_tok": 2}
LOW_RANK = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}
CONFIGS: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (hf.LlamaConfig, {}),
    "qwen3": (hf.Qwen3Config, {}),
    "gemma2": (hf.Gemma2Config, {"query_pre_attn_scalar": 4}),
    "mixtral": (hf.MixtralConfig, {"num_local_experts": 4}),
    "qwen2_moe": (hf.Qwen2MoeConfig, {**EXPERTS, "shared_expert_intermediate_size": 12, "norm_topk_prob": True}),
    "qwen3_moe": (hf.Qwen3MoeConfig, {**EXPERTS, "norm_topk_prob": True}),
    "olmoe": (hf.OlmoeConfig, {"num_experts": 4, "num_experts_per_tok": 2}),
    "gpt_oss": (hf.GptOssConfig, {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4}),
    "deepseek_v3": (
        hf.DeepseekV3Config,
        {**DENSE, **LOW_RANK, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    ),
}


def language_model(family: str) -> Model:
    torch.manual_seed(0)
    kind, own = CONFIGS[family]
    words = tokenizer("bare")
    module = hf.AutoModelForCausalLM.from_config(kind(**{**SIZES, **own, "vocab_size": len(words)})).double()
    for name, p in module.named_parameters():
        if p.dim() == 1:  # norms, and the biases of Qwen2's queries, keys and values, which start at 1 or 0
            p.data += 0.3 * torch.randn_like(p) * (0 if name.endswith("bias") else 1)
    module.set_experts_implementation("eager")  # torch's grouped_mm does not multiply numbers of float64
    return salience.wrap(module, words, name=family)


def explained(model: Model, **settings: Any) -> tuple[Tensor, float, float]:
    """Scores, the explained logit and the gap."""
    batch = model.batch(model.encode([TEXT]))
    target = resolve(model, [Target()], forward(model, batch).logits)
    result = lrp(model, batch, target, **settings)
    assert target.value is not None
    return result.scores[0], float(target.value), float(result.gaps["conservation"])


# The rules. Each keeps a value and changes its derivative.


def share(x: Tensor, factor: float) -> Tensor:
    """x with a derivative of ``factor``."""
    return factor * x + (1 - factor) * x.detach()


def sloped(x: Tensor, y: Tensor) -> Tensor:
    """y = f(x) with the slope y / x."""
    return x * (y / x).detach()


def norm(x: Tensor, part: Any, offset: float = 0.0) -> Tensor:
    eps = getattr(part, "variance_epsilon", None) or part.eps
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt().detach() * (part.weight + offset)


def gated(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, act: Any, rules: str) -> Tensor:
    g = sloped(x @ gate.T, act(x @ gate.T))
    product = g.detach() * (x @ up.T) if rules == "cp" else share(g * (x @ up.T), 1 / 2)
    return product @ down.T


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def attention(part: Any, x: Tensor, cos: Tensor, sin: Tensor, cap: float | None, rules: str) -> Tensor:
    def heads(name: str) -> Tensor:
        return getattr(part, name)(x).view(len(x), -1, part.head_dim).transpose(0, 1)

    q, k, v = heads("q_proj"), heads("k_proj"), heads("v_proj")
    if hasattr(part, "q_norm"):
        q, k = norm(q, part.q_norm), norm(k, part.k_norm)
    q, k = rotated(q, cos, sin), rotated(k, cos, sin)
    q, k, v = (share(q, 1 / 4), share(k, 1 / 4), share(v, 1 / 2)) if rules == "attnlrp" else (q.detach(), k.detach(), v)
    k, v = (y.repeat_interleave(len(q) // len(y), 0) for y in (k, v))
    scores = q @ k.mT * part.scaling
    if cap is not None:
        scores = sloped(scores, cap * (scores / cap).tanh())
    a = (scores + torch.full_like(scores, -torch.inf).triu(1)).softmax(-1)
    return part.o_proj((a @ v).transpose(0, 1).reshape(len(x), -1))


def experts(part: Any, x: Tensor, act: Any, rules: str) -> Tensor:
    """Every token by itself: its chosen experts, weighted by the softmax of their router logits."""
    rows: list[Tensor] = []
    for token in x:
        chosen = (part.gate.weight @ token).topk(part.gate.top_k)
        r = chosen.values.softmax(-1)
        out = torch.zeros_like(token)
        for weight, e in zip(r, chosen.indices, strict=True):
            gate, up = part.experts.gate_up_proj[e].chunk(2)
            y = gated(token, gate, up, part.experts.down_proj[e], act, rules)
            out = out + (y * weight.detach() if rules == "cp" else share(y * weight, 1 / 2))
        rows.append(out)
    return torch.stack(rows)


def shared_expert(part: Any, x: Tensor, act: Any, rules: str) -> Tensor:
    own = part.shared_expert
    y = gated(x, own.gate_proj.weight, own.up_proj.weight, own.down_proj.weight, act, rules)
    gate = part.shared_expert_gate(x).sigmoid()
    return y * gate.detach() if rules == "cp" else share(y * gate, 1 / 2)


def feed_forward(part: Any, x: Tensor, act: Any, rules: str) -> Tensor:
    if not hasattr(part, "experts"):
        return gated(x, part.gate_proj.weight, part.up_proj.weight, part.down_proj.weight, act, rules)
    routed = experts(part, x, act, rules)
    return routed + shared_expert(part, x, act, rules) if hasattr(part, "shared_expert") else routed


def literal(model: Model, rules: str) -> tuple[Tensor, float]:
    module: Any = model.module
    config, trunk = module.config, module.model
    gemma = config.model_type == "gemma2"
    offset = 1.0 if gemma else 0.0
    act: Any = partial(fn.gelu, approximate="tanh") if gemma else fn.silu
    batch = model.batch(model.encode([TEXT]))
    e = model.embed(batch)[0].requires_grad_()
    cos, sin = (x[0].double() for x in trunk.rotary_emb(e[None], torch.arange(len(e))[None]))
    x = e * config.hidden_size**0.5 if gemma and not hasattr(trunk.embed_tokens, "embed_scale") else e
    for block in trunk.layers:
        cap = config.attn_logit_softcapping if gemma else None
        a = attention(block.self_attn, norm(x, block.input_layernorm, offset), cos, sin, cap, rules)
        x = x + (norm(a, block.post_attention_layernorm, offset) if gemma else a)
        before = block.pre_feedforward_layernorm if gemma else block.post_attention_layernorm
        f = feed_forward(block.mlp, norm(x, before, offset), act, rules)
        x = x + (norm(f, block.post_feedforward_layernorm, offset) if gemma else f)
    logits = module.lm_head(norm(x[-1], trunk.norm, offset))
    if gemma:
        logits = sloped(logits, config.final_logit_softcapping * (logits / config.final_logit_softcapping).tanh())
    value = logits.max()
    return (torch.autograd.grad(value, e)[0] * e).sum(-1).detach(), float(value.detach())


@pytest.mark.parametrize("rules", ["attnlrp", "cp"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "mixtral", "qwen2_moe", "qwen3_moe"])
def test_lrp_of_a_decoder_is_that_of_the_decoder_written_out(family: str, rules: str):
    model = language_model(family)
    ours, value, _ = explained(model, rules=rules, epsilon=0.0)
    slow, same = literal(model, rules)
    assert same == pytest.approx(value, rel=1e-5)  # transformers computes norms and routers in float32
    assert (ours - slow).abs().max() < 1e-5 * slow.abs().max()


@pytest.mark.parametrize("family", [f for f in CONFIGS if f not in ("qwen2_moe", "gpt_oss")])  # those two have biases
def test_cp_conserves_through_experts(family: str):
    scores, _, gap = explained(language_model(family), rules="cp", epsilon=0.0)
    assert abs(gap) < 1e-5 * scores.abs().max()


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v3"])
def test_experts_leave_a_decoder_causal_and_its_prefixes_shared(family: str):
    model: Any = language_model(family)
    assert model.causal
    assert model.shares_prefix(model.batch(model.encode([TEXT])))


@pytest.mark.parametrize("rules", ["attnlrp", "cp"])
@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_every_way_to_multiply_experts_has_the_same_relevance(family: str, rules: str):
    model: Any = language_model(family)
    model.module.float()
    scores = []
    for implementation in ("eager", "batched_mm", "grouped_mm"):
        model.module.set_experts_implementation(implementation)
        scores.append(explained(model, rules=rules, epsilon=1e-3)[0])
    assert torch.allclose(scores[0], scores[1], rtol=1e-3, atol=1e-4 * float(scores[0].abs().max()))
    assert torch.allclose(scores[0], scores[2], rtol=1e-3, atol=1e-4 * float(scores[0].abs().max()))
