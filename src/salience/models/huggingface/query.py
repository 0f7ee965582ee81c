"""The last attention of a transformer at the one query that the classifier reads."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from jaxtyping import Float, Int
from torch import Tensor

from salience.core.types import Batch, Start
from salience.models.huggingface.attention import Given


@dataclass(frozen=True, slots=True, eq=False)
class LastQuery:
    """Runs the last block on a single token of each text, over the value vectors of all its tokens."""

    run: Callable[[Batch, Start, Given], Tensor]
    token: Batch
    """The token that is read, alone."""
    start: Start
    """Its state below the last block."""
    value: Float[Tensor, "b h t v"]

    def take(self, rows: Int[Tensor, " r"], width: int) -> "LastQuery":
        return replace(
            self, token=self.token.take(rows), start=self.start.take(rows, 1), value=self.value[rows, :, :width]
        )

    def __call__(self, weights: Float[Tensor, "b h 1 t"]) -> Float[Tensor, "b c"]:
        return self.run(self.token, self.start, Given(weights, self.value))
