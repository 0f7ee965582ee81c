"""Explained answers to a whole data set of prompts, in a run folder that can be resumed and read."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from salience.core.files import complete
from salience.core.text import Encoded
from salience.core.types import Model
from salience.data import Row, Source
from salience.errors import BadInput, choose
from salience.explanations.explainer import AnyMethod, as_list, columns, settled
from salience.generation.explaining import (
    GENERATED,
    Per,
    Request,
    as_language_model,
    check_segments,
    explain_encoded,
    requested,
)
from salience.generation.explanation import AnswerExplanation
from salience.generation.parts import answer_explanations, answer_table
from salience.generation.rows import Asking, asking, check_columns, generated_by
from salience.generation.segments import By
from salience.runs.driver import RunOptions, RunProgress, process_data
from salience.runs.explaining import recorded
from salience.runs.folder import ANSWERS, EXPLANATIONS, Parts, read_manifest

ROWS = 20
"""Answers per part: an answer takes longer than a prediction, and an unfinished part is made again."""


def explain_answer_data(
    model: object,
    data: object,
    out: str | Path,
    method: AnyMethod | Sequence[AnyMethod] | None = None,
    *,
    generate: int = GENERATED,
    generation: Mapping[str, Any] | None = None,
    by: By | None = None,
    segments: str | None = None,
    per: Per = "token",
    kind: str = "log_probability",
    through_answer: bool = False,
    engine: str = "local",
    workers: int | Literal["auto"] | None = None,
    address: str | None = None,
    budget: int | None = None,
    rows_per_part: int = ROWS,
    limit: int | None = None,
    max_rejected: float = 0.1,
    report: Callable[[RunProgress], None] | None = None,
    **settings: Any,
) -> "AnswerRun":
    """Explain the answer to every prompt of a data set and save the explanations in the run folder ``out``.

    The answers are explained as by :func:`explain_answers`, and the run is that of :func:`salience.explain_data`: if it
    is stopped, the same call resumes it. ``data`` are the texts of prompts, or a :func:`salience.data.source` that
    names the column of chats with ``chat``, or that of passages with ``context``. Answers are generated, or given by
    the column that is named as ``target``, and compared with those of ``against``.

    >>> explain_answer_data("my-lm", "prompts.jsonl", "run", generate=64, by="sentence")         # doctest: +SKIP
    """
    form = {"kind": kind, "by": by, "segments": segments, "per": per, "through_answer": through_answer}
    task = answering(method, settings, form, generate, generation)
    options = RunOptions(engine, workers, address, budget, rows_per_part, limit, max_rejected, report)
    process_data(task, model, data, out, options)
    return open_answers(out)


def answering(
    method: AnyMethod | Sequence[AnyMethod] | None,
    settings: Mapping[str, Any],
    form: Mapping[str, Any],
    generate: int,
    generation: Mapping[str, Any] | None,
) -> "Answering":
    """The task of :func:`explain_answer_data`; ``form`` are the other arguments of :func:`requested`."""
    return Answering(
        None if method is None else as_list(method), settings, form, {"max_new_tokens": generate, **(generation or {})}
    )


@dataclass(frozen=True, slots=True)
class Answering:
    """The task of such a run. ``generation`` are settings of generate; a row that gives its answer needs none."""

    method: tuple[AnyMethod, ...] | None
    """If None, the model decides."""
    settings: Mapping[str, Any]
    form: Mapping[str, Any]
    """The other arguments of :func:`requested`."""
    generation: Mapping[str, Any]
    source: Source | None = None

    holds = ANSWERS

    def settled(
        self, model: Model, source: Source, _limit: int | None, _earlier: Mapping[str, Any] | None, /
    ) -> "Answering":
        check_columns(as_language_model(model), source, self.generation)
        # Another answer has other tokens, so that only whole answers can be compared.
        form = self.form if source.against is None else {**self.form, "per": "answer"}
        own = replace(self, source=source, form=form)
        own._request(model)
        return own

    def identity(self, model: Model) -> dict[str, Any]:
        how = generated_by(as_language_model(model), self.source, self.generation)
        return {"methods": recorded(self._request(model).methods), "answers": dict(self.form), "generation": how}

    def on(self, model: Model) -> "Answerer":
        lm, request = as_language_model(model), self._request(model)
        return Answerer(
            asking(lm, self.source, self.generation), replace(request, methods=settled(lm, request.methods))
        )

    def _request(self, model: Model) -> Request:
        lm = as_language_model(model)
        request = requested(lm, self.method, self.settings, **self.form)
        columns(request.methods)  # each method only once
        return request


@dataclass(frozen=True, slots=True)
class Answerer:
    """Explains the answers to the prompts of a shard with one model."""

    ask: Asking
    request: Request

    def encode(self, row: Row) -> Encoded:
        prompt = self.ask.prompt(row)
        check_segments(prompt, self.request)
        return prompt

    def __call__(self, rows: Sequence[Row], encoded: Sequence[Encoded]) -> Iterator[list[int] | pa.Table]:
        names, results, lm = columns(self.request.methods), list[Mapping[str, AnswerExplanation]](), self.ask.model
        answers = self.ask.answers(rows, encoded)
        for number, (row, prompt, answer) in enumerate(zip(rows, encoded, answers, strict=True)):
            explained = explain_encoded(lm, prompt, answer, self.ask.against(row, prompt), self.request)
            how = lm.generation_settings(**self.ask.generation) if row.target is None else {}
            results.append({n: replace(e, generation=how) for n, e in zip(names, explained, strict=True)})
            yield [number]
        yield answer_table(rows, results)


# ------------------------------------------------------------------------------------------------------ reading


def open_answers(path: str | Path) -> "AnswerRun":
    """Open a run folder of explained answers, finished or not.

    >>> for explanation in open_answers("run"): ...                     # doctest: +SKIP
    """
    folder = Path(path)
    if not (folder / "manifest.json").is_file():
        raise BadInput(
            f"{folder} is not a run folder; make one with `salience explain --data ... --generate 64 --out {folder}`"
        )
    manifest = read_manifest(folder)
    if (holds := manifest.get("holds", EXPLANATIONS)) != ANSWERS:
        raise BadInput(f"{folder} holds {holds}, not {ANSWERS}; open explanations with salience.open_run")
    return AnswerRun(folder, manifest)


@dataclass(frozen=True, repr=False)
class AnswerRun:
    """Explained answers to a data set of prompts, read from disk on demand."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def finished(self) -> bool:
        return self.manifest.get("finished") is not None

    @property
    def methods(self) -> dict[str, str]:
        """The method of each column of scores."""
        return {column: known["method"] for column, known in self.manifest["methods"].items()}

    def __len__(self) -> int:
        """The number of explained answers."""
        return Parts(self.path).texts()

    def __repr__(self) -> str:
        state = "" if self.finished else ", not finished"
        return f"AnswerRun({str(self.path)!r}, {len(self):,} answers, {', '.join(self.methods)}{state})"

    def __iter__(self) -> Iterator[AnswerExplanation]:
        """Iterate over the explanations in the order of the data, all methods of an answer in turn."""
        return (explanation for _, row in self.rows() for explanation in row)

    def rows(self, *columns: str, first: int | None = None) -> Iterator[tuple[str, list[AnswerExplanation]]]:
        """Iterate over (id, explanations) of each answer, for all methods or the given columns."""
        methods = {c: self.methods[choose(c, self.methods, "column of scores")] for c in columns or self.methods}
        model = self.manifest["model"]["name"]
        records = islice(self._records(), first)
        return ((one["id"], list(answer_explanations(one, methods, model).values())) for one in records)

    def _records(self) -> Iterator[dict[str, Any]]:
        for file in Parts(self.path).checked(read_manifest(self.path)):
            for batch in pq.ParquetFile(file).iter_batches(batch_size=16):
                yield from batch.to_pylist()

    def export(self, path: str | Path) -> Path:
        """Write one JSON object per answer and method to a file, as printed by ``--json``."""
        with complete(Path(path)) as file:
            for name, row in self.rows():
                file.writelines(
                    f"{json.dumps({'id': name, **e.to_dict()}, ensure_ascii=False)}\n".encode() for e in row
                )
        return Path(path)
