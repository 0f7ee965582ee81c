"""The attention sink of decoders: the first token, on which attention rests that goes nowhere else."""

from dataclasses import replace

import torch

from salience.core.types import Attribution, Batch, Model
from salience.errors import BadInput


def separate_sink(attribution: Attribution, model: Model, batch: Batch, *, without_sink: bool) -> Attribution:
    """Report the share of the absolute scores on the first token of a causal model, and set it to 0 if asked to.

    Trained decoders rest attention on their first token, whatever it says (Xiao et al. 2024, arXiv:2309.17453).
    """
    if not model.causal:
        if without_sink:
            raise BadInput(
                f"without_sink=True leaves out the first token of decoders, and {model.name} is not one: its tokens "
                "attend to later ones too"
            )
        return attribution
    size = attribution.scores.abs()
    sink = size[:, 0] / size.sum(1).clamp_min(torch.finfo(size.dtype).tiny)
    kept = torch.arange(batch.width, device=size.device) > 0
    scores = attribution.scores * kept if without_sink else attribution.scores
    return replace(attribution, scores=scores, gaps={**attribution.gaps, "sink": sink})
