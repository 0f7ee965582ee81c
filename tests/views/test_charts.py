import json
import struct
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from salience.errors import BadInput
from salience.views import charts
from salience.views.sheet import sheets
from views.handmade import NASTY, TEXTS, layered, made, spaced


def drawing_of(*explanations, level: str = "word") -> charts.Drawing:
    return charts._draw(sheets(explanations), level)


def texts(drawing: charts.Drawing) -> list[str]:
    return [w.text for w in drawing.words]


def test_png_has_its_header_and_twice_the_size_of_the_layout(tmp_path: Path):
    path = tmp_path / "why.png"
    charts.save([made()], path)
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    made_chart = charts.chart([made()]).to_dict()
    assert abs(width - 2 * made_chart["width"]) <= 2
    assert abs(height - 2 * made_chart["height"]) <= 2


def test_svg_is_xml_and_holds_the_words(tmp_path: Path):
    path = tmp_path / "why.svg"
    charts.save([made(NASTY), *layered()], path)
    tree = ElementTree.fromstring(path.read_text("utf-8"))
    words = {node.text for node in tree.iter("{http://www.w3.org/2000/svg}text")}
    assert {"bold", "quoted", "<", "layer 2", "integrated_gradients", "⟨202E⟩"} <= words
    assert not list(tree.iter("{http://www.w3.org/2000/svg}script"))


def test_long_words_are_cut_to_a_line():
    drawing = drawing_of(made("A " + 100_000 * "ha" + " film " + 300 * "x", scores=(0.1, 1.0, 0.2, 0.0)))
    assert max(map(len, texts(drawing))) <= charts.LONGEST
    assert max(len(box.tooltip) for box in drawing.boxes) < 2 * charts.LONGEST
    assert drawing.width <= drawing.left + charts.WIDTH + charts.MARGIN
    assert any(text.startswith("hahaha") and text.endswith("…") for text in texts(drawing))


def test_other_file_types_are_rejected(tmp_path: Path):
    with pytest.raises(BadInput, match=r"ends in \.png or \.svg, but got .*why\.jpeg"):
        charts.save([made()], tmp_path / "why.jpeg")


@settings(max_examples=40)
@given(TEXTS)
def test_words_keep_their_order_and_do_not_overlap(text: str):
    e = made(text)
    placed = [p for p in charts._placed(e, charts.pieces(e)) if p.piece is not None]
    assert [p.piece.start for p in placed] == [w.start for w in e.words()]
    for a, b in pairwise(placed):
        assert b.line > a.line or (b.line == a.line and b.x >= a.x + charts._wide(a.text))


def test_lines_break_within_the_width_and_at_line_breaks():
    e = made("Many words make a long line. " * 8 + "\nNew.")
    placed = list(charts._placed(e, charts.pieces(e)))
    assert all(p.x + charts._wide(p.text) <= charts.WIDTH for p in placed)
    assert next(p for p in placed if p.text == "New").x == min(p.x for p in placed)


def test_right_to_left_text_is_laid_out_from_the_right():
    positions = {w.text: w.x for w in drawing_of(made("هذا فيلم جميل")).words}
    assert positions["هذا"] > positions["فيلم"] > positions["جميل"]


def test_boxes_have_tooltips_with_their_scores():
    tooltips = [b.tooltip for b in drawing_of(made()).boxes if b.tooltip]
    assert tooltips[:3] == ["A +0.1", "fine +2", "film +0.5"]


def test_heat_map_has_a_square_for_each_layer_and_word():
    drawing = drawing_of(*layered())
    assert len([b for b in drawing.boxes if b.tooltip.startswith("layer")]) == 3 * 9
    assert [w.text for w in drawing.upright] == ["A", "fine", "film", ",", "but", "far", "too", "long", "."]


def test_a_truncated_text_shows_how_much_was_not_read():
    e = made("A fine film", offsets=((0, 0), (0, 1), (2, 6), (0, 0), (0, 0)), unseen=((7, 11),))
    assert "… (4 characters not read)" in texts(drawing_of(e))


def test_white_space_shows_a_mark_where_it_has_a_colour_and_breaks_the_line():
    drawing = drawing_of(spaced((0.1, 1.0, -0.9, 0.0, 0.5)))
    at = {w.text: w.y for w in drawing.words}
    assert at["fine"] == at["⏎⏎"] < at["film"]
    assert "␣" not in at
    assert "⏎⏎" not in texts(drawing_of(spaced((0.1, 1.0, 0.01, 0.0, 0.5))))


@pytest.mark.parametrize("bad", ["\ufffe", "\uffff", "\x1b", "\x00", "\ud800"])
def test_what_an_image_cannot_hold_is_made_visible(bad: str):
    e = made(
        f"A {bad} film",
        method=f"m{bad}",
        gaps={f"g{bad}": 0.1},
        settings={},
        probabilities={f"l{bad}": 0.5, "positive": 0.5},
    )
    svg = charts.picture([e], "svg").decode()
    assert bad not in svg
    ElementTree.fromstring(svg)


def test_charts_of_other_views_are_made_visible_too():
    import altair as alt

    values = alt.Data(values=[{"method": "a\ufffe\x1b", "value": 1}])
    domain = alt.Scale(domain=["a\ufffe\x1b"])
    made_chart = alt.Chart(values).mark_bar().encode(x=alt.X("method:N", scale=domain), y="value:Q")
    svg = charts.drawn(made_chart, "svg").decode()
    assert "a⟨FFFE⟩␛" in svg


def test_bars_are_drawn_from_zero():
    drawing = charts._draw(sheets([made("Good bad film", scores=(2.0, -1.0, 0.5))]), "word", "bar")
    good, bad, film = (next(b for b in drawing.boxes if b.tooltip.startswith(name)) for name in ("Good", "bad", "film"))
    assert bad.x2 == pytest.approx(good.x) == pytest.approx(film.x)
    assert (good.x2 - good.x) == pytest.approx(2 * (bad.x2 - bad.x)) == pytest.approx(4 * (film.x2 - film.x))
    assert good.fill != bad.fill


def test_the_chart_is_one_specification_without_outside_data():
    spec = json.dumps(charts.chart([made()]).to_dict())
    assert '"url"' not in spec
