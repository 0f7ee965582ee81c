"""Read the explanations of a run folder, and export them."""

import heapq
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from math import inf, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from salience.core.files import complete
from salience.data import Rejected
from salience.errors import BadInput, UnfinishedRun, UnknownLabel, choose
from salience.explanations.explanation import LABELS, Explanation
from salience.runs.export import format_of, long_form, long_schema, write
from salience.runs.folder import ANSWERS, EXPLANATIONS, Parts, read_manifest
from salience.runs.texts import ExplainedText

if TYPE_CHECKING:
    import pandas

    from salience.runs.summary import Summary

SORTS: Mapping[str, Callable[[ExplainedText], float]] = {
    "confidence": lambda text: text.confidence,
    "-confidence": lambda text: -text.confidence,
    "disagreement": lambda text: -text.disagreement,
}
"""Orders of texts: the least or most confident predictions first, or those first on which the methods disagree most."""

PREVIEW = 3
"""The number of texts that a notebook shows of a run."""


def open_run(path: str | Path) -> "Run":
    """Open a run folder, finished or not.

    >>> for explanation in open_run("run"): ...                         # doctest: +SKIP
    """
    folder = Path(path)
    if not (folder / "manifest.json").is_file():
        what = "has no manifest.json" if folder.is_dir() else "does not exist"
        raise BadInput(
            f"{folder} is not a run folder: it {what}; make one with `salience explain --data ... --out {folder}`"
        )
    run = Run(folder, read_manifest(folder))
    if (holds := run.manifest.get("holds", EXPLANATIONS)) != EXPLANATIONS:
        remedy = OTHER_READERS.get(holds, "run the command that made it again to show them")
        raise BadInput(f"{folder} holds {holds}, not explanations; {remedy}")
    return run


OTHER_READERS = {ANSWERS: "read it with `salience show`, or with salience.generation.open_answers in Python"}
"""How to read the runs that hold something else."""


