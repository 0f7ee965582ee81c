"""kernel_shap and partition_shap against slow literal versions, captum and the package shap."""

import json
import random
from functools import cache
from itertools import combinations, permutations
from math import comb, factorial
from typing import Any

import pytest
import torch
from captum.attr import KernelShap
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import salience
from owen import ODD, STORED, sentences
from owen import TEXTS as ENGLISH
from salience.core.erasure import replaced
from salience.core.passes import forward, resolve
from salience.core.target import Target
from salience.core.types import Batch, Model, Targets
from salience.errors import BadInput, UnsupportedModel
from salience.methods import games, shapley
from salience.methods.games import adaptive, owen
from salience.methods.perturbation import unit_numbers
from salience.methods.shapley import kernel_shap, partition_shap, play, trees
from salience.methods.trees import Piece, Tree, _affinity, _before, balanced, pruned
from salience.models.huggingface import HuggingFace
from shapes import TEXTS, build


@cache
def bundled() -> Model:
    return salience.load()


@cache
def stored() -> dict[str, Any]:
    return json.loads(STORED.read_text("utf-8"))


def prepared(model: Model, texts: tuple[str, ...] = TEXTS, target: Target | None = None) -> tuple[Batch, Targets]:
    batch = model.batch(model.encode(texts))
    return batch, resolve(model, [target or Target()], forward(model, batch).logits)


def value(model: Model, text: str, column: int, missing: list[int], kind: str) -> float:
    """f of one text without some tokens: one row, one pass."""
    batch = model.batch(model.encode([text]))
    where = torch.zeros_like(batch.mask)
    where[0, missing] = True
    return float(forward(model, batch, embeddings=replaced(model, batch, where, kind)).logits[0, column])


def content(model: Model, text: str) -> list[int]:
    (encoded,) = model.encode([text])
    return [i for i, special in enumerate(encoded.special) if not special]


def close(result: Tensor, expected: Any, scale: float = 1.0, tolerance: float = 1e-5) -> bool:
    expected = torch.as_tensor(expected, dtype=result.dtype)
    return bool((result - expected).abs().max() <= tolerance * max(scale, float(expected.abs().max())))


def on_embeddings(model: Model, batch: Batch, column: int) -> Any:
    """The model as captum sees it: embeddings of one text, repeated, to one number each."""

    def f(embeddings: Tensor) -> Tensor:
        rows = batch.take(torch.zeros(len(embeddings), dtype=torch.long))
        return forward(model, rows, embeddings=embeddings).logits[:, column]

    return f


def literal(v: dict[frozenset[int], float], n: int) -> list[float]:
    """φ_i = Σ_S |S|! (n − |S| − 1)! / n! (v(S ∪ i) − v(S)), literally."""
    result = [0.0] * n
    for i in range(n):
        others = [j for j in range(n) if j != i]
        for size in range(n):
            weight = factorial(size) * factorial(n - size - 1) / factorial(n)
            for s in combinations(others, size):
                result[i] += weight * (v[frozenset(s) | {i}] - v[frozenset(s)])
    return result


@pytest.mark.parametrize(
    ("shape", "text"),
    [("bert", "A fine film."), ("pooled_bilstm", "it is a truly fine mess ."), ("qwen3", "Good!")],
)
def test_kernel_shap_enumerated_gives_shapley_values(shape: str, text: str):
    model = build(shape)
    batch, target = prepared(model, (text,))
    tokens, column = content(model, text), int(target.labels[0])
    assert 2 <= len(tokens) <= 8
    kind = "mask" if "mask" in model.replacements else "mean"
    everything = [frozenset(s) for k in range(len(tokens) + 1) for s in combinations(range(len(tokens)), k)]
    v = {s: value(model, text, column, [t for i, t in enumerate(tokens) if i not in s], kind) for s in everything}
    result = kernel_shap(model, batch, target)
    assert close(result.scores[0, tokens], literal(v, len(tokens)), max(map(abs, v.values())))
    assert int(result.settings["samples"][0]) == 2 ** len(tokens) - 2
    assert abs(float(result.gaps["efficiency"])) < 1e-5 * max(1, abs(v[everything[-1]]))


