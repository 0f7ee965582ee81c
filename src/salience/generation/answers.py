"""Answers of an encoder-decoder: the most likely words one after the other, or the best of several beams."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from salience.core.rows import lengths
from salience.core.text import Encoded
from salience.errors import BadInput
from salience.models.seq2seq import BOS, EOS, PAD, Seq2Seq, Seq2SeqNetwork

LONGEST = (2, 10)
"""An answer has at most 2 n + 10 tokens, for a source of n, the token that ends it included."""


def answers(model: Seq2Seq, encoded: Sequence[Encoded], *, beam: int = 1) -> list[tuple[int, ...]]:
    """Return the tokens of the answer to every source, without the one that ends it.

    A beam of 1 takes the most likely token at each step (greedy). With more, the best of ``beam`` answers by mean
    log-probability of a token is returned.
    """
    if beam < 1:
        raise BadInput(f"beam={beam} must be at least 1")
    results: list[tuple[int, ...]] = [()] * len(encoded)

    def work(items: list[int]) -> list[tuple[int, ...]]:
        with model.executor.lock:
            return _search(model, [encoded[i] for i in items], beam)

    for items, done in model.executor.run([beam * n for n in lengths(encoded)], work):
        for item, tokens in zip(items, done, strict=True):
            results[item] = tokens
    return results


def spelled(model: Seq2Seq, tokens: Sequence[int]) -> str:
    """The text of some tokens of an answer."""
    return model.tokenizer.decode(list(tokens), skip_special_tokens=True)


@torch.no_grad()
def _search(model: Seq2Seq, encoded: Sequence[Encoded], beam: int) -> list[tuple[int, ...]]:
    """Extend all beams of all texts together, by one token per step."""
    batch, n = model.batch(encoded), len(encoded)
    h, state = model.module.encode(model.embed(batch), batch.mask)
    h, mask = (part.repeat_interleave(beam, 0) for part in (h, batch.mask))
    state = tuple(part.repeat_interleave(beam, 1) for part in state)
    tokens = torch.full((n, beam, 1), model.ids[BOS], device=h.device)
    scores = h.new_full((n, beam), -torch.inf)
    scores[:, 0] = 0
    end, pad = model.ids[EOS], model.ids[PAD]
    limits = LONGEST[0] * batch.mask.sum(1, keepdim=True) + LONGEST[1]
    for step in range(int(limits.max())):
        last = tokens[:, :, -1]
        done = (last == end) | (last == pad) | (step >= limits)
        if bool(done.all()):
            break
        d, state = model.module.decode(last.reshape(-1, 1), state)
        steps = _log_probabilities(model.module, d, h, mask).view(n, beam, -1)
        steps[..., [pad, model.ids[BOS]]] = -torch.inf
        steps[done] = -torch.inf
        steps[..., pad] = torch.where(done, 0.0, -torch.inf)
        scores, chosen = (scores[..., None] + steps).flatten(1).topk(beam)
        parent, token = chosen // steps.shape[-1], chosen % steps.shape[-1]
        rows = (torch.arange(n, device=h.device)[:, None] * beam + parent).flatten()
        state = tuple(part[:, rows] for part in state)
        tokens = torch.cat([tokens.view(n * beam, -1)[rows].view(n, beam, -1), token[..., None]], -1)
    kept = (tokens[:, :, 1:] != pad).sum(-1).clamp_min(1)
    best = tokens[torch.arange(n, device=h.device), (scores / kept).argmax(1), 1:]
    return [tuple(t for t in row if t not in (end, pad)) for row in best.tolist()]


def _log_probabilities(
    net: Seq2SeqNetwork, d: Float[Tensor, "b 1 d"], h: Float[Tensor, "b s h"], mask: Tensor
) -> Float[Tensor, "b v"]:
    return net.read_out(d, net.context(net.attend(d, h, mask), h))[:, 0].log_softmax(-1)
