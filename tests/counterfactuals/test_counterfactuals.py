"""Counterfactuals: edits, proposals, search and the study, against slow versions and a model whose words are known."""

import json
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import salience
from salience.core.passes import forward
from salience.core.types import Model
from salience.counterfactuals import Counterfactuals, Edit, counterfactual, counterfactual_data, words_changed
from salience.counterfactuals.edits import Words, distance
from salience.counterfactuals.filling import Filler, filler_of
from salience.counterfactuals.finding import Counterfactual, Problem, best_of, proposals_of
from salience.counterfactuals.search import GREEDY, Goal, Judge, Search, search
from salience.data import source
from salience.errors import BadInput, TruncatedText, UnsupportedModel
from salience.views import counterfactuals as views
from shapes import build


@cache
def bundled() -> Model:
    return salience.load()


# ------------------------------------------------------------------------------------------------------ edits


def slow_distance(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """The recursive definition."""
    if not a or not b:
        return len(a) + len(b)
    return min(slow_distance(a[1:], b) + 1, slow_distance(a, b[1:]) + 1, slow_distance(a[1:], b[1:]) + (a[0] != b[0]))


WORDS = st.lists(st.sampled_from("abc"), max_size=4).map(tuple)


@given(WORDS, WORDS)
def test_the_distance_is_that_of_levenshtein(a: tuple[str, ...], b: tuple[str, ...]):
    assert distance(a, b) == slow_distance(a, b)


@pytest.mark.parametrize(
    ("edits", "text"),
    [
        ([], "Not bad, at all."),
        ([Edit(0, "delete", "Not")], "bad, at all."),
        ([Edit(1, "delete", "bad")], "Not, at all."),
        ([Edit(1, "replace", "bad", "good")], "Not good, at all."),
        ([Edit(3, "insert", "", "really")], "Not bad, really at all."),
        ([Edit(1, "delete", "bad"), Edit(1, "insert", "", "so")], "Not so, at all."),
        ([Edit(at, "delete") for at in range(6)], ""),
    ],
)
def test_edits_keep_the_rest_of_the_text(edits: list[Edit], text: str):
    assert Words.of("Not bad, at all.").edited(edits) == text


def test_words_changed_counts_words_and_punctuation():
    assert words_changed("It is not bad.", "It is bad!") == 2


# ------------------------------------------------------------------------------------------------------ proposals


def test_the_filler_proposes_the_likeliest_whole_words():
    """Against one pass over the text with the mask written into it."""
    filler = filler_of(bundled(), None)
    text = "The film is good."
    ((proposed,),) = [filler.words(text, [((12, 16), False)], 5)]
    encoded = bundled().encode(["The film is [MASK]."])[0]
    at = encoded.tokens.index("[MASK]")
    hidden = forward(bundled(), bundled().batch([encoded]), hidden=True).hidden[-1]
    ranked = filler.head(hidden[0, at][None])[0].argsort(descending=True).tolist()
    spelled = bundled().spell(ranked[:40])  # pyright: ignore
    assert proposed == [w for w in spelled if w in proposed]
    assert len(proposed) == 5
    assert all(word.isalpha() for word in proposed)
    (inserted,) = filler.words(text, [((12, 16), True)], 5)
    assert inserted != proposed


def test_words_are_told_from_pieces_where_tokens_begin_with_a_space():
    model = build("roberta")
    ids = [i for i, word in enumerate(model.spell(range(len(model.tokenizer)))) if word in (" truly", " trul", "hear")]  # pyright: ignore
    assert len(ids) == 3
    assert sorted(Filler(model, lambda hidden: hidden)._whole_words(ids)) == ["trul", "truly"]


@pytest.mark.filterwarnings("ignore::salience.errors.TruncatedText")
def test_a_word_is_inserted_into_a_text_that_is_as_long_as_the_model_can_read():
    model = build("bert")
    text = "a film " * 100
    (encoded,) = model.encode([text])
    masked, at = Filler(model, lambda hidden: hidden)._masked(encoded, (2, 6), insert=True)  # pyright: ignore
    assert len(masked) == len(encoded)
    assert masked.ids[:at] == encoded.ids[:at]
    assert masked.ids[at] == model.replacements["mask"]
    assert masked.ids[at + 1 : -1] == encoded.ids[at:-2]
    assert masked.ids[-1] == encoded.ids[-1]
    assert len(model.batch([masked]).ids[0]) == len(encoded)


def test_the_log_probability_masks_every_token_in_turn():
    filler = filler_of(bundled(), None)
    (encoded,) = bundled().encode(["A fine film."])
    total = []
    for t, special in enumerate(encoded.special):
        if not special:
            batch = bundled().batch([encoded])
            batch.ids[0, t] = bundled().replacements["mask"]
            hidden = forward(bundled(), batch, hidden=True).hidden[-1]
            total.append(float(filler.head(hidden[0, t][None])[0].log_softmax(-1)[encoded.ids[t]]))
    assert filler.log_probability("A fine film.") == pytest.approx(sum(total) / len(total), abs=1e-4)


def test_a_model_without_a_head_names_the_alternatives():
    with pytest.raises(UnsupportedModel, match=r"--fill.*--candidates.*--edits delete"):
        counterfactual("sentiment_bilstm", "A fine film.")
    [result] = counterfactual("sentiment_bilstm", "A fine film.", edits=["delete"])
    assert all(edit.kind == "delete" for one in result.results for edit in one.edits)
    [result] = counterfactual("sentiment_bilstm", "A fine film.", edits=["replace"], candidates={"Fine": ["awful"]})
    assert [one.text for one in result.results] == ["A awful film."]


def test_a_causal_language_model_does_not_fill_in(tmp_path: Path):
    build("gpt2").save(tmp_path / "gpt2")
    with pytest.raises(UnsupportedModel, match="has no masked language model head"):
        counterfactual(bundled(), "A fine film.", fill=str(tmp_path / "gpt2"))


# ------------------------------------------------------------------------------------------------------ search


class _Table:
    """A judge of word sets: the probability of the second label is a sum over the edited words."""

    def __init__(self, weights: dict[tuple[int, str], float]) -> None:
        self.weights = weights

    def __call__(self, states):
        return {s: self._p(sum(self.weights[e.at, e.after] for e in s)) for s in states}

    @staticmethod
    def _p(x: float) -> torch.Tensor:
        return torch.tensor([1 - x, x])


def test_a_beam_search_finds_the_smallest_edit_and_greedy_follows_the_order():
    weights = {(at, word): value for at, row in enumerate([(0.1, 0.2), (0.3, 0.1), (0.6, 0.0)]) for word, value in
               zip(("a", "b"), row, strict=True)}  # fmt: skip
    options = {at: [Edit(at, "replace", "x", word) for word in "ab"] for at in range(3)}
    judge, goal = _Table(weights), Goal(0, None)
    beam = search(judge, goal, [0, 1, 2], options, Search(4, 3, 3))
    assert beam.reached[0] == (Edit(2, "replace", "x", "a"),)
    assert beam.steps == 1
    greedy = search(judge, goal, [0, 1, 2], options, GREEDY)
    assert greedy.steps == 3
    best = max(product("ab", repeat=3), key=lambda words: sum(weights[at, w] for at, w in enumerate(words)))
    assert [e.after for e in max(greedy.reached, key=len)] == [best[2]], "edits that were not needed are taken back"


def test_without_an_edit_that_flips_the_nearest_is_returned():
    options = {0: [Edit(0, "replace", "x", "a")], 1: [Edit(1, "replace", "x", "a")]}
    outcome = search(_Table({(0, "a"): 0.1, (1, "a"): 0.2}), Goal(0, 1), [0, 1], options, GREEDY)
    assert outcome.reached == ()
    assert [edit.at for edit in outcome.nearest] == [0, 1]


def test_the_last_word_is_never_deleted():
    options = {at: [Edit(at, "delete", "x")] for at in range(3)}
    outcome = search(_Table({(at, ""): 0.1 for at in range(3)}), Goal(0, 1), [2, 0, 1], options, GREEDY)
    assert [edit.at for edit in outcome.nearest] == [0, 2]


def test_equal_texts_are_judged_once(monkeypatch: pytest.MonkeyPatch):
    judge = Judge(bundled(), Words.of("so so good"))
    first = judge([(Edit(0, "delete", "so"),), (Edit(1, "delete", "so"),)])
    assert len(judge.known) == 1
    assert len({tuple(p.tolist()) for p in first.values()}) == 1


# ------------------------------------------------------------------------------------------------------ whole


@cache
def flipped() -> Counterfactuals:
    [result] = counterfactual(bundled(), "The film is not bad at all, but far too long.", to="positive")
    return result


def test_counterfactuals_are_judged_by_the_model_and_ranked():
    result = flipped()
    assert result.label == "negative"
    assert 1 <= len(result.results) <= 3
    for one in result.results:
        [e] = salience.explain(bundled(), one.text, "uniform", kind="probability")
        assert (e.target.label, e.value) == ("positive", pytest.approx(one.probability, abs=1e-5))
        assert one.changed == words_changed(result.text, one.text) == pytest.approx(one.minimality * 13)
        assert Words.of(result.text).edited(one.edits) == one.text
        assert one.fluency is not None
    ranks = [(one.changed, -(one.fluency or 0)) for one in result.results]
    assert ranks == sorted(ranks)
    assert len({one.text for one in result.results}) == len(result.results)
    assert json.loads(result.to_json())["flipped"] is True


def test_the_most_fluent_of_equally_small_edits_is_first_however_many_are_asked_for():
    """Against the log-probabilities of a language model that is written by hand."""

    class Hand:
        def log_probability(self, text: str) -> float:
            return {"x": -1.0, "a": -3.0, "b": -1.5, "c": -2.0, "d": 0.0}[text]

    def one(text: str, at: int, probability: float, changed: int = 1) -> Counterfactual:
        return Counterfactual(text, (Edit(at, "replace", "x", text),), "positive", probability, changed, changed / 4)

    every = [one("a", 0, 0.9), one("b", 1, 0.6), one("c", 1, 0.7), one("d", 2, 0.9, changed=2)]
    for count, texts in ((1, "c"), (2, "ca"), (3, "cad"), (4, "cbad")):
        best = best_of("x", every, Hand(), count)  # pyright: ignore
        assert sorted(e.text for e in best) == sorted(texts)
    assert [(e.text, e.fluency) for e in best_of("x", every, Hand(), 3)] == [("c", -1.0), ("a", -2.0), ("d", 1.0)]  # pyright: ignore


def test_a_word_that_is_deleted_or_replaced_is_the_same_word():
    kinds = [("delete", 0, 0.85), ("replace", 0, 0.9), ("insert", 0, 0.7), ("replace", 1, 0.8)]
    every = [Counterfactual(kind + str(at), (Edit(at, kind),), "positive", p, 1, 0.1) for kind, at, p in kinds]  # pyright: ignore
    assert [one.text for one in best_of("x", every, None, 3)] == ["replace0", "replace1", "insert0"]


def test_no_text_is_returned_twice():
    [result] = counterfactual(bundled(), "a too too fun film", edits=["delete"], method="occlusion", max_edits=1)
    assert [one.text for one in result.results] == ["a too fun film", "a too too fun"]


def test_a_text_that_is_cut_off_is_warned_about_once():
    text = "A film that is as long as it is good. " * 8
    with pytest.warns(TruncatedText) as caught:
        counterfactual(build("bert"), text, edits=["delete"], max_edits=1, method="gradient")
    assert len(caught) == 1


@pytest.mark.filterwarnings("ignore::salience.errors.TruncatedText")
def test_words_that_the_model_does_not_read_are_not_edited():
    """A random order of all words would be worse than any explanation because of them alone."""
    model, text = build("bert"), "a film " * 100
    (encoded,) = model.encode([text])
    problem = Problem.of(model, text, None, proposals_of(model, ["delete"], None, {}))
    assert len(problem.places) == sum(not special for special in encoded.special) < 200
    assert set(problem.options) == set(problem.places) == set(range(len(problem.places)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"to": "negative"}, "the text 'A bad film.' is already predicted 'negative'"),
        ({"edits": ["replace"], "candidates": {"good": ["bad"]}}, "none of its words has candidates"),
        ({"edits": ["replace"], "candidates": {"bad": ["Bad"]}}, "no edit"),
        ({"to": "postive"}, "Did you mean 'positive'"),
        ({"edits": ["swap"]}, "unknown kind of edit 'swap'"),
        ({"edits": []}, "no kind of edit"),
        ({"count": 0}, "count=0 must be at least 1"),
        ({"max_edits": 0}, "max_edits=0 must be at least 1"),
        ({"how": "bream"}, "Did you mean 'beam'"),
        ({"edits": ["delete"], "candidates": {"bad": ["good"]}}, "candidates replace words, but the edits are delete"),
    ],
)
def test_bad_requests_are_refused(arguments: dict, message: str):
    with pytest.raises(BadInput, match=message):
        counterfactual(bundled(), "A bad film.", **arguments)


