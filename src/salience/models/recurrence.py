"""LSTMs over padded texts, and over words of a small vocabulary, in less time than torch's module takes."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

LSTMState = tuple[Float[Tensor, "b k"], Float[Tensor, "b k"]]


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


def lstm_over_words(
    lstm: nn.LSTM, words: nn.Embedding, ids: Int[Tensor, "b t"], state: LSTMState | None = None
) -> tuple[Float[Tensor, "b t k"], LSTMState]:
    """Return what ``lstm(words(ids))`` returns, for one layer and one direction, and sequences of the same length.

    W_x e takes half of the products of an LSTM. There are as many different ones as words, far fewer than places.
    """
    bias: Tensor = lstm.bias_ih_l0 + lstm.bias_hh_l0  # pyright: ignore
    table = torch.addmm(bias, words.weight, lstm.weight_ih_l0.mT)  # pyright: ignore
    read = nn.functional.embedding(ids.mT, table)
    start = read.new_zeros(len(ids), lstm.hidden_size)
    h, c = (start, start) if state is None else state
    states, h, c = _Steps.apply(read, lstm.weight_hh_l0, h, c)  # pyright: ignore
    return states.transpose(0, 1), (h, c)


class _Steps(torch.autograd.Function):
    """The steps of an LSTM, given W_x e_t + b: i, f, g, o = σ, σ, tanh, σ;  c ← f c + i g;  h ← o tanh(c).

    The derivative of the weights is one product over all steps.
    """

    @staticmethod
    def forward(ctx: Any, read: Tensor, weight: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hs, cs, gates = [h], [c], list[Tensor]()
        for x in read.unbind(0):
            z = torch.addmm(x, h, weight.mT)
            i, f, g, o = z.chunk(4, 1)
            z[:, : 2 * h.shape[1]].sigmoid_()
            g.tanh_()
            o.sigmoid_()
            c = (f * c).addcmul_(i, g)
            h = o * c.tanh()
            hs.append(h)
            cs.append(c)
            gates.append(z)
        states = torch.stack(hs)
        ctx.save_for_backward(states, torch.stack(cs), torch.stack(gates), weight)
        return states[1:], h, c

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
