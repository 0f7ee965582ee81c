"""An encoder-decoder with attention: which word of a source text each word of the answer is made from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn

from salience.core.executor import Executor
from salience.core.passes import embedded
from salience.core.text import Encoded, Text
from salience.core.types import Batch, Edit, EmbeddingEdit, Link, Output, Reads, Site, Start, Weights
from salience.errors import BadInput, BadModel, choose, unknown
from salience.models.files import reporting
from salience.models.own import encode_own, load_weights, read_own, save_own

PAD, UNK, BOS, EOS = "[PAD]", "[UNK]", "[BOS]", "[EOS]"
SPECIAL = (PAD, UNK, BOS, EOS)

_MARK = r"▁?[\p{P}$+<=>^`|~]"
"""A punctuation mark, a token of its own, with the space before it: a space alone is no token."""

_NO_SPACE = "|".join(
    (
        r"\s+(?=[.,;:!?%…)\]}”»]+(?:\s|$))",  # before marks that end something
        r"(?<=[(\[{„«])\s+",  # after marks that begin something
        r"\s+(?=['’](?:s|re|ve|ll|d|m|t)\b)|(?<=s)\s+(?=['’](?:\s|$))",  # in she ’s and the dogs ’ bowls
        r"\s+(?=/\s)|(?<=\s/)\s+",  # around a slash
    )
)
"""Spaces that only texts with punctuation set apart have. Other quotation marks and dashes keep theirs, as they may
begin or end something.
"""

Cell = Literal["lstm", "gru"]
Activation = Literal["relu", "tanh"]
AttentionScore = Literal["dot", "uniform", "none"]
State = tuple[Float[Tensor, "l b k"], ...]
"""The state of a recurrent network: (h, c) of an LSTM, (h,) of a GRU."""


@dataclass(frozen=True, slots=True)
class Seq2SeqConfig:
    """The configuration of a Seq2Seq model; stored as config.json. The defaults are the translation model's."""

    vocabulary: int
    hidden: int = 256
    """Units of each layer, per direction in the encoder, and the width of the embeddings."""
    layers: int = 2
    cell: Cell = "lstm"
    bidirectional: bool = True
    activation: Activation = "relu"
    heads: int = 1
    scoring: AttentionScore = "dot"
    shared: bool = True
    """Whether source and answer have the same embeddings."""
    dropout: float = 0.5
    """Between the layers."""
    longest: int = 256
    """Tokens of a source text, with the one that ends it."""
    model_type: str = "salience_seq2seq"


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """One pass in which the answer is given: the logits of y_t, from the source and y_<t."""

    logits: Float[Tensor, "b t v"]
    attention: Float[Tensor, "b k t s"]
    states: Float[Tensor, "b s h"]
    """h, the states of the source."""
    queries: Float[Tensor, "b t d"]
    """d, the states of the decoder."""


