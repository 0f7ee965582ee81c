"""What is asked about a text, answered by the library: predictions, explanations, edits, attention, answers."""

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from math import isnan
from typing import Any

import numpy as np

from salience.core.passes import Needs, observe
from salience.core.settings import settings_of
from salience.core.target import Target
from salience.core.text import Text
from salience.core.types import Model
from salience.errors import BadInput, choose
from salience.explanations.explainer import as_target, explain_each, prepare
from salience.explanations.explanation import Explanation
from salience.generation import AnswerExplanation
from salience.generation.explaining import explain_each_answer, requested
from salience.methods import METHODS
from salience.runs.comparison import prediction_distance, words_agreement
from salience.server.limits import Limits
from salience.server.problems import Refused
from salience.server.schemas import (
    Agreement,
    Attention,
    Compared,
    CompareModels,
    Edited,
    EditText,
    ExplainAnswer,
    Explained,
    ExplainText,
    OfText,
    Prediction,
)
from salience.views.evaluation import plain

FILES = ("head", "gates")
"""Settings that name files, which a request may not."""

WEIGHTS = 200
"""The most tokens whose attention is shown."""


def text_of(question: OfText, limits: Limits) -> Text:
    """The text or pair of a question, unless it is too long."""
    check_length(len(question.text) + len(question.pair or ""), limits)
    return question.text if question.pair is None else (question.text, question.pair)


def check_length(characters: int, limits: Limits) -> None:
    if characters > limits.characters:
        raise Refused(
            413,
            f"the text has {characters:,} characters; at most {limits.characters:,} are explained here. Shorten it.",
        )


def predict(model: Model, texts: Sequence[Text]) -> list[Prediction]:
    """The prediction for each text: explained by a control, which needs nothing but that pass."""
    rows = explain_each(model, texts, prepare("uniform", {}), [Target()] * len(texts), window=len(texts))
    return [prediction(row[0]) for row in rows]


def prediction(e: Explanation) -> Prediction:
    likely = max(e.probabilities, key=lambda name: e.probabilities[name])
    return Prediction(model=e.model, label=likely, probabilities=dict(e.probabilities))


def explain(model: Model, question: ExplainText, limits: Limits) -> list[Explanation]:
    """The explanations of a text by each method."""
    (row,) = explain_together(model, [question], limits)
    return row


def explain_together(model: Model, questions: Sequence[ExplainText], limits: Limits) -> list[list[Explanation]]:
    """The explanations of several texts by the same methods and settings, in the same passes."""
    first, methods = questions[0], chosen_methods(questions[0], limits)
    targets = [as_target(one.target, one.against, one.kind) for one in questions]
    texts = [text_of(one, limits) for one in questions]
    configured = prepare(methods, settings(methods, first))
    return list(explain_each(model, texts, configured, targets, window=len(texts)))


def chosen_methods(question: ExplainText, limits: Limits) -> list[str]:
    """The names of the methods of a question."""
    if len(question.methods) > limits.methods:
        raise BadInput(f"{len(question.methods)} methods at once; choose at most {limits.methods}")
    return [choose(name, [m.__name__ for m in METHODS], "method") for name in dict.fromkeys(question.methods)]


def kind_of(question: ExplainText) -> str:
    """What must be the same in questions that are answered together: all but the text and the target."""
    shared = {"methods": question.methods, "settings": question.settings, "layer": question.layer}
    return json.dumps(shared, sort_keys=True, default=str)


def settings(methods: Sequence[str], question: ExplainText) -> dict[str, Any]:
    """The settings of a question. The layer is set for the methods that have layers."""
    check_settings(question.settings)
    if question.layer is None:
        return dict(question.settings)
    layered = [m.__name__ for m in METHODS if m.__name__ in methods and "layer" in settings_of(m)]
    return {**{f"{name}.layer": question.layer for name in layered}, **question.settings}


def check_settings(given: Mapping[str, object]) -> None:
    """Raise for a setting that names a file of this machine."""
    if named := [name for name in given if name.rpartition(".")[2] in FILES]:
        raise BadInput(f"the setting {named[0]!r} names a file, and cannot be set here; use the command line")


def explained(explanations: Sequence[Explanation]) -> Explained:
    return Explained(
        prediction=prediction(explanations[0]),
        explanations=[plain(e.to_dict()) for e in explanations],
        agreement=agreement(explanations),
    )


