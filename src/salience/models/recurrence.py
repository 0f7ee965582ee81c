"""LSTMs over padded texts, and LSTMs and GRUs over words of a small vocabulary, faster than torch's modules."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

RecurrentState = tuple[Float[Tensor, "b k"], ...]
"""(h, c) of an LSTM, (h,) of a GRU."""


def lstm_over_texts(lstm: nn.LSTM, e: Float[Tensor, "b t d"], mask: Bool[Tensor, "b t"]) -> Float[Tensor, "b t k"]:
    """Return the states of a one-layer LSTM over texts that are padded on the right, with zeros at padding.

    On CPUs each direction runs over the padded texts, the reversed one with its texts turned around before their
    padding. Gradients of a packed sequence there take time that grows with the square of its length.
    """
    if e.is_cuda:
        return _packed(lstm, e, mask)
    lengths, t = mask.sum(1, keepdim=True), torch.arange(mask.shape[1], device=e.device)
    turned = torch.where(mask, lengths - 1 - t, t)[..., None]
    states = [_direction(lstm, e, "")]
    if lstm.bidirectional:
        backwards = _direction(lstm, e.gather(1, turned.expand_as(e)), "_reverse")
        states.append(backwards.gather(1, turned.expand_as(backwards)))
    return torch.cat(states, -1) * mask[..., None]


def _direction(lstm: nn.LSTM, e: Float[Tensor, "b t d"], suffix: str) -> Float[Tensor, "b t k"]:
    weights = [getattr(lstm, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    start = e.new_zeros(1, len(e), lstm.hidden_size)
    # The arguments after the weights: with biases, one layer, no dropout, training, one direction, batch first.
    return torch.lstm(e, (start, start), weights, True, 1, 0.0, lstm.training, False, True)[0]


def _packed(lstm: nn.LSTM, e: Float[Tensor, "b t d"], mask: Bool[Tensor, "b t"]) -> Float[Tensor, "b t k"]:
    packed = nn.utils.rnn.pack_padded_sequence(e, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
    # cuDNN's LSTM does not support backward in evaluation mode.
    with torch.backends.cudnn.flags(enabled=lstm.training):
        states, _ = lstm(packed)
    return nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=mask.shape[1])[0]


def over_words(
    cell: nn.LSTM | nn.GRU, words: nn.Embedding, ids: Int[Tensor, "b t"], state: RecurrentState | None = None
) -> tuple[Float[Tensor, "b t k"], RecurrentState]:
    """Return what ``cell(words(ids))`` returns, for one layer and one direction, and sequences of the same length.

    W_x e takes half of the products of an LSTM. There are as many different ones as words, far fewer than places.
    """
    lstm = isinstance(cell, nn.LSTM)
    w_x, w_h, b_x, b_h = (getattr(cell, f"{name}_l0") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    read = nn.functional.embedding(ids.mT, torch.addmm(b_x + b_h if lstm else b_x, words.weight, w_x.mT))
    start = (read.new_zeros(len(ids), cell.hidden_size),) * (1 + lstm) if state is None else state
    steps = _LSTMSteps.apply(read, w_h, *start) if lstm else _GRUSteps.apply(read, w_h, b_h, *start)
    states, *last = steps  # pyright: ignore
    return states.transpose(0, 1), tuple(last)


class _LSTMSteps(torch.autograd.Function):
    """The steps of an LSTM, given W_x e_t + b: i, f, g, o = σ, σ, tanh, σ;  c ← f c + i g;  h ← o tanh(c).

    The derivative of the weights is one product over all steps.
    """

    @staticmethod
    def forward(ctx: Any, read: Tensor, weight: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gates = torch.empty_like(read)
        states, cells = (read.new_empty(1 + len(read), *first.shape) for first in (h, c))
        states[0], cells[0] = h, c
        for t, x in enumerate(read):
            z = torch.addmm(x, states[t], weight.mT, out=gates[t])
            i, f, g, o = z.chunk(4, 1)
            z[:, : 2 * h.shape[1]].sigmoid_()
            g.tanh_()
            o.sigmoid_()
            torch.mul(f, cells[t], out=cells[t + 1]).addcmul_(i, g)
            torch.mul(o, cells[t + 1].tanh(), out=states[t + 1])
        ctx.save_for_backward(states, cells, gates, weight)
        return states[1:], states[-1].clone(), cells[-1].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        states, cells, gates, weight = ctx.saved_tensors
        above, dh, dc = gradients
        out = torch.empty_like(gates)
        for t in reversed(range(len(gates))):
            i, f, g, o = gates[t].chunk(4, 1)
            di, df, dg, do = out[t].chunk(4, 1)
            tanh = cells[t + 1].tanh()
            dh = dh + above[t]
            dc = dc.addcmul(dh * o, 1 - tanh * tanh)
            torch.mul(dh * tanh, o * (1 - o), out=do)
            torch.mul(dc * g, i * (1 - i), out=di)
            torch.mul(dc * cells[t], f * (1 - f), out=df)
            torch.mul(dc * i, 1 - g * g, out=dg)
            dc = dc * f
            dh = out[t] @ weight
        return out, out.flatten(0, 1).mT @ states[:-1].flatten(0, 1), dh, dc


class _GRUSteps(torch.autograd.Function):
    """The steps of a GRU, given x = W_x e_t + b_x:  y = W_h h + b_h;  r, z = σ(x + y);  n = tanh(x + r y);
    h ← (1 − z) n + z h.

    torch's module takes twice as long on CPUs: backwards, each step fills a tensor of the size of all steps with zeros.
    """

    @staticmethod
    def forward(ctx: Any, read: Tensor, weight: Tensor, bias: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        k, gates, candidates = h.shape[1], torch.empty_like(read), read.new_empty(*read.shape[:2], h.shape[1])
        states = read.new_empty(1 + len(read), *h.shape)
        states[0] = h
        for t, x in enumerate(read):
            y = torch.addmm(bias, states[t], weight.mT, out=gates[t])  # r and z, and the part of y for n
            r, z = y[:, : 2 * k].add_(x[:, : 2 * k]).sigmoid_().chunk(2, 1)
            n = torch.addcmul(x[:, 2 * k :], r, y[:, 2 * k :], out=candidates[t]).tanh_()
            torch.lerp(n, states[t], z, out=states[t + 1])
        ctx.save_for_backward(states, candidates, gates, weight)
        return states[1:], states[-1].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        states, candidates, gates, weight = ctx.saved_tensors
        above, dh = gradients
        dx, dy = torch.empty_like(gates), torch.empty_like(gates)
        for t in reversed(range(len(gates))):
            (r, z, y), n = gates[t].chunk(3, 1), candidates[t]
            dh = dh + above[t]
            dr, dz, dn = dx[t].chunk(3, 1)
            torch.mul(dh * (1 - z), 1 - n * n, out=dn)
            torch.mul(dh * (states[t] - n), z * (1 - z), out=dz)
            torch.mul(dn * y, r * (1 - r), out=dr)
            dy[t] = dx[t]
            dy[t].chunk(3, 1)[2].mul_(r)
            dh = torch.addmm(dh * z, dy[t], weight)
        flat = dy.flatten(0, 1)
        return dx, flat.mT @ states[:-1].flatten(0, 1), flat.sum(0), dh
