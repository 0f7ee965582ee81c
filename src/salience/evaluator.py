"""Orchestration: explanations to numbers for every text, to a table with intervals and controls, to an answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from salience import metrics as _metrics
from salience.batching import pack
from salience.data import Source
from salience.erasure import Erasure, usual
from salience.errors import BadInput, choose
from salience.evaluation import CONTROLS, Cell, Evaluation, best_of
from salience.explainer import AnyMethod, Asked, each_layer, explain_all, listed, prepare, scale
from salience.explanation import Explanation
from salience.foreign import text_of
from salience.lessons import Example, examples, marked, read
from salience.metrics.agreement import kendall, spearman
from salience.metrics.erasing import Erasing, Measured, measured
from salience.metrics.robustness import Changing
from salience.runs import open_run
from salience.settings import described, fits, settings_of
from salience.stats import Estimate, Resampled, holm
from salience.types import Encoded, Kind, Model, Target, Targets, Text
from salience.work import columns, digest

METHODS = ("gradient", "input_x_gradient", "integrated_gradients", "occlusion")
METRICS = ("comprehensiveness", "sufficiency", "hiding_area", "decision_flip", "loo_spearman")
PLAUSIBLE = ("token_f1", "average_precision")
"""Added where people have marked the texts."""

UNDECIDED = ("comprehensiveness", "sufficiency", "loo_spearman")
"""Of a regression, which decides nothing."""

DECIDING = ("hiding_area", "revealing_area", "decision_flip", "log_odds")
"""Not of a regression."""

LEAVE_ONE_OUT = "occlusion"
DOUBT = 0.05
"""The largest p-value, corrected for the number of methods, that counts as beyond doubt."""

Report = Callable[[int, int], None]
"""(texts measured, of how many)"""


def evaluate(
    model: Model,
    data: Source | Sequence[Example] | Sequence[Text],
    method: AnyMethod | Sequence[AnyMethod] = METHODS,
    *,
    explained: Mapping[str, Sequence[Explanation]] | None = None,
    metrics: str | Sequence[str] | None = None,
    target: str | int | None = None,
    kind: Kind = "logit",
    erase: Erasure | None = None,
    report: Report | None = None,
    seed: int = 0,
    **settings: Any,
) -> Evaluation:
    """Explain texts by several methods and measure which explanation can be believed.

    ``data`` are texts, or examples or a source whose rationales are what people have marked. The label explained is
    the predicted one unless ``target`` names another, and methods explain it on the scale ``kind``; what metrics read
    of an erased text is always its probability. ``explained`` are explanations that are there already, by name
    and in the order of the texts; their label is that of all. ``erase`` is how metrics take tokens away. Settings are
    those of the methods, as for :func:`salience.explain`, or of a metric as ``{"infidelity.samples": 100}``.

    >>> evaluate(model, ["A fine film.", "A bore."], ["gradient", "attention"])          # doctest: +SKIP
    """
    given, before = _given(data), {name: found for name, found in (explained or {}).items() if name not in CONTROLS}
    real = [m for m in listed(method) if m not in CONTROLS]
    if not real and not before:
        raise BadInput(f"{', '.join(CONTROLS)} are always measured; name a method to hold against them")
    wanted = _wanted(model, given, [metrics] if isinstance(metrics, str) else metrics, again=bool(real))
    own, others = _parted(settings, wanted)
    asked = each_layer(model, prepare([*real, *CONTROLS], others))
    if before and target is not None:
        raise BadInput(f"explanations that are there are of their own labels; leave out the target {target!r}")
    if twice := before.keys() & columns(asked):
        raise BadInput(
            f"{', '.join(twice)} is there already, and would be made again; leave out the method: whatever is "
            "there is measured"
        )
    encoded = read(model, given)
    _check(given, encoded, before)
    labels = [_column(model, e) for e in next(iter(before.values()))] if before else [target] * len(given)
    told = _Phases(report or (lambda *_: None), _foreseen(wanted, own))
    made = _explained(model, encoded, asked, [Target(label, kind=kind) for label in labels], told.next())
    judged = _Judged(model, given, encoded, before | made, asked, erase or usual(model), own)
    values, curves = judged.measured(wanted, told)
    return _evaluation(judged, wanted, values, curves, seed)


def _wanted(model: Model, given: Sequence[Example], metrics: Sequence[str] | None, *, again: bool) -> tuple[str, ...]:
    """The metrics that are asked for, or the usual ones; what cannot be measured is refused before the work begins."""
    rationales = any(e.rationale for e in given)
    if metrics is None:
        return (*(METRICS if model.link != "identity" else UNDECIDED), *(PLAUSIBLE if rationales else ()))
    wanted = _metrics.chosen(metrics)
    if wanted.marking and not rationales:
        raise BadInput(
            f"{wanted.marking[0].__name__} needs rationales, and no text has one; name the column that holds what "
            "people have marked (--rationale-column)"
        )
    if model.link == "identity" and (deciding := [m for m in metrics if m in DECIDING]):
        raise BadInput(
            f"{deciding[0]} is of decisions or probabilities, and a regression model gives neither; leave it out"
        )
    if wanted.changing and not again:
        raise BadInput(
            f"{wanted.changing[0].__name__} explains texts again, which only a method can; name the method that made "
            "these explanations"
        )
    return tuple(dict.fromkeys(metrics))


def _parted(settings: Mapping[str, Any], wanted: Sequence[str]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Settings of the wanted metrics, by metric, and those of methods; checked before anything runs."""
    by_name: dict[str, Callable[..., Any]] = {m.__name__: m for m in _metrics.EVERY}
    own: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        metric, _, name = key.partition(".")
        if metric not in by_name:
            continue
        if metric not in wanted:
            raise BadInput(
                f"{key} is a setting of {metric}, which is not measured; name it as a metric, or leave it out"
            )
        known = {k: p.annotation for k, p in settings_of(by_name[metric]).items() if k != "erase"}
        hint = known[choose(name, known, f"setting of {metric}")]
        if not fits(value, hint):
            raise BadInput(f"{key} takes {described(hint)}, not {value!r}")
        own.setdefault(metric, {})[name] = value
    return own, {key: value for key, value in settings.items() if key.partition(".")[0] not in own}


