"""What all tests of an audit have in common: a model, its texts, and where attention is read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from salience.audits.weights import Attended
from salience.core.executor import Report
from salience.core.rows import each_text
from salience.core.text import Encoded
from salience.core.types import Batch, Model
from salience.data.examples import Example


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """A model and texts, and which attention is tested: a layer (the last by default) and one head or all."""

    model: Model
    examples: Sequence[Example]
    encoded: Sequence[Encoded]
    layer: int | None = None
    head: int | None = None
    seed: int = 0
    report: Report | None = None

    def each(self, test: Callable[[Attended], Mapping[str, Tensor]]) -> dict[str, np.ndarray]:
        """Run a test on every text; returns one number per text for each name, and the predicted ``label``."""

        def work(batch: Batch, items: list[int]) -> list[dict[str, float]]:
            attended = Attended.of(self.model, batch, self.layer, self.head)
            columns = {**test(attended), "label": attended.probabilities.argmax(1)}
            lists = {name: values.double().tolist() for name, values in columns.items()}
            return [{name: values[i] for name, values in lists.items()} for i in range(len(items))]

        rows = each_text(self.model, self.encoded, work, padding=self.model.executor.budget, report=self.report)
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}

    def by_label(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Masks of the texts of each predicted label."""
        return {self.model.label(int(c)): values["label"] == c for c in np.unique(values["label"])}
