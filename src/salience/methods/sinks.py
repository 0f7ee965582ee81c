"""The attention sink of decoders: the first token, on which attention rests that goes nowhere else."""

from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from salience.core.types import Attribution, Batch, Model
from salience.errors import BadInput


def separate_sink(attribution: Attribution, model: Model, batch: Batch, *, without_sink: bool) -> Attribution:
    """Report the share of the absolute scores on the first token of a causal model, and set it to 0 if asked to.

    Trained decoders rest attention on their first token, whatever it says (Xiao et al. 2024, arXiv:2309.17453).
    """
    if not (model.causal or without_sink):
        return attribution
    at, size = sink(model, batch), attribution.scores.abs()
    share = (size * at).sum(1) / size.sum(1).clamp_min(torch.finfo(size.dtype).tiny)
    scores = attribution.scores.masked_fill(at, 0) if without_sink else attribution.scores
    return replace(attribution, scores=scores, gaps={**attribution.gaps, "sink": share})


def sink(model: Model, batch: Batch) -> Bool[Tensor, "b t"]:
    """The first token of every text, for a model whose tokens attend to earlier ones only."""
    if not model.causal:
        raise BadInput(
            f"without_sink=True leaves out the first token of decoders, and {model.name} is not one: its tokens attend "
            "to later ones too"
        )
    return (torch.arange(batch.width, device=batch.ids.device) == 0).expand(batch.ids.shape)