def _column(model: Model, e: Explanation) -> int:
    """Which of the model's outputs is explained."""
    if e.target.column is not None:
        return e.target.column
    column = model.resolve(e.target.label)
    if model.label(column) != e.target.label:
        raise BadInput(
            f"which token {e.target.label!r} is cannot be told from its name, as {model.name} has several that read "
            "so; explain again and evaluate in one go"
        )
    return column


def _explained(
    model: Model,
    encoded: Sequence[Encoded],
    asked: Sequence[Asked],
    target: Sequence[Target],
    report: Report | None = None,
) -> dict[str, list[Explanation]]:
    """The explanations of each method, in the order of the texts."""
    rows = explain_all(model, encoded, asked, target, report=report)
    return {name: [row[column] for row in rows] for column, name in enumerate(columns(asked))}


def _given(data: Source | Sequence[Example] | Sequence[Text]) -> list[Example]:
    if isinstance(data, Source):
        return examples(data)
    if isinstance(data, str):
        data = [data]
    given = [e if isinstance(e, Example) else Example(str(i), e) for i, e in enumerate(data)]
    if not given:
        raise BadInput("there are no texts to evaluate on")
    return given


def stored(
    model: Model, run: str | Path, given: Sequence[Example] | None = None
) -> tuple[list[Example], dict[str, list[Explanation]]]:
    """A run's texts and explanations by method, for :func:`evaluate`; of the ``given`` texts, found by id, if any.

    The run must be of this very model.
    """
    opened = open_run(run)
    if opened.manifest["model"]["digest"] != digest(model):
        raise BadInput(
            f"{run} explains {opened.manifest['model']['name']}, whose weights or tokenizer are not those of "
            f"{model.name}; load the model that was explained"
        )
    rows = dict(opened.rows())
    if not rows:
        raise BadInput(f"{run} holds no explanation yet; explain its data to the end first")
    opened.warn_unless_finished()
    texts = [Example(name, text_of(row[0])) for name, row in rows.items()] if given is None else list(given)
    if missing := [e.id for e in texts if e.id not in rows]:
        raise BadInput(
            f"{run} does not explain {len(missing)} of {len(texts)} texts, the first of them {missing[0]!r}; explain "
            "them too, or give the data that was explained"
        )
    return texts, {name: [rows[e.id][i] for e in texts] for i, name in enumerate(opened.methods)}


