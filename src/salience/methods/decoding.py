"""Language model heads for layers, and how well a layer's states still encode their own tokens."""

import json
import warnings
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from salience.core.executor import Executor
from salience.core.passes import forward
from salience.core.rows import batches
from salience.core.text import Text
from salience.core.types import Batch, Decodes, LanguageHead, Model, Spells
from salience.errors import BadInput, TruncatedText, UnsupportedModel
from salience.models.bundled import sample
from salience.models.heads import FittedHead, transformation, word_scores

TOLERANCE = log(2)
"""A layer is coherent if the geometric mean probability of its tokens is at least half that of the best layer."""


def find_head(model: Model, head: str | LanguageHead | None) -> LanguageHead:
    """Return the given head, a fitted head from its file, or the head that the model provides."""
    if head is not None and not isinstance(head, str):
        return head
    if head is not None and head.endswith(".safetensors"):
        return FittedHead.load(head, model)
    if isinstance(model, Decodes):
        return model.lm_head(head)
    raise UnsupportedModel(
        f"{model.name} has no language model head. Fit one on unlabelled text with salience.methods.fit_head and pass "
        "it as head=, or skip the decoding with decode='identity' and a layer."
    )


def head_logits(
    executor: Executor, head: LanguageHead, states: Float[Tensor, "n k"]
) -> Iterator[tuple[list[int], Float[Tensor, "p v"]]]:
    """Logits of a few states at a time, within the memory that a pass of the model takes."""
    cost = max(1, head.vocabulary // (4 * states.shape[1]))
    return executor.run([cost] * len(states), lambda items: head(states[items]).float())


@dataclass(frozen=True, slots=True)
class Coherence:
    """How well the head recovers the input from a layer's states, averaged over tokens."""

    layer: int
    log_probability: float
    """The log-probability of the token itself, in nats."""
    recovery: float
    """The fraction of tokens that the head ranks first."""
    reciprocal_rank: float


def coherence(model: Model, texts: Sequence[Text], *, head: str | LanguageHead | None = None) -> list[Coherence]:
    """Measure how well each layer's states still encode their own tokens, special tokens excluded. Needs no labels.

    >>> [c.recovery for c in coherence(model, texts)]        # doctest: +SKIP
    """
    lm = find_head(model, head)
    tokens, sums = 0, dict[int, Tensor]()
    for _, (count, layers) in batches(model, model.encode(texts), lambda batch, _: _by_layer(model, batch, lm)):
        tokens += count
        sums = {layer: sums.get(layer, 0) + total for layer, total in layers.items()}
    return [Coherence(layer, *(total / tokens).tolist()) for layer, total in sums.items()]


@dataclass(frozen=True, slots=True)
class Decoded:
    """The words that a layer's state at one token decodes to, the most probable first."""

    token: str
    words: tuple[str, ...]
    probabilities: tuple[float, ...]


def decode_layers(
    model: Model, text: Text, *, top: int = 3, head: str | LanguageHead | None = None
) -> dict[int, list[Decoded]]:
    """Decode every layer's states of a text to words of the vocabulary, by layer and token.

    >>> decode_layers(model, "big dog")[2][1].words        # doctest: +SKIP
    ('big', 'large', 'small')
    """
    if top < 1:
        raise BadInput(f"top={top} is too few; show at least 1 word per token")
    if not isinstance(model, Spells):
        raise UnsupportedModel(f"{model.name} cannot spell the words of its vocabulary")
    lm, (encoded,) = find_head(model, head), model.encode([text])
    hidden = forward(model, model.batch([encoded]), hidden=True).hidden
    return {
        layer: _most_probable(model, lm, h[0], encoded.tokens, min(top, lm.vocabulary))
        for layer, h in enumerate(hidden)
        if h.shape[-1] == hidden[-1].shape[-1]
    }


def _most_probable(
    model: Model, head: LanguageHead, states: Float[Tensor, "n k"], tokens: Sequence[str], top: int
) -> list[Decoded]:
    assert isinstance(model, Spells)
    result = dict[int, Decoded]()
    for items, logits in head_logits(model.executor, head, states):
        probabilities, ids = logits.softmax(1).topk(top)
        for item, p, own in zip(items, probabilities.tolist(), ids.tolist(), strict=True):
            # A special token has no text of its own.
            words = (text.strip() or f"#{i}" for i, text in zip(own, model.spell(own), strict=True))
            result[item] = Decoded(tokens[item], tuple(words), tuple(p))
    return [result[item] for item in range(len(tokens))]


def _by_layer(model: Model, batch: Batch, head: LanguageHead) -> tuple[int, dict[int, Float[Tensor, " 3"]]]:
    """The number of text tokens, and the sums over them for each layer."""
    hidden, ids = forward(model, batch, hidden=True).hidden, batch.ids[batch.content]
    return len(ids), {
        layer: _recovery_sums(model.executor, head, h[batch.content], ids)
        for layer, h in enumerate(hidden)
        if h.shape[-1] == hidden[-1].shape[-1]  # a pooled model's embeddings may be narrower than its states
    }


def _recovery_sums(
    executor: Executor, head: LanguageHead, states: Float[Tensor, "n k"], ids: Int[Tensor, " n"]
) -> Float[Tensor, " 3"]:
    """Sums of the log-probability, of rank = 1, and of 1 / rank."""
    sums = torch.zeros(3, dtype=torch.float64)
    for items, logits in head_logits(executor, head, states):
        own = logits.gather(1, ids[items, None])
        rank = 1 + (logits > own).sum(1)
        sums += torch.stack([(own[:, 0] - logits.logsumexp(1)).sum(), (rank == 1).sum(), (1 / rank).sum()]).cpu()
    return sums


def _text_sums(model: Model, batch: Batch, head: LanguageHead, last: int) -> tuple[list[int], dict[int, list[float]]]:
    """The number of each text's tokens, and for layers 1 to ``last`` their log-probabilities, added up."""
    hidden, ids = forward(model, batch, hidden=True).hidden, batch.ids[batch.content]
    rows = batch.content.nonzero()[:, 0]
    sums: dict[int, list[float]] = {}
    for layer, h in enumerate(hidden[: last + 1]):
        if layer == 0 or h.shape[-1] != hidden[-1].shape[-1]:
            continue
        total = torch.zeros(len(batch), dtype=torch.float64, device=ids.device)
        for items, logits in head_logits(model.executor, head, h[batch.content]):
            own = logits.gather(1, ids[items, None])[:, 0] - logits.logsumexp(1)
            total.index_add_(0, rows[items], own.double())
        sums[layer] = total.tolist()
    return batch.content.sum(1).tolist(), sums


def automatic_layer(model: Model, head: LanguageHead) -> int:
    """Return the deepest layer whose coherence is within the tolerance of the best, measured on the bundled sample.

    The last layer is excluded if the output depends on only one of its tokens, as its other states have no effect, and
    that of a decoder, which is followed by a norm.
    Texts are read until the choice is certain; see :func:`certain`. The layer is chosen again when the model's weights
    have changed.
    """
    state = _state(model)
    if state not in head.layers:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TruncatedText)  # not the caller's texts
            whole = model.reads == "all" and not model.causal
            last = model.layers if model.layers == 1 or whole else model.layers - 1
            head.layers[state] = _deepest_coherent(model, head, last)
    return head.layers[state]


