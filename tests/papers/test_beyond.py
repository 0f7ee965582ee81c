"""Beyond saliency: the table of all kinds of explanation, made from a tiny model on tiny data, and resumed."""

import json
from pathlib import Path

import numpy as np
import pytest

from reviews import reviews
from salience.cli import run
from salience.core.stats import Difference
from salience.data.examples import Example
from salience.papers import beyond, beyond_report
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
    printed, out = capsys.readouterr().out, (folder / "out" / "tables.md").read_text()
    assert max(map(len, printed.splitlines())) <= 80
    (result,) = json.loads((folder / "out" / "result.json").read_text())
    measured = {(row["model"], row["method"]) for row in result["rows"]}
    asked = {("classifier", method) for method in (*beyond.METHODS, "pairwise_occlusion", "random")}
    assert measured >= asked | {("lei", "selection"), ("hardkuma", "selection")}
    assert result["left_out"] == []
    for row in result["rows"]:
        for metric in (*beyond.FAITHFULNESS, *beyond.PLAUSIBILITY):
            assert row[metric].keys() == {"mean", "low", "high", "n", "beats_random"}
        assert row["seconds"] is None or row["seconds"] > 0
    assert "| A2R, a rationale model | 0.474 | 0.433 | 0.109 | 0.320 |" in out
    own = "integrated_gradients"
    assert f"| {own} > random, comprehensiveness | 0.484 / 0.238 |" in out
    assert f"| selection (lei) > {own}, roc_auc (auprc) | 0.474 / 0.376 |" in out, "AUPRC flatters tied scores"
    cells = {(row["model"], row["method"]): row["roc_auc"]["mean"] for row in result["rows"]}
    judged = [d for d in result["directions"] if "A2R" in d["better"] and d["metric"] == "auprc"]
    for direction, kind in zip(judged, ("lei", "hardkuma"), strict=True):
        ours = [cells[kind, "selection"], cells["classifier", "integrated_gradients"]]
        assert direction["ours"] == ours
        assert direction["difference"]["mean"] == pytest.approx(ours[0] - ours[1]), "paired over the same texts"
        assert result["rationale_models"][kind]["marked"]["f1"]["n"] == 8
        assert f"The selection of {kind} is " in printed
        assert f"Exactly the tokens that {kind} selects have a token F1" in " ".join(printed.split())
    assert "diff_mask, place among 7 methods: comprehensiveness" in " ".join(printed.split())
    assert "its gates took" in printed
    assert result["gates"]["margin"] == 0.1
    kept = result["gates"]["divergence"] <= 0.1
    assert ("They keep" if kept else "Its gates explain little: the constraint is not met") in " ".join(printed.split())
    shown = (folder / "out" / "report.html").read_text()
    assert shown.count("<svg") == len(beyond.FAITHFULNESS) + len(beyond.PLAUSIBILITY) + 1
    assert "selection (lei)" in shown
    assert run(command) == 0
    assert capsys.readouterr().out == printed, "times included, so that nothing was measured again"

    part = next((folder / "out" / "movies" / "of-classifier").rglob("*.parquet"))
    part.unlink()
    assert run(command) == 0
    assert capsys.readouterr().out == printed, "a lost part is measured again"


def test_interactions_of_long_texts_are_left_out_with_the_reason():
    short, long = Example("a", "a fine film"), Example("b", "word " * 400)
    assert beyond._too_long([short]) is None  # pyright: ignore[reportPrivateUsage]
    reason = beyond._too_long([long])  # pyright: ignore[reportPrivateUsage]
    assert reason == "interactions would take 80,200 passes per text, and 5,000 are allowed"


def test_a_direction_holds_where_the_paired_difference_is_significant():
    """The intervals of the two means overlap, and yet the first is better on every text."""
    up, down = (Difference(x, x - 0.02, x + 0.02, 0.001, 20) for x in (0.05, -0.05))
    none = Difference(0.05, -0.01, 0.11, 0.2, 20)
    cases = ((up, "higher"), (up, "lower"), (down, "lower"), (none, "higher"))
    verdicts = [beyond_report._verdict(*case) for case in cases]  # pyright: ignore
    assert verdicts == ["holds", "does not hold", "holds", "undecided"]


def test_the_selected_tokens_are_compared_with_as_many_at_random():
    """ "fine" is marked in texts of four tokens; it alone is selected, or it and another, or another alone."""
    model, rationale = build("bert"), ((2, 6),)
    texts = [Example(str(i), "a fine film fox", 1, rationale) for i in range(3)] + [Example("3", "a fine film fox", 1)]
    (encoded,) = model.encode(["a fine film fox"])
    tokens = np.array([t for t, special in zip(encoded.tokens, encoded.special, strict=True) if not special])
    assert len(tokens) == 4
    chosen = [tokens == "fine", (tokens == "fine") | (tokens == "fox"), tokens == "fox", tokens == "a"]
    of = beyond._selected_marks(model, texts, chosen)  # pyright: ignore
    assert of is not None
    assert of.f1.mean == pytest.approx((1 + 2 / 3 + 0) / 3), "the text without marks is not counted"
    assert of.random.mean == pytest.approx((1 / 4 + (2 * 2 / 4) / 3 + 1 / 4) / 3)
    assert of.difference.mean == pytest.approx(of.f1.mean - of.random.mean)
    assert beyond._selected_marks(model, texts[3:], chosen[3:]) is None  # pyright: ignore


def test_every_published_direction_is_that_of_the_published_numbers():
    for direction in beyond.DIRECTIONS:
        column = beyond_report.METRICS.index(direction.metric)
        a, b = (beyond_report.PUBLISHED[name][column] for name in direction.published)
        assert a < b if direction.metric == "sufficiency" else a > b
