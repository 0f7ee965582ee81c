"""The shapes in signatures are checked while the tests run."""

import pytest
import torch
from jaxtyping import TypeCheckError

from salience.core.passes import forward
from salience.core.types import Batch
from shapes import TEXTS, build


def test_a_wrong_shape_is_noticed_in_a_function_and_in_a_value():
    model = build("pooled_bilstm")
    batch = model.batch(model.encode(TEXTS))
    with pytest.raises(TypeCheckError):
        model.module(torch.zeros(2, 3, 4), torch.ones(2, 5, dtype=torch.bool), None, None, None)
    with pytest.raises(TypeCheckError):
        Batch(batch.ids, batch.mask[:, :1], batch.special)
    assert forward(model, batch).logits.shape[0] == len(TEXTS)
