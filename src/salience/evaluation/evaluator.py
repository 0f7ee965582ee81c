"""Evaluates explanations: explain texts, compute metrics per text, and summarise them with intervals and controls."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from salience.core.erasure import Erasure, usual
from salience.core.executor import Report
from salience.core.settings import described, fits
from salience.core.stats import estimate
from salience.core.target import Kind, Target
from salience.core.text import Encoded, Text
from salience.core.types import Model
from salience.data.examples import Example, encode_examples
from salience.data.texts import examples_of
from salience.errors import BadInput, UnsupportedModel, choose
from salience.evaluation.measuring import Measurement, Numbers, Rationale, Texts, column_of, marks
from salience.evaluation.table import Evaluation, compared
from salience.explanations.explainer import (
    AnyMethod,
    as_list,
    columns,
    each_layer,
    explain,
    prepare,
)
from salience.explanations.explanation import Explanation, check_same_tokens
from salience.explanations.imported import text_of
from salience.methods import CONTROLS
from salience.metrics import METRICS, AnyMetric, Metric, find_metrics
from salience.models.identity import digest
from salience.models.loading import as_model
from salience.runs.run import open_run

DEFAULT_METHODS = ("attention", "input_x_gradient", "integrated_gradients", "lrp", "occlusion")
NOT_EVERYWHERE = ("attention", "lrp")
"""Those of the default methods that some models do not support; there, they are left out."""

DEFAULT_METRICS = ("comprehensiveness", "sufficiency", "hiding_area", "decision_flip", "loo_spearman")
WITH_RATIONALES = ("token_f1", "average_precision")
"""Added to the default metrics where the texts have human rationales."""


def evaluate(
    model: object,
    data: object,
    method: AnyMethod | Sequence[AnyMethod] | None = None,
    *,
    explained: Mapping[str, Sequence[Explanation]] | None = None,
    metrics: AnyMetric | Sequence[AnyMetric] | None = None,
    target: str | int | None = None,
    kind: Kind = "logit",
    erase: Erasure | None = None,
    report: Report | None = None,
    seed: int = 0,
    text_column: str = "text",
    pair_column: str | None = None,
    **settings: Any,
) -> Evaluation:
    """Explain texts by several methods and measure how faithful, plausible and robust the explanations are.

    ``model`` and ``data`` are as for :func:`salience.explain`; examples and sources can also hold human rationales. The
    default methods are attention, input_x_gradient, integrated_gradients, lrp and occlusion; attention and lrp are left
    out where the model does not support them. The predicted label is explained unless ``target`` names another. Methods
    explain it on the scale ``kind``; metrics always read the probability of an erased text. ``metrics`` are names, or
    functions of your own: ``(model, batch, scores, target) -> one number per text``.

    ``explained`` adds existing explanations by name, in the order of the texts; they determine the explained labels.
    ``erase`` is how metrics remove tokens. Settings are those of the methods, as for :func:`salience.explain`, or of a
    metric, as in ``{"infidelity.samples": 100}``.

    >>> evaluate(model, ["A fine film.", "A bore."], ["gradient", "attention"])          # doctest: +SKIP
    """
    texts = examples_of(data, text_column=text_column, pair_column=pair_column)
    if not texts:
        raise BadInput("there are no texts to evaluate on; pass at least one")
    model = as_model(model)
    before = {name: own for name, own in (explained or {}).items() if name not in CONTROLS}
    chosen = choose_methods(model, texts[0].text, method, existing=before)
    rationales = [e.rationale for e in texts]
    wanted = select_metrics(model, metrics, rationales=any(rationales), can_explain=bool(chosen.methods))
    encoded = encode_examples(model, texts)
    own = settings | shares(wanted, settings, zip(rationales, encoded, strict=True))
    measurement = plan_measurement(model, chosen.methods, wanted, own, erase)
    _check_columns(before, measurement)
    _check(texts, encoded, before)
    targets = _targets(model, before, Target(target, kind=kind), len(texts))
    numbers = _measured(measurement, Texts(encoded, targets, rationales, before), report)
    return tabulate(
        measurement,
        numbers,
        {m: of.astype(float).mean(0) for m, of in numbers.curves.items()},
        ids=[e.id for e in texts],
        truncated=sum(bool(e.unseen) for e in encoded),
        left_out=chosen.left_out,
        seed=seed,
    )


def _check_columns(explained: Mapping[str, Sequence[Explanation]], measurement: Measurement) -> None:
    """Raise if a method has the name of existing explanations: a table has one row per name."""
    if twice := explained.keys() & columns(measurement.methods):
        raise BadInput(
            f"{', '.join(twice)} is already among the existing explanations, which are always measured; leave out the "
            "method"
        )


def _targets(model: Model, explained: Mapping[str, Sequence[Explanation]], asked: Target, texts: int) -> list[Target]:
    """What is explained of each text: what is asked for or, on that scale, the labels of existing explanations."""
    if not explained:
        return [asked] * texts
    if asked.label is not None:
        raise BadInput(f"existing explanations have labels of their own; leave out the target {asked.label!r}")
    return [Target(e.target.name, kind=asked.kind, column=column_of(model, e)) for e in next(iter(explained.values()))]


def _measured(measurement: Measurement, texts: Texts, report: Report | None) -> Numbers:
    """Measure all texts, and report the passes over them as one task."""
    done, total = 0, measurement.passes * len(texts.encoded)
    for one in measurement(texts):
        if isinstance(one, Numbers):
            return one
        done += len(one)
        if report is not None:
            report(done, total)
    raise AssertionError("a measurement ends with its numbers")


class Chosen(NamedTuple):
    """The methods to evaluate, and the default methods that the model does not support, with the reason."""

    methods: tuple[AnyMethod, ...]
    left_out: dict[str, str]


def choose_methods(
    model: Model,
    text: Text,
    method: AnyMethod | Sequence[AnyMethod] | None,
    *,
    existing: Iterable[str] = (),
) -> Chosen:
    """The requested methods without the controls, or the default ones that the model supports, tried on a text."""
    if method is not None:
        methods = tuple(m for m in as_list(method) if m not in CONTROLS)
        if not methods and not existing:
            raise BadInput(f"{', '.join(CONTROLS)} are always measured; name a method to compare them with")
        return Chosen(methods, {})
    left_out = {name: why for name in NOT_EVERYWHERE if (why := unsupported(model, text, name)) is not None}
    return Chosen(tuple(m for m in DEFAULT_METHODS if m not in left_out and m not in existing), left_out)


def unsupported(model: Model, text: Text, method: str, **settings: Any) -> str | None:
    """Why the model does not support a method, tried on a text; None if it does."""
    try:
        explain(model, text, method, **settings)
    except UnsupportedModel as error:
        return str(error)
    return None


def plan_measurement(
    model: Model,
    methods: Sequence[AnyMethod],
    metrics: Sequence[Metric],
    settings: Mapping[str, Any],
    erase: Erasure | None,
) -> Measurement:
    """Check the settings, and add the controls to the methods."""
    own, others = _split_settings(settings, metrics)
    configured = each_layer(model, prepare([*methods, *CONTROLS], others))
    return Measurement(model, configured, metrics, own, erase or usual(model))


def shares(
    metrics: Sequence[Metric], settings: Mapping[str, Any], texts: Iterable[tuple[Rationale, Encoded]]
) -> dict[str, float]:
    """The share of tokens that metrics of rationales compare, where it is not set: that of the tokens marked.

    It is a mean over the texts with marks.
    """
    names = [f"{m.name}.share" for m in metrics if m.needs == "rationale" and "share" in m.settings]
    unset = [name for name in names if name not in settings]
    if not unset:
        return {}
    each = (marks(rationale, encoded) for rationale, encoded in texts if rationale is not None)
    share = float(np.mean([m.mean() for m in each if m.any()] or [1.0]))
    return dict.fromkeys(unset, share)


def select_metrics(
    model: Model, metrics: AnyMetric | Sequence[AnyMetric] | None, *, rationales: bool, can_explain: bool
) -> list[Metric]:
    """The requested metrics, or the default ones. Metrics that cannot be computed are rejected up front."""
    if metrics is None:
        defaults = find_metrics([*DEFAULT_METRICS, *(WITH_RATIONALES if rationales else ())])
        return [m for m in defaults if model.link != "identity" or not m.decides]
    chosen = find_metrics(metrics)
    for metric in chosen:
        if metric.needs == "rationale" and not rationales:
            raise BadInput(
                f"{metric.name} needs rationales, and no text has one; name the column that holds them "
                "(--rationale-column)"
            )
        if metric.decides and model.link == "identity":
            raise BadInput(
                f"{metric.name} needs decisions or probabilities, which a regression model does not have; leave it out"
            )
        if metric.needs == "changed_model" and not can_explain:
            raise BadInput(
                f"{metric.name} explains texts again, which needs a method; name the method that made these "
                "explanations"
            )
    return chosen


def _split_settings(
    settings: Mapping[str, Any], metrics: Sequence[Metric]
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Split settings into those of the metrics, by metric, and those of the methods. Metric settings are checked."""
    known = {m.name: m for m in (*METRICS, *metrics)}
    own: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        metric, _, name = key.partition(".")
        if metric not in known:
            continue
        if metric not in {m.name for m in metrics}:
            raise BadInput(
                f"{key} is a setting of {metric}, which is not measured; add {metric} to the metrics, or leave the "
                "setting out"
            )
        hints = {k: p.annotation for k, p in known[metric].settings.items()}
        hint = hints[choose(name, hints, "setting", metric)]
        if not fits(value, hint):
            raise BadInput(f"{key} takes {described(hint)}, not {value!r}")
        own.setdefault(metric, {})[name] = value
    return own, {key: value for key, value in settings.items() if key.partition(".")[0] not in own}


