"""The table and the answer: controls always there, intervals that hold, explanations from runs and from elsewhere."""

import csv
import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import elsewhere
import salience
from salience import metrics
from salience.cli import run
from salience.data import source
from salience.errors import BadInput, UnfinishedRun
from salience.evaluation import CONTROLS
from salience.evaluator import _cells, evaluate, stored
from salience.foreign import by_method, carried, from_captum, from_inseq, from_shap, imported
from salience.lessons import Example, examples
from salience.metrics.faithfulness import comprehensiveness
from salience.models import sample_file
from salience.passes import forward
from salience.spelling import located
from salience.stats import Difference, Resampled, holm
from salience.types import Encoded, Targets
from salience.verdict import verdict
from salience.views import evaluation as views
from shapes import TEXTS, build

pytestmark = pytest.mark.xdist_group("evaluator")
"""One process, so that the large table is made once."""


@pytest.fixture(scope="module")
def found() -> salience.evaluation.Evaluation:
    given = examples(source(sample_file(), id="id", rationale="rationale_spans"), limit=12)
    methods, draws = ["gradient", "integrated_gradients", "occlusion"], {"max_sensitivity.samples": 2}
    return evaluate(salience.load(), given, methods, metrics=tuple(metrics.ASPECTS), **draws)


def test_every_cell_has_an_interval_and_the_controls_are_there(found: salience.evaluation.Evaluation):
    assert found.methods == ("gradient", "integrated_gradients", "occlusion", *CONTROLS)
    assert set(found.cells) == {(m, k) for m in found.methods for k in metrics.ASPECTS}
    for (method, metric), cell in found.cells.items():
        if (method, metric[:3]) == ("occlusion", "loo"):
            assert cell.estimate.n == 0, "it is what it would be held against"
            continue
        assert cell.estimate.low <= cell.estimate.mean <= cell.estimate.high
        known = [v for v in cell.values if not np.isnan(v)]
        assert cell.estimate.mean == pytest.approx(np.mean(known))
        assert cell.estimate.n == len(known) > 0
        assert (cell.against_random is None) == (method == "random")
    assert set(found.curves) == {"deletion_area", "insertion_area", "hiding_area", "revealing_area"}
    for name, of in found.curves.items():
        for method, curve in of.items():
            area = np.trapezoid(curve, dx=1 / (len(curve) - 1))
            assert area == pytest.approx(found.cells[method, name].estimate.mean, abs=1e-5)
    assert found.gaps["integrated_gradients"]["completeness"].mean < 0.1


def test_an_explanation_by_erasure_beats_random_on_erasure(found: salience.evaluation.Evaluation):
    cell = found.cells["occlusion", "comprehensiveness"]
    assert cell.beats_random
    assert cell.against_random.low > 0
    assert not any(found.cells[control, m].beats_random for control in CONTROLS for m in metrics.ASPECTS)


def test_a_cell_is_the_metric_of_the_explanation():
    model = salience.load()
    texts = ["A fine film with a dull end.", "A bore.", "Nothing here is new, and nothing is missed."]
    found = evaluate(model, texts, "gradient", metrics=["comprehensiveness"])
    batch = model.batch(model.encode(texts))
    target = Targets(forward(model, batch).logits.argmax(1), None, "probability", model.link)
    scores = torch.zeros(batch.ids.shape, dtype=torch.float64)
    for row, e in enumerate(salience.explain(model, texts, "gradient")):
        scores[row, : len(e.scores)] = torch.tensor(e.scores, dtype=torch.float64)
    expected = comprehensiveness(model, batch, scores, target)
    assert found.cells["gradient", "comprehensiveness"].values == pytest.approx(expected.tolist(), abs=1e-6)


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
    found = evaluate(build(shape), TEXTS, "gradient")
    assert all(cell.estimate.n for cell in found.cells.values())
    assert ("decision_flip" in found.metrics) == (shape != "bert_regression")


