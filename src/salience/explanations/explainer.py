"""Explaining texts: encode, batch, run the methods, and return Explanations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import Any, NamedTuple, cast, get_args

import torch
from torch import Tensor

from salience.core.executor import Report
from salience.core.passes import Needs, OnePass, Pass, observe
from salience.core.rows import batches, each_text
from salience.core.settings import as_python, check, settings_of
from salience.core.target import Kind, Target
from salience.core.text import Encoded, Text
from salience.core.types import Attribution, Batch, Model, Output, Targets, on_scale
from salience.data.texts import texts_of, warn_about_files
from salience.errors import BadInput, BadModel, choose, unknown
from salience.explanations.explanation import LABELS, Explanation
from salience.methods import find_method
from salience.models.loading import as_model

AnyMethod = str | Callable[..., Any]
DEFAULTS = ("integrated_gradients", "lrp")
"""The methods that are used unless another is named: for classifiers, and for language models."""

SHOWN = 5
"""The number of next tokens that are listed with their probabilities."""


def explain(
    model: object,
    texts: object,
    method: AnyMethod | Sequence[AnyMethod] | None = None,
    *,
    target: Target | str | int | Sequence[str | int | None] | None = None,
    against: str | int | None = None,
    kind: str = "logit",
    text_column: str = "text",
    pair_column: str | None = None,
    **settings: Any,
) -> list[Explanation]:
    """Explain one or more texts by one or more methods; ordered by text, then by method.

    ``model`` is a loaded model, a name or folder, a ``(model, tokenizer)`` pair or a transformers pipeline. ``texts``
    is a text, a pair of texts, a list of these, a Series, or a DataFrame, data set or list of dicts whose texts are in
    ``text_column`` (and the second ones of pairs in ``pair_column``).

    ``method`` is a name, a function with the signature of a method, or a list of these. By default it is
    integrated_gradients or, for the next token of a language model, lrp. Settings are passed to every method that takes
    them, or to a single one as ``{"lime.samples": 200}``; unknown settings are an error. Methods that need only one
    pass share it. ``target`` is a label, or a list with one label per text; by default, the prediction.

    >>> explain(model, "A fine film.", "integrated_gradients", target="positive")       # doctest: +SKIP
    """
    many, known = texts_of(texts, text_column=text_column, pair_column=pair_column), as_model(model)
    warn_about_files([texts])
    if isinstance(target, str | int | Target | None):
        each = [as_target(target, against, kind)] * len(many)
    else:
        each = _for_each(target, len(many), against, kind)
    methods = prepare(default_method(known) if method is None else method, settings)
    rows = explain_each(known, many, methods, each, window=max(1, len(many)))
    return [explanation for row in rows for explanation in row]


def default_method(model: Model) -> str:
    """The method that is used unless another is named."""
    classifiers, language_models = DEFAULTS
    return language_models if getattr(model, "generates", False) else classifiers


def explain_each(
    model: Model, texts: Sequence[Text], methods: Sequence["Configured"], target: Sequence[Target], *, window: int
) -> Iterator[list[Explanation]]:
    """Yield the explanations of each text as they are done; ``window`` texts at a time are packed into batches."""
    each = settled(model, each_layer(model, methods))
    encoded = model.encode(texts)
    for start in range(0, len(encoded), window):
        part = slice(start, start + window)
        yield from explain_all(model, encoded[part], each, target[part])


def explain_all(
    model: Model,
    encoded: Sequence[Encoded],
    methods: Sequence["Configured"],
    target: Sequence[Target],
    *,
    report: Report | None = None,
) -> list[list[Explanation]]:
    """Return the explanations of every text, in order; each text has its own target."""
    each = settled(model, methods)

    def work(batch: Batch, items: list[int]) -> list[list[Explanation]]:
        return explain_batch(model, batch, each, [target[i] for i in items])

    return each_text(model, encoded, work, report=report)


def explain_batches(
    model: Model, encoded: Sequence[Encoded], methods: Sequence["Configured"], target: Sequence[Target]
) -> Iterator[dict[int, list[Explanation]]]:
    """Yield explanations by text index, batch by batch as they are done, by methods that are settled."""

    def work(batch: Batch, items: list[int]) -> dict[int, list[Explanation]]:
        return dict(zip(items, explain_batch(model, batch, methods, [target[i] for i in items]), strict=True))

    return (results for _, results in batches(model, encoded, work))


@dataclass(frozen=True, slots=True)
class Configured:
    """A method with its settings, defaults included."""

    method: Callable[..., Any]
    settings: Mapping[str, Any]


def prepare(method: AnyMethod | Sequence[AnyMethod], settings: Mapping[str, Any]) -> list[Configured]:
    """Look up methods by name and check their settings, as far as that is possible without a model."""
    functions = [find_method(m) if isinstance(m, str) else m for m in as_list(method)]
    if not functions:
        raise BadInput("no method was given; `salience methods` lists them")
    shared = {name for f in functions for name in settings_of(f)}
    own = {f"{_name(f)}.{name}" for f in functions for name in settings_of(f)}
    for key in settings:
        known = own if "." in key else shared
        if key not in known:
            names = ", ".join(map(_name, functions))
            raise BadInput(unknown(key, sorted(known), "setting", names) if known else f"{names} takes no settings")
    return [_with_settings(f, settings) for f in functions]


def _with_settings(method: Callable[..., Any], settings: Mapping[str, Any]) -> Configured:
    """Apply the defaults, then the settings for all methods, then those for this one as ``method.setting``."""
    taken = settings_of(method)
    function = method.func if isinstance(method, partial) else method
    chosen = {name: p.default for name, p in taken.items()}
    for prefix in ("", f"{_name(method)}."):
        chosen |= {name: settings[prefix + name] for name in taken if prefix + name in settings}
    for name, value in chosen.items():
        check(function, name, value)
    return Configured(function, {name: as_python(value) for name, value in chosen.items()})


def each_layer(model: Model, methods: Sequence[Configured]) -> list[Configured]:
    """Replace ``layer="all"`` by one entry per layer."""
    return [one for m in methods for one in _layers(model, m)]


def settled(model: Model, methods: Sequence[Configured]) -> list[Configured]:
    """Decide the settings that depend only on the model, such as an automatic layer or a head from a file.

    That may take a while, so it is done once for all texts; what is settled stays as it is.
    """
    return [_settled(model, m) for m in methods]


def _settled(model: Model, configured: Configured) -> Configured:
    settle = getattr(configured.method, "settle", None)
    return configured if settle is None else Configured(configured.method, settle(model, configured.settings))


def _layers(model: Model, configured: Configured) -> list[Configured]:
    if configured.settings.get("layer") != "all":
        return [configured]
    numbers = range(getattr(configured.method, "first_layer", 1), model.layers + 1)
    return [Configured(configured.method, {**configured.settings, "layer": n}) for n in numbers]


def _name(function: Callable[..., Any]) -> str:
    return _name(function.func) if isinstance(function, partial) else function.__name__


def explain_batch(
    model: Model, batch: Batch, methods: Sequence[Configured], target: Sequence[Target]
) -> list[list[Explanation]]:
    """Explain the texts of one batch; returns one list per text. One-pass methods share their pass."""
    shared, readers = _shared(model, batch, methods, target)
    results = [
        m.method.scores(shared, **m.settings)
        if isinstance(m.method, OnePass) and m in readers
        else m.method(model, batch, shared.target, **m.settings)
        for m in methods
    ]
    predictions = predictions_of(model, shared.output, shared.target)
    pairs = zip(methods, results, strict=True)
    by_method = [list(_explanations(model, batch.encoded, predictions, m, result)) for m, result in pairs]
    return [list(row) for row in zip(*by_method, strict=True)]


def _shared(
    model: Model, batch: Batch, methods: Sequence[Configured], target: Sequence[Target]
) -> tuple[Pass, Sequence[Configured]]:
    """Run the pass that gives the prediction; also returns the methods that compute their scores from it."""
    needs = reduce(or_, (m.method.needs for m in methods if isinstance(m.method, OnePass)), Needs.NOTHING)
    for m in methods:
        if not needs and isinstance(m.method, OnePass) and m.method.own is not None:
            return m.method.see(model, batch, target, **m.settings), [m]
    readers = [m for m in methods if isinstance(m.method, OnePass) and m.method.own is None]
    if len(readers) == 1:
        return cast(OnePass, readers[0].method).see(model, batch, target, **readers[0].settings), readers
    return observe(model, batch, target, needs), readers


def as_list(method: AnyMethod | Sequence[AnyMethod]) -> tuple[AnyMethod, ...]:
    """Return one or more methods as a tuple."""
    return (method,) if isinstance(method, str) or callable(method) else tuple(method)


def as_target(target: Target | str | int | None, against: str | int | None, kind: str) -> Target:
    """Return the Target, created from a label if needed."""
    return target if isinstance(target, Target) else Target(target, against, scale(kind))


def scale(kind: str) -> Kind:
    """Check the name of a scale."""
    return cast(Kind, choose(kind, get_args(Kind), "kind"))


def _for_each(labels: Sequence[str | int | None], texts: int, against: str | int | None, kind: str) -> list[Target]:
    if len(labels) != texts:
        raise BadInput(f"target lists {len(labels)} labels for {texts} texts; pass one label, or one for each text")
    return [as_target(label, against, kind) for label in labels]


class Prediction(NamedTuple):
    """The model's output for one text, shared by all methods."""

    target: Target
    value: float
    probabilities: dict[str, float]


