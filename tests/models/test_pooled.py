"""The debate's classifiers: the formula, saving and loading, bad input."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import salience
from salience.core.passes import forward
from salience.errors import BadInput, BadModel, TruncatedText
from salience.models.identity import digest
from salience.models.pooled import Pooled, PooledConfig, PooledNetwork, word_tokenizer
from shapes import POOLED, TEXTS, build


@pytest.mark.parametrize("shape", POOLED)
def test_the_forward_pass_is_the_formula(shape: str):
    model = build(shape)
    text = TEXTS[1]
    batch = model.batch(model.encode([text, TEXTS[2]]))
    output = forward(model, batch, hidden=True, attention="read")
    n = len(model.encode([text])[0])
    h = output.hidden[1][0, :n]
    u = torch.tanh(h @ model.module.key.weight.T + model.module.key.bias) @ model.module.query.weight[0]
    a = u.softmax(0)
    torch.testing.assert_close(output.attention[0][0, 0, 0, :n], a)
    torch.testing.assert_close(
        output.logits[0], model.module.classifier.weight @ (a @ h) + model.module.classifier.bias
    )


def test_the_encoders_see_what_they_should():
    """Changing a later word changes earlier states only where the encoder reads backwards."""
    for shape, earlier, later in (
        ("pooled_bilstm", True, True),
        ("pooled_lstm", False, True),
        ("pooled_orthogonal_lstm", False, True),
        ("pooled_embedding", False, False),
        ("pooled_mlp", False, False),
    ):
        model = build(shape)
        batch = model.batch(model.encode(["a fine film"]))
        e = model.embed(batch)
        moved = e.clone()
        moved[0, 1] += 1
        before, after = (forward(model, batch, embeddings=x, hidden=True).hidden[1][0] for x in (e, moved))
        assert (not torch.equal(before[0], after[0])) == earlier
        assert (not torch.equal(before[2], after[2])) == later


def test_untrained_embeddings_differ_by_seed_and_have_the_standard_deviation_asked_for():
    tokenizer = word_tokenizer(["a fine film"], 10)
    config = PooledConfig(("no", "yes"), 3000, embedding=20, embedding_std=0.1)
    model = Pooled.new(config, tokenizer)
    other = model.fresh(model.labels, seed=1)
    for one in (model, other):
        assert one.words.weight[1:].std().item() == pytest.approx(0.1, rel=0.02)
        assert not one.words.weight[0].any()
    assert not torch.equal(model.words.weight, other.words.weight)


def test_the_digest_tells_vocabularies_apart():
    config = PooledConfig(("no", "yes"), 6)
    one, other = (Pooled.new(config, word_tokenizer([text], 6)) for text in ("a fine film", "a dull film"))
    assert digest(one) != digest(other)


@pytest.mark.parametrize("shape", POOLED)
def test_a_saved_model_gives_the_same_predictions(shape: str, tmp_path: Path):
    model = build(shape)
    model.save(tmp_path)
    loaded = salience.load(tmp_path)
    batch = loaded.batch(loaded.encode(TEXTS))
    assert torch.equal(forward(loaded, batch).logits, forward(model, batch).logits)
    assert loaded.labels == model.labels


def test_a_folder_that_lacks_its_weights(tmp_path: Path):
    build("pooled_mlp").save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(BadModel, match="does not hold a pooled model"):
        salience.load(tmp_path)


def test_bad_input():
    model = build("pooled_embedding")
    with pytest.raises(BadInput, match="text 0 is empty"):
        model.encode(["  "])
    with pytest.raises(BadInput, match="is a pair"):
        model.encode([("a", "b")])
    with pytest.raises(BadInput, match="Did you mean 'good'"):
        model.resolve("god")


def test_edits_reach_attention_and_states():
    model = build("pooled_bilstm")
    batch = model.batch(model.encode(TEXTS))
    uniform = forward(model, batch, edit_attention=lambda _, a: (a > 0) / (a > 0).sum(-1, keepdim=True)).logits
    h = forward(model, batch, hidden=True).hidden[1]
    mean = (h * batch.mask[..., None]).sum(1) / batch.mask.sum(1, keepdim=True)
    torch.testing.assert_close(uniform, mean @ model.module.classifier.weight.T + model.module.classifier.bias)


def test_a_long_text_is_truncated_with_a_warning_and_recorded():
    model = build("pooled_embedding")
    model.module.config = replace(model.config, longest=4)
    with pytest.warns(
        TruncatedText, match="longer than the 4 tokens that the model can read; characters 15 to 21 were"
    ):
        (results,) = salience.explain(model, " A fine film,\n so far ", "input_x_gradient")
    assert results.tokens == ("a", "fine", "film", ",")
    assert results.unseen == ((15, 21),)
    assert results.text[15:21] == "so far"


def test_the_average_of_one_paper_is_the_perceptron_of_another():
    """Jain & Wallace call a tanh projection of each word an average, Wiegreffe & Pinter an MLP."""
    mlp = build("pooled_mlp")
    average = Pooled(PooledNetwork(replace(mlp.config, encoder="average")), mlp.tokenizer)
    average.module.load_state_dict(mlp.module.state_dict())
    batch = mlp.batch(mlp.encode(TEXTS))
    assert torch.equal(forward(average, batch).logits, forward(mlp, batch).logits)


def test_every_state_of_an_orthogonal_lstm_is_orthogonal_to_the_mean_before():
    """Mohankumar et al. 2020, equation by equation, for one text."""
    model = build("pooled_orthogonal_lstm", dtype=torch.float64)
    batch = model.batch(model.encode(TEXTS))
    states = forward(model, batch, hidden=True).hidden[1]
    n, e = len(model.encode(TEXTS)[1]), model.embed(batch)[1]
    h = c = torch.zeros(1, model.config.hidden, dtype=torch.float64)
    before: list[torch.Tensor] = []
    model.module.requires_grad_(False)
    for t in range(n):
        h, c = model.module.cell(e[t : t + 1], (h, c))
        if before:
            m = torch.cat(before).sum(0, keepdim=True) / (t + 1)
            h = h - (h @ m.T) / (m @ m.T + 1e-6) * m
            assert abs(float(h @ m.T)) < 1e-4
        before.append(h)
        torch.testing.assert_close(states[1, t], h[0])


@pytest.mark.parametrize("scoring", ["tanh", "dot", "uniform"])
def test_the_attention_of_every_scoring(scoring: str):
    model = build("pooled_mlp")
    other = Pooled.new(replace(model.config, scoring=scoring), model.tokenizer, seed=3)
    batch = other.batch(other.encode(TEXTS[:2]))
    output = forward(other, batch, hidden=True, attention="read")
    for row, n in enumerate(batch.mask.sum(1).tolist()):
        h = output.hidden[1][row, :n]
        u = {
            "tanh": lambda h=h: torch.tanh(other.module.key(h)) @ other.module.query.weight[0],
            "dot": lambda h=h: h @ other.module.query.weight[0] / h.shape[1] ** 0.5,
            "uniform": lambda n=n: torch.zeros(n),
        }[scoring]()
        torch.testing.assert_close(output.attention[0][row, 0, 0, :n], u.softmax(0))
        assert bool((output.attention[0][row, 0, 0, n:] == 0).all())


def test_fixed_attention_is_given_from_outside(tmp_path: Path):
    model = build("pooled_mlp")
    fixed = Pooled.new(replace(model.config, scoring="fixed"), model.tokenizer, seed=1)
    fixed.save(tmp_path)
    loaded = salience.load(tmp_path)
    batch = loaded.batch(loaded.encode(TEXTS[:1]))
    with pytest.raises(BadInput, match="given from outside"):
        forward(loaded, batch)
    first = torch.zeros(batch.ids.shape)
    first[:, 0] = 1
    output = forward(loaded, batch, edit_attention=lambda *_: first[:, None, None], hidden=True)
    expected = loaded.module.classifier(output.hidden[1][:, 0])
    torch.testing.assert_close(output.logits, expected)
