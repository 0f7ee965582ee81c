"""The logits that a model gave for changed copies of a few texts, so that equal copies are passed once."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

ROOM = 2**26
"""The bytes that a memory may hold, about; later copies are passed again."""

OVERHEAD = 200
"""The bytes of a key and its place."""


class Memory:
    """Logits by what was changed. It is for one model, and for as long as the texts of one batch are worked on.

    >>> memory = Memory(model=None)
    >>> memory.recall([b"a", b"b"], lambda new: torch.zeros(len(new), 2)).shape
    torch.Size([2, 2])
    >>> memory.recall([b"b", b"c"], lambda new: torch.ones(len(new), 2)).tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """

    def __init__(self, model: object, room: int = ROOM) -> None:
        self.model = model
        self._room, self._places, self._rows = room, dict[bytes, int](), 0
        self._logits = torch.empty(0, 0)
        """The known rows, and room for more."""

    def recall(self, keys: Sequence[bytes], run: Callable[[list[int]], Float[Tensor, "n c"]]) -> Float[Tensor, "k c"]:
        """Return the logits of every key. ``run`` is called with the indices of those that are not known yet."""
        new = [i for i, key in enumerate(keys) if key not in self._places]
        if not new:
            return self._known(keys)
        passed = run(new)
        each = OVERHEAD + passed.element_size() * passed.shape[1]
        if (self._rows + len(passed)) * each <= self._room:
            self._keep([keys[i] for i in new], passed)
            return self._known(keys)
        result = passed.new_empty(len(keys), passed.shape[1])
        result[new] = passed
        if old := [i for i, key in enumerate(keys) if key in self._places]:
            result[old] = self._known([keys[i] for i in old])
        return result

    def _known(self, keys: Sequence[bytes]) -> Float[Tensor, "k c"]:
        return self._logits[[self._places[key] for key in keys]]

    def _keep(self, keys: Sequence[bytes], passed: Float[Tensor, "n c"]) -> None:
        """Keep more rows. The room for them doubles when it is full, so that known rows are rarely copied."""
        end = self._rows + len(passed)
        if end > len(self._logits):
            before = self._logits[: self._rows]
            self._logits = passed.new_empty(max(end, 2 * self._rows), passed.shape[1])
            if self._rows:
                self._logits[: self._rows] = before
        self._logits[self._rows : end] = passed
        self._places |= {key: self._rows + n for n, key in enumerate(keys)}
        self._rows = end
