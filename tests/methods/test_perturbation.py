"""occlusion and lime against slow literal versions, captum and scikit-learn."""

import copy
import dataclasses
from functools import cache
from math import exp, sqrt
from typing import Any

import pytest
import torch
from captum.attr import FeatureAblation, Occlusion
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from torch import Tensor
from transformers import AutoModelForCausalLM, MistralConfig

import salience
from salience.core.erasure import REPLACEMENTS, deleted, eraser, replaced, replacement
from salience.core.passes import forward, resolve
from salience.core.rows import Erased, _after_prefix, _whole
from salience.core.target import Target
from salience.core.types import Batch, Model, Targets
from salience.errors import BadInput
from salience.explanations.explainer import prepare
from salience.methods import perturbation
from salience.methods.perturbation import lime, occlusion, unit_numbers
from salience.methods.shapley import kernel_shap, partition_shap
from salience.models.pooled import Pooled
from shapes import SHAPES, TEXTS, build

DECODERS = ("gpt2", "llama", "qwen3", "gpt2_lm", "llama_lm", "qwen3_lm")


@cache
def model_of(shape: str) -> Model:
    return build(shape, dtype=torch.float64)


def prepared(model: Model, texts: tuple[str, ...] = TEXTS) -> tuple[Batch, Targets]:
    batch = model.batch(model.encode(texts))
    return batch, resolve(model, [Target()], forward(model, batch).logits)


def value(model: Model, text: str, column: int, missing: list[int], kind: str) -> float:
    """f of one text without some tokens: one row, one pass."""
    batch = model.batch(model.encode([text]))
    where = torch.zeros_like(batch.mask)
    where[0, missing] = True
    if kind == "delete":
        return float(forward(model, deleted(batch, where)).logits[0, column])
    return float(forward(model, batch, embeddings=replaced(model, batch, where, kind)).logits[0, column])


def content(model: Model, text: str) -> list[int]:
    (encoded,) = model.encode([text])
    return [i for i, special in enumerate(encoded.special) if not special]


def close(results: Tensor, expected: Any, scale: float = 1.0, tolerance: float = 1e-5) -> bool:
    expected = torch.as_tensor(expected, dtype=results.dtype)
    return bool((results - expected).abs().max() <= tolerance * max(scale, float(expected.abs().max())))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", REPLACEMENTS)
@pytest.mark.parametrize("window", [1, 3])
def test_occlusion_is_the_drop_without_each_token(shape: str, kind: str, window: int):
    model = model_of(shape)
    batch, target = prepared(model)
    if kind not in {"zero", "mean", *model.replacements}:
        with pytest.raises(BadInput, match=f"has no {kind} token"):
            occlusion(model, batch, target, erase=kind, window=window)
        return
    results = occlusion(model, batch, target, erase=kind, window=window).scores
    for row, text in ((0, TEXTS[0]), (2, TEXTS[2])):
        column = int(target.labels[row])
        tokens = content(model, text)
        whole = value(model, text, column, [], kind)
        expected, covering = [0.0] * batch.width, [0] * batch.width
        for first in range(max(1, len(tokens) - window + 1)):
            inside = tokens[first : first + window]
            for token in inside:
                expected[token] += whole - value(model, text, column, inside, kind)
                covering[token] += 1
        mean = [e / max(1, c) for e, c in zip(expected, covering, strict=True)]
        # Rounding is that of the logits, and the explained one of them may happen to be small.
        assert close(results[row], mean, float(forward(model, batch).logits.abs().max()))


@pytest.mark.parametrize("shape", ["bert", "roberta", "pooled_bilstm", "gpt2"])
def test_deleting_closes_the_gap(shape: str):
    model = build(shape)
    texts = (TEXTS[0], TEXTS[3])
    batch, target = prepared(model, texts)
    results = occlusion(model, batch, target, erase="delete").scores
    for row, text in enumerate(texts):
        column = int(target.labels[row])
        whole = value(model, text, column, [], "delete")
        expected = torch.zeros(batch.width)
        for token in content(model, text):
            expected[token] = whole - value(model, text, column, [token], "delete")
        assert close(results[row], expected, abs(whole))


