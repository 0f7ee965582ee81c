"""The values that flow through salience, and the shapes of its functions."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from salience.words import Span

Kind = Literal["logit", "probability", "log_probability"]
Link = Literal["softmax", "sigmoid", "identity"]
Weights = Literal["read", "differentiable"]
"""How attention weights are wanted: to be looked at, or as the part of the graph that the output is made of."""

Text = str | tuple[str, str]
"""One text, or a pair of texts such as a premise and a hypothesis."""

Edit = Callable[[int, Tensor], Tensor]
"""Called with a layer's number and its tensor; returns the tensor to go on with."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One text as the model reads it.

    ``offsets`` are character spans of ``text``. A pair is joined by a line break, and ``pair_at`` is the character
    where its second text begins. ``unseen`` are the spans that the model did not read, as the text was too long for it.
    """

    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    offsets: tuple[Span, ...]
    special: tuple[bool, ...]
    segments: tuple[int, ...] | None = None
    pair_at: int | None = None
    unseen: tuple[Span, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows of tokens, padded on the right. ``special`` tokens are never erased and never ranked."""

    ids: Int[Tensor, "b t"]
    mask: Bool[Tensor, "b t"]
    special: Bool[Tensor, "b t"]
    segments: Int[Tensor, "b t"] | None = None
    words: Int[Tensor, "b t"] | None = None
    """The number of each token's word in its text, -1 for none."""

    def __len__(self) -> int:
        return self.ids.shape[0]

    @property
    def width(self) -> int:
        """Tokens in a row, padding included."""
        return self.ids.shape[1]

    @property
    def content(self) -> Bool[Tensor, "b t"]:
        """The tokens that stand for text: neither padding nor special."""
        return self.mask & ~self.special

    def take(self, rows: Int[Tensor, " r"] | slice) -> "Batch":
        """The chosen rows, in that order; a row may be taken many times."""
        return self.map(lambda tensor: tensor[rows])

    def cut(self, columns: slice) -> "Batch":
        """The chosen columns of every row."""
        return self.map(lambda tensor: tensor[:, columns])

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Every tensor changed in the same way."""
        given = (self.ids, self.mask, self.special, self.segments, self.words)
        return Batch(*(None if tensor is None else change(tensor) for tensor in given))  # pyright: ignore


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """What one forward pass saw, all in one graph.

    ``hidden[0]`` enters the first block, ``hidden[l]`` leaves block ``l``. Both tuples are empty unless asked for.
    """

    logits: Float[Tensor, "b c"]
    embeddings: Float[Tensor, "b t d"]
    hidden: tuple[Float[Tensor, "b t _"], ...] = ()
    attention: tuple[Float[Tensor, "b h q t"], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """What a causal model keeps of a batch that it has read: its logits, and the keys and values of every layer."""

    logits: Float[Tensor, "b c"]
    keys: tuple[Float[Tensor, "b h t k"], ...]
    values: tuple[Float[Tensor, "b h t v"], ...]


@dataclass(frozen=True, slots=True)
class Target:
    """Which number is explained: of ``label`` (the predicted one if None), or of ``label`` against another."""

    label: str | int | None = None
    against: str | int | None = None
    kind: Kind = "logit"


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """A Target resolved for every row of a batch. Calling it picks the explained number from the logits.

    ``value`` is that number for the texts themselves, where it is known: a method need not compute it again.
    """

    labels: Int[Tensor, " b"]
    against: Int[Tensor, " b"] | None
    kind: Kind
    link: Link
    value: Float[Tensor, " b"] | None = None

    def __call__(self, logits: Float[Tensor, "b c"]) -> Float[Tensor, " b"]:
        values = on_scale(logits, self.kind, self.link)
        chosen = values.gather(1, self.labels[:, None])[:, 0]
        if self.against is None:
            return chosen
        return chosen - values.gather(1, self.against[:, None])[:, 0]

    def take(self, rows: Int[Tensor, " r"] | slice) -> "Targets":
        against = None if self.against is None else self.against[rows]
        value = None if self.value is None else self.value[rows]
        return Targets(self.labels[rows], against, self.kind, self.link, value)


def on_scale(logits: Float[Tensor, "b c"], kind: Kind, link: Link) -> Float[Tensor, "b c"]:
    """Logits on the scale that is asked for, in float32 or better.

    >>> on_scale(torch.tensor([[0.0, 0.0]]), "probability", "softmax")
    tensor([[0.5000, 0.5000]])
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if kind == "logit" or link == "identity":
        return logits
    if link == "softmax":
        return logits.softmax(-1) if kind == "probability" else logits.log_softmax(-1)
    return logits.sigmoid() if kind == "probability" else nn.functional.logsigmoid(logits)


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """What a method returns when it has more to say than scores.

    ``gaps`` holds, per row, how far the scores miss what theory promises. ``settings`` holds choices that the method
    made itself (a chosen layer, a number of nodes), one value for all rows or a tensor with one per row.
    """

    scores: Float[Tensor, "b t"]
    gaps: Mapping[str, Float[Tensor, " b"]] = field(default_factory=dict[str, Tensor])
    settings: Mapping[str, object] = field(default_factory=dict[str, object])


