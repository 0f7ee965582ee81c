"""The needle trial: its contexts, its measures, and that it finds what it should."""

import json
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from salience.cli import run
from salience.data.needles import FACTS, planted
from salience.errors import BadInput, NotLearnt
from salience.evaluation.cases import CONTROLS
from salience.models.huggingface.adapter import HuggingFace
from salience.trials.needle import Use, needle, needle_first, needle_recall, reciprocal_rank
from salience.views.trials import needle_json
from shapes import build

ANY = Use(probability=0.0, drop=1e-9, decoy=1e9)
"""An untrained model hardly uses a needle, so that any drop counts."""


@cache
def model() -> HuggingFace:
    result = build("llama_lm", dtype=torch.float64)
    assert isinstance(result, HuggingFace)
    result.module.config.max_position_embeddings = 2048
    return result


@pytest.mark.parametrize("seed", range(12))
def test_only_the_needle_answers_the_question(seed: int):
    item = planted(Random(seed), 9)
    assert len(item.sentences) == 9 == len(set(item.sentences))
    subject = next(s for fact in FACTS for s in fact.subjects if f" {s}?" in item.question)
    value = item.answer.strip()
    both = [n for n, s in enumerate(item.sentences) if value in s and subject in s]
    assert both == [item.place]
    assert [n for n, s in enumerate(item.sentences) if value in s] == sorted([item.place, item.decoy])
    assert [item.text[slice(*item.span(n))] for n in range(9)] == list(item.sentences)
    assert item.text[item.context_end :] == f"\n\n{item.question}"
    assert f"{item.question.split('Answer: ')[1]}{item.answer}." == item.sentences[item.place]


def test_contexts_depend_on_their_seed_alone():
    assert planted(Random("0 1"), 9) == planted(Random("0 1"), 9) != planted(Random("0 2"), 9)


def test_recall_is_the_share_of_the_needle_in_the_top_tenth():
    scores, marks = np.arange(20.0), np.zeros(20, dtype=bool)
    marks[[19, 3]] = True  # the top tenth are 19 and 18
    assert needle_recall(scores, marks) == 0.5


def test_ranks_of_equal_scores_are_their_mean():
    scores = np.array([3.0, 5.0, 5.0, 1.0])
    assert [needle_first(scores, n) for n in range(4)] == [0, 0.5, 0.5, 0]
    assert [reciprocal_rank(scores, n) for n in range(4)] == [1 / 3, 1 / 1.5, 1 / 1.5, 1 / 4]


@pytest.mark.parametrize(
    ("log_p", "drop", "decoy", "used"),
    [(-0.1, 5, 0, True), (-2, 5, 0, False), (-0.1, 1, 0, False), (-0.1, 5, 3, False), (-0.1, 5, -3, True)],
)
def test_a_needle_counts_if_the_answer_needs_it(log_p: float, drop: float, decoy: float, used: bool):
    assert Use()(log_p, drop, decoy) is used


def oracle(lm, batch, target, /):
    """Knows the answer: the sentence that holds the question's last words."""
    (text,) = batch.encoded[:1]
    start = text.text.rindex("Answer: ") + len("Answer: ")
    stem = text.text[start:].rsplit(" is", 1)[0]
    at = text.text.index(f"{stem} is")
    marks = [a < at + len(stem) and b > at for a, b in text.offsets]
    return torch.tensor([marks] * len(batch), dtype=torch.float64) * batch.content


def test_a_method_that_knows_the_needle_finds_it_and_controls_do_not():
    result = needle(model(), [oracle], items=8, tokens=90, use=ANY)
    e = result.evaluation
    assert e.methods == ("oracle", *CONTROLS)
    assert e.cells["oracle", "needle_first"].estimate.mean == 1
    assert e.cells["oracle", "reciprocal_rank"].estimate.mean == 1
    assert e.cells["oracle", "needle_recall"].estimate.mean > 2 * e.cells["random", "needle_recall"].estimate.mean
    assert e.cells["similarity", "needle_first"].estimate.mean == 0.5  # the decoy has the same words
    assert 0 < result.skipped < 40
    assert result.tokens >= 90
    assert "8 contexts" in result.notes[0]


def test_a_trial_resumes_and_takes_more_methods(tmp_path: Path):
    folder, given = tmp_path / "needle", {"items": 2, "tokens": 60, "use": ANY}
    first = needle(model(), ["gradient"], folder=folder, **given)
    stamps = {f.name: f.stat().st_mtime_ns for f in folder.glob("0*.json")}
    assert len(stamps) == 2
    again = needle(model(), ["gradient"], folder=folder, **given)
    assert needle_json(again) == needle_json(first)
    assert {f.name: f.stat().st_mtime_ns for f in folder.glob("0*.json")} == stamps
    both = needle(model(), ["gradient", "input_x_gradient"], folder=folder, **given)
    assert needle_json(both) == needle_json(needle(model(), ["gradient", "input_x_gradient"], **given))
    with pytest.raises(BadInput, match="a different trial"):
        needle(model(), ["gradient"], folder=folder, seed=1, **given)


def test_a_model_that_uses_no_needle_is_refused():
    with pytest.raises(NotLearnt, match="uses the needle in 0 of 10 contexts"):
        needle(model(), ["gradient"], items=1, tokens=60)


def test_a_context_longer_than_its_sentences_is_refused():
    with pytest.raises(BadInput, match="at most 360 sentences around its facts, which is too few; ask for"):
        planted(Random(0), 400)


@pytest.fixture
def saved(tmp_path: Path) -> str:
    model().save(tmp_path / "lm")
    return str(tmp_path / "lm")


def test_the_command_prints_a_table_with_controls_and_what_was_skipped(
    saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("salience.trials.needle.needle.__kwdefaults__", {**needle.__kwdefaults__, "use": ANY})
    page = tmp_path / "needle.html"
    common = ["trial", "needle", "--model", saved, "--items", "2", "--tokens", "60", "--quiet", "--method", "gradient"]
    assert run([*common, "--method", "lrp:rules=cp", "--html", str(page), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    for words in ("lrp:rules=cp", *CONTROLS, "Skipped: ", "needle"):
        assert words in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "Skipped: " in page.read_text("utf-8")
    assert run([*common, "--json", "--out", str(tmp_path / "out")]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["methods"] == ["gradient", *CONTROLS]
    assert facts["trial"]["use"]["decoy"] == 1e9
    assert run(["trial", "needle", "--model", saved, "--method", "gradiant"]) == 2
    assert "gradient" in capsys.readouterr().err
