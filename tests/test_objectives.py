"""Penalties against their formulas, slowly, and what training does with them."""

from functools import partial

import pytest
import torch

from salience.errors import BadInput
from salience.lessons import Example, by_rationales, shaped
from salience.objectives import (
    UNKNOWN,
    Lesson,
    Objective,
    attended,
    attention_to_explanation,
    contrast,
    gradient_to_explanation,
    task_loss,
)
from salience.types import Model
from shapes import SHAPES, TEXTS, build

CLASSIFIERS = [s for s in SHAPES if not s.endswith("_lm")]


def lesson(model: Model, labels: torch.Tensor | None = None, guide: torch.Tensor | None = None) -> Lesson:
    batch = model.batch(model.encode(TEXTS))
    model.module.eval()
    output = model(batch, attention="differentiable")
    if guide is None:
        guide = torch.rand(batch.ids.shape, generator=torch.Generator().manual_seed(1)) * batch.content
        guide = guide * (guide > 0.4)
    labels = torch.zeros(len(batch), dtype=torch.long) if labels is None else labels
    return Lesson(model, batch, output, labels, guide)


@pytest.mark.parametrize("shape", CLASSIFIERS)
def test_the_default_is_kl_from_the_explanation_to_the_row_that_the_classifier_reads(shape: str):
    model = build(shape, dtype=torch.float64)
    given = lesson(model)
    found = attention_to_explanation(given)
    a = given.output.attention[-1].detach()
    for row in range(len(TEXTS)):
        n = int(given.batch.mask[row].sum())
        weights = [1.0] if a.shape[2] == 1 else model.read_from(given.batch)[row].tolist()
        e = given.guide[row].tolist()
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
        assert float(found[row].detach()) == pytest.approx(slow, rel=1e-4)


@pytest.mark.parametrize("shape", CLASSIFIERS)
def test_attention_learns_to_look_where_it_is_told(shape: str):
    """A few steps on the penalty alone move attention onto the explained tokens, in every architecture."""
    model = build(shape)
    marks = lesson(model).guide > 0
    learning = torch.optim.Adam(model.module.parameters(), lr=3e-3)
    losses: list[float] = []
    masses: list[float] = []
    for _ in range(12):
        given = lesson(model, guide=marks.float())
        loss = attention_to_explanation(given).mean()
        losses.append(float(loss.detach()))
        masses.append(float((attended(given)[:, 0] * marks).sum(1).mean().detach()))
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
    given = lesson(model)
    settings = {"divergence": divergence, "space": space, "heads": heads}
    own = attended(given, heads=heads, space=space).mean(1).detach() * given.batch.mask
    content = given.batch.content
    same = Lesson(model, given.batch, given.output, given.labels, own * content)
    away = Lesson(model, given.batch, given.output, given.labels, (own.amax(1, keepdim=True) - own) * content)
    near, far = (attention_to_explanation(x, **settings).detach() for x in (same, away))
    assert near.isfinite().all()
    assert (near >= -1e-9).all()
    assert attention_to_explanation(same, **settings, layers="all").isfinite().all()
    several = content.sum(1) > 1  # of a single word all explanations are alike
    if attended(given, heads=heads, space=space).shape[1] == 1:  # what is nearest to several need not be their mean
        assert (near < far)[several].all()


@pytest.mark.parametrize("divergence", ["kl", "reverse_kl", "mse", "order"])
@pytest.mark.parametrize("space", ["probability", "softmax_of_probability", "logit"])
def test_every_distance_has_a_gradient_beside_padding(divergence: str, space: str):
    model = build("bert")
    given = lesson(model)
    assert not bool(given.batch.mask.all())
    attention_to_explanation(given, divergence=divergence, space=space).sum().backward()
    found = [p.grad for p in model.module.parameters() if p.grad is not None]
    assert found
    assert all(bool(g.isfinite().all()) for g in found)
    assert any(bool(g.any()) for g in found)


def test_a_label_without_an_explanation_is_not_the_best_fit():
    model = build("bert", dtype=torch.float64)
    given = lesson(model)
    guide = torch.stack([given.guide, torch.zeros_like(given.guide), given.guide], 1)
    even = torch.stack([given.guide, given.batch.content.to(given.guide), given.guide], 1)
    found, expected = (
        contrast(Lesson(model, given.batch, given.output, given.labels, g)).detach() for g in (guide, even)
    )
    assert torch.allclose(found, expected)


