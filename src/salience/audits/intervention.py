"""Can attention be changed on its own? (after Grimsley et al. 2020)"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from salience.audits.finding import Finding, Measure, Verdict
from salience.audits.permutation import shuffled
from salience.audits.study import Study
from salience.audits.weights import Attended
from salience.core.distances import TINY, jensen_shannon, total_variation
from salience.core.erasure import replaced, usual
from salience.core.passes import forward
from salience.core.randomness import by_token
from salience.core.stats import MINIMUM, Estimate
from salience.core.types import Output, on_scale

MOVED = ("states below", "attention", "output")


def intervened(attended: Attended, *, seed: int = 0) -> dict[str, Float[Tensor, " b"]]:
    """How far the states below attention, attention and the output move when attention is changed in two ways.

    By hand, its weights are shuffled. Through the input, the token with the highest weight is replaced, which changes
    attention too. States move by ‖h′ − h‖ / ‖h‖, averaged over the tokens that stay, attention by JSD, the output by
    TVD.
    """
    batch, model = attended.batch, attended.model
    before = forward(model, batch, attention="read", hidden=True)
    highest = torch.nn.functional.one_hot(attended.distribution.argmax(1), batch.width).bool() & batch.content
    keys = by_token(batch, seed, lambda n, g: torch.rand(n, generator=g))
    by_hand = forward(
        model,
        batch,
        attention="read",
        hidden=True,
        edit_attention=lambda site, a: (
            attended.changed(a, lambda own: shuffled(own, keys, attended.visible))
            if site.layer == attended.layer
            else a
        ),
    )
    other = replaced(model, batch, highest, usual(model))
    by_input = forward(model, batch, embeddings=other, attention="read", hidden=True)
    kept = batch.content & ~highest
    results = {"by hand": (by_hand, batch.content), "by input": (by_input, kept)}
    return {
        f"{what}, {how}": moved
        for how, (after, tokens) in results.items()
        for what, moved in zip(MOVED, _moved(attended, before, after, tokens), strict=True)
    }


def _moved(attended: Attended, before: Output, after: Output, tokens: Bool[Tensor, "b t"]) -> Sequence[Tensor]:
    below = attended.layer if attended.model.single_query else attended.layer - 1
    h, changed = before.hidden[below].float(), after.hidden[below].float()
    relative = (changed - h).norm(dim=-1) / h.norm(dim=-1).clamp_min(TINY)
    states = (relative * tokens).sum(1) / tokens.sum(1)
    rows = [attended.over_text(output.attention[attended.layer - 1].float()) for output in (before, after)]
    outputs = [on_scale(output.logits, "probability", attended.model.link) for output in (before, after)]
    return states, jensen_shannon(*rows), total_variation(*outputs)


COUNTERFACTUAL = (
    " Attention set by hand makes a counterfactual network: its states are those of one text, its attention that of "
    "none."
)
EMBEDDINGS_BELOW = (
    " Below the first layer there are only embeddings, and those of the tokens that stay cannot move: this layer "
    "cannot be tested."
)


def intervention(study: Study) -> Finding:
    """Can attention be changed on its own?"""
    values = study.each(lambda attended: intervened(attended, seed=study.seed))
    measures = [
        Measure.of(name, values[name], "size") for what in MOVED for name in (f"{what}, by input", f"{what}, by hand")
    ]
    states_by_input, states_by_hand, attention_by_input, *_ = (measure.estimate for measure in measures)
    each = "; ".join(
        f"{what} {values_by_hand.mean} by hand, {values_by_input.mean} through the input"
        for what, values_by_input, values_by_hand in zip(MOVED, measures[::2], measures[1::2], strict=True)
    )
    first = not study.model.single_query and study.tested["layers"] == (1,)
    verdict: Verdict = "unclear" if first else judged(states_by_input, states_by_hand, attention_by_input)
    more = EMBEDDINGS_BELOW if first else COUNTERFACTUAL if verdict == "no explanation" else ""
    return Finding(
        test="intervention",
        question="Can attention be changed on its own?",
        measures=tuple(measures),
        expected="an input can change attention without changing the states below it",
        verdict=verdict,
        answer=f"How far things move when attention is changed: {each}.{more}",
        source="after Grimsley et al. 2020, LREC, Why attention is not explanation",
    )


def judged(states_by_input: Estimate, states_by_hand: Estimate, attention_by_input: Estimate) -> Verdict:
    """Whether inputs change attention alone, in all of enough texts, or the states below as well."""
    if states_by_hand.mean != 0:
        return "unclear"
    if states_by_input.mean == 0 and attention_by_input.mean > 0 and states_by_input.n >= MINIMUM:
        return "explanation"
    return "no explanation" if states_by_input.low > 0 else "unclear"
