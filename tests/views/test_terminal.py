import json
import re
from io import StringIO

import pytest
from hypothesis import given
from rich.console import Console

from salience.errors import BadInput
from salience.explanations.explanation import Explanation
from salience.views import charts, html, sheet, terminal
from salience.views.colours import AGAINST, DARK, FOR, LIGHT, MUCH, hexadecimal
from salience.views.sheet import pieces, visible
from views.handmade import NASTY, TEXTS, layered, made, spaced

SGR = re.compile(r"\x1b\[[0-9;]*m")


def printed(
    explanations: list[Explanation], *, colour: bool, level: str = "word", view: str = "text", width: int = 80
) -> str:
    out = StringIO()
    system = "truecolor" if colour else None
    console = Console(file=out, width=width, force_terminal=colour, color_system=system, legacy_windows=False)
    console.print(terminal.render(explanations, colour=colour, level=level, view=view, width=width))
    return out.getvalue()


def test_without_colour_everything_can_be_read():
    lines = [line.rstrip() for line in printed([made()], colour=False).splitlines()]
    assert lines == [
        "sentiment   explained: logit of positive = 2.5",
        "  positive ███████████████      75.0 %",
        "  negative █████                25.0 %",
        "",
        "integrated_gradients",
        "  50 nodes · baseline mask",
        "  A fine(++) film(+), but far(-) too(--) long(-).",
        "",
        "  fine +2.0000 ██████████",
        "  too  -1.5000 ███████▌",
        "  long -1.0000 █████",
        "  far  -0.6000 ███",
        "  film +0.5000 ██▌",
        "  … 4 more; use --json for all",
        "  completeness gap 0.3 % of the explained number (+0.0075)",
        "",
        "  against positive   --  -  +  ++   for positive",
        "",
    ]


def test_with_colour_words_carry_it_and_no_marks():
    out = printed([made()], colour=True)
    assert "fine(" not in out
    assert re.search(r"48;2;240;140;40m\S*fine", out)
    assert "A fine film, but far too long." in SGR.sub("", out)


def test_unsigned_weights_are_not_described_as_for_or_against():
    weights = made("Good film", scores=(1.0, 0.0), method="attention", settings={}, signed=False)
    out = printed([weights], colour=False)
    assert "little   *  **   much; these scores have no sign" in out
    assert "against" not in out
    assert "Good(**) film" in out
    assert "Good 1.0000" in out
    assert "more; --json" not in out


def test_bars_start_at_zero_and_end_at_their_score():
    e = made("Good bad film", scores=(2.0, -1.0, 0.0))
    lines = printed([e], colour=False, view="bar", width=60).split("integrated_gradients\n")[1].splitlines()
    assert [line.rstrip() for line in lines[:3]] == [
        "  Good +2                 ████████████████████████████████",
        "  bad  -1 ████████████████",
        "  film +0                 ▏",
    ]


def test_small_bars_stay_on_their_side_of_zero():
    e = made("Good bad film", scores=(2.0, -0.01, 0.001))
    lines = printed([e], colour=False, view="bar", width=60).split("integrated_gradients\n")[1].splitlines()
    (good, a), (bad, b), (film, c) = ((line.index("█"), line.rindex("█") + 1) for line in lines[:3])
    assert good == film == b, "0 is at one place"
    assert (b - bad, c - film) == (1, 1)
    assert a > c
    bars = {bar.name: bar for bar in sheet.bars(made("Good bad", scores=(0.01, -2.0)))}
    assert bars["Good"].low == bars["bad"].high < 0.95


@pytest.mark.parametrize("view", ["text", "bar"])
def test_scores_without_a_sign_have_a_colour_of_their_own(view: str):
    weights = made("Good film", scores=(1.0, 0.5), method="attention", settings={}, signed=False)
    codes = [";".join(map(str, colour)) for colour in (MUCH, FOR, AGAINST)]
    out = printed([weights], colour=True, view=view)
    assert [code in out for code in codes] == [True, False, False]
    page = html.page([weights], view=view).partition("</style>")[2]
    assert 'class="much' in page
    assert 'class="for' not in page
    spec = json.dumps(charts.chart([weights], view=view).to_dict())
    assert [hexadecimal(colour) in spec for colour in (MUCH, FOR, AGAINST)] == [True, False, False]


