"""Attention weights of texts, and the answers of the model when they are replaced.

Attention is read where the prediction reads it: for every head of a layer, the rows of the queries that the classifier
uses. Weights of special tokens are never changed, and distributions are over the tokens of the text.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from salience.core.distances import TINY
from salience.core.passes import forward
from salience.core.rows import Pack, Rows, answers, attended_answers
from salience.core.types import Attends, Batch, LastAttention, Model, Site, Start, on_scale
from salience.errors import BadInput
from salience.methods.attention import layer_number, readout

SAME_OUTPUT = 0.05
"""The largest change (TVD) of an output that counts as the same."""

Change = Callable[[Float[Tensor, "k h q t"], Int[Tensor, " k"]], Float[Tensor, "k h q t"]]
"""(weights of some copies, the indices of the copies) -> the weights to continue with."""


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """The attention of a batch at one layer, and what is needed to run the model from there with other weights."""

    model: Model
    batch: Batch
    layer: int
    head: int | None
    """The only head that is changed, counted from 1; None for all heads."""
    weights: Float[Tensor, "b h q t"]
    read: Float[Tensor, "b q"]
    """How much the prediction uses each query; rows sum to 1."""
    visible: Bool[Tensor, "b q t"]
    """Which tokens of the text each query can attend to."""
    probabilities: Float[Tensor, "b c"]
    start: Start | None
    last: LastAttention | None = None
    """Runs the model from this attention on, if only the query that is read is kept."""

    @classmethod
    def of(cls, model: Model, batch: Batch, layer: int | None = None, head: int | None = None) -> "Attended":
        """Run the model once and keep the states below the attention of the layer."""
        check_labels(model)
        number = layer_number(layer, model, of=model.layers)
        below = number if model.single_query else number - 1
        kept = below > 0 and model.can_start()
        output = forward(model, batch, attention="read", hidden=kept)
        a = output.attention[number - 1]
        a = a.to(torch.promote_types(a.dtype, torch.float32))
        if head is not None and not 1 <= head <= a.shape[1]:
            raise BadInput(f"there is no head {head}: {model.name} has heads 1 to {a.shape[1]}")
        return cls(
            model,
            batch,
            number,
            head,
            a,
            _read(model, batch, number).to(a.dtype),
            _visible(model, batch, a.shape[2]),
            on_scale(output.logits, "probability", model.link),
            Start(below, output.hidden[below]) if kept else None,
        )

    @property
    def heads(self) -> slice:
        """The heads that are changed."""
        return slice(None) if self.head is None else slice(self.head - 1, self.head)

    @property
    def distribution(self) -> Float[Tensor, "b t"]:
        """The attention of each token of the text, over the heads that are changed; rows sum to 1."""
        return self.over_text(self.weights)

    def over_text(self, weights: Float[Tensor, "b h q t"]) -> Float[Tensor, "b t"]:
        """Reduce weights of this layer to a distribution over the tokens of the text."""
        a = torch.einsum("bq,bqt->bt", self.read.to(weights.dtype), weights[:, self.heads].mean(1)) * self.batch.content
        return a / a.sum(1, keepdim=True).clamp_min(TINY)

    @property
    def lengths(self) -> Int[Tensor, " b"]:
        """The number of tokens of each text, without special tokens."""
        return self.batch.content.sum(1)

    def of_several_tokens(self, values: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
        """The values of texts; NaN for those of one token, whose attention cannot be any other."""
        return torch.where(self.lengths > 1, values, torch.nan)

    def answers(self, text: Int[Tensor, " r"], change: Change) -> Float[Tensor, "r c"]:
        """Return the probabilities for copies of the texts with changed attention."""
        logits = self._edited(text, change) if self.last is None else self._given(text, change, self.last)
        return on_scale(logits, "probability", self.model.link)

    def _edited(self, text: Int[Tensor, " r"], change: Change) -> Float[Tensor, "r c"]:
        def edit(site: Site, rows: Tensor, a: Tensor) -> Tensor:
            return self.changed(a, lambda own: change(own, rows)) if site.layer == self.layer else a

        return answers(self.model, Rows(self.batch, text, edit_attention=edit, start=self.start))

    def copies(self, text: Int[Tensor, " r"], width: int) -> "Copies":
        """Copies of some texts, cut to ``width`` tokens, to be run many times."""
        batch = self.batch.take(text).cut(slice(width))
        if self.last is None:
            return Copies(self, batch, start=None if self.start is None else self.start.take(text, width))
        own = self.weights[text, ..., :width].to(self.dtype)
        return Copies(self, batch, own=own, last=self.last.take(text, width))

    def _given(self, text: Int[Tensor, " r"], change: Change, last: LastAttention) -> Float[Tensor, "r c"]:
        def weights(part: Pack) -> Tensor:
            a = self.weights[part.text, ..., : part.batch.width].to(self.dtype)
            return self.changed(a, lambda own: change(own, part.rows))

        return attended_answers(self.model, Rows(self.batch, text), last, weights)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the model's own weights, in which it reads changed ones."""
        return torch.float32 if self.start is None else self.start.hidden.dtype

    def read_alone(self) -> "Attended":
        """The same attention at the one query that is read, if the model can run from there; otherwise itself."""
        model = self.model
        if self.start is None or self.layer != model.layers or not isinstance(model, Attends):
            return self
        last = model.last_attention(self.batch, self.start)
        if last is None:
            return self
        rows, at = torch.arange(len(self.batch), device=self.read.device), self.read.argmax(1)
        return replace(
            self,
            weights=self.weights[rows, :, at][:, :, None],
            read=torch.ones_like(self.read[:, :1]),
            visible=self.visible[rows, at][:, None],
            last=last,
        )

    def changed(self, a: Float[Tensor, "k h q t"], change: Callable[[Tensor], Tensor]) -> Float[Tensor, "k h q t"]:
        """Change the weights of the chosen heads only."""
        if self.head is None:
            return change(a).to(a.dtype)
        own = change(a[:, self.heads]).to(a.dtype)
        return torch.cat([a[:, : self.head - 1], own, a[:, self.head :]], 1)


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """Copies of texts that share a pass, with all that stays the same whatever their attention is."""

    attended: Attended
    batch: Batch
    start: Start | None = None
    own: Float[Tensor, "r h 1 t"] | None = None
    last: LastAttention | None = None

    def logits(self, change: Callable[[Tensor], Tensor]) -> Float[Tensor, "r c"]:
        """Return the logits with changed attention, in a graph if there is one."""
        attended = self.attended
        if self.last is not None and self.own is not None:
            return self.last(attended.changed(self.own, change))

        def edit(site: Site, a: Tensor) -> Tensor:
            return attended.changed(a, change) if site.layer == attended.layer else a

        return attended.model(self.batch, edit_attention=edit, start=self.start).logits


def check_labels(model: Model) -> None:
    """Raise unless the model predicts one of several labels."""
    if model.link != "softmax":
        raise BadInput(f"an audit compares distributions over labels, and {model.name} does not predict one label")


def _read(model: Model, batch: Batch, layer: int) -> Float[Tensor, "b q"]:
    """The queries that matter: those the classifier reads in the last layer, every token's below it."""
    if model.single_query:
        return torch.ones_like(batch.mask[:, :1], dtype=torch.float32)
    return readout(model, batch, "auto" if layer == model.layers else "mean")


def _visible(model: Model, batch: Batch, queries: int) -> Bool[Tensor, "b q t"]:
    """Text tokens, for causal models only those up to the query."""
    visible = batch.content[:, None].expand(-1, queries, -1)
    return visible.tril() if model.causal else visible


def kept_mass(a: Float[Tensor, "k h q t"], weights: Float[Tensor, "k h q t"], where: Bool[Tensor, "k 1 q t"]) -> Tensor:
    """Give the chosen places of ``a`` the given weights, scaled so that these places keep their total weight."""
    own = weights * where
    mass = (a * where).sum(-1, keepdim=True)
    return torch.where(where, own / own.sum(-1, keepdim=True).clamp_min(TINY) * mass, a)