def test_the_answer_says_what_the_table_says(found: salience.evaluation.Evaluation):
    said = verdict(found)
    cell = found.cells["occlusion", "comprehensiveness"]
    (sentence,) = [s for s in said if s.startswith("comprehensiveness: beyond doubt")]
    assert f"occlusion {cell.estimate.mean:.3f}, by {cell.against_random:.3f}" in sentence
    (advice,) = [s for s in said if " use " in s]
    assert "n = 12" in advice
    assert any("people have marked" in s for s in said)
    few = evaluate(salience.load(), ["A bore.", "Fine."], "gradient", metrics=["comprehensiveness"])
    assert any("believe none of them yet" in s for s in verdict(few)), "two texts prove nothing"
    alone = evaluate(salience.load(), "A dreadful bore.", "occlusion", metrics=["comprehensiveness"])
    assert alone.texts == 1
    assert not alone.cells["occlusion", "comprehensiveness"].beats_random


def test_methods_that_are_as_good_are_named_together():
    made = salience.explain(salience.load(), ["A fine film.", "A bore.", "It is dull."] * 6, "occlusion")
    texts = [e.text for e in made]
    found = evaluate(salience.load(), texts, "occlusion", explained={"theirs": made}, metrics="comprehensiveness")
    assert "use theirs or occlusion: of 1 measure of faithfulness each beats" in verdict(found)[0]


def test_people_are_not_said_to_agree_where_they_do_not():
    given = [Example(str(i), text, rationale=((0, 1),)) for i, text in enumerate(["A fine film.", "A bore.", "A gem."])]
    found = evaluate(salience.load(), given, "occlusion", metrics=["token_f1"])
    said = verdict(found)
    assert "No method is shown to meet what people have marked better than random; first is occlusion" in said[0]
    assert "Beware: on the mean, occlusion is behind " in said[1]
    assert "position" in said[1]


def judged(**columns: list[float]) -> salience.evaluation.Evaluation:
    """A table of one metric, of numbers that are given."""
    values = np.array([*columns.values()]).T
    cells = {(c.method, "token_f1"): c for c in _cells(tuple(columns), "token_f1", values, 0)}
    empty: dict[str, Any] = {"curves": {}, "gaps": {}, "settings": {}}
    return salience.evaluation.Evaluation("m", len(values), 0, (), tuple(columns), ("token_f1",), cells, **empty)


def test_one_lucky_mean_does_not_hide_a_method_that_is_proven():
    dice = np.random.default_rng(0)
    controls = {name: list(0.3 + 0.02 * dice.normal(size=20)) for name in CONTROLS}
    found = judged(lucky=[2.4] * 5 + [0.0] * 15, sure=list(0.45 + 0.02 * dice.normal(size=20)), **controls)
    assert found.best("token_f1") == "lucky"
    assert "is met best by sure" in verdict(found)[0]


def test_the_work_is_told_as_one():
    told: list[tuple[int, int]] = []
    evaluate(salience.load(), ["A fine film.", "A bore."], "gradient", report=lambda *one: told.append(one))
    done = [d for d, _ in told]
    assert done == sorted(done)
    assert told[-1] == (4, 4)
    assert {of for _, of in told} == {4}
    told.clear()
    asked = {"metrics": ["sufficiency", "max_sensitivity", "input_invariance"], "max_sensitivity.samples": 3}
    evaluate(salience.load(), ["A fine film.", "A bore."], "gradient", report=lambda *one: told.append(one), **asked)
    assert {of for _, of in told} == {2 * (1 + 1 + 3 + 1)}
    assert told[-1] == (12, 12)


def test_rationales_that_count_words_are_doubted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    line = {"text": "A truly wonderful film with a heart", "marks": [[1, 3], [6, 7]]}
    (tmp_path / "data.jsonl").write_text(f"{json.dumps(line)}\n")
    asked = ["evaluate", "--data", str(tmp_path / "data.jsonl"), "--rationale-column", "marks", "--metric", "token_f1"]
    assert run([*asked, "--method", "gradient"]) == 0
    assert "say so (--spans words)" in capsys.readouterr().err
    assert run([*asked, "--method", "gradient", "--spans", "words"]) == 0
    assert capsys.readouterr().err == ""
    assert run([*asked, "--spans", "sentiments"]) == 2
    assert "--label-column" in capsys.readouterr().err
    assert run(["evaluate", "--metric", "roar"]) == 2
    assert "salience test roar" in capsys.readouterr().err
    assert run(["evaluate", "--model", "sentimen"]) == 2
    assert "Did you mean 'sentiment'" in capsys.readouterr().err