def test_order_asks_for_no_more_than_to_stand_above_the_rest():
    model = build("bert", dtype=torch.float64)
    given = lesson(model)
    p = attended(given)[:, 0].detach()
    for row in range(len(TEXTS)):
        real = int(given.batch.mask[row].sum())
        best = int(p[row, :real].argmax())
        for marks in ([best], [0], list(range(1, real - 1))):
            guide = torch.zeros_like(given.guide)
            guide[row, marks] = 1
            found = attention_to_explanation(
                Lesson(model, given.batch, given.output, given.labels, guide), divergence="order"
            )
            rest = max((float(p[row, j]) for j in range(real) if j not in marks), default=0)
            slow = sum(min(float(p[row, i]) / rest - 1, 0) ** 2 for i in marks)
            assert float(found[row].detach()) == pytest.approx(slow, abs=1e-9)
            if marks == [best]:
                assert slow == 0


def test_padding_takes_no_part():
    model = build("bert", dtype=torch.float64)
    together = lesson(model)
    for row, text in enumerate(TEXTS):
        batch = model.batch(model.encode([text]))
        alone = Lesson(
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
    given = lesson(model)
    found = gradient_to_explanation(given)
    log_p = given.output.logits.log_softmax(-1)
    (g,) = torch.autograd.grad(log_p.sum(), given.output.embeddings, retain_graph=True)
    for row in range(len(TEXTS)):
        slow = sum(
            float(g[row, i].square().sum())
            for i in range(given.batch.width)
            if given.batch.content[row, i] and given.guide[row, i] <= 0
        )
        assert float(found[row].detach()) == pytest.approx(slow, rel=1e-6)
    (second,) = torch.autograd.grad(found.sum(), model.words.weight)
    assert second.abs().max() > 0, "the penalty teaches nothing"


def test_contrast_prefers_the_explanation_of_the_gold_label():
    model = build("bert", dtype=torch.float64)
    first = lesson(model)
    own = (attended(first)[:, 0].detach()) * first.batch.content
    other = (own.amax(1, keepdim=True) - own) * first.batch.content
    guide = torch.stack([own, other, other], 1)
    right, wrong = (
        contrast(Lesson(model, first.batch, first.output, torch.full((len(TEXTS),), label), guide)) for label in (0, 1)
    )
    several = first.batch.content.sum(1) > 1  # of a single word all explanations are alike
    assert (right < wrong)[several].all()
    with pytest.raises(BadInput, match="every label"):
        contrast(first)


def test_texts_without_label_or_explanation_take_no_part():
    model = build("bert", dtype=torch.float64)
    given = lesson(model)
    labels, guide = given.labels.clone(), given.guide.clone()
    labels[0], guide[1] = UNKNOWN, 0
    part = Lesson(model, given.batch, given.output, labels, guide)
    assert float(task_loss(part)[0].detach()) == 0
    terms = Objective(attention_to_explanation)(part)
    expected = attention_to_explanation(given)[[0, *range(2, len(TEXTS))]].sum()
    assert terms.penalty.item() == pytest.approx(expected.item())


def test_weights_are_annealed():
    at = {
        kind: [Objective(attention_to_explanation, 2.0, kind).weight_at(p) for p in (0, 0.5, 1)]
        for kind in ("constant", "rise", "fall", "cosine")
    }
    assert at["constant"] == [2, 2, 2]
    assert at["rise"] == [0, 1, 2]
    assert at["fall"] == [2, 1, 0]
    assert at["cosine"] == pytest.approx([2, 1, 0])
    with pytest.raises(BadInput, match="at least 0"):
        Objective(attention_to_explanation, -1.0)


def test_layers_and_heads_that_are_not_there():
    given = lesson(build("bert"))
    with pytest.raises(BadInput, match="there is no layer 9"):
        attention_to_explanation(given, layers=[9])
    with pytest.raises(BadInput, match="heads are numbered 1 to"):
        attention_to_explanation(given, heads=[17])
    with pytest.raises(BadInput, match="Did you mean 'kl'"):
        attention_to_explanation(given, divergence="kld")


def test_guides_from_scores_and_from_rationales():
    special = [True, False, False, False, False, True]
    assert shaped([9, 1, 3, -2, 2, 9], special, "binary", 0.5) == (0, 0, 1, 0, 1, 0)
    assert shaped([9, 1, 3, -2, 2, 9], special, "positive", 0.5) == (0, 1, 3, 0, 2, 0)
    assert shaped([9, 1, 3, -2, 2, 9], special, "signed", 0.5) == (0, 1, 3, -2, 2, 0)
    with pytest.raises(BadInput, match="share=0"):
        shaped([1.0], [False], "binary", 0)
    model = build("bert")
    (found,) = by_rationales(model, [Example("a", TEXTS[0], 0, ((2, 6),))])
    (encoded,) = model.encode([TEXTS[0]])
    for weight, (a, b), odd in zip(found.guide, encoded.offsets, encoded.special, strict=True):
        assert weight == float(not odd and a < 6 and b > 2)
    with pytest.raises(BadInput, match="lies outside its text"):
        by_rationales(model, [Example("a", TEXTS[0], 0, ((2, 600),))])
