"""The data types of salience, and the protocols of models and methods."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from salience.core.executor import Executor
from salience.core.memory import Memory
from salience.core.target import Kind
from salience.core.text import Encoded, Text

Link = Literal["softmax", "sigmoid", "identity"]
Weights = Literal["read", "differentiable", "written_out", "followed"]
"""How attention is computed: ``read`` returns the weights, ``differentiable`` returns weights that are part of the
output's graph. ``written_out`` computes them step by step, and ``followed`` only uses torch functions that rules can
replace (SDPA, but not a flash kernel); neither need return them."""

Reads = Literal["first", "last", "all"]
"""The tokens of the last layer that the output is computed from."""

REMEMBERED_LABELS = 1000
"""The largest number of labels of a model whose logits are remembered."""


@dataclass(frozen=True, slots=True)
class Site:
    """A location in the model: a layer, numbered from 1, and the kind of attention.

    Hidden states are the output of the layer; layer 0 is the input of the first one.
    """

    layer: int
    attention: Literal["self", "cross"] = "self"


Edit = Callable[[Site, Tensor], Tensor]
"""Called with a location and its tensor; returns the tensor to continue with. Gradients flow through the result."""

Reduction = Callable[[Site, Tensor], Tensor | None]
"""Called with a layer and its attention weights; returns what is kept of them, or None if nothing is."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows of tokens, padded on the right. ``special`` tokens are never erased and never ranked."""

    ids: Int[Tensor, "b t"]
    mask: Bool[Tensor, "b t"]
    special: Bool[Tensor, "b t"]
    segments: Int[Tensor, "b t"] | None = None
    encoded: tuple[Encoded, ...] = ()
    """The texts of the rows, if the rows are complete and unchanged."""
    memory: Memory | None = None
    """What a model has already said about erased copies of these rows."""

    @classmethod
    def of(cls, encoded: Sequence[Encoded], pad: int, device: torch.device | str = "cpu") -> "Batch":
        """Create a batch of texts, padded to the longest."""
        width = max(len(e) for e in encoded)

        def rows(values: Sequence[Sequence[int]], fill: int, dtype: torch.dtype) -> Tensor:
            padded = [[*v, *[fill] * (width - len(v))] for v in values]
            return torch.tensor(padded, dtype=dtype, device=device)

        typed = encoded[0].segments is not None
        return cls(
            ids=rows([e.ids for e in encoded], pad, torch.long),
            mask=rows([[1] * len(e) for e in encoded], 0, torch.bool),
            special=rows([e.special for e in encoded], 1, torch.bool),
            segments=rows([e.segments or () for e in encoded], 0, torch.long) if typed else None,
            encoded=tuple(encoded),
        )

    def __len__(self) -> int:
        return self.ids.shape[0]

    @property
    def width(self) -> int:
        """The number of tokens in a row, padding included."""
        return self.ids.shape[1]

    @property
    def content(self) -> Bool[Tensor, "b t"]:
        """A mask of the text tokens: neither padding nor special."""
        return self.mask & ~self.special

    def remembering(self, model: "Model") -> "Batch":
        """Return the batch with a memory, so that methods and metrics pass equal erased copies of its rows once.

        The logits of a whole vocabulary would take too much memory; a language model remembers nothing.
        """
        known = self.memory is not None and self.memory.model is model
        return self if known or len(model.labels) > REMEMBERED_LABELS else replace(self, memory=Memory(model))

    def take(self, rows: Int[Tensor, " r"] | slice) -> "Batch":
        """Select rows, in the given order; a row may be selected several times."""
        return self.map(lambda tensor: tensor[rows])

    def cut(self, columns: slice) -> "Batch":
        """Select columns of every row."""
        return self.map(lambda tensor: tensor[:, columns])

    def map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Apply the same function to every tensor."""
        tensors = (self.ids, self.mask, self.special, self.segments)
        return Batch(*(None if tensor is None else change(tensor) for tensor in tensors))  # pyright: ignore


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The tokens that a model lets through, as it drew them in training or decides them otherwise.

    ``z`` is 0 for a hidden token and 1 for one that is fully seen; special tokens are always seen. ``log_nonzero`` is
    log P(z ≠ 0), 0 outside the text. Gates over layers draw the last ``layer`` whose gates count, one per text, and
    know the logits of the ``whole`` text.
    """

    z: Float[Tensor, "b t"]
    log_nonzero: Float[Tensor, "b t"]
    layer: Int[Tensor, " b"] | None = None
    whole: Float[Tensor, "b c"] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """The output of one forward pass, all in one graph.

    ``hidden[0]`` is the input of the first block, ``hidden[l]`` the output of block ``l``. ``hidden`` and ``attention``
    are empty unless requested. The encoder and the decoder of a model may differ in their number of heads.
    ``selection`` is that of a model which hides a part of the text from itself. Where ``logits`` are numbers f that are
    computed from the logits z of a vocabulary, ``relevance`` is Σ z ∂f/∂z, with which relevance propagation starts.
    """

    logits: Float[Tensor, "b c"]
    embeddings: Float[Tensor, "b t d"]
    hidden: tuple[Float[Tensor, "b t _"], ...] = ()
    attention: tuple[Float[Tensor, "b _ q t"], ...] = ()
    selection: Selection | None = None
    relevance: Float[Tensor, "b c"] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingEdit:
    """Word vectors that replace a model's own, all shifted by ``offset`` if it is set.

    The offset is subtracted again before the first layer, so with every vector shifted by it, the model computes the
    same function of a text as before.
    """

    words: nn.Embedding
    offset: Float[Tensor, " d"] | None = None

    def entering(self, embeddings: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """Return the input of the first layer."""
        return embeddings if self.offset is None else embeddings - self.offset


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Hidden states to start from: the output of ``layer``. The layers up to it are not run."""

    layer: int
    hidden: Float[Tensor, "b t _"]

    def take(self, rows: Int[Tensor, " r"], width: int) -> "Start":
        """Select rows, cut to ``width`` tokens."""
        return Start(self.layer, self.hidden[rows, :width])


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """The state of a causal model after a batch: its logits, and the keys and values of every layer."""

    logits: Float[Tensor, "b c"]
    keys: tuple[Float[Tensor, "b h t k"], ...]
    values: tuple[Float[Tensor, "b h t v"], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """A Target resolved for every row of a batch. Calling it selects the explained number from the logits.

    ``value`` is that number for the unchanged texts, if known, so that methods need not compute it again. ``read_from``
    is the weight of each position of the last layer that the number is computed from, if it depends on the label and
    not only on the text. With ``sums``, the last number is the sum of all others, and so are its gradients.
    """

    labels: Int[Tensor, " b"]
    against: Int[Tensor, " b"] | None
    kind: Kind
    link: Link
    value: Float[Tensor, " b"] | None = None
    read_from: Float[Tensor, "b t"] | None = None
    sums: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    def __call__(self, logits: Float[Tensor, "b c"]) -> Float[Tensor, " b"]:
        values = on_scale(logits, self.kind, self.link)
        chosen = values.gather(1, self.labels[:, None])[:, 0]
        if self.against is None:
            return chosen
        return chosen - values.gather(1, self.against[:, None])[:, 0]

    def take(self, rows: Int[Tensor, " r"] | slice) -> "Targets":
        against, value, read_from = (None if x is None else x[rows] for x in (self.against, self.value, self.read_from))
        return Targets(self.labels[rows], against, self.kind, self.link, value, read_from)


def on_scale(logits: Float[Tensor, "b c"], kind: Kind, link: Link) -> Float[Tensor, "b c"]:
    """Convert logits to the requested scale, in float32 or better.

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
    """Scores with additional information, returned by a method.

    ``gaps`` holds, per row, the difference between the scores and a property they should have, such as completeness.
    ``settings`` holds choices that the method made itself (a layer, a number of nodes), one value for all rows or a
    tensor with one per row. ``signed`` scores are positive or negative for evidence for or against the target; others
    only measure importance. None means that the sign is inferred from the scores.
    """

    scores: Float[Tensor, "b t"]
    gaps: Mapping[str, Float[Tensor, " b"]] = field(default_factory=dict[str, Tensor])
    settings: Mapping[str, object] = field(default_factory=dict[str, object])
    signed: bool | None = True


@runtime_checkable
class Model(Protocol):
    """A model that can be explained. Each family of models has one adapter that implements this protocol."""

    @property
    def executor(self) -> Executor:
        """Packs the model's passes. It is kept between calls, since it remembers how much fits in memory."""
        ...

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
        """The number of blocks; hidden states are numbered 0 to ``layers``."""
        ...

    @property
    def causal(self) -> bool:
        """Whether a token attends only to earlier tokens."""
        ...

    @property
    def single_query(self) -> bool:
        """Whether attention has a single query over all tokens, instead of one query per token."""
        ...

    def can_start(self) -> bool:
        """Whether a pass can start from the output of any layer."""
        ...

    @property
    def reads(self) -> Reads:
        """The tokens of the last layer that the output is computed from."""
        ...

    @property
    def replacements(self) -> Mapping[str, int]:
        """Ids of the tokens that can replace an erased token: some of ``mask``, ``unk``, ``pad``."""
        ...

    @property
    def words(self) -> nn.Embedding:
        """The word embedding layer."""
        ...

    def with_embeddings(self, edit: EmbeddingEdit) -> "Model":
        """Return the same model with other word vectors."""
        ...

    def save(self, folder: str | Path) -> None:
        """Save the model in a form that :func:`salience.load` can read."""
        ...

    def encode(self, texts: Sequence[Text]) -> list[Encoded]: ...
    def batch(self, encoded: Sequence[Encoded]) -> Batch: ...
    def resolve(self, label: str | int) -> int:
        """Return the column of a label, given by name or number."""
        ...

    def label(self, index: int) -> str: ...
    def embed(self, batch: Batch) -> Float[Tensor, "b t d"]: ...
    def read_from(self, batch: Batch) -> Float[Tensor, "b t"]:
        """Return the weight of each position of the last layer in the classifier's input; rows sum to 1."""
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
        start: Start | None = None,
    ) -> Output:
        """Run the model. With ``start``, only the layers above it run, and only their attention is returned."""
        ...


