"""Layer saliency: the scores of a hidden layer, read back as words of the input by a language model head."""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from typing import Literal, get_args
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from salience.batching import chunks, pack
from salience.erasure import Replacement, replaced, usual
from salience.errors import BadInput, BadModel, TruncatedText, UnsupportedModel, choose
from salience.methods import quadrature
from salience.methods.attention import SIGNS, Layer, Sign, numbered
from salience.methods.gradient import reduced
from salience.models import sample
from salience.passes import Needs, Pass, differentiate, forward, one_pass
from salience.types import Attribution, Batch, Decodes, LanguageHead, Model, Text

Score = Literal["input_x_gradient", "gradient", "integrated_gradients"]
SCORES = get_args(Score)
Decode = Literal["softmax", "logits", "restricted", "identity"]
DECODES = get_args(Decode)
Normalise = Literal["rows", "columns"]

TOLERANCE = log(2)
"""A layer counts as coherent while its words are, in geometric mean, at least half as probable as at the best layer."""


@one_pass(Needs.HIDDEN)
def layer_saliency(
    seen: Pass,
    *,
    layer: Layer = None,
    score: Score = "input_x_gradient",
    decode: Decode = "softmax",
    normalise: Normalise | None = None,
    position: float = 0.0,
    sign: Sign = "positive",
    head: str | LanguageHead | None = None,
    baseline: Replacement | None = None,
    nodes: int = 20,
) -> Attribution:
    """What a layer's states contribute, given to the words they stand for: ReLU(D_l v_l), D_l[t, i] = P_l[i, id(x_t)].

    v_i = Σ_k ∂f/∂h_ik · h_ik, and P_l is the LM head's softmax over the vocabulary. Layer 0 is the embeddings, where D
    is the identity; ``layer=None`` takes the deepest layer that is still coherent (see :func:`coherence`).

    Paper: Hou & Castanon 2023, Decoding Layer Saliency in Language Transformers, arXiv:2308.05219
    Cost: 1 forward, 1 backward for all layers, and the head once per layer; nodes as many for integrated_gradients
    Needs: hidden states and a language model head (none for layer 0 or decode="identity")
    """
    _check(score, decode, normalise, position, sign)
    model, batch = seen.model, seen.batch
    lm = find_head(model, head) if layer is None or (layer != 0 and decode != "identity") else None
    number = _automatic(model, lm) if lm and layer is None else numbered(layer, model, of=model.layers, first=0)
    v = _contributions(seen, number, score, baseline, nodes)
    if lm is None or number == 0 or decode == "identity":
        s, described = v.scores, {"head": None}
    else:
        D = _decoded(lm, seen.output.hidden[number], batch, model.budget, decode)
        s, described = (_shaped(D, batch, position, normalise) @ v.scores[..., None])[..., 0], lm.description
    s = s.relu() if sign == "positive" else s
    return Attribution(s * batch.content, v.gaps, {"layer": number, **described, **v.settings})


def _check(score: str, decode: str, normalise: str | None, position: float, sign: str) -> None:
    choose(score, SCORES, "score")
    choose(decode, DECODES, "decode")
    choose(sign, SIGNS, "sign")
    if not 0 <= position <= 1:
        raise BadInput(f"position={position} is not between 0 (by word alone) and 1 (by place alone)")
    if normalise is not None:
        choose(normalise, get_args(Normalise), "normalise")
        if decode == "logits":
            raise BadInput("logits have both signs and cannot be normalised; use decode='restricted' or 'softmax'")


def find_head(model: Model, head: str | LanguageHead | None) -> LanguageHead:
    """The head itself, a fitted one from its file, or the one that the model finds."""
    if head is not None and not isinstance(head, str):
        return head
    if head is not None and head.endswith(".safetensors"):
        return _from_file(head, model)
    if isinstance(model, Decodes):
        return model.lm_head(head)
    raise UnsupportedModel(
        f"{model.name} has no language model head. Fit one on unlabelled text with salience.methods.layers.fit_head "
        "and give it as head=, or leave the scores undecoded (decode='identity' with a layer)."
    )


_FROM_FILES: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], LanguageHead]] = WeakKeyDictionary()
"""Heads by the model they were fitted to: every batch asks for its head, which knows its automatic layer."""


