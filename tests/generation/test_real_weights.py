"""Answers of real models, whose folders are named in SALIENCE_SMOLLM2, SALIENCE_TINYSTORIES and SALIENCE_OPUS_MT:
SmolLM2-135M-Instruct, TinyStories 15M (Llama-shaped), and OPUS-MT from Chinese to English (Marian).
"""

import os

import pytest

import salience
from salience.core.types import Model
from salience.generation import context_dependence, explain_answer


def real(variable: str) -> Model:
    """The model whose folder an environment variable names."""
    if folder := os.environ.get(variable):
        return salience.load(folder)
    pytest.skip(f"{variable} names no folder of a model")


@pytest.fixture(scope="module")
def smollm() -> Model:
    return real("SALIENCE_SMOLLM2")


@pytest.fixture(scope="module")
def tinystories() -> Model:
    return real("SALIENCE_TINYSTORIES")


@pytest.fixture(scope="module")
def opus() -> Model:
    return real("SALIENCE_OPUS_MT")


def strongest(e: salience.AnswerExplanation, word: str, n: int) -> list[str]:
    """The words of the prompt with the highest scores for a word of the answer."""
    return [s.text for s in sorted(e.answer_span(word).by("word"), key=lambda s: -s.score)[:n]]


def test_a_capital_is_made_by_the_word_and_its_country(smollm: Model):
    e = explain_answer(smollm, "The capital of France is", "occlusion", generate=2, by="word")
    assert e.answer == " Paris."
    assert set(strongest(e, "Paris", 2)) == {"capital", "France"}


def test_the_hour_of_a_meeting_depends_on_the_memo(smollm: Model):
    passages = ["The meeting on the new bridge was moved to Thursday at nine.", "The library closes early this week."]
    result = context_dependence(smollm, "When is the meeting on the new bridge?", passages, "On Thursday at nine.")
    cues = {result.prompt[c.start : c.end].strip() for one in result.dependent for c in one.cues}
    assert cues & {"Thursday", "nine"}


def test_a_story_goes_on_with_its_toy(tinystories: Model):
    story = "Once upon a time, there was a little girl named Lily. She loved to play with her ball. One day, the"
    e = explain_answer(tinystories, story, "lrp", generate=2, by="word")
    assert e.answer.split()[0] == "ball"
    assert strongest(e, "ball", 1) == ["ball"]


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("method", ["lrp", "input_x_gradient", "occlusion", "attention"])
def test_words_of_a_translation_are_made_by_those_they_translate(opus: Model, method: str, caplog):
    e = explain_answer(opus, "我喜欢猫。", method, generate=8, by="word")
    assert e.answer == "I like cats."
    assert [s.text for s in e.by("word")] == ["我喜欢", "猫", "。"]  # the first three characters are one token
    assert (strongest(e, "I", 1), strongest(e, "like", 1), strongest(e, "cats", 1)) == (["我喜欢"], ["我喜欢"], ["猫"])
    assert not caplog.records  # the model's own max_length is not used, and transformers would say so at every call
