"""Runs over data sets: correct scores, standard Parquet files, and safe resuming."""

import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import duckdb
import pandas as pd
import polars as pl
import pytest
from filelock import FileLock

import salience
from salience.data import source
from salience.errors import BadInput, SalienceError
from salience.evaluation.evaluator import stored as stored_run
from salience.runs.driver import RunProgress, estimate, explain_data
from salience.runs.run import open_run

WORDS = "a fine film with warm humour and no bad scene but the slow plot never finds its dull way home".split()  # noqa: SIM905


def sentences(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 25))) for _ in range(count)]


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"id": f"r{i}", "text": t}) + "\n" for i, t in enumerate(texts)), "utf-8")
    return path


@pytest.fixture(scope="module")
def model() -> salience.core.types.Model:
    return salience.load("sentiment")


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    return write(tmp_path / "reviews.jsonl", sentences(60))


def parts(run: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted((run / "parts").iterdir())}


# ------------------------------------------------------------------------------------------------------ contents


def test_a_run_gives_the_scores_of_explain(model, reviews: Path, tmp_path: Path):
    methods = ["integrated_gradients", "input_x_gradient", "attention"]
    run = explain_data(model, source(str(reviews), id="id"), tmp_path / "run", methods, rows_per_part=17, nodes=4)
    expected = salience.explain(model, sentences(60), methods, nodes=4)
    assert run.finished
    assert len(run) == 60
    for ours, theirs in zip(run, expected, strict=True):
        scale = max(map(abs, theirs.scores))
        assert ours.scores == pytest.approx(theirs.scores, abs=3e-5 * scale)  # other packs round differently
        assert ours.value == pytest.approx(theirs.value, abs=1e-5)
        assert ours.gaps == pytest.approx(theirs.gaps, abs=1e-5)
        for name in ("text", "tokens", "offsets", "special", "target", "method", "settings", "model", "unseen"):
            assert getattr(ours, name) == getattr(theirs, name)
    assert [name for name, _ in run.rows()] == [f"r{i}" for i in range(60)]
    assert [f.name for f in sorted((run.path / "parts").iterdir())] == [f"part-{i:05d}.parquet" for i in range(4)]


def test_every_layer_has_its_own_column(model, reviews: Path, tmp_path: Path):
    run = explain_data(model, reviews, tmp_path / "run", "attention", layer="all", limit=5)
    assert list(run.methods) == ["attention_layer_1", "attention_layer_2", "attention_layer_3"]
    assert [e.settings["layer"] for e in run][:3] == [1, 2, 3]


def test_parts_are_readable_by_common_libraries(model, reviews: Path, tmp_path: Path):
    methods = ["input_x_gradient", "integrated_gradients"]
    run = explain_data(model, reviews, tmp_path / "run", methods, rows_per_part=20, nodes=4)
    folder = str(run.path / "parts")
    expected = [list(e.scores) for e in run if e.method == "input_x_gradient"]
    cache = str(tmp_path / "cache")
    read = {
        "pandas": [list(x) for x in pd.read_parquet(folder)["input_x_gradient"]],
        "polars": pl.read_parquet(f"{folder}/*.parquet")["input_x_gradient"].to_list(),
        "duckdb": [
            r[0] for r in duckdb.sql(f"select input_x_gradient from '{folder}/*.parquet' order by row").fetchall()
        ],
        "datasets": datasets.load_dataset("parquet", data_dir=folder, split="train", cache_dir=cache)[
            "input_x_gradient"
        ],
        "arrow": run.table(["input_x_gradient"])["input_x_gradient"].to_pylist(),
    }
    for name, scores in read.items():
        assert [pytest.approx(row) for row in scores] == expected, name
    query = f"select max(abs(gaps.integrated_gradients.completeness)) from '{folder}/*.parquet'"
    ((gap,),) = duckdb.sql(query).fetchall()
    assert 0 < gap < 1


