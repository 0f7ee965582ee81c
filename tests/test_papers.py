"""Papers in miniature, and the statistics that their tables rest on."""

import json
from pathlib import Path

import numpy as np
import pytest

from salience.cli import run
from salience.stats import Spread, paired_bootstrap
from salience.views.training import page, trade_off
from shapes import build
from test_train import reviews


def test_a_paired_bootstrap_sees_pairs():
    draw = np.random.default_rng(0)
    base = draw.normal(size=200) * 10
    found = paired_bootstrap(base + 1 + draw.normal(size=200) * 0.5, base)
    assert found.clear
    assert found.low < 1 < found.high
    assert found.high - found.low < 0.2, "the spread of the pairs was taken for that of their differences"
    assert found.p < 0.01
    none = paired_bootstrap(base, base + draw.normal(size=200))
    assert not none.clear
    assert none.p > 0.05
    assert paired_bootstrap(base, base).p == 1
    assert paired_bootstrap(base, base * 0.9) == paired_bootstrap(base, base * 0.9)


def test_the_interval_holds_its_promise():
    """Of many samples, about 95 % of the intervals hold the true difference."""
    draw = np.random.default_rng(1)
    held = 0
    for i in range(200):
        found = paired_bootstrap(draw.normal(0.3, 1, size=40), np.zeros(40), draws=500, seed=i)
        held += found.low <= 0.3 <= found.high
    assert 0.88 <= held / 200 <= 0.99


def test_the_interval_holds_its_promise_over_few_seeds():
    """Seeds differ, and so do texts; three seeds must not promise too much."""
    draw = np.random.default_rng(4)
    held = 0
    for i in range(200):
        d = 0.3 + draw.normal(0, 1, size=(4, 1)) + draw.normal(0, 1, size=(4, 30))
        found = paired_bootstrap(d, 0 * d, draws=500, seed=i)
        held += found.low <= 0.3 <= found.high
    assert held / 200 >= 0.86


def test_seeds_that_answer_alike_are_not_so_many_texts():
    """Five copies of the same answers say no more than one of them; five seeds that differ say more of the seeds."""
    draw = np.random.default_rng(2)
    once = draw.normal(0.3, 1, size=(1, 50))
    one, copies = paired_bootstrap(once, 0 * once), paired_bootstrap(np.repeat(once, 5, 0), np.zeros((5, 50)))
    assert copies.mean == pytest.approx(one.mean)
    assert copies.high - copies.low == pytest.approx(one.high - one.low, rel=0.05)
    assert copies.pairs == 50
    seeds = draw.normal(0, 1, size=(5, 1)) + np.zeros((5, 50))
    apart = paired_bootstrap(seeds, 0 * seeds)
    assert apart.high - apart.low > 0.5, "seeds were not drawn anew"


def test_one_seed_is_the_plain_bootstrap():
    from scipy.stats import bootstrap

    d = np.random.default_rng(3).normal(0.3, 1, size=60)
    ours = paired_bootstrap(d, 0 * d)
    theirs = bootstrap((d,), np.mean, method="percentile", n_resamples=10_000, rng=0).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.02)