@runtime_checkable
class SharesPrefix(Protocol):
    """A causal model that can reuse the keys and values of a shared prefix."""

    @property
    def module(self) -> nn.Module: ...
    @property
    def name(self) -> str: ...
    @property
    def executor(self) -> Executor: ...
    @property
    def tail(self) -> int:
        """The number of tokens at the end of a text that the output is read from, so that they are always run."""
        ...

    def shares_prefix(self, batch: Batch) -> bool:
        """Whether a prefix can be shared for these texts."""
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
        """Run row r of ``rest`` after the first ``starts[r]`` tokens of text ``texts[r]``, a row of the prefix."""
        ...


@runtime_checkable
class NeedsText(Protocol):
    """A model for which one token of a text may not be enough."""

    def can_read(self, batch: Batch, kept: Bool[Tensor, "b t"]) -> Bool[Tensor, " b"]:
        """Whether what is kept of each text can be read."""
        ...


@runtime_checkable
class LastAttention(Protocol):
    """The logits of some texts as a function of the weights of the last attention, at the one query that is read.

    Everything that does not depend on these weights is already computed.
    """

    def take(self, rows: Int[Tensor, " r"], width: int) -> "LastAttention":
        """Select rows, cut to ``width`` tokens."""
        ...

    def __call__(self, weights: Float[Tensor, "b h 1 t"]) -> Float[Tensor, "b c"]: ...


