"""The files of a run folder: Parquet parts, their index and a manifest.

Parts are written atomically and include the rows rejected on the way. The index holds the rows and the checksum of
every part. The existing files therefore show exactly what is finished and intact, even if the process that wrote them
was killed or somebody else changed them.
"""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from math import inf
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from salience.core.files import append, complete, differences, remove, remove_leftovers
from salience.data import Shard
from salience.errors import BadInput, DamagedRun
from salience.runs.parts import About, Part

FORMAT = 3
"""Version of the run folder.

Version 2 added the column of the explained label and whether scores are signed, version 3 the index of the parts, and
the labels and other columns of the data that are kept."""

READABLE = (1, 2, 3)

EXPLANATIONS = "explanations"
"""What a run holds, unless its manifest names something else."""
ANSWERS = "explained answers"
"""What a run of a language model's answers holds."""

MISSING = "is missing"
REDO = "run the command that made it again to repair it"
ANEW = "explain the data again into another folder"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the index: the rows of a part, and the checksum of its file."""

    file: str
    first: int
    rows: int
    texts: int
    size: int
    blake2b: str

    @classmethod
    def of(cls, part: Part, data: bytes) -> "Entry":
        shard = part.shard
        name = f"part-{shard.number:05d}.parquet" if part.data else f".part-{shard.number:05d}.json"
        return cls(name, shard.first, shard.rows, part.about.texts, len(data), _checksum(data))

    @property
    def number(self) -> int:
        return _number(self.file)

    def to_line(self) -> bytes:
        return f"{json.dumps(asdict(self))}\n".encode()


class Parts:
    """The parts of a run folder. A part whose rows were all rejected is saved as a hidden JSON file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place, self.listed = folder, folder / "parts", folder / "parts.jsonl"

    def files(self) -> list[Path]:
        """The Parquet files, in the order of the data."""
        return sorted(self.place.glob("part-*.parquet"))

    def _all(self) -> list[Path]:
        return sorted([*self.files(), *self.place.glob(".part-*.json")], key=lambda f: f.name.strip("."))

    def index(self) -> dict[int, Entry]:
        """The index, by number of the part; lines that cannot be read are left out, as if not written."""
        lines = self.listed.read_bytes().splitlines() if self.listed.is_file() else []
        entries = [entry for line in lines if (entry := _entry(line)) is not None]
        return {entry.number: entry for entry in sorted(entries, key=lambda e: e.number)}

    def abouts(self) -> Iterator[About]:
        """The metadata of each part."""
        return map(self._about, self._all())

    def texts(self) -> int:
        """The number of explained texts."""
        if self.listed.is_file():
            return sum(entry.texts for entry in self.index().values() if (self.place / entry.file).exists())
        return sum(about.texts for about in self.abouts())

    def intact(self, shards: Sequence[Shard], *, finished: bool = False) -> dict[Entry, About]:
        """The parts that hold exactly these shards and whose checksums are right.

        Warns about damaged ones, which have to be made again; in a finished run, also about missing ones.
        """
        index, done, faults = self.index(), dict[Entry, About](), dict[str, str]()
        for shard in shards:
            entry = index.get(shard.number)
            if entry is None:
                if (self.place / f"part-{shard.number:05d}.parquet").exists():
                    faults[f"part-{shard.number:05d}.parquet"] = "is not in parts.jsonl"
            elif (entry.first, entry.rows) != (shard.first, shard.rows):
                continue  # an earlier limit cut it short
            elif (fault := self._fault(entry)) is None:
                done[entry] = self._about(self.place / entry.file)
            elif finished or fault != MISSING:
                faults[entry.file] = fault
        if faults:
            warnings.warn(self._damaged(faults, "made again"), DamagedRun, stacklevel=3)
        return done

    def prepare(self, done: Mapping[Entry, About]) -> None:
        """Clean up the folder: keep only the finished parts, and rewrite the index and the list of rejected rows."""
        if not self.place.is_dir():
            remove(self.place)
        self.place.mkdir(exist_ok=True)
        remove_leftovers(self.folder)
        remove_leftovers(self.place)
        kept = {entry.file for entry in done}
        for file in self._all():
            if file.name not in kept:
                remove(file)
        with complete(self.listed) as file:
            file.writelines(entry.to_line() for entry in done)
        with complete(self.folder / "rejected.jsonl") as file:
            file.writelines(map(_lines, done.values()))

    def commit(self, part: Part) -> None:
        """Write a part atomically. Its checksum is listed first, so that no part is ever without one."""
        data = part.data or part.about.to_json().encode()
        entry = Entry.of(part, data)
        append(self.listed, entry.to_line())
        with complete(self.place / entry.file) as file:
            file.write(data)
        if part.about.rejected:
            append(self.folder / "rejected.jsonl", _lines(part.about))

    def checked(self, manifest: Mapping[str, Any]) -> list[Path]:
        """The Parquet files in the order of the data; raises BadInput with the name of a damaged or missing part."""
        if manifest["format"] < 3:
            faults, remedy = self._faults_by_count(manifest), ANEW
        else:
            faults, remedy = self._faults(manifest), REDO
        if faults:
            raise BadInput(self._damaged(faults, remedy))
        if manifest["format"] < 3:
            return self.files()
        present = (self.place / entry.file for entry in self.index().values() if entry.texts)
        return [file for file in present if file.exists()]

    def _faults(self, manifest: Mapping[str, Any]) -> dict[str, str]:
        """What is wrong with each part, by its checksum. An unfinished run may lack parts."""
        index, finished = self.index(), manifest.get("finished")
        faults = {entry.file: fault for entry in index.values() if (fault := self._fault(entry)) is not None}
        if finished is None:
            return {file: fault for file, fault in faults.items() if fault != MISSING}
        missing = (number for number in range(finished["parts"]) if number not in index)
        if (first := next(missing, None)) is not None:
            faults[f"part-{first:05d}.parquet"] = "is not in parts.jsonl"
        known = {entry.file for entry in index.values()}
        if not faults and (texts := sum(entry.texts for entry in index.values())) != finished["texts"]:
            faults["parts.jsonl"] = f"lists {texts} texts instead of {finished['texts']}"
        return faults | {file.name: "is not in parts.jsonl" for file in self._all() if file.name not in known}

    def _fault(self, entry: Entry) -> str | None:
        file = self.place / entry.file
        if not file.exists():
            return MISSING
        if not file.is_file():
            return "cannot be read (not a regular file)"
        try:
            if (size := file.stat().st_size) != entry.size:
                return f"has {size:,} bytes, not {entry.size:,}"
            return None if _checksum_of(file) == entry.blake2b else "has changed since it was written"
        except OSError as error:
            return f"cannot be read ({error.strerror or error})"

    def _faults_by_count(self, manifest: Mapping[str, Any]) -> dict[str, str]:
        """What is wrong with each part of an older run, which has no checksums: by the numbers of its rows."""
        faults, end, texts, seen = dict[str, str](), 0, 0, list[int]()
        for file in self._all():
            try:
                about, (first, last) = _about(file), _row_range(file, [*manifest["methods"], "settings"])
            except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
                faults[file.name] = f"cannot be read ({_short(error)})"
                continue
            if first < end:
                faults[file.name] = f"holds row {first}, which belongs to an earlier part"
            end, texts = max(end, last + 1), texts + about.texts
            seen.append(_number(file.name))
        if (finished := manifest.get("finished")) is not None and not faults:
            count = max(seen, default=-1) + 1
            faults |= {f"part-{n:05d}.parquet": MISSING for n in sorted(set(range(count)) - set(seen))}
            if not faults and texts != finished["texts"]:
                faults[f"part-{count:05d}.parquet"] = f"{MISSING}: {texts} of {finished['texts']} texts are left"
        return faults

    def _about(self, file: Path) -> About:
        try:
            return _about(file)
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            fault = f"cannot be read ({_short(error)})"
            raise BadInput(self._damaged({file.name: fault}, REDO if self.listed.is_file() else ANEW)) from error

    def _damaged(self, faults: Mapping[str, str], remedy: str) -> str:
        return f"{self.folder} is damaged: {_some(faults)}; {remedy}"


