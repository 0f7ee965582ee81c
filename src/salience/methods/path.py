"""Methods that integrate the gradient along a path from a baseline to the input."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from salience.core.erasure import Replacement, replaced, replacement, usual
from salience.core.passes import Needs
from salience.core.randomness import Draws, padded
from salience.core.rows import Pack, Rows, observed, value
from salience.core.settings import Count, Nodes, NotNegative, Positive, Seed
from salience.core.types import Attribution, Batch, Model, Targets
from salience.errors import BadInput, ImpreciseScores, choose
from salience.methods import quadrature
from salience.methods.gradient import dot, value_range
from salience.methods.quadrature import Rule
from salience.methods.sinks import sink

IMPRECISE = 0.1
"""The typical error, relative to the strongest score, from which on scores are said to be imprecise."""


def integrated_gradients(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    baseline: Replacement | None = None,
    tolerance: Positive = 0.01,
    max_nodes: Nodes = 129,
    nodes: Nodes | None = None,
    rule: Rule | None = None,
    without_sink: bool = False,
) -> Attribution:
    """The gradient averaged along the straight path from a baseline, times the path: (e_i − b_i) · ∫ ∂f/∂e_i dα.

    The number of nodes is adaptive: nodes are added where they are needed, until the typical error of every score is
    at most ``tolerance`` times the text's largest score, or ``max_nodes`` are used. That is an estimate, not a bound:
    about one text in ten has a larger error. With ``nodes``, every text gets that many, placed by ``rule``
    (Gauss-Legendre by default).

    ``without_sink`` leaves a decoder's first token as it is along the path, with a score of 0. On trained language
    models the integral usually converges only then.

    Paper: Sundararajan et al. 2017, arXiv:1703.01365, eq. 1
    Cost: 11 to max_nodes forward and backward, about 20 for a sentence; with nodes: that many, and 1 forward
    Needs: an embedding layer
    """
    baseline = baseline or usual(model)
    moved = batch.content & ~sink(model, batch) if without_sink else batch.content
    path = _Path(model, batch, target, replaced(model, batch, moved, baseline), model.embed(batch))
    if nodes is not None:
        return _fixed_nodes(path, rule or "gauss_legendre", nodes, {"baseline": baseline})
    if rule is not None:
        raise BadInput(
            f"rule={rule!r} needs a number of nodes, such as nodes=50; without it the nodes are chosen adaptively"
        )
    return _adaptive_nodes(path, tolerance, max_nodes, {"baseline": baseline})


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
        """(e − b) · ∂f/∂e per token, and f, at b + α (e − b), for any number of points on any text's path."""
        g, f = torch.zeros(len(text), self.batch.width, dtype=alpha.dtype), torch.zeros(len(text), dtype=alpha.dtype)

        def point(part: Pack) -> Tensor:
            # In half precision 1023/1024 rounds to 1, so the point is computed in float32 and rounded afterwards.
            start, end = self._ends(part, alpha.dtype)
            return torch.lerp(start, end, alpha[part.rows, None, None]).to(self.start)

        for part, result in observed(self.model, Rows(self.batch, text, point), self.target, Needs.GRADIENT):
            assert result.gradient is not None
            start, end = self._ends(part, alpha.dtype)
            rows, width = part.rows.cpu(), part.batch.width
            g[rows, :width] = _finite(dot(result.gradient, end - start), self.model).cpu()
            f[rows] = result.target(result.output.logits).cpu().to(f)
        return g * self.batch.mask.cpu()[text.cpu()], f

    def _ends(self, part: Pack, dtype: torch.dtype) -> tuple[Float[Tensor, "k w d"], Float[Tensor, "k w d"]]:
        width = part.batch.width
        return self.start[part.text, :width].to(dtype), self.end[part.text, :width].to(dtype)


