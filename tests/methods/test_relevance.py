"""Output relevance against a slow, literal version of its definition, and the exact sum that it decomposes."""

from functools import cache

import pytest
import torch

from salience.core.passes import forward, resolve
from salience.core.target import Target
from salience.core.types import Model
from salience.errors import BadInput, UnsupportedModel
from salience.explanations.explainer import explain
from salience.generation.matrices import Forced, probed
from salience.methods import attention_x_relevance, output_relevance
from salience.models.seq2seq import Seq2Seq, Seq2SeqConfig, symbol_tokenizer
from shapes import CLASSIFIERS, POOLED, TEXTS, build


@cache
def model_of(shape: str) -> Model:
    return build(shape, dtype=torch.float64)


@pytest.mark.parametrize("shape", POOLED)
@pytest.mark.parametrize("target", [Target(), Target("so-so"), Target("good", against="bad")])
def test_pooled_outputs_are_sums_of_attention_times_relevance(shape: str, target: Target):
    model = model_of(shape)
    batch = model.batch(model.encode(TEXTS))
    output = forward(model, batch, hidden=True, attention="read")
    chosen = resolve(model, [target], output.logits)
    relevance, product = (m(model, batch, chosen) for m in (output_relevance, attention_x_relevance))
    W, b = model.module.classifier.weight.detach(), model.module.classifier.bias.detach()
    for row, n in enumerate(batch.mask.sum(1).tolist()):
        c = int(chosen.labels[row])
        w, bias = W[c], b[c]
        if chosen.against is not None:
            w, bias = w - W[int(chosen.against[row])], bias - b[int(chosen.against[row])]
        total = float(bias)
        for t in range(n):
            r = float(sum(w[k] * output.hidden[1][row, t, k] for k in range(len(w))))
            a = float(output.attention[0][row, 0, 0, t])
            assert float(relevance.scores[row, t]) == pytest.approx(r, abs=1e-9)
            assert float(product.scores[row, t]) == pytest.approx(a * r, abs=1e-9)
            total += a * r
        assert total == pytest.approx(float(chosen(output.logits)[row]), abs=1e-9)
    for result in (relevance, product):
        assert result.gaps["decomposition"].abs().max() <= 1e-6


def test_the_gap_tells_that_probabilities_do_not_add_up():
    model = model_of("pooled_bilstm")
    for method in ("output_relevance", "attention_x_relevance"):
        [logit] = explain(model, TEXTS[1], method)
        [probability] = explain(model, TEXTS[1], method, target=Target(kind="probability"))
        assert abs(logit.gaps["decomposition"]) < 1e-6 < 1e-3 < abs(probability.gaps["decomposition"])


@pytest.mark.parametrize("shape", CLASSIFIERS)
def test_the_token_that_a_transformer_reads_has_its_output(shape: str):
    model = model_of(shape)
    batch = model.batch(model.encode(TEXTS))
    target = resolve(model, [Target()], forward(model, batch).logits)
    result = output_relevance(model, batch, target)
    assert model.reads in ("first", "last")
    assert result.gaps["decomposition"].abs().max() <= 1e-6 * float(result.scores.abs().max())


@pytest.mark.parametrize("layer", [1, 2, 3, -1])
def test_the_head_of_a_transformer_is_applied_to_every_token(layer: int):
    model = model_of("bert")
    batch = model.batch(model.encode(TEXTS[:1]))
    output = forward(model, batch, hidden=True)
    target = resolve(model, [Target("LABEL_1")], output.logits)
    result = output_relevance(model, batch, target, layer=layer)
    bert = model.module
    for t, h in enumerate(output.hidden[layer][0]):
        pooled = torch.tanh(bert.bert.pooler.dense.weight @ h + bert.bert.pooler.dense.bias)
        r = (bert.classifier.weight @ pooled + bert.classifier.bias)[1]
        assert float(result.scores[0, t]) == pytest.approx(float(r.detach()), abs=1e-9)
    assert result.settings == {"layer": 3 if layer == -1 else layer}
    assert ("decomposition" in result.gaps) == (layer in (3, -1))


@pytest.mark.parametrize("heads", [1, 2])
def test_the_decoder_of_an_encoder_decoder_keeps_its_state(heads: int):
    """r_s is log p when the context is W_e h_s beside the same state of the decoder, up to what all tokens share."""
    tokenizer = symbol_tokenizer(map(str, range(10)))
    config = Seq2SeqConfig(tokenizer.get_vocab_size(), hidden=6, layers=1, heads=heads)
    model = Seq2Seq.new(config, tokenizer)
    with torch.no_grad():
        for p in model.module.to(torch.float64).parameters():
            p.mul_(4)  # so that the state of the decoder depends on the whole source
    texts = ["1 2 3 4", "7 8"]
    batch, said = model.batch(model.encode(texts)), [5, 6, 7]
    target = resolve(model, [Target(said[0], kind="log_probability")], forward(model, batch).logits)
    result = output_relevance(model, batch, target)
    assert result.gaps["decomposition"].shape == (2,)
    for row, text in enumerate(texts):
        step = Forced.of(model, model.batch(model.encode([text])), model.answers([said]))
        expected = probed(step)[0]
        own = result.scores[row, : len(expected)]
        assert (own - expected).std() < 1e-9 < 1e-2 < own.std()
        assert not result.scores[row, len(expected) :].any()


def test_models_that_cannot_start_from_a_layer_run_the_layers_in_vain(monkeypatch: pytest.MonkeyPatch):
    model = build("bert", dtype=torch.float64)
    [expected] = explain(model, TEXTS[1], "output_relevance")
    monkeypatch.setattr(type(model), "can_start", lambda _: False)
    [result] = explain(model, TEXTS[1], "output_relevance")
    assert result.scores == pytest.approx(expected.scores, abs=1e-6)


def test_all_layers_in_one_call():
    results = explain(model_of("bert"), "A fine film.", "output_relevance", layer="all")
    assert [e.settings["layer"] for e in results] == [1, 2, 3]


def test_what_is_refused():
    with pytest.raises(UnsupportedModel, match=r"attention_x_relevance .* tiny-bert attends from every token"):
        explain(model_of("bert"), "A fine film.", "attention_x_relevance")
    with pytest.raises(BadInput, match="there is no layer 2: tiny-bilstm has layers 1 to 1"):
        explain(model_of("pooled_bilstm"), "A fine film.", "output_relevance", layer=2)
