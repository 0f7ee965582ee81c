"""Shapley values: what each unit adds to the prediction, averaged over the orders in which units are added."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from salience.core.erasure import Erasure, usual
from salience.core.randomness import generators
from salience.core.rows import Erased, erased_values
from salience.core.settings import Pairs, Positive, Seed
from salience.core.types import Attribution, Batch, Model, Spells, Targets
from salience.errors import UnsupportedModel, choose
from salience.methods.games import Shares, adaptive, fixed, owen
from salience.methods.perturbation import Unit, coalitions, spread, unit_numbers
from salience.methods.trees import Tree, balanced, of_text

Result = TypeVar("Result")
"""What a game returns: the value of every unit, or of every pair."""


def kernel_shap(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    tolerance: Positive | None = 0.05,
    max_samples: Pairs | None = None,
    samples: Pairs | None = None,
    erase: Erasure | None = None,
    unit: Unit = "token",
    seed: Seed = 0,
) -> Attribution:
    """Shapley values by weighted least squares: what each token adds, averaged over all orders of adding tokens.

    The number of coalitions is adaptive: random coalitions and their complements are added until, with 95 % confidence,
    the error of every score is at most ``tolerance`` times the text's largest score, or ``max_samples`` (2n + 2048 for
    a text of n units) are used; the gap ``error`` is the bound for the worst score. With ``samples``, or without a
    tolerance, the number is fixed, and the sizes with the largest weights are enumerated. All 2^n − 2 coalitions give
    exact values. Scores sum to f(x) − f(everything erased); the gap ``efficiency`` is the rounding error of that sum.

    Paper: Lundberg & Lee 2017, arXiv:1705.07874, theorem 2; stopping rule: Covert & Lee 2021, arXiv:2012.01536
    Cost: 130 to 2n + 2050 forward, about 500 for a sentence; with samples: samples + 2
    Needs: nothing
    """
    erase = erase or usual(model)
    units = unit_numbers(batch, unit)
    digits = max(torch.finfo(model.words.weight.dtype).eps, torch.finfo(torch.float32).eps)
    games = [
        fixed(n, samples or max_samples or 2 * n + 2048, rng)
        if samples or tolerance is None
        else adaptive(n, tolerance, max_samples or 2 * n + 2048, rng, digits)
        for n, rng in zip((units.amax(1) + 1).tolist(), generators(batch, seed), strict=True)
    ]
    result = _collected(units, play(model, batch, target, units, games, erase))
    errors = {} if samples or tolerance is None else {"error": result.errors}
    return Attribution(
        result.scores,
        gaps={"efficiency": result.efficiency_gap, **errors},
        settings={"erase": erase, "samples": result.evals - 2},
    )


Hierarchy = Literal["neighbours", "balanced"]


def partition_shap(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    max_evals: Pairs = 500,
    tree: Hierarchy = "neighbours",
    erase: Erasure | None = None,
    unit: Unit = "token",
) -> Attribution:
    """Owen values: Shapley values over the orders that keep the clusters of a tree of neighbouring tokens together.

    A cluster T with context S divides f(S ∪ T) − f(S) between its two halves, averaged over their two orders. The
    values are exact if ``max_evals`` allows all splits; otherwise the cluster with the largest gain is split first, and
    the gain of an unsplit cluster is divided equally among its units. Tree and order are those of the package shap.
    Scores sum to f(x) − f(everything erased); the gap ``efficiency`` is the rounding error of that sum.

    Paper: Owen 1977, "Values of games with a priori unions"; for trees Lundberg's package shap, PartitionExplainer
    Cost: up to max_evals forward, about 2/3 n² for a balanced tree of n units
    Needs: nothing
    """
    erase = erase or usual(model)
    units = unit_numbers(batch, unit)
    by_text = trees(model, batch, units, tree)
    result = _collected(units, play(model, batch, target, units, [owen(t, max_evals) for t in by_text], erase))
    return Attribution(
        result.scores, gaps={"efficiency": result.efficiency_gap}, settings={"erase": erase, "evals": result.evals}
    )


class _Collected(NamedTuple):
    """The results of all games of a batch."""

    scores: Float[Tensor, "b t"]
    efficiency_gap: Float[Tensor, " b"]
    evals: Int[Tensor, " b"]
    errors: Float[Tensor, " b"]


def _collected(units: Int[Tensor, "b t"], results: Sequence[Shares]) -> _Collected:
    """Spread the values over tokens, and compare their sum with f(x) − f(everything erased)."""
    scores = spread(units, [r.phi for r in results])
    expected = torch.stack([r.whole - r.nothing for r in results])
    evals, errors = torch.tensor([r.evals for r in results]), torch.tensor([r.error for r in results])
    return _Collected(scores, scores.sum(1).cpu() - expected, evals, errors)


def play(
    model: Model,
    batch: Batch,
    target: Targets,
    units: Int[Tensor, "b t"],
    games: Sequence[Generator[Any, Any, Result]],
    erase: str,
) -> list[Result]:
    """Play the game of every text to its end. In each round, the coalitions of all running games share passes."""
    results: dict[int, Result] = {}
    answers: dict[int, Tensor | None] = dict.fromkeys(range(len(games)))
    while answers:
        requested = {
            text: z for text, y in answers.items() if (z := _next_coalitions(games[text], y, text, results)) is not None
        }
        answers = dict(zip(requested, _values(model, batch, target, units, requested, erase), strict=True))
    return [results[text] for text in range(len(games))]


def _next_coalitions(
    game: Generator[Any, Any, Result], y: Tensor | None, text: int, results: dict[int, Result]
) -> Tensor | None:
    """Return the coalitions that the game requests next. When it ends, store its result and return None."""
    try:
        return next(game) if y is None else game.send(y)
    except StopIteration as stop:
        results[text] = stop.value
        return None


def _values(
    model: Model,
    batch: Batch,
    target: Targets,
    units: Int[Tensor, "b t"],
    requested: Mapping[int, Bool[Tensor, "_ _"]],
    erase: str,
) -> Sequence[Float[Tensor, " _"]]:
    """f of every coalition of some of the texts. The only function here that runs the model."""
    if not requested:
        return ()
    texts = torch.tensor(list(requested), device=units.device)
    rows = coalitions(units[texts], list(requested.values()))
    y = erased_values(model, batch, target, Erased(texts[rows.text], rows.where), erase)
    return y.cpu().double().split([len(z) for z in requested.values()])


def trees(model: Model, batch: Batch, units: Int[Tensor, "b t"], kind: str) -> list[Tree]:
    """Return a tree over the units of every text."""
    if choose(kind, get_args(Hierarchy), "tree") == "balanced":
        return [balanced(n) for n in (units.amax(1) + 1).tolist()]
    if not isinstance(model, Spells):
        raise UnsupportedModel(f"{model.name} has no method spell, which tree='neighbours' needs; use tree='balanced'")
    words = unit_numbers(batch, "word") if batch.encoded else torch.full_like(units, -1)
    lengths = batch.mask.sum(1).tolist()
    rows = zip(batch.ids.tolist(), units.tolist(), words.tolist(), lengths, strict=True)
    return [of_text(model.spell(ids[:n]), numbers[:n], of[:n]) for ids, numbers, of, n in rows]
