"""Evaluates explanations of the answers to a whole data set of prompts, in a run folder that can be resumed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from salience.core.erasure import Erasure
from salience.core.text import Encoded
from salience.core.types import Model
from salience.data import Row, Source
from salience.errors import BadInput
from salience.evaluation.answers import MASKS, Measuring, measuring, tabulated
from salience.evaluation.cases import Case, described
from salience.evaluation.measuring import Numbers
from salience.evaluation.runs import Stored, numbers_table
from salience.evaluation.table import Evaluation
from salience.explanations.explainer import AnyMethod
from salience.generation.explaining import GENERATED, LanguageModel, as_language_model
from salience.generation.rows import Asking, asking, check_columns, generated_by
from salience.generation.runs import ROWS
from salience.generation.segments import By
from salience.runs.driver import RunOptions, RunProgress, process_data
from salience.runs.folder import read_manifest
from salience.runs.run import Run


def evaluate_answer_data(
    model: object,
    data: object,
    out: str | Path,
    method: AnyMethod | Sequence[AnyMethod] | None = None,
    *,
    metrics: Sequence[str] | None = None,
    by: By = "sentence",
    erase: Erasure = "delete",
    generate: int = GENERATED,
    masks: int = MASKS,
    seed: int = 0,
    engine: str = "local",
    workers: int | Literal["auto"] | None = None,
    address: str | None = None,
    budget: int | None = None,
    rows_per_part: int = ROWS,
    limit: int | None = None,
    max_rejected: float = 0.1,
    report: Callable[[RunProgress], None] | None = None,
) -> Evaluation:
    """Evaluate explanations of the answer to every prompt of a data set, and save the numbers in the folder ``out``.

    The methods, metrics and controls are those of :func:`evaluate_answers`, and the data are those of
    :func:`salience.generation.explain_answer_data`. If the run is stopped, the same call resumes it.

    >>> evaluate_answer_data("my-lm", "prompts.jsonl", "evaluated", ["lrp", "occlusion"], generate=64)  # doctest: +SKIP
    """
    task = EvaluatingAnswers(method, metrics, by, erase, masks, seed, {"max_new_tokens": generate})
    options = RunOptions(engine, workers, address, budget, rows_per_part, limit, max_rejected, report)
    plan = process_data(task, model, data, out, options)
    return task.table(as_language_model(plan.model), Path(out))


@dataclass(frozen=True, slots=True)
class EvaluatingAnswers:
    """The task of such a run."""

    method: AnyMethod | Sequence[AnyMethod] | None
    metrics: Sequence[str] | None
    by: By
    erase: Erasure
    masks: int
    seed: int
    generation: Mapping[str, Any]
    source: Source | None = None

    holds = "an evaluation of answers"

    def settled(
        self, model: Model, source: Source, _limit: int | None, _earlier: Mapping[str, Any] | None, /
    ) -> "EvaluatingAnswers":
        if source.against is not None:
            raise BadInput(
                "answers are evaluated one by one; leave out the column of answers to compare with (against)"
            )
        check_columns(as_language_model(model), source, self.generation)
        self._measuring(as_language_model(model))
        return replace(self, source=source)

    def identity(self, model: Model) -> dict[str, Any]:
        lm = as_language_model(model)
        asked = self._measuring(lm)
        settings, names = described(asked.methods), {v.name: v.method.method.__name__ for v in asked.methods}
        return {
            "methods": {name: {"method": method, "settings": settings[name]} for name, method in names.items()},
            "metrics": {metric.name: {} for metric in asked.metrics},
            "answers": {"by": self.by, "erase": self.erase, "masks": self.masks, "seed": self.seed},
            "generation": generated_by(lm, self.source, self.generation),
        }

    def on(self, model: Model) -> "AnswerEvaluator":
        lm = as_language_model(model)
        return AnswerEvaluator(lm, asking(lm, self.source, self.generation), self._measuring(lm), self.by)

    def _measuring(self, lm: LanguageModel) -> Measuring:
        return measuring(lm, self.method, self.metrics, self.by, self.erase, self.masks, self.seed)

    def table(self, lm: LanguageModel, folder: Path) -> Evaluation:
        """The table of a finished run."""
        asked, stored = self._measuring(lm), Stored(Run(folder, read_manifest(folder)).dataset)
        values = {m.name: stored.values(m.name) for m in asked.metrics}
        return tabulated(lm.name, asked, values, stored.ids(), self.by)


@dataclass(frozen=True, slots=True)
class AnswerEvaluator:
    """Measures the answers to the prompts of a shard with one model."""

    lm: LanguageModel
    ask: Asking
    asked: Measuring
    by: By

    def encode(self, row: Row) -> Encoded:
        prompt = self.ask.prompt(row)
        self.asked.check(prompt, self.by)
        return prompt

    def __call__(self, rows: Sequence[Row], encoded: Sequence[Encoded]) -> Iterator[list[int] | pa.Table]:
        measured: list[dict[str, list[float]]] = []
        for number, (prompt, answer) in enumerate(zip(encoded, self.ask.answers(rows, encoded), strict=True)):
            measured.append(self.asked(Case(self.lm, prompt, answer, self.by)))
            yield [number]
        values = {m.name: np.array([one[m.name] for one in measured]) for m in self.asked.metrics}
        yield numbers_table(rows, Numbers(self.asked.names, values, {}, {}, described(self.asked.methods)))