def _from_file(path: str, model: Model) -> LanguageHead:
    """A fitted head, read once for a model as long as neither the file nor the model's place changes."""
    known = _FROM_FILES.setdefault(model.module, {})
    changed = Path(path).stat().st_mtime_ns if Path(path).exists() else None
    key = (path, changed, model.words.weight.device)
    if key not in known:
        known[key] = FittedHead.load(path, model)
    return known[key]


def _contributions(seen: Pass, number: int, score: str, baseline: Replacement | None, nodes: int) -> Attribution:
    """v: what the state at each position contributes to the explained number."""
    h, g = seen.output.hidden[number], seen.hidden_gradient[number]
    if score == "gradient":
        return Attribution(reduced(g, "l2") * seen.batch.mask)
    if score == "input_x_gradient":
        return Attribution((h * g).float().sum(-1) * seen.batch.mask)
    return _along_path(seen, number, baseline or usual(seen.model), nodes)


def _along_path(seen: Pass, number: int, baseline: Replacement, nodes: int) -> Attribution:
    """Integrated gradients from the states that the baseline input has at this layer."""
    model, batch = seen.model, seen.batch
    start = forward(model, batch, embeddings=replaced(model, batch, batch.content, baseline), hidden=True)
    wide = torch.promote_types(start.hidden[number].dtype, torch.float32)
    h = start.hidden[number].to(wide)
    way = seen.output.hidden[number] - h
    alphas, weights = (torch.from_numpy(x).to(h) for x in quadrature.fixed("gauss_legendre", nodes))
    mean = torch.zeros_like(h)
    for part in chunks(len(batch) * nodes, batch.width, model.budget):
        rows = torch.arange(part.start, part.stop, device=h.device)
        text, node = rows // nodes, rows % nodes
        at = (h[text] + alphas[node, None, None] * way[text]).to(seen.output.hidden[number])
        mean.index_add_(0, text, _gradient_at(seen, number, text, at) * weights[node, None, None])
    v = (mean * way).float().sum(-1) * batch.mask
    drop = seen.target(seen.output.logits) - seen.target(start.logits)
    return Attribution(v, {"completeness": v.sum(1) - drop}, {"baseline": baseline})


def _gradient_at(seen: Pass, number: int, text: Int[Tensor, " r"], at: Float[Tensor, "r t k"]) -> Tensor:
    """df/dh where the layer's states are ``at``."""
    at.requires_grad_()
    found = differentiate(
        seen.model,
        seen.batch.take(text),
        seen.target.take(text),
        needs=Needs.HIDDEN,
        edit_hidden=lambda n, h: at if n == number else h,
    )
    return found.hidden_gradient[number]


def _decoded(
    head: LanguageHead, hidden: Float[Tensor, "b t k"], batch: Batch, budget: int, decode: str
) -> Float[Tensor, "b t t"]:
    """D[t, i]: how much the state at i says the word at t. Only the columns of the text's own words are kept."""
    said = _probabilities(head, hidden, batch, budget) if decode == "softmax" else head(hidden, batch.ids).float()
    if decode == "restricted":
        every = said.masked_fill(~_first_of_its_word(batch)[:, None], -torch.inf)
        said = (said - every.logsumexp(2, keepdim=True)).exp()
    return (said * (batch.mask[:, :, None] & batch.mask[:, None])).transpose(1, 2)


def _probabilities(
    head: LanguageHead, hidden: Float[Tensor, "b t k"], batch: Batch, budget: int
) -> Float[Tensor, "b t t"]:
    """Of the text's own words among all words, at every real state."""
    rows = batch.mask.nonzero()[:, 0]
    P = hidden.new_zeros(*batch.ids.shape, batch.width, dtype=torch.float32)
    P[batch.mask] = torch.cat(
        [
            (logits.gather(1, batch.ids[rows[part]]) - logits.logsumexp(1, keepdim=True)).exp()
            for part, logits in _logits(head, hidden[batch.mask], budget)
        ]
    )
    return P