def test_a_text_of_one_word_can_be_replaced_but_not_deleted():
    with pytest.raises(BadInput, match="without its only word there is no text"):
        counterfactual(bundled(), "Good", edits=["delete"])
    with pytest.raises(BadInput, match="no word to edit"):
        counterfactual(bundled(), "...")
    [result] = counterfactual(bundled(), "Good", edits=["replace"], candidates={"good": ["awful", "great"]})
    assert [one.text for one in result.results] == ["Awful"]
    [result] = counterfactual(bundled(), "Good", edits=["replace"], candidates={"good": ["great"]})
    assert not result.flipped
    assert result.nearest is not None
    assert result.nearest.probability > 0.5
    assert "no edit was found" in views.headline(result)


def test_words_are_inserted_before_words_with_candidates_too():
    proposals = proposals_of(bundled(), ["replace", "insert"], None, {"fine": ["poor"]})
    options = proposals.options(Words.of("A fine film."), [1])
    assert {edit.after for edit in options[1] if edit.kind == "replace"} == {"poor"}
    assert any(edit.kind == "insert" for edit in options[1])


def test_a_language_model_has_no_decision_to_change():
    with pytest.raises(BadInput, match="no decision to change"):
        counterfactual(build("gpt2_lm"), "a film", edits=["delete"])


