import dataclasses
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from salience.explanations.explanation import Target
from salience.views.html import fragment, page
from salience.views.sheet import pieces, visible
from views.handmade import NASTY, TEXTS, layered, made, spaced

VOID = {"meta"}
PAGE = "html head meta title style body main h1 article header p bdi div b span i section h2 mark s"
OURS = {*PAGE.split(), *["table", "thead", "tbody", "tr", "th", "td", "details", "summary"]}


class Reader(HTMLParser):
    """What a browser would see: tags, attributes, and the text inside the sentence."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.sentences: list[str] = []
        self.marks: list[str] = []
        self.inside = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "p" and dict(attrs).get("class") == "text":
            self.inside = True
            self.sentences.append("")
        if tag == "mark":
            self.marks.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "p":
            self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.sentences[-1] += data
            if self.open[-1] == "mark":
                self.marks[-1] += data


OBEYED = st.characters(
    exclude_categories=["Cs", "Cc", "Cn"], exclude_characters="\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)


@given(st.text(OBEYED | st.sampled_from("\n\t\r<>&\"'"), min_size=1, max_size=60))
def test_the_text_can_be_read_back_exactly(text: str):
    seen = Reader(page([made(text)]))
    assert seen.sentences == [text]
    assert not seen.open


@given(TEXTS)
def test_no_text_becomes_markup(text: str):
    changes = {"model": text, "method": text, "settings": {text: text}, "gaps": {text: 1.0}}
    target = Target(text, None, "logit")
    seen = Reader(page([made(text, target=target, probabilities={text: 0.5}, **changes)], title=text))
    assert {tag for tag, _ in seen.tags} <= OURS
    assert not [name for _, attributes in seen.tags for name in attributes if name.startswith("on")]
    assert not seen.open


def test_nasty_text_is_shown():
    out = page([made(NASTY)], level="token")
    assert "<script" not in out
    assert "&lt;script&gt;" in re.sub(r"</?mark[^>]*>", "", out)
    seen = Reader(out)
    assert "\x00" not in out
    assert "\u202e" not in out
    assert "␛[31mred" in seen.sentences[0]
    assert "⟨202E⟩evil" in seen.sentences[0]


def test_words_are_marked_at_their_offsets_with_their_numbers():
    seen = Reader(page([made()]))
    assert seen.marks == ["A", "fine", "film", ",", "but", "far", "too", "long", "."]
    marks = {
        text: attributes
        for text, (_, attributes) in zip(seen.marks, [t for t in seen.tags if t[0] == "mark"], strict=True)
    }
    assert marks["fine"] == {
        "data-span": "2,6",
        "class": "for",
        "style": "--s:1.00",
        "title": "\u2068fine\u2069 +2",
        "aria-label": "\u2068fine\u2069 +2",
    }
    assert (marks["too"]["class"], marks["too"]["style"]) == ("against", "--s:0.75")
    assert marks[","]["class"] == ""


def test_strength_is_not_shown_by_colour_alone():
    style = page([made()])
    assert "mark.for, .salience .special.for { border-bottom: calc(var(--s) * 3px) solid" in style
    assert "mark.against, .salience .special.against { border-bottom: calc(var(--s) * 3px) dashed" in style


def test_methods_of_one_text_stand_on_one_sheet():
    seen = Reader(page([made(), made(method="gradient"), made("Another.")]))
    names = [tag for tag, _ in seen.tags]
    assert (names.count("article"), names.count("section")) == (2, 3)


@pytest.mark.parametrize("view", ["bar", "waterfall"])
def test_bars_have_their_place_and_their_score(view: str):
    seen = Reader(page([made("Good bad", scores=(2.0, -1.0), value=1.0)], view=view))
    assert {tag for tag, _ in seen.tags} <= OURS
    assert not seen.open
    styles = [a["style"] for tag, a in seen.tags if tag == "i" and "margin-inline-start" in str(a.get("style"))]
    assert (
        styles
        == {
            "bar": [
                "--s:1;margin-inline-start:33.33%;width:66.67%",
                "--s:1;margin-inline-start:0.00%;width:33.33%",
            ],
            "waterfall": [
                "--s:1;margin-inline-start:0.00%;width:0.00%",
                "--s:1;margin-inline-start:0.00%;width:100.00%",
                "--s:1;margin-inline-start:50.00%;width:50.00%",
                "--s:1;margin-inline-start:0.00%;width:50.00%",
            ],
        }[view]
    )


def test_no_page_holds_what_html_forbids():
    from salience.views.pages import document, table

    out = document("t\x1b", table(("a\x9b",), [("\ufffe", "\x00\u202e")]))
    assert not [c for c in "\x1b\x9b\ufffe\x00\u202e" if c in out]
    assert "⟨FFFE⟩" in out


def test_layers_become_a_heat_map():
    seen = Reader(page(layered()))
    cells = [a for tag, a in seen.tags if tag == "td" and "style" in a]
    assert len(cells) == 3 * 9
    assert cells[1]["title"] == "layer 0: \u2068fine\u2069 +2"
    assert cells[9]["class"] == "for"


def test_the_page_loads_nothing():
    out = page([made()])
    assert "default-src 'none'" in out
    assert not re.search(r"https?://|@import|url\(|<script|<link|<img", out)


def test_settings_gaps_and_scores_are_in_the_page():
    out = page([made(settings={"nodes": 50, "layer": None})])
    assert "nodes = 50; layer = chosen by the method; completeness gap 0.3 % of the explained number (+0.0075)" in out
    assert '<th scope="row"><bdi>too</bdi></th><td>-1.5</td>' in out


def test_right_to_left_text_sets_its_own_direction():
    seen = Reader(page([made("هذا فيلم جميل")]))
    assert [a["dir"] for tag, a in seen.tags if a.get("class") == "text"] == ["auto"]
    assert seen.sentences == ["هذا فيلم جميل"]


def test_special_tokens_are_not_part_of_the_selectable_text():
    seen = Reader(page([made()], level="token"))
    assert seen.sentences == [made().text]
    assert [a["data-name"] for tag, a in seen.tags if tag == "span" and "data-name" in a] == ["[CLS]", "[SEP]"]


def test_unread_text_is_struck_out():
    e = made("A fine film", offsets=((0, 0), (0, 1), (2, 6), (0, 0), (0, 0)), unseen=((7, 11),))
    assert '<s title="the model did not read this">film</s>' in page([e])


def test_a_regression_has_no_bars():
    assert 'class="bar"' not in page([made(probabilities={"positive": 2.5})])


def test_a_notebook_shows_the_fragment():
    e = made()
    assert e._repr_html_() == fragment([e])
    assert not Reader(fragment([e])).open
    assert "<html" not in fragment([e])


@pytest.mark.parametrize("level", ["word", "token"])
def test_every_piece_has_a_number_in_the_table(level: str):
    seen = Reader(page([made()], level=level))
    rows = [a for tag, a in seen.tags if tag == "th" and a.get("scope") == "row"]
    assert len(rows) == len(pieces(made(), level))


def test_titles_show_invisible_characters():
    assert visible("a\x1bb") in page([made()], title="a\x1bb")


def test_white_space_keeps_its_characters_and_is_named_where_it_has_a_colour():
    seen = Reader(out := page([spaced((0.1, 1.0, -0.9, 0.0, 0.5))]))
    assert seen.sentences == ["A fine\n\n film"]
    named = {a["data-name"]: a["class"] for tag, a in seen.tags if tag == "mark" and "data-name" in a}
    assert named == {"⏎⏎": "against", "␣": ""}
    assert ".salience mark.against[data-name]::before" in out, "a name shows only beside a colour"
    assert "\u2068⏎⏎\u2069 -0.9" in out


def test_both_texts_of_a_pair_are_struck_out_where_they_were_cut():
    offsets = ((0, 0), (2, 6), (13, 15), (0, 0))
    tokens = ("[CLS]", "fine", "It", "[SEP]")
    e = made(
        "A fine film\n It is", (0.0, 1.0, 2.0, 0.0), tokens=tokens, offsets=offsets, special=(True, False, False, True)
    )
    e = dataclasses.replace(e, pair_at=12, unseen=((0, 1), (7, 11), (16, 18)))
    out = page([e])
    assert re.findall(r"<s title=[^>]*>([^<]*)</s>", out) == ["A", "film", "is"]
    assert Reader(out).sentences == [e.text]


def test_methods_without_a_sign_get_a_line_of_the_legend_and_numbers_without_plus():
    out = page([made(), made(method="attention", settings={}, signed=False)])
    assert out.count('<p class="legend quiet">') == 2
    assert "attention: from little" in out
    assert "<td>+2</td><td>2</td>" in out
