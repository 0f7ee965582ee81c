"""How much each token matters to a trained classifier: the output without it, and the derivative of that."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from salience.core.passes import forward, resolve
from salience.core.rows import each_text, without_each
from salience.core.target import Target
from salience.core.types import Attribution, Batch, Model, Targets
from salience.data.examples import Example, encode_examples
from salience.methods import input_x_gradient

Scores = Float[np.ndarray, " t"]


def leave_one_out(model: Model, examples: Sequence[Example]) -> list[Scores]:
    """Δ_i = y − y₋ᵢ, y being the log-odds of the true label, and token i deleted. 0 for a text of one token.

    With two labels, y is the difference of their logits. Unlike log p, it does not come to rest where p is nearly 1.
    """
    return _influence(model, examples, _left_out)


def gradient_form(model: Model, examples: Sequence[Example]) -> list[Scores]:
    """dy / dm_i at m = 1, where m_i multiplies the embedding of token i: the gradient times the input.

    With two labels y is the difference of their logits; with more it is log p, which ranks tokens as log-odds do, but
    comes to rest in float32 where p is nearly 1.
    """
    return _influence(model, examples, _derivative)


def log_odds(logits: Float[Tensor, "b c"], labels: Int[Tensor, " b"]) -> Float[Tensor, " b"]:
    """log p − log(1 − p) = z_y − log Σ_{c ≠ y} exp z_c."""
    own = labels[:, None]
    return logits.gather(1, own)[:, 0] - logits.scatter(1, own, -torch.inf).logsumexp(1)


def _left_out(model: Model, batch: Batch, target: Targets) -> Float[Tensor, "b t"]:
    whole = log_odds(forward(model, batch).logits.double(), target.labels)
    without = without_each(model, batch, batch.content, lambda z, texts: log_odds(z, target.labels[texts]))
    return (whole[:, None] - without).where(batch.content, 0)


def _derivative(model: Model, batch: Batch, target: Targets) -> Float[Tensor, "b t"]:
    if len(model.labels) == 2:
        target = replace(target, against=1 - target.labels, kind="logit", value=None)
    result = input_x_gradient(model, batch, target)
    return result.scores if isinstance(result, Attribution) else result


def _influence(
    model: Model, examples: Sequence[Example], measure: Callable[[Model, Batch, Targets], Tensor]
) -> list[Scores]:
    encoded = encode_examples(model, examples)
    longer = [i for i, tokens in enumerate(encoded) if len(tokens) > 1]

    def work(batch: Batch, items: list[int]) -> list[Scores]:
        own = [Target(examples[longer[i]].single_label, kind="log_probability") for i in items]
        scores = measure(model, batch, resolve(model, own, forward(model, batch).logits))
        rows = scores.detach().cpu().double().numpy()
        return [row[:n] for row, n in zip(rows, batch.mask.sum(1).tolist(), strict=True)]

    results: list[Scores] = [np.zeros(len(tokens)) for tokens in encoded]
    if longer:
        for i, scores in zip(longer, each_text(model, [encoded[i] for i in longer], work), strict=True):
            results[i] = scores
    return results
