"""A language model that is made to give one answer, as a model whose labels are the tokens of that answer.

With the answer given, one pass over prompt and answer computes the numbers of all its tokens, and every method that
explains a label explains a token of the answer.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from salience.core.executor import Executor
from salience.core.target import Kind
from salience.core.text import Encoded, Text
from salience.core.types import (
    Batch,
    Block,
    Chain,
    Edit,
    EmbeddingEdit,
    LanguageHead,
    Link,
    Output,
    Prefix,
    Reads,
    Reduction,
    Start,
    Weights,
)  # fmt: skip
from salience.errors import BadInput

if TYPE_CHECKING:
    from salience.models.huggingface.adapter import HuggingFace

WHOLE = "whole answer"


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The tokens y_1..y_g of an answer, and the number that is explained for each.

    Texts are read without the last token of the answer, which nothing follows: f_t is computed from the logits after
    the t-th of the last g tokens. ``against`` is another token for every step, whose number is subtracted from f_t.
    """

    ids: Int[Tensor, " g"]
    tokens: tuple[str, ...]
    kind: Kind = "log_probability"
    against: Int[Tensor, " g"] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def labels(self) -> Sequence[str]:
        """The tokens, and the whole answer."""
        return (*self.tokens, WHOLE)

    def resolve(self, label: str | int) -> int:
        """Return the column of a label: the number of a token, or of the whole answer."""
        if isinstance(label, int) and 0 <= label <= len(self):
            return label
        raise BadInput(f"there is no token {label!r} of the answer; its {len(self)} tokens are numbered from 0")

    def read_from(self, batch: Batch) -> Float[Tensor, "b t"]:
        """The positions from which the whole answer is predicted: the last of every text."""
        order = batch.mask.cumsum(1)
        read = batch.mask & (order > order[:, -1:] - len(self))
        return read / read.sum(1, keepdim=True)

    def __call__(self, logits: Float[Tensor, "b g v"]) -> Float[Tensor, "b c"]:
        """f_1..f_g, and their sum: for log-probabilities, that of the whole answer."""
        values = self._values(logits, self.ids)
        if self.against is not None:
            values = values - self._values(logits, self.against)
        return torch.cat([values, values.sum(1, keepdim=True)], 1)

    def relevance(self, logits: Float[Tensor, "b g v"]) -> Float[Tensor, "b c"] | None:
        """Σ z ∂f/∂z of the same numbers, over the logits z; None if no derivatives are asked for."""
        if not logits.requires_grad:
            return None
        z = logits.detach()
        return torch.func.jvp(self, (z,), (z,))[1]

    def _values(self, logits: Float[Tensor, "b g v"], ids: Int[Tensor, " g"]) -> Float[Tensor, "b g"]:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        at = ids.expand(len(logits), -1)[..., None]
        chosen = logits.gather(2, at)[..., 0]
        if self.kind == "logit":
            return chosen
        # From the log-odds, log p of an almost certain token is exact. Neither function has a rule of relevance.
        odds = chosen - logits.scatter(2, at, -torch.inf).logsumexp(2)
        return odds.sigmoid() if self.kind == "probability" else -torch.logaddexp(torch.zeros_like(odds), -odds)


@dataclass(frozen=True, slots=True)
class Distributions:
    """Reads the log-probabilities of the whole vocabulary at each of the last steps, one step after the other."""

    steps: int

    def __len__(self) -> int:
        return self.steps

    def __call__(self, logits: Float[Tensor, "b g v"]) -> Float[Tensor, "b c"]:
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(2).flatten(1)


@dataclass(frozen=True, slots=True, eq=False)
class Answering:
    """The model, given an answer. Everything but the output is the model's own."""

    model: "HuggingFace"
    answer: Answer

    link: Link = "identity"
    single_query: bool = False

    @property
    def labels(self) -> Sequence[str]:
        return self.answer.labels

    def resolve(self, label: str | int) -> int:
        return self.answer.resolve(label)

    def label(self, index: int) -> str:
        return self.labels[index]

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
        return self.model(
            batch,
            embeddings=embeddings,
            edit_attention=edit_attention,
            edit_hidden=edit_hidden,
            hidden=hidden,
            attention=attention,
            start=start,
            answer=self.answer,
        )

    def read_from(self, batch: Batch) -> Float[Tensor, "b t"]:
        return self.answer.read_from(batch)

    def can_read(self, batch: Batch, kept: Bool[Tensor, "b t"]) -> Bool[Tensor, " b"]:
        """Whether each token of the answer has one before it."""
        return (batch.mask & kept).sum(1) >= len(self.answer)

    def too_long(self, batch: Batch) -> bool:
        return self.model.too_long(batch)

    def chain(self, batch: Batch, embeddings: Float[Tensor, "b t d"]) -> Chain:
        return self.model.chain(batch, embeddings, self.answer)

    def reduce_attention(self, batch: Batch, reduction: Reduction) -> Output:
        return self.model.reduce_attention(batch, reduction, self.answer)

    # ------------------------------------------------------------------------------------------------ shared prefixes

    @property
    def tail(self) -> int:
        return len(self.answer)

    def shares_prefix(self, batch: Batch) -> bool:
        return self.model.shares_prefix(batch)

    def prefix(self, batch: Batch) -> Prefix:
        return self.model.prefix(batch, self.answer)

    def resume(
        self,
        prefix: Prefix,
        texts: Int[Tensor, " r"],
        starts: Int[Tensor, " r"],
        rest: Batch,
        embeddings: Float[Tensor, "r t d"] | None = None,
    ) -> Output:
        return self.model.resume(prefix, texts, starts, rest, embeddings, self.answer)

    # ------------------------------------------------------------------------------------------------ the model's own

    @property
    def executor(self) -> Executor:
        return self.model.executor

    @property
    def module(self) -> nn.Module:
        return self.model.module

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def layers(self) -> int:
        return self.model.layers

    @property
    def causal(self) -> bool:
        return self.model.causal

    @property
    def reads(self) -> Reads:
        return "all"

    @property
    def replacements(self) -> Mapping[str, int]:
        return self.model.replacements

    @property
    def words(self) -> nn.Embedding:
        return self.model.words

    def can_start(self) -> bool:
        return self.model.can_start()

    def with_embeddings(self, edit: EmbeddingEdit) -> "Answering":
        return replace(self, model=self.model.with_embeddings(edit))

    def save(self, folder: str | Path) -> None:
        self.model.save(folder)

    def encode(self, texts: Sequence[Text]) -> list[Encoded]:
        return self.model.encode(texts)

    def batch(self, encoded: Sequence[Encoded]) -> Batch:
        return self.model.batch(encoded)

    def embed(self, batch: Batch) -> Float[Tensor, "b t d"]:
        return self.model.embed(batch)

    def spell(self, ids: Sequence[int]) -> list[str]:
        return self.model.spell(ids)

    def lm_head(self, source: str | None = None) -> LanguageHead:
        return self.model.lm_head(source)

    def replay(self, batch: Batch) -> AbstractContextManager[Sequence[Block]]:
        return self.model.replay(batch)