FIRST = 8
"""Texts that are read first to choose a layer; then as many again as were read before."""

CERTAIN = 6.0
"""Standard errors that every layer must be away from the tolerance for a choice to be certain."""


def _deepest_coherent(model: Model, head: LanguageHead, last: int) -> int:
    encoded, sums, sizes = model.encode(_sample()), dict[int, list[float]](), list[int]()
    every = np.zeros((0, 0))
    while len(sizes) < len(encoded) and not (sizes and certain(every, np.array(sizes))):
        block = encoded[len(sizes) : max(FIRST, 2 * len(sizes))]
        for _, (counts, layers) in batches(model, block, lambda batch, _: _text_sums(model, batch, head, last)):
            sizes += counts
            for layer, values in layers.items():
                sums.setdefault(layer, []).extend(values)
        every = np.array(list(sums.values()))
    curve = every.sum(1) / sum(sizes)
    return max(layer for layer, value in zip(sums, curve, strict=True) if value >= curve.max() - TOLERANCE)


def certain(sums: Float[np.ndarray, "l n"], sizes: Int[np.ndarray, " n"]) -> bool:
    """Whether more texts could hardly change which layers are within the tolerance of the best.

    ``sums`` are the log-probabilities of layers, summed over the tokens of each text. Differences from the best layer
    are means over tokens, whose standard errors are those of a ratio of sums over texts.
    """
    d = sums - sums[sums.sum(1).argmax()]
    mean = d.sum(1, keepdims=True) / sizes.sum()
    error = np.sqrt(np.square(d - mean * sizes).sum(1)) / sizes.sum()
    return bool((np.abs(mean[:, 0] + TOLERANCE) > CERTAIN * error).all())


def _state(model: Model) -> Hashable:
    """Identify the weights and their in-place version counters, which training changes."""
    return tuple((p.data_ptr(), p._version) for p in model.module.parameters())


def _sample() -> list[str]:
    return [json.loads(line)["text"] for line in sample()]


def fit_head(
    model: Model, texts: Sequence[Text], *, seed: int = 0, steps: int = 1000, rate: float = 2e-3, tokens: int = 256
) -> FittedHead:
    """Fit a head to the last layer of a frozen model: arg min_f Σ_i CE(x_i, f(h_L,i)).

    No labels are needed. Every tenth text is held out to measure the recovery rate. One step uses ``tokens`` tokens.
    """
    held_out, training = texts[::10], [t for n, t in enumerate(texts) if n % 10]
    if not training:
        raise BadInput(
            f"a head cannot be fitted on {len(texts)} texts; pass a few hundred texts (labels are not needed)"
        )
    states, ids = _last_states(model, training)
    transform, bias = _fitted(states, ids, model.words.weight.detach(), seed, steps, rate, tokens)
    recovery = coherence(model, held_out, head=FittedHead(transform, bias, model.words, 0.0))[-1].recovery
    return FittedHead(transform, bias, model.words, recovery)


def _last_states(model: Model, texts: Sequence[Text]) -> tuple[Float[Tensor, "n k"], Int[Tensor, " n"]]:
    def read(batch: Batch, _: list[int]) -> tuple[Tensor, Tensor]:
        return forward(model, batch, hidden=True).hidden[-1][batch.mask].float(), batch.ids[batch.mask]

    pairs = [pair for _, pair in batches(model, model.encode(texts), read)]
    return torch.cat([states for states, _ in pairs]), torch.cat([ids for _, ids in pairs])


def _fitted(
    states: Tensor, ids: Tensor, words: Tensor, seed: int, steps: int, rate: float, tokens: int
) -> tuple[nn.Sequential, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transform = transformation(states.shape[1], words.shape[1]).to(states.device)
    bias = torch.zeros(len(words), device=states.device, requires_grad=True)
    optimiser = torch.optim.AdamW([*transform.parameters(), bias], lr=rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, steps)
    for _ in range(steps):
        rows = torch.randint(len(states), (min(tokens, len(states)),), generator=rng).to(states.device)
        loss = nn.functional.cross_entropy(word_scores(transform, bias, words, states[rows]), ids[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return transform.requires_grad_(False).eval(), bias.detach()
