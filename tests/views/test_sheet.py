from dataclasses import replace

import pytest
from hypothesis import given

from salience.errors import BadInput
from salience.explanations.explanation import Target
from salience.views.sheet import (
    chosen,
    explained,
    is_number,
    label,
    legends,
    listed,
    notes,
    number,
    pieces,
    right_to_left,
    sheets,
    signed,
    visible,
)
from views.handmade import TEXTS, layered, made


def test_methods_of_one_text_share_a_sheet_and_texts_do_not():
    a, b, c = made(), made(method="gradient"), made("Another text.")
    assert [s.rows for s in sheets([a, b, c])] == [((a,), (b,)), ((c,),)]


def test_the_same_text_given_twice_gets_two_sheets():
    assert len(sheets([made(), made()])) == 2


def test_another_target_gets_a_sheet_of_its_own():
    assert len(sheets([made(), made(target=Target("negative", None, "logit"))])) == 2


def test_layers_of_one_method_are_one_row():
    (sheet,) = sheets([*layered(), made()])
    assert [len(row) for row in sheet.rows] == [3, 1]
    assert sheet.single == [sheet.rows[1][0]]


def test_layers_need_not_agree_in_what_the_method_chose_itself():
    a, b = (made(method="layer_saliency", settings={"layer": n, "decode": d}) for n, d in ((0, "none"), (1, "softmax")))
    assert [len(row) for row in sheets([a, b])[0].rows] == [2]


def test_the_same_layer_twice_is_not_a_heat_map():
    a, b = (made(method="attention", settings={"layer": 2, "heads": heads}) for heads in ("mean", "max"))
    assert [len(row) for row in sheets([a, b])[0].rows] == [1, 1]


def test_a_row_is_named_by_its_distinguishing_settings():
    (sheet,) = sheets([made(settings={"nodes": 5, "rule": "left"}), made(settings={"nodes": 9, "rule": "left"})])
    assert [sheet.title(e) for e in sheet.single] == [
        "integrated_gradients (nodes=5)",
        "integrated_gradients (nodes=9)",
    ]
    (alone,) = sheets([made()])
    assert alone.title(alone.first) == "integrated_gradients"


def test_relative_scores_are_shares_of_the_strongest_word():
    parts = pieces(made("Good film", scores=(2.0, -1.0)))
    assert [p.relative for p in parts] == [1.0, -0.5]


def test_special_tokens_do_not_set_the_scale():
    parts = pieces(made("Good film", scores=(0.2, -0.1)), "token")
    assert [(p.name, p.relative) for p in parts] == [("[CLS]", 1.0), ("", 1.0), ("", -0.5), ("[SEP]", -1.0)]


def test_scores_of_nothing_but_zero_are_not_divided():
    assert {p.relative for p in pieces(made("Good film", scores=(0.0, 0.0)))} == {0.0}


def test_bytes_of_one_character_are_one_piece():
    e = made(
        "👍 ok", tokens=("ð", "Ł", "ok"), offsets=((0, 1), (0, 1), (1, 4)), scores=(1.0, 2.0, 4.0), special=(False,) * 3
    )
    assert [(p.start, p.end, p.score) for p in pieces(e, "token")] == [(0, 1, 3.0), (1, 4, 4.0)]


def test_unknown_level():
    with pytest.raises(BadInput, match=r"unknown level 'words'\. Did you mean 'word'"):
        pieces(made(), "words")


def test_gaps_are_relative_to_their_reference_value():
    assert notes(made()) == ["completeness gap 0.3 % of the explained number (+0.0075)"]
    assert notes(made(gaps={"efficiency": 1e-9})) == ["efficiency gap under 0.01 % of the explained number (+1e-09)"]
    assert notes(made(gaps={"conservation": -12.5})) == ["conservation gap 500 % of the explained number (-12.5)"]
    typical = ["typical error of a score, not a bound: 0.5 % of the strongest"]
    assert notes(made(gaps={"typical_error": 0.01})) == typical
    assert notes(made(gaps={"error": 0.01}, method="integrated_gradients")) == typical
    bound = ["error of a score, with 95 % confidence: at most 0.5 % of the strongest"]
    assert notes(made(gaps={"error": 0.01}, method="kernel_shap")) == bound
    assert notes(made(gaps={"fit": 0.125})) == ["the linear fit leaves 12 % of the variance unexplained"]
    sink = "94 % of all scores, in absolute value, on the first token, the attention sink of decoders"
    assert notes(made(gaps={"sink": 0.94})) == [sink]
    assert notes(made(gaps={"my_own": 0.125})) == ["my own gap +0.125"]
    assert notes(made(value=0.0)) == ["completeness gap +0.0075"]