def _entry(line: bytes) -> Entry | None:
    try:
        entry = Entry(**json.loads(line))
        numbers = (entry.first, entry.rows, entry.texts, entry.size)
        valid = entry.number >= 0 and all(type(n) is int and n >= 0 for n in numbers)
        return entry if valid and type(entry.blake2b) is str else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _number(file: str) -> int:
    return int(file.strip(".").partition(".")[0].removeprefix("part-"))


def _checksum(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def _checksum_of(file: Path) -> str:
    digest = blake2b(digest_size=16)
    with file.open("rb") as stream:
        while piece := stream.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:80]


def _some(faults: Mapping[str, str], count: int = 3) -> str:
    named = "; ".join(f"{file} {fault}" for file, fault in list(faults.items())[:count])
    return f"{named}; and {len(faults) - count} more" if len(faults) > count else named


def _row_range(file: Path, needed: Iterable[str]) -> tuple[int, int]:
    """The first and the last row of a part; raises ValueError if rows or columns are missing or out of order."""
    about = _about(file)
    if file.suffix == ".json":
        return (about.rejected[0].number, about.rejected[-1].number)
    parquet = pq.ParquetFile(file)
    if absent := [name for name in needed if name not in parquet.schema_arrow.names]:
        raise ValueError(f"no column {absent[0]}")
    if parquet.metadata.num_rows != about.texts:
        raise ValueError(f"{parquet.metadata.num_rows} rows instead of {about.texts}")
    rows = parquet.read(["row"])["row"].to_pylist()
    if rows != sorted(set(rows)):
        raise ValueError("its rows are not in order")
    return rows[0], rows[-1]


