"""Penalties compared with slow implementations of their formulas, and their effect on training."""

from dataclasses import replace
from functools import partial
from itertools import product
from math import exp, log

import pytest
import torch

from salience.core.types import Model, Output
from salience.data.examples import Example
from salience.errors import BadInput, UnsupportedModel
from salience.training.guides import by_rationales, shaped
from salience.training.objectives import (
    TASK,
    UNKNOWN,
    Objective,
    Step,
    Term,
    attended,
    attention_to_explanation,
    contrast,
    every,
    gradient_to_explanation,
    guided,
    label_smoothing,
    labelled,
    regularised,
    smoothed,
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
    (explained,) = by_rationales(model, [Example("a", TEXTS[0], 0, ((2, 6),))])
    (encoded,) = model.encode([TEXTS[0]])
    for weight, (a, b), odd in zip(explained.guide, encoded.offsets, encoded.special, strict=True):
        assert weight == float(not odd and a < 6 and b > 2)
    with pytest.raises(BadInput, match="lies outside its text"):
        by_rationales(model, [Example("a", TEXTS[0], 0, ((2, 600),))])


# ------------------------------------------------------------------------------------------------------ formulas

LABELS = torch.tensor([2, 0, 1, 2])


def drawn_step(guides: int = 1) -> Step:
    """Attention of three layers with two heads, drawn at random, and an explanation with signs."""
    model = build("bert", dtype=torch.float64)
    batch = model.batch(model.encode(TEXTS))
    rng = torch.Generator().manual_seed(5)
    size = (len(batch), 2, batch.width, batch.width)
    real = batch.mask[:, None, None]
    attention = tuple(
        torch.randn(size, generator=rng, dtype=torch.float64).masked_fill(~real, -torch.inf).softmax(-1)
        for _ in range(3)
    )
    logits, embeddings = torch.zeros(len(batch), 3), torch.zeros(len(batch), batch.width, 2)
    guide = torch.randn((len(batch), guides, batch.width), generator=rng).double() + 0.5
    guide = guide * batch.content[:, None]
    output = Output(logits.double(), embeddings.double(), (), attention)
    return Step(model, batch, output, LABELS, guide[:, 0] if guides == 1 else guide)


def softmax(x: list[float]) -> list[float]:
    return [exp(v) / sum(map(exp, x)) for v in x]


def mean(x: list[float]) -> float:
    return sum(x) / len(x)


def slow_views(step: Step, text: int, chosen: list[tuple[int, int]], averaged: bool, space: str) -> list[list[float]]:
    """The attention of the first token to each real token: of each (layer, head), or the mean of all of them."""
    n = int(step.batch.mask[text].sum())
    rows = [step.output.attention[layer][text, head, 0, :n].tolist() for layer, head in chosen]
    if space == "logit":
        rows = [[log(a) for a in row] for row in rows]
    if averaged:
        rows = [[mean(list(column)) for column in zip(*rows, strict=True)]]
    return rows if space == "probability" else [softmax(row) for row in rows]


def slow_explanation(step: Step, guide: list[float], text: int, shape: str) -> list[float]:
    n = int(step.batch.mask[text].sum())
    content, e = step.batch.content[text, :n].tolist(), guide[:n]
    if shape == "softmax":
        total = sum(exp(x) for x, c in zip(e, content, strict=True) if c)
        return [exp(x) / total if c else 0.0 for x, c in zip(e, content, strict=True)]
    positive = [max(x, 0) for x in e]
    return [x / sum(positive) if sum(positive) else 0.0 for x in positive]


def slow_distance(p: list[float], q: list[float], divergence: str) -> float:
    pairs = list(zip(p, q, strict=True))
    if divergence == "kl":
        return sum(b * log(b / a) for a, b in pairs if b)
    if divergence == "mse":
        return sum((a - b) ** 2 for a, b in pairs)
    if divergence == "order":
        rest = max(a for a, b in pairs if not b)
        return sum(min(a / rest - 1, 0) ** 2 for a, b in pairs if b)
    return sum(a * log(a / (0.99 * b + 0.01 / len(p))) for a, b in pairs if a)


CHOICES = [
    ({}, [[(2, 0), (2, 1)]], True),
    ({"layers": [1]}, [[(0, 0), (0, 1)]], True),
    ({"layers": [-2, 3]}, [[(1, 0), (1, 1)], [(2, 0), (2, 1)]], True),
    ({"layers": "all"}, [[(layer, 0), (layer, 1)] for layer in range(3)], True),
    ({"heads": "each"}, [[(2, 0), (2, 1)]], False),
    ({"heads": [2]}, [[(2, 1)]], False),
    ({"layers": "all", "heads": [1]}, [[(0, 0)], [(1, 0)], [(2, 0)]], False),
    ({"heads": [(1, 2), (3, 1), (1, 1)]}, [[(0, 1), (0, 0)], [(2, 0)]], False),
]
"""Settings, the (layer, head) pairs that they mean, counted from 0, and whether heads are averaged."""


@pytest.mark.parametrize(
    ("settings", "groups", "averaged"), CHOICES, ids=lambda x: str(x) if isinstance(x, dict) else ""
)
def test_the_attention_of_chosen_layers_and_heads_is_compared(
    settings: dict[str, object], groups: list[list[tuple[int, int]]], averaged: bool
):
    step = drawn_step()
    spaces, shapes = ("probability", "softmax_of_probability", "logit"), ("normalised", "softmax")
    for space, shape, divergence in product(spaces, shapes, ("kl", "reverse_kl", "mse", "order")):
        if (shape, divergence) == ("softmax", "order"):
            continue
        result = attention_to_explanation(step, space=space, shape=shape, divergence=divergence, **settings)
        for text in range(len(TEXTS)):
            q = slow_explanation(step, step.guide[text].tolist(), text, shape)
            views = [v for group in groups for v in slow_views(step, text, group, averaged, space)]
            expected = mean([slow_distance(view, q, divergence) for view in views])
            assert float(result[text]) == pytest.approx(expected, rel=1e-5, abs=1e-9), (space, shape, divergence)


def test_contrast_is_the_cross_entropy_of_the_distances_to_all_explanations():
    step = drawn_step(guides=3)
    for settings, averaged in (({}, True), ({"heads": "each", "space": "logit", "shape": "softmax"}, False)):
        result = contrast(step, **settings)
        for text, gold in enumerate(LABELS.tolist()):
            views = slow_views(step, text, [(2, 0), (2, 1)], averaged, settings.get("space", "probability"))
            shape, distances = settings.get("shape", "normalised"), list[float]()
            for guide in step.guide[text].tolist():
                content = step.batch.content[text].tolist()
                guide = guide if max(guide) > 0 else [float(c) for c in content]
                q = slow_explanation(step, guide, text, shape)
                distances.append(mean([slow_distance(view, q, "kl") for view in views]))
            assert float(result[text]) == pytest.approx(-log(softmax([-d for d in distances])[gold]), rel=1e-5)
    unknown = Step(step.model, step.batch, step.output, torch.full((len(TEXTS),), UNKNOWN), step.guide)
    assert contrast(unknown).tolist() == [0.0] * len(TEXTS)


def task(shape: str, logits: list[list[float]], labels: torch.Tensor) -> list[float]:
    model = build(shape, dtype=torch.float64)
    batch = model.batch(model.encode(TEXTS[: len(logits)]))
    output = Output(torch.tensor(logits, dtype=torch.float64), torch.zeros(len(batch), batch.width, 2).double())
    return task_loss(Step(model, batch, output, labels, torch.zeros(batch.ids.shape))).tolist()


def test_the_task_loss_of_each_kind_of_model():
    logits = [[0.0, log(2), log(5)], [1.0, 2.0, 3.0]]
    assert task("bert", logits, torch.tensor([1, UNKNOWN])) == pytest.approx([log(4), 0])
    # σ(0) = 1/2, σ(log 2) = 2/3 and σ(log 5) = 5/6, of which the labels are 1, 0 and 1.
    labels = torch.tensor([[1, 0, 1], [UNKNOWN] * 3])
    expected = (log(2) + log(3) + log(6 / 5)) / 3
    assert task("bert_multi_label", logits, labels) == pytest.approx([expected, 0])
    assert task("bert_regression", [[1.0], [3.0]], torch.tensor([[3.0], [UNKNOWN]])) == pytest.approx([4.0, 0])


@pytest.mark.parametrize("score", ["gradient", "input_x_gradient"])
@pytest.mark.parametrize("shape", ["bert", "bert_multi_label", "pooled_bilstm"])
def test_gradients_are_compared_as_attention_is(shape: str, score: str):
    model = build(shape, dtype=torch.float64)
    several = torch.zeros(len(TEXTS), 3, dtype=torch.long) if shape == "bert_multi_label" else None
    step = make_step(model, torch.tensor([2, UNKNOWN, 1, 0]) if several is None else several)
    logits, e = step.output.logits, step.output.embeddings
    for text in range(len(TEXTS)):
        if several is None:
            gold = int(step.labels[text]) if text != 1 else int(logits[1].argmax())
            explained = logits[text].log_softmax(-1)[gold]
        else:
            explained = logits[text].sum()
        (g,) = torch.autograd.grad(explained, e, retain_graph=True)
        n = int(step.batch.mask[text].sum())
        each = (g[text] * e[text]).sum(-1).abs() if score == "input_x_gradient" else g[text].square().sum(-1).sqrt()
        scores = (each * step.batch.content[text]).tolist()[:n]
        p, q = [x / sum(scores) for x in scores], slow_explanation(step, step.guide[text].tolist(), text, "normalised")
        for divergence in ("kl", "reverse_kl", "mse"):
            ours = gradient_to_explanation(step, score=score, criterion=divergence)[text]
            expected = slow_distance(p, q, divergence)
            assert float(ours.detach()) == pytest.approx(expected, rel=1e-4, abs=1e-9), divergence


def test_frozen_word_vectors_have_no_gradients():
    step = make_step(build("bert"))
    output = Output(step.output.logits, step.output.embeddings.detach())
    with pytest.raises(UnsupportedModel, match="frozen"):
        gradient_to_explanation(Step(step.model, step.batch, output, step.labels, step.guide))


@pytest.mark.parametrize("layers", [[0], [4], [-4]])
def test_layers_are_counted_from_1_or_from_the_end(layers: list[int]):
    with pytest.raises(BadInput, match=rf"there is no layer {layers[0]}: .* has layers 1 to 3, and -1 is the last"):
        attention_to_explanation(drawn_step(), layers=layers)


@pytest.mark.parametrize("heads", [[], [0], [3], [1, 3]])
def test_heads_are_counted_from_1(heads: list[int]):
    with pytest.raises(BadInput, match="heads are numbered 1 to 2"):
        attention_to_explanation(drawn_step(), heads=heads)


def test_which_texts_a_loss_is_averaged_over():
    labels = torch.tensor([0, UNKNOWN, 1])
    guide = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, -1.0]])
    assert labelled(labels, guide).tolist() == [True, False, True]
    assert labelled(torch.tensor([[0, 1], [UNKNOWN, 1]]), guide[:2]).tolist() == [True, False]
    assert guided(labels, guide).tolist() == [True, False, True]
    assert every(labels, guide).tolist() == [True] * 3
    objective = Objective((TASK, Term(attention_to_explanation), Term(contrast, over=every)))
    assert objective.counts(labels, guide) == {"task": 2, "attention_to_explanation": 2, "contrast": 3}


