"""The texts of a run, page by page: searched, filtered and sorted through Parquet, never all of them in memory.

What is sorted and filtered by is a few numbers per text, read once from each part and kept. Texts are searched where
they are, and only those of the page are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from jaxtyping import Bool, Float, Int

from salience.errors import BadInput, choose
from salience.runs.faithfulness import Faithfulness
from salience.runs.run import Run, open_run
from salience.runs.texts import ExplainedText

pc: Any = pyarrow.compute  # its functions are made when it is imported

ORDERS = ("row", "confidence", "-confidence", "disagreement", "faithfulness", "length", "-length")
"""The order of the data; the least or most confident first; those on which methods disagree most; those whose
explanations are the least faithful; short or long."""

OPPOSED = 1.0
"""Methods disagree on a text from here on: their mean rank correlation is not above 0."""

BEGINNING = 240
"""The characters of a text that a page shows."""

LARGEST = 500
"""The most texts of a page."""


@dataclass(frozen=True, slots=True)
class Query:
    """Which texts of a run, in which order, and which page of them."""

    search: str = ""
    label: str | None = None
    prediction: str | None = None
    wrong: bool = False
    opposed: bool = False
    """Only texts on which the methods disagree: the mean rank correlation between them is not above 0."""
    low: bool = False
    """Only texts whose explanation by ``method`` is no more faithful than random scores."""
    method: str | None = None
    """Whose faithfulness is meant; the first that is evaluated by default."""
    sort: str = "row"
    first: int = 0
    count: int = 50

    def __post_init__(self) -> None:
        choose(self.sort, ORDERS, "order")
        if self.first < 0 or not 1 <= self.count <= LARGEST:
            raise BadInput(f"a page has 1 to {LARGEST} texts and starts at 0 or later; got {self.count}, {self.first}")

    @property
    def disagree(self) -> bool:
        """Whether texts are filtered or sorted by how far the methods disagree."""
        return self.opposed or self.sort == "disagreement"

    @property
    def faithful(self) -> bool:
        """Whether texts are filtered or sorted by how faithful their explanations are."""
        return self.low or self.sort == "faithfulness"


@dataclass(frozen=True, slots=True)
class Line:
    """One text in the table of a run."""

    row: int
    id: str
    text: str
    """Its beginning."""
    label: str | None
    prediction: str
    confidence: float
    wrong: bool | None
    disagreement: float | None
    """Known if the texts are filtered or sorted by it."""
    faithfulness: float | None
    """Known if the texts are filtered or sorted by it."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some lines, of all that match."""

    lines: tuple[Line, ...]
    total: int
    of: int