def test_spread():
    assert str(Spread((50.0, 52.0))) == "51.00 ± 1.41"
    assert f"{Spread((50.0, 52.0)):.0f}" == "51 ± 1"
    assert Spread((3.0,)).sd == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("paper")
    build("bert").save(path / "model")
    for name, count in (("train", 16), ("dev", 8), ("test", 8), ("far", 8)):
        lines = [{"text": e.text, "label": e.label} for e in reviews(count)]
        (path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_sallm_from_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    asked = ["paper", "sallm", "--model", str(folder / "model"), "--out", str(tmp_path / "out"), "--rate=0.003"]
    asked += ["--train", str(folder / "train.jsonl"), "--validation", str(folder / "dev.jsonl")]
    asked += ["--test", str(folder / "test.jsonl"), "--other", f"far={folder / 'far.jsonl'}"]
    assert run(asked) == 0
    out = capsys.readouterr().out
    for name in ("vanilla", "sallm", "fine_tuned", "iterative"):
        assert f"| {name} |" in out
    assert "54.22 ± 0.19" in out
    assert "were best on validation" in out
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [row["variant"] for row in result["rows"]] == ["vanilla", "sallm", "fine_tuned", "iterative"]
    assert result["rows"][1]["against_vanilla"]["pairs"] == 8
    assert set(result["rows"][0]["measures"]) == set(result["rows"][1]["measures"]) >= {"attention_mass", "agreement"}
    assert "attention mass" in out
    report = (tmp_path / "out" / "report.html").read_text()
    assert "54.22 ± 0.19" in report
    assert "<svg" in report
    assert run(asked) == 0
    assert capsys.readouterr().out == out, "what is finished is not done again"
    assert run(["paper", "salm", *asked[2:]]) == 2
    assert "No such command 'salm'" in capsys.readouterr().err


def test_several_trainings_at_a_time_come_to_the_same(folder: Path, tmp_path: Path):
    from salience.data import source
    from salience.papers.sallm import Size, run
    from salience.train import Recipe

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


def test_a_sweep_shares_its_teacher_and_draws_what_it_trades(folder: Path, tmp_path: Path):
    asked = ["train", "--model", str(folder / "model"), "--data", str(folder / "train.jsonl"), "--epochs=1"]
    asked += ["--validation", str(folder / "dev.jsonl"), "--rate=0.003", "--out", str(tmp_path / "out"), "--quiet"]
    assert run([*asked, "--weight=0.1", "--weight=5"]) == 0
    assert (tmp_path / "out" / "trade-off.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "weight-0.1" / "teacher").is_dir()
    assert not (tmp_path / "out" / "weight-5" / "teacher").exists()
    report = (tmp_path / "out" / "weight-5" / "report.html").read_text()
    assert "attention on explained tokens" in report
    assert "<svg" in report
    assert "http://" not in report.replace("http://www.w3.org", "")


def test_names_in_a_report_are_text(folder: Path):
    from salience.teaching import Taught
    from salience.train import Epoch

    odd = Taught(folder, {"method": "<b>"}, {"accuracy": 0.5}, (Epoch(1, 0, 0, 0, 0, {"accuracy": 0.7}),), {"<i>": 0.1})
    told = page(odd, title="<script>")
    assert "<script>" not in told
    assert "<b>" not in told
    assert "<i>" not in told
    assert trade_off({"a": odd, "b": odd}, "svg", against="accuracy").startswith(b"<svg")


@pytest.mark.parametrize("name", ["layer_saliency", "elephant"])
def test_papers_that_compare_methods(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["A", "fine", "film", "with", "a", "dull", "end", "."]
    lines = [{"text": " ".join(words), "label": i % 2, "feel": [2, 4, 2, 2, 2, 0, 2, 2]} for i in range(4)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = ["paper", name, "--data", f"small={tmp_path / 'texts.jsonl'}", "--out", str(tmp_path / "out")]
    asked += ["--rationale-column=feel", "--spans=sentiments", "--label-column=label"]
    assert run(asked) == 0
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
    assert run([*asked[:2], "--data", "nothing", *asked[4:]]) == 2
    assert "NAME=DATA" in capsys.readouterr().err


def test_what_a_model_cannot_do_is_left_out_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "texts.jsonl").write_text('{"text": "A fine film."}\n{"text": "A dull end."}\n')
    asked = ["--model", "sentiment_bilstm", "--data", f"small={tmp_path / 'texts.jsonl'}", "--out", str(tmp_path / "o")]
    assert run(["paper", "elephant", *asked]) == 0
    assert "left out: attention_rollout. " in capsys.readouterr().out
    (facts,) = json.loads((tmp_path / "o" / "result.json").read_text())
    assert set(facts["left_out"]) == {"attention_rollout"}
    assert "attention_rollout" not in facts["methods"]
    assert {"attention", "lrp"} <= set(facts["seconds"]) <= set(facts["methods"])
    assert "<h3>Left out</h3>" in (tmp_path / "o" / "report.html").read_text()
    assert run(["paper", "layer_saliency", *asked]) == 2
    assert "no language model head" in capsys.readouterr().err
