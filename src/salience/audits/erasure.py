"""Do the highest attention weights decide the prediction? (Serrano & Smith 2019)"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from salience.audits.finding import Finding, Measure, above_chance, as_well_as
from salience.audits.study import Study
from salience.audits.weights import Attended
from salience.core.distances import jensen_shannon
from salience.core.passes import Needs, differentiate
from salience.core.randomness import by_token
from salience.core.types import Targets

RANKINGS = ("attention", "gradient", "attention_x_gradient", "random")


@dataclass(frozen=True, slots=True, eq=False)
class Single:
    """Erasing the highest weight i* of each text, against a random other weight r; NaN for texts of one token."""

    effect: Float[Tensor, " b"]
    """JSD(p, p without i*) − JSD(p, p without r)."""
    lead: Float[Tensor, " b"]
    """a_i* − a_r."""
    flips_highest: Bool[Tensor, " b"]
    flips_random: Bool[Tensor, " b"]


def single_weights(attended: Attended, *, seed: int = 0) -> Single:
    """Set the highest attention weight to zero, or a random other one, and renormalise.

    Paper: Serrano & Smith 2019, arXiv:1906.03731, section 4
    """
    attended = attended.read_alone()
    batch, a = attended.batch, attended.distribution
    highest = a.masked_fill(~batch.content, -1).argmax(1)
    other = _random_other(attended, highest, seed)
    n = len(batch)
    where = torch.nn.functional.one_hot(torch.cat([highest, other]), batch.width).bool()
    p = attended.probabilities
    changed = _without(attended, torch.arange(n, device=a.device).repeat(2), where).unflatten(0, (2, n))
    effects, flips = jensen_shannon(changed, p), changed.argmax(-1) != p.argmax(-1)
    lead = a.gather(1, highest[:, None])[:, 0] - a.gather(1, other[:, None])[:, 0]
    effect, lead = (attended.of_several_tokens(values) for values in (effects[0] - effects[1], lead))
    return Single(effect, lead, flips[0], flips[1])


def fractions_to_flip(
    attended: Attended, *, shuffles: int = 5, seed: int = 0, never: float = nan
) -> Mapping[str, Float[Tensor, " b"]]:
    """The fraction of weights to erase, highest first, until the decision flips; ``never`` where it does not.

    Weights are ranked by attention, by the gradient of the predicted probability with respect to them, by the product
    of both, and at random: the mean over shuffles, without those that are NaN.

    Paper: Serrano & Smith 2019, arXiv:1906.03731, section 5
    """
    batch = attended.batch
    chance = by_token(batch, seed, lambda n, g: torch.rand(n, shuffles, generator=g)).movedim(2, 0)
    scores = torch.cat([torch.stack([attended.distribution, *_gradients(attended)]), chance])
    fractions = _first_flip(attended.read_alone(), scores).nan_to_num(never)
    return dict(zip(RANKINGS, (*fractions[:3], fractions[3:].nanmean(0)), strict=True))


def _gradients(attended: Attended) -> tuple[Float[Tensor, "b t"], Float[Tensor, "b t"]]:
    """∂p/∂a and a · ∂p/∂a of every token, p being the probability of the predicted label, summed over heads."""
    p = attended.probabilities
    target = Targets(p.argmax(1), None, "probability", attended.model.link)
    result = differentiate(attended.model, attended.batch, target, needs=Needs.ATTENTION_GRADIENT)
    g = result.attention_gradient[attended.layer - 1][:, attended.heads].float()
    a = attended.weights[:, attended.heads]
    return g.sum((1, 2)), (a * g).sum((1, 2))


def _first_flip(attended: Attended, scores: Float[Tensor, "m b t"]) -> Float[Tensor, "m b"]:
    """Erase ever more weights in the order of the scores, all but one at the most.

    Only texts that have not flipped yet are run again.
    """
    batch, n = attended.batch, attended.lengths
    decision = attended.probabilities.argmax(1)
    ranks = scores.masked_fill(~batch.content, -torch.inf).argsort(dim=-1, descending=True, stable=True).argsort(-1)
    fractions = torch.full_like(scores[..., 0], torch.nan)
    for size in range(1, int(n.max())):
        ranking, text = (fractions.isnan() & (n > size)).nonzero(as_tuple=True)
        if not len(text):
            break
        erased = (ranks[ranking, text] < size) & batch.content[text]
        flips = _without(attended, text, erased).argmax(1) != decision[text]
        fractions[ranking[flips], text[flips]] = size / n[text[flips]].to(fractions)
    return fractions


def _without(attended: Attended, text: Int[Tensor, " r"], where: Bool[Tensor, "r t"]) -> Float[Tensor, "r c"]:
    """The probabilities without some weights; the others are scaled to sum to 1 again.

    A query that sees no other token keeps its weights: there is nothing else for it to attend to.
    """

    def change(a: Tensor, rows: Tensor) -> Tensor:
        (q, t), gone = a.shape[2:], where[rows, None, : a.shape[3]]
        kept = a * ~gone[:, None]
        total = kept.sum(-1, keepdim=True)
        sees = (attended.visible[text[rows], :q, :t] & ~gone).any(-1)[:, None, :, None] | (total > 0)
        return torch.where(sees, kept / total.clamp_min(torch.finfo(kept.dtype).tiny), a)

    return attended.answers(text, change)


def _random_other(attended: Attended, highest: Int[Tensor, " b"], seed: int) -> Int[Tensor, " b"]:
    """A random token of each text other than the one with the highest weight."""
    batch = attended.batch
    keys = by_token(batch, seed, lambda n, g: torch.rand(n, generator=g)).masked_fill(~batch.content, -1)
    return keys.scatter(1, highest[:, None], -1).argmax(1)


def erasure(study: Study, *, shuffles: int = 5) -> Finding:
    """Do the highest attention weights decide the prediction?"""

    def test(attended: Attended) -> dict[str, Tensor]:
        single = single_weights(attended, seed=study.seed)
        fractions = fractions_to_flip(attended, shuffles=shuffles, seed=study.seed)
        flips = {"flips without the highest": single.flips_highest, "flips without another": single.flips_random}
        return {
            "effect": single.effect,
            "lead": single.lead,
            **{name: attended.of_several_tokens(f.float()) for name, f in flips.items()},
            **fractions,
        }

    values = study.each(test)
    # Only texts that flip under every ranking can be compared; the others are counted.
    flipped = ~np.isnan([values[name] for name in RANKINGS]).any(0)
    fractions = {name: np.where(flipped, values[name], np.nan) for name in RANKINGS}
    lead = Measure.of(
        "fraction to flip, attention − gradient", fractions["attention"] - fractions["gradient"], "points"
    )
    sooner = Measure.of("fraction to flip, random − attention", fractions["random"] - fractions["attention"], "points")
    other = [
        Measure.of("effect of the highest weight − another (JSD)", values["effect"]),
        Measure.of("lead of the highest weight", values["lead"], "size"),
        *(Measure.share(name, values[name] == 1, values[name]) for name in values if name.startswith("flips")),
        *(Measure.of(f"fraction to flip, {name}", fractions[name], "share") for name in RANKINGS),
        Measure.share("texts that flip under every ranking", flipped),
    ]
    each = ", ".join(f"{name} {m.mean}" for name, m in zip(RANKINGS, other[4:8], strict=True))
    return Finding(
        test="erasure",
        question="Do the highest attention weights decide the prediction?",
        measures=(lead, *other),
        expected="no more weights have to be erased by attention than by the gradient until the decision flips",
        verdict=above_chance(as_well_as(lead.estimate, more_is_explanation=False), sooner.estimate),
        answer=(
            f"Without its highest weight, {other[2]} of the decisions flip; without a random other, "
            f"{other[3]}. The fraction of weights to erase until the decision flips: {each} (in the "
            f"{other[8]} of the texts that flip under every ranking)."
        ),
        source="Serrano & Smith 2019, arXiv:1906.03731, sections 4 and 5",
    )
