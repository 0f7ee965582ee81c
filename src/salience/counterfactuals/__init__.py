"""Counterfactuals: the smallest edits of a text that change a model's decision."""

from salience.counterfactuals.edits import Edit, words_changed
from salience.counterfactuals.finding import Counterfactual, Counterfactuals, counterfactual
from salience.counterfactuals.study import CounterfactualStudy, MethodResult, counterfactual_data

__all__ = [
    "Counterfactual",
    "CounterfactualStudy",
    "Counterfactuals",
    "Edit",
    "MethodResult",
    "counterfactual",
    "counterfactual_data",
    "words_changed",
]