def _foreseen(wanted: tuple[str, ...], own: Mapping[str, Mapping[str, Any]]) -> int:
    """How often all texts are gone through: to explain them, to erase, and for every changed model."""
    erasing, leaving, _, changing = _metrics.chosen(wanted)
    models = 0
    for metric in changing:
        samples = settings_of(metric).get("samples")
        models += 1 if samples is None else own.get(metric.__name__, {}).get("samples", samples.default)
    return 1 + bool(erasing or leaving) + models


class _Phases:
    """Phases that go through all texts, told as one piece of work. What was not foreseen makes it longer."""

    def __init__(self, report: Report, foreseen: int) -> None:
        self._report, self._foreseen, self._begun = report, foreseen, 0

    def next(self) -> Report:
        before, self._begun = self._begun, self._begun + 1
        phases = max(self._foreseen, self._begun)
        return lambda done, of: self._report(before * of + done, phases * of)

    def nothing(self, done: int, of: int) -> None: ...


@dataclass(frozen=True, slots=True)
class _Judged:
    """The texts as the model reads them, with their explanations."""

    model: Model
    given: Sequence[Example]
    encoded: Sequence[Encoded]
    explained: Mapping[str, Sequence[Explanation]]
    asked: Sequence[Asked]
    """The methods by which texts can be explained again."""
    erase: Erasure
    settings: Mapping[str, Mapping[str, Any]]
    """Of metrics, by their names."""

    def measured(
        self, wanted: tuple[str, ...], told: "_Phases"
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, np.ndarray]]]:
        """Numbers of (texts × methods) by metric, and the mean curves."""
        erasing, leaving, marking, changing = _metrics.chosen(wanted)
        n, k = len(self.given), len(self.explained)
        values = {name: np.full((n, k), np.nan) for name in wanted}
        curves: dict[str, list[list[np.ndarray]]] = {m.__name__: [[] for _ in range(k)] for m in erasing if m.curve}
        done, batches = 0, pack([len(e) for e in self.encoded], self.model.budget) if erasing or leaving else ()
        report = told.next() if batches else told.nothing
        for rows in batches:
            if erasing:
                for column, found in enumerate(self._erased(rows, erasing)):
                    for metric, one in zip(erasing, found, strict=True):
                        values[metric.__name__][rows, column] = one.value.numpy()
                        if one.curve is not None:
                            curves[metric.__name__][column].append(one.curve.numpy())
            if leaving:
                self._left_out(rows, values)
            report(done := done + len(rows), n)
        if marking:
            self._marked(marking, values)
        for metric in changing:
            self._changed(metric, values[metric.__name__], told)
        means = {
            name: {m: np.concatenate(parts, 1).mean(1) for m, parts in zip(self.explained, of, strict=True)}
            for name, of in curves.items()
        }
        return values, means

    def _erased(self, rows: Sequence[int], erasing: Sequence[Erasing]) -> list[list[Measured]]:
        batch = self.model.batch([self.encoded[i] for i in rows])
        scores = [_padded([found[i].scores for i in rows], batch.ids.device) for found in self.explained.values()]
        chosen = [(m, self._settings(m)) for m in erasing]
        return measured(self.model, batch, scores, self._target(rows), chosen, erase=self.erase)

    def _settings(self, metric: Callable[..., Any]) -> Mapping[str, Any]:
        return self.settings.get(metric.__name__, {})

    def _target(self, rows: Sequence[int]) -> Targets:
        device = self.model.words.weight.device
        labels = torch.tensor([_column(self.model, self.explained[CONTROLS[0]][i]) for i in rows], device=device)
        return Targets(labels, None, self.kind, self.model.link)

    @property
    def kind(self) -> Kind:
        """What is read of an erased text: the probability of the label, or the number of a regression."""
        return "logit" if self.model.link == "identity" else "probability"

    def _left_out(self, rows: Sequence[int], values: Mapping[str, np.ndarray]) -> None:
        """Against what taking away single tokens does; the method that does just that has no number."""
        target = self._target(rows)
        wanted = [Target(int(label), kind=target.kind) for label in target.labels]
        asked = prepare(LEAVE_ONE_OUT, {"erase": self.erase})
        (found,) = _explained(self.model, [self.encoded[i] for i in rows], asked, wanted).values()
        correlations = {"loo_spearman": spearman, "loo_kendall": kendall}
        for place, i in enumerate(rows):
            truth = np.array(found[place].content)
            for column, explanations in enumerate(self.explained.values()):
                if not self._leaves_one_out(explanations[i]):
                    for name in correlations.keys() & values.keys():
                        values[name][i, column] = correlations[name](np.array(explanations[i].content), truth)

    def _leaves_one_out(self, e: Explanation) -> bool:
        """Whether it is what it would be held against."""
        single = (e.method, e.settings.get("window"), e.settings.get("unit")) == (LEAVE_ONE_OUT, 1, "token")
        return single and e.settings.get("erase") in (None, self.erase)

    def _changed(self, metric: Changing, values: np.ndarray, told: "_Phases") -> None:
        """Explanations of changed models, held against those of the model itself."""
        targets = [Target(e.target.column, kind=scale(e.target.kind)) for e in self.explained[CONTROLS[0]]]
        for model in metric(self.model, **self._settings(metric)):
            again = _explained(model, self.encoded, self.asked, targets, told.next())
            for column, (name, before) in enumerate(self.explained.items()):
                pairs = zip(before, again[name], strict=True) if name in again else ()
                found = [metric.compared(np.array(a.content), np.array(b.content)) for a, b in pairs]
                values[:, column] = np.fmax(values[:, column], found or np.nan)

    def _marked(self, marking: Sequence[Callable[..., float]], values: Mapping[str, np.ndarray]) -> None:
        marks = {
            i: np.array([m > 0 for m, s in zip(marked(e.rationale, seen), seen.special, strict=True) if not s])
            for i, (e, seen) in enumerate(zip(self.given, self.encoded, strict=True))
            if e.rationale is not None
        }
        share = float(np.mean([m.mean() for m in marks.values() if m.any()] or [1.0]))
        for i, truth in marks.items():
            for column, explanations in enumerate(self.explained.values()):
                scores = np.array(explanations[i].content)
                for metric in marking:
                    settings = {"share": share} if "share" in settings_of(metric) else {}
                    settings |= self._settings(metric)
                    values[metric.__name__][i, column] = metric(scores, truth, **settings)


