"""Answers of a real language model. Name its folder in SALIENCE_SMOLLM2 to run these tests."""

import os

import pytest

import salience
from salience.generation import context_dependence, explain_answer

FOLDER = os.environ.get("SALIENCE_SMOLLM2")
pytestmark = pytest.mark.skipif(not FOLDER, reason="SALIENCE_SMOLLM2 names no folder of SmolLM2-135M-Instruct")


@pytest.fixture(scope="module")
def model():
    return salience.load(str(FOLDER))


@pytest.mark.parametrize("method", ["occlusion"])
def test_a_capital_is_made_by_the_word_and_its_country(model, method: str):
    e = explain_answer(model, "The capital of France is", method, generate=2, by="word")
    assert e.answer == " Paris."
    strongest = sorted(e.answer_span("Paris").by("word"), key=lambda s: -s.score)
    assert {s.text for s in strongest[:2]} == {"capital", "France"}


def test_the_hour_of_a_meeting_depends_on_the_memo(model):
    passages = ["The meeting on the new bridge was moved to Thursday at nine.", "The library closes early this week."]
    result = context_dependence(model, "When is the meeting on the new bridge?", passages, "On Thursday at nine.")
    cues = {result.prompt[c.start : c.end].strip() for one in result.dependent for c in one.cues}
    assert cues & {"Thursday", "nine"}
