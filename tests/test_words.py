from hypothesis import given
from hypothesis import strategies as st

from salience.words import members, reduce, spans


def test_words_are_unicode_words_and_punctuation_marks():
    text = "Still, it isn't café-like: 3.5 stars!"
    words = [text[a:b] for a, b in spans(text)]
    assert words == ["Still", ",", "it", "isn't", "café", "-", "like", ":", "3.5", "stars", "!"]


def test_combining_marks_emoji_and_scripts_stay_whole():
    text = "e\u0301te\u0301 नमस्ते 👩\u200d👩\u200d👧 مرحبا"
    assert [text[a:b] for a, b in spans(text)] == ["e\u0301te\u0301", "नमस्ते", "👩\u200d👩\u200d👧", "مرحبا"]


def test_tokens_go_to_the_word_they_stand_in_whatever_the_tokenizer_marks():
    text = "so unbelievable !"
    offsets = [(0, 0), (0, 2), (2, 5), (5, 15), (15, 17), (0, 0)]  # a leading space belongs to the token, as in GPT-2
    assert members(text, offsets) == [((0, 2), [1]), ((3, 15), [2, 3]), ((16, 17), [4])]


def test_words_that_share_a_token_become_one():
    assert members("a-b c", [(0, 3), (4, 5)]) == [((0, 3), [0]), ((4, 5), [1])]


def test_several_tokens_of_one_character_share_its_word():
    assert members("👍 x", [(0, 1), (0, 1), (0, 1), (2, 3)]) == [((0, 1), [0, 1, 2]), ((2, 3), [3])]


@given(st.text(max_size=40))
def test_spans_cover_every_character_that_is_not_white_space(text: str):
    covered = {i for a, b in spans(text) for i in range(a, b)}
    assert all(i in covered for i, c in enumerate(text) if not c.isspace())


@given(st.text(min_size=1, max_size=30), st.integers(0, 10_000))
def test_a_score_per_word_keeps_the_sum(text: str, seed: int):
    offsets = [(i, i + 1) for i, c in enumerate(text) if not c.isspace()]
    scores = [float((seed * (i + 1)) % 17 - 8) for i in range(len(offsets))]
    groups = members(text, offsets)
    assert abs(sum(reduce(groups, scores)) - sum(scores)) < 1e-9
