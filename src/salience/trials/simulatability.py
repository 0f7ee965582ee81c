"""Simulatability: do explanations help a student to imitate its teacher?"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from salience.core.rows import predict
from salience.core.stats import Spread
from salience.core.types import Model
from salience.data.examples import Example, encode_examples
from salience.errors import BadInput
from salience.explanations.explainer import prepare
from salience.training.guides import by_teacher
from salience.training.loop import Make, Recipe, fit
from salience.training.objectives import Objective, attention_to_explanation, regularised

NONE = "none"
"""The name of students trained without explanations."""


StudentReport = Callable[[str, int, float], None]
"""Called with (method or ``none``, seed, agreement) after every training."""


def simulatability(
    make: Make,
    teacher: Model,
    train: Sequence[Example],
    test: Sequence[Example],
    method: str | Sequence[str],
    *,
    seeds: Sequence[int] = range(5),
    share: float = 0.1,
    weight: float = 1.0,
    recipe: Recipe = Recipe(),  # noqa: B008
    report: StudentReport = lambda *_: None,
    **settings: Any,
) -> dict[str, Spread]:
    """How often students agree with their teacher on new texts, after learning its predictions on ``train``.

    During training, a penalty keeps the attention of the student close to the explanations of the teacher. The gain
    over ``none``, a student without explanations, measures what they teach. Explanations mark the same share of tokens
    for every method, so that all carry the same amount of information. ``none`` and random are always included. Other
    arguments are settings of the methods, as for :func:`salience.explain`.

    Paper: Pruthi et al. 2022, Evaluating Explanations: How Much Do Explanations from the Teacher Aid Students?,
    arXiv:2012.00893
    """
    names = list(dict.fromkeys([*([method] if isinstance(method, str) else method), "random"]))
    methods = dict(zip(names, prepare(names, settings), strict=True))  # reject unknown methods before any training
    _check_compatible(teacher, make(0), [*train, *test])
    training, truth = _labelled(teacher, train), _labelled(teacher, test)
    objective_with_penalty = regularised(attention_to_explanation, weight)
    courses = {NONE: (training, Objective())}
    courses |= {
        name: (by_teacher(teacher, training, method, share=share), objective_with_penalty)
        for name, method in methods.items()
    }
    results: dict[str, Spread] = {}
    for name, (shown, objective) in courses.items():
        agreement: list[float] = []
        for seed in seeds:
            student = make(seed)
            list(fit(student, shown, objective=objective, recipe=replace(recipe, seed=seed)))
            agreement.append(_agreement(_labelled(student, test), truth))
            report(name, seed, agreement[-1])
        results[name] = Spread(tuple(agreement))
    return results


def _agreement(answers: Sequence[Example], truth: Sequence[Example]) -> float:
    return float(np.mean([a.label == b.label for a, b in zip(answers, truth, strict=True)]))


def _check_compatible(teacher: Model, student: Model, examples: Sequence[Example]) -> None:
    if teacher.link == "identity":
        raise BadInput(f"{teacher.name} is a regression model; use a classifier as the teacher")
    for a, b in zip(encode_examples(teacher, examples), encode_examples(student, examples), strict=True):
        if a.tokens != b.tokens:
            raise BadInput(
                f"{teacher.name} and {student.name} read texts as other tokens, so explanations cannot be transferred; "
                "use a student with the tokenizer of the teacher"
            )


def _labelled(model: Model, examples: Sequence[Example]) -> list[Example]:
    """The texts labelled with the predictions of the model."""
    answers = predict(model, encode_examples(model, examples)).argmax(1).tolist()
    return [replace(e, label=label, guide=None) for e, label in zip(examples, answers, strict=True)]
