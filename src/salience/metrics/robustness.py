"""Whether an explanation keeps still where the model does, and moves where the model does: one number per text.

These metrics are of a method, not of scores: they explain again after a change.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from salience.metrics.agreement import spearman
from salience.models.moved import Moved, table
from salience.types import Attribution, Batch, Model, Targets

Explain = Callable[[Model, Batch, Targets], Tensor | Attribution]
"""A method with its settings."""


def max_sensitivity(
    model: Model,
    batch: Batch,
    target: Targets,
    explain: Explain,
    /,
    *,
    radius: float = 0.02,
    samples: int = 10,
    seed: int = 0,
) -> Float[Tensor, " b"]:
    """How far the scores move, at most, as word vectors do: max over draws of ‖φ(x + δ) − φ(x)‖ / ‖φ(x)‖.

    Divided by the length of the scores, so that methods of any scale can be compared. Every word's vector moves by
    ``radius`` of the mean length of all, in a random direction. Lower is better.

    Paper: Yeh et al. 2019, arXiv:1901.09392, Definition 3.1
    """
    words, dice = table(model), torch.Generator().manual_seed(seed)
    before = _scores(model, batch, target, explain)
    moves = (radius * _length(words) * _directions(words, dice) for _ in range(samples))
    after = (_scores(Moved(model, words + move), batch, target, explain) for move in moves)
    return torch.stack([_distance(before, scores) for scores in after]).amax(0)


def input_invariance(
    model: Model, batch: Batch, target: Targets, explain: Explain, /, *, seed: int = 0
) -> Float[Tensor, " b"]:
    """How far the scores move by a shift of all word vectors that the model takes back: ‖φ' − φ‖ / ‖φ‖.

    The model is the same function of the text as before, so that nothing should move. Lower is better.

    Paper: Kindermans et al. 2019, The (Un)reliability of Saliency Methods, arXiv:1711.00867
    """
    words = table(model)
    shift = _length(words) * _directions(words[:1], torch.Generator().manual_seed(seed))[0]
    moved = Moved(model, words + shift, absorbed=shift)
    return _distance(*(_scores(m, batch, target, explain) for m in (model, moved)))


def parameter_randomisation(
    model: Model, batch: Batch, target: Targets, explain: Explain, /, *, seed: int = 0
) -> Float[Tensor, " b"]:
    """The rank correlation with the scores of the same model with its parameters shuffled, which knows nothing.

    A method whose explanations stay alike does not look at what the model has learnt. Nearer to 0 is better.

    Paper: Adebayo et al. 2018, Sanity Checks for Saliency Maps, arXiv:1810.03292
    """
    found = [_scores(m, batch, target, explain).numpy() for m in (model, randomised(model, seed))]
    content = batch.content.cpu().numpy()
    return torch.tensor([spearman(a[kept], b[kept]) for a, b, kept in zip(*found, content, strict=True)])


def randomised(model: Model, seed: int = 0) -> Model:
    """A copy whose parameters are shuffled, each within itself, so that their sizes stay what they were."""
    copy, dice = deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in copy.module.parameters():
            p.copy_(p.flatten()[torch.randperm(p.numel(), generator=dice).to(p.device)].view_as(p))
    return copy


def _scores(model: Model, batch: Batch, target: Targets, explain: Explain) -> Float[Tensor, "b t"]:
    """Of the tokens of the text. What the explained number is, each model says for itself."""
    found = explain(model, batch, replace(target, value=None))
    scores = found.scores if isinstance(found, Attribution) else found
    return (scores.detach().double() * batch.content).cpu()


def _distance(a: Float[Tensor, "b t"], b: Float[Tensor, "b t"]) -> Float[Tensor, " b"]:
    """Relative to the first; 0 where both are 0."""
    return (a - b).norm(dim=1) / a.norm(dim=1).clamp_min(torch.finfo(a.dtype).tiny)


def _directions(like: Tensor, dice: torch.Generator) -> Tensor:
    """A random direction for every row."""
    return nn.functional.normalize(torch.randn(like.shape, generator=dice).to(like), dim=1)


def _length(words: Tensor) -> Tensor:
    return words.norm(dim=1).mean()
