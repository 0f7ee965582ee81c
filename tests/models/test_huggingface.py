"""The adapter against plain transformers calls: same logits, same tokens, nothing left behind."""

import json
import unicodedata
import warnings
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BartConfig,
    BertConfig,
    BertForMaskedLM,
    CanineTokenizer,
    MptConfig,
)

import salience
from salience import explain
from salience.core.passes import Needs, differentiate, forward, resolve
from salience.core.target import Target
from salience.core.types import Site, Targets, Weights
from salience.errors import BadInput, BadModel, TruncatedText, UnsupportedModel
from salience.models.huggingface import tokens
from shapes import CLASSIFIERS, LANGUAGE_MODELS, TEXTS, build, tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved classifier, as save_pretrained leaves it."""
    model = build("bert")
    model.module.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    return tmp_path


def plain_logits(model: salience.core.types.Model, text: str) -> torch.Tensor:
    model.module.eval()
    with torch.no_grad():
        logits = model.module(**{k: v for k, v in model.tokenizer(text, return_tensors="pt").items()
                                 if k in ("input_ids", "attention_mask")}).logits  # fmt: skip
    return logits[:, -1] if model.generates else logits


@pytest.mark.parametrize("shape", [*CLASSIFIERS, *LANGUAGE_MODELS])
@pytest.mark.parametrize("attention", [None, "read", "differentiable"])
def test_logits_in_a_padded_batch_equal_plain_calls_one_by_one(shape: str, attention: Weights | None):
    model = build(shape)
    ours = forward(model, model.batch(model.encode(TEXTS)), attention=attention, hidden=True).logits
    for row, text in zip(ours, TEXTS, strict=True):
        torch.testing.assert_close(row[None], plain_logits(model, text), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("shape", CLASSIFIERS)
def test_replaced_embeddings_reach_the_model_exactly(shape: str):
    model = build(shape)
    batch = model.batch(model.encode(TEXTS))
    same = forward(model, batch, embeddings=model.embed(batch)).logits
    assert torch.equal(same, forward(model, batch).logits)
    other = forward(model, batch, embeddings=model.embed(batch) + torch.randn(model.words.embedding_dim)).logits
    assert not torch.allclose(same, other)


@pytest.mark.parametrize("shape", CLASSIFIERS)
def test_weights_read_beside_the_output_are_those_it_is_made_of(shape: str):
    model = build(shape, dtype=torch.float64)
    batch = model.batch(model.encode(TEXTS))
    needs = Needs.GRADIENT | Needs.ATTENTION
    target = Targets(torch.zeros(len(batch), dtype=torch.long), None, "logit", model.link)
    beside, written = (differentiate(model, batch, target, needs=n) for n in (needs, needs | Needs.ATTENTION_GRADIENT))
    assert beside.gradient is not None
    assert written.gradient is not None
    assert (beside.gradient - written.gradient).abs().max() < 1e-5 * written.gradient.abs().max()
    for a, b in zip(beside.output.attention, written.output.attention, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", CLASSIFIERS)
def test_attention_rows_sum_to_one_and_never_look_at_padding(shape: str):
    model = build(shape)
    batch = model.batch(model.encode(TEXTS))
    for weights in forward(model, batch, attention="read").attention:
        real = weights.permute(0, 2, 1, 3)[batch.mask]  # rows of real queries: n, heads, keys
        torch.testing.assert_close(real.sum(-1), torch.ones_like(real[..., 0]))
        assert (weights.permute(0, 2, 3, 1)[batch.mask[:, :, None] & ~batch.mask[:, None, :]] == 0).all()


@pytest.mark.parametrize("shape", [s for s in CLASSIFIERS if s != "deberta_v2"])
def test_an_edit_reaches_every_layer_and_uniform_attention_changes_the_prediction(shape: str):
    model = build(shape)
    batch = model.batch(model.encode(TEXTS))
    layers: list[int] = []

    def uniform(site: Site, weights: torch.Tensor) -> torch.Tensor:
        layers.append(site.layer)
        row = batch.mask[:, None, None].to(weights) / batch.mask.sum(1)[:, None, None, None]
        return row.expand_as(weights)

    edited = forward(model, batch, edit_attention=uniform).logits
    assert layers == list(range(1, model.layers + 1))
    assert not torch.allclose(edited, forward(model, batch).logits, atol=1e-4)


def test_an_edit_that_would_never_fire_is_refused():
    model = build("deberta_v2")
    with pytest.raises(UnsupportedModel, match="cannot be edited"):
        forward(model, model.batch(model.encode(TEXTS)), edit_attention=lambda _, w: w)


@pytest.mark.parametrize("shape", CLASSIFIERS)
def test_hidden_states_can_be_replaced(shape: str):
    model = build(shape)
    batch = model.batch(model.encode(TEXTS))
    seen = forward(model, batch, hidden=True)
    again = forward(
        model,
        batch,
        edit_hidden=lambda at, h: seen.hidden[2] if at.layer == 2 else torch.zeros_like(h) if at.layer < 2 else h,
    )
    torch.testing.assert_close(again.logits, seen.logits)


@pytest.mark.parametrize("shape", ["gpt2", "llama", "gpt2_lm"])
def test_decoders_are_known_to_be_causal_also_in_training_mode(shape: str):
    assert build(shape).causal
    assert not build("bert").causal


def test_the_gradient_is_the_one_autograd_gives_for_inputs_embeds():
    model = build("bert")
    text = TEXTS[0]
    batch = model.batch(model.encode([text]))
    module = model.module.eval()
    e = module.get_input_embeddings()(batch.ids).detach().requires_grad_()
    logits = module(inputs_embeds=e, attention_mask=batch.mask.long()).logits
    (expected,) = torch.autograd.grad(logits[0, 1], e)
    target = resolve(model, [Target(1)], logits.detach())
    torch.testing.assert_close(differentiate(model, batch, target).gradient, expected)


def test_parameters_get_no_gradients():
    model = build("bert")
    batch = model.batch(model.encode(TEXTS))
    differentiate(model, batch, resolve(model, [Target(1)], torch.zeros(len(TEXTS), 3)))
    assert all(p.grad is None and p.requires_grad for p in model.module.parameters())


# Loading


def test_a_saved_folder_gives_the_same_predictions(folder: Path):
    loaded = salience.load(folder)
    original = build("bert")
    batch = loaded.batch(loaded.encode(TEXTS))
    torch.testing.assert_close(forward(loaded, batch).logits, forward(original, batch).logits)
    assert not loaded.module.training


def test_a_folder_without_a_tokenizer(folder: Path):
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(BadModel, match=r"no tokenizer.*save_pretrained"):
        salience.load(folder)


def test_pickled_weights_are_refused_unless_allowed(folder: Path):
    (folder / "model.safetensors").unlink()
    torch.save(build("bert").module.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(BadModel, match="allow_pickle=True"):
        salience.load(folder)
    loaded = salience.load(folder, allow_pickle=True)
    batch = loaded.batch(loaded.encode(TEXTS))
    torch.testing.assert_close(forward(loaded, batch).logits, forward(build("bert"), batch).logits)


def test_code_in_a_checkpoint_is_not_run_unless_allowed(folder: Path):
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "made_up",
        "auto_map": {"AutoConfig": "own.Own", "AutoModelForSequenceClassification": "own.M"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(folder / 'ran')!r}, 'w').close()\n")
    with pytest.raises(BadModel, match="trust_remote_code=True"):
        salience.load(folder)
    assert not (folder / "ran").exists()


def test_a_head_that_would_be_random_is_an_error(folder: Path):
    BertForMaskedLM(BertConfig.from_pretrained(folder)).save_pretrained(folder)
    with pytest.raises(BadModel, match="no classification or causal language model head"):
        salience.load(folder)
    with pytest.raises(BadModel, match="classifier"):
        salience.load(folder, task="classify")


def test_a_name_that_does_not_exist():
    with pytest.raises(BadModel, match="no folder 'no/such-model'"):
        salience.load("no/such-model")


def test_a_broken_folder(tmp_path: Path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BadModel):
        salience.load(tmp_path)


def test_a_slow_tokenizer_is_refused():
    with pytest.raises(BadModel, match="slow tokenizer"):
        salience.explain(salience.wrap(build("bert").module, CanineTokenizer()), "A film.")


# Texts


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
def test_empty_texts_are_refused(text: str):
    with pytest.raises(BadInput, match="text 1 is empty"):
        build("bert").encode(["fine", text])


@pytest.mark.parametrize("shape", ["bert", "gpt2", "xlm_roberta", "pooled_bilstm"])
@pytest.mark.parametrize(
    "text", ["x", "🙂", "ﷺ שלום עולם", "e\u0301\u0302te", "<b>&amp;</b> [CLS] \x1b[31mred", "我喜欢"]
)
def test_odd_texts_are_explained_with_right_offsets(shape: str, text: str):
    (results,) = salience.explain(build(shape), text, "input_x_gradient")
    assert results.text == text
    covered = {i for (a, b), s in zip(results.offsets, results.special, strict=True) if not s for i in range(a, b)}
    unseen = [c for i, c in enumerate(text) if i not in covered and not c.isspace()]
    # BERT's normaliser drops accents and control characters before tokens are cut.
    assert all(unicodedata.category(c) in ("Mn", "Cc") for c in unseen), f"no token stands for {unseen}"
    assert all(results.text[w.start : w.end] == w.text for w in results.words())


def test_only_unknown_tokens():
    (results,) = salience.explain(build("bert"), "Ж Ж", "input_x_gradient")
    assert [t for t, s in zip(results.tokens, results.special, strict=True) if not s] == ["[UNK]", "[UNK]"]


LONG = "a fine film " * 60


def test_a_long_text_is_truncated_with_a_warning_and_recorded():
    message = r"^text 0 is longer than the 64 tokens that the model can read; characters 247 to 719 were not seen$"
    with pytest.warns(TruncatedText, match=message):
        (results,) = salience.explain(build("bert"), LONG, "input_x_gradient")
    assert len(results.tokens) == 64
    assert results.unseen == ((247, 719),)
    assert max(end for _, end in results.offsets) == 246  # 62 words of text: 20 times three, and two
    assert results.to_dict()["unseen"] == [[247, 719]]
    assert salience.explanations.explanation.Explanation.from_dict(results.to_dict()).unseen == results.unseen


def test_a_text_that_fits_is_not_truncated():
    (results,) = salience.explain(build("bert"), "\x00 A fine film \x00", "input_x_gradient")
    assert results.unseen == ()
    assert "unseen" not in results.to_dict()


@pytest.mark.parametrize("shape", ["bert", "roberta", "gpt2", "xlm_roberta"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("pair", [(LONG, LONG), (LONG, "a film"), ("a film", LONG)])
def test_both_truncated_texts_of_a_pair_are_reported(shape: str, side: str, pair: tuple[str, str], monkeypatch):
    model = build(shape)
    monkeypatch.setattr(model.tokenizer, "truncation_side", side)
    with pytest.warns(TruncatedText, match=r"characters \d+ to \d+( and \d+ to \d+)? were not seen"):
        (results,) = model.encode([pair])
    spans = [(0, len(pair[0])), (results.pair_at, len(results.text))]
    assert [any(a <= x and y <= b for x, y in results.unseen) for a, b in spans] == [part == LONG for part in pair]
    covered = {i for a, b in results.offsets for i in range(a, b)}
    unread = {i for a, b in results.unseen for i in range(a, b)}
    assert not covered & unread
    assert all(i in covered | unread or c.isspace() for i, c in enumerate(results.text))
    assert all(not results.text[i].isspace() for a, b in results.unseen for i in (a, b - 1))


def test_a_tokenizer_that_cuts_on_the_left_leaves_the_beginning_unseen(monkeypatch):
    model = build("bert")
    monkeypatch.setattr(model.tokenizer, "truncation_side", "left")
    with pytest.warns(TruncatedText, match="characters 0 to 469 were not seen"):
        (results,) = model.encode([LONG.strip()])
    assert results.unseen == ((0, 469),)
    assert min(a for a, b in results.offsets if b) == 470


def test_roberta_counts_its_positions_from_its_padding_index():
    with pytest.warns(TruncatedText, match="longer than the 62 tokens"):
        (results,) = salience.explain(build("roberta"), "film " * 100, "input_x_gradient")
    assert len(results.tokens) == 62
    assert results.unseen == ((1 + max(end for _, end in results.offsets), 499),)


def test_pairs_have_offsets_in_the_joined_text():
    model = build("bert")
    (results,) = salience.explain(model, [("A fine film.", "It is good")], "input_x_gradient")
    assert results.text == "A fine film.\nIt is good"
    assert results.text[results.pair_at :] == "It is good"
    assert "".join(w.text for w in results.words()) == "Afinefilm.Itisgood"
    plain = model.module.eval()(**model.tokenizer("A fine film.", "It is good", return_tensors="pt")).logits
    torch.testing.assert_close(torch.tensor(list(results.probabilities.values())), plain.softmax(-1)[0].detach())


def test_nan_logits_are_an_error():
    model = build("bert")
    with torch.no_grad():
        model.module.classifier.bias[0] = torch.nan
    with pytest.raises(BadModel, match="NaN or infinite"):
        salience.explain(model, "A fine film.", "input_x_gradient")


@pytest.mark.parametrize("method", ["input_x_gradient", "integrated_gradients", "occlusion"])
def test_a_model_in_half_precision_is_explained(method: str):
    model = build("bert")
    (exact,) = salience.explain(model, "A fine film.", method, target=1)
    half = salience.wrap(model.module.bfloat16(), model.tokenizer)
    (results,) = salience.explain(half, "A fine film.", method, target=1)
    assert results.scores == pytest.approx(exact.scores, abs=0.1 * max(map(abs, exact.scores)))


def test_no_warning_escapes_on_ordinary_use():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        salience.explain(build("gpt2"), list(TEXTS), ["gradient", "input_x_gradient"])


# Labels


def test_labels_by_name_number_and_case():
    model = build("bert")
    assert [model.resolve(x) for x in ("LABEL_1", "label_1", 1, "1")] == [1, 1, 1, 1]
    with pytest.raises(BadInput, match="Did you mean 'LABEL_1'"):
        model.resolve("LABL_1")
    with pytest.raises(BadInput, match="no label number 7"):
        model.resolve(7)


def test_a_next_token_by_its_text():
    model = build("gpt2_lm")
    (results,) = salience.explain(model, "It is", "input_x_gradient", target="a", against="the")
    assert results.target.label == " a"
    assert results.target.against == " the"
    with pytest.raises(BadInput, match="tokens for this tokenizer"):
        model.resolve("splendidly awful")


def test_auto_model_folder_round_trip_keeps_the_users_model(folder: Path):
    module = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="sdpa")
    model = salience.wrap(module, tokenizer("wordpiece"))
    forward(model, model.batch(model.encode(TEXTS)), attention="read")
    assert module.config._attn_implementation == "sdpa"


# What the adapter sees, against what transformers says itself


@pytest.mark.parametrize("shape", CLASSIFIERS)
def test_attention_and_hidden_states_are_transformers_own(shape: str):
    model = build(shape)
    ours = forward(model, model.batch(model.encode(TEXTS)), attention="read", hidden=True)
    plain = type(model.module)._from_config(model.module.config, attn_implementation="eager").eval()
    plain.load_state_dict(model.module.state_dict())
    for row, encoded in enumerate(model.encode(TEXTS)):
        n = len(encoded)
        with torch.no_grad():
            theirs = plain(input_ids=torch.tensor([encoded.ids]), output_attentions=True, output_hidden_states=True)
        assert len(theirs.attentions) == model.layers
        for a, b in zip(ours.attention, theirs.attentions, strict=True):
            torch.testing.assert_close(a[row, :, :n, :n], b[0], rtol=1e-4, atol=2e-5)
        for layer in range(1, model.layers):  # some models norm the last state before they return it
            h = theirs.hidden_states[layer][0]
            torch.testing.assert_close(ours.hidden[layer][row, :n], h, rtol=1e-4, atol=5e-5)


@pytest.mark.parametrize("method", ["input_x_gradient", "lrp", "value_zeroing"])
def test_a_compiled_model_is_explained_like_the_model_inside(method: str):
    model = build("llama_lm")
    compiled = salience.wrap(torch.compile(model.module, backend="eager"), model.tokenizer)
    assert compiled.module is model.module
    assert explain(compiled, TEXTS[:1], method)[0].scores == explain(model, TEXTS[:1], method)[0].scores


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_gradients_of_quantized_layers_are_refused():
    model = build("bert")
    module = torch.ao.quantization.quantize_dynamic(model.module.eval(), {torch.nn.Linear}, dtype=torch.qint8)
    quantized = salience.wrap(module, model.tokenizer)
    assert any(explain(quantized, TEXTS[:1], "occlusion")[0].scores)
    for method in ("gradient", "lrp", "integrated_gradients"):
        with pytest.raises(UnsupportedModel, match=r"quantized layers \(Linear\).*Load it unquantized"):
            explain(quantized, TEXTS[:1], method)


def test_a_model_with_adapters_is_explained_with_them():
    peft = pytest.importorskip("peft")
    model = build("llama_lm")
    plain = explain(model, TEXTS[:1], "value_zeroing")[0].scores
    torch.manual_seed(1)
    adapted = peft.get_peft_model(model.module, peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False))
    result = explain(salience.wrap(adapted, model.tokenizer), TEXTS[:1], "value_zeroing")[0].scores
    ids = torch.tensor([model.encode(TEXTS[:1])[0].ids])
    batch = model.batch(model.encode(TEXTS[:1]))
    with torch.no_grad():
        torch.testing.assert_close(model(batch).logits, adapted.eval()(input_ids=ids).logits[:, -1])
    assert result != pytest.approx(plain, abs=1e-4)


def test_learned_vectors_before_the_text_are_refused():
    peft = pytest.importorskip("peft")
    model = build("gpt2_lm")
    prompted = peft.get_peft_model(model.module, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    with pytest.raises(UnsupportedModel, match="puts learned vectors before the text"):
        salience.wrap(prompted, model.tokenizer)


def test_a_decoder_taken_alone_has_its_own_layers():
    sizes = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48}
    config = BartConfig(
        vocab_size=len(tokenizer("bare")), **sizes, pad_token_id=1, bos_token_id=0, eos_token_id=0, is_decoder=True
    )
    model = salience.wrap(AutoModelForCausalLM.from_config(config), tokenizer("bare"))
    assert model.layers == 2
    for method in ("attention", "value_zeroing"):
        assert any(explain(model, TEXTS[:1], method)[0].scores)


def test_the_length_of_mpt_is_a_limit():
    config = MptConfig(d_model=32, n_layers=1, n_heads=4, max_seq_len=16, vocab_size=len(tokenizer("bare")))
    model = salience.wrap(AutoModelForCausalLM.from_config(config), tokenizer("bare"))
    with pytest.warns(TruncatedText):
        (encoded,) = model.encode(["a fine film " * 20])
    assert len(encoded.ids) == 16


@pytest.mark.parametrize("shape", LANGUAGE_MODELS)
def test_the_beginning_of_a_prompt_that_is_too_long_is_cut_off(shape: str):
    """Otherwise another next token would be explained."""
    model, side = build(shape), "right"
    text = " ".join(f"film {i}" for i in range(60))
    with pytest.warns(TruncatedText, match=r"characters 0 to \d+ were not seen"):
        (encoded,) = model.encode([text])
    assert len(encoded.ids) == 64
    assert max(end for _, end in encoded.offsets) == len(text)
    assert model.tokenizer.truncation_side == side
    assert list(encoded.ids) == model.tokenizer(text).input_ids[-64:]


@pytest.mark.parametrize("shape", ["bert", "roberta", "xlm_roberta", "gpt2", "gpt2_lm"])
def test_of_a_very_long_text_only_the_end_that_is_kept_is_tokenised(shape: str, monkeypatch):
    model, asked = build(shape), []
    text = " ".join(f"Film{i}, naïve!" for i in range(3000))
    side = "left" if shape == "gpt2_lm" else "right"
    monkeypatch.setattr(tokens, "LONG", 10**6)
    with pytest.warns(TruncatedText) as whole:
        (expected,) = model.encode([text])
    monkeypatch.undo()
    plain = tokens._encoding
    monkeypatch.setattr(
        tokens, "_encoding", lambda tok, texts, *a, **b: asked.append(len(texts[0])) or plain(tok, texts, *a, **b)
    )
    with pytest.warns(TruncatedText) as cut:
        (encoded,) = model.encode([text])
    assert encoded == expected
    assert [str(w.message) for w in cut] == [str(w.message) for w in whole]
    assert max(asked) < len(text) / 2
    assert (min(a for a, b in encoded.offsets if b) > 0) == (side == "left")


def test_a_language_model_has_no_pairs():
    with pytest.raises(BadInput, match="text 1 is a pair, and tiny-gpt2_lm continues one text; join the two"):
        explain(build("gpt2_lm"), ["The capital", ("The capital of", "France")], "input_x_gradient")
