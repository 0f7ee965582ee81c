"""The claims on output relevance, on a tiny task: verdicts follow from numbers, and the command resumes."""

import json
from dataclasses import replace
from math import nan
from pathlib import Path

import numpy as np
import pytest

from dynamics.planted import SMALL, planted
from salience.cli import debate
from salience.cli import run as command
from salience.core.stats import share
from salience.dynamics.agreement import Agreement
from salience.dynamics.comparison import Best, Row
from salience.dynamics.copying import CopyRecipe
from salience.errors import BadInput
from salience.papers import output_relevance, relevance_claims
from salience.papers.debate import Check, Data
from salience.papers.output_relevance import SIZES, run
from salience.papers.output_relevance_report import UNTESTED, claims, page, to_json
from salience.papers.relevance_claims import CLAIMS, Answer

DATA = Data(planted(96, labels=3), planted(24, labels=3, seed=1))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(output_relevance, "SHAPE", {**output_relevance.SHAPE, **SMALL})
    quick = replace(
        SIZES["quick"], followed=16, influenced=8, checkpoints=4, recipe=replace(SIZES["quick"].recipe, rate=1e-2)
    )
    monkeypatch.setitem(SIZES, "quick", quick)
    monkeypatch.setenv("COLUMNS", "80")


def test_every_claim_of_classification_gets_an_answer(tmp_path: Path):
    steps: list[str] = []
    callbacks = output_relevance.Callbacks(step=lambda name, _: steps.append(name))
    result = run({"planted": DATA}, tmp_path, callbacks=callbacks)
    assert [a.claim for a in result.answers] == [1, 2, 3, 4, 5, 6, 7]
    assert result.untested() == [8, 9]
    assert len(CLAIMS) == 9
    names = ["standard", "standard-1", "uniform", "mean_embedding", "deceptive-0.1"]
    assert list(dict.fromkeys(steps)) == [f"planted: {name}" for name in names]
    rows = claims(result)
    assert [row[2] for row in rows[-2:]] == [UNTESTED] * 2
    assert rows[-1][0] == "9. without co-occurrence, attention fails to learn"
    html = page(result)
    for words in ("A(a, r′)", "reproduced", "which comes first?", "<svg"):
        assert words in html
    assert "<script" not in html
    stored = json.loads(to_json(result))
    assert stored["claims"]["9. without co-occurrence, attention fails to learn"] == UNTESTED
    assert {line["quantity"] for line in stored["sections"][0]["lines"]} >= {"A(a, r′)", "accuracy, uniform"}
    steps.clear()
    again = run({"planted": DATA}, tmp_path, callbacks=callbacks)
    assert not steps
    assert repr(again) == repr(result)
    with pytest.raises(BadInput, match=r"holds other results \(changed: size\)"):
        run({"planted": DATA}, tmp_path, epochs=1)


def test_no_number_is_printed_as_published(tmp_path: Path):
    """The slides give none, and what others recall of the paper is not sure."""
    result = run({"planted": DATA}, tmp_path, limit=24, epochs=1)
    slides = {line.slides for section in result.sections for line in section.lines}
    assert not any(character.isdigit() for text in slides for character in text)


def test_the_test_set_alone_can_be_made_smaller():
    full = SIZES["full"]
    assert full.limited(None, 50) == replace(full, followed=50, influenced=50)
    assert full.limited(1000, 300) == replace(full, train=1000, followed=300)
    assert full.limited(None, None) == full


def agreed(own: list[float]) -> Agreement:
    """Texts of twenty tokens, by chance 0.05, in which u and v agree as told."""
    v = np.arange(20.0)
    us = [v if hit else -v for hit in own]
    return Agreement.between("a, r′", us, [v] * len(us))


@pytest.mark.parametrize(("hits", "holds"), [(50, True), (15, None), (5, False), (100, True), (0, False)])
def test_an_agreement_counts_if_it_is_three_times_chance(hits: int, holds: bool | None):
    own = agreed([1.0] * hits + [0.0] * (100 - hits))
    assert relevance_claims._agrees(own).holds is holds
    row = Row(agreed([0.0] * 100), Best(10, own), nan)
    early = relevance_claims._agrees_early(row)
    assert early.holds is holds  # judged at the best step
    assert early.figures.endswith("at step 10; 0.000 [all equal] at the end, 0.0 × chance (0.050)")


def test_a_claim_is_reproduced_if_all_its_checks_hold():
    yes, no, unclear = (Check(holds, "x") for holds in (True, False, None))
    verdicts = [
        relevance_claims.answer(1, "d", checks).verdict for checks in ([yes, yes], [yes, unclear], [unclear, no])
    ]
    assert verdicts == ["reproduced", "undecided", "not reproduced"]
    assert relevance_claims.answer(1, "d", [yes, no]) == Answer(1, "d", "not reproduced", "x; x")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "data"
    folder.mkdir()
    for name, part in (("train", DATA.train), ("test", DATA.test)):
        lines = [json.dumps({"text": e.text, "label": e.label}) + "\n" for e in part]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    arguments = ["paper", "output_relevance", f"--data=tiny={folder}", f"--out={tmp_path / 'out'}", "--limit=24"]
    assert command([*arguments, "--epochs=1", "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "9. without co-occurrence, attention fails to learn\n   not tested by this command" in printed
    assert "Text classification: tiny" in printed
    assert {"report.html", "result.json", "tiny"} <= {p.name for p in (tmp_path / "out").iterdir()}
    assert command([*arguments, "--gold=gold.jsonl"]) == 2
    assert "--gold needs --aligned, the pairs in which words are counted" in capsys.readouterr().err
    for name, row in (("train.jsonl", {"align": [[0, 0]]}), ("gold.jsonl", {"sure": [[0, 0]]})):
        (folder / name).write_text(json.dumps({"src": "a", "trg": "b", **row}) + "\n")
    train, looked_up = debate._aligned_parts(folder, folder / "gold.jsonl")
    assert [(pair.source, pair.answer) for pair in (*train, *looked_up)] == [("a", "b"), ("b", "a")]
    assert command(["paper", "output_relevance", "--data=tiny", "--out=x"]) == 2
    assert "not of the form NAME=DATA" in capsys.readouterr().err


def test_networks_that_copy_answer_the_last_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(output_relevance.SEEDS, "quick", 2)
    recipe = CopyRecipe(length=4, hidden=8, steps=4, batch=4, every=2, tested=4)
    result = run({"planted": DATA}, tmp_path, copies=True, recipe=recipe)
    (answer,) = [a for a in result.answers if a.claim == 9]
    assert answer.verdict == "undecided"
    assert answer.figures == "attention fails in 2 of 2 runs on permutations, in 2 of 2 on draws; p = 1.000"
    assert result.untested() == [8]
    kinds = ["permutations of 4", "i.i.d. from 4", "4 of 6"]
    wanted = [f"runs {what}, {kind}" for what in ("that fail", "with attention elsewhere") for kind in kinds]
    assert [line.quantity for line in result.sections[1].lines] == wanted


@pytest.mark.parametrize(
    ("permutations", "draws", "verdict"),
    [(10, 0, "reproduced"), (4, 0, "undecided"), (0, 0, "not reproduced"), (20, 20, "undecided")],
)
def test_permutations_must_fail_significantly_more_often(permutations: int, draws: int, verdict: str):
    rates = [share([1.0] * k + [0.0] * (20 - k)) for k in (permutations, draws)]
    assert output_relevance._fails(*rates).verdict == verdict
