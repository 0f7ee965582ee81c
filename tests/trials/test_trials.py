"""``salience trial`` as a user runs it: small models, real trainings, folders and pages."""

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import spearmanr

import salience
from salience.cli import run as run_as_given
from salience.data import source
from salience.errors import BadInput
from salience.metrics.agreement import overlap
from salience.runs.driver import explain_data
from salience.trials.agreement import agreement
from salience.trials.roar import RoarCurve
from salience.views.trials import roar as roar_table
from salience.views.trials import roar_notes, terminal
from shapes import build

WORDS = ("the", "film", "is", "a", "mess", "of", "no", "heart", "and", "plot")
FAST = ("--epochs", "30", "--batch", "10", "--rate", "0.03", "--quiet")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts and a model that is to be trained on them."""
    folder = tmp_path_factory.mktemp("trials")
    rng = Random(0)
    for name in ("train", "test"):
        lines = ({"text": " ".join(rng.choices(WORDS, k=8)), "label": i % 2} for i in range(40))
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    build("pooled_embedding").save(folder / "model")
    return folder


def run(arguments: list[str]) -> int:
    """Run a command; of an option with one value that is named twice, the last counts."""
    kept = list(arguments)
    for option in ("--epochs", "--words", "--seeds"):
        while kept.count(option) > 1:
            at = kept.index(option)
            del kept[at : at + 2]
    return run_as_given(kept)


def given(place: Path) -> list[str]:
    return [
        *("--data", str(place / "train.jsonl"), "--test", str(place / "test.jsonl"), "--model", str(place / "model")),
        *FAST,
    ]


def test_shortcuts_from_the_command_line(place: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["trial", "shortcuts", *given(place), "--words", "fox,dog,lazy", "--share", "1", "--kind", "token"]
    page = place / "shortcuts.html"
    assert run([*arguments, "--method", "occlusion", "--json", "--html", str(page)]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["learnt"]["accuracy"] >= 0.95
    assert result["found"]["occlusion"]["precision"]["mean"] > result["found"]["random"]["precision"]["mean"]
    assert "used the shortcut after" in page.read_text("utf-8")
    assert run(["trial", "shortcuts", *given(place), "--words", "fox,dog"]) == 2
    assert "three words" in capsys.readouterr().err
    assert run([*arguments, "--words", "fox,dog,zyzzyva,"]) == 2
    assert run([*arguments, "--method", "occlusionn"]) == 2
    assert "occlusion" in capsys.readouterr().err
    assert run([*arguments[:-1], "pair", "--epochs", "1"]) == 2, "an average does not see the order"
    assert "has not learnt" in capsys.readouterr().err


def test_a_shortcut_that_is_not_learnt_does_not_lose_the_others(place: Path, capsys: pytest.CaptureFixture[str]):
    arguments = [
        "trial",
        "shortcuts",
        *given(place),
        "--words",
        "fox,dog,lazy",
        "--share",
        "1",
        "--method",
        "occlusion",
    ]
    arguments += ["--kind", "pair", "--kind", "token"]
    assert run(arguments) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "token: precision" in out
    assert "pair: precision" not in out
    assert "• pair: " in out
    assert "has not learnt to use the shortcut" in out
    assert run([*arguments, "--json"]) == 0
    token, pair = json.loads(capsys.readouterr().out)
    assert token["shortcut"]["kind"] == "token"
    assert "has not learnt" in pair["refused"]


def test_curves_that_show_little_cause_a_caution():
    flat, down = RoarCurve((0.0, 0.5, 1.0), ((0.52, 0.5, 0.5),)), RoarCurve((0.0, 0.5, 1.0), ((0.8, 0.7, 0.5),))
    assert "learnt little (0.520 on whole texts, 0.500 at the largest share)" in roar_notes({"random": flat}, 9)[-1]
    assert len(roar_notes({"lrp": down, "random": down}, 9)) == 2
    up = RoarCurve((0.0, 0.5, 1.0), ((0.8, 0.9, 0.5),))
    assert "the masks of lrp leak the label" in roar_notes({"lrp": up, "random": down}, 9)[-1]
    assert len(roar_notes({"lrp": down, "random": up}, 9)) == 2, "random masks cannot know the label"


def test_a_wide_table_is_printed_in_parts_that_fit():
    shares = [i / 10 for i in range(11)]
    curve = RoarCurve(tuple(shares), (tuple(1 - 0.04 * i for i in range(11)), tuple(1 - 0.05 * i for i in range(11))))
    content = roar_table({"integrated_gradients": curve, "random": curve})
    parts = terminal(content, width=80)
    assert [str(column.header) for part in parts for column in part.columns if str(column.header)] == content[0][1:]
    assert len(parts) == 3
    assert max(Console(width=200).measure(part).maximum for part in parts) <= 80
    assert len(terminal(content, width=200)) == 1


def test_remove_and_retrain_from_the_command_line(place: Path, capsys: pytest.CaptureFixture[str]):
    out, page = place / "roar", place / "roar.html"
    arguments = [
        "trial",
        "roar",
        *given(place),
        "--method",
        "gradient",
        "--seeds",
        "2",
        "--step",
        "0.5",
        "--out",
        str(out),
    ]
    assert run([*arguments, "--epochs", "2"]) == 0
    table = capsys.readouterr().out
    assert "RACU" in table
    assert "100\N{NO-BREAK SPACE}%" in table
    assert sorted(f.name for f in out.iterdir()) == [
        *("gradient-seed-0.json", "gradient-seed-1.json", "random-seed-0.json", "random-seed-1.json")
    ]
    assert run([*arguments, "--epochs", "2", "--json", "--html", str(page)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["gradient"]["shares"] == [0.0, 0.5, 1.0]
    assert np.array(result["gradient"]["accuracy"]).shape == (2, 3)
    assert "<svg" in page.read_text("utf-8")
    assert run([*arguments, "--epochs", "3"]) == 2
    assert "choose another folder" in capsys.readouterr().err


def test_simulatability_from_the_command_line(place: Path, capsys: pytest.CaptureFixture[str]):
    """The labels are the teacher's; the data needs none."""
    arguments = ["trial", "simulatability", *given(place), "--teacher", str(place / "model"), "--method", "gradient"]
    assert run([*arguments, "--seeds", "2", "--epochs", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result) == ["none", "gradient", "random"]
    assert all(len(spread["values"]) == 2 for spread in result.values())
    assert run([*arguments, "--seeds", "1", "--epochs", "1"]) == 0
    assert "gain" in capsys.readouterr().out


def test_meaningless_trials_are_rejected(place: Path, capsys: pytest.CaptureFixture[str]):
    data = ["--data", str(place / "train.jsonl"), "--test", str(place / "test.jsonl"), "--quiet"]
    for arguments, message in (
        (["roar", "--model", "sentiment"], "is a classifier already"),
        (["simulatability", "--model", "sentiment", "--teacher", "sentiment"], "is a classifier already"),
        (["simulatability", "--model", "sentiment_bilstm", "--teacher", "sentiment"], "other tokens"),
        (["roar", "--epochs", "0"], "'--epochs': '0' is not a whole number of at least 1"),
        (["roar", "--html", str(place / "no" / "page.html")], "does not exist"),
        (["shortcuts", "--method", "gradiant", "--kind", "token"], "gradient"),
        (["shortcuts", "--kind", "token", "--limit", "12"], "Use more test texts, or plant it in a larger share"),
    ):
        assert run(["trial", arguments[0], *data, *arguments[1:]]) == 2
        assert message in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------ agreement


@pytest.fixture(scope="module")
def runs(place: Path) -> list[Path]:
    """The same texts, explained with three models that differ in their seed."""
    made = [place / f"run-{seed}" for seed in range(3)]
    for seed, out in enumerate(made):
        build("bert", seed=seed).save(place / f"bert-{seed}")
        model = str(place / f"bert-{seed}")
        explain_data(model, source(place / "test.jsonl"), out, ["gradient", "position"], target=1, limit=12, workers=1)
    return made


def test_agreement_by_hand(runs: list[Path]):
    result = agreement(runs[:2])
    one, other = (dict(salience.open_run(run).rows()) for run in runs[:2])
    pairs = [(one[i][0], other[i][0]) for i in one]
    expected = [spearmanr(a.content, b.content).statistic for a, b in pairs]
    assert (result.between, result.texts) == ("runs", 12)
    assert result.compared["gradient"]["spearman"].n == 12
    assert result.compared["gradient"]["spearman"].mean == pytest.approx(np.mean(expected))
    tops = [overlap(np.array(a.content), np.array(b.content)) for a, b in pairs]
    assert result.compared["gradient"]["overlap"].mean == pytest.approx(np.mean(tops))
    assert result.compared["position"]["kendall"].mean == pytest.approx(1)
    assert agreement([runs[0], runs[0]]).compared["gradient"]["spearman"].mean == pytest.approx(1)
    assert set(agreement(runs).compared) == {"gradient", "position"}
    assert set(agreement(runs[:1]).compared) == {"gradient, position"}


def test_agreement_from_the_command_line(runs: list[Path], place: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["trial", "agreement", *map(str, runs)]) == 0
    out = capsys.readouterr().out
    assert "spearman" in out
    assert "12 texts are in all runs" in out
    assert run(["trial", "agreement", str(place / "none")]) == 2
    assert "none" in capsys.readouterr().err


def test_runs_that_cannot_be_compared(runs: list[Path], place: Path):
    other = place / "run-other"
    explain_data(str(place / "model"), source(place / "test.jsonl"), other, "gradient", limit=4, workers=1)
    with pytest.raises(BadInput, match="other tokens"):
        agreement([runs[0], other])
    flipped = place / "run-flipped"
    explain_data(str(place / "bert-0"), source(place / "test.jsonl"), flipped, "gradient", target=0, limit=4, workers=1)
    with pytest.raises(BadInput, match="the same label"):
        agreement([runs[0], flipped])
    with pytest.raises(BadInput, match="only one method"):
        agreement([other])
    with pytest.raises(BadInput, match="name a run"):
        agreement([])


def test_the_former_name_of_the_command_still_works(capsys: pytest.CaptureFixture[str]):
    assert run(["test", "agreement", "--help"]) == 0
    assert "RUN..." in capsys.readouterr().out
    assert run(["--help"]) == 0
    listed = capsys.readouterr().out
    assert "  trial " in listed
    assert "  test " not in listed
