"""Classifiers trained in different ways rank the words of the same texts; one word of each decides."""

from math import log
from pathlib import Path

import numpy as np
import pytest
import torch

from dynamics.planted import KEYWORDS, SMALL, planted
from salience.core.passes import forward
from salience.core.types import Batch
from salience.data.examples import Example
from salience.dynamics.agreement import agreement
from salience.dynamics.classifiers import Classifiers
from salience.dynamics.comparison import Comparison, compare
from salience.dynamics.influence import gradient_form, leave_one_out, log_odds
from salience.training.loop import Recipe
from shapes import build

RECIPE = Recipe(epochs=5, batch=16, rate=1e-2, warmup=0.0, decay=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("comparison")


@pytest.fixture(scope="module")
def classifiers(folder: Path) -> Classifiers:
    texts = planted(330, labels=3)
    return Classifiers.new(folder, texts[:300], texts[300:], shape=SMALL, recipe=RECIPE, checkpoints=6)


@pytest.fixture(scope="module")
def result(classifiers: Classifiers) -> Comparison:
    return compare(classifiers, seeds=2, influenced=12)


def test_every_way_of_training_learns_the_task_of_three_classes(result: Comparison):
    assert result.texts == 30
    assert set(result.accuracies) == {"standard", "uniform", "embedding", "other seed 1"}
    for e in result.accuracies.values():
        assert e.mean > 0.8


def test_the_rows_and_what_they_rest_on(result: Comparison, classifiers: Classifiers):
    assert [row.final.of for row in result.rows] == [
        "a, r′", "Δ, r′", "∇, r′", "embedding, r′", "counts, r′", "a, r of other seed", "a, a of other seed", "a, Δ",
        "a, ∇",
    ]  # fmt: skip
    _, standard = classifiers("standard")
    _, uniform = classifiers("uniform", seed=2, scoring="uniform")
    pairs = [(a.attention[-1], b.relevance[-1]) for a, b in zip(standard.texts, uniform.texts, strict=True)]
    assert result.row("a, r′").final.agreement.mean == pytest.approx(np.mean([agreement(*pair) for pair in pairs]))
    assert np.allclose([text.attention.std(1) for text in uniform.texts], 0, atol=1e-6)
    for row in result.rows:
        assert row.final.agreement.n == (12 if "Δ" in row.final.of or "∇" in row.final.of else 30)
        assert (row.best is None) == (row.final.of in ("a, Δ", "a, ∇"))
    counts = result.row("counts, r′")
    assert counts.final.agreement.mean > 2 * counts.final.chance.mean


def test_the_best_step_is_chosen_on_every_second_text_and_measured_on_the_others(
    result: Comparison, classifiers: Classifiers
):
    _, standard = classifiers("standard")
    _, uniform = classifiers("uniform", seed=2, scoring="uniform")
    accurate = int(np.argmax(standard.accuracy))
    each = np.array(
        [
            [
                agreement(a.attention[accurate], b.relevance[s])
                for a, b in zip(standard.texts, uniform.texts, strict=True)
            ]
            for s in range(len(uniform.steps))
        ]
    )
    step = int(np.argmax(each[:, ::2].mean(1)))
    best = result.row("a, r′").best
    assert best is not None
    assert best.step == uniform.steps[step]
    assert best.agreement.agreement.mean == pytest.approx(each[step, 1::2].mean())
    assert best.agreement.agreement.n == 15


def test_training_begins_uniform(result: Comparison, classifiers: Classifiers):
    _, standard = classifiers("standard")
    a = standard.texts[0].attention[0]
    assert result.first_entropy.mean > 0.98
    assert -sum(x * log(x) for x in a.tolist()) / log(len(a)) == pytest.approx(result.first_entropy.mean, abs=0.02)
    assert 0 < result.first_spread.mean < 0.5


def test_the_accuracy_of_other_seeds_at_the_same_agreement(result: Comparison, classifiers: Classifiers):
    _, standard = classifiers("standard")
    _, other = classifiers("standard-1", seed=1)
    value = result.row("a, r′").final.agreement.mean
    expected = float("nan")
    for step in range(len(other.steps)):
        pairs = [(a.attention[-1], b.attention[step]) for a, b in zip(standard.texts, other.texts, strict=True)]
        if np.mean([agreement(*pair) for pair in pairs]) > value:
            expected = float(other.accuracy[step])
            break
    assert result.row("a, r′").xi == pytest.approx(expected, nan_ok=True)


def test_what_is_trained_is_named_and_kept(result: Comparison, classifiers: Classifiers):
    assert all(map(classifiers.has, ("standard", "standard-1", "uniform", "mean_embedding")))
    assert repr(compare(classifiers, seeds=2, influenced=12)) == repr(result)


# ------------------------------------------------------------------------------------------------------ influence


def test_influence_is_the_change_of_the_log_odds_without_each_token():
    model = build("pooled_bilstm", dtype=torch.float64)
    texts = [Example("1", "a fine film with no heart", "good"), Example("2", "good", "bad")]

    def odds(text: str, label: int) -> float:
        p = forward(model, model.batch(model.encode([text]))).logits.softmax(-1)[0, label]
        return float((p / (1 - p)).log())

    delta, single = leave_one_out(model, texts)
    words = str(texts[0].text).split()
    for i in range(len(words)):
        without = " ".join(words[:i] + words[i + 1 :])
        assert delta[i] == pytest.approx(odds(str(texts[0].text), 2) - odds(without, 2), abs=1e-6)
    assert single.tolist() == [0]


def test_influence_ranks_the_tokens_of_a_text_whose_label_is_almost_certain():
    """log p rounds to 0 there: all of its differences would be equal."""
    exact, sure = (build("pooled_bilstm", dtype=dtype) for dtype in (torch.float64, torch.float32))
    for parameter in sure.module.classifier.parameters():
        parameter.data *= 60
    exact.module.load_state_dict(sure.module.state_dict())
    text = "a fine film with no heart"
    logits = forward(sure, sure.batch(sure.encode([text]))).logits
    assert float(logits.log_softmax(-1).max()) > -1e-6
    example = Example("1", text, sure.labels[int(logits.argmax())])
    [wanted], [delta] = (leave_one_out(model, [example]) for model in (exact, sure))
    np.testing.assert_allclose(delta, wanted, rtol=1e-4)
    assert len(set(delta.tolist())) == len(delta)


@pytest.mark.parametrize("labels", [3, 2])
def test_the_gradient_form_is_the_derivative_of_gates(labels: int):
    """Of log p; with two labels, of the log-odds, also where both are in one batch."""
    model = build("pooled_bilstm", dtype=torch.float64).fresh([str(c) for c in range(labels)], seed=0)
    examples = [Example("1", "a fine film with no heart", "0"), Example("2", "no film with a fine heart", "1")]
    for example, gradient in zip(examples, gradient_form(model, examples), strict=True):
        batch = model.batch(model.encode([example.text]))
        e, label = model.embed(batch), int(str(example.label))

        def value(gates: torch.Tensor, e: torch.Tensor = e, batch: Batch = batch, label: int = label) -> float:
            logits = forward(model, batch, embeddings=e * gates[:, None]).logits
            return float(log_odds(logits, torch.tensor([label])) if labels == 2 else logits.log_softmax(-1)[0, label])

        n, h = batch.width, 1e-5
        for i in range(n):
            one = torch.eye(n, dtype=torch.float64)[i]
            up, down = (torch.ones(n, dtype=torch.float64) + s * h * one for s in (1, -1))
            assert gradient[i] == pytest.approx((value(up) - value(down)) / (2 * h), abs=1e-6)


def test_keywords_are_what_counts_find(classifiers: Classifiers):
    words = classifiers.word_weights()
    vocabulary = classifiers.start.tokenizer.get_vocab()
    for column, label in enumerate(classifiers.start.labels):
        weights = words.weights[:, column]
        best = sorted(vocabulary, key=lambda word: -weights[vocabulary[word]])[:2]
        assert set(best) == set(KEYWORDS[label])