def _first_of_its_word(batch: Batch) -> Bool[Tensor, "b t"]:
    """Real tokens that have not come before in their text."""
    same = batch.ids[:, :, None] == batch.ids[:, None]
    return batch.mask & ~(same.tril(-1) & batch.mask[:, None]).any(2)


def _logits(
    head: LanguageHead, states: Float[Tensor, "n k"], budget: int
) -> Iterator[tuple[slice, Float[Tensor, "p v"]]]:
    """Logits of some states at a time: no more numbers than the widest layer of a pass within the budget holds."""
    for part in chunks(len(states), head.vocabulary, budget * 4 * states.shape[1]):
        yield part, head(states[part]).float()


def _shaped(D: Float[Tensor, "b t t"], batch: Batch, position: float, normalise: str | None) -> Float[Tensor, "b t t"]:
    """D with a word's own place weighed up, rows or columns normalised."""
    mixed = D * ((1 - position) + position * torch.eye(batch.width, device=D.device)) if position else D
    if normalise is None:
        return mixed
    return mixed / mixed.sum(2 if normalise == "rows" else 1, keepdim=True).clamp_min(torch.finfo(D.dtype).tiny)


@dataclass(frozen=True, slots=True)
class Coherence:
    """How well the head finds the input in a layer's states, as means over tokens."""

    layer: int
    log_probability: float
    """Of the token itself, in nats."""
    recovery: float
    """Share of tokens that are the head's first choice."""
    reciprocal_rank: float


def coherence(model: Model, texts: Sequence[Text], *, head: str | LanguageHead | None = None) -> list[Coherence]:
    """How well each layer's states still say which token they stand for; needs no labels, special tokens left out.

    >>> [c.recovery for c in coherence(model, texts)]        # doctest: +SKIP
    """
    lm = find_head(model, head)
    sums: dict[int, Tensor] = {}
    tokens = 0
    for batch in _batches(model, texts):
        tokens += int(batch.content.sum())
        hidden = forward(model, batch, hidden=True).hidden
        for layer, h in enumerate(hidden):
            if h.shape[-1] == hidden[-1].shape[-1]:  # a pooled model's embeddings may be narrower than its states
                found = _recovered(lm, h[batch.content], batch.ids[batch.content], model.budget)
                sums[layer] = sums.get(layer, 0) + found
    return [Coherence(layer, *(total / tokens).tolist()) for layer, total in sums.items()]


def _batches(model: Model, texts: Sequence[Text]) -> Iterator[Batch]:
    encoded = model.encode(texts)
    for rows in pack([len(e) for e in encoded], model.budget):
        yield model.batch([encoded[i] for i in rows])


def _recovered(
    head: LanguageHead, states: Float[Tensor, "n k"], ids: Int[Tensor, " n"], budget: int
) -> Float[Tensor, " 3"]:
    """Sums of log-probability, of being first, and of 1 / rank."""
    sums = torch.zeros(3, dtype=torch.float64)
    for part, logits in _logits(head, states, budget):
        own = logits.gather(1, ids[part, None])
        rank = 1 + (logits > own).sum(1)
        sums += torch.stack([(own[:, 0] - logits.logsumexp(1)).sum(), (rank == 1).sum(), (1 / rank).sum()]).cpu()
    return sums


def _automatic(model: Model, head: LanguageHead) -> int:
    """The deepest layer whose coherence is within the tolerance of the best, measured once on the bundled sample.

    Not the last, if the classifier reads a single token of it: what the others hold there decides nothing.
    """
    version = sum(p._version for p in model.module.parameters())  # training changes it
    if version not in head.layers:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TruncatedText)  # these are not the caller's texts
            last = model.layers if model.layers == 1 or _reads_several(model) else model.layers - 1
            curve = [c for c in coherence(model, _sample(), head=head) if 0 < c.layer <= last]
        best = max(c.log_probability for c in curve)
        head.layers[version] = max(c.layer for c in curve if c.log_probability >= best - TOLERANCE)
    return head.layers[version]


def _reads_several(model: Model) -> bool:
    return bool((model.read_from(model.batch(model.encode(_sample()[:1]))) > 0).sum() > 1)


def _sample() -> list[str]:
    return [json.loads(line)["text"] for line in sample()]


