"""LSTMs over padded texts are torch's LSTMs over packed ones; LSTMs and GRUs over words are torch's."""

import pytest
import torch
from torch import Tensor, nn

from salience.models.recurrence import lstm_over_texts, over_words


def packed(lstm: nn.LSTM, e: Tensor, mask: Tensor) -> Tensor:
    sequence = nn.utils.rnn.pack_padded_sequence(e, mask.sum(1), batch_first=True, enforce_sorted=False)
    return nn.utils.rnn.pad_packed_sequence(lstm(sequence)[0], batch_first=True, total_length=mask.shape[1])[0]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("lengths", [[1], [5, 5], [2, 6, 1, 4]])
def test_states_and_first_and_second_derivatives_are_those_of_packed_texts(bidirectional: bool, lengths: list[int]):
    lstm = nn.LSTM(3, 4, batch_first=True, bidirectional=bidirectional).double()
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    e = torch.randn(len(lengths), 7, 3, dtype=torch.float64, requires_grad=True)
    ours, theirs = lstm_over_texts(lstm, e, mask), packed(lstm, e, mask)
    torch.testing.assert_close(ours, theirs)
    assert not ours[~mask].any()
    weights = [e, *lstm.parameters()]
    for states in (ours, theirs):
        (slope,) = torch.autograd.grad(states.tanh().sum(), e, create_graph=True)
        assert not slope[~mask].any()
    first = [torch.autograd.grad(s.tanh().sum(), weights, create_graph=True) for s in (ours, theirs)]
    torch.testing.assert_close(*first)
    second = [torch.autograd.grad(g[0].square().sum(), weights) for g in first]
    torch.testing.assert_close(*second)


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_states_over_words_and_derivatives_are_those_of_the_module(kind: type[nn.LSTM | nn.GRU], started: bool):
    words, cell = nn.Embedding(5, 3).double(), kind(3, 4, batch_first=True).double()
    ids, weight = torch.randint(5, (2, 6)), torch.randn(2, 6, 4).double()
    parts = 1 + (kind is nn.LSTM)
    start = tuple(torch.randn(2, 4).double().requires_grad_() for _ in range(parts)) if started else None
    parameters = [*words.parameters(), *cell.parameters(), *(start or ())]

    def gradients(states: Tensor, last: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        loss = (states * weight).sum() + sum(end.sin().sum() * (1 + n) for n, end in enumerate(last))
        return torch.autograd.grad(loss, parameters)

    begin = tuple(s[None] for s in start) if start else None
    expected, end = cell(words(ids), begin if begin is None or parts == 2 else begin[0])
    ends = tuple(e[0] for e in (end if parts == 2 else (end,)))
    states, last = over_words(cell, words, ids, start)
    torch.testing.assert_close((states, *last), (expected, *ends))
    torch.testing.assert_close(gradients(states, last), gradients(expected, ends))
