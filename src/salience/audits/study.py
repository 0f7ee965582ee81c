"""What all tests of an audit have in common: a model, its texts, where attention is read, and retrained twins."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from salience.audits.weights import Attended
from salience.core.distances import jensen_shannon
from salience.core.executor import Report
from salience.core.rows import each_text
from salience.core.text import Encoded
from salience.core.types import Batch, Model
from salience.data.examples import Example
from salience.errors import BadInput, UnsupportedModel
from salience.methods.attention import layer_number
from salience.training.loop import labels_of
from salience.training.objectives import Objective
from salience.training.twins import Reshapes, Twins, probabilities, start_of


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """A model and texts, and which attention is tested: a layer (the last by default) and one head or all.

    ``twins`` trains twins of the model, for the tests that need them; their results are those of ``examples``.
    """

    model: Model
    examples: Sequence[Example]
    encoded: Sequence[Encoded]
    layer: int | None = None
    head: int | None = None
    seed: int = 0
    report: Report | None = None
    twins: Twins | None = None

    def each(self, test: Callable[[Attended], Mapping[str, Tensor]], model: Model | None = None) -> dict[str, Any]:
        """Run a test on every text; returns one number per text for each name, and the predicted ``label``.

        With a ``model``, the test is run on this twin.
        """
        tested = self.model if model is None else model

        def work(batch: Batch, items: list[int]) -> list[dict[str, float]]:
            attended = Attended.of(tested, batch, self.layer, self.head)
            columns = {**test(attended), "label": attended.probabilities.argmax(1)}
            lists = {name: values.double().tolist() for name, values in columns.items()}
            return [{name: values[i] for name, values in lists.items()} for i in range(len(items))]

        rows = each_text(tested, self.encoded, work, overhead=tested.executor.budget, report=self.report)
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}

    def by_label(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Masks of the texts of each predicted label."""
        return {self.model.label(int(c)): values["label"] == c for c in np.unique(values["label"])}

    # -------------------------------------------------------------------------------------------------- twins

    def twin(
        self,
        name: str,
        objective: Objective = Objective(),  # noqa: B008
        *,
        seed: int = 0,
        examples: Sequence[Example] | None = None,
        **changes: Any,
    ) -> Model:
        """Train a twin of the model, or read it from the folder. Its seed is counted from that of the study."""
        twins = self._twins()
        if changes and not isinstance(self.model, Reshapes):
            raise UnsupportedModel(
                f"this test trains a twin of another shape ({', '.join(changes)}), and {self.model.name} has one shape "
                "only; it needs a pooled classifier such as sentiment_bilstm"
            )
        number = self.seed + seed
        start = partial(start_of, self.model, number, **changes)
        return twins(name, start, objective, examples=examples, seed=number)

    def copied(self, name: str, objective: Objective) -> Model:
        """Train a copy of the model itself, or read it from the folder."""
        return self._twins()(name, lambda: deepcopy(self.model), objective, seed=self.seed)

    @property
    def tested(self) -> dict[str, Any]:
        """The attention that is tested, as settings of a loss: where :class:`Attended` reads it."""
        layer = layer_number(self.layer, self.model, of=self.model.layers)
        row = "auto" if self.model.single_query or layer == self.model.layers else "mean"
        return {"row": row, "layers": (layer,), "heads": "each" if self.head is None else (self.head,)}

    def _twins(self) -> Twins:
        if self.twins is None:
            raise BadInput("this test trains twins of the model: pass labelled texts to train them on (retrain=...)")
        return self.twins

    def standard(self, seed: int = 0) -> Model:
        """The twin that has the shape of the model and is trained on the task alone."""
        return self.twin(standard_name(seed), seed=seed)

    def correct(
        self,
        model: Model,
        objective: Objective = Objective(),  # noqa: B008
    ) -> Float[np.ndarray, " n"]:
        """1 for every text that the model classifies correctly, 0 for the others."""
        labels = labels_of(model, self.examples).cpu()
        return (probabilities(model, self.examples, objective).argmax(1) == labels).double().numpy()

    def attention(self, model: Model) -> list[Tensor]:
        """The attention of a model over the tokens of each text."""

        def work(batch: Batch, items: list[int]) -> list[Tensor]:
            rows = Attended.of(model, batch, self.layer, self.head).distribution.cpu()
            return [row[own] for row, own in zip(rows, batch.content.cpu(), strict=True)]

        return each_text(model, self.encoded, work)

    def distances(self, one: Model, other: Model) -> Float[np.ndarray, " n"]:
        """JSD between the attention of two models on every text; NaN for texts of one token."""
        pairs = zip(self.attention(one), self.attention(other), strict=True)
        return np.array([float(jensen_shannon(a, b)) if len(a) > 1 else np.nan for a, b in pairs])


def standard_name(seed: int) -> str:
    """The name of the twin that is trained like the model itself."""
    return f"standard-{seed}"
