"""The logistic regression on word counts, against scikit-learn."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from salience.dynamics.proxies import counts, fit_logistic, word_weights


def corpus(classes: int) -> tuple[list[list[int]], list[int]]:
    rng = np.random.default_rng(0)
    labels = [int(y) for y in rng.integers(0, classes, size=90)]
    return [[*rng.integers(classes, 12, size=5).tolist(), y, y] for y in labels], labels


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("C", [0.1, 10.0])
def test_it_is_scikit_learns_regression(classes: int, C: float):
    texts, labels = corpus(classes)
    X, y = counts(texts, 12), np.array(labels)
    W = fit_logistic(X, y, C, np.zeros((13, classes)))
    # With two classes, theirs is one vector instead of the difference of two: half the penalty.
    theirs = LogisticRegression(C=C if classes > 2 else 2 * C, tol=1e-8, max_iter=5000).fit(X, y)
    p = X @ W[:-1] + W[-1]
    p = np.exp(p - p.max(1, keepdims=True))
    expected = theirs.predict_proba(X)
    assert p / p.sum(1, keepdims=True) == pytest.approx(expected, abs=1e-3)


def test_counts_are_shares():
    assert counts([[1, 1, 2], [0]], 3).toarray().tolist() == [
        [0, pytest.approx(2 / 3), pytest.approx(1 / 3)],
        [1, 0, 0],
    ]


@pytest.mark.parametrize("classes", [2, 4])
def test_words_that_occur_with_a_label_speak_for_it(classes: int):
    texts, labels = corpus(classes)
    result = word_weights(texts, labels, vocabulary=12, classes=classes)
    assert result.accuracy == 1
    assert result.weights.sum(1) == pytest.approx(np.zeros(12), abs=1e-9)
    for label in range(classes):
        assert result.weights[:, label].argmax() == label
        assert result.of([label, 11], label).argmax() == 0


def test_a_label_that_is_never_in_the_larger_part_is_learnt_from_all():
    result = word_weights([[0], [1], [2], [1], [2]], [0, 1, 1, 1, 1], vocabulary=3, classes=2)
    assert result.weights[0, 0] > 0
