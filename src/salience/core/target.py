"""The number that is explained, as requested and as recorded."""

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["logit", "probability", "log_probability"]
"""The scale of the number."""


@dataclass(frozen=True, slots=True)
class Target:
    """The number to explain: the output for ``label`` (the predicted label if None), or its difference to ``against``.

    ``column`` is the label's column in the model's output, if known. Names can be ambiguous: several tokens of a
    vocabulary can have the same text.
    """

    label: str | int | None = None
    against: str | int | None = None
    kind: Kind = "logit"
    column: int | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The label's name; a recorded target always has one."""
        return str(self.label)
