import pytest
import torch

from salience.core.erasure import deleted, replaced, replacement, usual
from salience.core.passes import forward
from salience.errors import BadInput
from shapes import TEXTS, build


def test_the_usual_replacement_is_the_mask_token_or_the_mean_word():
    assert usual(build("bert")) == "mask"
    assert usual(build("gpt2")) == "mean"


def test_replacements_are_the_vectors_they_are_named_after():
    model = build("bert")
    weight = model.words.weight.detach()
    assert torch.equal(replacement(model, "zero"), torch.zeros(32))
    assert torch.equal(replacement(model, "mask"), weight[model.tokenizer.mask_token_id])
    torch.testing.assert_close(replacement(model, "mean"), weight.mean(0))


def test_a_token_that_the_model_does_not_have():
    with pytest.raises(BadInput, match=r"has no mask token\. It has: zero, mean"):
        replacement(build("gpt2"), "mask")
    with pytest.raises(BadInput, match="Did you mean 'mask'"):
        replacement(build("bert"), "maks")


@pytest.mark.parametrize("shape", ["bert", "distilbert", "gpt2"])
def test_replacing_by_embedding_is_replacing_by_id_where_ids_mean_nothing_else(shape: str):
    model = build(shape)
    batch = model.batch(model.encode(TEXTS[:2]))
    where = batch.content & (torch.arange(batch.width) == 2)
    kind = "mask" if shape != "gpt2" else "mean"
    ours = forward(model, batch, embeddings=replaced(model, batch, where, kind)).logits
    if kind == "mask":
        ids = batch.ids.masked_fill(where, model.replacements["mask"])
        by_id = forward(model, type(batch)(ids, batch.mask, batch.special, batch.segments)).logits
        torch.testing.assert_close(ours, by_id)
    assert not torch.allclose(ours, forward(model, batch).logits)


def test_deletion_closes_the_gap_and_equals_the_shorter_text():
    model = build("pooled_bilstm")
    batch = model.batch(model.encode(["a fine film", "good"]))
    where = torch.tensor([[False, True, False], [False, False, False]])
    shorter = deleted(batch, where)
    expected = model.batch(model.encode(["a film", "good"]))
    assert torch.equal(shorter.ids, expected.ids)
    assert torch.equal(shorter.mask, expected.mask)


def test_deleting_everything_is_refused():
    model = build("gpt2")
    batch = model.batch(model.encode(["x"]))
    with pytest.raises(BadInput, match="leave nothing"):
        deleted(batch, batch.mask)