def test_words_are_erased_whole_and_share_their_score():
    model = build("bert")
    texts = ("a splendidly unlikely fox", TEXTS[0])
    batch, target = prepared(model, texts)
    results = occlusion(model, batch, target, unit="word", erase="mask").scores
    longest = 0
    for row, (text, encoded) in enumerate(zip(texts, model.encode(texts), strict=True)):
        column = int(target.labels[row])
        whole = value(model, text, column, [], "mask")
        groups = salience.core.text.members(encoded.text, encoded.offsets, encoded.special)
        for _, tokens in groups:
            drop = whole - value(model, text, column, tokens, "mask")
            assert close(results[row, tokens], [drop / len(tokens)] * len(tokens), abs(whole))
            longest = max(longest, len(tokens))
    assert longest > 1, "no word of several pieces: the test shows nothing"


def test_words_are_those_of_the_texts_that_a_batch_was_made_of():
    model = build("bert")
    batch = model.batch(model.encode(["so unlike", "so"]))
    words = unit_numbers(batch, "word")
    assert words[0].max() == 1
    assert words[0, 0] == words[1, -1] == -1
    with pytest.raises(BadInput, match="does not know its words"):
        unit_numbers(batch.take(slice(1)), "word")


def on_embeddings(model: Model, batch: Batch, column: int) -> Any:
    """The model as captum sees it: embeddings of one text, repeated, to one number each."""

    def f(embeddings: Tensor) -> Tensor:
        rows = batch.take(torch.zeros(len(embeddings), dtype=torch.long))
        return forward(model, rows, embeddings=embeddings).logits[:, column]

    return f


@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize("shape", ["pooled_bilstm", "gpt2", "llama"])
def test_equals_captum_occlusion(shape: str, window: int):
    model = build(shape)
    batch, target = prepared(model, (TEXTS[1],))
    x = model.embed(batch)
    theirs = Occlusion(on_embeddings(model, batch, int(target.labels[0]))).attribute(
        x, sliding_window_shapes=(window, x.shape[2]), baselines=0
    )
    ours = occlusion(model, batch, target, erase="zero", window=window).scores
    assert close(ours, theirs[..., 0], float(forward(model, batch).logits.abs().max()))


def test_equals_captum_feature_ablation_on_words():
    model = build("bert")
    batch, target = prepared(model, (TEXTS[1],))
    x, units = model.embed(batch), unit_numbers(batch, "word")
    baseline = torch.where(batch.content[..., None], replacement(model, "mask"), x)  # special tokens stay
    feature = torch.where(units < 0, int(units.max()) + 1, units)
    theirs = FeatureAblation(on_embeddings(model, batch, int(target.labels[0]))).attribute(
        x, baselines=baseline, feature_mask=feature[..., None].expand_as(x)
    )
    ours = occlusion(model, batch, target, erase="mask", unit="word").scores
    assert close(ours, theirs[..., 0] / perturbation.unit_sizes(units), float(forward(model, batch).logits.abs().max()))


def linear(seed: int) -> Pooled:
    """A model whose attention is uniform: f = U · mean of the embeddings + c, so every token has its own term."""
    model = build("pooled_embedding", seed)
    with torch.no_grad():
        model.module.query.weight.zero_()
    return model


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(TEXTS), st.sampled_from(["zero", "mean", "mask"]))
def test_on_a_linear_model_occlusion_and_shapley_values_are_its_terms(seed: int, text: str, kind: str):
    model = linear(seed)
    batch, target = prepared(model, (text,))
    way = model.embed(batch) - replacement(model, kind)
    terms = (way @ model.module.classifier.weight[target.labels[0]]).detach() / batch.mask.sum()
    assert close(occlusion(model, batch, target, erase=kind).scores, terms)
    assert close(kernel_shap(model, batch, target, erase=kind, samples=40).scores, terms)
    assert close(partition_shap(model, batch, target, erase=kind, max_evals=1000).scores, terms)
    fitted = lime(model, batch, target, erase=kind, samples=200, regularization=0.0)
    assert close(fitted.scores, terms, tolerance=1e-4)
    assert float(fitted.gaps["fit"]) < 1e-6


