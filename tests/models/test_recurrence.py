"""LSTMs over padded texts are torch's LSTMs over packed ones."""

import pytest
import torch
from torch import Tensor, nn

from salience.models.recurrence import lstm_over_texts


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
