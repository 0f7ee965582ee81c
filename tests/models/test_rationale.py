"""Rationale models: the distributions of their selection, what their classifier reads, and their files."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy.integrate import quad

import salience
from salience.core.passes import forward
from salience.errors import BadInput, BadModel
from salience.models import load_to_train
from salience.models.hardkuma import HIGH, LOW, Bernoulli, HardKuma
from salience.models.identity import digest
from salience.models.rationale import Rationale
from shapes import RATIONALES, TEXTS, build

SHAPES = [(0.5, 0.5), (2.0, 1.5), (0.8, 3.0), (5.0, 0.3)]


def stretched_cdf(a: float, b: float, z: float) -> float:
    """P(z' ≤ z) of the clamped variable, from the density of Kumaraswamy's distribution."""
    k = (z - LOW) / (HIGH - LOW)
    # u = t^a takes the pole of the density at 0 away.
    return quad(lambda u: b * (1 - u) ** (b - 1), 0, k**a)[0]


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_hardkuma_has_the_mass_of_its_distribution_function(a: float, b: float):
    torch.manual_seed(0)
    shape = torch.Size((1, 50_000))
    kuma = HardKuma(torch.full(shape, a, dtype=torch.float64), torch.full(shape, b, dtype=torch.float64))
    zero, one = stretched_cdf(a, b, 0.0), 1 - stretched_cdf(a, b, 1.0)
    assert kuma.log_nonzero[0, 0].exp().item() == pytest.approx(1 - zero, abs=1e-6)
    assert kuma.one[0, 0].item() == pytest.approx(one, abs=1e-6)

    z = kuma.draw()
    assert (z == 0).double().mean().item() == pytest.approx(zero, abs=0.01)
    assert (z == 1).double().mean().item() == pytest.approx(one, abs=0.01)
    for at in (0.2, 0.5, 0.9):
        assert (z <= at).double().mean().item() == pytest.approx(stretched_cdf(a, b, at), abs=0.01)
    rate = (z != 0).double().mean().item()
    assert rate == pytest.approx(kuma.log_nonzero.exp().mean().item(), abs=0.01)

    median = z[z > 0].median().item()
    assert kuma.decide(torch.tensor(rate - 0.02))[0, 0].item() == pytest.approx(median, abs=0.03)
    assert kuma.decide(torch.tensor(rate + 0.02))[0, 0].item() == 0


@pytest.mark.parametrize("rate", [1e-300, 1e-4, 0.2, 0.5, 0.9, 1 - 1e-9])
@pytest.mark.parametrize("kind", [HardKuma, Bernoulli])
def test_a_selection_starts_at_its_rate(kind: type[HardKuma | Bernoulli], rate: float):
    start = torch.tensor(kind.start(rate), dtype=torch.float64)
    assert kind.of(start[None, None]).log_nonzero.exp().item() == pytest.approx(rate, rel=1e-6, abs=2e-4)


def test_a_draw_of_hardkuma_is_differentiable_and_one_of_bernoulli_is_not():
    parameters = torch.tensor([[[0.0, 0.0], [50.0, -50.0], [-50.0, 50.0]]], requires_grad=True)
    HardKuma.of(parameters).draw().sum().backward()
    assert parameters.grad is not None
    assert parameters.grad.isfinite().all()
    assert bool(parameters.grad[0, 0].any())
    logits = torch.zeros(1, 1000, 1, requires_grad=True)
    z = Bernoulli.of(logits).draw()
    assert not z.requires_grad
    assert set(z.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("shape", RATIONALES)
def test_the_classifier_reads_nothing_but_the_selection(shape: str):
    model = build(shape, dtype=torch.float64)
    assert isinstance(model, Rationale)
    with torch.no_grad():  # so that some tokens are selected and others are not
        states = forward(model.generator, model.batch(model.encode(TEXTS)), hidden=True).hidden[-1]
        spread = model.module.select.weight
        spread.copy_(torch.randn(spread.shape, generator=torch.Generator().manual_seed(1)).to(spread) * 4)
        model.module.select.bias.copy_(-(model.module.select.weight @ states.flatten(0, 1).mean(0)))
    batch = model.batch(model.encode(TEXTS))
    output = forward(model, batch)
    assert output.selection is not None
    hidden = (output.selection.z == 0) & batch.content
    assert bool(hidden.any())
    assert bool((~hidden & batch.content).any())
    assert bool((output.selection.z[batch.special & batch.mask] == 1).all())

    e = model.embed(batch)
    noise = torch.where(hidden[..., None], torch.randn_like(e) * 100, e)
    other = replace(batch, ids=torch.where(hidden, batch.ids[batch.content][0], batch.ids))
    assert not torch.equal(other.ids, batch.ids)
    read = forward(model.encoder, other, embeddings=output.selection.z[..., None] * noise)
    assert torch.equal(read.logits, output.logits)
    scores = salience.explain(model, list(TEXTS), "selection")
    assert [[s == 0 for s in one.scores] for one in scores] == [
        [bool(h or special) for h, special in zip(row[: len(x.tokens)], x.special, strict=True)]
        for row, x in zip(hidden.tolist(), scores, strict=True)
    ]


@pytest.mark.parametrize("shape", RATIONALES)
def test_a_saved_model_is_loaded_unchanged(shape: str, tmp_path: Path):
    model = build(shape)
    model.save(tmp_path / "model")
    loaded = salience.load(tmp_path / "model")
    assert digest(loaded) == digest(model)
    assert loaded.words is loaded.generator.words is loaded.encoder.words  # pyright: ignore
    before, after = (salience.explain(m, list(TEXTS), ["selection", "gradient"]) for m in (model, loaded))
    assert [e.scores for e in before] == [e.scores for e in after]
    with pytest.raises(BadInput, match="is a trained rationale model; start from the classifier in it"):
        load_to_train(tmp_path / "model", 3)


def test_damaged_files_are_reported(tmp_path: Path):
    build("rationale_hardkuma").save(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "salience_rationale", "kind": "lei"}')
    with pytest.raises(BadModel):
        salience.load(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "salience_rationale", "kind": "le"}')
    with pytest.raises(BadInput, match="Did you mean 'lei'"):
        salience.load(tmp_path / "model")