@pytest.mark.parametrize("n", range(1, 13))
def test_all_coalitions_give_shapley_values_whatever_their_number(n: int):
    v = torch.randn(2**n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    z, w = games._shapley_plan(n, 2**n, torch.Generator())
    phi = games._constrained(z, w, v[(z.long() << torch.arange(n)).sum(1)], v[-1], v[0])
    assert close(phi, by_table(v, n), tolerance=1e-9)


def by_table(v: Tensor, n: int) -> Tensor:
    """Shapley values of all 2^n values at once: coalitions are the bits of their place."""
    s = torch.arange(2**n)
    sizes = (s[:, None] >> torch.arange(n) & 1).sum(1)
    weights = torch.tensor([1 / (n * comb(n - 1, k)) if k < n else 0 for k in sizes.tolist()], dtype=torch.float64)
    without = [s[s >> i & 1 == 0] for i in range(n)]
    return torch.stack([(weights[t] * (v[t | 1 << i] - v[t])).sum() for i, t in enumerate(without)])


def test_kernel_shap_agrees_with_captum():
    model = build("pooled_mlp")
    batch, target = prepared(model, ("it is a truly fine mess",))
    x = model.embed(batch)
    mask = torch.arange(batch.width)[None, :, None].expand_as(x)
    theirs = KernelShap(on_embeddings(model, batch, int(target.labels[0]))).attribute(
        x, baselines=0, feature_mask=mask, n_samples=2000, perturbations_per_eval=50
    )
    ours = kernel_shap(model, batch, target, erase="zero").scores
    assert close(ours, theirs[..., 0], scale=0.0, tolerance=2e-2)  # captum draws its coalitions with replacement


def test_kernel_shap_sampled_comes_near_the_exact_values_and_keeps_efficiency():
    model = build("pooled_bilstm")
    text = "it is a truly fine film of the heart and"
    batch, target = prepared(model, (text,))
    exact = kernel_shap(model, batch, target).scores
    few = [kernel_shap(model, batch, target, samples=m) for m in (60, 400)]
    errors = [float((result.scores - exact).norm() / exact.norm()) for result in few]
    assert 0 < errors[1] < errors[0] < 0.5
    for result in few:
        assert float(result.scores.sum()) == pytest.approx(float(exact.sum()), abs=1e-5)
        assert int(result.settings["samples"][0]) <= 400


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 14), st.integers(2, 600), st.integers(0, 5))
def test_a_plan_is_paired_without_repeats_and_weighted_by_the_kernel(n: int, samples: int, seed: int):
    z, w = games._shapley_plan(n, samples, torch.Generator().manual_seed(seed))
    rows = {tuple(row) for row in z.tolist()}
    assert len(rows) == len(z) <= samples
    assert all(0 < sum(row) < n for row in rows)
    assert {tuple(not x for x in row) for row in rows} == rows
    if 2**n - 2 <= samples:
        assert len(z) == 2**n - 2
        for row, weight in zip(z.tolist(), w.tolist(), strict=True):
            s = sum(row)
            assert weight == pytest.approx((n - 1) / (comb(n, s) * s * (n - s)))


def table(n: int, seed: int, roughness: float = 1.0) -> Tensor:
    """A value for every coalition: the sum of its units' own, and noise that no unit has by itself."""
    rng = torch.Generator().manual_seed(seed)
    own = torch.randn(n, generator=rng, dtype=torch.float64)
    kept = (torch.arange(2**n)[:, None] >> torch.arange(n) & 1).double()
    return kept @ own + roughness * torch.randn(2**n, generator=rng, dtype=torch.float64)


def looked_up(v: Tensor) -> Any:
    return lambda s: float(v[sum(1 << i for i in s)])


@pytest.mark.parametrize("n", range(1, 9))
def test_adaptive_coalitions_are_exhaustive_if_necessary(n: int):
    v = table(n, n)
    result = answered(adaptive(n, 1e-9, 2**n, torch.Generator()), looked_up(v))
    assert close(result.phi, by_table(v, n), tolerance=1e-9)
    assert (result.evals, result.error) == (2**n, 0.0)


def test_the_error_is_below_its_estimate_in_19_texts_of_20_and_the_estimate_below_the_tolerance():
    held, used = [], []
    for seed in range(60):
        v = table(10, seed, roughness=0.3)
        result = answered(adaptive(10, 0.1, 4000, torch.Generator().manual_seed(seed)), looked_up(v))
        exact = by_table(v, 10)
        held.append(float((result.phi - exact).abs().max()) <= result.error)
        used.append(result.evals)
        assert result.error <= 0.1 * float(result.phi.abs().max())
        assert float(result.phi.sum()) == pytest.approx(float(v[-1] - v[0]))
    assert sum(held) >= 0.9 * len(held)
    assert min(used) == 2 + 2 * games.FIRST < max(used), "no text needed more than another: the test shows little"