def with_tokens(shape: str, budget: int = 1024) -> Any:
    """A decoder whose tokenizer has an unknown and a mask token, though the model has no padding token."""
    model = build(shape, dtype=torch.float64)
    tokenizer = copy.deepcopy(model.tokenizer)
    tokenizer.unk_token, tokenizer.mask_token = "t", "a"
    model.executor.budget = budget
    return dataclasses.replace(model, tokenizer=tokenizer)


@pytest.mark.parametrize("shape", DECODERS)
@pytest.mark.parametrize(("kind", "budget"), [("zero", 40), ("mean", 1024), ("unk", 90), ("mask", 60), ("delete", 50)])
def test_sharing_the_prefix_changes_nothing(shape: str, kind: str, budget: int):
    model = with_tokens(shape, budget)
    texts = TEXTS if kind != "delete" else (TEXTS[0], TEXTS[1], TEXTS[3])  # "Good" may be one token
    batch, target = prepared(model, texts)
    assert model.shares_prefix(batch)
    scale = float(forward(model, batch).logits.abs().max())
    intact = Erased(torch.arange(len(batch)), batch.mask & False)
    some = [perturbation.windows(unit_numbers(batch, unit), w) for unit, w in (("token", 1), ("word", 1), ("token", 3))]
    for copies in (*some, intact):
        shared, whole = (pass_(model, batch, copies, kind, logits_of(target)) for pass_ in (_after_prefix, _whole))
        assert close(shared, whole, scale)
    assert close(shared, target(forward(model, batch).logits), scale)


def logits_of(target: Targets) -> Any:
    return lambda logits, text: target.take(text)(logits)


@pytest.mark.parametrize("shape", DECODERS)
def test_a_text_of_one_token_beside_a_long_one(shape: str):
    model = build(shape)
    ids = torch.tensor([[5, 0, 0, 0, 0, 0, 0], [7, 8, 9, 5, 6, 7, 8]])
    mask = torch.tensor([[True] + [False] * 6, [True] * 7])
    batch = Batch(ids, mask, ~mask)
    target = resolve(model, [Target()], forward(model, batch).logits)
    copies = perturbation.windows(unit_numbers(batch, "token"), 1)
    shared, whole = (pass_(model, batch, copies, "mean", logits_of(target)) for pass_ in (_after_prefix, _whole))
    assert close(shared, whole, float(forward(model, batch).logits.abs().max()))


def test_tokens_before_an_erased_token_are_not_run_again():
    model = build("gpt2")
    batch, target = prepared(model, (" ".join(TEXTS[:2]),))
    assert model.shares_prefix(batch)
    read: list[int] = []
    hook = model.module.transformer.wpe.register_forward_hook(lambda *seen: read.append(seen[2].shape[:2].numel()))
    occlusion(model, batch, target)
    hook.remove()
    n = batch.width
    assert n * (n + 1) / 2 + n <= sum(read) < 0.8 * n * n


def test_a_sliding_window_is_passed_whole():
    torch.manual_seed(0)
    plain = build("llama_lm")
    config = MistralConfig(
        **{k: getattr(plain.module.config, k) for k in ("vocab_size", "hidden_size", "num_hidden_layers")},
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, sliding_window=4,
        max_position_embeddings=64, bos_token_id=0, eos_token_id=0, pad_token_id=None, initializer_range=0.3,
    )  # fmt: skip
    model = salience.wrap(AutoModelForCausalLM.from_config(config), plain.tokenizer)
    batch, target = prepared(model, (TEXTS[0],))
    assert model.causal
    assert not model.shares_prefix(batch)
    results = occlusion(model, batch, target, erase="zero").scores[0]
    whole = value(model, TEXTS[0], int(target.labels[0]), [], "zero")
    drops = [whole - value(model, TEXTS[0], int(target.labels[0]), [i], "zero") for i in range(batch.width)]
    assert close(results, drops, abs(whole))


def test_a_text_with_the_padding_token_in_it_is_not_shared():
    model = build("gpt2")
    model.module.config.pad_token_id = 5
    ids = torch.tensor([[7, 8, 5]])
    mask = torch.ones_like(ids, dtype=torch.bool)
    assert not model.shares_prefix(Batch(ids, mask, ~mask))
    assert model.shares_prefix(Batch(ids + 20, mask, ~mask))