def test_few_texts_prove_nothing_and_many_may():
    """By sign flips the p-value of n pairs is at least 2 ** (1 − n), however narrow the interval."""
    dice = np.random.default_rng(0)
    for n, least in ((1, 0.99), (2, 0.4), (4, 0.1)):
        found = Resampled.of(np.stack([1 + dice.random(n), np.zeros(n)], 1)).difference(0, 1)
        assert found.p > least
        assert not found.clear
    wrong = sum(
        Resampled.of(np.stack([dice.normal(size=6), np.zeros(6)], 1), draws=999).difference(0, 1).clear
        for _ in range(200)
    )
    assert wrong <= 20, "about one in twenty where there is no difference"
    assert Resampled.of(np.stack([1 + dice.random(20), np.zeros(20)], 1)).difference(0, 1).clear


def test_differences_are_of_texts_that_have_both_numbers():
    values = np.array([[5.0, 4.0], [6.0, 5.0], [7.0, 6.0], [100.0, np.nan], [np.nan, -100.0]])
    found = Resampled.of(values).difference(0, 1)
    assert (found.mean, found.low, found.high, found.pairs) == (1, 1, 1, 3)


def test_the_method_that_is_among_the_best_is_advised(found: salience.evaluation.Evaluation):
    """One that beats random everywhere by little does not win over one that is far ahead."""
    names = ("comprehensiveness", "sufficiency", "log_odds")

    def cell(method: str, metric: str, ahead: bool, best: bool) -> salience.evaluation.Cell:
        before = found.cells["gradient", metric]
        far = Difference(-1.0, -1.1, -0.9, 0.001, 12)
        return replace(before, method=method, beats_random=ahead, against_best=None if best else far)

    cells = {("gradient", m): cell("gradient", m, True, False) for m in names}
    better = {"comprehensiveness": 2.0, "sufficiency": -2.0, "log_odds": -9.0}
    for m in names:
        made = cell("occlusion", m, m != "log_odds", True)
        cells["occlusion", m] = replace(made, estimate=replace(made.estimate, mean=better[m]))
    told = replace(
        found,
        metrics=names,
        methods=("gradient", "occlusion", *CONTROLS),
        cells=cells | {(c, m): found.cells[c, m] for c in CONTROLS for m in names},
    )
    assert " use occlusion" in verdict(told)[0]


def test_a_token_that_reads_like_another_is_measured_as_itself():
    """Of a language model, 'a' and ' a' are two tokens; going through the name would take the one for the other."""
    model = build("gpt2_lm")
    texts = ["the film is", "no heart and"]
    unlike = [i for i in range(len(model.labels)) if _resolved(model, model.label(i)) not in (i, None)]
    given = evaluate(model, texts, "gradient", target=unlike[0], metrics=["comprehensiveness"])
    batch = model.batch(model.encode(texts))
    target = Targets(torch.tensor([unlike[0]] * 2), None, "probability", model.link)
    scores = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(e.scores) for e in salience.explain(model, texts, "gradient", target=unlike[0])], batch_first=True
    )
    by_hand = comprehensiveness(model, batch, scores, target).tolist()
    assert list(given.cells["gradient", "comprehensiveness"].values) == pytest.approx(by_hand, abs=1e-6)


def _resolved(model: salience.types.Model, name: str) -> int | None:
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


def test_what_is_there_is_not_made_again_under_its_name():
    model = salience.load()
    there = {"gradient": salience.explain(model, ["A bore."], "gradient")}
    with pytest.raises(BadInput, match="is there already"):
        evaluate(model, ["A bore."], "gradient", explained=there)
    with pytest.raises(BadInput, match="leave out the target"):
        evaluate(model, ["A bore."], (), explained=there, target="positive")
    against = {"theirs": salience.explain(model, ["A bore."], "gradient", target="negative", against="positive")}
    with pytest.raises(BadInput, match="explained against"):
        evaluate(model, ["A bore."], (), explained=against)
    drawn = {**there, "random": salience.explain(model, ["A bore."], "random", seed=7)}
    assert evaluate(model, ["A bore."], (), explained=drawn).methods == ("gradient", *CONTROLS)


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


def test_a_regression_decides_nothing():
    with pytest.raises(BadInput, match="hiding_area is of decisions"):
        evaluate(build("bert_regression"), list(TEXTS), "gradient", metrics=["hiding_area"])