def test_what_an_objective_asks_of_the_forward_pass():
    plain = Term(contrast, attention=False)
    assert [term.name for term in Objective((TASK, plain)).penalties] == ["contrast"]
    assert (Objective().attention, Objective((TASK, plain)).attention) == (None, None)
    assert regularised(contrast).attention == "differentiable"
    assert not regularised(contrast).hidden
    assert Objective((TASK, Term(contrast, hidden=True))).hidden
    assert regularised(contrast, 0.0).weights_at(0.0) == {"task": 1.0, "contrast": 0.0}
    assert regularised(contrast).weights_at(0.0) == {"task": 1.0, "contrast": 1.0}
    assert Objective((Term(contrast), Term(task_loss))).weights_at(1.0) == {"contrast": 1.0, "task_loss": 1.0}
    with pytest.raises(BadInput, match="at least 0"):
        regularised(contrast, float("nan"))
    step = drawn_step()
    nothing = Step(step.model, step.batch, step.output, step.labels, torch.zeros_like(step.guide))
    assert float(Term(attention_to_explanation)(nothing)) == 0


@pytest.mark.parametrize("weight", [0.25, 1.0])
def test_label_smoothing_is_that_of_torch_with_the_same_strength(weight: float):
    step = make_step(build("bert"), torch.tensor([i % 2 for i in range(len(TEXTS))]))
    epsilon = weight / (1 + weight)
    logits, classes = step.output.logits, step.output.logits.shape[1]
    theirs = torch.nn.functional.cross_entropy(logits, step.labels, reduction="none", label_smoothing=epsilon)
    ours = task_loss(step) + weight * (label_smoothing(step) + log(classes))
    assert torch.allclose(ours, (1 + weight) * theirs, atol=1e-5)
    uniform = replace(step, output=replace(step.output, logits=torch.zeros_like(logits)))
    assert torch.allclose(label_smoothing(uniform), torch.zeros(len(logits)), atol=1e-6)
    assert smoothed(weight).attention is None, "no attention weights are needed"
    with pytest.raises(BadInput, match="must be at least 0"):
        smoothed(-1.0)