class Browser:
    """A run folder that is looked at page by page, and may grow meanwhile."""

    def __init__(self, path: str | Path) -> None:
        self.path, self._lock = Path(path), RLock()
        self._seen: object = None
        self._run = open_run(path)
        self._files: list[Path] = []
        self._facts: dict[Path, pa.Table] = {}
        self._disagreement: dict[Path, Float[np.ndarray, " n"]] = {}
        self._faithful: tuple[object, pa.Table] | None = None

    @property
    def run(self) -> Run:
        """The run as it is now. Its parts are checked again only if files have changed."""
        with self._lock:
            places = (self.path / name for name in ("manifest.json", "parts.jsonl", "parts"))
            now = [(s.st_mtime_ns, s.st_size) if (s := _stat(place)) else None for place in places]
            if now != self._seen:
                self._run = open_run(self.path)
                self._files = [Path(file) for file in self._run.dataset.files] if len(self._run) else []
                self._seen = now
            return self._run

    def page(self, query: Query, evaluation: Faithfulness | None = None) -> Page:
        """The texts of one page. How faithful they are is read from an evaluation of this run."""
        with self._lock:
            run = self.run
            _check(run, query, evaluation)
            facts = self._matching(query, evaluation)
            chosen = facts.take(self._order(facts, query)[query.first : query.first + query.count])
            return Page(tuple(self._lines(chosen)), len(facts), sum(map(len, self._facts.values())))

    def labels(self) -> list[str]:
        """The different true labels."""
        return self._distinct("label")

    def predictions(self) -> list[str]:
        """The different predictions."""
        return self._distinct("prediction")

    def text(self, row: int) -> ExplainedText:
        """The text of one row of the data, with its explanations."""
        run, facts = self.run, self._table()
        place = pc.index(facts["row"], row).as_py() if len(facts) else -1
        if place < 0:
            raise BadInput(f"{self.path} has no row {row}")
        file = self._files[facts["part"][place].as_py()]
        record = pq.read_table(file, filters=[("row", "==", row)]).to_pylist()[0]
        return ExplainedText.of(record, run.methods, run.manifest["model"]["name"])

    # ---------------------------------------------------------------------------------------------------- selection

    def _table(self) -> pa.Table:
        """The facts of all texts, each with the number of its part and its place in it."""
        with self._lock:
            self._facts = {file: self._facts.get(file) or _facts(file) for file in self._files}
            parts = [
                table.append_column("part", pa.array(np.full(len(table), n, np.int32))).append_column(
                    "at", pa.array(np.arange(len(table), dtype=np.int32))
                )
                for n, table in enumerate(self._facts.values())
            ]
            return pa.concat_tables(parts) if parts else pa.table({name: [] for name in COLUMNS})

    def _distinct(self, column: str) -> list[str]:
        return sorted(value for value in pc.unique(self._table()[column]).to_pylist() if value is not None)

    def _matching(self, query: Query, evaluation: Faithfulness | None) -> pa.Table:
        """The facts of the texts that match. What takes longer to find is found for those that match the rest."""
        facts = self._table()
        if not len(facts):
            return facts
        for column, wanted in (
            ("label", query.label),
            ("prediction", query.prediction),
            ("wrong", query.wrong or None),
        ):
            if wanted is not None:
                facts = facts.filter(pc.equal(facts[column], wanted))
        if query.search:
            facts = facts.filter(pc.is_in(facts["row"], value_set=self._rows_with(query.search)))
        if evaluation is not None and query.faithful:
            facts = self._with_faithfulness(facts, evaluation, query.method or evaluation.methods[0])
            facts = facts.filter(facts["low"]) if query.low else facts
        if query.disagree:
            facts = facts.append_column("disagreement", pa.array(self._disagreements(facts)))
            facts = facts.filter(pc.greater_equal(facts["disagreement"], OPPOSED)) if query.opposed else facts
        return facts

    def _with_faithfulness(self, facts: pa.Table, evaluation: Faithfulness, method: str) -> pa.Table:
        """The same texts, each with its value and whether it is low; null where the evaluation lacks it."""
        known = (evaluation.changed, method)
        if self._faithful is None or self._faithful[0] != known:
            self._faithful = known, evaluation.values(method)
        table = self._faithful[1]
        places = pc.index_in(facts["row"], value_set=table["row"].combine_chunks())
        value, low = (table[name].combine_chunks().take(places.combine_chunks()) for name in ("value", "low"))
        sign = -1.0 if evaluation.metric.better == "lower" else 1.0
        order = pc.multiply(value, sign)
        return facts.append_column("faithfulness", value).append_column("low", low).append_column("order", order)

    def _rows_with(self, search: str) -> pa.Array:
        """The rows whose text or id holds some characters, regardless of case."""
        fields = (pc.field("text"), pc.field("id"))
        one, other = (pc.match_substring(field, search, ignore_case=True) for field in fields)
        data = ds.dataset(list(map(str, self._files)), format="parquet")
        return data.to_table(columns=["row"], filter=one | other)["row"].combine_chunks()

    def _order(self, facts: pa.Table, query: Query) -> Int[np.ndarray, " n"]:
        if query.sort == "row" or not len(facts):
            return np.arange(len(facts))
        if query.sort == "disagreement":
            keys = -facts["disagreement"].to_numpy()
        elif query.sort == "faithfulness":
            keys = facts["order"].to_numpy()
        else:
            column = query.sort.lstrip("-")
            keys = facts[column].to_numpy() * (-1 if query.sort.startswith("-") else 1)
        return np.argsort(keys, kind="stable")  # NaN comes last

    def _disagreements(self, facts: pa.Table) -> Float[np.ndarray, " n"]:
        """One minus the mean rank correlation between the methods for each text, found once for every part."""
        parts, at = facts["part"].to_numpy(), facts["at"].to_numpy()
        values = np.full(len(facts), np.nan)
        for number in np.unique(parts):
            mine, file = parts == number, self._files[number]
            if file not in self._disagreement:
                self._disagreement[file] = disagreement(file, list(self._run.methods))
            values[mine] = self._disagreement[file][at[mine]]
        return values

    # ---------------------------------------------------------------------------------------------------- reading

    def _lines(self, chosen: pa.Table) -> list[Line]:
        records = chosen.to_pylist()
        texts: dict[tuple[int, int], dict[str, Any]] = {}
        for number in {record["part"] for record in records}:
            places = [record["at"] for record in records if record["part"] == number]
            read = pq.read_table(self._files[number], columns=["id", "text"]).take(places)
            texts |= {(number, at): one for at, one in zip(places, _beginnings(read), strict=True)}
        names = ("row", "label", "prediction", "confidence", "wrong")
        return [
            Line(
                **{name: record[name] for name in names},
                **texts[record["part"], record["at"]],
                disagreement=_known(record.get("disagreement")),
                faithfulness=_known(record.get("faithfulness")),
            )
            for record in records
        ]


