"""Methods that follow the gradient along paths from a baseline to the input."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from salience.batching import fitting
from salience.erasure import Replacement, replaced, replacement, usual
from salience.errors import BadInput, choose
from salience.methods import quadrature
from salience.methods.gradient import value_range
from salience.methods.quadrature import Rule
from salience.passes import differentiate, forward
from salience.randomness import generators, padded
from salience.types import Attribution, Batch, Model, Targets


def integrated_gradients(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    baseline: Replacement | None = None,
    tolerance: float = 0.01,
    max_nodes: int = 129,
    nodes: int | None = None,
    rule: Rule | None = None,
) -> Attribution:
    """The gradient averaged on the straight path from a baseline, times the way: (e_i − b_i) · ∫ ∂f/∂e_i dα.

    Each text gets as many nodes as it needs: more are added where they are missed, until the expected error of every
    score is at most ``tolerance`` times the text's largest score, or ``max_nodes`` are used. With ``nodes`` all texts
    get that many, laid out by ``rule`` (Gauss-Legendre unless told otherwise).

    Paper: Sundararajan et al. 2017, arXiv:1703.01365, eq. 1
    Cost: 17 to max_nodes forward and backward, about 22 for a sentence; with nodes: that many, and 1 forward
    Needs: an embedding layer
    """
    baseline = baseline or usual(model)
    path = _Path(model, batch, target, replaced(model, batch, batch.content, baseline), model.embed(batch))
    if nodes is not None:
        return _by_rule(path, rule or "gauss_legendre", nodes, {"baseline": baseline})
    if rule is not None:
        raise BadInput(f"rule={rule!r} needs a number of nodes, such as nodes=50; without one, each text gets its own")
    return _by_need(path, tolerance, max_nodes, {"baseline": baseline})


@dataclass(frozen=True, slots=True, eq=False)
class _Path:
    """The straight lines from ``start`` to ``end``, one per text."""

    model: Model
    batch: Batch
    target: Targets
    start: Float[Tensor, "b t d"]
    end: Float[Tensor, "b t d"]

    def slopes(
        self, text: Int[Tensor, " r"], alpha: Float[Tensor, " r"]
    ) -> tuple[Float[Tensor, "r t"], Float[Tensor, " r"]]:
        """(e − b) · ∂f/∂e per token, and f, at b + α (e − b): for any text at any place, in as few passes as fit."""
        g, f = torch.zeros(len(text), self.batch.width), torch.zeros(len(text))
        for rows, part in fitting(self.batch, text, self.model.budget):
            at, width = text[rows], part.width
            # In half precision 1023/1024 is 1: the place is found in more digits, and then rounded.
            start, end = self.start[at, :width].to(alpha), self.end[at, :width].to(alpha)
            place = torch.lerp(start, end, alpha[rows, None, None]).to(self.start)
            seen = differentiate(self.model, part, self.target.take(at), embeddings=place)
            assert seen.gradient is not None
            g[rows, :width] = (seen.gradient * (end - start)).float().sum(-1).cpu()
            f[rows] = self.target.take(at)(seen.output.logits).float().cpu()
        return g * self.batch.mask.cpu()[text.cpu()], f


def _wide(x: Tensor) -> torch.dtype:
    """float32, or better where the model has better."""
    return torch.promote_types(x.dtype, torch.float32)


def _value(model: Model, batch: Batch, target: Targets, embeddings: Float[Tensor, "b t d"]) -> Float[Tensor, " b"]:
    """f itself, by a forward pass."""
    f = torch.zeros(len(batch))
    for rows, part in fitting(batch, torch.arange(len(batch)), model.budget):
        seen = forward(model, part, embeddings=embeddings[rows, : part.width])
        f[rows] = target.take(rows)(seen.logits).float().cpu()
    return f


def _intact(model: Model, batch: Batch, target: Targets, e: Float[Tensor, "b t d"]) -> Float[Tensor, " b"]:
    """f of the texts themselves, which may be known."""
    return _value(model, batch, target, e) if target.value is None else target.value.float().cpu()


def _by_rule(path: _Path, rule: str, nodes: int, settings: Mapping[str, object]) -> Attribution:
    """Σ_k w_k g(α_k), with the same nodes for every text."""
    alphas, weights = quadrature.fixed(rule, nodes)
    scores = torch.from_numpy(np.stack([weights @ g for g, _ in _at(path, [alphas] * len(path.batch))])).float()
    high = _intact(path.model, path.batch, path.target, path.end)
    low = _value(path.model, path.batch, path.target, path.start)
    gaps = {"completeness": scores.sum(1) - (high - low)}
    return Attribution(scores.to(path.start.device), gaps, {**settings, "rule": rule})


def _by_need(path: _Path, tolerance: float, most: int, settings: Mapping[str, object]) -> Attribution:
    """More nodes for each text until its expected error is tolerable. No text's nodes depend on another's."""
    if tolerance <= 0 or most < len(quadrature.FIRST):
        raise BadInput(
            f"tolerance={tolerance} must be above 0 and max_nodes={most} at least {len(quadrature.FIRST)}; "
            "to use fewer nodes, fix their number with nodes"
        )
    digits = torch.finfo(path.start.dtype).eps
    curves = [quadrature.curve(*seen) for seen in _at(path, [quadrature.FIRST] * len(path.batch))]
    while any(map(len, wanted := [quadrature.unsettled(c, tolerance, most, digits) for c in curves])):
        found = _at(path, [quadrature.midpoints(c)[w] for c, w in zip(curves, wanted, strict=True)])
        curves = [quadrature.refined(c, w, *seen) for c, w, seen in zip(curves, wanted, found, strict=True)]
    scores = torch.from_numpy(np.stack([c.integral for c in curves])).float()
    climbs = torch.tensor([c.heights[-1] - c.heights[0] for c in curves])
    gaps = {"completeness": scores.sum(1) - climbs.float(), "error": torch.tensor([c.error for c in curves])}
    nodes = torch.tensor([len(c.alphas) for c in curves])
    return Attribution(scores.to(path.start.device), gaps, {**settings, "nodes": nodes})


def _at(path: _Path, alphas: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Every text's slopes and f at its own nodes."""
    counts = [len(a) for a in alphas]
    text = torch.arange(len(alphas)).repeat_interleave(torch.tensor(counts)).to(path.start.device)
    g, f = path.slopes(text, torch.from_numpy(np.concatenate(alphas)).to(text.device, _wide(path.start)))
    return zip(*([part.double().numpy() for part in found.split(counts)] for found in (g, f)), strict=True)