def test_a_waterfall_goes_from_the_rest_to_the_explained_number():
    e = made("Good bad film", scores=(2.0, -1.0, 0.5), value=3.0, gaps={})
    out = printed([e], colour=False, view="waterfall")
    rows = [line.split()[0:2] for line in out.split("integrated_gradients\n")[1].splitlines()[:4]]
    assert rows == [["rest", "+1.5"], ["Good", "+2"], ["bad", "-1"], ["film", "+0.5"]]
    assert re.search(r"logit of positive +3 █+", out)
    assert "(scores of integrated_gradients need not add up)" in " ".join(out.split())
    bars = sheet.bars(e, view="waterfall")
    assert [(round(3.5 * b.low, 6), round(3.5 * b.high, 6)) for b in bars] == [
        *((0, 1.5), (1.5, 3.5), (2.5, 3.5), (2.5, 3.0), (0, 3.0))
    ]


def test_a_waterfall_of_scores_without_a_sign_is_refused():
    with pytest.raises(BadInput, match="a waterfall adds scores up, but those of attention have no sign"):
        printed([made(method="attention", signed=False)], colour=False, view="waterfall")


def test_weak_scores_are_one_bar():
    e = made("word " * 30, scores=[30.0 - n for n in range(30)])
    bars = sheet.bars(e)
    assert [len(bars), bars[-1].name, bars[-1].score] == [21, "10 other words", "+55"]


def test_names_from_elsewhere_are_visible():
    e = made(method="m\x1b[31m", gaps={"g\x9b\ufffe": 0.1}, settings={"layer\u202e": "x\x1b"}, model="\x1bm")
    other = made(method="m\x1b[31m", settings={"layer\u202e": "y"}, model="\x1bm")
    for view in ("text", "bar", "waterfall"):
        out = printed([e, other], colour=False, view=view)
        assert "m␛[31m" in out
        assert not [c for c in "\x1b\x9b\ufffe\u202e" if c in out]


def test_methods_with_and_without_a_sign_side_by_side():
    out = printed([made(), made(method="attention", settings={}, signed=False)], colour=False)
    assert "  against positive   --  -  +  ++   for positive\n  attention: from little   *  **   to much\n" in out


def test_tokens_of_a_word_are_separated_without_colour():
    offsets = ((0, 2), (2, 7), (7, 9), (9, 12), (12, 13))
    text = "unbelievably!"
    names = tuple(text[a:b] for a, b in offsets)
    e = made(text, (0.1, 1.0, 0.0, -0.3, 0.0), tokens=names, offsets=offsets, special=(False,) * 5)
    assert "  un·belie(++)·va·bly(-)!\n" in printed([e], colour=False, level="token")
    assert "·" not in SGR.sub("", printed([e], colour=True, level="token")).split("mask")[1]
    assert "  unbelievably(++)!\n" in printed([e], colour=False)


def test_several_methods_share_a_legend_that_says_how_they_are_scaled():
    out = printed([made(), made(method="gradient")], colour=True)
    assert out.count("each row has its own scale") == 1
    assert out.count("75.0 %") == 1
    assert SGR.sub("", out).count("A fine film, but far too long.") == 2


def test_layers_become_a_heat_map():
    lines = [line.split() for line in printed(layered(), colour=False).splitlines()]
    assert ["A", "fine", "film", ",", "but", "far", "too", "long", "."] in lines
    assert ["layer", "0", "·", "++", "+", "·", "·", "-", "--", "-", "·"] in lines
    assert ["layer", "1", "++", "+", "·", "·", "-", "--", "-", "·", "·"] in lines


def test_a_wide_heat_map_is_broken_into_blocks():
    out = printed(layered(), colour=False, width=30)
    assert out.count("layer 2") > 1
    assert all(len(line) <= 30 for line in out.splitlines() if line.startswith("  layer"))


