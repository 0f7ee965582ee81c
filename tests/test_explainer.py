"""From texts to Explanations: order, targets, settings, shared passes."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import salience
from salience.erasure import replaced
from salience.errors import BadInput, BadModel
from salience.methods.gradient import gradient
from salience.types import Batch, Model, Target, Targets
from shapes import TEXTS, build


def count_passes(module: nn.Module) -> list[int]:
    """Counts forward passes: how often the whole module is called."""
    runs = [0]

    def count(*_: object) -> None:
        runs[0] += 1

    module.register_forward_pre_hook(count)
    return runs


def test_texts_come_back_in_order_with_their_methods_in_order():
    found = salience.explain(build("bert"), list(TEXTS), ["input_x_gradient", "gradient"])
    assert [(e.text, e.method) for e in found] == [(t, m) for t in TEXTS for m in ("input_x_gradient", "gradient")]


def test_one_pass_methods_asked_for_together_share_one_pass():
    model = build("bert")
    salience.explain(model, TEXTS[0], "attention")  # where the classifier reads is found out once per model
    runs = count_passes(model.module)
    together = salience.explain(model, TEXTS[1], ["gradient", "input_x_gradient", "attention"])
    assert runs == [1]
    alone = [salience.explain(model, TEXTS[1], m)[0] for m in ("gradient", "input_x_gradient", "attention")]
    for a, b in zip(together, alone, strict=True):
        assert a.scores == pytest.approx(b.scores, rel=1e-4, abs=1e-5)


def test_attention_alone_needs_no_backward_pass(monkeypatch: pytest.MonkeyPatch):
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a backward pass was made")

    model = build("bert")
    salience.explain(model, TEXTS[0], "attention")  # where the classifier reads is found out once per model
    monkeypatch.setattr(torch.autograd, "grad", never)
    salience.explain(model, TEXTS[0], "attention")


def test_the_predicted_label_is_explained_unless_another_is_named():
    model = build("bert")
    (found,) = salience.explain(model, TEXTS[0], "input_x_gradient")
    assert found.target.label == max(found.probabilities, key=found.probabilities.__getitem__)
    (other,) = salience.explain(model, TEXTS[0], "input_x_gradient", target="LABEL_2", kind="probability")
    assert other.target.label == "LABEL_2"
    assert other.value == pytest.approx(other.probabilities["LABEL_2"], abs=1e-6)


@pytest.mark.parametrize("kind", ["logit", "probability", "log_probability"])
def test_each_scale_explains_its_own_number(kind: str):
    model = build("bert")
    (found,) = salience.explain(model, TEXTS[0], "integrated_gradients", target=1, against=0, kind=kind, nodes=64)
    batch = model.batch(model.encode([TEXTS[0]]))
    logits = salience.passes.forward(model, batch).logits
    scaled = {"logit": logits, "probability": logits.softmax(-1), "log_probability": logits.log_softmax(-1)}[kind]
    assert found.value == pytest.approx(float(scaled[0, 1] - scaled[0, 0]), rel=1e-5, abs=1e-5)
    b = replaced(model, batch, batch.content, found.settings["baseline"])
    low = salience.passes.forward(model, batch, embeddings=b).logits
    low = {"logit": low, "probability": low.softmax(-1), "log_probability": low.log_softmax(-1)}[kind]
    climb = float(scaled[0, 1] - scaled[0, 0] - low[0, 1] + low[0, 0])
    assert sum(found.scores) == pytest.approx(climb, abs=1e-3 * max(map(abs, found.scores)))
    assert found.gaps["completeness"] == pytest.approx(sum(found.scores) - climb, rel=1e-5, abs=1e-5)


def test_multi_label_probabilities_are_independent():
    model = build("bert_multi_label")
    (found,) = salience.explain(model, TEXTS[0], "gradient")
    logits = salience.passes.forward(model, model.batch(model.encode([TEXTS[0]]))).logits
    assert list(found.probabilities.values()) == pytest.approx(logits.sigmoid()[0].tolist(), abs=1e-6)


def test_regression_has_no_probability():
    model = build("bert_regression")
    (found,) = salience.explain(model, TEXTS[0], "gradient")
    assert found.value == pytest.approx(next(iter(found.probabilities.values())))
    with pytest.raises(BadInput, match="regression"):
        salience.explain(model, TEXTS[0], "gradient", kind="probability")


def test_a_label_against_itself_is_refused():
    with pytest.raises(BadInput, match="always 0"):
        salience.explain(build("bert"), TEXTS[0], "gradient", target=1, against=1)


def test_a_text_predicted_as_what_it_is_held_against_is_told_to_name_its_target():
    model = build("bert")
    (found,) = salience.explain(model, TEXTS[0], "gradient")
    with pytest.raises(BadInput, match=f"a text is predicted '{found.target.label}'.*Name the target"):
        salience.explain(model, list(TEXTS), "gradient", against=found.target.label)


def test_scores_that_are_no_numbers_are_not_given_out():
    def overflow(model: Model, batch: Batch, target: Targets, /) -> torch.Tensor:
        return batch.mask.half() * 60000 * 2

    with pytest.raises(BadModel, match=r"overflow of tiny-bert came out NaN or infinite.*float32"):
        salience.explain(build("bert"), TEXTS[0], overflow)


def test_unknown_names_suggest_the_nearest():
    model = build("bert")
    with pytest.raises(BadInput, match="Did you mean 'integrated_gradients'"):
        salience.explain(model, TEXTS[0], "integrated_gradient")
    with pytest.raises(BadInput, match="Did you mean 'reduction'"):
        salience.explain(model, TEXTS[0], "gradient", reducton="l1")
    with pytest.raises(BadInput, match="unknown reduction of gradient 'l3'"):
        salience.explain(model, TEXTS[0], "gradient", reduction="l3")
    with pytest.raises(BadInput, match="unknown kind"):
        salience.explain(model, TEXTS[0], "gradient", kind="prob")


def test_settings_go_to_the_methods_that_take_them_and_are_recorded():
    found = salience.explain(build("bert"), TEXTS[0], ["gradient", "input_x_gradient"], reduction="l1")
    assert [e.settings for e in found] == [{"reduction": "l1"}, {}]


def test_a_function_and_a_partial_are_methods():
    def ones(model: Model, batch: Batch, target: Targets, /, *, factor: float = 1.0) -> torch.Tensor:
        return batch.mask * factor

    found = salience.explain(build("bert"), TEXTS[0], [ones, partial(gradient, reduction="linf")], factor=2.0)
    assert found[0].method == "ones"
    assert set(found[0].scores) == {2.0}
    assert found[1].settings == {"reduction": "linf"}


def test_every_layer_becomes_an_explanation():
    found = salience.explain(build("bert"), TEXTS[0], "attention", layer="all")
    assert [e.settings["layer"] for e in found] == [1, 2, 3]


@pytest.mark.parametrize("layer", ["last", 1.5])
def test_a_layer_is_a_number_or_all(layer: object):
    with pytest.raises(BadInput, match=f"layer of attention takes a whole number, 'all' or nothing, not {layer!r}"):
        salience.explain(build("bert"), TEXTS[0], "attention", layer=layer)


def test_numbers_of_numpy_are_numbers():
    model = build("bert")
    asked = {"nodes": np.int64(5)}, {"tolerance": np.float32(0.5)}
    for settings, name in zip(asked, ("nodes", "tolerance"), strict=True):
        (found,) = salience.explain(model, TEXTS[0], "integrated_gradients", **settings)
        assert json.loads(found.to_json())["settings"][name] == settings[name]
    (found,) = salience.explain(model, TEXTS[0], "attention", heads=[np.int64(1)], layer=np.int64(-1))
    assert (found.settings["heads"], found.settings["layer"]) == ([1], 3)
    with pytest.raises(BadInput, match="takes a whole number, not True"):
        salience.explain(model, TEXTS[0], "smooth_grad", samples=True)


def test_an_explanation_survives_json():
    (found,) = salience.explain(build("bert"), TEXTS[3], "integrated_gradients", nodes=4)
    again = salience.Explanation.from_dict(json.loads(found.to_json()))
    assert again == found
    assert hash(again) == hash(found)


def test_top_words_are_the_highest():
    (found,) = salience.explain(build("bert"), TEXTS[1], "input_x_gradient")
    words = found.words()
    top = found.top(0.3)
    assert [w.score for w in top] == sorted((w.score for w in words), reverse=True)[: len(top)]
    assert sum(found.binarised(0.3)) == len(top)


def test_a_target_object_can_be_given():
    (found,) = salience.explain(build("bert"), TEXTS[0], "gradient", target=Target(2, kind="log_probability"))
    assert (found.target.label, found.target.kind) == ("LABEL_2", "log_probability")


def test_no_texts_give_no_explanations():
    assert salience.explain(build("bert"), [], "gradient") == []


def test_a_setting_for_one_method_alone():
    found = salience.explain(
        build("bert"), TEXTS[0], ["gradient", "smooth_grad"], **{"smooth_grad.reduction": "l1", "samples": 2}
    )
    assert [e.settings["reduction"] for e in found] == ["l2", "l1"]


def test_a_setting_of_the_wrong_type_is_refused_before_anything_runs():
    with pytest.raises(BadInput, match="samples of smooth_grad takes a whole number, not 'many'"):
        salience.explain(build("bert"), TEXTS[0], "smooth_grad", samples="many")


def test_a_label_for_each_text():
    model = build("bert")
    texts = ["a fine film", "a dull one", "so it goes"]
    found = salience.explain(model, texts, "input_x_gradient", target=[2, "LABEL_0", None])
    alone = [
        salience.explain(model, t, "input_x_gradient", target=label)[0]
        for t, label in zip(texts, (2, 0, None), strict=True)
    ]
    assert [e.target for e in found] == [e.target for e in alone]
    for a, b in zip(found, alone, strict=True):
        assert a.scores == pytest.approx(b.scores, rel=1e-4, abs=1e-5)
    with pytest.raises(BadInput, match="2 labels for 3 texts"):
        salience.explain(model, texts, target=[0, 1])