Reference = Literal["vocabulary", Replacement]


def gradient_shap(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    baseline: Reference = "vocabulary",
    samples: int = 25,
    noise: float = 0.0,
    seed: int = 0,
) -> Attribution:
    """Integrated gradients in expectation over baselines and places: E[(e_i + ε − b_i) · ∂f/∂e_i (b + u (e + ε − b))].

    A baseline of ``"vocabulary"`` replaces every token by one drawn at random, anew for each sample. ``noise`` is the
    standard deviation of ε as a share of the range of the text's own embedding values.

    Paper: Lundberg & Lee 2017, arXiv:1705.07874; the expectation Erion et al. 2021, arXiv:1906.10670
    Cost: samples forward and backward, samples + 1 forward
    Needs: an embedding layer
    """
    if samples < 1:
        raise BadInput(f"samples={samples} is too few; gradient_shap takes at least 1")
    fixed = None if choose(baseline, get_args(Reference), "baseline") == "vocabulary" else replacement(model, baseline)
    e = model.embed(batch)
    spread, sources = noise * value_range(e, batch), generators(batch, seed)
    scores, low = torch.zeros(len(batch), batch.width), torch.zeros(len(batch))
    text = torch.arange(len(batch), device=e.device).repeat_interleave(samples)
    for rows, part in fitting(batch, text, model.budget):
        at = text[rows]
        u, words, epsilon = _draws(model, part, [sources[i] for i in at.tolist()], noisy=noise != 0)
        b, end = _reference(model, part, fixed, words), e[at, : part.width]
        path = _Path(model, part, target.take(at), b, end if epsilon is None else end + spread[at] * epsilon.to(e))
        g, _ = path.slopes(torch.arange(len(part), device=e.device), u.to(e.device, _wide(e)))
        scores[:, : part.width].index_add_(0, at.cpu(), g / samples)
        low.index_add_(0, at.cpu(), _value(model, part, target.take(at), b) / samples)
    high = _intact(model, batch, target, e)
    return Attribution(scores.to(e.device), {"completeness": scores.sum(1) - (high - low)})


def _draws(
    model: Model, batch: Batch, sources: Sequence[torch.Generator], *, noisy: bool
) -> tuple[Float[Tensor, " b"], Int[Tensor, "b t"], Float[Tensor, "b t d"] | None]:
    """A place on the path, random words and, if wanted, normal vectors for each row, all by its own generator."""
    words, size = model.words.num_embeddings, model.words.embedding_dim if noisy else 0
    drawn = [
        (torch.rand((), generator=g), torch.randint(words, (n,), generator=g), torch.randn(n, size, generator=g))
        for n, g in zip(batch.mask.sum(1).tolist(), sources, strict=True)
    ]
    u, ids, epsilon = zip(*drawn, strict=True)
    return torch.stack(u), padded(list(ids), batch), padded(list(epsilon), batch) if noisy else None


def _reference(
    model: Model, batch: Batch, fixed: Float[Tensor, " d"] | None, words: Int[Tensor, "b t"]
) -> Float[Tensor, "b t d"]:
    """Where the paths begin: at the drawn words, or at a fixed replacement; special tokens stay."""
    if fixed is None:
        return model.embed(replace(batch, ids=torch.where(batch.content, words, batch.ids)))
    return torch.where(batch.content[..., None], fixed, model.embed(batch))
