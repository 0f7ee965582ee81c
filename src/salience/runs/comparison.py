"""Two runs of the same texts, usually by two models: how far they agree, and where they differ most."""

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np

from salience.core.stats import Estimate, estimate, share
from salience.errors import BadInput
from salience.explanations.explanation import Explanation, directed
from salience.runs.run import Run, open_run
from salience.runs.texts import ExplainedText

MOST = 10
"""The texts that are listed with the largest differences."""


@dataclass(frozen=True, slots=True)
class DifferentText:
    """One text in both runs: the predictions, their distance, and the agreement of the explanations by method."""

    id: str
    row: int
    text: str
    label: str | None
    predictions: tuple[str, str]
    confidences: tuple[float, float]
    distance: float
    """The total variation distance of the predictions, ½ Σ |p − q|."""
    agreement: Mapping[str, float]
    """Spearman's ρ over the words of the text that both runs have; NaN for fewer than two."""

    @property
    def least(self) -> float:
        """The lowest agreement of a method; NaN if there is none."""
        return min((r for r in self.agreement.values() if not isnan(r)), default=float("nan"))


@dataclass(frozen=True, repr=False)
class RunComparison:
    """How far two runs agree over all texts that both hold, and the texts on which they differ most."""

    runs: tuple[str, str]
    models: tuple[str, str]
    texts: int
    only: tuple[int, int]
    """The texts that only one of the runs holds."""
    same: Estimate
    """The share of texts with the same prediction."""
    distance: Estimate
    agreement: Mapping[str, Estimate]
    """By method that both runs have."""
    accuracy: tuple[Estimate, Estimate] | None
    by_prediction: tuple[DifferentText, ...]
    """The texts whose predictions are farthest apart, the farthest first."""
    by_explanation: tuple[DifferentText, ...]
    """The texts with the same prediction whose explanations agree least."""

    def __repr__(self) -> str:
        return f"RunComparison({self.runs[0]!r}, {self.runs[1]!r}, {self.texts:,} texts, same prediction {self.same})"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def _repr_html_(self) -> str:
        from salience.views.comparison import fragment

        return fragment(self)


def compare_runs(
    one: Run | str | Path,
    other: Run | str | Path,
    *,
    most: int = MOST,
    report: Callable[[int, int], None] | None = None,
) -> RunComparison:
    """Compare two runs of the same data, text by text; memory holds a few numbers per text.

    >>> compare_runs("run", "run_of_another_model").same                    # doctest: +SKIP
    """
    a, b = (run if isinstance(run, Run) else open_run(run) for run in (one, other))
    shared = [column for column in a.methods if column in b.methods]
    if not shared:
        raise BadInput(f"{a.path} and {b.path} have no method in common; explain the data by the same methods")
    only, numbers = [0, 0], _Numbers(shared)
    far: list[tuple[float, int, DifferentText]] = []
    apart: list[tuple[float, int, DifferentText]] = []
    for count, (x, y) in enumerate(_joined(a, b, shared), 1):
        if x is None or y is None:
            only[x is None] += 1
            continue
        text = _different(x, y, shared)
        numbers.add(text)
        _keep(far, (text.distance, -count, text), most)
        if text.predictions[0] == text.predictions[1] and not isnan(text.least):
            _keep(apart, (-text.least, -count, text), most)
        if report is not None and count % 256 == 0:
            report(count, max(len(a), len(b)))
    if not numbers.distances:
        raise BadInput(f"{a.path} and {b.path} have no text in common")
    return RunComparison(
        runs=(str(a.path), str(b.path)),
        models=(a.manifest["model"]["name"], b.manifest["model"]["name"]),
        texts=len(numbers.distances),
        only=(only[0], only[1]),
        by_prediction=tuple(text for _, _, text in sorted(far, reverse=True) if text.distance > 0),
        by_explanation=tuple(text for _, _, text in sorted(apart, reverse=True)),
        **numbers.estimates(),
    )


