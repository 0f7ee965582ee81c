"""How models are changed to see whether explanations follow: by how much, and which of their parameters."""

import numpy as np
import pytest
import torch

from salience.core.passes import forward
from salience.errors import BadInput
from salience.metrics import find_metric
from salience.metrics.robustness import _table, distance, likeness, randomised
from shapes import TEXTS, build


def test_every_word_vector_moves_by_the_radius_in_another_direction():
    model = build("bert", dtype=torch.float64)
    words = _table(model)
    length = words.norm(dim=1).mean()
    models = list(find_metric("max_sensitivity")(model, samples=4, radius=0.3, seed=1))
    assert len(models) == 4
    moves = [_table(other) - words for other in models]
    for move in moves:
        assert move.norm(dim=1).tolist() == pytest.approx([0.3 * float(length)] * len(words), rel=1e-9)
        cosines = torch.nn.functional.cosine_similarity(move[:-1], move[1:])
        assert cosines.abs().mean() < 0.5
    assert not torch.allclose(moves[0], moves[1])
    again = next(iter(find_metric("max_sensitivity")(model, samples=1, radius=0.3, seed=1)))
    assert torch.equal(_table(again), _table(models[0]))
    assert torch.equal(_table(model), words), "the model itself does not change"


def test_a_shift_of_all_words_is_taken_back_by_the_model():
    model = build("bert", dtype=torch.float64)
    (other,) = find_metric("input_invariance")(model)
    shift = _table(other) - _table(model)
    assert torch.allclose(shift, shift[:1].expand_as(shift))
    assert float(shift[0].norm()) == pytest.approx(float(_table(model).norm(dim=1).mean()))
    batch = model.batch(model.encode(TEXTS))
    assert torch.allclose(forward(other, batch).logits, forward(model, batch).logits, atol=1e-9)


@pytest.mark.parametrize("share", [0.1, 0.25, 1.0])
def test_the_parameters_nearest_to_the_output_are_shuffled_first(share: float):
    model = build("bert", dtype=torch.float64)
    (other,) = find_metric("parameter_randomisation")(model, share=share)
    pairs = list(zip(model.module.parameters(), other.module.parameters(), strict=True))
    kept = len(pairs) - max(1, round(share * len(pairs)))
    assert all(torch.equal(p, q) for p, q in pairs[:kept])
    several = [(p, q) for p, q in pairs[kept:] if p.unique().numel() > 2]
    assert several
    for p, q in several:
        assert not torch.equal(p, q)
        assert torch.equal(p.flatten().sort().values, q.flatten().sort().values)
    same, unlike = randomised(model, share), randomised(model, share, seed=3)
    assert all(torch.equal(p, q) for p, q in zip(same.module.parameters(), other.module.parameters(), strict=True))
    assert not all(
        torch.equal(p, q) for p, q in zip(unlike.module.parameters(), other.module.parameters(), strict=True)
    )


def test_settings_out_of_range():
    model = build("bert")
    for name, settings in (
        ("max_sensitivity", {"samples": 0}),
        ("max_sensitivity", {"radius": 0.0}),
        ("max_sensitivity", {"radius": float("nan")}),
        ("parameter_randomisation", {"share": 0.0}),
        ("parameter_randomisation", {"share": 1.01}),
    ):
        with pytest.raises(BadInput, match=name):
            list(find_metric(name)(model, **settings))


def test_distances_by_hand():
    assert distance(np.array([3.0, 4.0]), np.array([3.0, 1.0])) == pytest.approx(0.6)
    assert distance(np.zeros(2), np.zeros(2)) == 0
    assert np.isnan(distance(np.zeros(2), np.ones(2)))
    assert likeness(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])) == pytest.approx(1)
    assert likeness(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])) == pytest.approx(0.5)
