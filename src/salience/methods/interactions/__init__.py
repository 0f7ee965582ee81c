"""Interactions: what two units of a text do together that neither does alone.

An interaction method has the signature of a method and returns one :class:`Pairwise` per text.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Annotated, Any, cast

import torch

from salience.core.erasure import Erasure, usual
from salience.core.randomness import generators
from salience.core.settings import Count, Range, Seed
from salience.core.types import Attribution, Batch, Model, Targets
from salience.errors import choose
from salience.methods.interactions.games import (
    PairGame,
    Pairwise,
    archipelago_game,
    index_game,
    occluded,
)
from salience.methods.interactions.hessians import integrated_hessians
from salience.methods.perturbation import Unit, spread, unit_numbers
from salience.methods.shapley import play

__all__ = [
    "INTERACTIONS",
    "Pairwise",
    "archipelago",
    "by_token",
    "find_interaction",
    "integrated_hessians",
    "pairwise_occlusion",
    "shapley_interaction",
    "shapley_taylor",
]


Orders = Annotated[int, Range(4, 1_000_000)]
"""A number of random orders. They are drawn in pairs, and the error is estimated from two pairs or more."""


def pairwise_occlusion(
    model: Model, batch: Batch, target: Targets, /, *, erase: Erasure | None = None, unit: Unit = "word"
) -> list[Pairwise]:
    """What erasing two units changes beyond erasing each: f(x) − f(x without i) − f(x without j) + f(x without both).

    The main effect is the occlusion score f(x) − f(x without i). Nothing is promised about the sum.

    Paper: occlusion Li et al. 2016, arXiv:1612.08220; as a second difference Grabisch & Roubens 1999
    Cost: 1 forward per pair and per unit; less on causal models
    Needs: nothing
    """
    games = [occluded(n) for n in _counts(batch, unit)]
    return _played(model, batch, target, games, erase, unit)


def shapley_taylor(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    orders: Orders | None = None,
    erase: Erasure | None = None,
    unit: Unit = "word",
    seed: Seed = 0,
) -> list[Pairwise]:
    """The Shapley-Taylor index of order 2: I_ij = 2/n Σ_S δ_ij F(S) / C(n − 1, |S|), with main effects F(i) − F(∅).

    Main effects and interactions sum to f(x) − f(everything erased). Exact for up to 12 units. Of longer texts, or with
    ``orders``, that many random orders of the units are drawn, 16 by default: the sum still holds, and the gap
    ``error`` is half the width of the 95 % interval of the least certain interaction.

    Paper: Sundararajan et al. 2020, arXiv:1902.05622, eq. 3 and theorem 2
    Cost: 2^n forward for up to 12 units; about orders · n² / 2 beyond
    Needs: nothing
    """
    rngs = generators(batch, seed)
    games = [index_game(n, "taylor", orders, rng) for n, rng in zip(_counts(batch, unit), rngs, strict=True)]
    return _played(model, batch, target, games, erase, unit)


def shapley_interaction(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    orders: Orders | None = None,
    erase: Erasure | None = None,
    unit: Unit = "word",
    seed: Seed = 0,
) -> list[Pairwise]:
    """The Shapley interaction index: δ_ij F(S) averaged over the sizes of S, then over all S without i and j.

    The main effect is the Shapley value less half of the unit's interactions, as in the interaction values of the
    package shap, so that all sum to f(x) − f(everything erased). Exact for up to 12 units, from random orders beyond,
    as in :func:`shapley_taylor`.

    Paper: Grabisch & Roubens 1999; the main effects Lundberg et al. 2020, arXiv:1802.03888
    Cost: 2^n forward for up to 12 units; about orders · n² beyond
    Needs: nothing
    """
    rngs = generators(batch, seed)
    games = [index_game(n, "shapley", orders, rng) for n, rng in zip(_counts(batch, unit), rngs, strict=True)]
    return _played(model, batch, target, games, erase, unit)


def archipelago(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    top: Count | None = None,
    erase: Erasure | None = None,
    unit: Unit = "word",
) -> list[Pairwise]:
    """Pairs that interact in an empty text or in the whole one, merged to groups: ½ δ_ij F(∅)² + ½ δ_ij F(N − ij)².

    Strengths have no sign. The ``top`` pairs (by default a quarter of the number of units) are merged where they share
    a unit, and the effect of a group S is F(S) − F(∅), shared equally by its units. The gap ``additivity`` is how far
    the effects of all groups and single units are from f(x) − f(everything erased): 0 if the groups do not interact.

    Paper: Tsang et al. 2020, arXiv:2006.10965, eq. 5 and 6
    Cost: 2 forward per pair and per unit
    Needs: nothing
    """
    games = [archipelago_game(n, top or max(1, n // 4)) for n in _counts(batch, unit)]
    return _played(model, batch, target, games, erase, unit)


INTERACTIONS: tuple[Callable[..., list[Pairwise]], ...] = (
    pairwise_occlusion,
    shapley_taylor,
    shapley_interaction,
    archipelago,
    integrated_hessians,
)
"""All methods that :func:`salience.explain_interactions` knows by name."""


def find_interaction(name: str) -> Callable[..., list[Pairwise]]:
    """Return the interaction method with this name."""
    by_name = {method.__name__: method for method in INTERACTIONS}
    return by_name[choose(name, by_name, "interaction method")]


def by_token(interactions: Callable[..., list[Pairwise]]) -> Callable[..., Attribution]:
    """Return an interaction method as a method with one score per token, for :func:`salience.evaluate` and others.

    Every interaction is shared equally between its two units, and the score of a unit among its tokens. The gap
    ``error`` is left out: it is that of interactions.

    >>> salience.evaluate(model, data, [by_token(shapley_taylor), "kernel_shap"])         # doctest: +SKIP
    """

    @wraps(interactions)
    def method(model: Model, batch: Batch, target: Targets, /, **settings: Any) -> Attribution:
        results = interactions(model, batch, target, **settings)
        units = unit_numbers(batch, str(settings.get("unit", "word")))
        gaps = {name: torch.tensor([r.gaps[name] for r in results]) for name in results[0].gaps if name != "error"}
        chosen = {name: v for name, v in results[0].settings.items() if isinstance(v, str)}
        return Attribution(spread(units, [r.scores for r in results]), gaps, chosen)

    return cast(Callable[..., Attribution], method)


def _counts(batch: Batch, unit: str) -> list[int]:
    return (unit_numbers(batch, unit).amax(1) + 1).tolist()


def _played(
    model: Model, batch: Batch, target: Targets, games: Sequence[PairGame], erase: str | None, unit: str
) -> list[Pairwise]:
    erase = erase or usual(model)
    results = play(model, batch, target, unit_numbers(batch, unit), games, erase)
    return [replace(r, settings={"erase": erase, **r.settings}) for r in results]
