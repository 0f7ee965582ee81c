"""A run on disk: a folder of Parquet parts with a manifest, from which a killed run goes on.

A part appears under its name only when it is complete, and holds what was rejected on its way. So the files that are
there tell what is done, whatever happened to the process that wrote them.
"""

import json
import os
import re
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from salience.data import Rejected, Shard
from salience.errors import BadInput, SalienceError, UnfinishedRun, choose
from salience.explanation import Explanation
from salience.work import About, Part, explanations

FORMAT = 1
"""Of the run folder; one that differs will get another number."""


def open_run(path: str | Path) -> "Run":
    """A run folder, finished or not.

    >>> for explanation in open_run("run"): ...                         # doctest: +SKIP
    """
    folder = Path(path)
    if not (folder / "manifest.json").is_file():
        raise BadInput(f"{folder} is not a run: it holds no manifest.json")
    return Run(folder, read_manifest(folder))


@dataclass(frozen=True)
class Run:
    """Explanations of a whole data set, read from disk as they are asked for."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def finished(self) -> bool:
        return self.manifest.get("finished") is not None

    def warn_unless_finished(self) -> None:
        """For those who take the run for the whole data set."""
        if not self.finished:
            warnings.warn(
                f"{self.path} is not finished: what follows is of the {len(self)} texts that are explained",
                UnfinishedRun,
                stacklevel=3,
            )

    @property
    def methods(self) -> dict[str, str]:
        """The method of each column of scores."""
        return {column: made["method"] for column, made in self.manifest["methods"].items()}

    def __len__(self) -> int:
        """How many texts are explained."""
        return sum(about.texts for about in Parts(self.path).abouts())

    def __iter__(self) -> Iterator[Explanation]:
        """Explanations in the order of the data; for each text, its methods in order."""
        return (explanation for _, row in self.rows() for explanation in row)

    def rows(self, *columns: str) -> Iterator[tuple[str, list[Explanation]]]:
        """The id of each text with its explanations, by all methods or those whose columns are named."""
        chosen = {c: self.methods[choose(c, self.methods, "column of scores")] for c in columns or self.methods}
        for record in self._records():
            yield record["id"], explanations(record, chosen, self.manifest["model"]["name"])

    def _records(self) -> Iterator[dict[str, Any]]:
        for file in Parts(self.path).files():
            for batch in pq.ParquetFile(file).iter_batches(batch_size=256):
                yield from batch.to_pylist()

    @property
    def dataset(self) -> ds.Dataset:
        """The parts as one Arrow data set, for queries that need not read everything."""
        return ds.dataset([str(f) for f in Parts(self.path).files()], format="parquet")

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The parts as one Arrow table in memory: ``run.table().to_pandas()``."""
        return self.dataset.to_table(columns=None if columns is None else list(columns))

    def rejected(self) -> list[Rejected]:
        """The rows that could not be used, and why."""
        return [r for about in Parts(self.path).abouts() for r in about.rejected]

    def export(self, path: str | Path, format: str = "jsonl", *, column: str | None = None, share: float = 0.2) -> Path:
        """Write one file: ``jsonl`` as the command's --json, or ``eraser``, rationales for the ERASER benchmark.

        ERASER's documents are made of words between white space; the ``share`` of them that scores highest is the
        rationale. It holds one method, which ``column`` names where a run has several.
        """
        columns = () if column is None else (column,)
        if choose(format, FORMATS, "format") == "eraser" and len(columns or self.methods) > 1:
            raise BadInput(f"an ERASER file holds one method; name the column (--method): {', '.join(self.methods)}")
        with complete(Path(path)) as file:
            for name, row in self.rows(*columns):
                for e in row:
                    line = eraser(name, e, share) if format == "eraser" else {"id": name, **e.to_dict()}
                    file.write(f"{json.dumps(line, ensure_ascii=False)}\n".encode())
        return Path(path)


FORMATS = ("jsonl", "eraser")