def test_occlusion_of_windows_is_held_against_leaving_one_out():
    found = evaluate(salience.load(), ["A dreadful bore of a film."], "occlusion", metrics=["loo_spearman"])
    assert found.cells["occlusion", "loo_spearman"].estimate.n == 0
    wide = evaluate(
        salience.load(),
        ["A dreadful bore of a film."],
        "occlusion",
        metrics=["loo_spearman"],
        **{"occlusion.window": 3},
    )
    assert wide.cells["occlusion", "loo_spearman"].estimate.n == 1


def test_views(found: salience.evaluation.Evaluation):
    page = views.page(found, title="<script>")
    assert "<script>" not in page
    assert page.count("<svg") == 2
    rows = list(csv.DictReader(StringIO(views.to_csv(found))))
    assert len(rows) == len(found.cells)
    facts = json.loads(views.to_json(found))
    assert facts["verdict"] == verdict(found)
    assert len(facts["cells"][0]["values"]) == 12
    assert views.bars(found, "png").startswith(b"\x89PNG")


# ------------------------------------------------------------------------------------------------------ statistics


def test_draws_are_shared_by_all_columns():
    dice = np.random.default_rng(0)
    base = dice.normal(size=300) * 10
    drawn = Resampled.of(np.stack([base + 1 + dice.normal(size=300), base], 1))
    difference = drawn.difference(0, 1)
    assert difference.clear
    assert difference.high - difference.low < 0.3, "differences are those of pairs"
    alone = drawn.estimate(0)
    assert alone.high - alone.low > 1.5
    holes = np.where(dice.random(300) < 0.5, np.nan, base)
    assert Resampled.of(holes[:, None]).estimate(0).n == int((~np.isnan(holes)).sum())
    assert np.isnan(Resampled.of(np.full((5, 1), np.nan)).estimate(0).mean)


def test_holm_is_that_of_scipy_or_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


# ------------------------------------------------------------------------------------------------------ from elsewhere


def test_a_run_is_measured_as_it_is(tmp_path: Path):
    model = salience.load()
    lines = [{"text": t, "id": i} for i, t in zip("abc", ["A fine film.", "A bore.", "Not bad at all."], strict=True)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = source(tmp_path / "data.jsonl", id="id")
    salience.explain_data("sentiment", data, tmp_path / "run", ["gradient", "attention"])
    given, explained = stored(model, tmp_path / "run")
    assert [e.id for e in given] == ["a", "b", "c"]
    ours = evaluate(model, given, (), explained=explained, metrics=["comprehensiveness"])
    fresh = evaluate(model, given, ["gradient", "attention"], metrics=["comprehensiveness"])
    assert ours.methods == fresh.methods
    for key, cell in ours.cells.items():
        assert cell.values == pytest.approx(fresh.cells[key].values, abs=1e-5)
    with pytest.raises(BadInput, match="load the model that was explained"):
        stored(salience.load("sentiment_bilstm"), tmp_path / "run")
    with pytest.raises(BadInput, match="does not explain 1 of 1 texts, the first of them 'z'"):
        stored(model, tmp_path / "run", [Example("z", "x")])


def test_a_run_that_is_not_finished_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "data.jsonl").write_text('"A fine film."\n"A bore."\n')
    folder = salience.explain_data("sentiment", tmp_path / "data.jsonl", tmp_path / "run", ["gradient", "lrp"]).path
    kept = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(kept | {"finished": None}))
    with pytest.warns(UnfinishedRun, match="of the 2 texts"):
        stored(salience.load(), folder)
    assert run(["test", "agreement", str(folder)]) == 0
    assert "is not finished" in capsys.readouterr().err


def test_texts_that_are_cut_are_told():
    model = salience.load()
    found = evaluate(model, ["A fine film.", "a fine film " * 300], "gradient", metrics=["sufficiency"])
    assert found.truncated == 1
    assert "2 texts, 1 of them cut" in views.legend(found)
    assert "cut" not in views.legend(evaluate(model, ["A fine film."], "gradient", metrics=["sufficiency"]))


def test_scores_that_do_not_fit():
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
    for message, given in wrong.items():
        with pytest.raises(BadInput, match=message):
            evaluate(model, texts, (), explained={"theirs": given})
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


