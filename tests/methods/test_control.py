"""The controls: what they give to each token, written out."""

import pytest
import torch

from salience.core.passes import forward, resolve
from salience.core.target import Target
from salience.core.types import Batch
from salience.methods.control import position, random, uniform
from shapes import TEXTS, build


@pytest.mark.parametrize("method", [uniform, position])
def test_a_control_depends_on_the_number_of_text_tokens_alone(method):
    model = build("bert", dtype=torch.float64)
    batch = model.batch(model.encode(TEXTS))
    target = resolve(model, [Target()], forward(model, batch).logits)
    expected = [one_by_one(batch, text, method) for text in range(len(batch))]
    result = method(model, batch, target)
    torch.testing.assert_close(result.scores.double(), torch.tensor(expected, dtype=torch.float64))
    assert not result.signed


def one_by_one(batch: Batch, text: int, method: object) -> list[float]:
    """1, 1 − 1/n, ..., 1/n for the n text tokens, or 1/n for each; 0 for all others."""
    marks = batch.content[text].tolist()
    n, scores = sum(marks), list[float]()
    for mark in marks:
        before = sum(score > 0 for score in scores)
        scores.append((1 - before / n if method is position else 1 / n) if mark else 0.0)
    return scores


def test_random_scores_depend_on_the_text_and_not_on_its_place_in_the_batch():
    model = build("bert", dtype=torch.float64)
    batch = model.batch(model.encode(["a fine film"] * 2 + ["a dull film"]))
    target = resolve(model, [Target()], forward(model, batch).logits)
    scores = random(model, batch, target).scores
    assert torch.equal(scores != 0, batch.mask)
    assert torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[0], scores[2])
    assert torch.equal(scores, random(model, batch, target, seed=0).scores)
    assert not torch.equal(scores, random(model, batch, target, seed=1).scores)
