"""Does attention agree with gradients and leave-one-out? (Jain & Wallace 2019, section 4.1)"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import kendalltau
from torch import Tensor

from salience.audits.finding import Finding, Measure, above_chance, as_well_as
from salience.audits.study import Study
from salience.audits.weights import Attended
from salience.core.passes import Needs, differentiate, forward
from salience.core.rows import without_each
from salience.core.types import Targets

PAIRS = ("attention, gradient", "attention, leave-one-out", "gradient, leave-one-out")


@dataclass(frozen=True, slots=True, eq=False)
class Correlations:
    """Kendall's τ and its p-value for each pair and each text; NaN where a side is constant."""

    tau: Float[Tensor, "p b"]
    p: Float[Tensor, "p b"]


def correlated(attended: Attended, pairs: Sequence[str] = PAIRS) -> Correlations:
    """Kendall's τ between attention, |∂ŷ/∂e_i · e_i| with attention held constant, and |ŷ − ŷ without token i|.

    ŷ is the probability of the predicted label. Tokens are left out by deletion.

    Paper: Jain & Wallace 2019, arXiv:1902.10186, section 4.1 and algorithm 1
    """
    p = attended.probabilities
    target = Targets(p.argmax(1), None, "probability", attended.model.link, value=p.amax(1))
    sides = [pair.split(", ") for pair in pairs]
    rankings = {name: RANKINGS[name](attended, target).cpu().numpy() for name in {n for pair in sides for n in pair}}
    content = attended.batch.content.cpu().numpy()
    tests = [[_kendall(rankings[a][i][own], rankings[b][i][own]) for i, own in enumerate(content)] for a, b in sides]
    tau, p_values = torch.tensor(tests, dtype=torch.float64).unbind(-1)
    return Correlations(tau, p_values)


def _gradient(attended: Attended, target: Targets) -> Float[Tensor, "b t"]:
    result = differentiate(
        attended.model, attended.batch, target, needs=Needs.GRADIENT, edit_attention=lambda _, a: a.detach()
    )
    assert result.gradient is not None
    return (result.gradient * result.output.embeddings).sum(-1).abs()


def _leave_one_out(attended: Attended, target: Targets) -> Float[Tensor, "b t"]:
    model, batch = attended.model, attended.batch
    tokens = batch.content & (attended.lengths > 1)[:, None]
    whole = target(forward(model, batch).logits.double())
    without = without_each(model, batch, tokens, lambda logits, texts: target.take(texts)(logits))
    return (whole[:, None] - without).abs().where(tokens, 0)


RANKINGS: Mapping[str, Callable[[Attended, Targets], Float[Tensor, "b t"]]] = {
    "attention": lambda attended, _: attended.distribution,
    "gradient": _gradient,
    "leave-one-out": _leave_one_out,
}
"""The sides of the pairs."""


def _kendall(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return np.nan, np.nan
    result: Any = kendalltau(x, y)
    return float(result.statistic), float(result.pvalue)


def correlation(study: Study) -> Finding:
    """Does attention agree with gradients and leave-one-out?"""

    def test(attended: Attended) -> dict[str, Tensor]:
        result = correlated(attended)
        columns = {f"tau {pair}": tau for pair, tau in zip(PAIRS, result.tau, strict=True)}
        return columns | {f"p {pair}": p for pair, p in zip(PAIRS, result.p, strict=True)}

    values = study.each(test)
    taus = {pair: values[f"tau {pair}"] for pair in PAIRS}
    lead = Measure.of(
        "τ(attention, leave-one-out) − τ(gradient, leave-one-out)",
        taus["attention, leave-one-out"] - taus["gradient, leave-one-out"],
    )
    measures = {pair: Measure.of(f"τ({pair})", tau) for pair, tau in taus.items()}
    significant = [
        Measure.share(f"τ({pair}) significant (p < 0.05)", values[f"p {pair}"] < 0.05, values[f"p {pair}"])
        for pair in PAIRS
    ]
    each = "; ".join(
        f"τ({pair}) = {m}, significant in {share}"
        for (pair, m), share in zip(measures.items(), significant, strict=True)
    )
    return Finding(
        test="correlation",
        question="Does attention agree with gradients and leave-one-out?",
        measures=(lead, *measures.values(), *significant),
        expected="attention agrees with leave-one-out as well as the gradient does",
        verdict=above_chance(
            as_well_as(lead.estimate, more_is_explanation=True), measures["attention, leave-one-out"].estimate
        ),
        answer=f"{each}.",
        source="Jain & Wallace 2019, arXiv:1902.10186, section 4.1",
        by_label={
            label: {pair: float(np.nanmean(tau[own])) for pair, tau in taus.items() if not np.isnan(tau[own]).all()}
            for label, own in study.by_label(values).items()
        },
    )