def _about(file: Path) -> About:
    return About.from_json(file.read_bytes() if file.suffix == ".json" else pq.read_schema(file).metadata[b"salience"])


def _lines(about: About) -> bytes:
    return "".join(f"{json.dumps(asdict(r), ensure_ascii=False)}\n" for r in about.rejected).encode()


def read_manifest(folder: Path) -> dict[str, Any]:
    file = folder / "manifest.json"
    try:
        manifest: Any = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file} is not JSON, so the run cannot be read: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") not in READABLE:  # pyright: ignore[reportUnknownMemberType]
        raise BadInput(
            f"{folder} was written by another version of salience: expected format {' or '.join(map(str, READABLE))}"
        )
    if wrong := _broken(manifest):  # pyright: ignore[reportUnknownArgumentType]
        raise BadInput(f"{file} is damaged: {wrong}. Restore it from a copy, or explain the data again.")
    return manifest  # pyright: ignore[reportUnknownVariableType]


MANIFEST: Mapping[str, Any] = {
    "model": dict,
    "columns": dict,
    "limit": int | None,
    "starts": list,
    "finished": dict | None,
}
"""The types of the entries of a manifest that are read."""


def _broken(manifest: Mapping[str, Any]) -> str | None:
    """The first entry of a manifest that is missing or of a wrong type."""
    for name, kind in MANIFEST.items():
        if name not in manifest or not isinstance(manifest[name], kind):
            return f"it has no valid {name!r}"
    if not isinstance(manifest["columns"].get("keep", []), list):
        return "it has no valid 'columns'"
    counts = ("texts", "rejected", "truncated", *(("parts",) if manifest["format"] >= 3 else ()))
    finished = manifest["finished"]
    if finished is not None and not all(isinstance(finished.get(name), int) for name in counts):
        return "it has no valid 'finished'"
    if not all(isinstance(manifest["model"].get(name), str) for name in ("name", "digest")):
        return "it has no valid 'model'"
    methods: Any = manifest.get("methods")
    if not isinstance(methods, dict) or not all(map(_is_method, methods.values())):  # pyright: ignore
        return "it has no valid 'methods'"
    return None


def _is_method(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("method"), str)  # pyright: ignore[reportUnknownMemberType]


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    with complete(folder / "manifest.json") as file:
        file.write(json.dumps(manifest, indent=1, ensure_ascii=False).encode())


def check_same_run(folder: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """The manifest of earlier starts, if any; raises BadInput with the difference if it is of another run."""
    if not (folder / "manifest.json").exists():
        return None
    known: dict[str, Any] = {"holds": EXPLANATIONS, **read_manifest(folder)}
    if known["holds"] != identity["holds"]:
        raise BadInput(f"{folder} holds {known['holds']}, not {identity['holds']}; use another folder")
    if known["format"] != FORMAT:
        raise BadInput(
            f"{folder} was written by an earlier version of salience. It can be read, but not resumed; explain the "
            "data into another folder."
        )
    if (was := list(known["methods"])) != (now := list(identity["methods"])):
        raise BadInput(f"{folder} was started with {', '.join(was)}, not {', '.join(now)}; use another folder")
    for name, was, now in differences({k: known.get(k) for k in identity}, identity):
        if name.startswith("data.files") or name == "data.blake2b":
            raise BadInput(f"the data has changed since {folder} was started; explain it into another folder")
        if name == "model.name" and known["model"]["digest"] == identity["model"]["digest"]:
            continue  # the model has moved
        if name == "model.digest":
            raise BadInput(
                f"{identity['model']['name']} has other weights or another tokenizer than when {folder} was started; "
                "use another folder"
            )
        raise BadInput(f"{folder} was started with {name} = {was!r}, not {now!r}; use the same value or another folder")
    return known


def check_limit(folder: Path, before: Mapping[str, Any] | None, limit: int | None) -> None:
    """Raise BadInput if the limit is lower than at an earlier start: it may only grow."""
    if before is not None and (limit or inf) < (before["limit"] or inf):
        raise BadInput(f"{folder} was started with limit = {before['limit']}, and {limit} is less; use another folder")


def missing_shards(shards: Sequence[Shard], done: Iterable[Entry]) -> list[Shard]:
    """The shards that have no finished part."""
    numbers = {entry.number for entry in done}
    return [shard for shard in shards if shard.number not in numbers]