COLUMNS = ("row", "label", "prediction", "confidence", "wrong", "length", "part", "at")


def _stat(path: Path) -> Any:
    return path.stat() if path.exists() else None


def _known(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else value


def _check(run: Run, query: Query, evaluation: Faithfulness | None) -> None:
    if (query.wrong or query.label is not None) and not run.labelled:
        raise BadInput(f"{run.path} has no labels; explain the data into a new folder with --label-column")
    if query.faithful and evaluation is None:
        raise BadInput(
            f"there is no evaluation of {run.path} beside it; evaluate the same data, model and methods: "
            "salience evaluate --data ... --out FOLDER"
        )
    if query.disagree and len(run.methods) < 2:
        raise BadInput(f"disagreement compares methods, and {run.path} has only one; explain the data by several")


def _beginnings(read: pa.Table) -> list[dict[str, Any]]:
    cut = pc.utf8_slice_codeunits(read["text"], 0, BEGINNING)
    return read.set_column(1, "text", cut).to_pylist()


def _facts(file: Path) -> pa.Table:
    """What the texts of a part are filtered and sorted by."""
    try:
        names = [n for n in ("row", "label", "text", "probabilities") if n in pq.read_schema(file).names]
        table = pq.read_table(file, columns=names)
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{file} cannot be read: {error}") from error
    labels = table["label"].combine_chunks() if "label" in names else pa.nulls(len(table), pa.string())
    predictions, confidence, known = _predictions(table["probabilities"].combine_chunks(), labels)
    wrong = pa.array(np.array(pc.fill_null(pc.not_equal(labels, predictions), False)), mask=~known)
    return pa.table(
        {
            "row": table["row"].combine_chunks(),
            "label": labels,
            "prediction": predictions,
            "confidence": confidence,
            "wrong": wrong,
            "length": pc.utf8_length(table["text"]).combine_chunks(),
        }
    )


def _predictions(lists: Any, labels: pa.Array) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """The most likely label of each text, its probability, and whether the true label is one of the model's."""
    parents, flat = pc.list_parent_indices(lists), pc.list_flatten(lists)
    names, p, of = flat.field("label"), flat.field("probability").to_numpy(), parents.to_numpy()
    starts = np.flatnonzero(np.diff(of, prepend=-1))
    confidence = np.maximum.reduceat(p, starts) if len(p) else p
    best = np.flatnonzero(p == confidence[of])
    first = best[np.unique(of[best], return_index=True)[1]]
    named = np.array(pc.fill_null(pc.equal(names, labels.take(parents)), False))
    known = np.logical_or.reduceat(named, starts) if len(p) else named
    return names.take(pa.array(first)), confidence, known


def disagreement(file: Path, methods: Sequence[str]) -> Float[np.ndarray, " n"]:
    """One minus the mean Spearman correlation between every two methods for each text of a part.

    The same as :attr:`ExplainedText.disagreement`, for all texts of the part at once. NaN for a text of one token.
    Magnitudes are compared where one of two methods has no sign.
    """
    names = pq.read_schema(file).names
    table = pq.read_table(file, columns=[*methods, "special", *(["signed"] if "signed" in names else [])])
    special = table["special"].combine_chunks()
    everywhere = pc.list_parent_indices(special).to_numpy()
    inside = ~np.array(pc.list_flatten(special))
    of, size = everywhere[inside], len(table)
    tokens = np.bincount(of, minlength=size)
    scores = {name: np.array(pc.list_flatten(table[name].combine_chunks())) for name in methods}
    signed = {name: _signed(table, name, own, everywhere) for name, own in scores.items()}

    @cache
    def ranks(name: str, magnitudes: bool) -> Float[np.ndarray, " t"]:
        values = scores[name][inside]
        return _centred_ranks(abs(values) if magnitudes else values, of, tokens)

    total = np.zeros(size)
    for one, other in combinations(methods, 2):
        both = signed[one] & signed[other]
        for magnitudes, chosen in ((False, both), (True, ~both)):
            if chosen.any():
                values = _correlations(ranks(one, magnitudes), ranks(other, magnitudes), of, size)
                total += np.where(chosen, values, 0.0)
    pairs = len(methods) * (len(methods) - 1) / 2
    return np.where(tokens > 1, 1 - total / max(pairs, 1), np.nan)


def _signed(
    table: pa.Table, name: str, scores: Float[np.ndarray, " t"], of: Int[np.ndarray, " t"]
) -> Bool[np.ndarray, " n"]:
    """For which texts the scores of a method have a sign; where a part does not tell, those with negative ones."""
    negative = np.bincount(of, weights=scores < 0, minlength=len(table)) > 0
    if "signed" not in table.column_names:
        return negative
    return np.array(pc.coalesce(pc.struct_field(table["signed"].combine_chunks(), name), pa.array(negative)))


def _correlations(
    a: Float[np.ndarray, " t"], b: Float[np.ndarray, " t"], of: Int[np.ndarray, " t"], size: int
) -> Float[np.ndarray, " n"]:
    """The correlation of centred ranks for each text; 0 where one side is constant."""
    product, x, y = (np.bincount(of, weights=w, minlength=size) for w in (a * b, a * a, b * b))
    scale = np.sqrt(x * y)
    return np.divide(product, scale, out=np.zeros(size), where=scale > 0)


def _centred_ranks(
    values: Float[np.ndarray, " t"], of: Int[np.ndarray, " t"], tokens: Int[np.ndarray, " n"]
) -> Float[np.ndarray, " t"]:
    """The rank of each value within its text, the mean of equal ones, minus the mean rank of the text."""
    order = np.lexsort((values, of))
    text, value = of[order], values[order]
    start = np.concatenate([[0], np.cumsum(tokens)[:-1]])
    place = np.arange(len(values)) - start[text]
    group = np.cumsum((np.diff(text, prepend=-1) != 0) | (np.diff(value, prepend=np.nan) != 0)) - 1
    mean = np.bincount(group, weights=place) / np.maximum(np.bincount(group), 1)
    ranks = np.empty(len(values))
    ranks[order] = mean[group] - (tokens[text] - 1) / 2
    return ranks