class _Numbers:
    """What is averaged over the texts."""

    def __init__(self, methods: list[str]) -> None:
        self.same: list[bool] = []
        self.distances: list[float] = []
        self.agreement: dict[str, list[float]] = {method: [] for method in methods}
        self.right: tuple[list[bool], list[bool]] = ([], [])

    def add(self, text: DifferentText) -> None:
        self.same.append(text.predictions[0] == text.predictions[1])
        self.distances.append(text.distance)
        for method, value in text.agreement.items():
            self.agreement[method].append(value)
        if text.label is not None:
            for side, prediction in zip(self.right, text.predictions, strict=True):
                side.append(prediction == text.label)

    def estimates(self) -> dict[str, Any]:
        return {
            "same": share(self.same),
            "distance": estimate(self.distances, (0, 1)),
            "agreement": {method: estimate(values, (-1, 1)) for method, values in self.agreement.items()},
            "accuracy": (share(self.right[0]), share(self.right[1])) if self.right[0] else None,
        }


def _keep(best: list[tuple[float, int, DifferentText]], item: tuple[float, int, DifferentText], most: int) -> None:
    if len(best) < most:
        heapq.heappush(best, item)
    else:
        heapq.heappushpop(best, item)


Side = tuple[int, ExplainedText] | None


def _joined(a: Run, b: Run, shared: list[str]) -> Iterator[tuple[Side, Side]]:
    """The texts of both runs side by side, by their rows of the data; None where only one run has a row."""
    one, other = _numbered(a, shared), _numbered(b, shared)
    x, y = next(one, None), next(other, None)
    while x is not None or y is not None:
        if y is None or (x is not None and x[0] < y[0]):
            yield x, None
            x = next(one, None)
        elif x is None or y[0] < x[0]:
            yield None, y
            y = next(other, None)
        else:
            if (x[1].id, x[1].first.text) != (y[1].id, y[1].first.text):
                raise BadInput(
                    f"row {x[0]} is another text in {b.path} than in {a.path}; compare runs of the same data"
                )
            yield x, y
            x, y = next(one, None), next(other, None)


def _numbered(run: Run, columns: list[str]) -> Iterator[tuple[int, ExplainedText]]:
    methods, model = {c: run.methods[c] for c in columns}, run.manifest["model"]["name"]
    return ((record["row"], ExplainedText.of(record, methods, model)) for record in run.records(*columns))


def _different(x: tuple[int, ExplainedText], y: tuple[int, ExplainedText], methods: list[str]) -> DifferentText:
    (row, a), (_, b) = x, y
    p, q = a.first.probabilities, b.first.probabilities
    return DifferentText(
        id=a.id,
        row=row,
        text=a.first.text,
        label=a.label if a.label is not None else b.label,
        predictions=(a.prediction, b.prediction),
        confidences=(a.confidence, b.confidence),
        distance=prediction_distance(p, q),
        agreement={name: words_agreement(a.explanations[name], b.explanations[name]) for name in methods},
    )


def prediction_distance(p: Mapping[str, float], q: Mapping[str, float]) -> float:
    """The total variation distance of two predictions, ½ Σ |p − q|."""
    return 0.5 * sum(abs(p.get(name, 0.0) - q.get(name, 0.0)) for name in {*p, *q})


def words_agreement(one: Explanation, other: Explanation) -> float:
    """Spearman's ρ between the scores of the words that two explanations of a text share; NaN for fewer than two.

    Models may divide a text into other words; a word is shared if both have the same characters as one word. If one
    side has no sign, as attention, magnitudes are compared: a word may matter much for a label or against it.
    """
    from salience.metrics.agreement import spearman  # imports torch

    a, b = ({(w.start, w.end): w.score for w in e.words()} for e in (one, other))
    shared = [span for span in a if span in b]
    if len(shared) < 2:
        return float("nan")
    x, y = (np.array([scores[span] for span in shared]) for scores in (a, b))
    signed = all(directed(e.signed, e.scores) for e in (one, other))
    return spearman(x, y) if signed else spearman(abs(x), abs(y))