def test_a_linear_or_constant_game_stops_at_once():
    v = table(10, 0, roughness=0.0)
    for values in (v, torch.full_like(v, 3.0), torch.zeros_like(v)):
        result = answered(adaptive(10, 0.01, 4000, torch.Generator(), digits=1e-7), looked_up(values))
        assert result.evals == 2 + 2 * games.FIRST
        assert close(result.phi, by_table(values, 10), tolerance=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 40), st.integers(0, 1000), st.integers(1, 1000))
def test_strata_hold_no_pair_twice_and_grow_by_appending(n: int, seed: int, pairs: int):
    most = max(n + 1, pairs)
    strata = games._strata(n, most, torch.Generator().manual_seed(seed))
    rows = {tuple(row) for stratum in strata for z in (stratum.z, ~stratum.z) for row in z.tolist()}
    assert len(rows) == 2 * sum(len(stratum.z) for stratum in strata)
    assert sum(stratum.pairs for stratum in strata) == 2 ** (n - 1) - 1
    sizes = [(len(stratum.z), stratum.mass) for stratum in strata]
    fewer, more = games._allotted(sizes, pairs // 2), games._allotted(sizes, pairs)
    assert all(a <= b for a, b in zip(fewer, more, strict=True))
    assert sum(more) <= max(pairs, len(strata))


def test_kernel_shap_stops_by_itself_and_reports_its_error():
    model = bundled()
    texts = ENGLISH[:3] * 2
    exact = salience.explain(model, texts, "kernel_shap", tolerance=None, max_samples=3000)
    result = salience.explain(model, texts, "kernel_shap")
    for one, best in zip(result, exact, strict=True):
        off = max(abs(a - b) for a, b in zip(one.scores, best.scores, strict=True))
        assert off <= one.gaps["error"] + 1e-6 <= 1e-6 + 0.05 * max(map(abs, one.scores))
        assert one.settings["samples"] < 2048
        assert abs(one.gaps["efficiency"]) < 1e-5
        assert "error" not in best.gaps


def test_the_number_of_samples_is_as_set_and_the_maximum_without_a_tolerance():
    model = build("bert")
    batch, target = prepared(model, (TEXTS[1],))
    assert int(kernel_shap(model, batch, target, samples=80).settings["samples"][0]) <= 80
    plain, n = kernel_shap(model, batch, target, tolerance=None, max_samples=80), int(batch.content.sum())
    assert torch.equal(plain.scores, kernel_shap(model, batch, target, samples=80).scores)
    with pytest.raises(
        BadInput, match=f"max_samples=10 is too few to know the error of {n} scores; use at least {2 * n + 2}"
    ):
        kernel_shap(model, batch, target, max_samples=10)
    with pytest.raises(BadInput, match="tolerance of kernel_shap takes a number above 0 or nothing"):
        salience.explain(model, TEXTS[1], "kernel_shap", tolerance=0.0)


def answered(game: Any, v: Any) -> Any:
    """A game play against a function of sets."""
    y = None
    try:
        while True:
            z = next(game) if y is None else game.send(y)
            y = torch.tensor([v(frozenset(row.nonzero()[:, 0].tolist())) for row in z], dtype=torch.float64)
    except StopIteration as end:
        return end.value


@pytest.mark.parametrize(("game", "place", "tolerance"), [("fixed", 1, None), ("adaptive", 2, 0.05)])
def test_the_usual_maximum_is_that_of_shap(monkeypatch: pytest.MonkeyPatch, game: str, place: int, tolerance: Any):
    """2 n + 2048, so many passes that the game is not played here."""

    class AskedError(Exception):
        pass

    def asked(*arguments: Any) -> None:
        raise AskedError(arguments[0], arguments[place])

    monkeypatch.setattr(shapley, game, asked)
    model = build("bert")
    batch, target = prepared(model, (TEXTS[0],))
    with pytest.raises(AskedError) as error:
        kernel_shap(model, batch, target, tolerance=tolerance)
    n = int(batch.content.sum())
    assert error.value.args == (n, 2 * n + 2048)


def together(tree: Tree, order: tuple[int, ...]) -> bool:
    """Whether every cluster's leaves come one after the other."""
    places = {leaf: place for place, leaf in enumerate(order)}
    for bits in tree.members:
        inside = [places[i] for i in range(tree.leaves) if bits >> i & 1]
        if max(inside) - min(inside) >= len(inside):
            return False
    return True


def by_orders(tree: Tree, v: Any) -> list[float]:
    """Owen values, literally: what each unit adds, averaged over all orders that keep every cluster together."""
    orders = [order for order in permutations(range(tree.leaves)) if together(tree, order)]
    result = [0.0] * tree.leaves
    for order in orders:
        for place, unit in enumerate(order):
            before = frozenset(order[:place])
            result[unit] += (v(before | {unit}) - v(before)) / len(orders)
    return result


def some_tree(n: int, seed: int) -> Tree:
    """Neighbours joined at random."""
    rng = random.Random(seed)
    groups, children = list(range(n)), []
    while len(groups) > 1:
        at = rng.randrange(len(groups) - 1)
        children.append((groups[at], groups[at + 1]))
        groups[at : at + 2] = [n + len(children) - 1]
    return Tree(n, tuple(children))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(0, 1000))
