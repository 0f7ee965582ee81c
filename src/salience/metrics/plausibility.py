"""Whether an explanation names what people have marked: of one text's scores and marks, one number.

Marks are of tokens, found by character offsets, so that any tokenizer meets any rationale. A metric that is undefined
for a text (nothing is marked, or everything) gives NaN, and the text does not count.
"""

from math import nan

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import rankdata

Scores = Float[np.ndarray, " t"]
Marks = Bool[np.ndarray, " t"]

MATCH = 0.5
"""The least overlap by union of two spans that match."""


def token_f1(scores: Scores, marks: Marks, *, share: float = 0.2) -> float:
    """F1 of the highest-scoring share of tokens, at least one, against the marked ones.

    Paper: DeYoung et al. 2020 (ERASER), arXiv:1911.03429, section 4.1; there the share is the data's mean of marks
    """
    if not marks.any():
        return nan
    chosen = highest(scores, share)
    return 2 * float((chosen & marks).sum()) / float(chosen.sum() + marks.sum())


def iou_f1(scores: Scores, marks: Marks, *, share: float = 0.2) -> float:
    """F1 of runs of chosen tokens: one is right if its overlap with a marked run is at least half of their union.

    Paper: DeYoung et al. 2020 (ERASER), arXiv:1911.03429, section 4.1; there precision and recall are averaged first
    """
    if not marks.any():
        return nan
    chosen, true = spans(highest(scores, share)), spans(marks)
    right = sum(any(_iou(one, other) >= MATCH for other in true) for one in chosen)
    found = sum(any(_iou(one, other) >= MATCH for other in chosen) for one in true)
    precision, recall = right / len(chosen), found / len(true)
    return 2 * precision * recall / (precision + recall) if right else 0.0


def average_precision(scores: Scores, marks: Marks) -> float:
    """Σ (recall gained) · precision, over thresholds from the highest score down. Equal to scikit-learn's."""
    precision, recall = _precision_recall(scores, marks)
    return float(np.sum(np.diff(recall, prepend=0.0) * precision)) if marks.any() else nan


def auprc(scores: Scores, marks: Marks) -> float:
    """The area under precision by recall, by trapezoids, as ERASER takes it. Equal to scikit-learn's.

    Paper: DeYoung et al. 2020 (ERASER), arXiv:1911.03429, section 4.1
    """
    if not marks.any():
        return nan
    precision, recall = _precision_recall(scores, marks)
    return float(np.trapezoid(np.append(1.0, precision), np.append(0.0, recall)))


def roc_auc(scores: Scores, marks: Marks) -> float:
    """How likely a marked token scores higher than one that is not, ties counting half. Equal to scikit-learn's."""
    positive, negative = int(marks.sum()), int((~marks).sum())
    if not positive or not negative:
        return nan
    ranks = rankdata(scores)[marks].sum()
    return float((ranks - positive * (positive + 1) / 2) / (positive * negative))


def highest(scores: Scores, share: float) -> Marks:
    """The highest-scoring share of tokens, at least one; of equal scores the first."""
    chosen = np.zeros(len(scores), dtype=bool)
    chosen[np.argsort(-scores, kind="stable")[: max(1, round(share * len(scores)))]] = True
    return chosen


def spans(marks: Marks) -> list[range]:
    """Runs of marked tokens.

    >>> spans(np.array([True, True, False, True]))
    [range(0, 2), range(3, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marks, [False]])))
    return [range(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _iou(a: range, b: range) -> float:
    common = max(0, min(a.stop, b.stop) - max(a.start, b.start))
    return common / (len(a) + len(b) - common)


def _precision_recall(scores: Scores, marks: Marks) -> tuple[np.ndarray, np.ndarray]:
    """At every distinct score from the highest down: how much of what is chosen is marked, and of marked chosen."""
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    hits = np.cumsum(marks[order])[ends]
    return hits / (ends + 1), hits / max(1, int(marks.sum()))