@pytest.mark.parametrize("level", ["word", "token"])
@pytest.mark.parametrize("colour", [True, False])
def test_markup_and_escapes_of_the_text_are_shown_literally(colour: bool, level: str):
    out = SGR.sub("", printed([made(NASTY, model="\x1b]0;title\x07[red]x")], colour=colour, level=level, width=200))
    assert "[bold]" in out.replace("(+)", "").replace("(++)", "").replace("(-)", "").replace("(--)", "")
    assert "␛" in out
    assert "⟨202E⟩" in out
    assert "␛]0;title␇[red]x" in out
    assert not [c for c in out if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160)]


@given(TEXTS)
def test_the_whole_text_is_there_in_its_order(text: str):
    e = made(text)
    shown = terminal.sentence(e, pieces(e), terminal.Paint(True, DARK))
    assert shown.plain == visible(text)


def test_unread_text_is_noted_and_struck_out():
    e = made("A fine film", offsets=((0, 0), (0, 1), (2, 6), (0, 0), (0, 0)), unseen=((7, 11),))
    shown = terminal.sentence(e, pieces(e), terminal.Paint(True, DARK))
    assert shown.plain == "A fine film"
    assert [shown.plain[s.start : s.end] for s in shown.spans if "strike" in str(s.style)] == ["film"]
    assert "the model did not read 4 of the text's 11 characters" in printed([e], colour=False)


def test_special_tokens_are_named_at_token_level_only():
    assert "[CLS](+) A fine" in printed([made()], colour=False, level="token")
    assert "[CLS]" not in printed([made()], colour=False)


def test_a_regression_shows_its_number():
    out = printed([made(probabilities={"positive": 2.5})], colour=False)
    assert re.search(r"positive +2\.5$", out, re.MULTILINE)
    assert "%" not in out.split("integrated_gradients")[0]


def test_long_texts_wrap():
    out = printed([made("word " * 60)], colour=False, width=40)
    assert max(map(len, out.splitlines())) <= 48  # the legend alone may be longer than 40


def test_colour_is_used_where_there_is_enough_of_it():
    def console(**options: object) -> Console:
        return Console(file=StringIO(), force_terminal=True, legacy_windows=False, **options)

    assert terminal.coloured(console(color_system="truecolor"))
    assert not terminal.coloured(console(color_system="standard"))
    assert not terminal.coloured(console(color_system="truecolor", no_color=True))
    assert not terminal.coloured(Console(file=StringIO()))


def test_the_ground_is_the_terminals():
    assert terminal.ground({"COLORFGBG": "0;15"}) == LIGHT
    assert terminal.ground({"COLORFGBG": "15;default;0"}) == DARK
    assert terminal.ground({}) == DARK


def test_white_space_shows_a_mark_where_it_has_a_colour():
    e = spaced((0.1, 1.0, -0.9, 0.0, 0.5))
    shown = terminal.sentence(e, pieces(e), terminal.Paint(True, DARK))
    assert shown.plain == "A fine⏎⏎\n\n film"
    assert terminal.sentence(e, pieces(e), terminal.Paint(False, DARK)).plain == "A fine(++)⏎⏎(--)\n\n film(+)"
    assert re.search(r"⏎⏎ +-0\.9000", printed([e], colour=False))


def test_white_space_without_a_colour_is_itself():
    e = spaced((0.1, 1.0, 0.01, 0.0, 0.5))
    assert terminal.sentence(e, pieces(e), terminal.Paint(True, DARK)).plain == e.text


def test_a_word_cut_in_two_is_struck_out_from_there():
    e = made("A fine film", offsets=((0, 0), (0, 1), (2, 6), (7, 9), (0, 0)), unseen=((9, 11),))
    shown = terminal.sentence(e, pieces(e), terminal.Paint(True, DARK))
    assert [shown.plain[s.start : s.end] for s in shown.spans if "strike" in str(s.style)] == ["lm"]
