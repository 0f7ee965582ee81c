"""The classifiers of the attention debate: an encoder, attention with one query, a linear layer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn

from salience.core.executor import Executor
from salience.core.files import complete
from salience.core.passes import embedded
from salience.core.text import Encoded, Text
from salience.core.types import Batch, Edit, EmbeddingEdit, Link, Output, Reads, Site, Start, Weights
from salience.errors import BadInput, choose, unknown
from salience.models.files import reporting
from salience.models.own import encode_own, load_weights, read_own, save_own
from salience.models.recurrence import lstm_over_texts

VECTORS = "vectors.safetensors"
PAD, UNK, MASK = "[PAD]", "[UNK]", "[MASK]"
Encoder = Literal["bilstm", "lstm", "orthogonal_lstm", "average", "mlp", "embedding"]
ENCODERS = get_args(Encoder)
Scoring = Literal["tanh", "relu", "dot", "uniform", "fixed"]
SCORINGS = get_args(Scoring)


@dataclass(frozen=True, slots=True)
class PooledConfig:
    """The configuration of a Pooled model; stored as config.json."""

    labels: tuple[str, ...]
    vocabulary: int
    encoder: Encoder = "bilstm"
    embedding: int = 100
    hidden: int = 64
    """Units of the encoder, per direction for the BiLSTM."""
    attention: int = 64
    """Units of additive attention."""
    scoring: Scoring = "tanh"
    joined: bool = False
    """Whether states are [h; e], the encoder's output beside the embedding."""
    dropout: float = 0.0
    embedding_std: float = field(default=1.0, repr=False)
    """Standard deviation of untrained embeddings. It is no part of a model's identity, as its weights are."""
    longest: int = 4096
    model_type: str = "salience_pooled"


class PooledNetwork(nn.Module):
    """h = encoder(e);  a = attention(h);  logits = U Σ_t a_t h_t + c.

    Encoders: ``embedding`` uses the embeddings themselves, ``average`` and ``mlp`` (two papers' names for one encoder)
    a tanh projection of each embedding. The LSTMs also see neighbouring tokens; in an ``orthogonal_lstm`` each state is
    orthogonal to the mean of those before it.

    Attention: ``tanh`` is a = softmax(v · tanh(W h)), ``relu`` the same with ReLU, ``dot`` is a = softmax(v · h / √k),
    ``uniform`` is 1 / n.
    ``fixed`` attention is given from outside, as an edit of every pass.

    Papers: Jain & Wallace 2019, arXiv:1902.10186; Mohankumar et al. 2020, arXiv:2004.14243 (orthogonal); Tutek &
    Šnajder 2020, arXiv:2005.09379 (joined)
    """

    def __init__(self, config: PooledConfig) -> None:
        super().__init__()
        choose(config.encoder, ENCODERS, "encoder")
        choose(config.scoring, SCORINGS, "scoring")
        self.config = config
        directions = 2 if config.encoder == "bilstm" else 1
        width = config.embedding if config.encoder == "embedding" else config.hidden * directions
        width += config.embedding * config.joined
        self.words = nn.Embedding(config.vocabulary, config.embedding, padding_idx=0)
        with torch.no_grad():
            self.words.weight.mul_(config.embedding_std)
        self.lstm = (
            nn.LSTM(config.embedding, config.hidden, batch_first=True, bidirectional=directions == 2)
            if config.encoder in ("bilstm", "lstm")
            else None
        )
        self.cell = nn.LSTMCell(config.embedding, config.hidden) if config.encoder == "orthogonal_lstm" else None
        self.project = nn.Linear(config.embedding, config.hidden) if config.encoder in ("average", "mlp") else None
        self.dropout = nn.Dropout(config.dropout)
        self.key = nn.Linear(width, config.attention) if config.scoring in ("tanh", "relu") else None
        scored = {"tanh": config.attention, "relu": config.attention, "dot": width}
        self.query = nn.Linear(scored[config.scoring], 1, bias=False) if config.scoring in scored else None
        self.classifier = nn.Linear(width, len(config.labels))

    def forward(
        self,
        e: Float[Tensor, "b t d"],
        mask: Bool[Tensor, "b t"],
        edit_attention: Edit | None,
        edit_hidden: Edit | None,
        start: Start | None = None,
    ) -> tuple[Float[Tensor, "b c"], tuple[Tensor, Tensor], Float[Tensor, "b 1 1 t"]]:
        """Return the logits, the encoder's input and output, and the attention weights."""
        if start is None:
            e = e if edit_hidden is None else edit_hidden(Site(0), e)
            h = self.states(self.dropout(e), mask)
            h = h if edit_hidden is None else edit_hidden(Site(1), h)
        else:
            h = start.hidden
        a = self.attend(h, mask)[:, None, None]
        if edit_attention is not None:
            a = edit_attention(Site(1), a)
        elif self.config.scoring == "fixed":
            raise BadInput("the attention of this model is given from outside; pass it as edit_attention")
        context = (a[:, 0] @ h)[:, 0]
        return self.classifier(self.dropout(context)), (e, h), a

    def states(self, e: Float[Tensor, "b t d"], mask: Bool[Tensor, "b t"]) -> Float[Tensor, "b t k"]:
        """Return the states that attention averages."""
        h = self.encode(e, mask)
        return torch.cat([h, e], -1) if self.config.joined else h

    def attend(self, h: Float[Tensor, "b t k"], mask: Bool[Tensor, "b t"]) -> Float[Tensor, "b t"]:
        """Return the attention weights."""
        scores = h.new_zeros(h.shape[:2]) if self.query is None else self.query(self._keys(h))[..., 0]
        return scores.masked_fill(~mask, -torch.inf).softmax(-1)

    def _keys(self, h: Float[Tensor, "b t k"]) -> Float[Tensor, "b t _"]:
        if self.key is None:
            return h * h.shape[-1] ** -0.5
        return torch.relu(self.key(h)) if self.config.scoring == "relu" else torch.tanh(self.key(h))

    def encode(self, e: Float[Tensor, "b t d"], mask: Bool[Tensor, "b t"]) -> Float[Tensor, "b t k"]:
        if self.project is not None:
            return torch.tanh(self.project(e))
        if self.cell is not None:
            return _orthogonal(self.cell, e) * mask[..., None]
        return e if self.lstm is None else lstm_over_texts(self.lstm, e, mask)


