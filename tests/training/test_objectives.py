"""Penalties compared with slow implementations of their formulas, and their effect on training."""

from functools import partial

import pytest
import torch

from salience.core.types import Model
from salience.data.examples import Example
from salience.errors import BadInput
from salience.training.guides import by_rationales, shaped
from salience.training.objectives import (
    UNKNOWN,
    Step,
    Term,
    attended,
    attention_to_explanation,
    contrast,
    gradient_to_explanation,
    regularised,
    task_loss,
)
from shapes import SHAPES, TEXTS, build

CLASSIFIERS = [s for s in SHAPES if not s.endswith("_lm")]


def make_step(model: Model, labels: torch.Tensor | None = None, guide: torch.Tensor | None = None) -> Step:
    batch = model.batch(model.encode(TEXTS))
    model.module.eval()
    output = model(batch, attention="differentiable")
    if guide is None:
        guide = torch.rand(batch.ids.shape, generator=torch.Generator().manual_seed(1)) * batch.content
        guide = guide * (guide > 0.4)
    labels = torch.zeros(len(batch), dtype=torch.long) if labels is None else labels
    return Step(model, batch, output, labels, guide)


@pytest.mark.parametrize("shape", CLASSIFIERS)
def test_the_default_is_kl_from_the_explanation_to_the_row_that_the_classifier_reads(shape: str):
    model = build(shape, dtype=torch.float64)
    step = make_step(model)
    result = attention_to_explanation(step)
    a = step.output.attention[-1].detach()
    for row in range(len(TEXTS)):
        n = int(step.batch.mask[row].sum())
        weights = [1.0] if a.shape[2] == 1 else model.read_from(step.batch)[row].tolist()
        e = step.guide[row].tolist()
        total = sum(e)
        slow = 0.0
        for i in range(n):
            mean = (
                sum(float(a[row, h, q, i]) * w for h in range(a.shape[1]) for q, w in enumerate(weights) if w)
                / a.shape[1]
            )
            if e[i]:
                q = e[i] / total
                slow += q * (torch.tensor(q).log().item() - torch.tensor(mean).log().item())
        assert float(result[row].detach()) == pytest.approx(slow, rel=1e-4)


@pytest.mark.parametrize("shape", CLASSIFIERS)
def test_training_moves_attention_to_the_explanation(shape: str):
    """A few steps on the penalty alone increase attention on the explained tokens, for every architecture."""
    model = build(shape)
    marks = make_step(model).guide > 0
    learning = torch.optim.Adam(model.module.parameters(), lr=3e-3)
    losses: list[float] = []
    masses: list[float] = []
    for _ in range(12):
        step = make_step(model, guide=marks.float())
        loss = attention_to_explanation(step).mean()
        losses.append(float(loss.detach()))
        masses.append(float((attended(step)[:, 0] * marks).sum(1).mean().detach()))
        learning.zero_grad()
        loss.backward()
        learning.step()
    assert losses[-1] < losses[0]
    assert masses[-1] > masses[0]


@pytest.mark.parametrize("divergence", ["kl", "reverse_kl", "mse"])
@pytest.mark.parametrize("space", ["probability", "softmax_of_probability", "logit"])
@pytest.mark.parametrize("heads", ["mean", "each", (2,), (1, 2), ((1, 1), (2, 2))])
def test_every_distance_is_smallest_where_attention_is_the_explanation(divergence: str, space: str, heads: object):
    model = build("bert", dtype=torch.float64)
    step = make_step(model)
    settings = {"divergence": divergence, "space": space, "heads": heads}
    own = attended(step, heads=heads, space=space).mean(1).detach() * step.batch.mask
    content = step.batch.content
    same = Step(model, step.batch, step.output, step.labels, own * content)
    away = Step(model, step.batch, step.output, step.labels, (own.amax(1, keepdim=True) - own) * content)
    near, far = (attention_to_explanation(x, **settings).detach() for x in (same, away))
    assert near.isfinite().all()
    assert (near >= -1e-9).all()
    assert attention_to_explanation(same, **settings, layers="all").isfinite().all()
    several = content.sum(1) > 1  # a single word has only one explanation
    if attended(step, heads=heads, space=space).shape[1] == 1:  # the mean of several need not be nearest to each
        assert (near < far)[several].all()


@pytest.mark.parametrize("divergence", ["kl", "reverse_kl", "mse", "order"])
@pytest.mark.parametrize("space", ["probability", "softmax_of_probability", "logit"])
def test_every_distance_has_finite_gradients_with_padding(divergence: str, space: str):
    model = build("bert")
    step = make_step(model)
    assert not bool(step.batch.mask.all())
    attention_to_explanation(step, divergence=divergence, space=space).sum().backward()
    gradients = [p.grad for p in model.module.parameters() if p.grad is not None]
    assert gradients
    assert all(bool(g.isfinite().all()) for g in gradients)
    assert any(bool(g.any()) for g in gradients)


def test_contrast_treats_an_empty_explanation_as_uniform():
    model = build("bert", dtype=torch.float64)
    step = make_step(model)
    guide = torch.stack([step.guide, torch.zeros_like(step.guide), step.guide], 1)
    uniform = torch.stack([step.guide, step.batch.content.to(step.guide), step.guide], 1)
    result, expected = (
        contrast(Step(model, step.batch, step.output, step.labels, g)).detach() for g in (guide, uniform)
    )
    assert torch.allclose(result, expected)


