"""Losses on hidden states: states that keep apart, and states that keep the identity of their word."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from salience.core.distances import TINY
from salience.core.types import Batch, Model
from salience.errors import BadInput
from salience.training.objectives import Step


def conicity(step: Step) -> Float[Tensor, " b"]:
    """mean_t |cos(h_t, h̄)| with h̄ the mean state of the text: 1 if all states point the same way.

    Paper: Mohankumar et al. 2020, arXiv:2004.14243, eq. 6 and 8
    """
    return conicity_of(step.output.hidden[-1], step.batch)


def conicity_of(h: Float[Tensor, "b t k"], batch: Batch) -> Float[Tensor, " b"]:
    """The conicity of some states, over the tokens of each text."""
    content = batch.content
    count = content.sum(1).clamp_min(1)
    mean = (h * content[..., None]).sum(1, keepdim=True) / count[:, None, None]
    return (nn.functional.cosine_similarity(h, mean, dim=-1, eps=TINY).abs() * content).sum(1) / count


def tying(step: Step) -> Float[Tensor, " b"]:
    """mean_t ‖h_t − e_t‖₂: the state of every word should stay close to its embedding.

    Paper: Tutek & Šnajder 2020, arXiv:2005.09379, section 3
    """
    e, h = step.output.embeddings, step.output.hidden[-1]
    _check_width(step.model, e, h)
    content = step.batch.content
    # The derivative of a norm is not defined at 0, where padding is.
    distance = (h - e).masked_fill(~content[..., None], 1.0).norm(dim=-1)
    return (distance * content).sum(1) / content.sum(1).clamp_min(1)


def masked_words(step: Step, *, share: float = 0.15) -> Float[Tensor, " b"]:
    """Masked language modelling: the state of a masked word should tell the word, −log softmax(E h_t)_{x_t}.

    A share of the words, at least one per text, is masked in a pass of its own. E is the embedding matrix.

    Paper: Tutek & Šnajder 2020, arXiv:2005.09379, section 3
    """
    model, batch = step.model, step.batch
    mask = model.replacements.get("mask", model.replacements.get("unk"))
    if mask is None:
        raise BadInput(f"{model.name} has neither a mask token nor an unknown token to mask words with")
    keys = torch.rand(batch.ids.shape, device=batch.ids.device).masked_fill(~batch.content, 2.0)
    chosen = (keys < share) | (keys == keys.amin(1, keepdim=True)) & batch.content
    e = model.words(batch.ids.masked_fill(chosen, mask))
    h = model(batch, embeddings=e, hidden=True).hidden[-1]
    _check_width(model, e, h)
    losses = nn.functional.cross_entropy(h[chosen] @ model.words.weight.T, batch.ids[chosen], reduction="none")
    text = chosen.nonzero()[:, 0]
    return losses.new_zeros(len(batch)).index_add(0, text, losses) / chosen.sum(1).clamp_min(1)


def _check_width(model: Model, e: Tensor, h: Tensor) -> None:
    if e.shape[-1] != h.shape[-1]:
        raise BadInput(
            f"the states of {model.name} are {h.shape[-1]} wide and its embeddings {e.shape[-1]}; this loss compares "
            "them, so both must have the same width"
        )