def agreement(explanations: Sequence[Explanation]) -> list[Agreement]:
    """Spearman's ρ between the scores of words, for every two methods of one text."""
    single = {title(e): e for e in explanations}
    return [Agreement(one=a, other=b, spearman=correlation(single[a], single[b])) for a, b in combinations(single, 2)]


def title(e: Explanation) -> str:
    """The method, with its layer."""
    layer = e.settings.get("layer")
    return e.method if layer is None else f"{e.method}, layer {layer}"


def correlation(one: Explanation, other: Explanation) -> float | None:
    """Spearman's ρ between the words that two explanations of a text share; None for fewer than two."""
    value = words_agreement(one, other)
    return None if isnan(value) else value


def edit(model: Model, question: EditText, limits: Limits) -> Edited:
    """The predictions before and after a part of the text is replaced."""
    before = text_of(question, limits)
    first, last = question.start, question.end
    if not first <= last <= len(question.text):
        raise BadInput(f"the part from {first} to {last} is not within the {len(question.text)} characters of the text")
    text = question.text[:first] + question.replacement + question.text[last:]
    check_length(len(text), limits)
    if not text.strip():
        raise BadInput("nothing would be left of the text; keep at least one word")
    old, new = predict(model, [before, text if question.pair is None else (text, question.pair)])
    names = [name for name in old.probabilities if name in new.probabilities]
    changes = {name: new.probabilities[name] - old.probabilities[name] for name in names}
    return Edited(text=text, before=old, after=new, changes=changes, flipped=old.label != new.label)


def compare(models: Mapping[str, Model], question: CompareModels, limits: Limits) -> list[list[Explanation]]:
    """The explanations of one text by several models."""
    if len(models) < 2:
        raise BadInput("name at least two different models to compare")
    return [explain(model, question.of(name), limits) for name, model in models.items()]


def compared(names: Sequence[str], rows: Sequence[Sequence[Explanation]]) -> Compared:
    """How far the models agree: the distance of their predictions, and the rank correlation for each method."""
    agreements = [
        Agreement(one=f"{a}: {title(e)}", other=f"{b}: {title(f)}", spearman=correlation(e, f))
        for (a, one), (b, other) in combinations(zip(names, rows, strict=True), 2)
        for e, f in zip(one, other, strict=False)
        if title(e) == title(f)
    ]
    predictions = [prediction(row[0]).model_copy(update={"model": name}) for name, row in zip(names, rows, strict=True)]
    return Compared(
        predictions=predictions,
        explanations=[[plain(e.to_dict()) for e in row] for row in rows],
        agreement=agreements,
        distance=max(prediction_distance(a.probabilities, b.probabilities) for a, b in combinations(predictions, 2)),
    )


def attention(model: Model, question: OfText, limits: Limits) -> Attention:
    """The attention weights of all heads, from every token to every token."""
    (encoded,) = model.encode([text_of(question, limits)])
    if len(encoded) > WEIGHTS:
        raise BadInput(f"the text has {len(encoded)} tokens; attention is shown for at most {WEIGHTS}")
    weights = observe(model, model.batch([encoded]), [Target()], Needs.ATTENTION).output.attention
    layers = [np.round(layer[0].detach().float().cpu().numpy(), 4).tolist() for layer in weights]
    return Attention(model=model.name, tokens=list(encoded.tokens), layers=layers)


def one_head(weights: Attention, layer: int, head: int) -> list[list[float]]:
    """The weights of one head; layers and heads are counted from 1."""
    if layer > len(weights.layers) or head > len(weights.layers[layer - 1]):
        raise BadInput(f"there is no head {head} in layer {layer} of {weights.model}")
    return weights.layers[layer - 1][head - 1]


def answer(model: Model, question: ExplainAnswer, limits: Limits) -> AnswerExplanation:
    """The answer of a language model, generated or given, with the sources of each of its tokens."""
    if (question.prompt is None) == (question.messages is None):
        raise BadInput("give one of prompt and messages")
    messages = [message.model_dump() for message in question.messages or ()]
    prompted = len(question.prompt or "") + sum(len(message["content"]) for message in messages)
    check_length(prompted + len(question.answer or ""), limits)
    if question.tokens > limits.answer_tokens:
        raise BadInput(f"an answer of {question.tokens} tokens is too long here; at most {limits.answer_tokens}")
    check_settings(question.settings)
    prompt = messages if question.prompt is None else question.prompt
    request = requested(
        model, question.method, dict(question.settings), by=question.by, through_answer=question.through_answer
    )
    given = None if question.answer is None else [question.answer]
    ((result,),) = explain_each_answer(model, [prompt], request, given, generate=question.tokens)
    return result
