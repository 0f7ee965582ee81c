"""Architectures with habits of their own: trial passes detect what would be silently wrong, and it is refused."""

from threading import Thread

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BartConfig,
    BartForSequenceClassification,
    CTRLConfig,
    CTRLForSequenceClassification,
    FalconConfig,
    FalconForSequenceClassification,
    FNetConfig,
    FNetForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    LongformerConfig,
    LongformerForSequenceClassification,
    MixtralConfig,
    PretrainedConfig,
    Qwen3MoeConfig,
    XLMConfig,
    XLMForSequenceClassification,
)

import salience
from salience.core.passes import forward
from salience.errors import UnsupportedModel
from shapes import CLASSIFIERS, LANGUAGE_MODELS, TEXTS, build, tokenizer

TOKENIZER = tokenizer("bpe")
SIZES = {"vocab_size": len(TOKENIZER), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def wrapped(module: torch.nn.Module) -> salience.core.types.Model:
    return salience.wrap(module, TOKENIZER, name=type(module).__name__)


def test_encoder_decoders_read_their_text_twice():
    sizes = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    with pytest.raises(UnsupportedModel, match="encoder-decoder"):
        wrapped(BartForSequenceClassification(BartConfig(vocab_size=len(TOKENIZER), d_model=16, **sizes)))


def test_a_model_that_reads_padding_gets_no_padded_batch():
    model = wrapped(FNetForSequenceClassification(FNetConfig(**{**SIZES, "intermediate_size": 16})))
    with pytest.raises(UnsupportedModel, match="reads padding"):
        salience.explain(model, list(TEXTS), "input_x_gradient")
    assert salience.explain(model, TEXTS[0], "input_x_gradient")


def test_a_model_that_changes_its_output_when_attention_is_requested():
    model = wrapped(FalconForSequenceClassification(FalconConfig(**SIZES, alibi=False, pad_token_id=1)))
    assert salience.explain(model, list(TEXTS), "input_x_gradient")
    with pytest.raises(UnsupportedModel, match="computes something else"):
        salience.explain(model, list(TEXTS), "attention")


EXPERTS = {"intermediate_size": 16, "num_key_value_heads": 4, "num_experts_per_tok": 2, "pad_token_id": 1}


@pytest.mark.parametrize(
    "config",
    [
        MixtralConfig(**SIZES, **EXPERTS, num_local_experts=4),
        Qwen3MoeConfig(**SIZES, **EXPERTS, num_experts=4, moe_intermediate_size=16, head_dim=8),
    ],
    ids=lambda c: c.model_type,
)
def test_experts_do_not_look_ahead_though_their_sums_round_otherwise(config: PretrainedConfig):
    for seed in range(4):
        torch.manual_seed(seed)
        model = wrapped(AutoModelForCausalLM.from_config(config))
        assert model.causal
        assert model.shares_prefix(model_batch(model))


def test_padding_is_noticed_though_texts_hardly_change_the_logits():
    torch.manual_seed(0)
    module = FNetForSequenceClassification(FNetConfig(**{**SIZES, "intermediate_size": 16}))
    with torch.no_grad():
        module.classifier.bias.fill_(1e4)
    with pytest.raises(UnsupportedModel, match="reads padding"):
        salience.explain(wrapped(module.double()), list(TEXTS), "input_x_gradient")


def test_lists_of_modules_that_are_not_blocks():
    config = XLMConfig(
        vocab_size=len(TOKENIZER), n_words=len(TOKENIZER), emb_dim=32, n_layers=2, n_heads=4, pad_index=1
    )
    with pytest.raises(UnsupportedModel, match="cannot be identified"):
        forward(model := wrapped(XLMForSequenceClassification(config)), model_batch(model), hidden=True)


def test_a_model_that_pads_inside():
    config = LongformerConfig(**SIZES, intermediate_size=32, attention_window=8, pad_token_id=1)
    with pytest.raises(UnsupportedModel, match="not once for the tokens of the text"):
        salience.explain(wrapped(LongformerForSequenceClassification(config)), TEXTS[0], "input_x_gradient")


def test_a_model_that_works_in_place_does_not_change_what_it_is_given():
    config = CTRLConfig(vocab_size=len(TOKENIZER), n_embd=32, n_layer=2, n_head=4, dff=32, pad_token_id=1)
    model = wrapped(CTRLForSequenceClassification(config))
    batch = model_batch(model)
    e = model.embed(batch)
    before = e.clone()
    forward(model, batch, embeddings=e)
    assert torch.equal(e, before)
    assert salience.explain(model, TEXTS[0], "input_x_gradient")


def model_batch(model: salience.core.types.Model) -> salience.core.types.Batch:
    return model.batch(model.encode(TEXTS))


@pytest.mark.parametrize("shape", [*CLASSIFIERS, *LANGUAGE_MODELS])
def test_the_readout_is_where_the_logits_depend_on_the_last_layer(shape: str):
    model = build(shape)
    batch = model_batch(model)
    with salience.core.passes.frozen(model.module), torch.enable_grad():
        e = model.embed(batch).requires_grad_()
        output = model(batch, embeddings=e, hidden=True)
        (slope,) = torch.autograd.grad(output.logits.square().sum(), output.hidden[-1])
    assert torch.equal(slope.abs().amax(-1) > 0, model.read_from(batch) > 0)


def test_a_decoder_whose_texts_end_with_its_padding_token_is_read_before_it():
    config = LlamaConfig(**SIZES, intermediate_size=32, pad_token_id=2)  # </s>, which this tokenizer appends
    model = wrapped(LlamaForSequenceClassification(config))
    batch = model_batch(model)
    assert (model.read_from(batch).argmax(1) == batch.mask.sum(1) - 2).all()


def test_a_padding_token_outside_the_vocabulary_is_none():
    config = LlamaConfig(**SIZES, intermediate_size=32)
    config.pad_token_id = -1
    model = wrapped(LlamaForSequenceClassification(config))
    assert len(salience.explain(model, list(TEXTS), "input_x_gradient")) == len(TEXTS)


def test_labels_of_a_language_model_are_all_different():
    for shape in LANGUAGE_MODELS:
        model = build(shape)
        names = [model.label(i) for i in range(len(model.labels))]
        assert len(set(names)) == len(names)


def test_a_decimal_target_of_a_language_model_is_a_token_not_a_number():
    model = build("gpt2_lm")
    assert model.label(model.resolve("3")) == "3"
    assert model.resolve(3) == 3


def test_threads_take_turns():
    model = build("bert")
    expected = salience.explain(model, TEXTS[1], ["input_x_gradient", "attention"])
    results: list[list[salience.Explanation]] = []

    def work() -> None:
        results.extend(salience.explain(model, TEXTS[1], ["input_x_gradient", "attention"]) for _ in range(5))

    threads = [Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 15
    assert all(row == expected for row in results)
    assert model.module.config._attn_implementation == "sdpa"
    assert model.module.training
