"""Evaluates a whole data set into a run folder: the numbers of every text as Parquet parts, and the table from them.

A part has a column per metric with a number per method, and for areas also a column with their curves. The table is
made from these columns, read one at a time, and no text is kept in memory.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import torch

from salience.core.erasure import Erasure
from salience.core.passes import resolve
from salience.core.target import Target
from salience.core.text import Encoded
from salience.core.types import Model
from salience.data import Reader, Rejected, Row, Source, shards
from salience.errors import BadInput, TruncatedText
from salience.evaluation.evaluator import choose_methods, plan_measurement, select_metrics, shares, tabulate
from salience.evaluation.measuring import Measurement, Numbers, Rationale, Texts
from salience.evaluation.table import Evaluation
from salience.explanations.explainer import AnyMethod, as_target, columns
from salience.metrics import AnyMetric, Metric, find_metrics
from salience.models.loading import Checkpoint
from salience.runs.driver import RunOptions, RunProgress, process_data
from salience.runs.explaining import recorded
from salience.runs.faithfulness import EVALUATION
from salience.runs.folder import read_manifest
from salience.runs.run import Run

Only = Sequence[AnyMethod] | AnyMethod | None


def evaluate_data(
    model: Model | Checkpoint | str,
    data: Source | str | Path,
    out: str | Path,
    method: AnyMethod | Sequence[AnyMethod] | None = None,
    *,
    metrics: AnyMetric | Sequence[AnyMetric] | None = None,
    target: str | int | None = None,
    kind: str = "logit",
    erase: Erasure | None = None,
    seed: int = 0,
    engine: str = "local",
    workers: int | Literal["auto"] | None = None,
    address: str | None = None,
    budget: int | None = None,
    rows_per_part: int = 1000,
    limit: int | None = None,
    max_rejected: float = 0.1,
    report: Callable[[RunProgress], None] | None = None,
    **settings: Any,
) -> Evaluation:
    """Evaluate explanations of every text of a data set, and save the numbers of every text in the folder ``out``.

    The methods, metrics and settings are those of :func:`salience.evaluate`, and the run is that of
    :func:`salience.explain_data`: if it is stopped, the same call resumes it, and ``engine`` may be ``"ray"``. The
    Parquet files under ``out/parts`` hold the values of every text, with a column per metric; the returned evaluation
    does not hold them.

    >>> evaluate_data("sentiment", "reviews.jsonl", "evaluated", ["attention", "lrp"])           # doctest: +SKIP
    """
    task = Evaluating(method, metrics, settings, as_target(target, None, kind), erase)
    options = RunOptions(engine, workers, address, budget, rows_per_part, limit, max_rejected, report)
    plan = process_data(task, model, data, out, options)
    settled = plan.job.task
    assert isinstance(settled, Evaluating)
    return settled.table(settled.on(plan.model).measurement, Path(out), seed)


@dataclass(frozen=True, slots=True)
class Evaluating:
    """The task of such a run. Methods and metrics that are None are decided by the model and the data."""

    method: Only
    metrics: AnyMetric | Sequence[AnyMetric] | None
    settings: Mapping[str, Any]
    target: Target
    erase: Erasure | None
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])

    holds = EVALUATION

    def __post_init__(self) -> None:
        if self.metrics is not None:
            find_metrics(self.metrics)  # unknown names are found before anything is loaded

    def settled(
        self, model: Model, source: Source, limit: int | None, earlier: Mapping[str, Any] | None, /
    ) -> "Evaluating":
        """Choose methods and metrics, and find the share of tokens that the rationales of all texts mark.

        A run that is resumed keeps its share, even if its limit grows, so that all its numbers can be compared.
        """
        resolve(model, [self.target], torch.zeros(0, len(model.labels)))  # raises for an unknown label
        first = next(_texts(model, source, limit), None)
        if first is None:
            raise BadInput(f"no row of {source.name} can be used; check the names of the columns")
        chosen = choose_methods(model, first[0].text, self.method)
        rationales = source.rationale is not None
        wanted = select_metrics(model, self.metrics, rationales=rationales, can_explain=True)
        given = {**_earlier_shares(wanted, earlier), **self.settings}
        every = ((row.rationale, encoded) for row, encoded in _texts(model, source, limit))
        settings = {**given, **shares(wanted, given, every)}
        names = self.metrics or [m.name for m in wanted]
        plan_measurement(model, chosen.methods, wanted, settings, self.erase)  # checks the settings
        return replace(self, method=chosen.methods, metrics=names, settings=settings, left_out=chosen.left_out)

    def identity(self, model: Model) -> dict[str, Any]:
        m = self.on(model).measurement
        return {
            "methods": recorded(m.methods),
            "target": asdict(self.target),
            "metrics": {metric.name: dict(m.settings.get(metric.name, {})) for metric in m.metrics},
            "erase": m.erase,
        }

    def on(self, model: Model) -> "Evaluator":
        assert self.method is not None
        assert self.metrics is not None
        methods = (self.method,) if isinstance(self.method, str) or callable(self.method) else self.method
        measurement = plan_measurement(model, methods, find_metrics(self.metrics), self.settings, self.erase)
        return Evaluator(measurement, self.target)

    def table(self, measurement: Measurement, folder: Path, seed: int) -> Evaluation:
        """The table of a finished run."""
        run = Run(folder, read_manifest(folder))
        stored = Stored(run.dataset)
        methods = tuple(columns(measurement.methods))
        values = {m.name: stored.values(m.name) for m in measurement.metrics}
        return tabulate(
            measurement,
            Numbers(methods, values, {}, stored.gaps(), stored.settings()),
            {m.name: stored.mean_curves(m.name) for m in measurement.metrics if m.curve},
            ids=(),
            truncated=run.manifest["finished"]["truncated"],
            left_out=self.left_out,
            seed=seed,
            keep=False,
        )


def _earlier_shares(metrics: Sequence[Metric], earlier: Mapping[str, Any] | None) -> dict[str, float]:
    """The shares of tokens that metrics of rationales have compared in earlier starts of this run."""
    known: Mapping[str, Any] = (earlier or {}).get("metrics") or {}
    own = {m.name: known.get(m.name) or {} for m in metrics if m.needs == "rationale"}
    return {f"{name}.share": settings["share"] for name, settings in own.items() if "share" in settings}


def _texts(model: Model, source: Source, limit: int | None) -> Iterator[tuple[Row, Encoded]]:
    """The valid rows of the data with their tokens, read one shard at a time."""
    with Reader(source) as reader, warnings.catch_warnings():
        warnings.simplefilter("ignore", TruncatedText)
        for shard in shards(source, limit=limit):
            for row in reader.read(shard):
                if not isinstance(row, Rejected):
                    yield from ((row, encoded) for encoded in _encoded(model, row))


def _encoded(model: Model, row: Row) -> list[Encoded]:
    try:
        return model.encode([row.text])
    except BadInput:
        return []


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Measures the texts of a shard with one model."""

    measurement: Measurement
    target: Target

    def encode(self, row: Row) -> Encoded:
        (encoded,) = self.measurement.model.encode([row.text])
        return encoded

    def __call__(self, rows: Sequence[Row], encoded: Sequence[Encoded]) -> Iterator[list[int] | pa.Table]:
        rationales: list[Rationale] = [row.rationale for row in rows]
        passes = dict.fromkeys(range(len(rows)), 0)
        for done in self.measurement(Texts(encoded, [self.target] * len(rows), rationales, {})):
            if isinstance(done, Numbers):
                yield numbers_table(rows, done)
            else:
                passes |= {i: passes[i] + 1 for i in done}
                yield [i for i in done if passes[i] == self.measurement.passes]


