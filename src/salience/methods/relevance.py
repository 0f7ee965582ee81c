"""Output relevance: what the classifier would read if it read the state of one token alone."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from salience.core.passes import Needs, Pass, forward, one_pass
from salience.core.rows import Rows, answers, in_order
from salience.core.types import Attribution, Batch, Model, Output, Site, Start, Weights
from salience.errors import UnsupportedModel
from salience.methods.attention import Layer, layer_number


@one_pass(Needs.HIDDEN_STATES)
def output_relevance(result: Pass, *, layer: Layer = None) -> Attribution:
    """The output for the state of each token alone: r_t = W_c h_t, with f = Σ_t a_t r_t + b_c for pooled classifiers.

    The read-out of the last layer is applied to the states of ``layer``, the last by default. On transformers, r_t is
    the whole output that the classification head has for h_t, its bias included.
    An encoder-decoder reads h_t beside the state of its decoder, which stays as it is.

    Paper: Snell et al. 2021, Approximating How Single Head Attention Learns, arXiv:2103.07601
    Cost: 1 forward, and the read-out once per token
    Needs: hidden states
    """
    model = result.model
    number = layer_number(layer, model, of=model.layers)
    read = _read_out(result, number)
    gaps = {"decomposition": read.gap(result, _weights(result))} if number == model.layers else {}
    return Attribution(read.relevance, gaps, {"layer": number})


@one_pass(Needs.HIDDEN_STATES | Needs.ATTENTION)
def attention_x_relevance(result: Pass) -> Attribution:
    """What each token adds to the output of a pooled classifier: a_t r_t, with f = Σ_t a_t r_t + b_c.

    Paper: Snell et al. 2021, Approximating How Single Head Attention Learns, arXiv:2103.07601
    Cost: 1 forward, and the read-out once per token
    Needs: attention with a single query, whose average of states the output is read from
    """
    if not result.model.single_query:
        raise UnsupportedModel(
            f"attention_x_relevance splits an output that is read from one weighted average of states, and "
            f"{result.model.name} attends from every token to every token. Use 'output_relevance' or "
            "'attention_x_gradient'."
        )
    a = result.output.attention[-1][:, 0, 0]
    read = _read_out(result, result.model.layers)
    return Attribution(a * read.relevance, {"decomposition": read.gap(result, a)})


@dataclass(frozen=True, slots=True, eq=False)
class _ReadOut:
    """The explained number, read from each token alone; ``bias`` is the part that does not depend on its state."""

    relevance: Float[Tensor, "b t"]
    bias: Float[Tensor, " b"]

    def gap(self, result: Pass, weights: Float[Tensor, "b t"]) -> Float[Tensor, " b"]:
        """The difference between Σ_t w_t r_t + b and the explained number; 0 for a linear read-out."""
        return (weights * self.relevance).sum(1) + self.bias - result.target(result.output.logits)


def _weights(result: Pass) -> Float[Tensor, "b t"]:
    """The weight of each token's state in what is read: attention with a single query, or the positions read."""
    model, batch = result.model, result.batch
    if not model.single_query:
        return model.read_from(batch)
    return _from_last_layer(model, batch, result.output.hidden[-1], "read").attention[-1][:, 0, 0]


def _read_out(result: Pass, layer: int) -> _ReadOut:
    """Read the state of each token alone and, if there is a single query, also no state at all: the bias."""
    model, batch = result.model, result.batch
    text, place = batch.mask.nonzero(as_tuple=True)
    if model.single_query and not model.can_start():
        each = torch.arange(len(batch), device=text.device)
        values, bias = _attended(result, text, place), _attended(result, each, torch.full_like(each, -1))
    else:
        values, bias = _as_texts(result, layer, text)
    relevance = values.new_zeros(batch.ids.shape)
    relevance[batch.mask] = values - bias[text]
    return _ReadOut(relevance, bias)


def _attended(result: Pass, text: Int[Tensor, " k"], place: Int[Tensor, " k"]) -> Float[Tensor, " k"]:
    """Read texts with all attention on one token, or on none if its place is −1.

    What is read besides attention, such as the state of a decoder, stays that of the whole text.
    """

    def edit(_: Site, rows: Tensor, a: Tensor) -> Tensor:
        on = torch.arange(a.shape[-1], device=a.device) == place[rows, None]
        return on[:, None, None].expand_as(a).to(a)

    return result.target.take(text)(answers(result.model, Rows(result.batch, text, edit_attention=edit)))


def _as_texts(result: Pass, layer: int, text: Int[Tensor, " k"]) -> tuple[Float[Tensor, " k"], Float[Tensor, " b"]]:
    """Read each token's state as a text of one token, of which every read-out, first, last or average, is the state."""
    model, batch = result.model, result.batch
    alone, states = batch.map(lambda tensor: tensor[batch.mask][:, None]), result.output.hidden[layer][batch.mask]

    def read(rows: Int[Tensor, " k"], h: Float[Tensor, "k d"]) -> Float[Tensor, " k"]:
        output = _from_last_layer(model, alone.take(rows), h[:, None])
        return result.target.take(text[rows])(output.logits)

    def work(items: list[int]) -> Float[Tensor, " k"]:
        rows = torch.tensor(items, device=text.device)
        return read(rows, states[rows])

    values = in_order(len(text), model.executor.run([1] * len(text), work))
    firsts = torch.searchsorted(text, torch.arange(len(batch), device=text.device))
    bias = read(firsts, torch.zeros_like(states[firsts])) if model.single_query else values.new_zeros(len(batch))
    return values, bias


def _from_last_layer(model: Model, batch: Batch, h: Float[Tensor, "b t d"], attention: Weights | None = None) -> Output:
    """Run what follows the last layer on other states. A model that cannot start there runs the layers in vain."""
    if model.can_start():
        return forward(model, batch, start=Start(model.layers, h), attention=attention)

    def edit(site: Site, states: Tensor) -> Tensor:
        return h if site.layer == model.layers else states

    return forward(model, batch, edit_hidden=edit, attention=attention)
