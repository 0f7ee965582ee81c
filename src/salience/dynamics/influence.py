"""How much each token matters to a trained classifier: the output without it, and the derivative of that."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from salience.core.passes import forward, resolve
from salience.core.rows import each_text
from salience.core.target import Target
from salience.core.types import Attribution, Batch, Model
from salience.data.examples import Example, encode_examples
from salience.methods import find_method

Scores = Float[np.ndarray, " t"]


def leave_one_out(model: Model, examples: Sequence[Example]) -> list[Scores]:
    """Δ_i = log p − log p₋ᵢ of the true label, with token i deleted. 0 for a text of one token.

    With two labels, tokens are ranked as by y − y₋ᵢ, the difference of logits, as log p rises with it.
    """
    return _influence(model, examples, "occlusion", {"erase": "delete"})


def gradient_form(model: Model, examples: Sequence[Example]) -> list[Scores]:
    """d log p / d m_i at m = 1, where m_i multiplies the embedding of token i: the gradient times the input."""
    return _influence(model, examples, "input_x_gradient", {})


def _influence(model: Model, examples: Sequence[Example], name: str, settings: dict[str, Any]) -> list[Scores]:
    method, encoded = find_method(name), encode_examples(model, examples)
    longer = [i for i, tokens in enumerate(encoded) if len(tokens) > 1]

    def work(batch: Batch, items: list[int]) -> list[Scores]:
        own = [examples[longer[i]].single_label for i in items]
        targets = [Target(label, kind="log_probability") for label in own]
        result = method(model, batch, resolve(model, targets, forward(model, batch).logits), **settings)
        scores = (result.scores if isinstance(result, Attribution) else result).detach().cpu().double().numpy()
        return [row[:n] for row, n in zip(scores, batch.mask.sum(1).tolist(), strict=True)]

    results: list[Scores] = [np.zeros(len(tokens)) for tokens in encoded]
    if longer:
        for i, scores in zip(longer, each_text(model, [encoded[i] for i in longer], work), strict=True):
            results[i] = scores
    return results
