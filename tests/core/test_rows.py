"""Rows: equal ones passed once, results in order, edits that know their rows, whatever the budget."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import salience.core.rows
from salience.core.passes import Needs, forward, resolve
from salience.core.rows import Erased, Pack, Rows, erased_values, observed, predict, read_erased, value
from salience.core.target import Target
from salience.core.types import Batch, Model, Site, Targets
from salience.methods.perturbation import lime, occlusion
from salience.methods.shapley import kernel_shap, partition_shap
from salience.metrics import METRICS
from shapes import TEXTS, build


def prepared(model: Model, texts: tuple[str, ...] = TEXTS) -> tuple[Batch, Targets]:
    batch = model.batch(model.encode(texts))
    return batch, resolve(model, [Target()], forward(model, batch).logits)


def rows_passed(model: Model, work: Any) -> int:
    """How many rows go through the word embeddings."""
    counts: list[int] = []
    handle = model.module.get_submodule("classifier").register_forward_hook(
        lambda _, args, __: counts.append(len(args[0]))
    )
    try:
        work()
    finally:
        handle.remove()
    return sum(counts)


def random_rows(batch: Batch, count: int, seed: int = 0) -> Erased:
    rng = torch.Generator().manual_seed(seed)
    text = torch.randint(len(batch), (count,), generator=rng)
    return Erased(text, (torch.rand(count, batch.width, generator=rng) < 0.4) & batch.content[text])


def test_equal_rows_are_passed_once():
    model = build("bert")
    batch, target = prepared(model)
    rows = random_rows(batch, 20)
    twice = Erased(torch.cat([rows.text, rows.text.flip(0)]), torch.cat([rows.where, rows.where.flip(0)]))
    distinct = {(int(t), tuple(w.tolist())) for t, w in zip(rows.text, rows.where, strict=True)}
    values: list[Tensor] = []
    assert not model.causal  # which is found out by a pass, the first time
    passed = rows_passed(model, lambda: values.append(erased_values(model, batch, target, twice, "mask")))
    assert passed == len(distinct)
    assert torch.equal(values[0][:20], values[0][20:].flip(0))


def test_deletions_that_leave_the_same_text_are_passed_once():
    """Of equal neighbours, it does not matter which is deleted; other erasures keep their place."""
    model = build("bert")
    batch, target = prepared(model, ("a fine fine fine film film .", "a fine film"))
    ids = batch.ids.tolist()
    rows = random_rows(batch, 60)
    left = [
        (t, tuple(i for i, gone, real in zip(ids[t], w, batch.mask[t].tolist(), strict=True) if real and not gone))
        for t, w in zip(rows.text.tolist(), rows.where.tolist(), strict=True)
    ]
    masks = {(t, tuple(w)) for t, w in zip(rows.text.tolist(), rows.where.tolist(), strict=True)}
    assert len(set(left)) < len(masks)
    assert not model.causal
    values: list[Tensor] = []
    passed = rows_passed(model, lambda: values.append(erased_values(model, batch, target, rows, "delete")))
    assert passed == len(set(left))
    by_text = {}
    for key, one in zip(left, values[0].tolist(), strict=True):
        assert by_text.setdefault(key, one) == one
    for (t, kept), one in by_text.items():
        alone = Batch(torch.tensor([kept]), torch.ones(1, len(kept)).bool(), torch.zeros(1, len(kept)).bool())
        expected = forward(model, alone).logits[0, int(target.labels[t])]
        assert one == pytest.approx(float(expected), abs=1e-5)
    assert rows_passed(model, lambda: erased_values(model, batch, target, rows, "mask")) == len(masks)


@pytest.mark.parametrize("shape", ["bert", "gpt2", "llama_lm", "pooled_bilstm"])
def test_rows_come_back_in_order_whatever_the_budget(shape: str):
    model = build(shape, dtype=torch.float64)
    batch, target = prepared(model)
    rows = random_rows(batch, 30)
    expected = [float(erased_values(model, batch, target, rows.take(torch.tensor([r])), "zero")) for r in range(30)]
    for budget in (8, 70, 4000):
        model.executor.budget = budget
        assert erased_values(model, batch, target, rows, "zero").tolist() == pytest.approx(expected, rel=1e-5)


def test_several_numbers_can_be_read_of_every_row():
    model = build("bert")
    batch, _ = prepared(model)
    rows = random_rows(batch, 7)
    logits = read_erased(model, batch, rows, "mask", lambda logits, text: torch.cat([logits, text[:, None]], 1))
    assert logits.shape == (7, 4)
    assert logits[:, 3].tolist() == rows.text.tolist()


def test_the_value_of_the_texts_is_not_computed_when_it_is_known():
    model = build("bert")
    batch, target = prepared(model)
    assert rows_passed(model, lambda: value(model, batch, target)) == 0
    unknown = Targets(target.labels, None, target.kind, target.link)
    assert rows_passed(model, lambda: value(model, batch, unknown)) == len(TEXTS)
    assert torch.allclose(value(model, batch, unknown), value(model, batch, target), atol=1e-5)


def test_predictions_are_in_the_order_of_the_texts():
    model = build("bert", dtype=torch.float64)
    alone = torch.cat([forward(model, model.batch(model.encode([text]))).logits for text in TEXTS])
    assert torch.allclose(predict(model, model.encode(TEXTS)), alone)


@pytest.mark.parametrize("shape", ["bert", "gpt2", "pooled_bilstm"])
@pytest.mark.parametrize("budget", [16, 4000])
def test_attention_edits_get_their_rows_and_layers_and_can_be_differentiated(shape: str, budget: int):
    """Row r scales the attention of its text by 1 + r in every layer; a slow version passes one row at a time."""
    model = build(shape, dtype=torch.float64)
    batch, target = prepared(model, TEXTS[:2])
    model.executor.budget = budget
    text = torch.tensor([0, 1, 0, 1])
    layers: set[int] = set()

    def scaled(site: Site, rows: Tensor, a: Tensor) -> Tensor:
        layers.add(site.layer)
        return a * (1 + rows.to(a))[:, None, None, None]

    gradients = torch.zeros(len(text), batch.width, dtype=torch.float64)
    for part, seen in observed(model, Rows(batch, text, edit_attention=scaled), target, Needs.GRADIENT):
        assert seen.gradient is not None
        gradients[part.rows, : part.batch.width] = seen.gradient.sum(-1) * part.batch.mask
    assert layers == set(range(1, model.layers + 1))
    for row, number in enumerate(text.tolist()):
        alone = model.batch(model.encode([TEXTS[number]]))
        with torch.enable_grad():
            model.module.eval()
            e = model.embed(alone).requires_grad_()
            logits = model(alone, embeddings=e, edit_attention=lambda _, a, row=row: a * (1 + row)).logits
            (g,) = torch.autograd.grad(logits[0, target.labels[number]], e)
        assert torch.allclose(gradients[row, : alone.width], g[0].sum(-1), atol=1e-8)


def test_embeddings_are_created_one_pass_at_a_time():
    model = build("bert")
    batch, target = prepared(model)
    model.executor.budget = 2 * batch.width
    made: list[int] = []

    def same(part: Pack) -> Tensor:
        made.append(len(part.rows))
        return model.embed(part.batch)

    text = torch.arange(len(batch)).repeat_interleave(5)
    parts = observed(model, Rows(batch, text, same), target, Needs.NOTHING)
    next(parts)
    assert len(made) == 1, "one pass was asked for, and more was made"
    assert sum(made) + sum(len(part.rows) for part, _ in parts) == len(text)


ERASING = {f.__name__: f for f in (occlusion, lime, kernel_shap, partition_shap)}
ERASING |= {
    m.name: lambda *of, m=m: m(*of[:2], of[1].ids.double() % 7, *of[2:])
    for m in METRICS
    if m.needs == "erasure" and not m.until_flip  # which asks for one copy at a time
}


@pytest.mark.parametrize("name", ERASING)
def test_every_method_and_metric_that_erases_reads_a_shared_prefix_once(name: str, monkeypatch: pytest.MonkeyPatch):
    """Only the last six tokens may be erased, so no more than those need to be read again."""
    model = build("gpt2", dtype=torch.float64)
    batch = model.batch(model.encode([" ".join(TEXTS[:2])]))
    target = resolve(model, [Target(kind="probability")], forward(model, batch).logits)
    special = batch.special.clone()
    special[:, :-6] = True
    batch = replace(batch, special=special)
    assert model.shares_prefix(batch)
    tokens: list[int] = []
    model.module.transformer.ln_f.register_forward_hook(lambda _, args, __: tokens.append(args[0].shape[:2].numel()))
    shared = result_of(ERASING[name](model, batch, target))
    with_sharing = sum(tokens)
    monkeypatch.setattr(salience.core.rows, "_prefix_pays_off", lambda *_: False)
    whole = result_of(ERASING[name](model, batch, target))
    assert with_sharing < 0.7 * (sum(tokens) - with_sharing)
    assert torch.allclose(shared, whole, atol=1e-6)


def result_of(result: Any) -> Tensor:
    return getattr(result, "scores", result)
