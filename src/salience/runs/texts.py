"""The texts of a run, and the questions that one can ask about each."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import nan
from typing import Any

import numpy as np

from salience.explanations.explanation import Explanation, directed
from salience.runs.parts import explanations


@dataclass(frozen=True, slots=True)
class ExplainedText:
    """A text of a run with its explanations, by column of scores."""

    id: str
    label: str | None
    """The true label, if the data names one."""
    kept: Mapping[str, str | None]
    """Other columns of the data that were kept."""
    explanations: Mapping[str, Explanation]

    @classmethod
    def of(cls, record: Mapping[str, Any], methods: Mapping[str, str], model: str) -> "ExplainedText":
        """Convert a row of a part; ``methods`` maps columns of scores to methods."""
        made = dict(zip(methods, explanations(record, methods, model), strict=True))
        return cls(record["id"], record.get("label"), record.get("kept") or {}, made)

    @property
    def first(self) -> Explanation:
        return next(iter(self.explanations.values()))

    @property
    def prediction(self) -> str:
        """The most likely label."""
        probabilities = self.first.probabilities
        return max(probabilities, key=lambda label: probabilities[label])

    @property
    def confidence(self) -> float:
        """The probability of the most likely label."""
        return max(self.first.probabilities.values())

    @property
    def wrong(self) -> bool | None:
        """Whether the prediction is not the true label; None if that label is not one of the model's."""
        return None if self.label not in self.first.probabilities else self.prediction != self.label

    @property
    def disagreement(self) -> float:
        """One minus the mean rank correlation between the methods, over the tokens of the text.

        Magnitudes are compared where one of two methods has no sign, as attention.
        """
        from salience.metrics.agreement import spearman  # imports torch

        every = [(np.array(e.content), directed(e.signed, e.scores)) for e in self.explanations.values()]
        pairs = [
            spearman(a, b) if one and other else spearman(abs(a), abs(b))
            for (a, one), (b, other) in combinations(every, 2)
            if len(a) > 1
        ]
        known = [r for r in pairs if not np.isnan(r)]
        return 1 - float(np.mean(known)) if known else nan