@pytest.mark.parametrize(("method", "gap", "warned"), [("lrp", 0.2, True), ("lrp", 0.1, False), ("mine", 0.2, False)])
def test_a_large_conservation_gap_is_explained(method: str, gap: float, warned: bool):
    (line,) = notes(made(method=method, gaps={"conservation": gap}))
    assert line.endswith(" (not every step of lrp conserves relevance)") == warned


def test_a_truncated_text_is_noted():
    assert notes(made(gaps={}, unseen=((0, 2), (26, 30)))) == ["the model did not read 6 of the text's 30 characters"]


def test_what_is_explained_in_words():
    assert explained(made()) == "logit of positive"
    target = Target("positive", "negative", "log_probability")
    assert explained(made(target=target)) == "log probability of positive against negative"


def test_a_regression_model_is_recognised():
    assert is_number(made(probabilities={"positive": 2.5}))
    assert not is_number(made())
    assert not is_number(made(value=0.75, target=Target("positive", None, "probability")))


def test_many_labels_are_shortened_to_the_most_likely_and_the_explained_ones():
    probabilities = {f"label {i}": 0.1 - i / 1000 for i in range(20)}
    target = Target("label 19", "label 18", "logit")
    shown, more = listed(made(probabilities=probabilities, target=target))
    assert [name for name, _ in shown] == [*(f"label {i}" for i in range(6)), "label 18", "label 19"]
    assert more == 12


@pytest.mark.parametrize(
    ("recorded", "score", "expected"), [(True, 0.5, True), (False, 0.5, False), (None, 0.5, False)]
)
def test_the_method_decides_whether_scores_have_a_sign(recorded: bool | None, score: float, expected: bool):
    e = replace(made(signed=recorded), scores=(score,) * len(made().scores))
    assert signed(e) == expected
    assert number(e, 0.5) == ("+0.5" if expected else "0.5")


def test_without_a_recorded_sign_both_signs_are_shown():
    assert signed(made(method="my_own", signed=None))


def test_both_kinds_of_methods_get_a_line_of_the_legend_each():
    (sheet,) = sheets(
        [made(), made(method="attention", settings={}, signed=False), made(method="uniform", settings={}, signed=False)]
    )
    both, weights = legends(sheet)
    assert (both.signed, both.low, both.high) == (True, ("against ", "positive"), ("for ", "positive"))
    assert (weights.signed, weights.low[0], weights.high[0]) == (False, "attention, uniform: from little", "to much")


def test_settings_other_than_the_defaults_are_listed_in_one_line():
    def line(**settings: object) -> str:
        e = made(settings=settings)
        return chosen(sheets([e])[0], e)

    assert line(baseline="mask", tolerance=0.01, max_nodes=129, nodes=17, rule=None) == "baseline mask · 17 nodes"
    assert line(baseline=None, tolerance=0.001) == "tolerance 0.001"
    assert line(tolerance=0.01) == ""
    assert line(baseline="x" * 30, rule="y" * 50) == "baseline " + "x" * 30
    (sheet,) = sheets([made(settings={"nodes": 5, "rule": "left"}), made(settings={"nodes": 9, "rule": "left"})])
    assert [chosen(sheet, e) for e in sheet.single] == ["rule left", "rule left"]
    own = made(method="my_own")
    assert chosen(sheets([own])[0], own) == ""


def test_a_next_token_shows_its_space():
    assert label(" Paris") == "␣Paris"
    assert label("\n") == "⏎"
    assert label("two words") == "two words"


@given(TEXTS)
def test_control_characters_are_removed(text: str):
    shown = visible(text)
    assert not [c for c in shown if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160)]
    assert not set(shown) & set("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029")


def test_letters_joiners_and_emoji_stay():
    text = "naïve e\u0301clair می\u200cخواهم 👩\u200d🔬 我喜欢"
    assert visible(text) == text


def test_direction():
    assert right_to_left("3.5: هذا فيلم")
    assert not right_to_left("A film هذا")
    assert not right_to_left("123")
