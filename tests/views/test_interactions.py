"""Views of interactions that are written by hand: no model is needed."""

import json
from io import StringIO

import pytest
from rich.console import Console

from salience.core.target import Target
from salience.explanations.hierarchy import hierarchy
from salience.explanations.interactions import Interactions
from salience.trials.shortcuts import _in_pairs
from salience.views import interactions as views
from salience.views.colours import DARK
from salience.views.terminal import Paint

MATRIX = ((0.0, 0.0, 0.1), (0.0, 0.0, -2.0), (0.1, -2.0, 0.0))


def handmade(**changes: object) -> Interactions:
    facts = {
        "text": "so <not> bad",
        "units": ("so", "<not>", "bad"),
        "spans": ((0, 2), (3, 8), (9, 12)),
        "matrix": MATRIX,
        "main": (0.0, 1.0, 3.0),
        "scores": (0.05, 0.0, 2.05),
        "target": Target("negative"),
        "value": 2.1,
        "probabilities": {"negative": 0.9, "positive": 0.1},
        "method": "shapley_taylor",
        "settings": {"unit": "word"},
        "model": "mine",
        "gaps": {"completeness": 0.0},
    }
    return Interactions(**{**facts, **changes})  # pyright: ignore


def test_pairs_are_ranked_by_strength():
    assert [(p.first, p.second, p.score) for p in handmade().pairs()] == [(1, 2, -2.0), (0, 2, 0.1), (0, 1, 0.0)]
    assert "'<not>' × 'bad' -2" in repr(handmade())
    frame = handmade().to_frame()
    assert frame["interaction"].tolist() == [-2.0, 0.1, 0.0]
    units = handmade().units
    assert [units[i] for i in frame["first_at"]] == frame["first"].tolist()
    assert [units[i] for i in frame["second_at"]] == frame["second"].tolist()


def test_repeated_words_are_told_apart_by_their_numbers():
    x = handmade(text="bad so bad", units=("bad", "so", "bad"), spans=((0, 3), (4, 6), (7, 10)))
    console = Console(file=StringIO(), width=80, no_color=True)
    console.print(views.terminal(x, paint=Paint(False, DARK)))
    shown = console.file.getvalue()  # pyright: ignore
    assert "so" in shown
    assert "bad 1" in shown
    assert "bad 3" in shown
    assert "bad 3" in views.page([x])


def test_the_tree_splits_where_interactions_are_weakest_and_effects_add_up_with_them():
    tree = hierarchy(MATRIX, (0.05, 0.0, 2.05))
    assert [(g.start, g.end) for _, g in tree.walk()] == [(0, 3), (0, 1), (1, 3), (1, 2), (2, 3)]
    for _, group in tree.walk():
        if group.halves:
            assert abs(group.effect - sum(h.effect for h in group.halves) - group.across) < 1e-9
    assert abs(tree.effect - 2.1) < 1e-9, "the whole is the sum of all scores"
    assert abs(tree.halves[1].across + 2.0) < 1e-9


def test_strengths_without_a_sign_are_no_part_of_an_effect():
    x = handmade(matrix=((0.0, 0.0, 0.1), (0.0, 0.0, 2.0), (0.1, 2.0, 0.0)), signed=False)
    for _, group in x.tree().walk():
        assert group.effect == pytest.approx(sum(x.scores[group.start : group.end]))
    assert [(g.start, g.end, g.across) for _, g in x.tree().walk() if g.halves] == [(0, 3, 0.1), (1, 3, 2.0)]


def test_they_are_read_back_from_json():
    x = handmade(groups=(((1, 2), 1.5),), signed=False, pair_at=3, unseen=((9, 12),))
    assert Interactions.from_dict(json.loads(x.to_json())) == x
    assert hash(x) == hash(handmade(groups=(((1, 2), 1.5),), signed=False))
    assert (x.summed().pair_at, x.summed().unseen) == (3, ((9, 12),))


def test_the_error_is_that_of_interactions_not_of_scores():
    x = handmade(gaps={"completeness": 0.0, "error": 0.5})
    lines = views.meanings(x)
    assert "error of an interaction, with 95 % confidence: at most 25\xa0% of the strongest" in lines
    assert not any("error of a score" in line for line in lines)
    assert list(x.summed().gaps) == ["completeness"]


def test_the_terminal_shows_pairs_tree_and_matrix_without_colours():
    console = Console(width=80, no_color=True, file=StringIO())
    console.print(views.terminal(handmade(groups=(((1, 2), 1.5),)), paint=Paint(False, DARK)))
    shown = console.file.getvalue()  # pyright: ignore
    assert "<not> × bad" in shown
    assert "halves -2.000" in shown
    assert "--" in shown.split("matrix")[1]
    assert "<not> … bad" in shown


def test_the_page_escapes_words_and_has_no_scripts():
    page = views.page([handmade()])
    assert "&lt;not&gt;" in page
    assert "<not>" not in page
    assert "<script" not in page
    assert "halves -2.000" in page
    assert views.picture([handmade()], "svg").startswith(b"<svg")


def test_a_planted_pair_is_found_by_its_rank_among_all_pairs():
    assert _in_pairs(handmade(), ((3, 8), (9, 12))) == (1.0, 0.0, 1.0)
    assert _in_pairs(handmade(), ((0, 2), (9, 12))) == (0.5, 0.5, 0.0)
    assert all(value != value for value in _in_pairs(handmade(), ((0, 2),)))
