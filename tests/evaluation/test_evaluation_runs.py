"""Evaluating a whole data set: a run whose parts hold the numbers of every text, and the table that they give."""

import json
import math
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import salience
from salience.cli import run as command
from salience.data import source
from salience.data.examples import examples
from salience.errors import BadInput
from salience.evaluation.table import Evaluation
from salience.models import sample_file
from salience.runs.run import open_run

METHODS = ["attention", "integrated_gradients", "occlusion"]
METRICS = ["comprehensiveness", "hiding_area", "decision_flip", "loo_spearman", "token_f1", "parameter_randomisation"]
WORDS = "a fine film with warm humour and no bad scene but the slow plot never finds its dull way home".split()  # noqa: SIM905


def sample() -> salience.data.Source:
    return source(sample_file(), id="id", rationale="rationale_spans")


def same(one: Evaluation, other: Evaluation) -> None:
    """Both tables hold the same numbers."""
    assert one.methods == other.methods
    assert one.metrics == other.metrics
    assert one.texts == other.texts
    for key, cell in one.cells.items():
        a, b = cell.estimate, other.cells[key].estimate
        assert (a.mean, a.low, a.high) == pytest.approx((b.mean, b.low, b.high), abs=1e-6, nan_ok=True), key
        assert (a.n, cell.beats_random) == (b.n, other.cells[key].beats_random)
    for metric, of in one.curves.items():
        for method, curve in of.items():
            assert curve == pytest.approx(other.curves[metric][method], abs=1e-6)
    assert one.gaps.keys() == other.gaps.keys()
    assert one.settings == other.settings


@pytest.fixture(scope="module")
def table() -> Evaluation:
    texts = examples(sample(), limit=12)
    return salience.evaluate(salience.load(), texts, METHODS, metrics=METRICS, nodes=4)


def test_a_run_gives_the_table_of_the_evaluation_in_memory(table: Evaluation, tmp_path: Path):
    options = {"metrics": METRICS, "nodes": 4, "limit": 12}
    out = tmp_path / "run"
    run = salience.evaluate_data(salience.load(), sample(), out, METHODS, rows_per_part=5, **options)
    same(run, table)
    (first, *_) = sorted((out / "parts").glob("*.parquet"))
    rows = pq.read_table(first).to_pylist()
    assert len(rows) == 5
    for row, value in zip(rows, table.cells["attention", "comprehensiveness"].values, strict=False):
        assert row["comprehensiveness"]["attention"] == pytest.approx(value, abs=1e-6)
    assert rows[0]["loo_spearman"]["occlusion"] is None, "undefined"
    # The finished run is left alone, and gives the same table.
    before = {f: f.stat().st_mtime_ns for f in (out / "parts").iterdir()}
    same(salience.evaluate_data(salience.load(), sample(), out, METHODS, rows_per_part=5, **options), table)
    assert {f: f.stat().st_mtime_ns for f in (out / "parts").iterdir()} == before


SPREAD = {"metrics": METRICS, "nodes": 4, "limit": 12, "rows_per_part": 6, "workers": 2}


@pytest.mark.slow
def test_a_pool_of_processes_gives_the_same_table(table: Evaluation, tmp_path: Path):
    same(salience.evaluate_data("sentiment", sample(), tmp_path / "run", METHODS, **SPREAD), table)


def test_the_limit_of_a_run_with_rationales_may_grow(tmp_path: Path):
    options = {"metrics": ["token_f1", "comprehensiveness"], "rows_per_part": 2}
    model, out = salience.load(), tmp_path / "run"

    def run(limit: int, **more: float) -> Evaluation:
        return salience.evaluate_data(model, sample(), out, "gradient", limit=limit, **options, **more)

    run(4)
    share = json.loads((out / "manifest.json").read_text())["metrics"]["token_f1"]["share"]
    before = {f: f.stat().st_mtime_ns for f in (out / "parts").iterdir()}
    grown = run(9)
    assert grown.texts == 9
    assert before.items() <= {f: f.stat().st_mtime_ns for f in (out / "parts").iterdir()}.items()
    texts = examples(sample(), limit=9)
    same(grown, salience.evaluate(model, texts, "gradient", metrics=options["metrics"], **{"token_f1.share": share}))
    assert run(9).texts == 9
    with pytest.raises(BadInput, match=r"token_f1\.share"):
        run(10, **{"token_f1.share": 0.9})
    with pytest.raises(BadInput, match="limit = 9, and 4 is less"):
        run(4)