# ------------------------------------------------------------------------------------------------------ the parts


def _curves(metric: str) -> str:
    """The column of the curves of a metric."""
    return f"{metric}_curve"


def numbers_table(rows: Sequence[Row], numbers: Numbers) -> pa.Table:
    """One row per text; a number that is undefined is null."""
    settings = {m: [json.dumps(s, ensure_ascii=False)] * len(rows) for m, s in numbers.settings.items()}
    gaps = {m: _struct({gap: _nullable(x) for gap, x in of.items()}) for m, of in numbers.gaps.items()}
    return pa.table(
        {
            "row": pa.array([row.number for row in rows], pa.int64()),
            "id": pa.array([row.id for row in rows], pa.string()),
            **{
                m: _struct(dict(zip(numbers.methods, map(_nullable, x.T), strict=True)))
                for m, x in numbers.values.items()
            },
            **{
                _curves(m): _struct(
                    {name: pa.array(list(x[:, k]), pa.list_(pa.float32())) for k, name in enumerate(numbers.methods)}
                )
                for m, x in numbers.curves.items()
            },
            **({"gaps": _struct(gaps)} if gaps else {}),
            "settings": _struct({m: pa.array(texts, pa.string()) for m, texts in settings.items()}),
        }
    )


def _struct(fields: Mapping[str, pa.Array]) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(fields.values()), list(fields))


def _nullable(x: np.ndarray) -> pa.Array:
    return pa.array(x, pa.float64(), from_pandas=True)


@dataclass(frozen=True, slots=True)
class Stored:
    """The numbers of a finished run, read a column at a time. Its parts are checked once."""

    data: ds.Dataset

    def ids(self) -> list[str]:
        return [one for batch in self.data.to_batches(columns=["id"]) for one in batch.column(0).to_pylist()]

    def values(self, metric: str) -> np.ndarray:
        """Texts × methods."""
        return np.concatenate([np.stack([*map(_floats, batch.flatten())], 1) for batch in self._batches(metric)])

    def mean_curves(self, metric: str) -> np.ndarray:
        """Methods × points."""
        total, count = np.zeros(()), 0
        for batch in self._batches(_curves(metric)):
            curves = [_floats(of.flatten()).reshape(len(of), -1) for of in batch.flatten()]
            total, count = total + np.stack([c.sum(0) for c in curves]), count + len(batch)
        return total / count

    def gaps(self) -> dict[str, dict[str, np.ndarray]]:
        """By method and name of the gap."""
        if "gaps" not in self.data.schema.names:
            return {}
        kind = self.data.schema.field("gaps").type
        names = [(of.name, gap.name) for of in kind for gap in of.type]
        parts = {name: list[np.ndarray]() for name in names}
        for batch in self._batches("gaps"):
            for method, gap in names:
                parts[method, gap].append(_floats(batch.field(method).field(gap)))
        every = {name: np.concatenate(of) for name, of in parts.items()}
        return {m: {gap: every[m, gap] for of, gap in names if of == m} for m in dict.fromkeys(m for m, _ in names)}

    def settings(self) -> dict[str, Any]:
        """The settings of each method, from the first text."""
        (first,) = self.data.head(1, columns=["settings"]).to_pylist()
        return {method: json.loads(text) for method, text in first["settings"].items()}

    def _batches(self, column: str) -> Iterator[pa.StructArray]:
        return (batch.column(0) for batch in self.data.to_batches(columns=[column]) if len(batch))


def _floats(values: pa.Array) -> np.ndarray:
    return values.to_numpy(zero_copy_only=False).astype(float)