def _orthogonal(cell: nn.LSTMCell, e: Float[Tensor, "b t d"]) -> Float[Tensor, "b t k"]:
    """h_t = ĥ_t − (ĥ_t · m / m · m) m with m the mean of the states before; h_t is fed back into the cell.

    Paper: Mohankumar et al. 2020, arXiv:2004.14243, section 3.1
    """
    h = c = total = e.new_zeros(len(e), cell.hidden_size)
    states: list[Tensor] = []
    for t, x in enumerate(e.unbind(1)):
        h, c = cell(x, (h, c))
        m = total / (t + 1)
        h = h - (h * m).sum(1, keepdim=True) / ((m * m).sum(1, keepdim=True) + 1e-6) * m
        total = total + h
        states.append(h)
    return torch.stack(states, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Relevance:
    """The output relevance of each token, U h_t, and c: the logits are Σ_t a_t U h_t + c, linear in attention."""

    tokens: Float[Tensor, "b t c"]
    bias: Float[Tensor, " c"]

    def take(self, rows: Int[Tensor, " r"], width: int) -> "Relevance":
        return Relevance(self.tokens[rows, :width], self.bias)

    def __call__(self, weights: Float[Tensor, "b 1 1 t"]) -> Float[Tensor, "b c"]:
        return (weights[:, 0] @ self.tokens)[:, 0] + self.bias


@dataclass(eq=False)
class Pooled:
    """A pooled classifier with its tokenizer.

    ``hidden[0]`` is the embeddings, ``hidden[1]`` the encoder's output; attention is one head with one query.
    """

    module: PooledNetwork
    tokenizer: Tokenizer
    name: str = "pooled"
    executor: Executor = field(default=None, repr=False)  # pyright: ignore[reportAssignmentType]
    """Created for the module if not given."""
    embedding_edit: EmbeddingEdit | None = None
    initial_embeddings: Float[Tensor, "v d"] | None = field(default=None, repr=False)
    """Word vectors that models created by ``fresh`` start from; rows of NaN are initialised at random."""

    causal = False
    layers = 1
    single_query = True

    def __post_init__(self) -> None:
        self.executor = self.executor or Executor(8192, self.module)

    @classmethod
    def new(cls, config: PooledConfig, tokenizer: Tokenizer, *, name: str = "pooled", seed: int = 0) -> "Pooled":
        """Create an untrained model, with weights initialised by ``seed``."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(PooledNetwork(config).eval(), tokenizer, name)

    @property
    def config(self) -> PooledConfig:
        return self.module.config

    def can_start(self) -> bool:
        return True

    @property
    def reads(self) -> Reads:
        return "all"

    @property
    def labels(self) -> Sequence[str]:
        return self.config.labels

    @property
    def link(self) -> Link:
        return "identity" if len(self.config.labels) == 1 else "softmax"

    @property
    def words(self) -> nn.Embedding:
        return self.module.words if self.embedding_edit is None else self.embedding_edit.words

    def with_embeddings(self, edit: EmbeddingEdit) -> "Pooled":
        return replace(self, embedding_edit=edit)

    @property
    def replacements(self) -> Mapping[str, int]:
        ids = {k: self.tokenizer.token_to_id(t) for k, t in (("mask", MASK), ("unk", UNK), ("pad", PAD))}
        return {k: v for k, v in ids.items() if v is not None}

    def encode(self, texts: Sequence[Text]) -> list[Encoded]:
        return [encode_own(self.tokenizer, t, n, self.name, self.config.longest) for n, t in enumerate(texts)]

    def batch(self, encoded: Sequence[Encoded]) -> Batch:
        return Batch.of(encoded, 0, self.words.weight.device)

    def resolve(self, label: str | int) -> int:
        if isinstance(label, str) and label in self.labels:
            return self.labels.index(label)
        if str(label).isdecimal() and int(label) < len(self.labels):
            return int(label)
        raise BadInput(unknown(label, self.labels, "label", self.name))

    def label(self, index: int) -> str:
        return self.labels[index]

    def spell(self, ids: Sequence[int]) -> list[str]:
        return [self.tokenizer.decode([i], skip_special_tokens=True) for i in ids]

    def embed(self, batch: Batch) -> Float[Tensor, "b t d"]:
        return embedded(self, batch)

    def read_from(self, batch: Batch) -> Float[Tensor, "b t"]:
        """Uniform over all tokens: the weights are in the attention itself."""
        return batch.mask / batch.mask.sum(1, keepdim=True)

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
        e = self.words(batch.ids) if embeddings is None else embeddings
        entering = e if self.embedding_edit is None else self.embedding_edit.entering(e)
        logits, states, a = self.module(entering, batch.mask, edit_attention, edit_hidden, start)
        return Output(logits, e, states if hidden else (), (a,) if attention else ())

    def last_attention(self, batch: Batch, start: Start) -> "Relevance":  # noqa: ARG002
        """The output relevance of each token, from which attention weights make the logits."""
        with torch.no_grad():
            return Relevance(start.hidden @ self.module.classifier.weight.T, self.module.classifier.bias.detach())

    def save(self, folder: str | Path, *, dtype: torch.dtype = torch.float32) -> None:
        """Write config.json, tokenizer.json and model.safetensors, and the word vectors that ``fresh`` starts from."""
        save_own(folder, self.config, self.tokenizer, self.module, dtype)
        if self.initial_embeddings is not None:
            save_file({"vectors": self.initial_embeddings.to(dtype).contiguous()}, Path(folder) / VECTORS)

    def fresh(self, labels: Sequence[str], seed: int, **changes: Any) -> "Pooled":
        """Create an untrained model of the same vocabulary for these labels, initialised by ``seed``.

        Its shape is the same but for ``changes`` of the configuration, such as ``scoring="uniform"``.
        """
        config = replace(self.config, labels=tuple(labels), **changes)
        model = Pooled.new(config, self.tokenizer, name=self.name, seed=seed)
        if self.initial_embeddings is not None:
            model.start_embeddings_from(self.initial_embeddings)
        model.module.to(self.words.weight)
        return model

    def start_embeddings_from(self, initial: Float[Tensor, "v d"]) -> None:
        """Set the embeddings to word vectors, except for rows of NaN; those of models created by ``fresh`` as well."""
        weight = self.module.words.weight
        if weight.shape != initial.shape:
            raise BadInput(
                f"the word vectors are {initial.shape[1]} wide and the embeddings {weight.shape[1]}; use vectors of "
                f"width {weight.shape[1]}, or none"
            )
        with torch.no_grad():
            weight.copy_(torch.where(initial.isnan(), weight.cpu(), initial))
        self.initial_embeddings = initial

    @classmethod
    def load(
        cls, folder: str | Path, *, name: str | None = None, device: str | None = None, dtype: str = "float32"
    ) -> "Pooled":
        with reporting(folder):
            stored, tokenizer = read_own(folder, "a pooled model")
            labels = tuple(stored.pop("labels"))
            model = cls.new(PooledConfig(labels, **stored), tokenizer, name=name or str(folder))
            load_weights(model.module, folder, device, dtype)
            if (vectors := Path(folder) / VECTORS).exists():
                model.initial_embeddings = load_file(vectors)["vectors"].float()
        return model


def word_tokenizer(texts: Iterable[str], size: int, *, least: int = 0) -> Tokenizer:
    """Train a lower-casing word-level tokenizer with the ``size`` most frequent words that occur ``least`` times."""
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNK))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordLevelTrainer(vocab_size=size, min_frequency=least, special_tokens=[PAD, UNK, MASK])
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def stored_tokenizer(file: Path, texts: Iterable[str], size: int, *, least: int = 0) -> Tokenizer:
    """Return the tokenizer in the file, or a new one: words that are equally frequent have no fixed order."""
    if not file.exists():
        made = word_tokenizer(texts, size, least=least)
        with complete(file) as out:
            out.write(made.to_str().encode())
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more specific
        raise BadInput(f"{file} is damaged: {error}. Delete the folder to start over.") from error