def test_explanations_made_elsewhere_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
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
def test_what_inseq_saves_equals_our_own(form: str, tmp_path: Path):
    model = salience.load(elsewhere.decoder(tmp_path))
    (found,) = from_inseq(model, stored_elsewhere("inseq")[form])
    assert (found.text, found.method) == (elsewhere.PROMPT, "inseq_input_x_gradient")
    (ours,) = salience.explain(
        model, elsewhere.PROMPT, "input_x_gradient", target=found.target.label, kind="probability"
    )
    assert found.scores == pytest.approx(ours.scores, rel=1e-4, abs=1e-7)
    (tmp_path / "saved.json").write_text(json.dumps(stored_elsewhere("inseq")[form]), "utf-8")
    assert from_inseq(model, tmp_path / "saved.json") == [found]
    other = build("gpt2_lm")
    assert sum(from_inseq(other, stored_elsewhere("inseq")[form])[0].scores) == pytest.approx(sum(found.scores))


def test_what_shap_gives_is_measured():
    kept = stored_elsewhere("shap")
    values = [np.array(v) for v in kept["values"]]
    given = SimpleNamespace(data=kept["data"], values=values, output_names=kept["output_names"])
    model = salience.load()
    found = from_shap(model, given)
    assert [e.text for e in found] == elsewhere.TEXTS
    assert [e.target.label for e in found] == ["negative", "negative"]
    assert dict(zip(found[1].tokens, found[1].scores, strict=True))["awful"] == pytest.approx(values[1][3, 0])
    assert sum(found[0].scores) == pytest.approx(values[0][:, 0].sum())
    # Values of one label are of that label; one text alone is one explanation.
    one = SimpleNamespace(data=kept["data"], values=[v[:, 1] for v in values], output_names="positive")
    assert [e.target.label for e in from_shap(model, one)] == ["positive", "positive"]
    alone = SimpleNamespace(data=kept["data"][0], values=values[0], output_names=kept["output_names"])
    assert [e.scores for e in from_shap(model, alone)] == [found[0].scores]
    assert evaluate(model, elsewhere.TEXTS, (), explained={"shap": found}).methods[0] == "shap"


def test_captum_tensors_are_measured():
    from captum.attr import LayerIntegratedGradients

    model = salience.load()
    (seen,) = model.encode(["A fine film with a dull end."])
    ids = torch.tensor([seen.ids])
    label = int(forward(model, model.batch([seen])).logits.argmax())

    def ask(x: torch.Tensor) -> torch.Tensor:
        return model.module(input_ids=x, attention_mask=torch.ones_like(x)).logits

    theirs = LayerIntegratedGradients(ask, model.words).attribute(ids, torch.zeros_like(ids), target=label, n_steps=20)
    found = from_captum(model, seen.text, theirs)
    assert found.scores == pytest.approx(theirs[0].sum(-1).tolist(), abs=1e-6)
    assert found.target.label == model.label(label)
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
def test_tokens_are_found_whatever_case_accents_and_unknown_ones(text: str, tokens: list[str], pieces: list[str]):
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
def test_tokens_that_do_not_follow_are_refused(text: str, tokens: list[str]):
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
    told = capsys.readouterr().err
    assert message in told
    assert "theirs.jsonl" in told


def test_files_of_explanations_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
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
    found = json.loads(capsys.readouterr().out)
    assert (found["texts"], found["methods"][:2]) == (1, ["a", "b"]), "a limit is of texts, not of rows"


# ------------------------------------------------------------------------------------------------------ the command


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    asked = ["evaluate", "--limit=6", "--method=gradient", "--metric=comprehensiveness", "--metric=token_f1"]
    page, table = tmp_path / "page.html", tmp_path / "table.csv"
    assert run([*asked, "--html", str(page), "--csv", str(table)]) == 0
    out = capsys.readouterr().out
    for name in ("gradient", *CONTROLS, "comprehensiveness ↑", "n = 6 texts"):
        assert name in out
    assert "<svg" in page.read_text()
    assert table.read_text().startswith("method,metric")
    assert run([*asked, "--html", str(tmp_path / "no" / "page.html")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert run([*asked, "--set", "seed=3"]) == 2
    assert "METHOD.seed" in capsys.readouterr().err
    assert run([*asked, "--erase", "burn"]) == 2
    assert "burn" in capsys.readouterr().err
    assert run(["evaluate", "--run", str(tmp_path)]) == 2
    assert "manifest.json" in capsys.readouterr().err
