"""Charts of numbers: names that do not overlap, colours for light and dark paper, tables behind them."""

import re
from itertools import pairwise
from math import nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from salience.core.stats import Estimate
from salience.views import pages, plots
from salience.views.colours import Colour, contrast_ratio
from salience.views.plots import Axis, Line
from salience.views.schemes import CYCLE, DARK, INK, PAPER, SOFT

LINES = [
    Line("up", [0, 1, 2], [0.0, 0.5, 1.0], CYCLE[0], low=[0.0, 0.4, 0.9], high=[0.1, 0.6, 1.0]),
    Line("down", [0, 1, 2], [1.0, nan, 0.99], CYCLE[1], dashed=True),
]
MEANS = {"one": Estimate(0.5, 0.4, 0.6, 9), "random": Estimate(0.1, nan, nan, 1), "none": Estimate(nan, nan, nan, 0)}


@given(st.lists(st.floats(0, 300), min_size=1, max_size=18))
def test_names_stand_apart_in_the_order_of_their_lines(places: list[float]):
    moved = plots.apart(places, 300)
    ordered = [moved[i] for i in sorted(range(len(places)), key=lambda i: places[i])]
    assert all(b - a >= plots.APART - 1e-6 for a, b in pairwise(ordered))
    assert min(moved) >= -1e-6
    assert max(moved) <= 300 + 1e-6


def test_names_that_have_room_are_not_moved():
    assert plots.apart([10.0, 100.0, 50.0], 300) == [10.0, 100.0, 50.0]


def _colour(name: str) -> Colour:
    red, green, blue = (int(name[i : i + 2], 16) for i in (1, 3, 5))
    return red, green, blue


@pytest.mark.parametrize("name", [*CYCLE, INK, SOFT])
def test_lines_and_text_can_be_read_on_light_and_on_dark_paper(name: str):
    assert contrast_ratio(_colour(name), _colour(PAPER)) >= 4.5
    assert contrast_ratio(_colour(DARK[name]), _colour(DARK[PAPER])) >= 4.5


@pytest.mark.parametrize(
    "chart",
    [
        plots.lines(LINES, Axis("step", scale="sqrt"), Axis("accuracy", "%")),
        plots.bare(LINES, Axis("step"), Axis("", ends=(0, 1))),
        plots.means(MEANS, Axis("mean"), quiet=["random"], reference=0.1),
        plots.boxes({"one": [0.1, 0.2, 0.3, 0.9, nan]}, {"one": "mean 0.4"}, Axis("value", "%")),
        plots.scatter([(0.1, 0.2), (0.3, nan)], Axis("x", ends=(0, 1)), Axis("y"), {"far": 0.4}),
        plots.path({"λ = 0.1": (0.0, 0.1), "λ = 1": (0.5, 0.6)}, Axis("x"), Axis("y")),
        plots.named_points(
            {"a": (1.0, 0.1), "random": (9.0, 0.6)}, Axis("x", scale="log"), Axis("y"), quiet=["random"]
        ),
    ],
)
def test_every_colour_of_a_chart_has_a_dark_one(chart: object):
    drawn = plots.svg(chart).decode()
    used = set(re.findall(r'(?:fill|stroke)="([^"]+)"', drawn)) - {"none", "white", "transparent"}
    assert used
    assert used <= DARK.keys()
    assert "aria-label" not in drawn


def test_names_stand_at_the_ends_of_lines_and_the_numbers_behind_the_chart():
    drawn = plots.svg(plots.lines(LINES, Axis("step"), Axis("accuracy"))).decode()
    assert re.findall(r">(up|down)</text>", drawn) == ["up", "down"]
    assert plots.numbers(LINES, "step") == (
        ("step", "up", "down"),
        [["0", "0.000", "1.000"], ["1", "0.500", "–"], ["2", "1.000", "0.990"]],
    )
    html = pages.chart(b"<svg></svg>", "Accuracy & more", plots.numbers(LINES, "step"))
    assert 'aria-label="Accuracy &amp; more"' in html
    assert html.index("<svg") < html.index("<summary>") < html.index("0.990")


def test_a_name_that_would_cover_another_one_is_left_out():
    """On a logarithmic axis, 1 and 9 are far apart and 1,000 and 1,001 are not."""
    points = {"one": (1.0, 0.5), "two": (9.0, 0.5), "more": (1000.0, 0.5), "hidden": (1001.0, 0.5), "up": (1001.0, 0.9)}
    drawn = plots.svg(plots.named_points(points, Axis("x", scale="log"), Axis("y"))).decode()
    assert {name for name in points if f">{name}</text>" in drawn} == points.keys() - {"hidden"}


def test_every_row_has_its_name():
    rows = {f"method_{n}": Estimate(0.1 * n, nan, nan, 3) for n in range(9)}
    drawn = plots.svg(plots.means(rows, Axis(""), width=120, row=20)).decode()
    assert re.findall(r">(method_\d)</text>", drawn) == list(rows)


def test_the_range_behind_a_panel_is_that_of_all_lines():
    panels = plots.spotlights([LINES[0], Line("flat", [0, 1, 2], [0.2] * 3, dashed=True)], Axis("x"), Axis("y"))
    assert list(panels) == ["up", "flat"]
    assert panels["up"].count(b"stroke-dasharray") == 1
    assert pages.panels(panels, "Both", None).count("<svg") == 2


def test_quartiles_leave_out_what_is_undefined():
    _, rows = plots.quartiles({"one": [0.0, 1.0, nan, 2.0, 3.0, 4.0], "none": [nan]})
    assert rows[0] == ["one", "5", "0.000", "1.000", "2.000", "3.000", "4.000"]
    assert rows[1] == ["none", "0", *["–"] * 5]