def _check(
    given: Sequence[Example], encoded: Sequence[Encoded], explained: Mapping[str, Sequence[Explanation]]
) -> None:
    """Whether explanations that were made before are of these texts, these tokens and one label."""
    for name, found in explained.items():
        if len(found) != len(given):
            raise BadInput(f"{name} explains {len(found)} texts of {len(given)}; it must explain all of them")
        for example, seen, e in zip(given, encoded, found, strict=True):
            _fits(name, example, seen, e)
    for example, *row in zip(given, *explained.values(), strict=True):
        if len(labels := {e.target.label for e in row}) > 1:
            raise BadInput(
                f"the explanations of {example.id!r} are of different labels, {' and '.join(sorted(labels))}; only "
                "those of one label can be compared"
            )
        if against := [e.target.against for e in row if e.target.against is not None]:
            raise BadInput(
                f"{example.id!r} is explained against {against[0]!r}, and metrics read the probability of one label; "
                "explain that label alone"
            )


def _fits(name: str, example: Example, seen: Encoded, e: Explanation) -> None:
    if e.text != seen.text:
        raise BadInput(
            f"{name} of {example.id!r} explains another text: {e.text[:60]!r}, not {seen.text[:60]!r}; explain these "
            "texts again"
        )
    if e.tokens != seen.tokens:
        raise BadInput(
            f"{name} of {example.id!r} was made for another tokenizer: its tokens begin {' '.join(e.tokens[:6])!r}, "
            f"and those of this model {' '.join(seen.tokens[:6])!r}; evaluate with the model that was explained"
        )
    if len(e.scores) != len(e.tokens):
        raise BadInput(
            f"{name} of {example.id!r} has {len(e.scores)} scores for {len(e.tokens)} tokens; explain this text again"
        )
    if not np.isfinite(e.scores).all():
        raise BadInput(f"{name} of {example.id!r} has scores that are NaN or infinite; explain this text again")


