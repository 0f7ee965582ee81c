"""Does the prediction change when attention is shuffled? (Jain & Wallace 2019, section 4.2.1)"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from salience.audits.finding import Finding, Measure, by_share
from salience.audits.study import Study
from salience.audits.weights import SAME_OUTPUT, Attended
from salience.core.distances import total_variation
from salience.core.randomness import by_token


@dataclass(frozen=True, slots=True, eq=False)
class Permuted:
    """For each text, the median change of the output over shuffles, and its largest attention weight."""

    change: Float[Tensor, " b"]
    largest: Float[Tensor, " b"]


def permuted(attended: Attended, *, shuffles: int = 100, seed: int = 0) -> Permuted:
    """Shuffle the attention weights of each text many times: median TVD(ŷ, ŷ_shuffled).

    The same shuffle applies to all heads and queries, within the tokens of the text that a query can see.
    """
    attended = attended.read_alone()
    batch = attended.batch
    keys = by_token(batch, seed, lambda n, g: torch.rand(n, shuffles, generator=g)).movedim(2, 1)
    text = torch.arange(len(batch), device=batch.ids.device).repeat_interleave(shuffles)

    def change(a: Tensor, rows: Tensor) -> Tensor:
        own, (q, t) = rows // shuffles, a.shape[2:]
        return shuffled(a, keys[own, rows % shuffles, :t], attended.visible[own, :q, :t])

    answers = attended.answers(text, change).view(len(batch), shuffles, -1)
    changes = total_variation(answers, attended.probabilities[:, None])
    return Permuted(changes.quantile(0.5, dim=1), attended.distribution.amax(1))


def shuffled(
    a: Float[Tensor, "k h q t"], keys: Float[Tensor, "k t"], where: Bool[Tensor, "k q t"]
) -> Float[Tensor, "k h q t"]:
    """Permute the weights of every query within ``where``, in the order of the keys."""
    order = keys[:, None].expand(where.shape).masked_fill(~where, torch.inf).argsort(dim=-1, stable=True)
    places = (~where).to(torch.int8).argsort(dim=-1, stable=True)
    order, places = (index[:, None].expand(a.shape) for index in (order, places))
    return torch.empty_like(a).scatter(-1, places, a.gather(-1, order))


def permutation(study: Study, *, shuffles: int = 100) -> Finding:
    """Does the prediction change when attention is shuffled?"""

    def test(attended: Attended) -> dict[str, Tensor]:
        result = permuted(attended, shuffles=shuffles, seed=study.seed)
        return {"change": attended.of_several_tokens(result.change), "largest": result.largest}

    values = study.each(test)
    moved = Measure.share("texts whose output changes", values["change"] > SAME_OUTPUT, values["change"])
    change = Measure.of("median change of the output (TVD)", values["change"], "size")
    largest = Measure.of("largest attention weight", values["largest"], "size")
    return Finding(
        test="permutation",
        question="Does the prediction change when attention is shuffled?",
        measures=(moved, change, largest),
        expected=f"the output changes by more than {SAME_OUTPUT:g} in most texts",
        verdict=by_share(moved.estimate, more_is_explanation=True),
        answer=(
            f"Shuffled {shuffles} times, attention changes the output by more than {SAME_OUTPUT:g} in "
            f"{moved} of the texts; the median change is {change}."
        ),
        source="Jain & Wallace 2019, arXiv:1902.10186, section 4.2.1",
    )