@runtime_checkable
class Model(Protocol):
    """What is explained. One adapter per family implements it; nothing inherits from it."""

    budget: int
    """How many tokens, padding included, one pass may hold; halved when memory runs out."""

    @property
    def module(self) -> nn.Module: ...
    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> Sequence[str]: ...
    @property
    def link(self) -> Link: ...
    @property
    def layers(self) -> int:
        """How many blocks; hidden states are numbered 0 to ``layers``."""
        ...

    @property
    def causal(self) -> bool:
        """Whether a token sees only what stands before it."""
        ...

    @property
    def replacements(self) -> Mapping[str, int]:
        """Token ids that may stand in for an erased token: some of ``mask``, ``unk``, ``pad``."""
        ...

    @property
    def words(self) -> nn.Embedding:
        """The word embedding layer."""
        ...

    def save(self, folder: str | Path) -> None:
        """Write it so that :func:`salience.load` reads it."""
        ...

    def encode(self, texts: Sequence[Text]) -> list[Encoded]: ...
    def batch(self, encoded: Sequence[Encoded]) -> Batch: ...
    def resolve(self, label: str | int) -> int:
        """The column of a label, by name or number."""
        ...

    def label(self, index: int) -> str: ...
    def embed(self, batch: Batch) -> Float[Tensor, "b t d"]: ...
    def read_from(self, batch: Batch) -> Float[Tensor, "b t"]:
        """The weight with which the classifier reads each position of the last layer; rows sum to 1."""
        ...

    def __call__(
        self,
        batch: Batch,
        *,
        embeddings: Float[Tensor, "b t d"] | None = None,
        edit_attention: Edit | None = None,
        edit_hidden: Edit | None = None,
        hidden: bool = False,
        attention: Weights | None = None,
    ) -> Output: ...


@runtime_checkable
class SharesPrefix(Protocol):
    """What a causal model may offer beside Model: texts that begin alike are read from where they part."""

    @property
    def module(self) -> nn.Module: ...
    @property
    def name(self) -> str: ...
    def shares_prefix(self, batch: Batch) -> bool:
        """Whether it can be done for these texts."""
        ...

    def prefix(self, batch: Batch) -> Prefix: ...
    def resume(
        self,
        prefix: Prefix,
        texts: Int[Tensor, " r"],
        starts: Int[Tensor, " r"],
        rest: Batch,
        embeddings: Float[Tensor, "r t d"] | None = None,
    ) -> Output:
        """Row r of ``rest`` read after the first ``starts[r]`` tokens of text ``texts[r]``, a row of the prefix."""
        ...


Block = Callable[[Edit], Tensor]
"""One block on the inputs it had in a forward pass: its output when its attention weights are edited."""


@runtime_checkable
class Replays(Protocol):
    """A model whose blocks can be run again one by one."""

    def replay(self, batch: Batch) -> AbstractContextManager[Sequence[Block]]: ...


@runtime_checkable
class LanguageHead(Protocol):
    """Hidden states to a score for every word of the vocabulary."""

    @property
    def vocabulary(self) -> int: ...
    @property
    def description(self) -> Mapping[str, object]:
        """Where it comes from, to be recorded with the scores."""
        ...

    @property
    def layers(self) -> dict[int, int]:
        """The layer that was chosen automatically, by the version of the model's weights."""
        ...

    def __call__(self, hidden: Float[Tensor, "*n k"], ids: Int[Tensor, "b m"] | None = None) -> Float[Tensor, "*n m"]:
        """Logits of the whole vocabulary, or for every state of a text (b t k) those of the text's own ``ids``."""
        ...


@runtime_checkable
class Decodes(Protocol):
    """A model that can find a language model head for its hidden states."""

    def lm_head(self, source: str | None = None) -> LanguageHead:
        """The head of its own checkpoint, or of the one named."""
        ...


Method = Callable[..., Tensor | Attribution]
"""(model, batch, targets, settings by keyword) -> signed, unnormalised scores, 0 on padding."""

Make = Callable[[int], Model]
"""A fresh model to train, by its seed."""