def predictions_of(model: Model, output: Output, target: Targets) -> list[Prediction]:
    """Return the explained number of every text, with its label and the probabilities."""
    values = target(output.logits).tolist()
    probabilities = on_scale(output.logits, "probability", model.link)
    return [
        Prediction(_named(model, target, row), value, _probabilities(model, probabilities[row], target, row))
        for row, value in enumerate(values)
    ]


def _explanations(
    model: Model,
    encoded: Sequence[Encoded],
    predictions: Sequence[Prediction],
    configured: Configured,
    result: Tensor | Attribution,
) -> Iterator[Explanation]:
    attribution = result if isinstance(result, Attribution) else Attribution(result, signed=None)
    _check_shape(attribution.scores, configured, encoded)
    scores = check_finite(attribution.scores, configured, model).cpu().float().tolist()
    settings = {**configured.settings, **attribution.settings}
    for row, (text, prediction) in enumerate(zip(encoded, predictions, strict=True)):
        yield Explanation(
            text=text.text,
            tokens=text.tokens,
            offsets=text.offsets,
            special=text.special,
            scores=tuple(scores[row][: len(text)]),
            target=prediction.target,
            value=prediction.value,
            probabilities=dict(prediction.probabilities),
            method=configured.method.__name__,
            settings={k: plain(v, row) for k, v in settings.items()},
            model=model.name,
            signed=attribution.signed,
            gaps={k: float(v[row]) for k, v in attribution.gaps.items()},
            pair_at=text.pair_at,
            unseen=text.unseen,
        )


