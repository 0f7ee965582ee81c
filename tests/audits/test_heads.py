"""Roles, importance, pruning and overlap of heads, each against a slow and literal version."""

import json
from copy import deepcopy
from functools import cache
from io import StringIO
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.stats import beta, spearmanr
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import salience
from salience.audits.heads import PARTS, ROLES, Head, heads
from salience.audits.heads.gates import Task, gate_gradients, losses, remove_each
from salience.audits.heads.importance import normalised, rank_agreement, spearmans
from salience.audits.heads.pruning import prune
from salience.audits.heads.roles import BROAD, measure_roles, patterns, role_of
from salience.audits.heads.study import _plausible  # pyright: ignore[reportPrivateUsage]
from salience.cli import run
from salience.cli.heads import PARTS as LISTED
from salience.core.passes import forward
from salience.core.types import Model, on_scale
from salience.data import Example
from salience.errors import BadInput, UnsupportedModel
from salience.views.head_roles import grid, heads_table, page, terminal, to_json
from shapes import TEXTS, build, encoder_decoder
from untouched import budget, state

REPEATED = (*TEXTS, "the quick fox and the quick dog saw the quick fox")
LABELS = (0, 1, 2, 0, 1)
SHAPES = ("bert", "roberta", "gpt2", "llama", "gpt2_lm", "llama_lm")


@cache
def model(shape: str) -> Model:
    return build(shape, dtype=torch.float64)


def task(shape: str, known: Model | None = None) -> Task:
    known = known or model(shape)
    return Task(known, known.encode(list(REPEATED)), np.array(LABELS))


def examples(labels: Any = LABELS, rationale: Any = ((0, 4),)) -> list[Example]:
    pairs = zip(REPEATED, labels, strict=True)
    return [Example(str(i), text, label, rationale) for i, (text, label) in enumerate(pairs)]


# ------------------------------------------------------------------------------------------------------ roles


def slow_role(a: np.ndarray, ids: list[int], special: list[bool], role: str, causal: bool) -> float:
    """The score of one head on one text, place by place."""
    n, total, mass, queries = len(ids), 0.0, 0.0, []
    for q in range(n):
        places = []
        for k in range(n):
            text = not special[q] and not special[k]
            before = k > 0 and not special[k - 1] and not special[q] and k - 1 < q and ids[k - 1] == ids[q]
            if {
                "previous": k == q - 1,
                "next": k == q + 1,
                "first": k == 0,
                "separator": special[k] and k > 0,
                "duplicate": text and k < q and ids[k] == ids[q],
                "induction": before and not special[k],
            }.get(role, False):
                places.append(k)
        if role == "broad":
            seen = q + 1 if causal else n
            if seen > 1:
                row = a[q][a[q] > 0]
                queries.append(-(row * np.log(row)).sum() / np.log(seen))
        elif places or role not in ("duplicate", "induction"):
            total, mass = total + a[q, places].sum(), mass + a[q].sum()
            queries.append(bool(places))
    if role == "broad":
        return float(np.mean(queries))
    return total / mass if any(queries) else np.nan


@pytest.mark.parametrize("shape", SHAPES)
def test_roles_are_those_of_a_loop_over_all_places(shape: str):
    known = model(shape)
    encoded = known.encode(list(REPEATED))
    layers, _ = measure_roles(known, encoded)
    for i, text in enumerate(encoded):
        weights = forward(known, known.batch([text]), attention="read").attention
        for layer, a in enumerate(weights):
            for head in range(a.shape[1]):
                own = a[0, head].double().numpy()
                slow = [slow_role(own, list(text.ids), list(text.special), r, known.causal) for r in ROLES]
                assert layers[layer][i, head] == pytest.approx(slow, abs=1e-5, nan_ok=True)


def test_duplicate_and_induction_are_the_patterns_of_transformer_lens():
    known = build("gpt2_lm")  # no special tokens
    batch = known.batch(known.encode([REPEATED[-1]]))
    ids = batch.ids[0].numpy()
    equal = np.tril((ids[:, None] == ids[None]).astype(int), -1)
    rolled = np.roll(equal, 1, axis=1)
    rolled[:, 0] = 0
    found = patterns(batch)
    assert equal.sum() > 3
    assert (found["duplicate"][0].numpy() == equal).all()
    assert (found["induction"][0].numpy() == np.tril(rolled)).all()