def eraser(name: str, e: Explanation, share: float) -> dict[str, Any]:
    """One line of ERASER's predictions: words between white space, soft scores and hard spans."""
    spans = [m.span() for m in re.finditer(r"\S+", e.text)]
    soft = [0.0] * len(spans)
    for (a, b), score, special in zip(e.offsets, e.scores, e.special, strict=True):
        if not special and a < b:
            at = next(i for i, (_, end) in enumerate(spans) if a < end or i == len(spans) - 1)
            soft[at] += score
    count = max(1, round(share * len(spans)))
    hard = sorted(sorted(range(len(spans)), key=lambda i: -soft[i])[:count])
    return {
        "annotation_id": name,
        "rationales": [
            {
                "docid": name,
                "hard_rationale_predictions": [{"start_token": a, "end_token": b} for a, b in _runs(hard)],
                "soft_rationale_predictions": soft,
            }
        ],
        "classification": max(e.probabilities, key=lambda label: e.probabilities[label]),
        "classification_scores": dict(e.probabilities),
    }


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers that follow each other as spans, the end not included.

    >>> _runs([1, 2, 5])
    [(1, 3), (5, 6)]
    """
    found: list[tuple[int, int]] = []
    for n in numbers:
        if found and found[-1][1] == n:
            found[-1] = (found[-1][0], n + 1)
        else:
            found.append((n, n + 1))
    return found


# ------------------------------------------------------------------------------------------------------ the folder


class Parts:
    """The parts of a run folder. One whose rows were all rejected is kept as a hidden JSON file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, folder / "parts"

    def files(self) -> list[Path]:
        """The Parquet files, in the order of the data."""
        return sorted(self.place.glob("part-*.parquet"))

    def _all(self) -> list[Path]:
        return sorted([*self.files(), *self.place.glob(".part-*.json")], key=lambda f: f.name.strip("."))

    def abouts(self) -> Iterator[About]:
        """What each part holds, from its own file."""
        return map(_about, self._all())

    def prepare(self, shards: Sequence[Shard]) -> dict[int, About]:
        """The parts that are done, by number.

        What a killed process left behind is cleared away, and so is a part that ended early at an earlier limit. The
        list of rejected rows is brought up to date.
        """
        self.place.mkdir(exist_ok=True)
        for leftover in self.place.glob(".*.tmp"):
            leftover.unlink()
        rows, done = {shard.number: shard.rows for shard in shards}, dict[int, About]()
        for file in self._all():
            number, about = int(file.name.strip(".").partition(".")[0].removeprefix("part-")), _about(file)
            if about.texts + len(about.rejected) == rows.get(number):
                done[number] = about
            else:
                file.unlink()
        with complete(self.folder / "rejected.jsonl") as file:
            for about in done.values():
                file.write(_lines(about))
        return done

    def commit(self, part: Part) -> None:
        """Write a part so that it is either there and complete, or not there."""
        name = f"part-{part.shard.number:05d}.parquet" if part.data else f".part-{part.shard.number:05d}.json"
        with complete(self.place / name) as file:
            file.write(part.data or part.about.to_json().encode())
        if part.about.rejected:
            with (self.folder / "rejected.jsonl").open("ab") as file:
                file.write(_lines(part.about))


def _about(file: Path) -> About:
    return About.from_json(file.read_bytes() if file.suffix == ".json" else pq.read_schema(file).metadata[b"salience"])


def _lines(about: About) -> bytes:
    return "".join(f"{json.dumps(asdict(r), ensure_ascii=False)}\n" for r in about.rejected).encode()


@contextmanager
def complete(path: Path) -> Generator[Any]:
    """A file that appears under its name only when it is complete and on the disk."""
    part = path.with_name(f".{path.name.lstrip('.')}.tmp")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync(path.parent)
    except OSError as error:
        raise SalienceError(
            f"{path} could not be written: {error.strerror or error}. What is finished is kept; free the way and give "
            "the same command again."
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Make a rename last; only some systems can open a folder to do so."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def locked(folder: Path, mark: str = "manifest.json") -> Generator[None]:
    """The folder, made if need be, for one process at a time. The file ``mark`` tells that it is of the right kind."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; give the name of a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / mark).exists() and (others := _others(folder)):
            raise BadInput(f"{folder} holds {others[0]} and no {mark}; choose a new or an empty folder")
        lock = FileLock(folder / ".lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise BadInput(f"another process is at work on {folder}; wait for it, or choose another folder") from None
    except OSError as error:
        raise BadInput(f"{folder} cannot be written to: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


def _others(folder: Path) -> list[str]:
    return sorted(f.name for f in folder.iterdir() if f.name != ".lock" and not f.name.endswith(".tmp"))


# ---------------------------------------------------------------------------------------------------- the manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "manifest.json").read_text("utf-8"))
    except ValueError as error:
        raise BadInput(f"{folder / 'manifest.json'} is not JSON, so the run cannot be read: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:  # pyright: ignore[reportUnknownMemberType]
        raise BadInput(f"{folder} is a run of another version of salience, whose format is not {FORMAT}")
    return found  # pyright: ignore[reportUnknownVariableType]


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    with complete(folder / "manifest.json") as file:
        file.write(json.dumps(manifest, indent=1, ensure_ascii=False).encode())


def agreed(folder: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """The manifest of earlier starts, if any; one that was begun differently is refused, naming the difference."""
    if not (folder / "manifest.json").exists():
        return None
    known = read_manifest(folder)
    if (was := list(known["methods"])) != (now := list(identity["methods"])):
        raise BadInput(f"{folder} was begun with {', '.join(was)}, not {', '.join(now)}; use another folder")
    for name, was, now in differences({k: known.get(k) for k in identity}, identity):
        if name.startswith("data.files") or name == "data.blake2b":
            raise BadInput(f"the data has changed since {folder} was begun; explain it into another folder")
        if name == "model.digest":
            raise BadInput(
                f"{identity['model']['name']} has other weights or another tokenizer than when {folder} was begun; "
                "explain with it into another folder"
            )
        raise BadInput(
            f"{folder} was begun with {name} = {was!r}, not {now!r}; use what it was begun with, or another folder"
        )
    return known


def differences(was: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two JSON values differ, by path.

    >>> list(differences({"a": {"nodes": 16}}, {"a": {"nodes": 20}}))
    [('a.nodes', 16, 20)]
    """
    if isinstance(was, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*was, *now]):  # pyright: ignore[reportUnknownArgumentType]
            yield from differences(was.get(key), now.get(key), f"{name}.{key}".lstrip("."))  # pyright: ignore
    elif was != now:
        yield name, was, now