def test_owen_values_are_the_mean_over_the_orders_that_keep_clusters_together(n: int, seed: int):
    tree = some_tree(n, seed)
    values = torch.randn(2**tree.leaves, generator=torch.Generator().manual_seed(seed)).tolist()

    def v(s: frozenset[int]) -> float:
        return values[sum(1 << i for i in s)]

    result = answered(owen(tree, 10_000), v)
    assert result.phi.tolist() == pytest.approx(by_orders(tree, v), abs=1e-9)
    assert result.evals == 2 + 2 * tree.splits


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(2, 80), st.integers(0, 1000))
def test_owen_values_are_complete_within_any_number_of_evaluations(n: int, budget: int, seed: int):
    tree = some_tree(n, seed)
    values = torch.randn(2**tree.leaves, generator=torch.Generator().manual_seed(seed)).tolist()
    result = answered(owen(tree, budget), lambda s: values[sum(1 << i for i in s)])
    assert float(result.phi.sum()) == pytest.approx(values[-1] - values[0], abs=1e-9)
    assert result.evals <= budget + budget % 2


def test_with_two_evaluations_all_units_share_alike():
    result = answered(owen(balanced(5), 2), lambda s: float(len(s) == 5))
    assert result.phi.tolist() == pytest.approx([0.2] * 5)
    assert result.evals == 2


@pytest.mark.parametrize("text", ENGLISH)
def test_equals_shap_as_users_call_it(text: str):
    (result,) = salience.explain(
        bundled(), text, "partition_shap", target="positive", kind="probability", max_evals=5000
    )
    assert close(torch.tensor(result.scores), stored()["default"]["values"][text], scale=0.0)


def test_equals_shap_within_every_budget():
    model = bundled()
    for case in stored()["budgets"]:
        batch, target = prepared(model, (case["text"],), Target("positive", kind="probability"))
        tree = Tree(len(case["values"]), tuple(map(tuple, case["children"])))
        units = unit_numbers(batch, "token")
        (result,) = play(model, batch, target, units, [owen(tree, case["budget"])], "mask")
        assert close(result.phi, case["values"], scale=0.1), case
        assert result.evals == case["evals"]


def clusters(tree: Tree) -> set[int]:
    return set(tree.members)


def merge_score(one: list[Piece], other: list[Piece], open_brackets: set[int]) -> int:
    """The score of shap.maskers.TokenGroup, with its numbers; two groups of pieces, and the pieces not yet balanced."""
    ends = [one[0].separator, other[-1].separator]
    score = 20 if other[0].inside else 0
    if other[0].text == "'" and (len(other) == 1 or (len(other) == 2 and other[1].text in ("t", "s"))):
        score += 15
    if one[-1].text == "'" and other[0].text in ("t", "s"):
        score += 15
    if ends.count(True) == 1:
        score -= 1000
    score -= 100 * (other[0].text == "(" and id(other[0]) in open_brackets)
    score -= 100 * (one[-1].text == ")" and id(one[-1]) in open_brackets)
    score -= 2 if one[0].text == "(" else 0
    score -= 2 if {one[-1].text, other[0].text} & {"but", "and", "or"} else 0
    score -= {",": 10, ".": 20, "?": 20, "!": 20}.get(one[-1].text, 0)
    if other[0].text in (",", ".", "?", "!"):
        score -= 1 if len(other) == 1 else {",": 10}.get(other[0].text, 20)
    return score - len(one) - len(other)


PIECES = st.builds(
    Piece, st.sampled_from(["'", "t", "s", "(", ")", "but", ",", ".", "film"]), st.booleans(), st.booleans()
)


