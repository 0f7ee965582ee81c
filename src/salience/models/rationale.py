"""Rationale models: a generator selects tokens of the text, and a classifier reads nothing but the selection."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from salience.core.executor import Executor
from salience.core.passes import embedded, forward
from salience.core.text import Encoded, Text
from salience.core.types import (
    Batch,
    Edit,
    EmbeddingEdit,
    Link,
    Model,
    Output,
    Reads,
    Selection,
    Start,
    Weights,
)
from salience.errors import BadModel, choose
from salience.models.files import reporting
from salience.models.hardkuma import Bernoulli, HardKuma
from salience.models.loading import load

RationaleKind = Literal["lei", "hardkuma"]
KINDS = get_args(RationaleKind)
ENCODER = "encoder"
"""The folder of the classifier inside that of a rationale model."""


@dataclass(frozen=True, slots=True)
class RationaleConfig:
    """How tokens are selected; stored as config.json."""

    kind: RationaleKind
    """``lei`` draws each token by a Bernoulli variable, ``hardkuma`` by a HardKuma variable."""
    model_type: str = "salience_rationale"


class RationaleNetwork(nn.Module):
    """A generator and a classifier of the same shape, which share their word embeddings, and what selects tokens."""

    def __init__(
        self, config: RationaleConfig, generator: nn.Module, encoder: nn.Module, width: int, rate: float
    ) -> None:
        super().__init__()
        self.config = config
        self.choice = {"lei": Bernoulli, "hardkuma": HardKuma}[choose(config.kind, KINDS, "kind of rationale model")]
        self.generator, self.encoder = generator, encoder
        start = torch.tensor(self.choice.start(rate))
        self.select = nn.Linear(width, len(start))
        with torch.no_grad():
            self.select.bias.copy_(start)
        self.register_buffer("threshold", torch.tensor(0.5))

    @property
    def least(self) -> Float[Tensor, ""]:
        """The probability above which a token is selected outside training."""
        return self.get_buffer("threshold")

    def forward(self, states: Float[Tensor, "b t k"]) -> HardKuma | Bernoulli:
        """Return the distribution of the selection, given the last states of the generator."""
        return self.choice.of(self.select(states))


@dataclass(eq=False)
class Rationale:
    """z ~ p(z | x) by the generator;  logits = classifier(z · e).

    In training, z is drawn; otherwise a token is selected if the probability of that is above a threshold, ½ unless
    training has found one. Special tokens are always read.
    Hidden states and attention are the classifier's.

    Papers: Lei et al. 2016, arXiv:1606.04155; Bastings et al. 2019, arXiv:1905.08160
    """

    module: RationaleNetwork
    generator: Model
    encoder: Model
    name: str = "rationale"
    embedding_edit: EmbeddingEdit | None = None

    @classmethod
    def new(
        cls, encoder: Model, kind: RationaleKind, *, rate: float = 0.5, name: str | None = None, seed: int = 0
    ) -> "Rationale":
        """Create a rationale model from a classifier; the generator starts as a copy of it and selects about ``rate``.

        The classifier becomes a part of the model and is trained with it.
        """
        shared = (encoder.words, getattr(encoder, "tokenizer", None))
        generator = deepcopy(encoder, {id(one): one for one in shared if one is not None})
        batch = encoder.batch(encoder.encode(["a"]))
        width = forward(generator, batch, hidden=True).hidden[-1].shape[-1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = RationaleNetwork(RationaleConfig(kind), generator.module, encoder.module, width, rate)
        module.select.to(encoder.words.weight)
        module.threshold = module.least.to(encoder.words.weight.device)
        module.train(encoder.module.training)
        return cls(module, generator, encoder, name or encoder.name)

    @property
    def kind(self) -> RationaleKind:
        return self.module.config.kind

    @property
    def tokenizer(self) -> Any:
        return getattr(self.encoder, "tokenizer", None)

    @property
    def executor(self) -> Executor:
        return self.encoder.executor

    @property
    def labels(self) -> Sequence[str]:
        return self.encoder.labels

    @property
    def link(self) -> Link:
        return self.encoder.link

    @property
    def layers(self) -> int:
        return self.encoder.layers

    @property
    def causal(self) -> bool:
        return self.encoder.causal

    @property
    def single_query(self) -> bool:
        return self.encoder.single_query

    @property
    def reads(self) -> Reads:
        return self.encoder.reads

    @property
    def replacements(self) -> Mapping[str, int]:
        return self.encoder.replacements

    @property
    def words(self) -> nn.Embedding:
        return self.encoder.words if self.embedding_edit is None else self.embedding_edit.words

    def can_start(self) -> bool:
        return self.encoder.can_start()

    def with_embeddings(self, edit: EmbeddingEdit) -> "Rationale":
        return replace(self, embedding_edit=edit)

    def encode(self, texts: Sequence[Text]) -> list[Encoded]:
        return self.encoder.encode(texts)

    def batch(self, encoded: Sequence[Encoded]) -> Batch:
        return self.encoder.batch(encoded)

    def resolve(self, label: str | int) -> int:
        return self.encoder.resolve(label)

    def label(self, index: int) -> str:
        return self.encoder.label(index)

    def spell(self, ids: Sequence[int]) -> list[str]:
        encoder: Any = self.encoder
        return encoder.spell(ids)

    def embed(self, batch: Batch) -> Float[Tensor, "b t d"]:
        return embedded(self, batch)

    def read_from(self, batch: Batch) -> Float[Tensor, "b t"]:
        return self.encoder.read_from(batch)

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
        """Run the generator, and the classifier on what it selects."""
        e = self.words(batch.ids) if embeddings is None else embeddings
        entering = e if self.embedding_edit is None else self.embedding_edit.entering(e)
        choice = self.module(self.generator(batch, embeddings=entering, hidden=True).hidden[-1])
        z = (choice.draw() if self.module.training else choice.decide(self.module.least)).masked_fill(~batch.content, 1)
        output = self.encoder(
            batch,
            embeddings=z[..., None] * entering,
            edit_attention=edit_attention,
            edit_hidden=edit_hidden,
            hidden=hidden,
            attention=attention,
            start=start,
        )
        return replace(output, embeddings=e, selection=Selection(z, choice.log_nonzero * batch.content))

    def save(self, folder: str | Path) -> None:
        """Write config.json, model.safetensors (the generator) and the classifier, in a folder of its own."""
        place = Path(folder)
        self.encoder.save(place / ENCODER)
        (place / "config.json").write_text(json.dumps(asdict(self.module.config), indent=2), "utf-8")
        save_file({name: values.contiguous() for name, values in self._own().items()}, place / "model.safetensors")

    def _own(self) -> dict[str, Tensor]:
        """The weights that are not the classifier's."""
        shared = self.encoder.words.weight.data_ptr()
        weights = self.module.state_dict().items()
        return {n: v for n, v in weights if not n.startswith(f"{ENCODER}.") and v.data_ptr() != shared}

    @classmethod
    def load(
        cls, folder: str | Path, *, name: str | None = None, device: str | None = None, dtype: str = "float32"
    ) -> "Rationale":
        path = Path(folder)
        with reporting(folder):
            stored = json.loads((path / "config.json").read_text("utf-8"))
            encoder = load(path / ENCODER, device=device, dtype=dtype)
            model = cls.new(encoder, stored["kind"], name=name or str(folder))
            weights, own = load_file(path / "model.safetensors"), model._own()
            if weights.keys() != own.keys():
                raise BadModel(f"{folder} is damaged: the generator in model.safetensors is not of the same shape")
            with torch.no_grad():
                for key, values in own.items():
                    values.copy_(weights[key])
        return model