def stored(
    model: Model, run: str | Path, only: Sequence[Example] | None = None
) -> tuple[list[Example], dict[str, list[Explanation]]]:
    """Read the texts of a run and their explanations by method, for :func:`evaluate`.

    With ``only``, just those texts are read, matched by id. The run must have explained this model.
    """
    opened = open_run(run)
    if opened.manifest["model"]["digest"] != digest(model):
        raise BadInput(
            f"{run} explains {opened.manifest['model']['name']}, whose weights or tokenizer differ from those of "
            f"{model.name}; load the model that was explained"
        )
    rows = opened.by_id()
    if not rows:
        raise BadInput(f"{run} holds no explanations yet; run `salience explain --data` on it first")
    opened.warn_unless_finished()
    texts = [Example(name, text_of(row[0])) for name, row in rows.items()] if only is None else list(only)
    if missing := [e.id for e in texts if e.id not in rows]:
        raise BadInput(
            f"{run} does not explain {len(missing)} of {len(texts)} texts, the first of them {missing[0]!r}; explain "
            "them too, or pass the data that was explained"
        )
    return texts, {name: [rows[e.id][i] for e in texts] for i, name in enumerate(opened.methods)}


def _check(
    texts: Sequence[Example], encoded: Sequence[Encoded], explained: Mapping[str, Sequence[Explanation]]
) -> None:
    """Check that existing explanations match these texts and tokens, and explain one label per text."""
    for name, own in explained.items():
        if len(own) != len(texts):
            raise BadInput(f"{name} explains {len(own)} texts of {len(texts)}; it must explain all of them")
        for example, seen, e in zip(texts, encoded, own, strict=True):
            _check_one(name, example, seen, e)
    for example, *row in zip(texts, *explained.values(), strict=True):
        if len(labels := {e.target.name for e in row}) > 1:
            raise BadInput(
                f"the explanations of {example.id!r} are of different labels, {' and '.join(sorted(labels))}; explain "
                "the same label with every method"
            )
        if against := [e.target.against for e in row if e.target.against is not None]:
            raise BadInput(
                f"{example.id!r} is explained against {against[0]!r}, but metrics read the probability of one label; "
                "explain it without `against`"
            )