def test_a_role_is_the_score_that_exceeds_its_threshold_most():
    none = [0.4, 0.4, 0.59, 0.2, np.nan, 0.4, 0.78]
    assert role_of(np.array(none)) is None
    assert role_of(np.array([0.55, 0.0, 0.62, 0.0, np.nan, np.nan, 0.1])) == "previous"
    assert role_of(np.array([*none[:6], 0.99 * 1.1])) == "broad"
    assert pytest.approx(0.783, abs=1e-3) == BROAD


def test_scores_do_not_depend_on_company_or_budget():
    known = model("bert")
    encoded = known.encode(list(REPEATED))
    whole = measure_roles(known, encoded)[0]
    with budget(known, 8):
        alone = measure_roles(known, encoded)[0]
    for a, b in zip(whole, alone, strict=True):
        assert np.allclose(a, b, atol=1e-6, equal_nan=True)


def test_uniform_attention_is_broad_and_spreads_evenly():
    known = model("bert")
    (text,) = known.encode([REPEATED[0]])
    _, even = measure_roles(known, [text])
    scores = dict(zip(ROLES, even[0], strict=True))
    n = len(text)
    assert scores["broad"] == pytest.approx(1)
    assert scores["first"] == pytest.approx(1 / n)
    assert scores["previous"] == pytest.approx((n - 1) / n**2)


# ------------------------------------------------------------------------------------------------------ importance


def loss_with(task: Task, text: int, layer: int, head: int, xi: float) -> float:
    """The loss of a text with a gate ξ on one head, in a pass of its own."""

    def edit(site: Any, a: Tensor) -> Tensor:
        gates = torch.ones(a.shape[1], dtype=a.dtype)
        gates[head] = xi if site.layer == layer + 1 else 1.0
        return a * gates[:, None, None]

    logits = forward(task.model, task.model.batch([task.encoded[text]]), edit_attention=edit).logits
    return -float(on_scale(logits, "log_probability", "softmax")[0, task.labels[text]])


def with_exact_norms(known: Any) -> Model:
    """A copy whose norms run in double precision: Llama's own always run in single, whatever its weights are."""
    copy = deepcopy(known)
    for part in list(copy.module.modules()):
        for name, norm in part.named_children():
            if isinstance(norm, LlamaRMSNorm):
                exact = torch.nn.RMSNorm(norm.weight.shape, norm.variance_epsilon, dtype=torch.float64)
                exact.weight = norm.weight
                setattr(part, name, exact)
    return copy


@pytest.mark.parametrize("shape", SHAPES)
def test_gate_gradients_are_finite_differences(shape: str):
    own, h = task(shape, with_exact_norms(model(shape))), 1e-5
    slopes = gate_gradients(own)
    for text, layer, head in ((0, 0, 0), (1, 1, 3), (4, 2, 2)):
        up, down = (loss_with(own, text, layer, head, 1 + step) for step in (h, -h))
        assert slopes[layer][text, head] == pytest.approx((up - down) / (2 * h), rel=1e-5, abs=1e-8)


def without_columns(known: Model, layer: int, head: int, size: int = 8) -> Model:
    """A copy of the model whose output projection ignores the head."""
    copy = deepcopy(known)
    own = slice(head * size, (head + 1) * size)
    named = dict(copy.module.named_parameters())
    places = {
        f"bert.encoder.layer.{layer}.attention.output.dense.weight": (slice(None), own),
        f"roberta.encoder.layer.{layer}.attention.output.dense.weight": (slice(None), own),
        f"transformer.h.{layer}.attn.c_proj.weight": (own, slice(None)),
        f"model.layers.{layer}.self_attn.o_proj.weight": (slice(None), own),
    }
    (name,) = (name for name in places if name in named)
    with torch.no_grad():
        named[name][places[name]] = 0
    return copy


@pytest.mark.parametrize("shape", SHAPES)
def test_removing_a_head_is_zeroing_its_columns_of_the_output_projection(shape: str):
    own = task(shape)
    before, _ = losses(own)
    removed = remove_each(own, (4, 4, 4))
    for layer, head in ((0, 1), (1, 3), (2, 0)):
        loss, right = losses(Task(without_columns(own.model, layer, head), own.encoded, own.labels))
        assert removed.increase[layer][:, head] == pytest.approx(loss - before, abs=1e-5)
        assert (removed.right[layer][:, head] == right).all()