def test_the_target_column_gives_the_target_of_each_text(model, tmp_path: Path):
    data = tmp_path / "labelled.jsonl"
    named = ["negative", 1, "positive", "splendid", 0, 2.5]
    lines = [{"text": t, "gold": label} for t, label in zip(sentences(6), named, strict=True)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    chosen = source(str(data), target="gold")
    run = explain_data(model, chosen, tmp_path / "run", "input_x_gradient", max_rejected=0.5)
    assert [e.target.label for e in run] == ["negative", "positive", "positive", "negative"]
    assert [(r.number, r.reason.partition(" 'splendid'")[0]) for r in run.rejected()] == [
        (3, "unknown label"),
        (5, "its label is 2.5; expected a label name or an integer"),
    ]
    texts = [t for i, t in enumerate(sentences(6)) if i not in (3, 5)]
    expected = salience.explain(model, texts, "input_x_gradient", target=["negative", 1, "positive", 0])
    for ours, theirs in zip(run, expected, strict=True):
        assert ours.target == theirs.target
        assert ours.scores == pytest.approx(theirs.scores, rel=1e-4, abs=1e-6)
    assert estimate(model, chosen, "input_x_gradient").sample == 4


def test_a_limit_may_grow(model, reviews: Path, tmp_path: Path):
    explain = lambda limit: explain_data(  # noqa: E731
        model, reviews, tmp_path / "run", "input_x_gradient", rows_per_part=20, limit=limit
    )
    assert len(explain(25)) == 25
    first = parts(tmp_path / "run")["part-00000.parquet"]
    assert len(explain(50)) == 50
    with pytest.raises(BadInput, match="started with limit = 50, and 30 is less"):
        explain(30)
    run = explain(None)
    assert parts(run.path)["part-00000.parquet"] == first, "a finished part was computed again"
    whole = explain_data(model, reviews, tmp_path / "whole", "input_x_gradient", rows_per_part=20)
    assert parts(run.path) == parts(whole.path)
    assert run.manifest["finished"]["texts"] == 60


def test_pairs_and_columns_by_name(tmp_path: Path):
    from shapes import build

    data = tmp_path / "pairs.csv"
    data.write_text('name,first,second\nx,"A man, asleep.",Nobody sleeps.\ny,A dog runs.,An animal moves.\n')
    chosen = source(str(data), text="first", pair="second", id="name")
    run = explain_data(build("bert"), chosen, tmp_path / "run", "input_x_gradient")
    rows = dict(run.rows())
    assert rows["x"][0].text == "A man, asleep.\nNobody sleeps."
    assert rows["x"][0].pair_at == len("A man, asleep.") + 1


# ------------------------------------------------------------------------------------------------------ resuming

SALIENCE = str(Path(sys.executable).with_name("salience"))
COMMAND = [SALIENCE, "explain", "--quiet", "--method", "input_x_gradient"]


def command(data: Path, run: Path, *more: str, rows: int = 10) -> list[str]:
    return [*COMMAND, "--data", str(data), "--out", str(run), "--rows-per-part", str(rows), *more]


KILLER = """
import glob, os, random, signal, sys, time
import torch
from salience import models
from salience.models import huggingface
from salience.runs.driver import explain_data

torch.set_num_threads(1)
data, run, kills = sys.argv[1], sys.argv[2], 0
rng = random.Random(2)


def count():
    return len(glob.glob(os.path.join(run, "parts", "part-*")))


while True:
    goal = count() + rng.randrange(5)
    child = os.fork()  # start without importing everything again
    if child == 0:
        explain_data("sentiment", data, run, "input_x_gradient", rows_per_part=10)
        os._exit(0)
    if kills < 10:
        latest = time.monotonic() + 60
        while count() < goal and time.monotonic() < latest:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status):
        break
    kills += 1
    parts = sorted(glob.glob(os.path.join(run, "parts", "part-*")))
    if parts and kills % 3 == 0:
        os.truncate(rng.choice(parts), rng.choice([0, 100, 3000]))  # as a full or failing disk may leave it
print(kills, os.WEXITSTATUS(status))
"""


def test_a_killed_run_can_be_resumed(model, tmp_path: Path):
    """After repeated SIGKILL at random moments, and damage to parts, the files equal those of an uninterrupted run."""
    lines = [json.dumps({"text": t}) for t in sentences(600, seed=1)]
    lines[37], lines[251] = "{broken", '{"text": 7}'
    data = tmp_path / "reviews.jsonl"
    data.write_text("\n".join(lines))
    run, whole = (
        tmp_path / "run",
        explain_data("sentiment", data, tmp_path / "whole", "input_x_gradient", rows_per_part=10),
    )
    done = subprocess.run([sys.executable, "-c", KILLER, data, run], capture_output=True, text=True, check=True)
    kills, code = map(int, done.stdout.split())
    assert code == 0
    assert kills == 10
    assert parts(run) == parts(whole.path)
    assert (run / "rejected.jsonl").read_bytes() == (whole.path / "rejected.jsonl").read_bytes()
    rows = open_run(run).table(["row"])["row"].to_pylist()
    assert sorted([*rows, *(r.number for r in open_run(run).rejected())]) == list(range(600))
    assert 5 <= len(open_run(run).manifest["starts"]) <= kills + 1


def test_a_finished_run_is_left_alone(model, reviews: Path, tmp_path: Path):
    explain_data(model, reviews, tmp_path / "run", "input_x_gradient")
    before = {f: f.stat().st_mtime_ns for f in (tmp_path / "run" / "parts").iterdir()}
    explain_data(model, reviews, tmp_path / "run", "input_x_gradient")
    assert {f: f.stat().st_mtime_ns for f in (tmp_path / "run" / "parts").iterdir()} == before


def test_resuming_with_other_arguments_is_refused_with_the_difference(model, reviews: Path, tmp_path: Path):
    run = tmp_path / "run"
    explain_data(model, reviews, run, "integrated_gradients", nodes=4)
    before = parts(run)
    with pytest.raises(BadInput, match=r"integrated_gradients\.settings\.nodes = 4, not 5"):
        explain_data(model, reviews, run, "integrated_gradients", nodes=5)
    with pytest.raises(BadInput, match=r"target\.label = None, not 'negative'"):
        explain_data(model, reviews, run, "integrated_gradients", nodes=4, target="negative")
    with pytest.raises(BadInput, match="rows_per_part = 1000, not 7"):
        explain_data(model, reviews, run, "integrated_gradients", nodes=4, rows_per_part=7)
    with pytest.raises(BadInput, match=r"model\.name"):
        explain_data("sentiment_bilstm", reviews, run, "integrated_gradients", nodes=4)
    reviews.write_text(reviews.read_text().replace("a", "e"))
    with pytest.raises(BadInput, match="the data has changed"):
        explain_data(model, reviews, run, "integrated_gradients", nodes=4)
    assert parts(run) == before


def test_other_weights_under_the_same_name_are_refused(reviews: Path, tmp_path: Path):
    changed = salience.load("sentiment")
    explain_data(changed, reviews, tmp_path / "run", "input_x_gradient", limit=3)
    changed.module.classifier.bias.data += 1
    with pytest.raises(BadInput, match="other weights"):
        explain_data(changed, reviews, tmp_path / "run", "input_x_gradient", limit=3)


# ------------------------------------------------------------------------------------------------------ many workers


def test_a_run_of_a_model_that_has_moved_is_resumed(reviews: Path, tmp_path: Path):
    salience.load("sentiment").save(tmp_path / "here")
    explain_data(
        salience.load(tmp_path / "here"), source(reviews), tmp_path / "run", "attention", limit=20, rows_per_part=10
    )
    (tmp_path / "here").rename(tmp_path / "there")
    run = explain_data(
        salience.load(tmp_path / "there"), source(reviews), tmp_path / "run", "attention", rows_per_part=10
    )
    assert len(run) == 60


@pytest.mark.slow
def test_auto_starts_processes_for_long_runs_only(reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from salience.runs.engines import local

    explain = lambda name: explain_data(  # noqa: E731
        "sentiment", reviews, tmp_path / name, "input_x_gradient", rows_per_part=15, workers="auto"
    )
    pools: list[int] = []
    pool = local.pool
    monkeypatch.setattr(local, "pool", lambda job, shards, workers: pools.append(workers) or pool(job, shards, workers))
    monkeypatch.setattr(local, "_max_processes", lambda _: 2)
    explain("short")
    assert pools == []
    monkeypatch.setattr(local, "WORTH_A_POOL", 0.0)
    explain("long")
    assert pools == [2]
    assert parts(tmp_path / "short") == parts(tmp_path / "long")
    with pytest.raises(BadInput, match="Did you mean 'auto'"):
        explain_data("sentiment", reviews, tmp_path / "x", "gradient", workers="aut")


@pytest.mark.slow
def test_a_pool_of_processes_writes_the_same_files(reviews: Path, tmp_path: Path):
    seen: list[RunProgress] = []
    runs = [
        explain_data("sentiment", reviews, tmp_path / name, "input_x_gradient", rows_per_part=9, report=report, **how)
        for name, how, report in (("one", {"workers": 1}, None), ("two", {"workers": 2}, seen.append))
    ]
    assert len(seen) > 7
    assert seen[-1].texts == 60
    one, two = (list(run) for run in runs)
    for a, b in zip(one, two, strict=True):
        assert a.scores == pytest.approx(b.scores, abs=1e-5 * max(map(abs, a.scores)))
        assert a.tokens == b.tokens


def test_errors_of_a_worker_are_raised_unchanged(reviews: Path, tmp_path: Path):
    with pytest.raises(SalienceError, match="layer 9"):
        explain_data("sentiment", reviews, tmp_path / "run", "attention", layer=9, workers=2, rows_per_part=9)


# ------------------------------------------------------------------------------------------------------ bad input


def test_bad_rows_are_listed_and_the_run_continues(model, tmp_path: Path):
    data = tmp_path / "mixed.jsonl"
    good = [json.dumps({"text": t}).encode() for t in sentences(120)]
    bad = {3: b'{"text": 5}', 50: b'{"text": "', 77: b'{"text": "   "}', 90: b'{"text": "caf\xe9"}'}
    data.write_bytes(b"\n".join(bad.get(i, line) for i, line in enumerate(good)))
    run = explain_data(model, data, tmp_path / "run", "input_x_gradient", rows_per_part=40)
    assert len(run) == 116
    listed = [json.loads(line) for line in (run.path / "rejected.jsonl").read_text("utf-8").splitlines()]
    assert [r["line"] for r in listed] == [4, 51, 78, 91]
    assert all(r["reason"] for r in listed)
    assert [r.number for r in run.rejected()] == [3, 50, 77, 90]
    assert run.manifest["finished"]["rejected"] == 4


def test_too_many_bad_rows_stop_the_run(model, tmp_path: Path):
    data = tmp_path / "bad.jsonl"
    data.write_text("\n".join(json.dumps({"text": t if i % 4 else 7}) for i, t in enumerate(sentences(300))))
    with pytest.raises(
        BadInput, match=r"25 of 100 rows cannot be used, more than the allowed 10 % .*line 1 of bad.jsonl"
    ):
        explain_data(model, data, tmp_path / "run", "input_x_gradient", rows_per_part=100)
    assert not open_run(tmp_path / "run").finished
    run = explain_data(model, data, tmp_path / "run", "input_x_gradient", rows_per_part=100, max_rejected=0.5)
    assert len(run) == 225


def test_a_part_with_only_bad_rows_leaves_the_others_readable(model, tmp_path: Path):
    data = tmp_path / "gap.jsonl"
    data.write_text("\n".join(json.dumps({"text": "" if 10 <= i < 20 else t}) for i, t in enumerate(sentences(120))))
    run = explain_data(model, data, tmp_path / "run", "integrated_gradients", nodes=4, rows_per_part=10)
    assert len(run) == 110
    assert len(pd.read_parquet(run.path / "parts")) == 110
    assert list(explain_data(model, data, run.path, "integrated_gradients", nodes=4, rows_per_part=10)) == list(run)


def test_a_folder_in_use_is_refused(model, reviews: Path, tmp_path: Path):
    (tmp_path / "run").mkdir()
    with FileLock(tmp_path / "run" / ".lock"), pytest.raises(BadInput, match="another process is using"):
        explain_data(model, reviews, tmp_path / "run", "input_x_gradient")


def test_folders_that_cannot_be_used(model, reviews: Path, tmp_path: Path):
    with pytest.raises(BadInput, match=r"holds reviews\.jsonl and no manifest"):
        explain_data(model, reviews, tmp_path, "input_x_gradient")
    with pytest.raises(BadInput, match="is a file"):
        explain_data(model, reviews, reviews, "input_x_gradient")
    with pytest.raises(BadInput, match="cannot be written to"):
        explain_data(model, reviews, "/proc/run", "input_x_gradient")
    with pytest.raises(BadInput, match=r"is not a run folder: it has no manifest\.json; make one with"):
        open_run(tmp_path)
    with pytest.raises(BadInput, match="is not a run folder: it does not exist"):
        open_run(tmp_path / "no")


def test_mistakes_are_reported_before_the_work_starts(model, reviews: Path, tmp_path: Path):
    for wrong, message in (
        ({"target": "postive"}, "Did you mean 'positive'"),
        ({"engine": "locl"}, "Did you mean 'local'"),
        ({"node": 3}, "Did you mean 'nodes'"),
        ({"method": ["gradient", "gradient"]}, "asked for twice"),
        ({"rows_per_part": 0}, "at least 1"),
    ):
        with pytest.raises(BadInput, match=message):
            explain_data(model, reviews, tmp_path / "run", **{"method": "integrated_gradients", **wrong})


@pytest.mark.slow
def test_a_full_disk_gives_a_clear_error_and_loses_nothing(tmp_path: Path):
    data = write(tmp_path / "reviews.jsonl", [*sentences(40), *(" ".join([s] * 12) for s in sentences(40))])
    full = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))  # noqa: E731
    done = subprocess.run(
        command(data, tmp_path / "run", rows=40), preexec_fn=full, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "part-00001.parquet could not be written" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(parts(tmp_path / "run")) == ["part-00000.parquet"]
    subprocess.run(command(data, tmp_path / "run", rows=40), check=True)
    assert len(open_run(tmp_path / "run")) == 80


# ------------------------------------------------------------------------------------------------------ export


def test_export_to_json_lines_round_trips(model, reviews: Path, tmp_path: Path):
    run = explain_data(model, reviews, tmp_path / "run", ["input_x_gradient", "gradient"], limit=7)
    lines = run.export(tmp_path / "scores.jsonl").read_text("utf-8").splitlines()
    assert [salience.Explanation.from_dict(json.loads(line)) for line in lines] == list(run)


def test_export_to_eraser(model, reviews: Path, tmp_path: Path):
    run = explain_data(model, reviews, tmp_path / "run", ["input_x_gradient", "gradient"], limit=7)
    with pytest.raises(BadInput, match="holds one method"):
        run.export(tmp_path / "r.jsonl", "eraser")
    path = run.export(tmp_path / "r.jsonl", "eraser", column="gradient", share=0.3)
    for line, (name, (e,)) in zip(path.read_text("utf-8").splitlines(), run.rows("gradient"), strict=True):
        exported = json.loads(line)
        (rationale,) = exported["rationales"]
        words = e.text.split()
        assert exported["annotation_id"] == rationale["docid"] == name
        assert len(rationale["soft_rationale_predictions"]) == len(words)
        content = sum(s for s, special in zip(e.scores, e.special, strict=True) if not special)
        assert sum(rationale["soft_rationale_predictions"]) == pytest.approx(content)
        hard = [i for s in rationale["hard_rationale_predictions"] for i in range(s["start_token"], s["end_token"])]
        assert len(hard) == max(1, round(0.3 * len(words)))
        lowest = min(rationale["soft_rationale_predictions"][i] for i in hard)
        others = [s for i, s in enumerate(rationale["soft_rationale_predictions"]) if i not in hard]
        assert all(s <= lowest for s in others)


def test_the_estimate_is_close_to_the_run(model, tmp_path: Path):
    data = write(tmp_path / "many.jsonl", sentences(600))
    cost = estimate(model, data, "input_x_gradient")
    run = explain_data(model, data, tmp_path / "run", "input_x_gradient")
    tokens = sum(len(t) for t in run.table(["tokens"])["tokens"].to_pylist())
    assert cost.texts == 600
    assert cost.tokens == pytest.approx(tokens, rel=0.2)
    assert cost.seconds > 0
    assert cost.passes >= tokens / cost.budget


def test_progress_increases_and_includes_earlier_starts(model, reviews: Path, tmp_path: Path):
    seen: list[RunProgress] = []

    class Stop(Exception):
        pass

    def stop(p: RunProgress) -> None:
        if p.texts >= 25:
            raise Stop

    with pytest.raises(Stop):
        explain_data(model, reviews, tmp_path / "run", "gradient", rows_per_part=10, report=stop)
    explain_data(model, reviews, tmp_path / "run", "gradient", rows_per_part=10, report=seen.append)
    assert seen[0].texts > 20
    assert [p.texts for p in seen] == sorted(p.texts for p in seen)
    assert (seen[-1].texts, seen[-1].of) == (60, 60)
    assert seen[-1].remaining == 0
    assert seen[0].memory > 10**7


# ------------------------------------------------------------------------------------------------------ the command


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SALIENCE, *arguments], capture_output=True, text=True, check=False)