def test_encoders_do_not_share():
    model = build("bert")
    assert not model.shares_prefix(model.batch(model.encode(TEXTS)))


@pytest.mark.parametrize("method", [occlusion, lime, kernel_shap, partition_shap])
@pytest.mark.parametrize("unit", ["token", "word"])
def test_special_tokens_are_never_erased_and_score_nothing(method: Any, unit: str):
    model = build("bert")
    batch, target = prepared(model)
    few = {"samples": 20} if method in (lime, kernel_shap) else {}
    scores = method(model, batch, target, unit=unit, **few).scores
    assert (scores[~batch.content] == 0).all()
    assert (scores[batch.content] != 0).all()


def test_lime_is_a_weighted_ridge_regression_on_random_masks():
    model = build("bert")
    batch, target = prepared(model, (TEXTS[0],))
    column, tokens = int(target.labels[0]), content(model, TEXTS[0])
    source = salience.core.randomness.generators(batch, 3)[0]
    z = perturbation._subsets(len(tokens), 60, 0, source)
    assert z[0].all()
    assert not z[1:].all(1).any()
    y = [value(model, TEXTS[0], column, [t for t, on in zip(tokens, row, strict=True) if not on], "mask") for row in z]
    similar = [sum(row) / (sqrt(sum(row)) * sqrt(len(row))) if any(row) else 0 for row in z.tolist()]
    weights = [sqrt(exp(-((100 * (1 - c)) ** 2) / 25**2)) for c in similar]  # as the lime package writes it
    fitted = Ridge(alpha=1.0).fit(z.double().numpy(), y, sample_weight=weights)
    results = lime(model, batch, target, samples=60, seed=3)
    assert close(results.scores[0, tokens], fitted.coef_)
    fit = 1 - fitted.score(z.double().numpy(), y, sample_weight=weights)
    assert float(results.gaps["fit"]) == pytest.approx(fit, rel=1e-3)


def test_lime_erases_every_number_of_tokens_equally_often():
    z = perturbation._subsets(4, 4001, 0, torch.Generator().manual_seed(0))[1:]
    missing = (~z).sum(1)
    assert [int((missing == k).sum()) for k in range(1, 5)] == pytest.approx([1000] * 4, rel=0.1)
    assert (~z).float().mean(0).tolist() == pytest.approx([0.625] * 4, rel=0.05)
    assert perturbation._subsets(4, 500, 1, torch.Generator().manual_seed(0)).any(1).all()


def test_lime_can_delete_from_a_text_without_special_tokens():
    model = build("pooled_bilstm")
    batch, target = prepared(model, (TEXTS[0],))
    assert lime(model, batch, target, samples=50, erase="delete").scores.isfinite().all()


def test_deleting_the_only_token_is_an_error_with_a_remedy():
    model = build("pooled_bilstm")
    batch, target = prepared(model, ("fine",))
    for method in (occlusion, lime, kernel_shap, partition_shap):
        with pytest.raises(BadInput, match=r"leave nothing of a text; erase by replacing"):
            method(model, batch, target, erase="delete")


def test_invalid_settings_suggest_the_nearest():
    model = build("gpt2")
    batch, target = prepared(model, (TEXTS[0],))
    with pytest.raises(BadInput, match=r"unknown erasure 'delet'. Did you mean 'delete'"):
        eraser(model, "delet")
    with pytest.raises(BadInput, match=r"unknown unit 'words'. Did you mean 'word'"):
        unit_numbers(batch, "words")
    for method in (occlusion, lime, kernel_shap, partition_shap):
        with pytest.raises(BadInput, match="has no mask token"):
            method(model, batch, target, erase="mask")


def test_sizes_below_the_minimum_are_errors():
    for method, setting in (
        (occlusion, {"window": 0}),
        (lime, {"samples": 1}),
        (kernel_shap, {"samples": 1}),
        (partition_shap, {"max_evals": 1}),
    ):
        with pytest.raises(BadInput, match="at least"):
            prepare(method, setting)


def test_the_default_erasure_is_recorded():
    for shape, kind in (("bert", "mask"), ("gpt2", "mean")):
        (results,) = salience.explain(build(shape), "A fine film.", "occlusion")
        assert results.settings["erase"] == kind
