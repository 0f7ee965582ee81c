"""Beyond saliency: the table of all kinds of explanation, made from a tiny model on tiny data, and resumed."""

import json
from pathlib import Path

import pytest

from reviews import reviews
from salience.cli import run
from salience.core.stats import Estimate
from salience.data.examples import Example
from salience.papers import beyond
from shapes import build


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("beyond")
    build("bert").save(path / "model")
    (path / "movies").mkdir()
    for name, count in (("train", 16), ("test", 8)):
        lines = [{"text": e.text, "label": e.label, "marked": e.rationale} for e in reviews(count)]
        (path / "movies" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_everything_is_in_one_table_and_not_measured_twice(folder: Path, capsys: pytest.CaptureFixture[str]):
    command = ["paper", "beyond", "--data", f"movies={folder / 'movies'}", "--model", str(folder / "model")]
    command += ["--rationale-column", "marked", "--epochs", "1", "--out", str(folder / "out"), "--quiet"]
    assert run(command) == 0
    out = capsys.readouterr().out
    (result,) = json.loads((folder / "out" / "result.json").read_text())
    measured = {(row["model"], row["method"]) for row in result["rows"]}
    asked = {("classifier", method) for method in (*beyond.METHODS, "pairwise_occlusion", "random")}
    assert measured >= asked | {("rationale model", "selection")}
    assert result["left_out"] == []
    for row in result["rows"]:
        assert {"comprehensiveness", "sufficiency", "token_f1", "auprc"} <= row.keys()
        assert row["seconds"] is None or row["seconds"] > 0
    assert "| A2R, a rationale model | 0.474 | 0.433 | 0.109 | 0.320 |" in out
    assert "comprehensiveness: integrated gradients is better than random | 0.484 / 0.238" in out
    assert "diff_mask is number" in out
    assert "its gates took" in out
    assert run(command) == 0
    assert capsys.readouterr().out == out, "times included, so that nothing was measured again"

    part = next((folder / "out" / "movies" / "of-classifier").rglob("*.parquet"))
    part.unlink()
    assert run(command) == 0
    assert capsys.readouterr().out == out, "a lost part is measured again"


def test_interactions_of_long_texts_are_left_out_with_the_reason():
    short, long = Example("a", "a fine film"), Example("b", "word " * 400)
    assert beyond._too_long([short]) is None  # pyright: ignore[reportPrivateUsage]
    reason = beyond._too_long([long])  # pyright: ignore[reportPrivateUsage]
    assert reason == "interactions would take 80,200 passes per text, and 5,000 are allowed"


def test_a_direction_holds_where_intervals_are_apart():
    low, middle, high = (Estimate(x, x - 0.1, x + 0.1, 20) for x in (0.2, 0.35, 0.6))
    none = Estimate(0.9, float("nan"), float("nan"), 1)
    verdicts = [beyond._verdict(*pair) for pair in ((high, low), (low, high), (middle, low), (none, low))]  # pyright: ignore[reportPrivateUsage]
    assert verdicts == ["holds", "does not hold", "undecided", "undecided"]


def test_every_published_direction_is_that_of_the_published_numbers():
    for better, worse, metric in beyond.DIRECTIONS:
        a, b = (beyond.PUBLISHED[name][beyond.ORDER.index(metric)] for name in (better, worse))
        assert a < b if metric == "sufficiency" else a > b