class Head(nn.Module):
    """One head of attention: W_q, which makes queries, and W_e, which projects the context."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, width)
        self.project = nn.Linear(width, hidden)


class Seq2SeqNetwork(nn.Module):
    """h = encoder(x);  d = decoder(y_<t);  a_t = softmax_s(h_s · W_q d_t);  c_t = W_e Σ_s a_ts h_s;
    logits_t = W f(W_m [d_t; c_t]), f being ReLU or tanh. Contexts of several heads are averaged.

    The decoder starts from the last state of the encoder, averaged over both directions. Attention is not fed back into
    the decoder, so all steps of a given answer are computed at once.

    Paper: Snell et al. 2021, arXiv:2103.07601
    """

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        cells: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}
        cell = cells[choose(config.cell, get_args(Cell), "cell")]
        choose(config.activation, get_args(Activation), "activation")
        choose(config.scoring, get_args(AttentionScore), "scoring")
        self.config = config
        size = config.hidden
        shape: dict[str, Any] = {
            "num_layers": config.layers,
            "batch_first": True,
            "dropout": config.dropout if config.layers > 1 else 0.0,
        }
        self.words = nn.Embedding(config.vocabulary, size)
        self.answer_words = None if config.shared else nn.Embedding(config.vocabulary, size)
        self.encoder = cell(size, size, bidirectional=config.bidirectional, **shape)
        self.decoder = cell(size, size, **shape)
        self.merge = nn.Linear(2 * size, size)
        self.output = nn.Linear(size, config.vocabulary)
        width = size * (1 + config.bidirectional)
        self.heads = nn.ModuleList(Head(size, width) for _ in range(config.heads))

    def forward(
        self,
        e: Float[Tensor, "b s k"],
        mask: Bool[Tensor, "b s"],
        inputs: Int[Tensor, "b t"],
        step: Int[Tensor, " b"] | None = None,
    ) -> Decoded:
        """Run the network on source embeddings and the words before each word of the answer.

        With ``step``, only the logits of that step of each answer are computed.
        """
        h, state = self.encode(e, mask)
        d, _ = self.decode(inputs, state)
        a = self.attend(d, h, mask)
        c = self.context(a, h)
        read = (d, c) if step is None else (part[torch.arange(len(part)), step][:, None] for part in (d, c))
        return Decoded(self.read_out(*read), a, h, d)

    def encode(self, e: Float[Tensor, "b s k"], mask: Bool[Tensor, "b s"]) -> tuple[Float[Tensor, "b s h"], State]:
        """Return the states of the source, and the state that the decoder starts from."""
        packed = nn.utils.rnn.pack_padded_sequence(e, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        # cuDNN does not support backward in evaluation mode.
        with torch.backends.cudnn.flags(enabled=self.training):
            states, last = self.encoder(packed)
        h, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=mask.shape[1])
        return h, tuple(self._averaged(part) for part in (last if isinstance(last, tuple) else (last,)))

    def _averaged(self, last: Float[Tensor, "ld b k"]) -> Float[Tensor, "l b k"]:
        return last.view(self.config.layers, -1, *last.shape[1:]).mean(1)

    def decode(self, inputs: Int[Tensor, "b t"], state: State) -> tuple[Float[Tensor, "b t d"], State]:
        """Return the states of the decoder after each word, and the state to continue from."""
        words = self.words if self.answer_words is None else self.answer_words
        h, *cell = state
        with torch.backends.cudnn.flags(enabled=self.training):
            d, last = self.decoder(words(inputs), state if cell else h)
        return d, last if isinstance(last, tuple) else (last,)

    def attend(
        self, d: Float[Tensor, "b t d"], h: Float[Tensor, "b s h"], mask: Bool[Tensor, "b s"]
    ) -> Float[Tensor, "b k t s"]:
        """a_ts = softmax_s(h_s · W_q d_t), or 1 / n; 0 without attention, where the decoder reads nothing of h."""
        if self.config.scoring == "none":
            return d.new_zeros(len(d), len(self.heads), d.shape[1], h.shape[1])
        uniform = self.config.scoring == "uniform"
        scores = [
            d.new_zeros(*d.shape[:2], h.shape[1]) if uniform else head.query(d) @ h.mT  # pyright: ignore
            for head in self.heads
        ]
        return torch.stack(scores, 1).masked_fill(~mask[:, None, None], -torch.inf).softmax(-1)

    def context(self, a: Float[Tensor, "b k t s"], h: Float[Tensor, "b s h"]) -> Float[Tensor, "b t d"]:
        """c_t = W_e Σ_s a_ts h_s, the mean over heads."""
        projected = [head.project(one @ h) for head, one in zip(self.heads, a.unbind(1), strict=True)]  # pyright: ignore
        return torch.stack(projected).mean(0)

    def read_out(self, d: Float[Tensor, "*n d"], c: Float[Tensor, "*n d"]) -> Float[Tensor, "*n v"]:
        """W f(W_m [d; c])."""
        merged = self.merge(torch.cat([d, c], -1))
        return self.output(torch.relu(merged) if self.config.activation == "relu" else torch.tanh(merged))

    def projected(self, h: Float[Tensor, "b s h"]) -> Float[Tensor, "b s d"]:
        """W_e h_s: the context if all attention were on one word, the mean over heads."""
        return torch.stack([head.project(h) for head in self.heads]).mean(0)  # pyright: ignore


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """Answers to a batch of sources, padded on the right: what the decoder reads, and what it should say."""

    inputs: Int[Tensor, "b t"]
    outputs: Int[Tensor, "b t"]
    mask: Bool[Tensor, "b t"]

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(eq=False)
class Seq2Seq:
    """An encoder-decoder with its tokenizer.

    As a model it predicts the word that follows ``prefix``, the answer so far: its labels are the vocabulary, and
    attention has one query, the last state of the decoder. ``hidden[0]`` is the embeddings of the source, ``hidden[1]``
    the states that attention averages. The decoder starts from the encoder's last state, which is no part of these.
    """

    module: Seq2SeqNetwork
    tokenizer: Tokenizer
    name: str = "seq2seq"
    executor: Executor = field(default=None, repr=False)  # pyright: ignore[reportAssignmentType]
    """Created for the module if not given."""
    embedding_edit: EmbeddingEdit | None = None
    prefix: tuple[int, ...] = ()
    """The tokens of the answer so far."""

    causal = False
    layers = 1
    single_query = True

    def __post_init__(self) -> None:
        self.executor = self.executor or Executor(8192, self.module)

    @classmethod
    def new(cls, config: Seq2SeqConfig, tokenizer: Tokenizer, *, name: str = "seq2seq", seed: int = 0) -> "Seq2Seq":
        """Create an untrained model, with weights initialised by ``seed``."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(Seq2SeqNetwork(config).eval(), tokenizer, name)

    @property
    def config(self) -> Seq2SeqConfig:
        return self.module.config

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """The ids of the special tokens."""
        ids = {token: self.tokenizer.token_to_id(token) for token in SPECIAL}
        if missing := [token for token, number in ids.items() if number is None]:
            raise BadModel(f"the tokenizer of {self.name} has no token {missing[0]}; train it with subword_tokenizer")
        return {token: number for token, number in ids.items() if number is not None}

    def after(self, prefix: Sequence[int]) -> "Seq2Seq":
        """Return the model that predicts the word after this beginning of an answer."""
        return replace(self, prefix=tuple(prefix))

    # ------------------------------------------------------------------------------------------------ as a model

    def can_start(self) -> bool:
        """The decoder's first state is not among the hidden states."""
        return False

    @property
    def reads(self) -> Reads:
        return "all"

    @property
    def labels(self) -> Sequence[str]:
        return self._labels

    @cached_property
    def _labels(self) -> Sequence[str]:
        return tuple(str(self.tokenizer.id_to_token(i)) for i in range(self.config.vocabulary))

    @property
    def link(self) -> Link:
        return "softmax"

    @property
    def words(self) -> nn.Embedding:
        return self.module.words if self.embedding_edit is None else self.embedding_edit.words

    def with_embeddings(self, edit: EmbeddingEdit) -> "Seq2Seq":
        return replace(self, embedding_edit=edit)

    @property
    def replacements(self) -> Mapping[str, int]:
        return {"unk": self.ids[UNK], "pad": self.ids[PAD]}

    def encode(self, texts: Sequence[Text]) -> list[Encoded]:
        """Tokenise source texts; each ends with a special token."""
        return [self._encode(text, number) for number, text in enumerate(texts)]

    def _encode(self, text: Text, number: int) -> Encoded:
        read = encode_own(self.tokenizer, text, number, self.name, self.config.longest - 1)
        return replace(
            read,
            ids=(*read.ids, self.ids[EOS]),
            tokens=(*read.tokens, EOS),
            offsets=(*read.offsets, (len(read.text), len(read.text))),
            special=(*read.special, True),
        )

    def encode_answer(self, text: str) -> Encoded:
        """Tokenise an answer, without special tokens."""
        encoding = self.tokenizer.encode(text)
        kept = (False,) * len(encoding.ids)
        return Encoded(text, tuple(encoding.ids), tuple(encoding.tokens), tuple(encoding.offsets), kept)

    def batch(self, encoded: Sequence[Encoded]) -> Batch:
        return Batch.of(encoded, self.ids[PAD], self.words.weight.device)

    def answers(self, tokens: Sequence[Sequence[int]]) -> Answers:
        """A batch of answers, given by their tokens; each ends with the token that ends it."""
        width, pad = 1 + max(map(len, tokens)), self.ids[PAD]

        def rows(values: Iterable[Sequence[int]]) -> Int[Tensor, "b t"]:
            padded = [[*row, *[pad] * (width - len(row))] for row in values]
            return torch.tensor(padded, device=self.words.weight.device)

        lengths = torch.tensor([len(row) + 1 for row in tokens], device=self.words.weight.device)
        return Answers(
            rows([self.ids[BOS], *row] for row in tokens),
            rows([*row, self.ids[EOS]] for row in tokens),
            torch.arange(width, device=lengths.device) < lengths[:, None],
        )

    def force(
        self,
        batch: Batch,
        answers: Answers,
        *,
        embeddings: Float[Tensor, "b s d"] | None = None,
        step: Int[Tensor, " b"] | None = None,
    ) -> Decoded:
        """Run the model with given answers, all steps at once; with ``step``, only its logits are computed."""
        e = self.words(batch.ids) if embeddings is None else embeddings
        entering = e if self.embedding_edit is None else self.embedding_edit.entering(e)
        return self.module(entering, batch.mask, answers.inputs, step)

    def resolve(self, label: str | int) -> int:
        """Return the id of a word of the vocabulary, as text that is one token or as that token.

        Text begins a word: ``A`` is the token ▁A, and the A inside a word can be named by its number alone.
        """
        if isinstance(label, int):
            if 0 <= label < self.config.vocabulary:
                return label
            raise BadInput(f"there is no word number {label}: {self.name} has {self.config.vocabulary:,}")
        ids, known = self.tokenizer.encode(label).ids, self.tokenizer.token_to_id(label)
        if len(ids) == 1 and ids[0] != self.ids[UNK]:
            return ids[0]
        if known is not None:
            return known
        if not ids or self.ids[UNK] in ids:
            raise BadInput(unknown(label, self.labels[:10], "word", self.name))
        first = self.tokenizer.id_to_token(ids[0])
        raise BadInput(f"{label!r} is {len(ids)} tokens of {self.name}; name its first one, {first!r}")

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
        if start is not None:
            raise BadInput(f"{self.name} cannot start from a hidden state: its decoder starts from the encoder's state")
        e = self.words(batch.ids) if embeddings is None else embeddings
        entering = e if self.embedding_edit is None else self.embedding_edit.entering(e)
        inputs = torch.tensor([[self.ids[BOS], *self.prefix]], device=e.device).expand(len(batch), -1)
        net, kept = self.module, entering if edit_hidden is None else edit_hidden(Site(0), entering)
        h, state = net.encode(kept, batch.mask)
        h = h if edit_hidden is None else edit_hidden(Site(1), h)
        d = net.decode(inputs, state)[0][:, -1:]
        a = net.attend(d, h, batch.mask)
        a = a if edit_attention is None else edit_attention(Site(1), a)
        logits = net.read_out(d, net.context(a, h))[:, 0]
        return Output(logits, e, (kept, h) if hidden else (), (a,) if attention else ())

    # ------------------------------------------------------------------------------------------------ as files

    def save(self, folder: str | Path) -> None:
        """Write config.json, tokenizer.json and model.safetensors."""
        save_own(folder, self.config, self.tokenizer, self.module, None)

    @classmethod
    def load(
        cls, folder: str | Path, *, name: str | None = None, device: str | None = None, dtype: str = "float32"
    ) -> "Seq2Seq":
        with reporting(folder):
            stored, tokenizer = read_own(folder, "an encoder-decoder")
            model = cls.new(Seq2SeqConfig(**stored), tokenizer, name=name or str(folder))
            load_weights(model.module, folder, device, dtype)
        return model


def subword_tokenizer(texts: Iterable[str], size: int) -> Tokenizer:
    """Train a byte-pair tokenizer with ``size`` tokens, special ones included, on texts of one or several languages.

    Texts whose punctuation is set apart, as in files of word alignments, have the tokens of those as they are written.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=UNK))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(_NO_SPACE), "")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="always"), pre_tokenizers.Split(Regex(_MARK), "isolated")]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def symbol_tokenizer(symbols: Iterable[str]) -> Tokenizer:
    """A tokenizer of given words, separated by white space, after the special tokens."""
    vocabulary = {word: number for number, word in enumerate((*SPECIAL, *symbols))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer
