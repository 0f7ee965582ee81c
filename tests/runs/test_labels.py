"""Labels, ids and other columns of the data stay with the run; show finds texts by them."""

import csv
import json
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pyarrow.parquet as pq
import pytest

import salience
from salience.cli import run as cli
from salience.core.stats import estimate as estimate_mean
from salience.data import source
from salience.errors import BadInput, UnknownLabel
from salience.runs.driver import estimate, explain_data
from salience.runs.run import Run, open_run
from shapes import build

ROWS = [
    {"key": "=cmd", "text": "A fine film.", "gold": "positive", "stars": 5, "by": "@ann"},
    {"key": "b", "text": "A dull, slow bore.", "gold": 0, "stars": None, "by": "bob"},
    {"key": "c", "text": "A fine, fine, fine delight.", "gold": "negative", "stars": [1, 2], "by": "-1"},
    {"key": "d", "text": "Not worth a minute, and a waste.", "gold": "unsure", "stars": 1.5, "by": "+x"},
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "reviews.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    return path


@pytest.fixture(scope="module")
def model() -> Any:
    return salience.load("sentiment")


@pytest.fixture(scope="module")
def run(model: Any, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    chosen = source(data, id="key", label="gold", keep=["stars", "by"])
    methods = ["input_x_gradient", "attention"]
    return explain_data(model, chosen, tmp_path_factory.mktemp("run") / "run", methods, rows_per_part=3)


def test_labels_and_columns_are_kept(run: Run):
    texts = list(run.texts())
    assert [t.id for t in texts] == ["=cmd", "b", "c", "d"]
    assert [t.label for t in texts] == ["positive", "negative", "negative", "unsure"]
    assert [t.kept["stars"] for t in texts] == ["5", None, "[1, 2]", "1.5"]
    assert [t.kept["by"] for t in texts] == ["@ann", "bob", "-1", "+x"]
    assert [t.prediction for t in texts] == ["positive", "negative", "positive", "negative"]
    assert [t.wrong for t in texts] == [False, False, True, None]
    assert [(e.id, e.label) for e in run][:2] == [("=cmd", "positive")] * 2
    assert run.table(["label"])["label"].to_pylist() == ["positive", "negative", "negative", "unsure"]


def test_the_prediction_is_explained_and_not_the_label(run: Run):
    assert [t.first.target.label for t in run.texts()] == ["positive", "negative", "positive", "negative"]


def test_texts_are_found_by_label_and_mistake(run: Run):
    assert [t.id for t in run.texts(label="negative")] == ["b", "c"]
    assert [t.id for t in run.texts(ids=["d", "b"])] == ["b", "d"]
    with pytest.warns(UnknownLabel, match="1 texts have labels that are not among the model's .'unsure'"):
        assert [t.id for t in run.texts(wrong=True)] == ["c"]


def test_texts_are_sorted(run: Run):
    by = {t.id: max(t.first.probabilities.values()) for t in run.texts()}
    ascending = sorted(by, key=lambda name: by[name])
    assert [t.id for t in run.texts(sort="confidence")] == ascending
    assert [t.id for t in run.texts(sort="-confidence", first=2)] == ascending[::-1][:2]
    apart = [t.disagreement for t in run.texts(sort="disagreement")]
    assert apart == sorted(apart, reverse=True)
    assert all(0 <= x <= 2 for x in apart)
    with pytest.raises(BadInput, match="disagreement compares methods"):
        run.texts("attention", sort="disagreement")


def test_a_run_without_labels_says_so(model: Any, data: Path, tmp_path: Path):
    unlabelled = explain_data(model, data, tmp_path / "run", "position")
    for how in ({"wrong": True}, {"label": "positive"}):
        with pytest.raises(BadInput, match=r"has no labels; .*--label-column"):
            unlabelled.texts(**how)


def test_the_command_shows_ids_and_labels(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert cli(["show", str(run.path), "--wrong", "--method", "attention", "--no-color"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("c   label: negative, predicted: positive\n")
    assert cli(["show", str(run.path), "--first", "2", "--html", str(tmp_path / "x.html")]) == 0
    page = (tmp_path / "x.html").read_text()
    assert "=cmd" in page
    assert ">label</p><p><b><bdi>negative</bdi>" in page
    capsys.readouterr()
    assert cli(["show", str(run.path), "--sort", "-confidence", "--first", "1", "--json"]) == 0
    assert {"id", "label"} <= set(json.loads(capsys.readouterr().out.splitlines()[0]))
    assert cli(["show", str(run.path), "--label", "postive"]) == 2
    assert "Did you mean 'positive'?" in capsys.readouterr().err
    for first in ("-1", "0", "many"):
        assert cli(["show", str(run.path), "--first", first]) == 2


def test_the_command_keeps_columns(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    names = ["--id-column", "key", "--label-column", "gold", "--keep", "by", "--keep", "stars"]
    out = ["--out", str(tmp_path / "run"), "--method", "position", "--quiet"]
    assert cli(["explain", "--data", str(data), *names, *out]) == 0
    assert [t.kept["by"] for t in open_run(tmp_path / "run").texts()] == ["@ann", "bob", "-1", "+x"]
    assert cli(["explain", "--data", str(data), *names[:-1], "star", *out]) == 2
    assert "has no column 'star'. Did you mean 'stars'?" in capsys.readouterr().err


def test_equal_ids_are_refused(model: Any, tmp_path: Path):
    data = tmp_path / "twice.jsonl"
    data.write_text("\n".join(json.dumps({"id": i % 5, "text": f"film {i}"}) for i in range(7)))
    with pytest.raises(BadInput, match=r"lines 1 and 6 of .*twice.jsonl have the same id, '0'; ids must be unique"):
        explain_data(model, source(data, id="id"), tmp_path / "run", "position", rows_per_part=2)
    assert len(explain_data(model, source(data, id="id"), tmp_path / "run", "position", limit=5)) == 5


def test_equal_ids_of_an_older_run_are_not_merged(run: Run, monkeypatch: pytest.MonkeyPatch):
    twice = [("a", []), ("a", [])]
    monkeypatch.setattr(Run, "rows", lambda _: iter(twice))
    with pytest.raises(BadInput, match="several texts with the id 'a'"):
        run.by_id()


# ------------------------------------------------------------------------------------------------------ export


def test_csv_is_in_long_form_without_formulas(run: Run, tmp_path: Path):
    with run.export(tmp_path / "x.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    expected = [(t, c, e, w) for t in run.texts() for c, e in t.explanations.items() for w in e.words()]
    assert len(rows) == len(expected)
    for row, (text, column, e, word) in zip(rows, expected, strict=True):
        assert (row["label"], row["target"], row["method"]) == (text.label, e.target.label, column)
        assert (row["word"], int(row["start"]), int(row["end"])) == (word.text, word.start, word.end)
        assert float(row["score"]) == word.score
    assert {row["id"] for row in rows} == {"'=cmd", "b", "c", "d"}
    assert {row["kept_by"] for row in rows} == {"'@ann", "bob", "'-1", "'+x"}
    assert any(float(row["score"]) < 0 for row in rows)


def test_parquet_has_the_same_rows_unchanged(run: Run, tmp_path: Path):
    table = pq.read_table(run.export(tmp_path / "x.parquet"))
    frame = run.to_frame()
    pd.testing.assert_frame_equal(table.to_pandas(), frame)
    assert set(frame["id"]) == {"=cmd", "b", "c", "d"}
    assert list(frame) == [
        "id", "label", "prediction", "target", "method", "word", "start", "end", "score", "kept_stars", "kept_by",
    ]  # fmt: skip
    whole = sum(word.score for e in run for word in e.words())
    assert frame["score"].sum() == pytest.approx(whole)


def test_json_lines_have_the_kept_columns(run: Run, tmp_path: Path):
    lines = [json.loads(line) for line in run.export(tmp_path / "x.jsonl").read_text("utf-8").splitlines()]
    assert [salience.Explanation.from_dict(line) for line in lines] == list(run)
    assert lines[0]["kept"] == {"stars": "5", "by": "@ann"}


@pytest.mark.parametrize(
    ("name", "format", "message"),
    [
        ("x.xlsx", None, r"unknown ending '.xlsx'.*Known: .jsonl, .ndjson, .csv, .parquet"),
        ("x", None, "unknown ending 'x'"),
        ("x.csv", "jsonl", "x.csv ends in .csv, but the format is jsonl"),
        ("x.csv", "eraser", "but the format is eraser"),
        ("x.csv", "xml", "unknown format 'xml'"),
    ],
)
def test_an_unknown_ending_is_refused(run: Run, tmp_path: Path, name: str, format: str | None, message: str):
    with pytest.raises(BadInput, match=message):
        run.export(tmp_path / name, format)
    assert not (tmp_path / name).exists()


def test_an_export_that_cannot_be_written(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "full.csv").symlink_to("/dev/full")
    for place in ("/proc/x.csv", str(tmp_path / "full.csv"), str(tmp_path / "none" / "x.csv"), str(tmp_path)):
        assert cli(["export", str(run.path), place, "--format", "csv"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert cli(["show", str(run.path), "--html", "/proc/x.html"]) == 2
    assert "/proc/x.html could not be written" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------ reading


def test_a_run_is_short_to_print(run: Run, model: Any):
    assert repr(run) == f"Run({str(run.path)!r}, 4 texts, input_x_gradient, attention)"
    assert "4 texts" in run._repr_html_()
    assert run._repr_html_().count("<article") == 3


def test_the_summary_ranks_words_by_their_intervals(model: Any, tmp_path: Path):
    data = tmp_path / "many.jsonl"
    texts = [f"A {'fine' if i % 2 else 'dull'} film, number {i % 3}." for i in range(20)]
    data.write_text("\n".join(json.dumps({"text": t}) for t in texts))
    run = explain_data(model, data, tmp_path / "run", ["input_x_gradient", "occlusion"], rows_per_part=6)
    summary = run.summary()
    shares: dict[tuple[str, str, str], list[float]] = {}
    for e in run:
        total = sum(abs(w.score) for w in e.words())
        for word in e.words():
            shares.setdefault((e.method, e.target.name, word.text.lower()), []).append(word.score / total)
    assert summary.texts == {"negative": 10, "positive": 10}
    assert {(w.method, w.label, w.word) for w in summary.words} == {k for k, v in shares.items() if len(v) >= 8}
    for word in summary.words:
        values = shares[word.method, word.label, word.word]
        interval = estimate_mean(values, (-1, 1))
        assert word.texts == len(values)
        assert (word.low, word.high) == pytest.approx((interval.low, interval.high), abs=1e-9)
        assert word.mean == pytest.approx(sum(values) / len(values))
    assert summary.top("occlusion", "positive", 1)[0].word == "fine"
    assert summary.top("occlusion", "negative", 1)[0].word == "dull"
    frame = summary.to_frame()
    assert list(frame) == ["method", "label", "word", "texts", "mean", "low", "high"]
    assert len(frame) == len(summary.words)
    assert run.summary("occlusion", least=20).words == ()
    assert "fine" in summary._repr_html_()
    with pytest.raises(BadInput, match="at least 2"):
        run.summary(least=1)


def test_the_command_summarises(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    command = ["summary", str(run.path), "--least", "2", "--method", "attention"]
    assert cli(command) == 0
    out = capsys.readouterr().out
    assert "attention: positive (2 texts)" in out
    assert "+" not in out  # attention has no direction
    assert max(map(len, out.replace(str(run.path), "run").splitlines())) <= 80
    assert cli([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["texts"] == {"negative": 2, "positive": 2}
    assert cli([*command, "--html", str(tmp_path / "x.html")]) == 0
    assert (tmp_path / "x.html").read_text().startswith("<!doctype html>")
    assert cli([*command, "--method", "lime"]) == 2


def test_the_summary_writes_a_sign_where_scores_have_a_direction(model: Any, tmp_path: Path):
    from salience.views.summary import fragment

    texts = [f"A fine film, number {i}." for i in range(8)]
    run = explain_data(model, texts, tmp_path / "run", ["input_x_gradient", "attention"])
    summary = run.summary()
    assert summary.signed == ("input_x_gradient",)
    shown = {method: fragment(run.summary(method)) for method in summary.methods}
    for method, sign in (("input_x_gradient", "+"), ("attention", "")):
        word = summary.top(method, "positive", 1)[0]
        assert f">{sign}{word.mean:.3f}<" in shown[method]
        assert f">{sign}{word.low:.3f} to {sign}{word.high:.3f}<" in shown[method]
    assert "+" not in shown["attention"]


def test_wrong_next_tokens_are_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Of a large vocabulary only the most likely tokens are stored, and the right one is often not among them."""
    model = build("gpt2_lm")
    for module in (salience.explanations.explainer, salience.runs.run):
        monkeypatch.setattr(module, "LABELS", len(model.labels) - 1)
    data = tmp_path / "next.jsonl"
    data.write_text(json.dumps({"text": "A fine", "next": "film"}))
    run = explain_data(model, source(data, label="next"), tmp_path / "run", "random")
    assert cli(["show", str(run.path)]) == 0
    capsys.readouterr()
    assert cli(["show", str(run.path), "--wrong"]) == 2
    assert "explains a language model, and only its most likely next tokens are stored" in capsys.readouterr().err


def test_the_default_method_is_that_of_explain(model: Any, data: Path, tmp_path: Path):
    """One for classifiers, another for language models, with settings or without, in Python and as a command."""
    generating = build("gpt2_lm")
    generating.save(tmp_path / "lm")
    for own, method, setting in ((model, "integrated_gradients", {"nodes": 4}), (generating, "lrp", {"epsilon": 0.1})):
        (alone,) = salience.explain(own, "A fine", **setting)
        run = explain_data(own, ["A fine"], tmp_path / method, **setting)
        assert [alone.method, *run.methods] == [method] * 2
        assert estimate(own, data, limit=1, **setting).sample == 1
    command = ["explain", "--data", str(data), "--model", str(tmp_path / "lm"), "--limit", "1", "--set", "epsilon=0.1"]
    assert cli([*command, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert list(open_run(tmp_path / "run").methods) == ["lrp"]
    with pytest.raises(BadInput, match="unknown setting 'nodes' of lrp"):
        explain_data(generating, ["A fine"], tmp_path / "none", nodes=4)


@pytest.mark.parametrize("kind", ["file", "datasets"])
def test_rejected_rows_are_reported_even_quietly(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = [{"text": "A fine film."}] * 12 + [{"text": " "}]
    data = tmp_path / ("data.jsonl" if kind == "file" else "data")
    if kind == "file":
        data.write_text("\n".join(map(json.dumps, rows)))
    else:
        datasets.Dataset.from_list(rows).save_to_disk(data)
    capsys.readouterr()
    out = str(tmp_path / "run")
    assert cli(["explain", "--data", str(data), "--out", out, "--method", "random", "--quiet"]) == 0
    assert capsys.readouterr().err == f"1 row was rejected; see {out}/rejected.jsonl\n"


# ------------------------------------------------------------------------------------------------------ the estimate


def test_an_estimate_ends_in_time(model: Any, tmp_path: Path):
    """However slow the method: one text is explained, and the next pass after the time is up is not started."""
    data = tmp_path / "many.jsonl"
    data.write_text("\n".join(json.dumps({"text": "film " * (1 + i % 9)}) for i in range(100)))
    seen: list[tuple[int, int]] = []
    cost = estimate(model, data, "occlusion", within=1e-9, report=lambda *now: seen.append(now))
    assert (cost.texts, cost.sample) == (100, 1)
    assert cost.seconds > 0
    assert seen == [(100, 100)]
    assert not model.module._forward_pre_hooks
    all_of_them = estimate(model, data, "position", within=1000.0)
    assert all_of_them.sample == 100
