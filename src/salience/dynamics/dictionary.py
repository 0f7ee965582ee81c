"""The dictionary that co-occurrence alone contains: which word of an answer comes with which word of a source."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import csr_matrix
from torch import Tensor, nn

TokenPair = tuple[Sequence[int], Sequence[int]]
"""The tokens of a source and of its answer."""


@dataclass(frozen=True, slots=True, eq=False)
class CoOccurrence:
    """In how many pairs a word of the answer and a word of the source occur together, and each by itself."""

    together: csr_matrix
    answers: Float[np.ndarray, " o"]
    sources: Float[np.ndarray, " i"]

    @classmethod
    def of(cls, pairs: Iterable[TokenPair], vocabulary: int) -> "CoOccurrence":
        """Count the pairs; a word that occurs twice in a text counts once."""
        known = list(pairs)
        there = [_occurrences([pair[side] for pair in known], vocabulary) for side in (1, 0)]
        sums = [np.asarray(one.sum(0), dtype=float).ravel() for one in there]
        return cls(csr_matrix(there[0].T @ there[1]), *sums)

    def counts(self, answer: Sequence[int], source: Sequence[int]) -> Float[np.ndarray, "t s"]:
        """n(o, i) for the words of an answer and of a source."""
        return np.asarray(self.together[list(answer)][:, list(source)].todense(), dtype=float)

    def association(self, answer: Sequence[int], source: Sequence[int]) -> Float[np.ndarray, "t s"]:
        """n(o, i) / (n(o) n(i)); 0 for words that never occurred."""
        alone = np.outer(self.answers[list(answer)], self.sources[list(source)])
        return self.counts(answer, source) / np.maximum(alone, 1)


def _occurrences(texts: Sequence[Sequence[int]], vocabulary: int) -> csr_matrix:
    """1 where a text (row) holds a word (column)."""
    rows = [(n, word) for n, text in enumerate(texts) for word in set(text)]
    places = np.array(rows, dtype=int).reshape(-1, 2).T
    return csr_matrix((np.ones(len(rows)), (places[0], places[1])), shape=(len(texts), vocabulary))


class Proxy(nn.Module):
    """A model without order and attention: softmax over words of the answer, from the mean embedding of the source.

    Paper: Snell et al. 2021, arXiv:2103.07601 (β^px)
    """

    def __init__(self, vocabulary: int, size: int = 256) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(vocabulary, size, mode="mean")
        self.output = nn.Linear(size, vocabulary)

    def forward(self, ids: Int[Tensor, " n"], starts: Int[Tensor, " b"]) -> Float[Tensor, "b v"]:
        return self.output(self.words(ids, starts)).log_softmax(-1)

    @torch.no_grad()
    def association(self, answer: Sequence[int], source: Sequence[int]) -> Float[np.ndarray, "t s"]:
        """p(o | i): what a source of this word alone predicts."""
        logits = self.output(self.words.weight[list(source)])
        return logits.softmax(-1)[:, list(answer)].T.double().numpy()


def fit_proxy(
    pairs: Sequence[TokenPair],
    vocabulary: int,
    *,
    size: int = 256,
    epochs: int = 10,
    rate: float = 2e-3,
    batch: int = 64,
    seed: int = 0,
) -> Proxy:
    """Train the proxy: −Σ_{o ∈ y} log p(o | x), a mean over pairs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        proxy = Proxy(vocabulary, size)
    optimiser = torch.optim.Adam(proxy.parameters(), lr=rate)
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(len(pairs))
        for start in range(0, len(pairs), batch):
            chosen = [pairs[i] for i in order[start : start + batch]]
            log_p = proxy(*_bags([source for source, _ in chosen]))
            rows = torch.tensor([n for n, (_, answer) in enumerate(chosen) for _ in answer])
            words = torch.tensor([word for _, answer in chosen for word in answer])
            loss = -log_p[rows, words].sum() / len(chosen)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return proxy


def _bags(texts: Sequence[Sequence[int]]) -> tuple[Int[Tensor, " n"], Int[Tensor, " b"]]:
    """All words of some texts, and where each text starts."""
    sizes = torch.tensor([0, *(len(text) for text in texts[:-1])])
    return torch.tensor([word for text in texts for word in text]), sizes.cumsum(0)
