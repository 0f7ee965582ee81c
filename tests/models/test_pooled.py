"""The debate's classifiers: the formula, saving and loading, bad input."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import salience
from salience.errors import BadInput, BadModel, TruncatedText
from salience.passes import forward
from shapes import POOLED, TEXTS, build


@pytest.mark.parametrize("shape", POOLED)
def test_the_forward_pass_is_the_formula(shape: str):
    model = build(shape)
    text = TEXTS[1]
    batch = model.batch(model.encode([text, TEXTS[2]]))
    output = forward(model, batch, hidden=True, attention="read")
    n = len(model.encode([text])[0])
    h = output.hidden[1][0, :n]
    u = torch.tanh(h @ model.key.weight.T + model.key.bias) @ model.query.weight[0]
    a = u.softmax(0)
    torch.testing.assert_close(output.attention[0][0, 0, 0, :n], a)
    torch.testing.assert_close(output.logits[0], model.classifier.weight @ (a @ h) + model.classifier.bias)


def test_the_encoders_see_what_they_should():
    """Changing a later word changes earlier states only where the encoder reads backwards."""
    for shape, earlier, later in (
        ("pooled_bilstm", True, True),
        ("pooled_lstm", False, True),
        ("pooled_average", False, False),
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


@pytest.mark.parametrize("shape", POOLED)
def test_saved_and_loaded_it_says_the_same(shape: str, tmp_path: Path):
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
    model = build("pooled_average")
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
    torch.testing.assert_close(uniform, mean @ model.classifier.weight.T + model.classifier.bias)


def test_a_long_text_is_cut_aloud_and_recorded():
    model = build("pooled_average")
    model.config = replace(model.config, longest=4)
    with pytest.warns(
        TruncatedText, match="longer than the 4 tokens that the model can read; characters 15 to 21 were"
    ):
        (found,) = salience.explain(model, " A fine film,\n so far ", "input_x_gradient")
    assert found.tokens == ("a", "fine", "film", ",")
    assert found.unseen == ((15, 21),)
    assert found.text[15:21] == "so far"
