"""A model whose word vectors lie elsewhere, around a model that is left as it is."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from salience.errors import UnsupportedModel
from salience.types import Batch, Decodes, Edit, Encoded, LanguageHead, Link, Model, Output, Text, Weights


class Moved:
    """The model with the word vectors of ``table``. Of ``absorbed``, if given, every vector is relieved at once.

    With all vectors shifted by what is absorbed, it is the same function of a text as the model itself.
    """

    def __init__(
        self, model: Model, table: Float[Tensor, "v d"], *, absorbed: Float[Tensor, " d"] | None = None
    ) -> None:
        self.model, self.absorbed, self.budget = model, absorbed, model.budget
        self.words = nn.Embedding.from_pretrained(table.detach())

    @property
    def module(self) -> nn.Module:
        return self.model.module

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def labels(self) -> Sequence[str]:
        return self.model.labels

    @property
    def link(self) -> Link:
        return self.model.link

    @property
    def layers(self) -> int:
        return self.model.layers

    @property
    def causal(self) -> bool:
        return self.model.causal

    @property
    def replacements(self) -> Mapping[str, int]:
        return self.model.replacements

    def save(self, folder: str | Path) -> None:  # noqa: ARG002
        raise UnsupportedModel(f"{self.name} with other word vectors is for measuring only; save the model itself")

    def encode(self, texts: Sequence[Text]) -> list[Encoded]:
        return self.model.encode(texts)

    def batch(self, encoded: Sequence[Encoded]) -> Batch:
        return self.model.batch(encoded)

    def resolve(self, label: str | int) -> int:
        return self.model.resolve(label)

    def label(self, index: int) -> str:
        return self.model.label(index)

    def embed(self, batch: Batch) -> Float[Tensor, "b t d"]:
        with torch.no_grad():
            return self.words(batch.ids)

    def read_from(self, batch: Batch) -> Float[Tensor, "b t"]:
        return self.model.read_from(batch)

    def lm_head(self, source: str | None = None) -> LanguageHead:
        if not isinstance(self.model, Decodes):
            raise UnsupportedModel(f"{self.name} has no language model head")
        return self.model.lm_head(source)

    def __call__(
        self,
        batch: Batch,
        *,
        embeddings: Float[Tensor, "b t d"] | None = None,
        edit_attention: Edit | None = None,
        edit_hidden: Edit | None = None,
        hidden: bool = False,
        attention: Weights | None = None,
    ) -> Output:
        start = self.words(batch.ids) if embeddings is None else embeddings
        output = self.model(
            batch,
            embeddings=start if self.absorbed is None else start - self.absorbed,
            edit_attention=edit_attention,
            edit_hidden=edit_hidden,
            hidden=hidden,
            attention=attention,
        )
        return replace(output, embeddings=start)


def table(model: Model) -> Float[Tensor, "v d"]:
    """The vectors of all words."""
    with torch.no_grad():
        return model.words(torch.arange(model.words.num_embeddings, device=model.words.weight.device))