@dataclass(frozen=True, repr=False)
class Run:
    """Explanations of a whole data set, read from disk on demand."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def finished(self) -> bool:
        return self.manifest.get("finished") is not None

    def warn_unless_finished(self) -> None:
        """Warn if the run does not cover the whole data set yet."""
        if not self.finished:
            warnings.warn(
                f"{self.path} is not finished; only the {len(self)} texts explained so far are used. Run the command "
                "that made it again to finish it.",
                UnfinishedRun,
                stacklevel=3,
            )

    @property
    def methods(self) -> dict[str, str]:
        """The method of each column of scores."""
        return {column: settings["method"] for column, settings in self.manifest["methods"].items()}

    @property
    def kept(self) -> list[str]:
        """The columns of the data that were kept."""
        return list(self.manifest.get("columns", {}).get("keep", ()))

    @property
    def labelled(self) -> bool:
        """Whether the true labels were kept."""
        return self.manifest["format"] >= 3 and self.manifest.get("columns", {}).get("label") is not None

    def labels(self) -> list[str]:
        """The different true labels of the texts."""
        return sorted(filter(None, self.table(["label"])["label"].unique().to_pylist())) if self.labelled else []

    def __len__(self) -> int:
        """The number of explained texts."""
        return Parts(self.path).texts()

    def __iter__(self) -> Iterator[Explanation]:
        """Iterate over the explanations in the order of the data, all methods of a text in turn."""
        return (explanation for _, row in self.rows() for explanation in row)

    def __repr__(self) -> str:
        state = "" if self.finished else ", not finished"
        return f"Run({str(self.path)!r}, {len(self):,} texts, {', '.join(self.methods)}{state})"

    def rows(self, *columns: str) -> Iterator[tuple[str, list[Explanation]]]:
        """Iterate over (id, explanations) of each text, for all methods or the given columns."""
        return ((text.id, list(text.explanations.values())) for text in self.texts(*columns))

    def texts(
        self,
        *columns: str,
        ids: Collection[str] | None = None,
        label: str | None = None,
        wrong: bool = False,
        sort: str | None = None,
        first: int | None = None,
    ) -> Iterator[ExplainedText]:
        """Iterate over texts with their id, label and explanations, in the order of the data or of ``sort``.

        Only those with one of the ``ids``, with a true ``label``, or whose prediction is ``wrong``; the ``first`` of
        them. ``sort`` is ``confidence``, ``-confidence`` or ``disagreement``.
        """
        if (wrong or label is not None) and not self.labelled:
            raise BadInput(f"{self.path} has no labels; explain the data into a new folder with --label-column")
        if wrong and self.manifest.get("outputs", 0) > LABELS:
            raise BadInput(
                f"{self.path} explains a language model, and only its most likely next tokens are stored; which of its "
                "predictions are wrong is known for classifiers only"
            )
        if sort is not None and choose(sort, SORTS, "order") == "disagreement" and len(columns or self.methods) < 2:
            raise BadInput(f"disagreement compares methods, and {self.path} has only one; explain the data by several")
        chosen = self._chosen(columns)
        texts = (ExplainedText.of(record, chosen, self._model) for record in self._records(chosen, ids, label))
        if wrong:
            texts = self._wrong(texts)
        return islice(texts, first) if sort is None else iter(_sorted(texts, sort, first))

    def by_id(self) -> dict[str, list[Explanation]]:
        """The explanations of each text by its id, all in memory; raises BadInput if two texts share an id."""
        rows: dict[str, list[Explanation]] = {}
        for name, row in self.rows():
            if name in rows:
                raise BadInput(
                    f"{self.path} has several texts with the id {name!r}; explain the data again without an id column, "
                    "or with unique ids"
                )
            rows[name] = row
        return rows

    @property
    def _model(self) -> str:
        return self.manifest["model"]["name"]

    def _chosen(self, columns: Sequence[str]) -> dict[str, str]:
        return {c: self.methods[choose(c, self.methods, "column of scores")] for c in columns or self.methods}

    def _wrong(self, texts: Iterator[ExplainedText]) -> Iterator[ExplainedText]:
        unknown: dict[str | None, int] = {}
        for text in texts:
            if text.wrong is None:
                unknown[text.label] = unknown.get(text.label, 0) + 1
            elif text.wrong:
                yield text
        if unknown:
            names = ", ".join(map(repr, list(unknown)[:3]))
            warnings.warn(
                f"{sum(unknown.values())} texts have labels that are not among the model's ({names}); left out",
                UnknownLabel,
                stacklevel=4,
            )

    def records(self, *columns: str) -> Iterator[dict[str, Any]]:
        """Iterate over the rows of the parts as dictionaries, without the scores of other methods."""
        return self._records(self._chosen(columns))

    def _records(
        self, columns: Collection[str], ids: Collection[str] | None = None, label: str | None = None
    ) -> Iterator[dict[str, Any]]:
        for file in self._files():
            parquet = pq.ParquetFile(file)
            names = [n for n in parquet.schema_arrow.names if n in columns or n not in self.methods]
            if missing := [column for column in columns if column not in names]:
                raise BadInput(
                    f"{self.path} is damaged: manifest.json lists the method {missing[0]}, but {file.name} has no such "
                    "column. Restore the folder from a copy, or explain the data again."
                )
            try:
                for batch in parquet.iter_batches(batch_size=256, columns=names):
                    for name, wanted in (("id", ids), ("label", None if label is None else [label])):
                        if wanted is not None:
                            batch = batch.filter(pa.array([c in wanted for c in batch[name].to_pylist()], pa.bool_()))
                    yield from batch.to_pylist()
            except (pa.ArrowException, OSError) as error:
                raise BadInput(f"{self.path} is damaged: {file.name} cannot be read: {error}") from error

    def _files(self) -> list[Path]:
        """The checked parts. The manifest is read again, since the run may have been finished or resumed."""
        return Parts(self.path).checked(read_manifest(self.path))

    @property
    def dataset(self) -> ds.Dataset:
        """The parts as one Arrow data set, to filter before reading."""
        return ds.dataset(list(map(str, self._files())), format="parquet")

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The parts as one Arrow table in memory: ``run.table().to_pandas()``."""
        return self.dataset.to_table(columns=None if columns is None else list(columns))

    def to_frame(self) -> "pandas.DataFrame":
        """A pandas DataFrame in long form: one row per text, method and word."""
        rows = [row for text in self.texts() for row in long_form(text)]
        return pa.Table.from_pylist(rows, long_schema(self.kept)).to_pandas()

    def summary(self, *columns: str, least: int | None = None) -> "Summary":
        """The most salient words of each label over all texts, with counts and intervals.

        ``columns`` selects methods; ``least`` is the number of texts that a word must occur in.
        """
        from salience.runs.summary import LEAST, summarise

        return summarise(self, columns, least=LEAST if least is None else least)

    def rejected(self) -> list[Rejected]:
        """The rejected rows, with reasons."""
        return [r for about in Parts(self.path).abouts() for r in about.rejected]

    def export(
        self, path: str | Path, format: str | None = None, *, column: str | None = None, share: float = 0.2
    ) -> Path:
        """Write the explanations to one file, in the format ``jsonl``, ``csv``, ``parquet`` or ``eraser``.

        By default, the ending of the file decides. ``jsonl`` has one object per text and method, as printed by
        ``--json``; ``csv`` and ``parquet`` have one row per text, method and word. ``eraser`` has rationales for the
        ERASER benchmark: the highest-scoring ``share`` of the whitespace-separated words. An ERASER file holds one
        method; select it with ``column`` if the run has several.
        """
        chosen = format_of(Path(path), format)
        columns = () if column is None else (column,)
        if chosen == "eraser" and len(columns or self.methods) > 1:
            raise BadInput(
                f"an ERASER file holds one method; choose a column (--method) from {', '.join(self.methods)}"
            )
        self.warn_unless_finished()
        with complete(Path(path)) as file:
            write(file, self.texts(*columns), chosen, self.kept, share)
        return Path(path)

    def _repr_html_(self) -> str:
        from salience.views.html import fragment

        shown = [e for text in self.texts(first=PREVIEW) for e in text.explanations.values()]
        return f"<p><code>{escape(repr(self))}</code></p>{fragment(shown)}"


def _sorted(texts: Iterator[ExplainedText], sort: str, first: int | None) -> list[ExplainedText]:
    """Sorted texts, those without a value last; with ``first``, only so many are held in memory."""
    value = SORTS[sort]

    def key(text: ExplainedText) -> float:
        return inf if isnan(worth := value(text)) else worth

    return sorted(texts, key=key) if first is None else heapq.nsmallest(first, texts, key=key)