def _check_one(name: str, example: Example, seen: Encoded, e: Explanation) -> None:
    check_same_tokens(e, seen, f"{name} of {example.id!r}")
    if len(e.scores) != len(e.tokens):
        raise BadInput(
            f"{name} of {example.id!r} has {len(e.scores)} scores for {len(e.tokens)} tokens; explain this text again"
        )
    if not np.isfinite(e.scores).all():
        raise BadInput(f"{name} of {example.id!r} has scores that are NaN or infinite; explain this text again")


# ------------------------------------------------------------------------------------------------------ the table


def tabulate(
    measurement: Measurement,
    numbers: Numbers,
    curves: Mapping[str, np.ndarray],
    *,
    ids: Sequence[str],
    truncated: int,
    left_out: Mapping[str, str],
    seed: int,
    keep: bool = True,
) -> Evaluation:
    """Summarise what was measured. ``curves`` are means (methods × points); values are kept per text if ``keep``."""
    names, metrics = numbers.methods, measurement.metrics
    cells = compared(names, metrics, numbers.values, measurement.limits, seed=seed)
    return Evaluation(
        model=measurement.model.name,
        texts=len(next(iter(numbers.values.values()))),
        truncated=truncated,
        ids=tuple(ids),
        methods=names,
        metrics=tuple(m.name for m in metrics),
        cells={(c.method, c.metric): c if keep else replace(c, values=()) for c in cells},
        curves={m: {name: tuple(c.tolist()) for name, c in zip(names, of, strict=True)} for m, of in curves.items()},
        gaps={method: {gap: estimate(x, (0, inf)) for gap, x in of.items()} for method, of in numbers.gaps.items()},
        settings={
            "erase": measurement.erase,
            "kind": measurement.kind,
            "seed": seed,
            "methods": numbers.settings,
            "left_out": dict(left_out),
        },
    )
