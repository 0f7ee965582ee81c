"""From texts to Explanations: order, targets, settings, shared passes."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import salience
from salience.core.erasure import replaced
from salience.core.target import Target
from salience.core.types import Batch, Model, Targets
from salience.errors import BadInput, BadModel
from salience.methods.gradient import gradient
from shapes import TEXTS, build


def count_passes(module: nn.Module) -> list[int]:
    """Counts forward passes: how often the whole module is called."""
    runs = [0]

    def count(*_: object) -> None:
        runs[0] += 1

    module.register_forward_pre_hook(count)
    return runs


def test_texts_come_back_in_order_with_their_methods_in_order():
    results = salience.explain(build("bert"), list(TEXTS), ["input_x_gradient", "gradient"])
    assert [(e.text, e.method) for e in results] == [(t, m) for t in TEXTS for m in ("input_x_gradient", "gradient")]


def test_one_pass_methods_share_one_pass():
    model = build("bert")
    salience.explain(model, TEXTS[0], "attention")  # where the classifier reads is determined once per model
    runs = count_passes(model.module)
    together = salience.explain(model, TEXTS[1], ["gradient", "input_x_gradient", "attention"])
    assert runs == [1]
    alone = [salience.explain(model, TEXTS[1], m)[0] for m in ("gradient", "input_x_gradient", "attention")]
    for a, b in zip(together, alone, strict=True):
        assert a.scores == pytest.approx(b.scores, rel=1e-4, abs=1e-5)


def test_a_method_with_a_pass_of_its_own_needs_no_other_to_know_the_prediction():
    model = build("bert")
    salience.explain(model, TEXTS[0], "lrp")
    runs = count_passes(model.module)
    (alone,) = salience.explain(model, TEXTS[1], "lrp")
    assert runs == [1]
    both = salience.explain(model, TEXTS[1], ["gradient", "lrp"])
    assert runs == [3]
    salience.explain(model, TEXTS[1], ["random", "lrp"])
    assert runs == [4]
    assert alone.scores == pytest.approx(both[1].scores, rel=1e-4, abs=1e-5)
    assert alone.target == both[0].target
    assert alone.value == pytest.approx(both[0].value, rel=1e-5)


def test_attention_alone_needs_no_backward_pass(monkeypatch: pytest.MonkeyPatch):
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a backward pass was made")

    model = build("bert")
    salience.explain(model, TEXTS[0], "attention")  # where the classifier reads is determined once per model
    monkeypatch.setattr(torch.autograd, "grad", never)
    salience.explain(model, TEXTS[0], "attention")


def test_the_predicted_label_is_explained_unless_another_is_named():
    model = build("bert")
    (result,) = salience.explain(model, TEXTS[0], "input_x_gradient")
    assert result.target.label == max(result.probabilities, key=result.probabilities.__getitem__)
    (other,) = salience.explain(model, TEXTS[0], "input_x_gradient", target="LABEL_2", kind="probability")
    assert other.target.label == "LABEL_2"
    assert other.value == pytest.approx(other.probabilities["LABEL_2"], abs=1e-6)


@pytest.mark.parametrize("kind", ["logit", "probability", "log_probability"])
def test_each_scale_explains_its_own_number(kind: str):
    model = build("bert")
    (result,) = salience.explain(model, TEXTS[0], "integrated_gradients", target=1, against=0, kind=kind, nodes=64)
    batch = model.batch(model.encode([TEXTS[0]]))
    logits = salience.core.passes.forward(model, batch).logits
    scaled = {"logit": logits, "probability": logits.softmax(-1), "log_probability": logits.log_softmax(-1)}[kind]
    assert result.value == pytest.approx(float(scaled[0, 1] - scaled[0, 0]), rel=1e-5, abs=1e-5)
    b = replaced(model, batch, batch.content, result.settings["baseline"])
    low = salience.core.passes.forward(model, batch, embeddings=b).logits
    low = {"logit": low, "probability": low.softmax(-1), "log_probability": low.log_softmax(-1)}[kind]
    climb = float(scaled[0, 1] - scaled[0, 0] - low[0, 1] + low[0, 0])
    assert sum(result.scores) == pytest.approx(climb, abs=1e-3 * max(map(abs, result.scores)))
    assert result.gaps["completeness"] == pytest.approx(sum(result.scores) - climb, rel=1e-5, abs=1e-5)


def test_multi_label_probabilities_are_independent():
    model = build("bert_multi_label")
    (result,) = salience.explain(model, TEXTS[0], "gradient")
    logits = salience.core.passes.forward(model, model.batch(model.encode([TEXTS[0]]))).logits
    assert list(result.probabilities.values()) == pytest.approx(logits.sigmoid()[0].tolist(), abs=1e-6)


def test_regression_has_no_probability():
    model = build("bert_regression")
    (result,) = salience.explain(model, TEXTS[0], "gradient")
    assert result.value == pytest.approx(next(iter(result.probabilities.values())))
    with pytest.raises(BadInput, match="regression"):
        salience.explain(model, TEXTS[0], "gradient", kind="probability")


def test_a_label_against_itself_is_refused():
    with pytest.raises(BadInput, match="always 0"):
        salience.explain(build("bert"), TEXTS[0], "gradient", target=1, against=1)


def test_a_text_predicted_as_the_label_in_against_is_refused_with_a_remedy():
    model = build("bert")
    (result,) = salience.explain(model, TEXTS[0], "gradient")
    with pytest.raises(BadInput, match=f"a text is predicted '{result.target.label}'.*Name the target"):
        salience.explain(model, list(TEXTS), "gradient", against=result.target.label)


def test_nan_scores_are_refused():
    def overflow(model: Model, batch: Batch, target: Targets, /) -> torch.Tensor:
        return batch.mask.half() * 60000 * 2

    with pytest.raises(BadModel, match=r"overflow for tiny-bert are NaN or infinite.*float32"):
        salience.explain(build("bert"), TEXTS[0], overflow)


def test_unknown_names_suggest_the_nearest():
    model = build("bert")
    with pytest.raises(BadInput, match="Did you mean 'integrated_gradients'"):
        salience.explain(model, TEXTS[0], "integrated_gradient")
    with pytest.raises(BadInput, match="Did you mean 'reduction'"):
        salience.explain(model, TEXTS[0], "gradient", reducton="l1")
    with pytest.raises(BadInput, match="unknown reduction 'l3' of gradient"):
        salience.explain(model, TEXTS[0], "gradient", reduction="l3")
    with pytest.raises(BadInput, match="unknown kind"):
        salience.explain(model, TEXTS[0], "gradient", kind="prob")


def test_settings_go_to_the_methods_that_take_them_and_are_recorded():
    results = salience.explain(build("bert"), TEXTS[0], ["gradient", "input_x_gradient"], reduction="l1")
    assert [e.settings for e in results] == [{"reduction": "l1"}, {}]


def test_a_function_and_a_partial_are_methods():
    def ones(model: Model, batch: Batch, target: Targets, /, *, factor: float = 1.0) -> torch.Tensor:
        return batch.mask * factor

    results = salience.explain(build("bert"), TEXTS[0], [ones, partial(gradient, reduction="linf")], factor=2.0)
    assert results[0].method == "ones"
    assert set(results[0].scores) == {2.0}
    assert results[1].settings == {"reduction": "linf"}


def test_every_layer_becomes_an_explanation():
    results = salience.explain(build("bert"), TEXTS[0], "attention", layer="all")
    assert [e.settings["layer"] for e in results] == [1, 2, 3]


@pytest.mark.parametrize("layer", ["last", 1.5])
def test_a_layer_is_a_number_or_all(layer: object):
    with pytest.raises(BadInput, match=f"layer of attention takes a whole number, 'all' or nothing, not {layer!r}"):
        salience.explain(build("bert"), TEXTS[0], "attention", layer=layer)


def test_numpy_numbers_are_accepted():
    model = build("bert")
    asked = {"nodes": np.int64(5)}, {"tolerance": np.float32(0.5)}
    for settings, name in zip(asked, ("nodes", "tolerance"), strict=True):
        (result,) = salience.explain(model, TEXTS[0], "integrated_gradients", **settings)
        assert json.loads(result.to_json())["settings"][name] == settings[name]
    (result,) = salience.explain(model, TEXTS[0], "attention", heads=[np.int64(1)], layer=np.int64(-1))
    assert (result.settings["heads"], result.settings["layer"]) == ([1], 3)
    with pytest.raises(BadInput, match=r"takes a whole number of at least 1.*, not True"):
        salience.explain(model, TEXTS[0], "smooth_grad", samples=True)


def test_an_explanation_round_trips_through_json():
    (result,) = salience.explain(build("bert"), TEXTS[3], "integrated_gradients", nodes=4)
    again = salience.Explanation.from_dict(json.loads(result.to_json()))
    assert again == result
    assert hash(again) == hash(result)


def test_top_words_are_the_highest():
    (result,) = salience.explain(build("bert"), TEXTS[1], "input_x_gradient")
    words = result.words()
    top = result.top(0.3)
    assert [w.score for w in top] == sorted((w.score for w in words), reverse=True)[: len(top)]
    assert sum(result.binarised(0.3)) == len(top)


def test_a_target_object_can_be_given():
    (result,) = salience.explain(build("bert"), TEXTS[0], "gradient", target=Target(2, kind="log_probability"))
    assert (result.target.label, result.target.kind) == ("LABEL_2", "log_probability")


def test_no_texts_give_no_explanations():
    assert salience.explain(build("bert"), [], "gradient") == []


def test_a_setting_for_one_method_alone():
    results = salience.explain(
        build("bert"), TEXTS[0], ["gradient", "smooth_grad"], **{"smooth_grad.reduction": "l1", "samples": 2}
    )
    assert [e.settings["reduction"] for e in results] == ["l2", "l1"]


def test_a_setting_of_the_wrong_type_is_refused_before_anything_runs():
    with pytest.raises(
        BadInput, match="samples of smooth_grad takes a whole number of at least 1 and at most 1,000,000, not 'many'"
    ):
        salience.explain(build("bert"), TEXTS[0], "smooth_grad", samples="many")


def test_a_label_for_each_text():
    model = build("bert")
    texts = ["a fine film", "a dull one", "so it goes"]
    results = salience.explain(model, texts, "input_x_gradient", target=[2, "LABEL_0", None])
    alone = [
        salience.explain(model, t, "input_x_gradient", target=label)[0]
        for t, label in zip(texts, (2, 0, None), strict=True)
    ]
    assert [e.target for e in results] == [e.target for e in alone]
    for a, b in zip(results, alone, strict=True):
        assert a.scores == pytest.approx(b.scores, rel=1e-4, abs=1e-5)
    with pytest.raises(BadInput, match="2 labels for 3 texts"):
        salience.explain(model, texts, target=[0, 1])
