"""The table and its summary in words: controls, intervals, and explanations from runs and from other tools."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from transformers import FNetConfig, FNetForSequenceClassification

import elsewhere
import salience
from salience import metrics
from salience.cli import run
from salience.core.memory import Memory
from salience.core.passes import forward
from salience.core.rows import Erased, erased_values
from salience.core.stats import Difference
from salience.core.text import Encoded
from salience.core.types import Targets
from salience.data import source
from salience.data.examples import Example, examples
from salience.errors import BadInput, UnfinishedRun
from salience.evaluation.advice import advice, verdict
from salience.evaluation.evaluator import evaluate, stored
from salience.evaluation.measuring import Measurement
from salience.evaluation.table import compared
from salience.explanations.imported import by_method, carried, from_captum, from_inseq, from_shap, imported
from salience.explanations.spelling import located
from salience.methods import CONTROLS
from salience.metrics import find_metrics
from salience.metrics.faithfulness import comprehensiveness
from salience.metrics.robustness import randomised
from salience.models import sample_file
from salience.views import evaluation as views
from shapes import TEXTS, build, tokenizer

pytestmark = pytest.mark.xdist_group("evaluator")
"""One process, so that the large table is computed once."""

NAMES = tuple(m.name for m in metrics.METRICS)


@pytest.fixture(scope="module")
def evaluation() -> salience.evaluation.table.Evaluation:
    texts = examples(source(sample_file(), id="id", rationale="rationale_spans"), limit=12)
    methods, draws = ["gradient", "integrated_gradients", "occlusion"], {"max_sensitivity.samples": 2}
    return evaluate(salience.load(), texts, methods, metrics=NAMES, **draws)


def test_every_cell_has_an_interval_and_the_controls_are_there(evaluation: salience.evaluation.table.Evaluation):
    assert evaluation.methods == ("gradient", "integrated_gradients", "occlusion", *CONTROLS)
    assert set(evaluation.cells) == {(m, k) for m in evaluation.methods for k in NAMES}
    for (method, metric), cell in evaluation.cells.items():
        if (method, metric[:3]) == ("occlusion", "loo"):
            assert cell.estimate.n == 0, "occlusion would be compared with itself"
            continue
        known = [v for v in cell.values if not np.isnan(v)]
        if len(set(known)) == 1:
            assert cell.estimate.interval == "all equal"
        else:
            assert cell.estimate.low <= cell.estimate.mean <= cell.estimate.high
        assert cell.estimate.mean == pytest.approx(np.mean(known))
        assert cell.estimate.n == len(known) > 0
        assert (cell.against_random is None) == (method == "random")
    assert set(evaluation.curves) == {"deletion_area", "insertion_area", "hiding_area", "revealing_area"}
    for name, of in evaluation.curves.items():
        for method, curve in of.items():
            area = np.trapezoid(curve, dx=1 / (len(curve) - 1))
            assert area == pytest.approx(evaluation.cells[method, name].estimate.mean, abs=1e-5)
    assert evaluation.gaps["integrated_gradients"]["completeness"].mean < 0.1


def test_an_explanation_by_erasure_beats_random_on_erasure(evaluation: salience.evaluation.table.Evaluation):
    cell = evaluation.cells["occlusion", "comprehensiveness"]
    assert cell.beats_random
    assert cell.against_random.low > 0
    assert not any(evaluation.cells[control, m].beats_random for control in CONTROLS for m in NAMES)


def test_a_cell_is_the_metric_of_the_explanation():
    model = salience.load()
    texts = ["A fine film with a dull end.", "A bore.", "Nothing here is new, and nothing is missed."]
    evaluation = evaluate(model, texts, "gradient", metrics=["comprehensiveness"])
    batch = model.batch(model.encode(texts))
    target = Targets(forward(model, batch).logits.argmax(1), None, "probability", model.link)
    scores = torch.zeros(batch.ids.shape, dtype=torch.float64)
    for row, e in enumerate(salience.explain(model, texts, "gradient")):
        scores[row, : len(e.scores)] = torch.tensor(e.scores, dtype=torch.float64)
    expected = comprehensiveness(model, batch, scores, target)
    assert evaluation.cells["gradient", "comprehensiveness"].values == pytest.approx(expected.tolist(), abs=1e-6)


def test_settings_reach_methods_and_metrics():
    model = salience.load()
    texts = ["A fine film with a dull end.", "A bore from start to end."]
    usual, other = (
        evaluate(model, texts, "lime", metrics=["comprehensiveness"], **settings)
        for settings in ({}, {"comprehensiveness.shares": (0.5,), "lime.samples": 50})
    )
    assert other.settings["methods"]["lime"]["samples"] == 50
    a, b = (x.cells["random", "comprehensiveness"].values for x in (usual, other))
    assert a != b
    with pytest.raises(BadInput, match="Did you mean 'shares'"):
        evaluate(model, texts, "gradient", metrics=["comprehensiveness"], **{"comprehensiveness.share": 1})
    with pytest.raises(BadInput, match="Did you mean 'comprehensiveness'"):
        evaluate(model, texts, "gradient", metrics=["comprehensivness"])
    with pytest.raises(BadInput, match="are always measured"):
        evaluate(model, texts, "random")
    with pytest.raises(BadInput, match="no texts"):
        evaluate(model, [], "gradient")
    with pytest.raises(BadInput, match="auprc needs rationales"):
        evaluate(model, texts, "gradient", metrics=["auprc"])
    outside = [Example("a", "A bore.", None, ((0, 99),))]
    with pytest.raises(BadInput, match="outside its text"):
        evaluate(model, outside, "gradient", metrics=["auprc"])


@pytest.mark.parametrize("shape", ["bert_regression", "bert_multi_label", "gpt2", "pooled_bilstm"])
def test_models_of_other_kinds(shape: str):
    evaluation = evaluate(build(shape), TEXTS, "gradient")
    assert all(cell.estimate.n for cell in evaluation.cells.values())
    assert ("decision_flip" in evaluation.metrics) == (shape != "bert_regression")


def test_the_summary_quotes_the_table(evaluation: salience.evaluation.table.Evaluation):
    sentences = verdict(evaluation)
    cell = evaluation.cells["occlusion", "comprehensiveness"]
    (sentence,) = [s for s in sentences if s.startswith("comprehensiveness: significantly better than random")]
    assert f"occlusion {cell.estimate.mean:.3f}, difference {cell.against_random:.3f}" in sentence
    assert "p ≤ 0.05, corrected for all methods and metrics" in sentence
    (advice,) = [s for s in sentences if " use " in s]
    assert "n = 12 texts" in advice
    assert any("agrees with human rationales" in s for s in sentences)
    few = evaluate(salience.load(), ["A bore.", "Fine."], "gradient", metrics=["comprehensiveness"])
    assert any("Do not rely on them yet" in s for s in verdict(few)), "two texts prove nothing"
    alone = evaluate(salience.load(), "A dreadful bore.", "occlusion", metrics=["comprehensiveness"])
    assert alone.texts == 1
    assert not alone.cells["occlusion", "comprehensiveness"].beats_random
    assert views.shown(alone.cells["occlusion", "comprehensiveness"]).endswith("\ntoo few to say")
    assert json.loads(views.to_json(alone))["cells"][0]["estimate"]["low"] is None
    assert "too few to say" in views.page(alone), "one text has no interval, but a bar"


def test_tied_methods_are_recommended_together():
    made = salience.explain(salience.load(), ["A fine film.", "A bore.", "It is dull."] * 6, "occlusion")
    texts = [e.text for e in made]
    evaluation = evaluate(salience.load(), texts, "occlusion", explained={"theirs": made}, metrics="comprehensiveness")
    assert (
        "use theirs or occlusion: each is best or statistically indistinguishable from the best"
        in verdict(evaluation)[0]
    )
    assert "on 1 of 1 faithfulness metric (comprehensiveness;" in verdict(evaluation)[0]


def test_no_agreement_with_human_rationales_is_reported_as_such():
    marked = [
        Example(str(i), text, rationale=((0, 1),)) for i, text in enumerate(["A fine film.", "A bore.", "A gem."])
    ]
    evaluation = evaluate(salience.load(), marked, "occlusion", metrics=["token_f1"])
    sentences = verdict(evaluation)
    assert "No method agrees with human rationales significantly better than random" in sentences[0]
    assert "The best mean is that of occlusion (token_f1 " in sentences[0]
    assert sentences[1].startswith("Caution: occlusion has a lower mean than controls that ignore the model: ")
    assert "position" in sentences[1]


def table_of(**columns: list[float]) -> salience.evaluation.table.Evaluation:
    """A table of one metric with the values of ``columns``."""
    values = np.array([*columns.values()]).T
    measured = {"token_f1": values}
    cells = {(c.method, c.metric): c for c in compared(tuple(columns), [metrics.find_metric("token_f1")], measured)}
    empty: dict[str, Any] = {"curves": {}, "gaps": {}, "settings": {}}
    return salience.evaluation.table.Evaluation("m", len(values), 0, (), tuple(columns), ("token_f1",), cells, **empty)


def test_intervals_stay_within_the_limits_of_a_metric():
    chosen = find_metrics(["average_precision", "max_sensitivity"])
    values = {m.name: np.array([[1.0, 0.01]] * 9 + [[0.3, 0.9]]) for m in chosen}
    limits = {m.name: m.limits for m in chosen}
    free, bound = (list(compared(("a", "random"), chosen, values, own)) for own in (None, limits))
    assert max(c.estimate.high for c in free) > 1
    assert min(c.estimate.low for c in free) < 0
    assert all(0 <= c.estimate.low <= c.estimate.mean <= c.estimate.high for c in bound)
    assert all(c.estimate.high <= limits[c.metric][1] for c in bound)
    assert [c.estimate.mean for c in bound] == [c.estimate.mean for c in free]


def test_limits_are_those_of_probabilities():
    chosen = find_metrics(["comprehensiveness", "log_odds", "infidelity", "loo_kendall", "parameter_randomisation"])
    classifier, regression = (Measurement(build(s), [], chosen, {}, "mask") for s in ("bert", "bert_regression"))
    assert list(classifier.limits.values()) == [(-1, 1), (-inf, inf), (0, inf), (-1, 1), (0, 1)]
    assert list(regression.limits.values()) == [(-inf, inf)] * 3 + [(-1, 1), (0, 1)]


def test_a_high_mean_by_chance_does_not_hide_a_significant_method():
    rng = np.random.default_rng(0)
    controls = {name: list(0.3 + 0.02 * rng.normal(size=20)) for name in CONTROLS}
    evaluation = table_of(lucky=[2.4] * 5 + [0.0] * 15, sure=list(0.45 + 0.02 * rng.normal(size=20)), **controls)
    assert evaluation.best("token_f1") == "lucky"
    assert verdict(evaluation)[0].startswith("Best agreement with human rationales: sure (token_f1 ")


def test_progress_is_reported_as_one_task():
    reported: list[tuple[int, int]] = []
    evaluate(salience.load(), ["A fine film.", "A bore."], "gradient", report=lambda *one: reported.append(one))
    done = [d for d, _ in reported]
    assert done == sorted(done)
    assert reported[-1] == (2, 2)
    assert {of for _, of in reported} == {2}
    reported.clear()
    arguments = {"metrics": ["sufficiency", "max_sensitivity", "input_invariance"], "max_sensitivity.samples": 3}
    evaluate(
        salience.load(), ["A fine film.", "A bore."], "gradient", report=lambda *one: reported.append(one), **arguments
    )
    assert {of for _, of in reported} == {2 * (1 + 3 + 1)}
    assert reported[-1] == (10, 10)


def test_value_zeroing_is_measured_on_changed_models_too():
    names = ["max_sensitivity", "input_invariance", "parameter_randomisation"]
    draws = {"max_sensitivity.samples": 2}
    model = build("bert")
    result = evaluate(model, ["A fine film.", "Good"], "value_zeroing", metrics=names, **draws)
    moved, same, shuffled = (result.cells["value_zeroing", name].estimate.mean for name in names)
    assert moved > 0.001
    assert same < 0.001, "the model is the same function of the text"
    assert 0 <= shuffled < 1


def test_rationales_that_look_like_word_offsets_cause_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    line = {"text": "A truly wonderful film with a heart", "marks": [[1, 3], [6, 7]]}
    (tmp_path / "data.jsonl").write_text(f"{json.dumps(line)}\n")
    arguments = [
        "evaluate",
        "--data",
        str(tmp_path / "data.jsonl"),
        "--rationale-column",
        "marks",
        "--metric",
        "token_f1",
    ]
    assert run([*arguments, "--method", "gradient"]) == 0
    assert "say so (--spans words)" in capsys.readouterr().err
    assert run([*arguments, "--method", "gradient", "--spans", "words"]) == 0
    assert capsys.readouterr().err == ""
    assert run([*arguments, "--spans", "sentiments"]) == 2
    assert "--label-column" in capsys.readouterr().err
    assert run(["evaluate", "--metric", "roar"]) == 2
    assert "salience trial roar" in capsys.readouterr().err
    assert run(["evaluate", "--model", "sentimen"]) == 2
    assert "Did you mean 'sentiment'" in capsys.readouterr().err


def test_the_method_that_is_among_the_best_is_recommended(evaluation: salience.evaluation.table.Evaluation):
    """One that beats random everywhere by little does not win over one that is far ahead."""
    names = ("comprehensiveness", "sufficiency", "log_odds")

    def cell(method: str, metric: str, ahead: bool, best: bool) -> salience.evaluation.table.Cell:
        before = evaluation.cells["gradient", metric]
        far = Difference(-1.0, -1.1, -0.9, 0.001, 12)
        beaten = () if best else ("occlusion",)
        return replace(before, method=method, beats_random=ahead, against_best=None if best else far, beaten_by=beaten)

    cells = {("gradient", m): cell("gradient", m, True, False) for m in names}
    better = {"comprehensiveness": 2.0, "sufficiency": -2.0, "log_odds": -9.0}
    for m in names:
        made = cell("occlusion", m, m != "log_odds", True)
        cells["occlusion", m] = replace(made, estimate=replace(made.estimate, mean=better[m]))
    changed = replace(
        evaluation,
        metrics=names,
        methods=("gradient", "occlusion", *CONTROLS),
        cells=cells | {(c, m): evaluation.cells[c, m] for c in CONTROLS for m in names},
    )
    assert " use occlusion" in verdict(changed)[0]


def test_a_token_that_reads_like_another_is_measured_as_itself():
    """Of a language model, 'a' and ' a' are two tokens; going through the name would take the one for the other."""
    model = build("gpt2_lm")
    texts = ["the film is", "no heart and"]
    unlike = [i for i in range(len(model.labels)) if _resolved(model, model.label(i)) not in (i, None)]
    evaluation = evaluate(model, texts, "gradient", target=unlike[0], metrics=["comprehensiveness"])
    batch = model.batch(model.encode(texts))
    target = Targets(torch.tensor([unlike[0]] * 2), None, "probability", model.link)
    scores = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(e.scores) for e in salience.explain(model, texts, "gradient", target=unlike[0])], batch_first=True
    )
    by_hand = comprehensiveness(model, batch, scores, target).tolist()
    assert list(evaluation.cells["gradient", "comprehensiveness"].values) == pytest.approx(by_hand, abs=1e-6)


def _resolved(model: salience.core.types.Model, name: str) -> int | None:
    try:
        return model.resolve(name)
    except BadInput:
        return None


def test_pairs_are_measured_as_pairs(tmp_path: Path):
    model = build("bert")
    pairs = [("a fine film", "no heart"), ("the plot", "a mess of a movie")]
    made = salience.explain(model, pairs, "gradient")
    rows = [e.to_dict() for e in made]
    texts, explained = by_method(model, rows)
    assert texts == pairs
    assert [e.tokens for e in explained["gradient"]] == [e.tokens for e in made]
    for theirs, ours in zip(explained["gradient"], made, strict=True):
        assert theirs.content == pytest.approx(ours.content)


def test_existing_explanations_are_not_computed_again():
    model = salience.load()
    there = {"gradient": salience.explain(model, ["A bore."], "gradient")}
    with pytest.raises(BadInput, match="is already among the existing explanations"):
        evaluate(model, ["A bore."], "gradient", explained=there)
    with pytest.raises(BadInput, match="leave out the target"):
        evaluate(model, ["A bore."], (), explained=there, target="positive")
    against = {"theirs": salience.explain(model, ["A bore."], "gradient", target="negative", against="positive")}
    with pytest.raises(BadInput, match="explained against"):
        evaluate(model, ["A bore."], (), explained=against)
    with_random = {**there, "random": salience.explain(model, ["A bore."], "random", seed=7)}
    assert evaluate(model, ["A bore."], (), explained=with_random).methods == ("gradient", *CONTROLS)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"comprehensiveness.shares": 0.2}, "a list"),
        ({"comprehensiveness.shares": [20]}, "at most 1"),
        ({"comprehensiveness.erase": "delete"}, "erase"),
        ({"deletion_area.points": 1}, "at least 2"),
        ({"infidelity.samples": "abc"}, "whole number"),
        ({"infidelity.samples": 0}, "at least 1"),
        ({"log_odds.shares": [0.1]}, "not measured"),
        ({"max_sensitivity.samples": 0}, "at least 1"),
    ],
)
def test_settings_of_metrics_are_checked(setting: dict[str, Any], message: str):
    measured_ones = ["comprehensiveness", "deletion_area", "infidelity", "max_sensitivity"]
    with pytest.raises(BadInput, match=message):
        evaluate(salience.load(), ["A bore."], "gradient", metrics=measured_ones, **setting)


def test_a_regression_model_makes_no_decisions():
    with pytest.raises(BadInput, match="hiding_area needs decisions"):
        evaluate(build("bert_regression"), list(TEXTS), "gradient", metrics=["hiding_area"])


def test_occlusion_of_windows_is_compared_with_leave_one_out():
    evaluation = evaluate(salience.load(), ["A dreadful bore of a film."], "occlusion", metrics=["loo_spearman"])
    assert evaluation.cells["occlusion", "loo_spearman"].estimate.n == 0
    wide = evaluate(
        salience.load(),
        ["A dreadful bore of a film."],
        "occlusion",
        metrics=["loo_spearman"],
        **{"occlusion.window": 3},
    )
    assert wide.cells["occlusion", "loo_spearman"].estimate.n == 1


def test_views(evaluation: salience.evaluation.table.Evaluation):
    page = views.page(evaluation, title="<script>")
    assert "<script>" not in page
    panels = len(evaluation.metrics) + sum(map(len, evaluation.curves.values()))
    assert page.count("<svg") == panels, "one for each metric, and one for each curve"
    rows = list(csv.DictReader(StringIO(views.to_csv(evaluation))))
    assert len(rows) == len(evaluation.cells)
    facts = json.loads(views.to_json(evaluation))
    assert facts["verdict"] == verdict(evaluation)
    assert len(facts["cells"][0]["values"]) == 12


def test_the_page_names_what_it_was_made_from(evaluation: salience.evaluation.table.Evaluation):
    page = views.page(
        evaluation, data="reviews & more.jsonl", command="salience evaluate --data 'reviews & more.jsonl'"
    )
    for part in ("reviews &amp; more.jsonl", "salience evaluate --data", f"salience {salience.__version__}, torch "):
        assert part in page
    assert page.count("The numbers of this chart") == len(evaluation.curves)
    for method in evaluation.methods:
        assert page.count(f'<p class="name">{method}</p>') == len(evaluation.curves), "every curve is named"
    assert page.index("human rationales") < page.index("<table"), "the verdict comes first"


@pytest.mark.parametrize("intervals", [False, True])
def test_the_table_fits_80_columns(evaluation: salience.evaluation.table.Evaluation, intervals: bool):
    console = Console(width=200, file=StringIO(), color_system=None)
    blocks = views.terminal(evaluation, width=80, intervals=intervals)
    for block in blocks:
        console.print(block)
    lines = console.file.getvalue().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    for metric in evaluation.metrics:
        mean = f"{evaluation.cells['occlusion', metric].estimate.mean:.3f}"
        assert any(mean in line for line in lines) or metric.startswith("loo_")
    assert (len(blocks) == 1) == (len(evaluation.metrics) <= 7 and not intervals)


def test_the_headline_is_the_advice_without_reasons(evaluation: salience.evaluation.table.Evaluation):
    sentences = advice(evaluation)
    lines = views.headline(sentences)
    assert len(lines) + len(views.cautions(sentences)) == len(sentences)
    for line in lines:
        assert "(" not in line
        assert any(sentence.startswith(line[:20]) for sentence in sentences)
    assert views.headline(["None is better than random (p (all) ≤ 0.05) on any metric (a; n = 2). Do not rely."]) == [
        "None is better than random on any metric."
    ]


# ------------------------------------------------------------------------------------------------------ passes


def counted_rows(model: salience.core.types.Model, work: Callable[[], object]) -> int:
    """The number of rows that the model passes."""
    rows: list[int] = []

    def count(module: torch.nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        rows.append(len(named["input_ids"]))

    handle = model.module.register_forward_pre_hook(count, with_kwargs=True)
    try:
        work()
    finally:
        handle.remove()
    return sum(rows)


def test_equal_rows_are_passed_once():
    """Occlusion, leave-one-out and the metrics ask for the same erased texts."""
    model = salience.load()
    texts = ["A fine film with a dull end.", "A bore from start to end, and no heart."]
    model.batch(model.encode(texts))  # what is found out about a model only once
    lengths = [sum(not s for s in e.special) for e in model.encode(texts)]
    alone = counted_rows(model, lambda: evaluate(model, texts, "gradient", metrics=["sufficiency"]))
    explained = counted_rows(model, lambda: evaluate(model, texts, "occlusion", metrics=["loo_kendall"]))
    assert explained == 2 * len(texts) + sum(lengths), "each text explained and whole, and each token once"
    both = counted_rows(
        model, lambda: evaluate(model, texts, "occlusion", metrics=["loo_kendall", "loo_spearman", "log_odds"])
    )
    # The highest-scoring fifth of 8 and 11 tokens is 2 tokens: at most one new row per text, method and control.
    assert both <= explained + len(texts) * 4
    twice = ["sufficiency", "hiding_area", "revealing_area"]
    once = counted_rows(model, lambda: evaluate(model, texts, "gradient", metrics=["sufficiency", "hiding_area"]))
    assert counted_rows(model, lambda: evaluate(model, texts, "gradient", metrics=twice)) == once
    assert alone < once


def test_decision_flip_ends_at_the_flip():
    """It passes the texts that have not flipped yet, and gives the same values as all erasures at once."""
    model = salience.load()
    texts = [
        "A fine film with a dull end.",
        "A bore from start to end.",
        "Fine.",
        "It is the best of all films I know.",
    ]
    batch = model.batch(model.encode(texts))
    logits = forward(model, batch).logits
    target = Targets(logits.argmax(1), None, "probability", model.link)
    scores = torch.rand(batch.ids.shape, generator=torch.Generator().manual_seed(0))
    assert not model.causal  # which is found out by a pass, the first time
    values: list[float] = []
    rows = counted_rows(model, lambda: values.extend(metrics.decision_flip(model, batch, scores, target).tolist()))
    needed, expected = 0, []
    for row in range(len(texts)):
        content = batch.content[row].nonzero()[:, 0]
        order = content[scores[row, content].argsort(descending=True, stable=True)]
        steps = 0
        for steps in range(1, len(order) + 1):
            ids = batch.ids[row : row + 1].clone()
            ids[0, order[:steps]] = model.replacements["mask"]
            changed = model.module(input_ids=ids, attention_mask=batch.mask[row : row + 1].long()).logits
            if int(changed.argmax()) != int(logits[row].argmax()):
                break
        needed, expected = needed + steps, [*expected, steps / len(order)]
    assert values == pytest.approx(expected)
    assert rows == needed + len(texts)
    assert needed < sum(batch.content.sum(1).tolist())


def test_a_memory_is_of_one_model():
    """The rows that a model has answered are not taken for those of a changed model."""
    model = salience.load()
    other = randomised(model)
    batch = model.batch(model.encode(["A fine film."])).remembering(model)
    target = Targets(torch.tensor([1]), None, "logit", model.link)
    rows = Erased(torch.tensor([0]), batch.content & False)
    ours = erased_values(model, batch, target, rows, "mask")
    assert erased_values(other, batch, target, rows, "mask") != ours
    assert erased_values(model, batch, target, rows, "mask") == ours
    assert batch.remembering(model) is batch
    assert batch.remembering(other).memory is not batch.memory
    small = Memory(model, room=0)
    for _ in range(2):
        assert small.recall([b"a", b"b"], lambda new: torch.tensor(new).float()[:, None]).tolist() == [[0], [1]]


# ------------------------------------------------------------------------------------------------------ usual methods


def test_usual_methods_are_those_the_model_supports():
    texts = ["A fine film.", "A bore."]
    assert evaluate(salience.load(), texts, metrics=["sufficiency"]).methods == (
        *("attention", "input_x_gradient", "integrated_gradients", "lrp", "occlusion"),
        *CONTROLS,
    )
    torch.manual_seed(0)
    words = tokenizer("wordpiece")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "max_position_embeddings": 64}
    config = FNetConfig(vocab_size=len(words), type_vocab_size=2, **sizes)
    model = salience.wrap(FNetForSequenceClassification(config), words)
    without = evaluate(model, ["a fine film"], metrics=["sufficiency"])
    assert "attention" not in without.methods
    assert "attention" in without.settings["left_out"]
    assert "; attention is left out: " in views.legend(without)


# ------------------------------------------------------------------------------------------------------ statistics


# ------------------------------------------------------------------------------------------------------ from elsewhere


def test_a_run_is_evaluated_as_stored(tmp_path: Path):
    model = salience.load()
    lines = [{"text": t, "id": i} for i, t in zip("abc", ["A fine film.", "A bore.", "Not bad at all."], strict=True)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = source(tmp_path / "data.jsonl", id="id")
    salience.explain_data("sentiment", data, tmp_path / "run", ["gradient", "attention"])
    texts, explained = stored(model, tmp_path / "run")
    assert [e.id for e in texts] == ["a", "b", "c"]
    ours = evaluate(model, texts, (), explained=explained, metrics=["comprehensiveness"])
    fresh = evaluate(model, texts, ["gradient", "attention"], metrics=["comprehensiveness"])
    assert ours.methods == fresh.methods
    for key, cell in ours.cells.items():
        assert cell.values == pytest.approx(fresh.cells[key].values, abs=1e-5)
    with pytest.raises(BadInput, match="load the model that was explained"):
        stored(salience.load("sentiment_bilstm"), tmp_path / "run")
    with pytest.raises(BadInput, match="does not explain 1 of 1 texts, the first of them 'z'"):
        stored(model, tmp_path / "run", [Example("z", "x")])


def test_an_unfinished_run_causes_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "data.jsonl").write_text('"A fine film."\n"A bore."\n')
    folder = salience.explain_data("sentiment", tmp_path / "data.jsonl", tmp_path / "run", ["gradient", "lrp"]).path
    kept = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(kept | {"finished": None}))
    with pytest.warns(UnfinishedRun, match="is not finished; only the 2 texts"):
        stored(salience.load(), folder)
    assert run(["trial", "agreement", str(folder)]) == 0
    assert "is not finished" in capsys.readouterr().err


def test_truncated_texts_are_counted():
    model = salience.load()
    evaluation = evaluate(model, ["A fine film.", "a fine film " * 300], "gradient", metrics=["sufficiency"])
    assert evaluation.truncated == 1
    assert "2 texts (1 truncated" in views.legend(evaluation)
    assert "truncated" not in views.legend(evaluate(model, ["A fine film."], "gradient", metrics=["sufficiency"]))


def test_explanations_that_do_not_match_the_texts():
    model = salience.load()
    texts = ["A fine film.", "A bore."]
    right = salience.explain(model, texts, "gradient")
    wrong = {
        "explains another text": [right[1], right[0]],
        "explains 1 texts of 2": right[:1],
        "NaN": [replace(right[0], scores=(float("nan"),) * len(right[0].scores)), right[1]],
        "scores for": [replace(right[0], scores=right[0].scores[:-1]), right[1]],
        "another tokenizer": [replace(right[0], tokens=("x",) * len(right[0].tokens)), right[1]],
    }
    for message, explanations in wrong.items():
        with pytest.raises(BadInput, match=message):
            evaluate(model, texts, (), explained={"theirs": explanations})
    other = salience.explain(model, texts, "gradient", target=[1 - model.resolve(e.target.label) for e in right])
    with pytest.raises(BadInput, match="different labels"):
        evaluate(model, texts, (), explained={"a": right, "b": other})


def test_scores_are_carried_by_characters():
    read = Encoded(
        "so unfair", (0, 1, 2, 3), ("[CLS]", "so", "un", "fair"), ((0, 0), (0, 2), (3, 5), (5, 9)), (True, *[False] * 3)
    )
    assert carried([(0, 2), (3, 9)], [1.0, 3.0], read) == (0, 1.0, 1.0, 2.0)
    assert carried([(0, 9)], [8.0], read) == (0, 2.0, 2.0, 4.0)
    assert located("so unfair, so", ["<s>", "Ġso", "Ġun", "fair", ",", "Ġso", "</s>"])[1:6] == [
        (0, 2),
        (3, 5),
        (5, 9),
        (9, 10),
        (11, 13),
    ]
    assert located("Naïve!", ["na", "##ive", "!"])[0] == (0, 2)


def test_explanations_of_other_tools_are_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = salience.load()
    texts = ["A fine film with a dull end.", "A bore from start to end."]
    ours = salience.explain(model, texts, "gradient")
    rows = [{"text": e.text, "offsets": e.offsets, "scores": e.scores, "method": "theirs"} for e in ours]
    for mine, back in zip(ours, imported(model, rows), strict=True):
        assert back.target.label == mine.target.label
        inner = [(s, t) for s, t, special in zip(mine.scores, back.scores, mine.special, strict=True) if not special]
        assert [a for a, _ in inner] == pytest.approx([b for _, b in inner])
    words = [{"text": t, "tokens": t.split(), "scores": list(range(len(t.split())))} for t in texts]
    file = tmp_path / "theirs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *words]))
    assert run(["evaluate", "--explanations", str(file), "--metric", "comprehensiveness", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["methods"] == ["theirs", "imported", *CONTROLS]
    direct = evaluate(model, texts, "gradient", metrics=["comprehensiveness"])
    (cell,) = [c for c in facts["cells"] if c["method"] == "theirs"]
    assert cell["values"] == pytest.approx(direct.cells["gradient", "comprehensiveness"].values, abs=1e-5)
    bad = {
        "neither offsets nor tokens": {"text": "a", "scores": [1]},
        "2 scores for 1 tokens": {"text": "a", "tokens": ["a"], "scores": [1, 2]},
        "finite numbers": {"text": "a", "tokens": ["a"], "scores": ["x"]},
        "list of finite numbers": {"text": "a", "tokens": ["a"], "scores": [10**400]},
        "outside its text": {"text": "a", "offsets": [[0, 9]], "scores": [1]},
        "not empty": {"text": " ", "tokens": [], "scores": []},
    }
    for message, row in bad.items():
        with pytest.raises(BadInput, match=message):
            by_method(model, [row])
    file.write_text("{}\nnot json\n")
    assert run(["evaluate", "--explanations", str(file)]) == 2
    assert "line 2" in capsys.readouterr().err


def stored_elsewhere(package: str) -> dict[str, Any]:
    return json.loads(elsewhere.STORED.read_text("utf-8"))[package]


@pytest.mark.parametrize("form", ["plain", "primitive"])
def test_what_inseq_saves_equals_our_scores(form: str, tmp_path: Path):
    model = salience.load(elsewhere.decoder(tmp_path))
    (theirs,) = from_inseq(model, stored_elsewhere("inseq")[form])
    assert (theirs.text, theirs.method) == (elsewhere.PROMPT, "inseq_input_x_gradient")
    (ours,) = salience.explain(
        model, elsewhere.PROMPT, "input_x_gradient", target=theirs.target.label, kind="probability"
    )
    assert theirs.scores == pytest.approx(ours.scores, rel=1e-4, abs=1e-7)
    (tmp_path / "saved.json").write_text(json.dumps(stored_elsewhere("inseq")[form]), "utf-8")
    assert from_inseq(model, tmp_path / "saved.json") == [theirs]
    other = build("gpt2_lm")
    assert sum(from_inseq(other, stored_elsewhere("inseq")[form])[0].scores) == pytest.approx(sum(theirs.scores))


def test_shap_values_are_evaluated():
    kept = stored_elsewhere("shap")
    values = [np.array(v) for v in kept["values"]]
    shap_values = SimpleNamespace(data=kept["data"], values=values, output_names=kept["output_names"])
    model = salience.load()
    explanations = from_shap(model, shap_values)
    assert [e.text for e in explanations] == elsewhere.TEXTS
    assert [e.target.label for e in explanations] == ["negative", "negative"]
    assert dict(zip(explanations[1].tokens, explanations[1].scores, strict=True))["awful"] == pytest.approx(
        values[1][3, 0]
    )
    assert sum(explanations[0].scores) == pytest.approx(values[0][:, 0].sum())
    # Values of one label are of that label; one text alone is one explanation.
    one = SimpleNamespace(data=kept["data"], values=[v[:, 1] for v in values], output_names="positive")
    assert [e.target.label for e in from_shap(model, one)] == ["positive", "positive"]
    alone = SimpleNamespace(data=kept["data"][0], values=values[0], output_names=kept["output_names"])
    assert [e.scores for e in from_shap(model, alone)] == [explanations[0].scores]
    assert evaluate(model, elsewhere.TEXTS, (), explained={"shap": explanations}).methods[0] == "shap"


def test_captum_tensors_are_evaluated():
    from captum.attr import LayerIntegratedGradients

    model = salience.load()
    (seen,) = model.encode(["A fine film with a dull end."])
    ids = torch.tensor([seen.ids])
    label = int(forward(model, model.batch([seen])).logits.argmax())

    def ask(x: torch.Tensor) -> torch.Tensor:
        return model.module(input_ids=x, attention_mask=torch.ones_like(x)).logits

    theirs = LayerIntegratedGradients(ask, model.words).attribute(ids, torch.zeros_like(ids), target=label, n_steps=20)
    explanation = from_captum(model, seen.text, theirs)
    assert explanation.scores == pytest.approx(theirs[0].sum(-1).tolist(), abs=1e-6)
    assert explanation.target.label == model.label(label)
    with pytest.raises(BadInput, match="have the shape"):
        from_captum(model, "A bore.", theirs)


@pytest.mark.parametrize(
    ("text", "tokens", "pieces"),
    [
        ("Café so good", ["cafe", "so", "good"], ["Café", "so", "good"]),
        ("a 東 fine film", ["[CLS]", "a", "[UNK]", "fine", "film", "[SEP]"], ["", "a", "東", "fine", "film", ""]),
        ("İstanbul is fine", ["istanbul", "is", "fine"], ["İstanbul", "is", "fine"]),
        ("so unfair!", ["▁so", "▁un", "fair", "!"], ["so", "un", "fair", "!"]),
        ("end 東京", ["end", "[UNK]"], ["end", "東京"]),
        ("a 😀 b", ["▁a", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "▁b"], ["a", *["😀"] * 4, "b"]),
        ("I don’t like", ["I", "Ġdon", "âĢ", "Ļ", "t", "Ġlike"], ["I", "don", "’", "’", "t", "like"]),
        ("a “good” film", ["a", "ĠâĢľ", "good", "âĢĿ", "Ġfilm"], ["a", "“", "good", "”", "film"]),
        ("naïve now", ["naÃ¯ve", "Ġnow"], ["naïve", "now"]),
        ("naïve now", ["na", "Ã", "¯", "ve", "Ġnow"], ["na", "ï", "ï", "ve", "now"]),
        ("Tarantino a film", ["<unk>", "a", "film"], ["Tarantino", "a", "film"]),
        ("Hitchcock hit it", ["<unk>", "hit", "it"], ["Hitchcock", "hit", "it"]),
        ('"no" (yes)', ["``", "no", "''", "-LRB-", "yes", "-RRB-"], ['"', "no", '"', "(", "yes", ")"]),
        ("don’t hello ## b", ["don't", "hel@@", "lo", "##", "b"], ["don’t", "hel", "lo", "##", "b"]),
        ("one, two", ["one", "two"], ["one", "two"]),
        ("see [MASK] now", ["[CLS]", "see", "[MASK]", "now"], ["", "see", "[MASK]", "now"]),
    ],
)
def test_tokens_are_located_despite_case_accents_and_unknown_tokens(text: str, tokens: list[str], pieces: list[str]):
    assert [text[a:b] for a, b in located(text, tokens)] == pieces


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("It is a lovely film", ["[CLS]", "lovely", "film"]),
        ("punk rock", ["rock", "punk"]),
        ("schlecht und öde", ["schön"]),
        ("楽しい映画", ["退屈", "な"]),
    ],
)
def test_tokens_out_of_order_are_rejected(text: str, tokens: list[str]):
    with pytest.raises(BadInput, match="does not follow at character 0"):
        located(text, tokens)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('["a", "list"]', "row 2 is of the type list"),
        ('{"text": "A bore.", "scores": [1], "offsets": [0, 1]}', "offsets must be a list of"),
        ('{"text": "A bore.", "scores": [1], "offsets": [[0, "x"]]}', "offsets must be a list of"),
        ('{"text": "A bore.", "scores": [1], "offsets": [[0, 99]]}', "outside its text of 7"),
        ('{"text": "A bore.", "scores": [1, 2], "tokens": [1, 2]}', "tokens must be a list of texts"),
        ('{"text": "A bore.", "scores": [NaN], "tokens": ["A"]}', "NaN, infinity"),
        ('{"text": "A bore.", "scores": [1, 2], "tokens": ["A"]}', "2 scores for 1 tokens"),
        ('{"text": "A bore.", "scores": [1], "tokens": ["A"], "target": [1]}', "a label's name or number"),
        ('{"text": "A bore.", "scores": [1], "tokens": ["A"], "target": "grim"}', "row 2: unknown label"),
        ('{"text": "A bore.", "tokens": ["A"]}', "row 2 has no scores; its columns are text, tokens"),
        ('{"text": "A bore.", "scores": [1], "offsets": [[5, 2]]}', "the span 5 to 2 ends before it begins"),
        ('{"text": "A bore.", "scores": [1, 2], "tokens": ["A", "fox"]}', "row 2: the token 'fox' does not follow"),
        ('{"text": "It is a bore.", "scores": [1], "tokens": ["bore"]}', "at character 0 of the text, where 'It is"),
        ("{", "line 3 of"),
    ],
)
def test_explanations_that_cannot_be_read(line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "theirs.jsonl"
    file.write_text(f'{{"text": "Fine\u2028film.", "scores": [1], "tokens": ["Fine"]}}\n\n{line}\n', "utf-8")
    assert run(["evaluate", "--explanations", str(file)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "theirs.jsonl" in error


def test_files_without_explanations(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    (tmp_path / "latin.jsonl").write_bytes('{"text": "café"}'.encode("latin-1"))
    for name in ("empty.jsonl", "broken.parquet", "latin.jsonl", "none.jsonl", tmp_path.name):
        place = tmp_path if name == tmp_path.name else tmp_path / name
        assert run(["evaluate", "--explanations", str(place)]) == 2
        assert name in capsys.readouterr().err
    rows = [
        {"text": t, "method": m, "scores": [1], "tokens": [t[:4]]} for m in ("a", "b") for t in ("Fine film.", "Dull.")
    ]
    (tmp_path / "two.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert run(["evaluate", "--explanations", str(tmp_path / "two.jsonl"), "--limit", "1", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["texts"], facts["methods"][:2]) == (1, ["a", "b"]), "the limit counts texts, not rows"


# ------------------------------------------------------------------------------------------------------ the command


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["evaluate", "--limit=6", "--method=gradient", "--metric=comprehensiveness", "--metric=token_f1"]
    page, table = tmp_path / "page.html", tmp_path / "table.csv"
    assert run([*arguments, "--html", str(page), "--csv", str(table)]) == 0
    out = capsys.readouterr().out
    for name in ("gradient", *CONTROLS, "comprehensiveness ↑", "n = 6 texts"):
        assert name in out
    assert "<svg" in page.read_text()
    assert table.read_text().startswith("method,metric")
    assert run([*arguments, "--html", str(tmp_path / "no" / "page.html")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert run([*arguments, "--set", "seed=3"]) == 2
    assert "METHOD.seed" in capsys.readouterr().err
    assert run([*arguments, "--erase", "burn"]) == 2
    assert "burn" in capsys.readouterr().err
    assert run(["evaluate", "--run", str(tmp_path)]) == 2
    assert "manifest.json" in capsys.readouterr().err