def _finite(slopes: Tensor, model: Model) -> Tensor:
    if not bool(slopes.isfinite().all()):
        raise BadInput(
            f"the gradient of {model.name} is NaN or infinite on the path from the baseline: its norms divide by the "
            "size of a state, which may be 0 there, as with baseline='zero'. Use baseline='mean', lrp or occlusion."
        )
    return slopes


def _wide(x: Tensor) -> torch.dtype:
    """float32, or the model's own dtype if that is wider."""
    return torch.promote_types(x.dtype, torch.float32)


def _fixed_nodes(path: _Path, rule: str, nodes: int, settings: Mapping[str, object]) -> Attribution:
    """Σ_k w_k g(α_k), with the same nodes for every text."""
    alphas, weights = quadrature.fixed(rule, nodes)
    scores = torch.from_numpy(np.stack([weights @ g for g, _ in _at(path, [alphas] * len(path.batch))])).float()
    high = value(path.model, path.batch, path.target)
    low = value(path.model, path.batch, path.target, path.start)
    gaps = {"completeness": scores.sum(1) - (high - low).cpu()}
    return Attribution(scores.to(path.start.device), gaps, {**settings, "rule": rule})


def _adaptive_nodes(path: _Path, tolerance: float, most: int, settings: Mapping[str, object]) -> Attribution:
    """Add nodes to each text until its typical error is within the tolerance, independently of other texts."""
    if most < len(quadrature.FIRST):
        raise BadInput(
            f"max_nodes={most} must be at least {len(quadrature.FIRST)}; to use fewer, set their number with nodes"
        )
    digits = torch.finfo(path.start.dtype).eps
    curves = [quadrature.initial_curve(*result) for result in _at(path, [quadrature.FIRST] * len(path.batch))]
    while any(map(len, wanted := [quadrature.intervals_to_halve(c, tolerance, most, digits) for c in curves])):
        results = _at(path, [quadrature.midpoints(c)[w] for c, w in zip(curves, wanted, strict=True)])
        curves = [quadrature.refine(c, w, *result) for c, w, result in zip(curves, wanted, results, strict=True)]
    scores = torch.from_numpy(np.stack([c.integral for c in curves])).float()
    rises = torch.tensor([c.heights[-1] - c.heights[0] for c in curves])
    gaps = {"completeness": scores.sum(1) - rises.float(), "typical_error": torch.tensor([c.error for c in curves])}
    nodes = torch.tensor([len(c.alphas) for c in curves])
    _warn_of_errors(curves, most)
    return Attribution(scores.to(path.start.device), gaps, {**settings, "nodes": nodes})


def _warn_of_errors(curves: Sequence[quadrature.Curve], most: int) -> None:
    """Warn of integrals that did not converge, as on paths that start near 0, where a norm makes slopes steep."""
    ended = [(c.error, np.abs(c.integral).max()) for c in curves if len(c.alphas) >= most]
    far = [error / largest for error, largest in ended if error > IMPRECISE * largest]
    if far:
        warnings.warn(
            f"integrated_gradients did not converge for {len(far)} of {len(curves)} texts: with {most} nodes, the "
            f"typical error of a score is up to {max(far):.0%} of the strongest. Use lrp or occlusion, or another "
            "baseline; for a decoder, without_sink=True.",
            ImpreciseScores,
            stacklevel=2,
        )