@runtime_checkable
class Attends(Protocol):
    """A model that can run from its last attention on, for the one query that is read."""

    def last_attention(self, batch: Batch, start: Start) -> LastAttention | None:
        """Return the last attention, given the states below it; None if several queries are read."""
        ...


@runtime_checkable
class Spells(Protocol):
    """A model that can return the text of its tokens."""

    def spell(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token by itself; empty for special tokens."""
        ...


@runtime_checkable
class ReducesAttention(Protocol):
    """A model that can reduce the attention weights of each layer as it runs, so that it never holds those of all."""

    def reduce_attention(self, batch: Batch, reduction: Reduction) -> Output:
        """Run the model; the attention of the output is what the reduction kept, in the order of the layers."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """A pass as a chain of blocks, of which only one at a time need have a graph.

    ``inputs`` are the inputs of the blocks. ``first`` is that of the first one, with a graph to the embeddings, and
    ``output`` is computed from ``last``, the output of the last one.
    """

    first: Float[Tensor, "b t _"]
    blocks: tuple[Callable[[Tensor], Tensor], ...]
    inputs: tuple[Float[Tensor, "b t _"], ...]
    last: Float[Tensor, "b t _"]
    output: Output


@runtime_checkable
class Chains(Protocol):
    """A model that can be differentiated block by block, for texts whose whole graph would not fit in memory."""

    def too_long(self, batch: Batch) -> bool:
        """Whether the graph of these texts would take more memory than there should be taken."""
        ...

    def chain(self, batch: Batch, embeddings: Float[Tensor, "b t d"]) -> Chain:
        """Run the model without a graph, but for its two ends."""
        ...


Block = Callable[[Edit], Tensor]
"""Runs one block on its inputs of a forward pass, with edited attention weights, and returns its output."""


@runtime_checkable
class Replays(Protocol):
    """A model whose blocks can be run again individually."""

    def replay(self, batch: Batch) -> AbstractContextManager[Sequence[Block]]: ...


@runtime_checkable
class LanguageHead(Protocol):
    """Maps hidden states to a score for every word of the vocabulary."""

    @property
    def vocabulary(self) -> int: ...
    @property
    def description(self) -> Mapping[str, object]:
        """The origin of the head, which is recorded with the scores."""
        ...

    @property
    def layers(self) -> dict[Hashable, int]:
        """The automatically chosen layer, by the weights of the model and their versions.

        Kept with the head, because choosing a layer decodes a hundred texts at every layer.
        """
        ...

    def __call__(self, hidden: Float[Tensor, "*n k"], ids: Int[Tensor, "b m"] | None = None) -> Float[Tensor, "*n m"]:
        """Return logits of the whole vocabulary, or only those of each text's own ``ids``."""
        ...


@runtime_checkable
class Decodes(Protocol):
    """A model that can provide a language model head for its hidden states."""

    def lm_head(self, source: str | None = None) -> LanguageHead:
        """Return the head of its own checkpoint, or of the checkpoint ``source``."""
        ...


Method = Callable[..., Tensor | Attribution]
"""(model, batch, targets, settings by keyword) -> signed, unnormalised scores, 0 on padding."""
