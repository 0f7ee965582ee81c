"""The classifiers of the attention debate: encoder, additive attention, linear layer (Jain & Wallace 2019)."""

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn

from salience import batching
from salience.errors import BadInput, BadModel, TruncatedText, choose, too_long, unknown
from salience.types import Batch, Edit, Encoded, Link, Output, Text, Weights
from salience.words import unread

PAD, UNK, MASK = "[PAD]", "[UNK]", "[MASK]"
ENCODERS = ("bilstm", "lstm", "average", "mlp")


@dataclass(frozen=True, slots=True)
class PooledConfig:
    """The shape of a Pooled model; stored as config.json."""

    labels: tuple[str, ...]
    vocabulary: int
    encoder: Literal["bilstm", "lstm", "average", "mlp"] = "bilstm"
    embedding: int = 100
    hidden: int = 64
    """Units of the encoder, per direction for the BiLSTM."""
    attention: int = 64
    dropout: float = 0.0
    longest: int = 4096
    model_type: str = "salience_pooled"


class Pooled(nn.Module):
    """h = encoder(e);  a = softmax(v · tanh(W h));  logits = U Σ_t a_t h_t + c.

    ``average`` reads the embeddings themselves, ``mlp`` a tanh projection of each one alone, and the two LSTMs see
    their neighbours. ``hidden[0]`` is the embeddings, ``hidden[1]`` the encoder's output; attention is one head with
    one query.
    """

    causal = False
    layers = 1

    def __init__(self, config: PooledConfig, tokenizer: Tokenizer, *, name: str = "pooled", budget: int = 8192) -> None:
        super().__init__()
        choose(config.encoder, ENCODERS, "encoder")
        self.config, self.tokenizer, self.name, self.budget = config, tokenizer, name, budget
        directions = 2 if config.encoder == "bilstm" else 1
        width = config.embedding if config.encoder == "average" else config.hidden * directions
        self.words = nn.Embedding(config.vocabulary, config.embedding, padding_idx=0)
        self.lstm = (
            nn.LSTM(config.embedding, config.hidden, batch_first=True, bidirectional=directions == 2)
            if "lstm" in config.encoder
            else None
        )
        self.project = nn.Linear(config.embedding, config.hidden) if config.encoder == "mlp" else None
        self.dropout = nn.Dropout(config.dropout)
        self.key = nn.Linear(width, config.attention)
        self.query = nn.Linear(config.attention, 1, bias=False)
        self.classifier = nn.Linear(width, len(config.labels))

    @property
    def module(self) -> nn.Module:
        return self

    @property
    def labels(self) -> Sequence[str]:
        return self.config.labels

    @property
    def link(self) -> Link:
        return "identity" if len(self.config.labels) == 1 else "softmax"

    @property
    def replacements(self) -> Mapping[str, int]:
        found = {k: self.tokenizer.token_to_id(t) for k, t in (("mask", MASK), ("unk", UNK), ("pad", PAD))}
        return {k: v for k, v in found.items() if v is not None}

    def encode(self, texts: Sequence[Text]) -> list[Encoded]:
        return [self._encode(text, number) for number, text in enumerate(texts)]

    def _encode(self, text: Text, number: int) -> Encoded:
        if not isinstance(text, str):
            raise BadInput(f"text {number} is a pair; {self.name} reads single texts")
        if not text.strip():
            raise BadInput(f"text {number} is empty or only white space; give at least one word")
        found = self.tokenizer.encode(text)
        end = min(len(found.ids), self.config.longest)
        if not end:
            raise BadInput(f"text {number} has no tokens that this model's tokenizer knows: {text!r}")
        unseen = tuple(unread(text, found.offsets[:end], found.offsets[end:]))
        if end < len(found.ids):
            warnings.warn(too_long(number, end, unseen), TruncatedText, stacklevel=2)
        return Encoded(
            text,
            tuple(found.ids[:end]),
            tuple(found.tokens[:end]),
            tuple(found.offsets[:end]),
            (False,) * end,
            unseen=unseen,
        )

    def batch(self, encoded: Sequence[Encoded]) -> Batch:
        return batching.collate(encoded, 0, self.words.weight.device)

    def resolve(self, label: str | int) -> int:
        if isinstance(label, str) and label in self.labels:
            return self.labels.index(label)
        if str(label).isdecimal() and int(label) < len(self.labels):
            return int(label)
        raise BadInput(unknown(label, self.labels, f"label of {self.name}"))

    def label(self, index: int) -> str:
        return self.labels[index]

    def embed(self, batch: Batch) -> Float[Tensor, "b t d"]:
        with torch.no_grad():
            return self.words(batch.ids)

    def read_from(self, batch: Batch) -> Float[Tensor, "b t"]:
        """The only query reads everything: attention itself holds the weights."""
        return batch.mask / batch.mask.sum(1, keepdim=True)

    def forward(
        self,
        batch: Batch,
        *,
        embeddings: Float[Tensor, "b t d"] | None = None,
        edit_attention: Edit | None = None,
        edit_hidden: Edit | None = None,
        hidden: bool = False,
        attention: Weights | None = None,
    ) -> Output:
        e = self.words(batch.ids) if embeddings is None else embeddings
        start = e if edit_hidden is None else edit_hidden(0, e)
        h = self._states(self.dropout(start), batch)
        h = h if edit_hidden is None else edit_hidden(1, h)
        scores = self.query(torch.tanh(self.key(h)))[..., 0].masked_fill(~batch.mask, -torch.inf)
        a = scores.softmax(-1)[:, None, None]
        a = a if edit_attention is None else edit_attention(0, a)
        context = (a[:, 0] @ h)[:, 0]
        logits = self.classifier(self.dropout(context))
        return Output(logits, e, (start, h) if hidden else (), (a,) if attention else ())

    def _states(self, e: Float[Tensor, "b t d"], batch: Batch) -> Float[Tensor, "b t k"]:
        if self.project is not None:
            return torch.tanh(self.project(e))
        if self.lstm is None:
            return e
        lengths = batch.mask.sum(1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(e, lengths, batch_first=True, enforce_sorted=False)
        # cuDNN's LSTM refuses to run backward in evaluation mode.
        with torch.backends.cudnn.flags(enabled=self.training):
            states, _ = self.lstm(packed)
        return nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=batch.width)[0]

    def save(self, folder: str | Path, *, dtype: torch.dtype = torch.float32) -> None:
        """Write config.json, tokenizer.json and model.safetensors."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps(asdict(self.config), indent=2), "utf-8")
        self.tokenizer.save(str(path / "tokenizer.json"))
        save_file({k: v.to(dtype).contiguous() for k, v in self.state_dict().items()}, path / "model.safetensors")

    def fresh(self, labels: Sequence[str], seed: int) -> "Pooled":
        """A model of the same shape and vocabulary for these labels, its weights drawn by ``seed``."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = Pooled(
                replace(self.config, labels=tuple(labels)), self.tokenizer, name=self.name, budget=self.budget
            )
        return made.to(self.words.weight).eval()

    @classmethod
    def load(
        cls, folder: str | Path, *, name: str | None = None, device: str | None = None, dtype: str = "float32"
    ) -> "Pooled":
        path = Path(folder)
        try:
            stored: dict[str, Any] = json.loads((path / "config.json").read_text("utf-8"))
            labels = tuple(stored.pop("labels"))
            model = cls(
                PooledConfig(labels, **stored),
                Tokenizer.from_file(str(path / "tokenizer.json")),
                name=name or str(folder),
            )
            model.load_state_dict(load_file(path / "model.safetensors"))
        except (OSError, ValueError, TypeError, RuntimeError, KeyError) as error:
            raise BadModel(f"{folder} does not hold a pooled model that can be read: {error}") from error
        return model.to(device or "cpu", getattr(torch, dtype)).eval()


def word_tokenizer(texts: Iterable[str], size: int) -> Tokenizer:
    """A lower-casing word-level tokenizer with the ``size`` most frequent words of the texts."""
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNK))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordLevelTrainer(vocab_size=size, special_tokens=[PAD, UNK, MASK])
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