@given(st.lists(PIECES, min_size=1, max_size=3), st.lists(PIECES, min_size=1, max_size=3), st.booleans())
def test_neighbours_are_joined_by_the_scores_of_shap(one: list[Piece], other: list[Piece], balanced: bool):
    pieces = [Piece(p.text, p.inside, p.separator) for p in (*one, *other)]  # no object twice
    one, other = pieces[: len(one)], pieces[len(one) :]
    matched = set(range(len(pieces))) if balanced else set[int]()
    open_brackets = set() if balanced else set(map(id, pieces))
    middle = len(one)
    assert _affinity(pieces, matched, (0, middle), (middle, len(pieces))) == merge_score(one, other, open_brackets)


def test_a_balanced_tree_halves_its_leaves():
    assert balanced(1) == Tree(1, ())
    assert balanced(4) == Tree(4, ((0, 1), (2, 3), (4, 5)))
    assert balanced(5) == Tree(5, ((0, 1), (3, 4), (2, 6), (5, 7)))
    assert [balanced(n).splits for n in (2, 4, 8)] == [1, 5, 21]


def test_a_token_continues_the_word_of_the_one_before_it():
    spelled, words = ["un", "like", "ly", "[SEP]", "[SEP]"], [3, 3, 2, -1, -1]
    each = [_before(i, spelled, words) for i in range(5)]
    assert each == [("", False), ("un", True), ("like", False), ("ly", False), ("[SEP]", False)]


def test_trees_are_those_of_shaps_text_masker():
    model = bundled()
    for text in sentences() + ODD:
        batch = model.batch(model.encode([text]))
        (tree,) = trees(model, batch, unit_numbers(batch, "token"), "neighbours")
        theirs = Tree(batch.width, tuple(map(tuple, stored()["default"]["trees"][text])))
        same = clusters(tree) == clusters(pruned(theirs, range(1, batch.width - 1)))
        # shap joins the pieces of a word only before a to z, and so tears "crêpes" apart.
        assert same or not text.isascii(), text


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("kind", ["neighbours", "balanced"])
def test_a_tree_has_every_unit_of_its_text(unit: str, kind: str):
    for shape in ("bert", "gpt2", "pooled_bilstm", "qwen3_lm"):
        model = build(shape)
        batch, _ = prepared(model)
        units = unit_numbers(batch, unit)
        for tree, row in zip(trees(model, batch, units, kind), units, strict=True):
            assert tree.leaves == int(row.max()) + 1
            assert tree.members[-1] == 2**tree.leaves - 1


def test_the_texts_of_a_pair_are_the_halves_of_its_tree():
    model = build("bert")
    batch = model.batch(model.encode([("a fine film , and .", "no , it is a mess")]))
    units = unit_numbers(batch, "token")
    (tree,) = trees(model, batch, units, "neighbours")
    first = int(units[0, : int(batch.special[0].nonzero()[1])].max()) + 1
    assert 2**first - 1 in {tree.members[child] for child in tree.children[-1]}


def test_words_are_joined_before_anything_else():
    model = build("bert")
    batch = model.batch(model.encode(["a splendidly unlikely fox , and a dog"]))
    (tree,) = trees(model, batch, unit_numbers(batch, "token"), "neighbours")
    words = unit_numbers(batch, "word")[0]
    groups = [[i for i, w in enumerate(words[batch.content[0]].tolist()) if w == word] for word in range(8)]
    assert max(map(len, groups)) > 1
    assert all(sum(1 << i for i in group) in tree.members for group in groups)


def test_partition_shap_of_words_shares_each_word_by_its_tokens():
    model = build("bert")
    batch, target = prepared(model)
    result = partition_shap(model, batch, target, unit="word", max_evals=10_000)
    units = unit_numbers(batch, "word")
    for row, numbers in zip(result.scores, units, strict=True):
        for unit in range(int(numbers.max()) + 1):
            assert row[numbers == unit].unique().numel() == 1
    assert result.gaps["efficiency"].abs().max() < 1e-5


class Mute(HuggingFace):
    spell = None


def test_a_model_that_does_not_spell_needs_a_balanced_tree():
    whole = build("bert")
    model = Mute(whole.module, whole.tokenizer, whole.name)
    batch, target = prepared(model)
    with pytest.raises(UnsupportedModel, match="use tree='balanced'"):
        partition_shap(model, batch, target)
    assert partition_shap(model, batch, target, tree="balanced", max_evals=20).scores.isfinite().all()
    with pytest.raises(BadInput, match=r"unknown tree 'balance'. Did you mean 'balanced'"):
        trees(model, batch, unit_numbers(batch, "token"), "balance")