def test_the_command_explains_shows_and_exports(reviews: Path, tmp_path: Path):
    run = str(tmp_path / "run")
    done = cli("explain", "--data", str(reviews), "--id-column", "id", "--out", run, "--method", "gradient", "--json")
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["event"], last["texts"], last["rejected"]) == ("finished", 60, 0)
    shown = cli("show", run, "--id", "r7", "--json")
    assert json.loads(shown.stdout)["text"] == sentences(60)[7]
    assert cli("show", run, "--id", "nobody").returncode == 2
    assert cli("export", run, str(tmp_path / "s.jsonl")).returncode == 0
    assert len((tmp_path / "s.jsonl").read_text().splitlines()) == 60


@pytest.mark.slow
def test_the_command_estimates(reviews: Path):
    done = cli("explain", "--data", str(reviews), "--dry-run", "--json", "--method", "gradient")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["texts"] == 60
    printed = cli("explain", "--data", str(reviews), "--dry-run", "--method", "gradient").stdout
    assert re.search(r"and \d+ KB on disk", printed), "a small run is not 0.0 MB"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no TEXT; pass a text"),
        (("--data", "nowhere.jsonl", "--out", "run"), "nowhere.jsonl"),
        (("--data", "x.jsonl"), "--out"),
        (("A film.", "--data", "x.jsonl", "--out", "run"), "leave out TEXT"),
    ],
)
def test_mistakes_on_the_command_line(arguments: tuple[str, ...], message: str, tmp_path: Path):
    done = subprocess.run(
        [SALIENCE, "explain", *arguments],
        capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


FORMER = Path(__file__).parent / "fixtures" / "format_1"
"""A run of three texts in format 1."""


def test_runs_of_format_1_are_read_and_evaluated(tmp_path: Path):
    run = salience.open_run(FORMER)
    assert run.finished
    rows = dict(run.rows())
    again = salience.explain(salience.load(), [row[0].text for row in rows.values()], list(run.methods))
    stored = [e for row in rows.values() for e in row]
    for before, now in zip(stored, again, strict=True):
        # Integrated gradients choose their nodes by tolerance, and began with others then.
        close = 1e-5 if now.method == "attention" else 0.01 * max(map(abs, now.scores))
        assert before.scores == pytest.approx(now.scores, abs=close)
        assert (before.signed, before.target.column) == (None, None)
        assert now.signed == (now.method != "attention")
    texts, explained = stored_run(salience.load(), FORMER)
    result = salience.evaluate(salience.load(), texts, (), explained=explained, metrics=["comprehensiveness"])
    assert result.texts == 3
    assert len(run.table()) == 3


def test_an_unfinished_run_of_format_1_is_not_resumed(tmp_path: Path):
    copied = shutil.copytree(FORMER, tmp_path / "run")
    data = tmp_path / "three.jsonl"
    data.write_text(
        "\n".join(json.dumps({"text": e.text}) for e in salience.open_run(FORMER) if e.method == "attention")
    )
    with pytest.raises(BadInput, match="can be read, but not resumed"):
        salience.explain_data("sentiment", data, copied, ["integrated_gradients", "attention"])


def test_a_run_stores_the_label_column_and_whether_scores_are_signed(tmp_path: Path):
    data = tmp_path / "texts.jsonl"
    data.write_text(json.dumps({"text": "A fine film."}))
    run = salience.explain_data("sentiment", data, tmp_path / "run", ["gradient", "occlusion"])
    gradient, occlusion = run
    assert (gradient.signed, occlusion.signed) == (False, True)
    model = salience.load()
    assert gradient.target.column == model.resolve(gradient.target.name)