@dataclass(frozen=True, eq=False)
class FittedHead:
    """dense → GELU → LayerNorm → the model's own word embeddings + bias, fitted on a frozen model."""

    transform: nn.Sequential
    bias: Float[Tensor, " v"]
    words: nn.Embedding
    recovery: float
    """Share of held-out tokens that are its first choice at the last layer."""
    layers: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def vocabulary(self) -> int:
        return len(self.bias)

    @property
    def description(self) -> Mapping[str, object]:
        return {"head": "fitted", "recovery": self.recovery}

    def __call__(self, hidden: Float[Tensor, "*n k"], ids: Int[Tensor, "b m"] | None = None) -> Float[Tensor, "*n m"]:
        with torch.no_grad():
            return _scores(self.transform, self.bias, self.words.weight, hidden.float(), ids)

    def save(self, path: str | Path) -> None:
        """Write the fitted weights, without the model's word embeddings, to a .safetensors file."""
        tensors = {**self.transform.state_dict(), "bias": self.bias}
        save_file(tensors, path, metadata={"recovery": str(self.recovery)})

    @classmethod
    def load(cls, path: str | Path, model: Model) -> "FittedHead":
        """Read a head that was fitted to this model."""
        try:
            with safe_open(path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                recovery = float((file.metadata() or {})["recovery"])
            bias = tensors.pop("bias")
            transform = _transform(tensors["0.weight"].shape[1], tensors["0.weight"].shape[0])
            transform.load_state_dict(tensors)
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            raise BadModel(f"{path} holds no head that fit_head has saved: {error}") from error
        if (len(bias), len(tensors["0.bias"])) != tuple(model.words.weight.shape):
            raise BadModel(f"the head in {path} was fitted to another model: its vocabulary or width differs")
        device = model.words.weight.device
        return cls(transform.to(device), bias.to(device), model.words, recovery)


def _transform(inner: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inner, width), nn.GELU(), nn.LayerNorm(width))


def _scores(
    transform: nn.Sequential, bias: Tensor, words: Tensor, hidden: Tensor, ids: Int[Tensor, "b m"] | None = None
) -> Tensor:
    if ids is not None:
        words, bias = words[ids], bias[ids][:, None]
    return transform(hidden) @ words.float().mT + bias


def fit_head(
    model: Model, texts: Sequence[Text], *, seed: int = 0, steps: int = 1000, rate: float = 2e-3, tokens: int = 256
) -> FittedHead:
    """Fit a head to the last layer of a frozen model: arg min_f Σ_i CE(x_i, f(h_L,i)).

    No labels are needed. Every tenth text is held out to measure the recovery rate. ``tokens`` make one step.
    """
    held, used = texts[::10], [t for n, t in enumerate(texts) if n % 10]
    if not used:
        raise BadInput(f"a head cannot be fitted on {len(texts)} texts; give some hundreds, without labels")
    states, ids = _last_states(model, used)
    transform, bias = _fitted(states, ids, model.words.weight.detach(), seed, steps, rate, tokens)
    recovery = coherence(model, held, head=FittedHead(transform, bias, model.words, 0.0))[-1].recovery
    return FittedHead(transform, bias, model.words, recovery)


def _last_states(model: Model, texts: Sequence[Text]) -> tuple[Float[Tensor, "n k"], Int[Tensor, " n"]]:
    batches = list(_batches(model, texts))
    states = [forward(model, b, hidden=True).hidden[-1][b.mask].float() for b in batches]
    return torch.cat(states), torch.cat([b.ids[b.mask] for b in batches])


def _fitted(
    states: Tensor, ids: Tensor, words: Tensor, seed: int, steps: int, rate: float, tokens: int
) -> tuple[nn.Sequential, Tensor]:
    source = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transform = _transform(states.shape[1], words.shape[1]).to(states.device)
    bias = torch.zeros(len(words), device=states.device, requires_grad=True)
    optimiser = torch.optim.AdamW([*transform.parameters(), bias], lr=rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, steps)
    for _ in range(steps):
        rows = torch.randint(len(states), (min(tokens, len(states)),), generator=source).to(states.device)
        loss = nn.functional.cross_entropy(_scores(transform, bias, words, states[rows]), ids[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return transform.requires_grad_(False).eval(), bias.detach()
