import warnings
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from salience.core.text import Encoded, beginning, members, numbers, reduce, spans, unread
from salience.errors import TruncatedText
from salience.models.huggingface.tokens import encode
from shapes import tokenizer

KINDS = ("wordpiece", "bpe", "bare", "unigram")
ODD = st.text(
    st.sampled_from("aé \t\n\r\u00a0\u3000\u200b\u0301.'-👍👩\u200dم我\x00") | st.characters(codec="utf-8"), max_size=25
)
"""Texts with much white space, marks that join what is beside them, and characters of several bytes."""


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
    special = [True, False, False, False, False, True]
    assert members(text, offsets, special) == [((0, 2), [1]), ((3, 15), [2, 3]), ((16, 17), [4])]


def test_words_that_share_a_token_become_one():
    assert members("a-b c", [(0, 3), (4, 5)], [False] * 2) == [((0, 3), [0]), ((4, 5), [1])]


def test_several_tokens_of_one_character_share_its_word():
    assert members("👍 x", [(0, 1), (0, 1), (0, 1), (2, 3)], [False] * 4) == [((0, 1), [0, 1, 2]), ((2, 3), [3])]


@given(st.text(max_size=40))
def test_spans_cover_every_character_that_is_not_white_space(text: str):
    covered = {i for a, b in spans(text) for i in range(a, b)}
    assert all(i in covered for i, c in enumerate(text) if not c.isspace())


def test_white_space_with_a_token_of_its_own_is_a_word():
    text = "A fine\n\n\nfilm."
    (read,) = encode(tokenizer("bare"), [text], 64, segments=False)
    groups = members(read.text, read.offsets, read.special)
    assert [text[a:b] for (a, b), _ in groups] == ["A", "fine", "\n", "\n", "\n", "film", "."]


def test_the_bytes_of_one_space_are_one_word():
    assert members("a\u3000b", [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)], [False] * 5) == [
        ((0, 1), [0]),
        ((1, 2), [1, 2, 3]),
        ((2, 3), [4]),
    ]


def test_tokens_without_characters_go_with_the_next_and_at_the_end_with_the_one_before():
    assert members("a  b ", [(0, 1), (2, 2), (3, 4), (5, 5)], [False] * 4) == [((0, 1), [0]), ((3, 4), [1, 2, 3])]


def test_tokens_without_characters_stay_in_their_text_of_a_pair():
    offsets, special = [(0, 1), (2, 2), (0, 0), (3, 4)], [False, False, True, False]
    assert members("a \nb", offsets, special) == [((0, 1), [0, 1]), ((3, 4), [3])]


def test_only_tokens_without_characters_are_one_word():
    assert members("x", [(0, 0), (0, 0), (1, 1)], [True, False, False]) == [((0, 0), [1, 2])]


def test_special_tokens_belong_to_no_word_even_with_a_span():
    assert members("a b", [(0, 1), (2, 3)], [False, True]) == [((0, 1), [0])]
    assert numbers("a b", [(0, 1), (2, 3)], [False, True]) == [0, -1]


def _read(kind: str, text: str | tuple[str, str]) -> Encoded | None:
    parts = text if isinstance(text, tuple) else (text,)
    if not all(p.strip() for p in parts) or all(tokenizer(kind)(*parts).encodings[0].special_tokens_mask):
        return None  # refused: there is nothing to explain
    return encode(tokenizer(kind), [text], 512, segments=False)[0]


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)  # the first text waits for the tokenizer to be trained
@given(text=ODD | st.tuples(ODD, ODD), seed=st.integers(1, 10_000))
def test_word_scores_sum_to_the_scores_of_the_text(kind: str, text: str | tuple[str, str], seed: int):
    if (read := _read(kind, text)) is None:
        return
    scores = [float((seed * (i + 1)) % 17 - 8) for i in range(len(read))]
    groups = members(read.text, read.offsets, read.special)
    assert sum(reduce(groups, scores)) == sum(s for s, other in zip(scores, read.special, strict=True) if not other)
    assert sorted(t for _, tokens in groups for t in tokens) == [t for t, other in enumerate(read.special) if not other]
    ends = [place for span, _ in groups for place in span]
    assert ends == sorted(ends), "words stand in the order of the text and share no character"


def test_text_truncated_on_both_sides_is_reported_without_surrounding_white_space():
    assert unread("a  b  c ", [(3, 4)], [(0, 1), (6, 7)]) == [(0, 1), (6, 7)]
    assert unread("a b", [(0, 1), (2, 3)], []) == []
    assert unread("a b", [], [(0, 1), (2, 3)]) == [(0, 3)]
    assert unread("a \n", [(0, 1)], [(1, 3)]) == []


PIECES = (
    "a fine film",
    "  ",
    "\n",
    "我喜欢我",
    "é",
    "e\u0301",
    "👍",
    "x" * 120,
    "Σας",
    "truly",
    "...",
    "1234567",
    "[MASK]",
)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_is_read_as_if_it_were_tokenised_whole(kind: str, seed: int):
    rng = Random(seed)
    some, joint, limit = rng.sample(PIECES, 3), rng.choice(["", " "]), rng.randint(8, 24)
    text = joint.join(rng.choice(some) for _ in range(400)) + " end"
    whole = tokenizer(kind)._tokenizer.from_str(tokenizer(kind)._tokenizer.to_str())
    whole.no_truncation()
    expected = whole.encode(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncatedText)
        (result,) = encode(tokenizer(kind), [text], limit, segments=False)
    content = [i for i, special in enumerate(result.special) if not special]
    at = expected.special_tokens_mask.index(0)
    assert [result.ids[i] for i in content] == expected.ids[at : at + len(content)]
    assert [result.offsets[i] for i in content] == expected.offsets[at : at + len(content)]
    assert result.text == text
    assert [end for _, end in result.unseen] == [len(text)] * (len(result) < len(expected))


def test_only_the_beginning_of_a_long_text_is_tokenised():
    read: list[str] = []

    def first(text: str) -> list[str]:
        read.append(text)
        return text.split()[:11]

    text = "one two three " * 100_000
    assert beginning(text, 10, first).endswith(("one", "two", "three"))
    assert max(map(len, read)) < 1000
    assert beginning("short", 10, first) == "short"


def test_a_token_that_depends_on_the_whole_text_is_not_cut():
    text = "x" * 10_000
    assert beginning(text, 4, lambda text: [(i, len(text)) for i in range(5)]) == text
