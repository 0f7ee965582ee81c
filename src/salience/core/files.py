"""Atomic file writing, and folders locked for one process at a time."""

import glob
import json
import os
import re
import secrets
import shutil
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast
from zlib import crc32

from filelock import FileLock, Timeout

from salience.errors import BadInput, SalienceError


def fingerprint(*values: object) -> str:
    """A short digest of values by what ``repr`` shows of them, to tell whether a folder holds the results of these."""
    return blake2b(repr(values).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@contextmanager
def complete(path: Path) -> Generator[Any]:
    """Write a file atomically: it appears under its name only once it is complete and on disk.

    A link is followed. What exists and is not a regular file, such as a device or a pipe, is written to directly.
    """
    with _writing(path):
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
            return
        place = path.resolve() if path.is_symlink() else path
        part = _temporary(place)
        try:
            with os.fdopen(os.open(part, _NEW, 0o666), "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(place)
            _sync(place.parent)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def complete_folder(path: Path) -> Generator[Path]:
    """Write a folder atomically, in place of an older one; yields the folder to write into."""
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.with_name(f"{_stem(path)}.{crc32(path.name.encode()):08x}.before")
        _recover(path, before)
        part = _temporary(path)
        part.mkdir()
        try:
            yield part
            if path.exists():
                path.replace(before)
            part.replace(path)
            _sync(path.parent)
            shutil.rmtree(before, ignore_errors=True)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _recover(path: Path, before: Path) -> None:
    """Undo what a killed process left: the older folder set aside, and incomplete new ones."""
    if before.exists() and not path.exists():
        before.replace(path)
    shutil.rmtree(before, ignore_errors=True)
    for leftover in path.parent.glob(f"{glob.escape(_stem(path))}.{'[0-9a-f]' * 12}.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)


def write_json(path: Path, facts: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    with complete(path) as file:
        file.write(json.dumps(facts, ensure_ascii=False).encode())


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object; raises ValueError for any other content."""
    stored: Any = json.loads(path.read_text("utf-8"))
    if not isinstance(stored, dict):
        raise ValueError("it does not hold a JSON object")
    return cast(dict[str, Any], stored)


def claim(file: Path, facts: Mapping[str, Any], what: str = "a different audit") -> None:
    """Write down what a folder is about; refuse a folder that holds the results of something else."""
    if file.exists():
        compare(file, facts, what)
    else:
        write_json(file, facts)


def compare(file: Path, facts: Mapping[str, Any], what: str) -> None:
    """Refuse a folder that holds the results of something else, by what :func:`claim` wrote down, if it did."""
    if not file.exists():
        return
    try:
        before = read_object(file)
    except ValueError as error:
        raise BadInput(f"{file} is damaged: {error}. Delete the folder to start over.") from error
    if other := [name for name, _, _ in differences({key: before.get(key) for key in facts}, facts)]:
        raise BadInput(f"{file.parent} holds {what} (changed: {', '.join(other)}); choose another folder")


def differences(was: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The differences between two JSON values, by path.

    >>> list(differences({"a": {"nodes": 16}}, {"a": {"nodes": 20}}))
    [('a.nodes', 16, 20)]
    """
    if isinstance(was, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*was, *now]):  # pyright: ignore[reportUnknownArgumentType]
            yield from differences(was.get(key), now.get(key), f"{name}.{key}".lstrip("."))  # pyright: ignore
    elif was != now:
        yield name, was, now


def append(path: Path, data: bytes) -> None:
    """Append to a file, which is not atomic: a killed process may leave the last line incomplete."""
    with _writing(path), path.open("ab") as file:
        file.write(data)


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of killed processes. Only for a folder that this process has locked."""
    for leftover in folder.glob(".*.tmp"):
        remove(leftover)


def remove(path: Path) -> None:
    """Delete a file, or a folder that is in its place."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise SalienceError(f"{path} cannot be deleted: {error.strerror or error}; delete it yourself") from error


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
"""Create a file; fails if anything, such as a link to another file, is already there."""


def _temporary(path: Path) -> Path:
    """A new name beside the path, which nobody can guess and put a link under."""
    return path.with_name(f"{_stem(path)}.{secrets.token_hex(6)}.tmp")


def _stem(path: Path) -> str:
    return f".{path.name.lstrip('.')[:40]}"


@contextmanager
def _writing(path: Path) -> Generator[None]:
    """Convert errors of writing to SalienceError; libraries that write files report them in their own ways."""
    try:
        yield
    except (SalienceError, BrokenPipeError):
        raise
    except Exception as error:
        if (reason := _write_error(error, path)) is None:
            raise
        raise SalienceError(
            f"{path} could not be written: {reason}. Finished files are saved; fix the problem and run the same "
            "command again."
        ) from error


def _write_error(error: Exception, path: Path) -> str | None:
    """Why a file could not be written; None for an error of something else, such as a file that was read meanwhile."""
    if isinstance(error, OSError):
        near = error.filename is None or Path(str(error.filename)).is_relative_to(path.parent)
        return (error.strerror or str(error)) if near else None
    # safetensors, tokenizers and torch raise errors of their own, with the message of the operating system.
    match = re.search(r"([^:]+) \(os error \d+\)|(PytorchStreamWriter failed[^\n]*)", str(error))
    return None if match is None else (match[1] or match[2]).strip()


def _sync(folder: Path) -> None:
    """Make a rename durable, on systems that can open a folder for this."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def locked(folder: Path, mark: str = "manifest.json") -> Generator[None]:
    """Create the folder if needed and lock it for this process. A non-empty folder must contain the file ``mark``."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file; pass the name of a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / mark).exists() and (others := _others(folder)):
            raise BadInput(f"{folder} holds {others[0]} and no {mark}; choose a new or empty folder")
        lock = FileLock(folder / ".lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise BadInput(f"another process is using {folder}; wait for it, or choose another folder") from None
    except OSError as error:
        raise BadInput(f"{folder} cannot be written to: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


def _others(folder: Path) -> list[str]:
    return sorted(f.name for f in folder.iterdir() if not f.name.startswith(".") and not f.name.endswith(".tmp"))