def _at(path: _Path, alphas: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Slopes and f of every text at its own nodes."""
    counts = [len(a) for a in alphas]
    text = torch.arange(len(alphas)).repeat_interleave(torch.tensor(counts)).to(path.start.device)
    g, f = path.slopes(text, torch.from_numpy(np.concatenate(alphas)).to(text.device, _wide(path.start)))
    return zip(*([part.double().numpy() for part in values.split(counts)] for values in (g, f)), strict=True)


Reference = Literal["vocabulary", Replacement]


def gradient_shap(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    baseline: Reference = "vocabulary",
    samples: Count = 25,
    noise: NotNegative = 0.0,
    seed: Seed = 0,
) -> Attribution:
    """Integrated gradients in expectation over baselines and points: E[(e_i + ε − b_i) · ∂f/∂e_i (b + u (e + ε − b))].

    The baseline ``"vocabulary"`` replaces every token by a random one, drawn again for each sample. ``noise`` is the
    standard deviation of ε as a fraction of the range of the text's embedding values.

    Paper: Lundberg & Lee 2017, arXiv:1705.07874; the expectation Erion et al. 2021, arXiv:1906.10670
    Cost: samples forward and backward, samples + 1 forward
    Needs: an embedding layer
    """
    fixed = None if choose(baseline, get_args(Reference), "baseline") == "vocabulary" else replacement(model, baseline)
    e = model.embed(batch)
    paths = _RandomPaths(model, batch, e, fixed, noise * value_range(e, batch), noise, Draws(batch, seed), samples)
    text = torch.arange(len(batch), device=e.device).repeat_interleave(samples)
    scores, low = torch.zeros(batch.ids.shape, device=e.device), torch.zeros(len(batch), device=e.device)
    for part, result in observed(model, Rows(batch, text, paths.points), target, Needs.GRADIENT):
        assert result.gradient is not None
        start, end, _ = paths(part)
        g = dot(result.gradient, end - start) * part.batch.mask
        scores[:, : part.batch.width].index_add_(0, part.text, (g / samples).to(scores))
    for part, result in observed(model, Rows(batch, text, paths.starts), target, Needs.NOTHING):
        low.index_add_(0, part.text, result.target(result.output.logits).float() / samples)
    return Attribution(scores, {"completeness": scores.sum(1) - (value(model, batch, target) - low)})


@dataclass(frozen=True, slots=True, eq=False)
class _RandomPaths:
    """A path and a point on it for every sample of every text, drawn by the text's own generator."""

    model: Model
    batch: Batch
    e: Float[Tensor, "b t d"]
    fixed: Float[Tensor, " d"] | None
    """The start of all paths; None for random words."""
    spread: Float[Tensor, "b 1 1"]
    noise: float
    draws: Draws
    samples: int

    def __call__(self, part: Pack) -> tuple[Float[Tensor, "k w d"], Float[Tensor, "k w d"], Float[Tensor, " k"]]:
        """Both ends of each row's path, and the position on it at which the gradient is taken."""
        u, words, epsilon = zip(*(self._draw(int(row)) for row in part.rows), strict=True)
        end = self.e[part.text, : part.batch.width]
        if self.noise:
            end = end + self.spread[part.text] * padded(list(epsilon), part.batch).to(end)
        start = self._start(part.batch, padded(list(words), part.batch))
        wide = _wide(end)
        return start.to(wide), end.to(wide), torch.stack(u).to(end.device, wide)

    def points(self, part: Pack) -> Float[Tensor, "k w d"]:
        start, end, u = self(part)
        return torch.lerp(start, end, u[:, None, None]).to(self.e)

    def starts(self, part: Pack) -> Float[Tensor, "k w d"]:
        return self(part)[0].to(self.e)

    def _draw(self, row: int) -> tuple[Float[Tensor, ""], Int[Tensor, " n"], Float[Tensor, "n d"]]:
        text, number = divmod(row, self.samples)
        n, vocabulary = int(self.batch.mask[text].sum()), self.model.words.num_embeddings
        size = self.e.shape[-1] if self.noise else 0
        return self.draws(
            text,
            number,
            lambda rng: (
                torch.rand((), generator=rng),
                torch.randint(vocabulary, (n,), generator=rng),
                torch.randn(n, size, generator=rng),
            ),
        )

    def _start(self, batch: Batch, words: Int[Tensor, "k w"]) -> Float[Tensor, "k w d"]:
        """The random words, or the fixed replacement; special tokens are kept."""
        if self.fixed is None:
            return self.model.embed(replace(batch, ids=torch.where(batch.content, words, batch.ids)))
        return torch.where(batch.content[..., None], self.fixed, self.model.embed(batch))
