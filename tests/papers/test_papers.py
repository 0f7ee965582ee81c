"""Small runs of the papers' protocols."""

import json
from pathlib import Path

import pytest

from reviews import reviews
from salience.cli import run
from salience.views.training import page, trade_off
from shapes import build


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("paper")
    build("bert").save(path / "model")
    for name, count in (("train", 8), ("dev", 4), ("test", 8), ("far", 4)):
        lines = [{"text": e.text, "label": e.label} for e in reviews(count)]
        (path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_sallm_from_the_command(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ["paper", "sallm", "--model", str(folder / "model"), "--out", str(tmp_path / "out"), "--rate=0.003"]
    arguments += ["--train", str(folder / "train.jsonl"), "--validation", str(folder / "dev.jsonl")]
    arguments += ["--test", str(folder / "test.jsonl"), "--other", f"far={folder / 'far.jsonl'}"]
    arguments += ["--control=uniform", "--control=smoothed"]
    assert run(arguments) == 0
    out = capsys.readouterr().out
    for name in ("vanilla", "sallm", "fine_tuned", "iterative", "shuffled", "uniform", "smoothed"):
        assert f"\n{name} " in out
        assert f"| {name} |" in (tmp_path / "out" / "tables.md").read_text()
    assert max(map(len, out.splitlines())) <= 80
    assert "54.22 ± 0.19" in out
    assert "were best on validation" in out
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    taught, controls = ["sallm", "fine_tuned", "iterative"], ["shuffled", "uniform", "smoothed"]
    assert [row["variant"] for row in result["rows"]] == ["vanilla", *taught, *controls]
    assert result["rows"][1]["against_vanilla"]["pairs"] == 8
    compared = [row["variant"] for row in result["rows"] if row["against_shuffled"]]
    assert compared == taught, "controls are not compared with themselves"
    assert set(result["rows"][0]["measures"]) == set(result["rows"][1]["measures"]) >= {"attention_mass", "agreement"}
    assert "attention mass" in out
    report = (tmp_path / "out" / "report.html").read_text()
    assert "54.22 ± 0.19" in report
    assert "<svg" in report
    assert run(arguments) == 0
    assert capsys.readouterr().out == out, "finished training was run again"
    assert run(["paper", "salm", *arguments[2:]]) == 2
    assert "No such command 'salm'" in capsys.readouterr().err


@pytest.mark.slow
def test_parallel_training_gives_the_same_results(folder: Path, tmp_path: Path):
    from salience.data import source
    from salience.papers.sallm import Size, run
    from salience.training.loop import Recipe

    parts = [source(folder / f"{name}.jsonl", label="label") for name in ("train", "dev", "test")]
    size = Size(seeds=1, epochs=1, weights=(1.0, 2.0), shares=(0.2,))
    one, two = (
        run(str(folder / "model"), *parts, tmp_path / str(n), size=size, recipe=Recipe(rate=0.003), workers=n)
        for n in (1, 2)
    )
    assert [row.test for row in two.rows] == [row.test for row in one.rows]
    for row, other in zip(one.rows, two.rows, strict=True):
        assert row.measures["penalty" if row.variant != "vanilla" else "accuracy"].mean == pytest.approx(
            other.measures["penalty" if row.variant != "vanilla" else "accuracy"].mean, abs=1e-4
        )


def test_a_sweep_shares_its_teacher_and_draws_the_trade_off(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = ["train", "--model", str(folder / "model"), "--data", str(folder / "train.jsonl"), "--epochs=1"]
    arguments += ["--validation", str(folder / "dev.jsonl"), "--rate=0.003", "--out", str(tmp_path / "out")]
    arguments += ["--test", str(folder / "test.jsonl"), "--weight=0.1", "--weight=5"]
    assert run(arguments) == 0
    table, log = capsys.readouterr()
    assert "No control was trained" in log
    assert table.splitlines()[0].split() == ["teacher", "λ", "=", "0.1", "λ", "=", "5"]
    assert len(table.splitlines()[1].split()) == 4, "one measure, of the teacher and of two students"
    assert "(λ = 0.1), " in table.splitlines()[-1]
    assert "teacher epoch 1: loss" in log
    assert "penalty" not in log.partition("teacher epoch 1: ")[2].partition("\n")[0], "a teacher has no penalty"
    assert f"wrote the chart {tmp_path / 'out' / 'trade-off.png'}" in log
    assert (tmp_path / "out" / "trade-off.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "weight-0.1" / "teacher").is_dir()
    assert not (tmp_path / "out" / "weight-5" / "teacher").exists()
    report = (tmp_path / "out" / "weight-5" / "report.html").read_text()
    assert "attention on explained tokens" in report
    assert "<svg" in report
    assert "http://" not in report.replace("http://www.w3.org", "")


def test_a_gain_counts_only_against_shuffled_explanations():
    from salience.core.stats import Difference, Spread
    from salience.papers.sallm import VariantRow

    clear, none = Difference(2.0, 1.0, 3.0, 0.01, 50), Difference(0.1, -1.0, 1.2, 0.8, 50)
    harm = Difference(-2.0, -3.0, -1.0, 0.01, 50)

    def judged(vanilla: Difference, shuffled: Difference | None, variant: str = "sallm") -> str:
        return VariantRow(variant, Spread((50.0, 51.0)), {}, {}, vanilla, shuffled).verdict

    assert [judged(clear, clear), judged(clear, none), judged(none, clear), judged(harm, clear)] == [
        "helps",
        "no better than shuffled",
        "better than shuffled only",
        "harms",
    ]
    assert judged(none, none) == "no difference"
    assert judged(clear, None, "uniform") == "better than none"
    assert judged(clear, clear, "fine_tuned") == "not comparable: trained twice as long"


def test_names_in_a_report_are_escaped(folder: Path):
    from salience.training.distillation import DistillationResult
    from salience.training.loop import Epoch

    odd = DistillationResult(
        folder,
        {"method": "<b>"},
        {"accuracy": 0.5},
        (Epoch(1, {"task": 0.0}, {"task": 1.0}, 0, {"accuracy": 0.7}),),
        {"<i>": 0.1},
    )
    html = page(odd, title="<script>")
    assert "<script>" not in html
    assert "<b>" not in html
    assert "<i>" not in html
    assert trade_off({"a": odd, "b": odd}, "svg", against="accuracy").startswith(b"<svg")


@pytest.mark.parametrize("name", ["layer_saliency", "elephant"])
def test_papers_that_compare_methods(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["A", "fine", "film", "with", "a", "dull", "end", "."]
    lines = [{"text": " ".join(words), "label": i % 2, "feel": [2, 4, 2, 2, 2, 0, 2, 2]} for i in range(4)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["paper", name, "--data", f"small={tmp_path / 'texts.jsonl'}", "--out", str(tmp_path / "out")]
    arguments += ["--rationale-column=feel", "--spans=sentiments", "--label-column=label"]
    assert run(arguments) == 0
    out, err = capsys.readouterr()
    assert "integrated_gradients" in out
    assert "report.html" in err
    (facts,) = json.loads((tmp_path / "out" / "result.json").read_text())
    assert facts["data"] == "small"
    assert facts["seconds"]["occlusion"] > 0
    assert {"random", "uniform", "position"} <= set(facts["methods"])
    report = (tmp_path / "out" / "report.html").read_text()
    assert "<svg" in report
    if name == "layer_saliency":
        assert [c["layer"] for c in facts["coherence"]] == list(range(len(facts["coherence"])))
        assert f"chooses layer {facts['chosen']}" in out
        assert sum(m.startswith("layer_saliency_layer_") for m in facts["methods"]) == len(facts["coherence"])
    else:
        assert "attention" in out
        assert "is ahead" in out
    assert run([*arguments[:2], "--data", "nothing", *arguments[4:]]) == 2
    assert "NAME=DATA" in capsys.readouterr().err


def test_unsupported_methods_are_left_out_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "texts.jsonl").write_text('{"text": "A fine film."}\n{"text": "A dull end."}\n')
    arguments = [
        "--model",
        "sentiment_bilstm",
        "--data",
        f"small={tmp_path / 'texts.jsonl'}",
        "--out",
        str(tmp_path / "o"),
    ]
    assert run(["paper", "elephant", *arguments]) == 0
    assert "left out: attention_rollout. " in capsys.readouterr().out
    (facts,) = json.loads((tmp_path / "o" / "result.json").read_text())
    assert set(facts["left_out"]) == {"attention_rollout"}
    assert "attention_rollout" not in facts["methods"]
    assert {"attention", "lrp"} <= set(facts["seconds"]) <= set(facts["methods"])
    assert "<h3>Left out</h3>" in (tmp_path / "o" / "report.html").read_text()
    assert run(["paper", "layer_saliency", *arguments]) == 2
    assert "no language model head" in capsys.readouterr().err
