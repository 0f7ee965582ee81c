"""What an Explanation says of itself."""

import sys

import pytest

from salience.errors import BadInput, SalienceError
from views.handmade import made


def test_the_repr_is_one_short_line():
    shown = repr(made("A fine film, but far too long for such a story. " * 10))
    assert shown.startswith("<explanation of 'A fine film, but far too long for such …' by integrated_gradients: ")
    assert "logit of 'positive' = 2.5; 'fine' 2, " in shown
    assert len(shown) < 200
    assert "\n" not in repr(made("A\nfine\nfilm"))


def test_words_as_a_frame():
    frame = made("A fine film").to_frame()
    assert list(frame.columns) == ["text", "start", "end", "score"]
    assert frame.values.tolist() == [["A", 0, 1, 0.1], ["fine", 2, 6, 2.0], ["film", 7, 11, 0.5]]


def test_tokens_as_a_frame():
    frame = made("A fine film").to_frame("token")
    assert frame["text"].tolist() == ["[CLS]", "A", "fine", "film", "[SEP]"]
    assert frame["special"].tolist() == [True, False, False, False, True]
    assert frame["score"].tolist() == [0.7, 0.1, 2.0, 0.5, -0.7]
    with pytest.raises(BadInput, match="Did you mean 'word'"):
        made().to_frame("words")


def test_without_pandas_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SalienceError, match="to_frame needs pandas; install it with `pip install pandas`"):
        made().to_frame()
