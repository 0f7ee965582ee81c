"""Plausibility: agreement of an explanation with human rationales, one number per text.

Rationales are mapped to tokens by character offsets, so they work with any tokenizer. A metric that is undefined for a
text (no token is marked, or all are) returns NaN, and the text is not counted.
"""

from collections.abc import Callable
from math import nan

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import rankdata

from salience.core.ranking import top_share
from salience.core.settings import Share
from salience.metrics.metric import Metric

Scores = Float[np.ndarray, " t"]
Marks = Bool[np.ndarray, " t"]

MATCH = 0.5
"""The minimum intersection over union of two spans that match."""


def _against_rationale(read: Callable[..., float]) -> Metric:
    return Metric(read, "plausibility", "higher", "rationale", limits=(0, 1))


@_against_rationale
def token_f1(scores: Scores, marks: Marks, *, share: Share = 0.2) -> float:
    """F1 of the highest-scoring share of tokens, at least one, against the marked tokens.

    Paper: DeYoung et al. 2020 (ERASER), arXiv:1911.03429, section 4.1; the share there is the mean share of marks
    """
    if not marks.any():
        return nan
    chosen = top_share(scores, share)
    return 2 * float((chosen & marks).sum()) / float(chosen.sum() + marks.sum())


@_against_rationale
def iou_f1(scores: Scores, marks: Marks, *, share: Share = 0.2) -> float:
    """F1 of spans of tokens: a span matches a marked span if their intersection over union is at least 0.5.

    Paper: DeYoung et al. 2020 (ERASER), arXiv:1911.03429, section 4.1; there precision and recall are averaged first
    """
    if not marks.any():
        return nan
    chosen, true = mark_runs(top_share(scores, share)), mark_runs(marks)
    matched = sum(any(_iou(one, other) >= MATCH for other in true) for one in chosen)
    recalled = sum(any(_iou(one, other) >= MATCH for other in chosen) for one in true)
    precision, recall = matched / len(chosen), recalled / len(true)
    return 2 * precision * recall / (precision + recall) if matched else 0.0


@_against_rationale
def average_precision(scores: Scores, marks: Marks) -> float:
    """Σ (increase in recall) · precision, over thresholds from the highest score down. Equal to scikit-learn's."""
    precision, recall = _precision_recall(scores, marks)
    return float(np.sum(np.diff(recall, prepend=0.0) * precision)) if marks.any() else nan


@_against_rationale
def auprc(scores: Scores, marks: Marks) -> float:
    """The area under the precision–recall curve, by trapezoids as in ERASER. Equal to scikit-learn's.

    Paper: DeYoung et al. 2020 (ERASER), arXiv:1911.03429, section 4.1
    """
    if not marks.any():
        return nan
    precision, recall = _precision_recall(scores, marks)
    return float(np.trapezoid(np.append(1.0, precision), np.append(0.0, recall)))


@_against_rationale
def roc_auc(scores: Scores, marks: Marks) -> float:
    """The probability that a marked token scores higher than an unmarked one (ties: 0.5). Equal to scikit-learn's."""
    positive, negative = int(marks.sum()), int((~marks).sum())
    if not positive or not negative:
        return nan
    ranks = rankdata(scores)[marks].sum()
    return float((ranks - positive * (positive + 1) / 2) / (positive * negative))


def mark_runs(marks: Marks) -> list[range]:
    """Runs of marked tokens.

    >>> mark_runs(np.array([True, True, False, True]))
    [range(0, 2), range(3, 4)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marks, [False]])))
    return [range(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _iou(a: range, b: range) -> float:
    common = max(0, min(a.stop, b.stop) - max(a.start, b.start))
    return common / (len(a) + len(b) - common)


def _precision_recall(scores: Scores, marks: Marks) -> tuple[np.ndarray, np.ndarray]:
    """Precision and recall at every distinct score, from the highest down."""
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    hits = np.cumsum(marks[order])[ends]
    return hits / (ends + 1), hits / max(1, int(marks.sum()))
