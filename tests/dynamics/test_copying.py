"""Copying: the sequences, what is measured, and runs that are resumed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import salience.dynamics.heads as of_heads
from salience.cli import run
from salience.core import jobs as core_jobs
from salience.core.stats import share_interval
from salience.data.copying import Sequences
from salience.dynamics.copying import Copying, CopyPoint, CopyRecipe, CopyRun, copier, copy_curve, copying
from salience.dynamics.heads import CheckedHead, HeadDraw, Heads, heads, with_heads
from salience.errors import BadInput, NotLearnt
from salience.views.copying import copying_page, copying_table, heads_page, heads_table

TINY = CopyRecipe(length=4, hidden=16, steps=6, batch=8, every=3, tested=4)


def test_the_kinds_of_sequences():
    rng = np.random.default_rng(0)
    permuted, iid, distinct = (Sequences(kind, 6).draw(200, rng) for kind in ("permutation", "iid", "distinct"))
    assert all(sorted(row) == list(range(6)) for row in permuted.tolist())
    assert any(len(set(row)) < 6 for row in iid.tolist())
    assert set(iid.flatten()) == set(range(6))
    assert all(len(set(row)) == 6 for row in distinct.tolist())
    assert set(distinct.flatten()) == set(range(9))
    with pytest.raises(BadInput, match="unknown kind of sequence 'random'"):
        Sequences("random")  # type: ignore[arg-type]


def test_only_permutations_have_no_co_occurrence():
    """n(o, i) / (n(o) n(i)) is the same for all pairs of symbols in permutations, and largest on the diagonal else."""
    for kind in ("permutation", "iid", "distinct"):
        drawn = Sequences(kind, 6).draw(2000, np.random.default_rng(1))
        there = np.stack([(drawn == symbol).any(1) for symbol in range(Sequences(kind, 6).symbols)]).astype(float)
        association = there @ there.T / np.outer(there.sum(1), there.sum(1))
        resolved = (association.argmax(1) == np.arange(len(there))).all() and np.ptp(association) > 0
        assert resolved == (kind != "permutation")


def test_a_network_learns_and_its_attention_is_measured_against_a_literal_count():
    recipe = CopyRecipe(length=4, hidden=32, steps=150, batch=32, every=50, tested=64, rate=1e-2)
    curve = list(copy_curve(copier(Sequences("iid", 4), recipe, 0), Sequences("iid", 4), recipe, 0))
    assert [point.step for point in curve] == [0, 50, 100, 150]
    assert curve[-1].accuracy > 0.95 > curve[0].accuracy


def test_attention_accuracy_is_that_of_the_best_head(monkeypatch: pytest.MonkeyPatch):
    sequences, recipe = Sequences("permutation", 4), TINY
    network = copier(sequences, recipe, 0, heads=2)
    a = torch.zeros(recipe.tested, 2, 5, 5)
    for t in range(5):
        a[:, 0, t, min(t + 1, 4)] = 1  # one place too far
        a[:, 1, t, t if t < 3 else 0] = 1  # right for the first three of four symbols
    monkeypatch.setattr(network, "attend", lambda d, *_: a[: len(d)])
    (point,) = (
        p for p in copy_curve(network, sequences, CopyRecipe(**{**RAW, "steps": 1, "batch": 4}), 0) if not p.step
    )
    assert (point.attention, point.before, point.after) == (0.75, 0.0, 1.0)


RAW = {"length": 4, "hidden": 16, "steps": 6, "batch": 8, "every": 3, "tested": 4}


def test_finished_runs_are_read_and_others_are_made(tmp_path: Path):
    first = copying(["permutation"], seeds=[0], recipe=TINY, folder=tmp_path / "c")
    stored = tmp_path / "c" / "permutation-000.json"
    before = stored.read_bytes(), stored.stat().st_mtime_ns
    again = copying(["permutation", "iid"], seeds=[0, 1], recipe=TINY, folder=tmp_path / "c")
    assert (stored.read_bytes(), stored.stat().st_mtime_ns) == before
    assert len(again.runs) == 4
    assert again.of("permutation")[0] == first.runs[0]
    assert copying(["iid"], seeds=[1], recipe=TINY).runs[0].curve == again.of("iid")[1].curve


def test_a_folder_of_other_settings_or_with_a_damaged_file_is_refused(tmp_path: Path):
    copying(["iid"], seeds=[0], recipe=TINY, folder=tmp_path / "c")
    with pytest.raises(BadInput, match=r"holds results of other settings \(changed: steps\)"):
        copying(["iid"], seeds=[0], recipe=CopyRecipe(**{**RAW, "steps": 7}), folder=tmp_path / "c")
    for damaged in ("{", "{}", '{"kind": "iid", "seed": 0, "curve": [], "seconds": 1}'):
        (tmp_path / "c" / "iid-000.json").write_text(damaged)
        with pytest.raises(BadInput, match="is damaged"):
            copying(["iid"], seeds=[0], recipe=TINY, folder=tmp_path / "c")
    with pytest.raises(BadInput, match="at least one kind"):
        copying([], recipe=TINY)
    with pytest.raises(BadInput, match="steps=0 must be above 0"):
        CopyRecipe(steps=0)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, damage) for name in ("iid-000.json", "settings.json") for damage in ("[]", "{", "null")),
        *(("iid-000.json", damage) for damage in ("{}", '{"curve": [{"steps": 1}]}', '{"curve": 3}')),
    ],
)
def test_damaged_files_are_named_with_the_remedy(tmp_path: Path, name: str, damage: str):
    copying(["iid"], seeds=[0], recipe=TINY, folder=tmp_path / "c")
    (tmp_path / "c" / name).write_text(damage)
    with pytest.raises(BadInput, match=rf"{name} is damaged: .*(d|D)elete"):
        copying(["iid"], seeds=[0], recipe=TINY, folder=tmp_path / "c")


@pytest.mark.slow
def test_processes_give_the_same_runs(tmp_path: Path):
    one = copying(["iid"], seeds=range(2), recipe=TINY)
    two = copying(["iid"], seeds=range(2), recipe=TINY, workers=2, folder=tmp_path / "c")
    assert [run.curve for run in one.runs] == [run.curve for run in two.runs]


def _run(seed: int, accuracy: float, attention: float) -> CopyRun:
    curve = (CopyPoint(0, 0.0, 0.0, 0.0, 0.0), CopyPoint(200, accuracy, attention, 0.0, 0.0))
    return CopyRun("permutation", seed, curve, 1.0)


def test_failures_have_an_exact_interval_and_are_shown():
    runs = [_run(0, 1.0, 0.99), _run(1, 0.95, 0.98), _run(2, 0.7, 0.0), _run(3, 0.6, 0.01)]
    result = Copying(CopyRecipe(), tuple(runs))
    estimate = result.failures("permutation")
    assert (estimate.mean, estimate.n) == (0.5, 4)
    assert (estimate.low, estimate.high) == pytest.approx((0.0676, 0.9324), abs=1e-4)  # tables of Clopper & Pearson
    assert np.isnan(share_interval(2, 4)[0])
    _, ((kind, count, failed, first, learnt, accuracy, attention),) = copying_table(result)
    assert (kind, count, failed) == ("permutations of 40", "4", "2 of 4 (0.068 to 0.932)")
    assert (first, learnt, accuracy, attention) == ("200", "0.98 to 0.99", "0.60 to 0.70", "0.00 to 0.01")
    assert "<svg" in copying_page(result)


# ---------------------------------------------------------------------------------------------------- heads


def test_networks_differ_in_their_heads_alone():
    one, other = (with_heads(Sequences("permutation", 4), TINY, chosen) for chosen in ([3], [5, 3]))
    for name, values in one.state_dict().items():
        if not name.startswith("heads."):
            assert torch.equal(values, other.state_dict()[name]), name
    assert torch.equal(one.heads[0].query.weight, other.heads[1].query.weight)
    assert not torch.equal(other.heads[0].query.weight, other.heads[1].query.weight)


@pytest.mark.parametrize(
    ("ends", "verdict", "trainings"),
    [
        ([(0.99, 0.99), (0.96, 0.97), (1.0, 1.0)], "good", 3),
        ([(0.87, 0.0), (0.16, 0.01), (0.6, 0.5)], "bad", 3),  # copied, but not by attention
        ([(0.99, 0.99), (0.4, 0.0), (1.0, 1.0)], "neither", 2),
        ([(0.9, 0.8), (0.4, 0.0), (0.4, 0.0)], "neither", 1),
    ],
)
def test_a_head_is_good_or_bad_if_all_of_its_trainings_are(
    monkeypatch: pytest.MonkeyPatch, ends: list[tuple[float, float]], verdict: str, trainings: int
):
    points = [CopyPoint(200, accuracy, attention, 0.0, 0.0) for accuracy, attention in ends]
    monkeypatch.setattr(of_heads, "_curve", lambda _, seed, __: (points[seed],))
    checked = CheckedHead.of(of_heads._check(3, TINY))  # pyright: ignore
    assert (checked.head, checked.verdict) == (3, verdict)
    assert checked.accuracies == tuple(accuracy for accuracy, _ in ends[:trainings])
    assert checked.attention == tuple(attention for _, attention in ends[:trainings])


def test_heads_that_are_never_good_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("salience.dynamics.heads.MOST", 2)
    with pytest.raises(NotLearnt, match="of 2 initialisations of a head, 2 are bad and 0 good"):
        heads(recipe=TINY, folder=tmp_path / "h")
    assert {p.name for p in (tmp_path / "h").glob("head-*")} == {"head-000.json", "head-001.json"}


def test_models_are_drawn_from_checked_heads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    verdicts = {head: "good" if head == 4 else "bad" for head in range(9)}
    monkeypatch.setattr(
        "salience.dynamics.heads._check",
        lambda head, _: {"head": head, "verdict": verdicts[head], "accuracies": [0.5], "attention": [0.5]},
    )
    result = heads(recipe=TINY, folder=tmp_path / "h")
    bad = {head for head, verdict in verdicts.items() if verdict == "bad"}
    assert len(result.checked) == 9
    assert all(set(draw.heads) == bad for draw in result.of("bad"))
    assert all(draw.heads[-1] == 4 and set(draw.heads[:-1]) < bad for draw in result.of("rescued"))
    assert all(len(draw.heads) == 8 and not set(draw.heads) & set(verdicts) for draw in result.of("random"))
    assert [len(result.of(group)) for group in ("bad", "rescued", "random")] == [3, 3, 3]
    assert heads(recipe=TINY, folder=tmp_path / "h") == result


@pytest.mark.parametrize("workers", [2, 4])
def test_the_number_of_workers_does_not_change_which_heads_are_drawn(monkeypatch: pytest.MonkeyPatch, workers: int):
    def check(head: int, _: CopyRecipe) -> dict[str, Any]:
        return {"head": head, "verdict": "good" if head % 9 == 4 else "bad", "accuracies": [0.5], "attention": [0.5]}

    monkeypatch.setattr("salience.dynamics.heads._check", check)
    monkeypatch.setattr(core_jobs, "_apart", lambda jobs, one, *_: core_jobs._here(jobs, one))  # pyright: ignore
    assert heads(recipe=TINY, workers=workers) == heads(recipe=TINY)


def test_the_table_of_heads():
    points = (CopyPoint(0, 0.0, 0.0, 0.0, 0.0), CopyPoint(90, 0.97, 0.9, 0.0, 0.0))
    failed = (CopyPoint(200, 0.5, 0.1, 0.0, 0.0),)
    draws = (*(HeadDraw("bad", i, (1,), failed) for i in range(3)), HeadDraw("rescued", 0, (1, 2), points))
    result = Heads(
        CopyRecipe(), (CheckedHead(0, "good", (0.99,), (0.99,)), CheckedHead(1, "bad", (0.5,), (0.0,))), draws
    )
    _, rows = heads_table(result)
    assert rows[0][2] == "0 of 3 (0.000 to 0.708)"
    assert rows[1][:4] == ["bad heads and a good one", "1", "1 of 1 (0.025 to 1.000)", "90"]
    assert "1 are good" in heads_page(result)


# ---------------------------------------------------------------------------------------------------- command line


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("salience.dynamics.copying.CopyRecipe", lambda steps: CopyRecipe(**{**RAW, "steps": steps}))
    options = ["--kind", "iid", "--seeds", "2", "--steps", "6", "--out", str(tmp_path / "c"), "--workers", "1"]
    assert run(["copying", *options, "--json", "--html", str(tmp_path / "c.html")]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["failures"]["iid"]["n"] == len(facts["runs"]) == 2
    assert set(facts["runs"][0]) == {"kind", "seed", "curve", "seconds"}
    assert "<svg" in (tmp_path / "c.html").read_text("utf-8")
    assert run(["copying", *options]) == 0
    assert "2 of 2" in capsys.readouterr().out
    assert run(["copying", "--heads", "--seeds", "2"]) == 2
    assert "leave out --kind and --seeds" in capsys.readouterr().err


def test_the_command_for_heads(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("salience.dynamics.copying.CopyRecipe", lambda steps: CopyRecipe(**{**RAW, "steps": steps}))
    monkeypatch.setattr(
        "salience.dynamics.heads._check",
        lambda head, _: {
            "head": head,
            "verdict": "good" if head == 8 else "bad",
            "accuracies": [0.5],
            "attention": [0.5],
        },
    )
    options = ["--heads", "--steps", "3", "--out", str(tmp_path / "h"), "--workers", "1"]
    assert run(["copying", *options, "--json", "--html", str(tmp_path / "h.html")]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert {group: rate["n"] for group, rate in facts["successes"].items()} == {"bad": 3, "rescued": 3, "random": 3}
    assert "Of 9 initialisations" in (tmp_path / "h.html").read_text("utf-8")
    assert run(["copying", *options]) == 0
    assert "bad heads and a good one" in capsys.readouterr().out
