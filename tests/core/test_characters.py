import json
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from salience.core.characters import to_json, visible

ANY = st.text(st.characters(exclude_categories=[]), max_size=60)
OBEYED = "\x00\x07\x08\x1b\x7f\x80\x85\x9b\x9d\xad\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff"


@given(ANY)
def test_nothing_invisible_is_left(text: str):
    shown = visible(text)
    assert not [c for c in shown if category(c) in ("Cc", "Cs", "Zl", "Zp") and c != "\n"]
    assert not {"\ufffe", "\uffff", "\ufdd0", "\U0001fffe"} & {*shown}


@pytest.mark.parametrize("character", [*OBEYED, "\ufffe", "\uffff", "\ud800"])
def test_every_character_that_a_terminal_obeys_is_shown(character: str):
    assert character not in visible(f"a{character}b")
    assert len(visible(f"a{character}b")) > 2


@given(ANY)
def test_json_is_the_same_when_it_is_read(text: str):
    written = to_json({"text": text, text: [text]})
    assert json.loads(written) == {"text": text, text: [text]}
    assert not {*OBEYED, "\ufffe", "\uffff"} & {*written}
    written.encode()  # no lone surrogates


def test_letters_of_all_scripts_are_kept():
    text = "café 日本語 العربية हिन्दी 👩‍👧 ½"
    assert visible(text) == text
    assert json.loads(to_json(text)) == text
    assert text in to_json(text)