def test_views_mark_edits_without_colour_alone():
    result = flipped()
    parts = list(views.parts("not bad", [Edit(1, "replace", "bad", "good"), Edit(0, "insert", "", "so")]))
    assert [p for p in parts if p[0]] == [("so", "new"), (" ", ""), ("not ", ""), ("bad", "old"), ("good", "new")]
    page = views.page([result])
    assert "<del>" in page
    assert "<ins>" in page or all(e.kind == "delete" for one in result.results for e in one.edits)
    assert "<script" not in page
    assert "<del>" in result._repr_html_()


# ------------------------------------------------------------------------------------------------------ a data set


def test_a_study_counts_edits_in_the_order_of_each_method_and_resumes(tmp_path: Path):
    texts = ["A fine film .", "The plot is a mess .", "Good fun ."]
    arguments = {"edits": ["delete"], "out": tmp_path / "edits"}
    study = counterfactual_data(bundled(), texts, ["occlusion"], **arguments)
    assert list(study.results) == ["occlusion", "random"]
    assert study.results["random"].against_random is None
    assert study.results["occlusion"].edits.n == 3
    file = tmp_path / "edits" / "text-000001.json"
    stored = json.loads(file.read_text())
    stored["occlusion"]["flipped"] = False
    file.write_text(json.dumps(stored))
    again = counterfactual_data(bundled(), texts, ["occlusion"], **arguments)
    expected = (3 * study.results["occlusion"].flip_rate.mean - 1) / 3
    assert again.results["occlusion"].flip_rate.mean == pytest.approx(expected), "saved texts are not edited again"
    with pytest.raises(BadInput, match=r"other settings \(changed: seed\)"):
        counterfactual_data(bundled(), texts, ["occlusion"], **arguments, seed=1)
    file.write_text("{")
    with pytest.raises(BadInput, match="damaged"):
        counterfactual_data(bundled(), texts, ["occlusion"], **arguments)
    assert "random" in views.study_page(study)
    assert len(views.study_notes(study)) == 3


def test_edits_of_people_are_read_from_a_file_and_judged(tmp_path: Path):
    file = tmp_path / "pairs.csv"
    file.write_text("original,edited\nA fine film.,An awful film.\nA bad film.,A bad movie.\n")
    data = source(file, text="original", pair="edited")
    study = counterfactual_data(bundled(), data, ["occlusion"], edits=["delete"])
    people = study.results["people"]
    assert people.flip_rate.mean == 0.5
    assert people.changed.mean == pytest.approx(2 / 4), "two of three words and a full stop"
    assert isinstance(filler_of(bundled(), None), Filler)


def test_texts_without_a_word_to_edit_are_left_out_of_a_study():
    study = counterfactual_data(bundled(), ["A fine film.", "...", "Good"], "gradient", edits=["delete"])
    assert (study.texts, study.left_out, study.results["random"].edits.n) == (1, 2, 1)
    assert "left out: 2" in views.study_notes(study)[-1]
    with pytest.raises(BadInput, match="none of 2 texts has a word"):
        counterfactual_data(bundled(), ["...", "Good"], "gradient", edits=["delete"])
