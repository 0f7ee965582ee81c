"""Segments: disjoint, in order, trimmed, within parts; and sums that stay whole."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from salience.core.prompts import Part, Prompt
from salience.errors import BadInput
from salience.generation.segments import owners, pattern, segments, sums

TEXTS = st.text(st.sampled_from("aB1.?!。 \n\t\"')(é我👍\r\u2028") | st.characters(codec="utf-8"), max_size=60)


def cut(text: str, by, parts=()) -> list[str]:
    return [text[s.start : s.end] for s in segments(text, by, parts)]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It is fine. Is it? Yes!", ["It is fine.", "Is it?", "Yes!"]),
        ("Dr. Smith paid 3.50 dollars. Mrs. Jones did not.", ["Dr. Smith paid 3.50 dollars.", "Mrs. Jones did not."]),
        ("Use a tool, e.g. Python. Or i.e. this.", ["Use a tool, e.g. Python.", "Or i.e. this."]),
        ("J. R. Smith and I. We left.", ["J. R. Smith and I.", "We left."]),
        ('"Why?" she asked. "No!" He left.', ['"Why?" she asked.', '"No!"', "He left."]),
        ("Wait... then go. (It is so.) End", ["Wait... then go.", "(It is so.)", "End"]),
        ("See example.com. Good", ["See example.com.", "Good"]),
        ("我喜欢。你呢？", ["我喜欢。", "你呢？"]),
        ("A title\n- one\n- two", ["A title", "- one", "- two"]),
    ],
)
def test_sentences(text: str, sentences: list[str]):
    assert cut(text, "sentence") == sentences


def test_lines_paragraphs_words_and_patterns():
    text = "One two\nthree\n \n\n four.  "
    assert cut(text, "line") == ["One two", "three", "four."]
    assert cut(text, "paragraph") == ["One two\nthree", "four."]
    assert cut(text, "word") == ["One", "two", "three", "four", "."]
    assert cut(text, pattern(r"\w*o\w*")) == ["two", "four"]


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        ([(0, 3), (3, 4), (4, 5)], ["我喜欢", "猫", "。"]),  # three words in one token
        ([(0, 1), (1, 2), (2, 4), (4, 5)], ["我", "喜", "欢猫", "。"]),
        ([(0, 2), (1, 3), (3, 5)], ["我", "喜欢", "猫。"]),  # tokens that overlap: 喜 is shared, 欢 is of the second
        ([(0, 0), (0, 5)], ["我喜欢猫。"]),
        ([(0, 1)], ["我", "喜", "欢", "猫", "。"]),  # the rest was cut off
        ([], ["我", "喜", "欢", "猫", "。"]),
    ],
)
def test_words_that_share_a_token_are_one_word(offsets, words: list[str]):
    text = "我喜欢猫。"
    result = segments(text, "word", offsets=offsets)
    assert [text[s.start : s.end] for s in result] == words
    assert [s.name for s in result] == [f"word {n}" for n in range(1, len(words) + 1)]


def test_a_token_across_segments_that_have_tokens_joins_nothing():
    text = "One.\nTwo."
    result = segments(text, "line", offsets=[(0, 3), (3, 6), (6, 8), (8, 9)])
    assert [text[s.start : s.end] for s in result] == ["One.", "Two."]


def test_no_sentence_crosses_a_part():
    prompt = Prompt.with_context("who is it", ["no full stop", "here neither"])
    assert cut(prompt.text, "sentence", prompt.parts) == ["no full stop", "here neither", "who is it"]
    assert [p.name for p in segments(prompt.text, "document", prompt.parts)] == ["document 1", "document 2", "question"]


@pytest.mark.parametrize(
    ("by", "message"),
    [
        ("turn", "the prompt has no turns; pass a chat"),
        ("document", "the prompt has no documents; pass passages"),
        (pattern("xyz"), "no segment of the prompt is matched by 'xyz'"),
        ("sentense", "Did you mean 'sentence'"),
    ],
)
def test_a_rule_that_finds_nothing_is_refused(by, message: str):
    with pytest.raises(BadInput, match=message):
        segments("A fine film.", by)


def test_a_broken_pattern_is_refused():
    with pytest.raises(BadInput, match=r"'\(' is not a regular expression"):
        pattern("(")


@given(TEXTS, st.sampled_from(["word", "sentence", "line", "paragraph"]), st.integers(0, 60))
def test_segments_are_disjoint_ordered_trimmed_and_miss_nothing(text: str, by, at: int):
    at = min(at, len(text))
    parts = [Part("a", 0, at), Part("b", at, len(text))]
    if not text.strip():
        return
    result = segments(text, by, parts)
    assert all(x.end <= y.start for x, y in pairwise(result))
    assert all(text[s.start : s.end] == text[s.start : s.end].strip() != "" for s in result)
    assert all(any(p.start <= s.start and s.end <= p.end for p in parts) for s in result)
    covered = {i for s in result for i in range(s.start, s.end)}
    assert all(i in covered or c.isspace() for i, c in enumerate(text))


def test_a_token_belongs_to_the_segment_it_shares_most_with_ties_to_the_first():
    own = [Part("a", 0, 3), Part("b", 4, 8)]
    assert owners(own, [(0, 3), (2, 6), (2, 5), (3, 4), (3, 8), (0, 0), (8, 9)]) == [0, 1, 0, None, 1, None, None]
    assert owners(own, [(0, 3), (4, 8)], [True, False]) == [None, 1]


@given(st.data())
def test_sums_stay_whole(data: st.DataObject):
    cuts = sorted(data.draw(st.lists(st.integers(0, 30), min_size=2, max_size=8, unique=True)))
    own = [Part(str(a), a, b) for a, b in list(pairwise(cuts))[::2]]
    tokens = data.draw(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=12))
    offsets = [(a, a + n) for a, n in tokens]
    scores = [float(2**i) for i in range(len(offsets))]
    totals, rest = sums(own, offsets, scores)
    assert math.fsum([*totals, rest]) == math.fsum(scores)
    for (a, b), owner in zip(offsets, owners(own, offsets), strict=True):
        shared = [max(0, min(b, s.end) - max(a, s.start)) for s in own]
        assert owner == (shared.index(max(shared)) if any(shared) else None)
