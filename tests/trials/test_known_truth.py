"""Tests with an answer: planted shortcuts, models that are changed in a known way, models trained again."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from reviews import reviews
from salience.data.examples import Example
from salience.data.shortcuts import SHORTCUT_KINDS, Shortcut, inserted, planted, spurious
from salience.errors import BadInput, BadModel
from salience.evaluation.evaluator import evaluate
from salience.explanations.explainer import explain, prepare
from salience.metrics.robustness import distance, likeness, max_sensitivity, randomised
from salience.training.loop import Recipe, fit
from salience.training.monitors import accuracy
from salience.trials.roar import RoarCurve, racu, roar
from salience.trials.shortcuts import learnt, pointed, shortcuts
from salience.trials.simulatability import simulatability
from shapes import TEXTS, build

# ------------------------------------------------------------------------------------------------------ shortcuts


KNOWN = Shortcut("token", words=("fox", "dog"), context="lazy")
"""Of words that the small models of the tests know."""


def test_a_spurious_word_agrees_with_the_label_as_often_as_asked_and_is_no_rationale():
    texts = [Example(str(i), "a  dull but well  made film", i % 2, ((3, 12), (16, 27))) for i in range(200)]
    shortcut = Shortcut()
    for agreement in (0.0, 0.5, 0.95, 1.0):
        marked = spurious(texts, shortcut, agreement=agreement, seed=3)
        agrees = 0
        for before, e in zip(texts, marked, strict=True):
            (word,) = [w for w in e.text.split() if w in shortcut.words]
            agrees += shortcut.words.index(word) == e.label
            assert " ".join(w for w in e.text.split() if w != word) == " ".join(before.text.split())
            marks = [e.text[a:b] for a, b in e.rationale]
            assert word not in " ".join(marks), "the word is never part of the rationale"
            kept = "".join(before.text[a:b] for a, b in before.rationale)
            assert "".join(marks).replace(" ", "") == kept.replace(" ", "")
            assert e.label == before.label
        assert agrees == agreement * 200
    places = {e.text.split().index(next(w for w in e.text.split() if w in shortcut.words)) for e in marked}
    assert places == set(range(7)), "the word is put everywhere"
    assert spurious(texts, shortcut, seed=3) == spurious(texts, shortcut, seed=3)
    assert not spurious([Example("a", "paris in spring", 0)], shortcut)
    with pytest.raises(BadInput, match="stands for label 0 or 1; the examples also have 2"):
        spurious([Example("a", "a film", 2)], shortcut)
    with pytest.raises(BadInput, match="between 0 and 1"):
        spurious(texts, shortcut, agreement=2.0)


def texts(count: int = 40) -> list[Example]:
    rng = Random(0)
    words = ("the", "film", "is", "a", "mess", "of", "no", "heart", "and", "plot")
    return [Example(str(i), " ".join(rng.choices(words, k=8)), rng.randrange(2)) for i in range(count)]


@pytest.mark.parametrize("kind", SHORTCUT_KINDS)
def test_the_planted_words_determine_the_label(kind: str):
    shortcut = Shortcut(kind)
    result = planted(texts(), shortcut, share=0.5, seed=1)
    assert result == planted(texts(), shortcut, share=0.5, seed=1)
    chosen = [e for e in result if e.rationale]
    assert len(chosen) == 20
    assert {e.label for e in chosen} == {0, 1}
    for e in chosen:
        words = [e.text[a:b] for a, b in e.rationale]
        if kind == "token":
            assert words == [shortcut.words[e.label]]
        elif kind == "context":
            assert sorted(words) == sorted([shortcut.words[e.label], shortcut.context])
        else:
            assert words == [shortcut.words[e.label], shortcut.words[1 - e.label]], "the order is the label"
    for e, before in zip(result, texts(), strict=True):
        if e.rationale is None:
            assert e.label == before.label
            present = {w for w in (*shortcut.words, shortcut.context) if w in e.text.split()}
            assert len(present) == (0 if kind == "token" else 1), "one word alone tells nothing"
    held = [Example("a", f"The {shortcut.words[0].title()}, a film", 0), *texts(3)]
    assert len(planted(held, shortcut)) == 3, "a text that holds one of the words by itself is left out"
    loud = Shortcut(kind, words=("PARIS", "London"))
    assert len(planted([Example("a", "i love paris", 0), *texts(3)], loud)) == 3, "whatever its case"
    with pytest.raises(BadInput, match="needs different words"):
        Shortcut(kind, words=("new york", "london"))


def test_words_are_inserted_in_order_between_others():
    for seed in range(20):
        text, spans = inserted("a b c", ["x", "y"], Random(seed))
        assert [text[a:b] for a, b in spans] == ["x", "y"]
        assert [w for w in text.split() if w not in "xy"] == ["a", "b", "c"]


def test_a_method_that_uses_the_model_finds_the_shortcut_and_a_control_does_not():
    """An average of word vectors in which only the planted words count: the truth is known to the last digit."""
    given = planted(texts(), KNOWN, share=1.0)
    model = build("pooled_embedding")
    list(fit(model, given, recipe=Recipe(epochs=40, batch=10, rate=0.03)))
    assert accuracy(model, given) > 0.95
    result = pointed(model, given, KNOWN, ["occlusion", "input_x_gradient"])
    assert set(result) == {"occlusion", "input_x_gradient", "random", "uniform", "position"}
    assert result["occlusion"].precision.mean > 0.9
    assert result["occlusion"].rank.mean < 0.1
    assert result["random"].precision.mean < 0.5
    assert 0.3 < result["random"].rank.mean < 0.7
    with pytest.raises(BadModel, match="has not learnt"):
        pointed(build("pooled_embedding"), given, KNOWN, "occlusion")
    with pytest.raises(BadInput, match="0 texts have a planted"):
        pointed(model, texts(), KNOWN, "occlusion")


def test_a_model_is_trained_until_it_uses_what_was_planted():
    given = texts(60)
    recipe = Recipe(epochs=60, batch=10, rate=0.03)
    result = shortcuts(make, given, given, KNOWN, "occlusion", share=1.0, recipe=recipe)
    assert result.learnt.used
    assert result.epochs < 60, "it stops as soon as the shortcut is used"
    assert result.texts == 60
    assert result.found["occlusion"].precision.mean > result.found["random"].precision.mean
    with pytest.raises(BadModel, match="has not learnt"):
        shortcuts(make, given, given, KNOWN, "occlusion", recipe=Recipe(epochs=1, rate=1e-6))
    with pytest.raises(BadInput, match="does not know"):
        shortcuts(make, given, given, Shortcut(words=("xylophone", "zyzzyva")), "occlusion")


def test_context_that_is_not_read_is_not_learnt():
    """An average sees the word whether its context stands beside it or not."""
    shortcut = replace(KNOWN, kind="context")
    given = planted(texts(60), shortcut, share=1.0)
    model = make(0)
    list(fit(model, given, recipe=Recipe(epochs=40, batch=10, rate=0.03)))
    known = learnt(model, given, shortcut)
    assert known.accuracy > 0.95
    assert known.without > 0.95
    assert not known.used
    with pytest.raises(BadModel, match="without the context word"):
        pointed(model, given, shortcut, "occlusion")


# ------------------------------------------------------------------------------------------------------ robustness


def moved(shape: str, method: object, metric: str, **settings: object) -> list[float]:
    result = evaluate(build(shape, dtype=torch.float64), TEXTS, method, metrics=[metric], **settings)
    return list(result.cells[result.methods[0], metric].values)


@pytest.mark.parametrize("shape", ["bert", "gpt2", "pooled_bilstm"])
def test_gradients_do_not_see_a_shift_that_is_taken_back_and_their_product_with_the_input_does(shape: str):
    still = [0.0] * len(TEXTS)
    for name in ("gradient", "occlusion", "attention"):
        assert moved(shape, name, "input_invariance") == pytest.approx(still, abs=1e-6)
    model = build(shape)
    several = [sum(not s for s in e.special) for e in model.encode(TEXTS)]
    product = moved(shape, "input_x_gradient", "input_invariance")
    assert all(x > 0.1 for x, n in zip(product, several, strict=True) if n > 1)
    # A baseline that moves with the words hides the shift; one that stays at 0 shows it.
    four = {"integrated_gradients.nodes": 4}
    if "mask" in model.replacements:
        hidden = moved(shape, "integrated_gradients", "input_invariance", **four, baseline="mask")
        assert hidden == pytest.approx(still, abs=1e-5)
    assert max(moved(shape, "integrated_gradients", "input_invariance", **four, baseline="zero")) > 0.01


def test_sensitivity_grows_with_the_radius_and_is_zero_for_a_constant():
    def sensitivity(method: str, samples: int = 3, radius: float = 0.02) -> np.ndarray:
        given = {"max_sensitivity.samples": samples, "max_sensitivity.radius": radius}
        return np.array(moved("bert", method, "max_sensitivity", **given))

    small, large = (sensitivity("gradient", radius=r).mean() for r in (1e-6, 0.2))
    assert 0 < small < 1e-3 < large
    assert (sensitivity("gradient", 3) >= sensitivity("gradient", 1)).all()
    result = evaluate(build("bert"), TEXTS, "gradient", metrics=["max_sensitivity"])
    assert result.cells["uniform", "max_sensitivity"].values == (0.0,) * len(TEXTS)
    assert not result.cells["gradient", "max_sensitivity"].beats_random


def test_the_largest_distance_of_all_changed_models_is_what_counts():
    """The literal version: the model is moved by hand, and every text explained again by itself."""
    model = build("bert", dtype=torch.float64)
    before = [np.array(e.scores) for e in explain(model, list(TEXTS), "gradient")]
    content = [~np.array(e.special) for e in model.encode(TEXTS)]
    worst = np.zeros(len(TEXTS))
    for other in max_sensitivity(model, samples=3, seed=5):
        for i, text in enumerate(TEXTS):
            label = explain(model, text, "gradient")[0].target.label
            (after,) = explain(other, text, "gradient", target=label)
            a, b = before[i][content[i]], np.array(after.scores)[content[i]]
            worst[i] = max(worst[i], np.sqrt(((a - b) ** 2).sum() / (a**2).sum()))
    given = {"max_sensitivity.samples": 3, "max_sensitivity.seed": 5}
    assert moved("bert", "gradient", "max_sensitivity", **given) == pytest.approx(worst.tolist(), rel=1e-6)


def test_methods_that_depend_on_the_model_change_with_it():
    model = build("bert", dtype=torch.float64)
    before = {name: p.clone() for name, p in model.module.named_parameters()}
    other = randomised(model)
    assert all(torch.equal(p, before[name]) for name, p in model.module.named_parameters())
    for (name, p), (_, q) in zip(model.module.named_parameters(), other.module.named_parameters(), strict=True):
        assert torch.equal(p.flatten().sort().values, q.flatten().sort().values), name
    result = evaluate(model, TEXTS, "gradient", metrics=["parameter_randomisation"])
    assert result.cells["position", "parameter_randomisation"].values[1] == pytest.approx(1)
    assert result.cells["gradient", "parameter_randomisation"].estimate.mean < 0.9
    assert np.isnan(distance(np.zeros(2), np.ones(2)))
    assert distance(np.zeros(2), np.zeros(2)) == 0
    assert likeness(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])) == pytest.approx(1)


def test_existing_explanations_cannot_be_recomputed_for_a_changed_model():
    model = build("bert")
    there = {"theirs": explain(model, list(TEXTS), "gradient")}
    with pytest.raises(BadInput, match="max_sensitivity explains texts again"):
        evaluate(model, TEXTS, (), explained=there, metrics=["max_sensitivity"])
    result = evaluate(model, TEXTS, "gradient", explained=there, metrics=["input_invariance"])
    assert result.cells["theirs", "input_invariance"].estimate.n == 0
    assert result.cells["gradient", "input_invariance"].estimate.n == len(TEXTS)


# ------------------------------------------------------------------------------------------------------ retraining


def make(seed: int):
    return build("pooled_embedding", seed=seed)


SHORT = Recipe(epochs=15, batch=8, rate=0.05)


@pytest.mark.parametrize("recursive", [True, False])
def test_nothing_is_learnt_without_the_decisive_words(recursive: bool):
    given = planted(texts(24), KNOWN, share=1.0)
    shares = (0.0, 0.5, 1.0)
    curves = roar(make, given, given, "occlusion", shares=shares, seeds=[0], recursive=recursive, recipe=SHORT)
    result, drawn = curves["occlusion"], curves["random"]
    assert result.at(0.0).mean > 0.95
    assert result.at(0.5).mean < drawn.at(0.5).mean
    assert racu(result, drawn) > 0


def test_finished_trainings_are_not_repeated(tmp_path: Path):
    given, reported = planted(texts(8), KNOWN, share=1.0), list[tuple[str, int, float]]()

    def trained(epochs: int = 1, seeds: Sequence[int] = (0,)) -> dict[str, RoarCurve]:
        recipe = replace(SHORT, epochs=epochs)

        def report(method: str, seed: int, share: float, _: float) -> None:
            reported.append((method, seed, share))

        return roar(
            make, given, given, "gradient", shares=(0, 1), seeds=seeds, recipe=recipe, folder=tmp_path, report=report
        )

    first = trained()
    assert reported == [("gradient", 0, 0), ("gradient", 0, 1), ("random", 0, 0), ("random", 0, 1)]
    assert trained() == first
    assert len(reported) == 4
    assert trained(seeds=(0, 1))["gradient"].accuracy[0] == first["gradient"].accuracy[0]
    assert len(reported) == 8
    with pytest.raises(BadInput, match="choose another folder"):
        trained(epochs=2)
    with pytest.raises(BadInput, match="gradiant"):
        roar(make, given, given, "gradiant")


def test_what_is_the_same_for_all_methods_is_trained_once():
    given, made = planted(texts(8), KNOWN, share=1.0), list[int]()

    def counted(seed: int):
        made.append(seed)
        return make(seed)

    recipe = replace(SHORT, epochs=1)
    curves = roar(counted, given, given, ["gradient", "occlusion"], shares=(0, 0.5, 1), seeds=(3,), recipe=recipe)
    assert len(made) == 1 + 1 + 2 + 3, "one to check, one to read texts, both ends, and the middle of three methods"
    assert len({curve.accuracy[0][0] for curve in curves.values()}) == 1
    assert len({curve.accuracy[0][2] for curve in curves.values()}) == 1


def test_with_all_tokens_masked_all_methods_are_equal():
    from salience.trials.roar import _Texts

    model = build("bert")
    some = _Texts.of(model, reviews(6))
    gradient, random = prepare(["gradient", "random"], {})
    assert some.bare().encoded == some.masked(model, gradient, 1.0).encoded
    assert some.bare().encoded == some.masked(model, random, 0.3).masked(model, gradient, 1.0).encoded


def test_racu_by_hand():
    shares = (0.0, 0.5, 1.0)
    chance, random = RoarCurve(shares, ((0.9, 0.5, 0.5),)), RoarCurve(shares, ((0.9, 0.7, 0.5),))
    assert racu(random, random) == 0
    assert np.isnan(racu(random, RoarCurve(shares, ((0.5, 0.52, 0.55),)))), "nothing is lost to begin with"
    # between the curves: a triangle of height .2 over 0 to 1; above the end: .4 over .5, then .2 over .5 and down
    assert racu(chance, random) == pytest.approx(0.1 / (0.15 + 0.05))
    with pytest.raises(BadInput, match="same shares"):
        racu(RoarCurve((0.0, 1.0), ((1.0, 0.5),)), random)


def test_masked_tokens_are_masked_and_stay_so():
    from salience.trials.roar import _Texts

    model = build("bert")
    some = _Texts.of(model, reviews(6))
    (gradient,) = prepare("gradient", {})
    half = some.masked(model, gradient, 0.5)
    most = half.masked(model, gradient, 0.8)
    for a, b, c, e in zip(some.encoded, half.encoded, most.encoded, half.whole, strict=True):
        content = [i for i, s in enumerate(e.special) if not s]
        gone = [i for i in content if b.ids[i] == model.replacements["mask"]]
        assert len(gone) == round(0.5 * len(content))
        assert all(b.special[i] for i in gone)
        assert set(gone) <= {i for i in content if c.ids[i] == model.replacements["mask"]}
        assert a.ids == e.ids


def test_a_student_learns_from_its_teacher():
    given = [replace(e, label=e.label) for e in reviews(24)]
    teacher = make(0)
    list(fit(teacher, given, recipe=SHORT))
    reported: list[tuple[str, int, float]] = []
    result = simulatability(
        make,
        teacher,
        given,
        given,
        "occlusion",
        seeds=[1],
        recipe=SHORT,
        share=0.3,
        report=lambda *one: reported.append(one),
    )
    assert list(result) == ["none", "occlusion", "random"]
    assert reported == [(name, 1, spread.mean) for name, spread in result.items()]
    assert 0.5 < result["none"].mean <= 1
    assert 0.5 < result["occlusion"].mean <= 1