def test_order_only_requires_a_higher_rank_than_the_rest():
    model = build("bert", dtype=torch.float64)
    step = make_step(model)
    p = attended(step)[:, 0].detach()
    for row in range(len(TEXTS)):
        real = int(step.batch.mask[row].sum())
        best = int(p[row, :real].argmax())
        for marks in ([best], [0], list(range(1, real - 1))):
            guide = torch.zeros_like(step.guide)
            guide[row, marks] = 1
            result = attention_to_explanation(
                Step(model, step.batch, step.output, step.labels, guide), divergence="order"
            )
            rest = max((float(p[row, j]) for j in range(real) if j not in marks), default=0)
            slow = sum(min(float(p[row, i]) / rest - 1, 0) ** 2 for i in marks)
            assert float(result[row].detach()) == pytest.approx(slow, abs=1e-9)
            if marks == [best]:
                assert slow == 0


def test_padding_has_no_effect():
    model = build("bert", dtype=torch.float64)
    together = make_step(model)
    for row, text in enumerate(TEXTS):
        batch = model.batch(model.encode([text]))
        alone = Step(
            model,
            batch,
            model(batch, attention="differentiable"),
            together.labels[:1],
            together.guide[row : row + 1, : batch.width],
        )
        for penalty in (
            partial(attention_to_explanation, space="softmax_of_probability", shape="softmax"),
            partial(attention_to_explanation, divergence="reverse_kl"),
            gradient_to_explanation,
            partial(gradient_to_explanation, criterion="kl", score="input_x_gradient"),
        ):
            assert penalty(alone)[0].item() == pytest.approx(penalty(together)[row].item(), rel=1e-6)


@pytest.mark.parametrize("shape", ["bert", "gpt2", "pooled_bilstm"])
def test_right_for_the_right_reasons_is_the_squared_gradient_outside(shape: str):
    model = build(shape, dtype=torch.float64)
    step = make_step(model)
    result = gradient_to_explanation(step)
    log_p = step.output.logits.log_softmax(-1)
    (g,) = torch.autograd.grad(log_p.sum(), step.output.embeddings, retain_graph=True)
    for row in range(len(TEXTS)):
        slow = sum(
            float(g[row, i].square().sum())
            for i in range(step.batch.width)
            if step.batch.content[row, i] and step.guide[row, i] <= 0
        )
        assert float(result[row].detach()) == pytest.approx(slow, rel=1e-6)
    (second,) = torch.autograd.grad(result.sum(), model.words.weight)
    assert second.abs().max() > 0, "the penalty has no second-order gradient"


def test_contrast_prefers_the_explanation_of_the_gold_label():
    model = build("bert", dtype=torch.float64)
    first = make_step(model)
    own = (attended(first)[:, 0].detach()) * first.batch.content
    other = (own.amax(1, keepdim=True) - own) * first.batch.content
    guide = torch.stack([own, other, other], 1)
    right, wrong = (
        contrast(Step(model, first.batch, first.output, torch.full((len(TEXTS),), label), guide)) for label in (0, 1)
    )
    several = first.batch.content.sum(1) > 1  # a single word has only one explanation
    assert (right < wrong)[several].all()
    with pytest.raises(BadInput, match="every label"):
        contrast(first)


def test_texts_without_label_or_explanation_are_excluded():
    model = build("bert", dtype=torch.float64)
    step = make_step(model)
    labels, guide = step.labels.clone(), step.guide.clone()
    labels[0], guide[1] = UNKNOWN, 0
    part = Step(model, step.batch, step.output, labels, guide)
    assert float(task_loss(part)[0].detach()) == 0
    terms = regularised(attention_to_explanation)(part)
    expected = attention_to_explanation(step)[[0, *range(2, len(TEXTS))]].sum()
    assert terms["attention_to_explanation"].item() == pytest.approx(expected.item())


def test_schedules_of_the_weight():
    at = {
        kind: [Term(attention_to_explanation, 2.0, kind).weight_at(p) for p in (0, 0.5, 1)]
        for kind in ("constant", "rise", "fall", "cosine")
    }
    assert at["constant"] == [2, 2, 2]
    assert at["rise"] == [0, 1, 2]
    assert at["fall"] == [2, 1, 0]
    assert at["cosine"] == pytest.approx([2, 1, 0])
    with pytest.raises(BadInput, match="at least 0"):
        regularised(attention_to_explanation, -1.0)


def test_unknown_layers_heads_and_divergences():
    step = make_step(build("bert"))
    with pytest.raises(BadInput, match="there is no layer 9"):
        attention_to_explanation(step, layers=[9])
    with pytest.raises(BadInput, match="heads are numbered 1 to"):
        attention_to_explanation(step, heads=[17])
    with pytest.raises(BadInput, match="Did you mean 'kl'"):
        attention_to_explanation(step, divergence="kld")


def test_guides_from_scores_and_from_rationales():
    special = [True, False, False, False, False, True]
    assert shaped([9, 1, 3, -2, 2, 9], special, "binary", 0.5) == (0, 0, 1, 0, 1, 0)
    assert shaped([9, 1, 3, -2, 2, 9], special, "positive", 0.5) == (0, 1, 3, 0, 2, 0)
    assert shaped([9, 1, 3, -2, 2, 9], special, "signed", 0.5) == (0, 1, 3, -2, 2, 0)
    with pytest.raises(BadInput, match="share=0"):
        shaped([1.0], [False], "binary", 0)
    model = build("bert")
    (guided,) = by_rationales(model, [Example("a", TEXTS[0], 0, ((2, 6),))])
    (encoded,) = model.encode([TEXTS[0]])
    for weight, (a, b), odd in zip(guided.guide, encoded.offsets, encoded.special, strict=True):
        assert weight == float(not odd and a < 6 and b > 2)
    with pytest.raises(BadInput, match="lies outside its text"):
        by_rationales(model, [Example("a", TEXTS[0], 0, ((2, 600),))])
