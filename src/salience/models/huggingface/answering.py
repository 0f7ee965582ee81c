"""A language model that is made to give one answer, as a model whose labels are the tokens of that answer.

With the answer given, one pass over prompt and answer computes the numbers of all its tokens, and every method that
explains a label explains a token of the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from salience.core.target import Kind
from salience.core.types import Batch, Link
from salience.errors import BadInput

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

    link: ClassVar[Link] = "identity"

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

    def label(self, index: int) -> str:
        return self.labels[index]

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


def log_probabilities(logits: Float[Tensor, "b g v"]) -> Float[Tensor, "b g v"]:
    """The log-probabilities of the whole vocabulary at each step, in float32 or better."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(2)