def _padded(rows: Sequence[Sequence[float]], device: torch.device) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *(0.0,) * (width - len(row))] for row in rows], dtype=torch.float64, device=device)


# ------------------------------------------------------------------------------------------------------ the table


def _evaluation(
    judged: _Judged,
    wanted: tuple[str, ...],
    values: Mapping[str, np.ndarray],
    curves: Mapping[str, Mapping[str, np.ndarray]],
    seed: int,
) -> Evaluation:
    names = tuple(judged.explained)
    cells = {
        (cell.method, cell.metric): cell for metric in wanted for cell in _cells(names, metric, values[metric], seed)
    }
    return Evaluation(
        model=judged.model.name,
        texts=len(judged.given),
        truncated=sum(bool(e.unseen) for e in judged.encoded),
        ids=tuple(e.id for e in judged.given),
        methods=names,
        metrics=wanted,
        cells=cells,
        curves={m: {name: tuple(map(float, curve)) for name, curve in of.items()} for m, of in curves.items()},
        gaps={name: gaps for name, found in judged.explained.items() if (gaps := _gaps(found, seed))},
        settings={
            "erase": judged.erase,
            "kind": judged.kind,
            "seed": seed,
            "methods": {name: dict(found[0].settings) for name, found in judged.explained.items()},
        },
    )


def _cells(names: Sequence[str], metric: str, values: np.ndarray, seed: int) -> Iterator[Cell]:
    drawn = Resampled.of(values, seed=seed)
    estimates = {name: drawn.estimate(i) for i, name in enumerate(names)}
    aspect, direction = _metrics.ASPECTS[metric], _metrics.BETTER.get(metric, "higher")
    column = {name: i for i, name in enumerate(names)}
    real = [name for name in names if name not in CONTROLS]
    best = best_of({name: estimates[name] for name in real}, direction) if real else None
    floor = {name: drawn.difference(column[name], column["random"]) for name in names if name != "random"}
    behind = {name: drawn.difference(column[name], column[best]) for name in real if best and name != best}
    corrected = dict(zip(real, holm([floor[name].p for name in real]), strict=True))
    for name in names:
        # Nothing is as steady as what never looks at the model: to beat it says nothing.
        told = name in real and aspect != "robustness"
        ahead = told and (floor[name].mean > 0) == (direction == "higher") and floor[name].clear
        yield Cell(
            method=name,
            metric=metric,
            aspect=aspect,
            better=direction,
            estimate=estimates[name],
            against_random=floor.get(name),
            against_best=behind.get(name),
            beats_random=ahead and corrected[name] <= DOUBT,
            values=tuple(values[:, column[name]].tolist()),
        )


def _gaps(found: Sequence[Explanation], seed: int) -> dict[str, Estimate]:
    names = sorted({name for e in found for name in e.gaps})
    if not names:
        return {}
    drawn = Resampled.of([[abs(e.gaps.get(name, np.nan)) for name in names] for e in found], seed=seed)
    return {name: drawn.estimate(i) for i, name in enumerate(names)}