def test_heads_can_be_masked_together():
    own = task("bert")
    kept = (np.array([True, False, True, True]), np.ones(4, dtype=bool), np.array([False] * 4))
    copy = own.model
    for layer, head in ((0, 1), *((2, h) for h in range(4))):
        copy = without_columns(copy, layer, head)
    assert losses(own, kept)[0] == pytest.approx(losses(Task(copy, own.encoded, own.labels))[0], abs=1e-5)


# ------------------------------------------------------------------------------------------------------ rankings


def pearsonr_p(r: float, n: int) -> float:
    """The p-value of a correlation r of n unrelated pairs, by the Beta distribution of r."""
    return float(2 * beta(n / 2 - 1, n / 2 - 1, loc=-1, scale=2).sf(r))


def test_the_most_plausible_head_is_not_measured_on_the_texts_that_chose_it():
    """All heads are noise around ½: the best of 200 looks good where it was chosen, and not on the others."""
    values = np.random.default_rng(0).random((60, 200))
    values[5] = np.nan
    known = np.delete(values, 5, axis=0)
    every = [Head(1, number, None, {}) for number in range(1, 201)]
    result = _plausible(every, values)
    assert result is not None
    best = result.number - 1
    assert known[::2, best].mean() == pytest.approx(known[::2].mean(0).max())
    assert known[::2, best].mean() > 0.6
    assert result.rationale.mean == pytest.approx(known[1::2, best].mean())
    assert result.rationale.low < 0.5 < result.rationale.high
    assert _plausible(every, values[:1]) is None


def test_rank_agreement_is_spearman_of_the_means():
    rng = np.random.default_rng(0)
    a = rng.random((60, 10)) + np.arange(10)
    b = rng.random((60, 10)) * 4 + np.arange(10)
    b[:5, 3] = np.nan
    result = rank_agreement(a, b, seed=0)
    assert result.correlation.mean == pytest.approx(spearmanr(a.mean(0), np.nanmean(b, 0)).statistic)
    assert result.correlation.low <= result.correlation.mean <= result.correlation.high
    assert (result.overlap.mean, result.chance) == (1.0, 0.2)
    assert rank_agreement(a, -a, seed=0).correlation.high == pytest.approx(-1)
    assert rank_agreement(a, b, seed=0) == result
    assert np.isnan(rank_agreement(a[:4], b[:4], seed=0).correlation.low)
    assert pearsonr_p(result.unrelated, 10) == pytest.approx(0.05)
    b[7:] = np.nan
    few = rank_agreement(a, b, seed=0)
    assert few.correlation.n == few.overlap.n == 7, "only texts for which both are defined are counted"
    assert np.isnan(few.correlation.low)


def test_spearmans_of_rows_are_those_of_scipy():
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 4, (5, 12)).astype(float), rng.random((5, 12))
    x[4] = 1.0
    expected = [spearmanr(a, b).statistic for a, b in zip(x[:4], y[:4], strict=True)]
    assert spearmans(x, y)[:4] == pytest.approx(expected)
    assert np.isnan(spearmans(x, y)[4])


def test_layers_are_scaled_to_unit_norm():
    rows = normalised((2, 3))(np.array([[3.0, 4.0, 0.0, 0.0, 5.0]]))
    assert rows.tolist() == [[0.6, 0.8, 0.0, 0.0, 1.0]]


# ------------------------------------------------------------------------------------------------------ pruning


def test_pruning_masks_the_least_important_and_measures_again():
    own = task("bert")
    result = prune(own, own, (4, 4, 4), orders=1)
    assert [step.masked for step in result.steps] == [*range(12), 12]
    masked: list[int] = []
    for step in result.steps:
        while len(masked) < step.masked:
            kept = np.ones(12, dtype=bool)
            kept[masked] = False
            sums = np.array([np.abs(layer).sum(0) for layer in gate_gradients(own, tuple(np.split(kept, 3)))])
            norms = np.linalg.norm(sums, axis=1, keepdims=True)
            scores = np.divide(sums, norms, out=np.zeros_like(sums), where=norms > 0).ravel()
            masked.append(min((h for h in range(12) if h not in masked), key=lambda h: scores[h]))
        kept = np.ones(12, dtype=bool)
        kept[masked] = False
        assert step.accuracy.mean == losses(own, tuple(np.split(kept, 3)))[1].mean()
    assert result.steps[0].random.mean == result.steps[0].accuracy.mean
    assert result.steps[-1].random.mean == result.steps[-1].accuracy.mean


# ------------------------------------------------------------------------------------------------------ the study