def test_rejected_rows_are_reported_even_quietly(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = sentences(tmp_path / "data.jsonl", 12)
    out = str(tmp_path / "run")
    command_line = ["--data", str(data), "--out", out, "--method", "gradient", "--quiet"]
    assert command(["evaluate", *command_line, "--metric", "comprehensiveness"]) == 0
    assert capsys.readouterr().err == f"1 row was rejected; see {out}/rejected.jsonl\n"


def sentences(path: Path, count: int) -> Path:
    rng = random.Random(3)
    lines = [json.dumps({"text": " ".join(rng.choices(WORDS, k=rng.randint(2, 9)))}) for _ in range(count)]
    lines[7] = '{"text": 7}'
    path.write_text("\n".join(lines))
    return path


KILLED = """
import sys, torch
import salience
torch.set_num_threads(1)
salience.evaluate_data("sentiment", sys.argv[1], sys.argv[2], "gradient", metrics="comprehensiveness", rows_per_part=10)
"""


@pytest.mark.slow
def test_a_killed_evaluation_can_be_resumed(tmp_path: Path):
    data, run = sentences(tmp_path / "reviews.jsonl", 300), tmp_path / "run"
    whole = salience.evaluate_data(
        "sentiment", data, tmp_path / "whole", "gradient", metrics="comprehensiveness", rows_per_part=10
    )
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(data), str(run)])
    end = time.monotonic() + 300
    while len(list(run.glob("parts/part-*.parquet"))) < 3 and process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = {f.name: f.read_bytes() for f in run.glob("parts/part-*.parquet")}
    assert 3 <= len(done) < 30, "it was killed on its way"
    resumed = salience.evaluate_data("sentiment", data, run, "gradient", metrics="comprehensiveness", rows_per_part=10)
    same(resumed, whole)
    assert resumed.texts == 299
    for name, content in done.items():
        assert (run / "parts" / name).read_bytes() == content, "a finished part was computed again"
    assert (run / "rejected.jsonl").read_text() == (tmp_path / "whole" / "rejected.jsonl").read_text()


def test_what_a_folder_holds_is_not_mixed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = sentences(tmp_path / "reviews.jsonl", 12)
    evaluate = ["evaluate", "--data", str(data), "--method", "gradient", "--metric", "sufficiency", "--quiet"]
    run = str(tmp_path / "run")
    assert command([*evaluate, "--out", run]) == 0
    assert "sufficiency" in capsys.readouterr().out
    with pytest.raises(BadInput, match="holds an evaluation, not explanations"):
        open_run(run)
    with pytest.raises(BadInput, match="holds an evaluation, not explanations; use another folder"):
        salience.explain_data("sentiment", data, run, "gradient")
    with pytest.raises(BadInput, match=r"metrics\.sufficiency"):
        salience.evaluate_data("sentiment", data, run, "gradient", metrics="comprehensiveness")
    with pytest.raises(BadInput, match="erase = 'mask', not 'delete'"):
        salience.evaluate_data("sentiment", data, run, "gradient", metrics="sufficiency", erase="delete")
    explained = str(tmp_path / "explained")
    salience.explain_data("sentiment", data, explained, "gradient")
    assert command([*evaluate, "--out", explained]) == 2
    assert "holds explanations, not an evaluation" in capsys.readouterr().err
    assert command(["evaluate", "--out", run]) == 2
    assert "--data" in capsys.readouterr().err
    assert command(["evaluate", "--data", str(data), "--engine", "ray"]) == 2
    assert "--out" in capsys.readouterr().err


def test_own_metrics_and_default_methods(tmp_path: Path):
    def longest(model, batch, scores, target):
        return scores.amax(1)

    data = sentences(tmp_path / "reviews.jsonl", 10)
    run = salience.evaluate_data(salience.load(), data, tmp_path / "run", metrics=["sufficiency", longest])
    assert run.methods[:5] == ("attention", "input_x_gradient", "integrated_gradients", "lrp", "occlusion")
    assert math.isfinite(run.cells["lrp", "longest"].estimate.mean)
    assert run.cells["lrp", "longest"].values == ()