def _check_shape(scores: object, configured: Configured, encoded: Sequence[Encoded]) -> None:
    """Raise if a method did not return one score per token."""
    expected = (len(encoded), max(map(len, encoded)))
    if not isinstance(scores, Tensor) or tuple(scores.shape) != expected:
        what = f"a tensor of shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        raise BadInput(
            f"{configured.method.__name__} returned {what} for {expected[0]} texts of up to {expected[1]} tokens; "
            "return one score per token, a tensor of texts × tokens with 0 on padding"
        )


def check_finite(scores: Tensor, configured: Configured, model: Model) -> Tensor:
    """Return the scores, or raise if they are not all numbers."""
    if not bool(scores.isfinite().all()):
        raise BadModel(
            f"the scores of {configured.method.__name__} for {model.name} are NaN or infinite. Half precision is the "
            "usual cause: its gradients overflow where the logits do not (load the model with dtype='float32')."
        )
    return scores


def _named(model: Model, target: Targets, row: int) -> Target:
    against = None if target.against is None else model.label(int(target.against[row]))
    column = int(target.labels[row])
    return Target(model.label(column), against, target.kind, column)


def _probabilities(model: Model, row: Tensor, target: Targets, index: int) -> dict[str, float]:
    """All labels, or for a vocabulary the most likely tokens and the requested ones."""
    if len(row) <= LABELS:
        return {model.label(c): p for c, p in enumerate(row.tolist())}
    requested = [t[index : index + 1] for t in (target.labels, target.against) if t is not None]
    columns = dict.fromkeys(torch.cat([row.topk(SHOWN).indices, *requested]).tolist())
    return {model.label(c): float(row[c]) for c in columns}


def plain(value: Any, row: int) -> Any:
    """The value of a setting in plain Python; a tensor has one value per row."""
    if isinstance(value, Tensor):
        return value[row].item()
    return value if isinstance(value, str | int | float | bool | list | tuple | None) else str(value)


def columns(methods: Sequence[Configured]) -> list[str]:
    """Return the names of the score columns: the method's name, with the layer if there are several."""
    names = [m.method.__name__ for m in methods]
    columns = [
        f"{name}_layer_{m.settings['layer']}" if names.count(name) > 1 and "layer" in m.settings else name
        for name, m in zip(names, methods, strict=True)
    ]
    if len(set(columns)) < len(columns):
        raise BadInput(
            f"a run can hold each method only once, but {max(columns, key=columns.count)} was asked for twice"
        )
    return columns