def test_a_study_of_a_classifier_leaves_it_untouched_and_shows_everything():
    known = build("bert")
    before = state(known)
    study = heads(known, examples(), methods="input_x_gradient", orders=1)
    assert state(known) == before
    assert (study.layers, len(study.heads), study.texts) == (3, 12, 5)
    assert sum(study.counts.values()) == 12
    assert list(study.overlap) == ["input_x_gradient", "rationale"]
    facts = json.loads(json.dumps(to_json(study)))
    assert [(h["layer"], h["number"]) for h in facts["heads"]][:5] == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1)]
    assert grid(study).count(b"<g>") == 12
    assert len(heads_table(study)[1]) == 12
    assert "How many can be removed?" in page(study)


def test_attention_is_compared_with_scores_at_the_position_that_is_read():
    known = build("bert")
    study = heads(known, examples(), parts=["overlap"], methods="gradient")
    values = []
    for i, example in enumerate(examples()):
        (e,) = salience.explain(known, example.text, "gradient")
        (text,) = known.encode([example.text])
        a = forward(known, known.batch([text]), attention="read").attention[1][0, 2, 0].numpy()
        own = ~np.array(text.special)
        values.append(spearmanr(a[own], np.abs(e.scores)[own]).statistic if own.sum() > 1 else np.nan)
        assert i == int(example.id)
    head = study.of(2)[2]
    assert head.saliency["gradient"].mean == pytest.approx(np.nanmean(values), abs=1e-5)


@pytest.mark.parametrize("shape", ["gpt2_lm", "llama_lm"])
def test_a_language_model_predicts_the_last_token(shape: str):
    known = build(shape)
    texts = [text for text in REPEATED if len(known.encode([text])[0]) > 3]
    study = heads(known, texts, parts=["importance"])
    assert study.accuracy is not None
    right = []
    for text in texts:
        (whole,) = known.encode([text])
        logits = forward(known, known.batch([known.encode([text])[0]])).logits
        assert logits.shape[1] == len(known.labels)
        ids = torch.tensor([whole.ids[:-1]])
        right.append(int(known.module.eval()(input_ids=ids).logits[0, -1].argmax()) == whole.ids[-1])
    assert study.accuracy.mean == pytest.approx(np.mean(right))


def test_wide_models_are_shown_in_blocks():
    study = heads(build("bert"), list(REPEATED), parts=["roles"])
    shown = StringIO()
    Console(width=20, file=shown).print(terminal(study, 20))
    assert shown.getvalue().count("layer 3") == 2


# ------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("shape", "labels", "settings", "error", "message"),
    [
        ("pooled_bilstm", LABELS, {}, UnsupportedModel, "no attention heads from token to token"),
        ("bert_regression", LABELS, {}, BadInput, "does not predict one label"),
        ("deberta_v2", LABELS, {"parts": ["importance"]}, UnsupportedModel, "cannot be edited"),
        ("bert", (None,) * 5, {}, BadInput, "5 of 5 texts have no label, such as '0'"),
        ("bert", (1,) * 5, {}, BadInput, "all 5 texts have the label 'LABEL_1'"),
        ("bert", LABELS, {"parts": ["role"]}, BadInput, "Did you mean 'roles'"),
        ("bert", LABELS, {"parts": []}, BadInput, "name at least one part"),
        ("bert", LABELS, {"methods": "occlusio"}, BadInput, "Did you mean 'occlusion'"),
    ],
)
def test_bad_input_is_named(shape: str, labels: Any, settings: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        heads(build(shape), examples(labels), **settings)


def test_an_encoder_decoder_is_sent_to_alignment():
    with pytest.raises(UnsupportedModel, match="salience alignment"):
        heads(encoder_decoder("marian"), ["A fine film."], parts=["roles"])


def test_no_texts_and_short_texts():
    with pytest.raises(BadInput, match="there are no texts"):
        heads(build("bert"), [])
    with pytest.raises(BadInput, match="too short"):
        heads(build("gpt2_lm"), ["a"], parts=["roles"])


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Any):
    assert LISTED == PARTS
    html = tmp_path / "heads.html"
    assert run(["heads", "--limit", "8", "--part", "importance", "--html", str(html), "--quiet", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert len(facts["heads"]) == 24
    assert facts["pruning"] is None
    assert "</svg>" in html.read_text("utf-8")
    assert run(["heads", "--limit", "4", "--part", "roles", "--quiet"]) == 0
    assert "layer 3" in capsys.readouterr().out
    assert run(["heads", "--part", "rols"]) == 2
    assert "Did you mean 'roles'" in capsys.readouterr().err
