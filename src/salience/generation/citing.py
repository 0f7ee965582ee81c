"""ContextCite: a sparse linear model of how an answer depends on the segments of its prompt."""

import numpy as np
import torch
from jaxtyping import Bool
from numpy import ndarray
from torch import Tensor

from salience.core.erasure import Erasure
from salience.core.randomness import generators
from salience.core.rows import erased_values
from salience.core.settings import NotNegative, Pairs, Seed
from salience.core.types import Attribution, Batch, Model, Targets
from salience.methods.perturbation import Unit, coalitions, fewest_units, spread, unit_numbers

PRECISION = 1e-10
MOST_SWEEPS = 10_000


def context_cite(
    model: Model,
    batch: Batch,
    target: Targets,
    /,
    *,
    samples: Pairs = 64,
    regularization: NotNegative = 0.01,
    erase: Erasure = "delete",
    unit: Unit = "word",
    seed: Seed = 0,
) -> Attribution:
    """Weights of a sparse linear model of the answer's log-odds, fitted to prompts with random segments left out.

    For random masks v, half of the segments each, y(v) = log p − log(1 − p) with p = p(answer | prompt without the
    rest), per token of the answer; the weights minimise ½ mean_v (y − b − w·v)² + regularization · ‖w‖₁ over
    standardised masks. A mask keeps at least one segment if nothing of the prompt is outside of them. The gap ``fit``
    is 1 − R².

    Paper: Cohen-Wang et al. 2024, ContextCite: Attributing Model Generation to Context, arXiv:2409.00729
    Cost: samples forward
    Needs: a language model; the log-probability of an answer is explained
    """
    units = unit_numbers(batch, unit)
    counts = (units.amax(1) + 1).tolist()
    fewest = fewest_units(model, batch, units, erase)
    drawn = [_masks(samples, n, low, rng) for n, low, rng in zip(counts, fewest, generators(batch, seed), strict=True)]
    values = erased_values(model, batch, target, coalitions(units, drawn), erase).double().cpu().split(samples)
    tokens = _tokens(target)
    fits = [_fit(z.numpy(), y.numpy(), n, regularization) for z, y, n in zip(drawn, values, tokens, strict=True)]
    scores = spread(units, [torch.from_numpy(w) for w, _ in fits])
    return Attribution(scores, gaps={"fit": torch.tensor([gap for _, gap in fits])}, settings={"erase": erase})


def _masks(samples: int, n: int, fewest: int, rng: torch.Generator) -> Bool[Tensor, "m u"]:
    """Segments to keep, each with probability ½, but the ``fewest`` with the lowest numbers in any case."""
    numbers = torch.rand(samples, n, generator=rng)
    return (numbers < 0.5) | (numbers.argsort(1).argsort(1) < min(fewest, n - 1))


def _tokens(target: Targets) -> list[int]:
    """The number of tokens that each log-probability is a sum over."""
    assert target.read_from is not None
    return (target.read_from > 0).sum(1).tolist()


def log_odds(log_p: ndarray) -> ndarray:
    """log p − log(1 − p), where p may be tiny or almost 1."""
    log_p = np.minimum(log_p, -np.finfo(float).eps)
    return log_p - np.log(-np.expm1(log_p))


def _fit(z: ndarray, log_p: ndarray, tokens: int, regularization: float) -> tuple[ndarray, float]:
    """Weights per segment, and 1 − R². The regularisation is that of a log-odds per token of the answer."""
    y = log_odds(log_p) / tokens
    scale = z.std(0)
    x = np.divide(z - z.mean(0), scale, out=np.zeros(z.shape), where=scale > 0)
    w = lasso(x, y - y.mean(), regularization)
    variance = y.var()
    gap = float(np.square(y - y.mean() - x @ w).mean() / variance) if variance else 0.0
    return np.divide(w * tokens, scale, out=np.zeros_like(w), where=scale > 0), gap


def lasso(x: ndarray, y: ndarray, alpha: float) -> ndarray:
    """argmin_w 1/(2n) ‖y − x w‖² + α ‖w‖₁ by coordinate descent, for columns and y of mean 0."""
    n, w, rest = len(x), np.zeros(x.shape[1]), y.copy()
    squares = np.square(x).sum(0)
    for _ in range(MOST_SWEEPS):
        largest = 0.0
        for j in np.flatnonzero(squares):
            before = w[j]
            slope = x[:, j] @ rest + squares[j] * before
            w[j] = np.sign(slope) * max(abs(slope) - n * alpha, 0.0) / squares[j]
            if w[j] != before:
                rest -= x[:, j] * (w[j] - before)
            largest = max(largest, abs(w[j] - before))
        if largest <= PRECISION * max(1.0, np.abs(w).max(initial=0.0)):
            break
    return w
