"""The runs and reports below the folders that were named at the start; nothing outside them can be reached."""

import os
from collections.abc import Iterator, Sequence
from html import unescape
from pathlib import Path
from threading import Lock

from salience.errors import BadInput
from salience.generation.runs import AnswerRun, open_answers
from salience.runs.browsing import Browser, Page, Query
from salience.runs.faithfulness import Faithfulness, find_evaluation
from salience.runs.folder import ANSWERS, EXPLANATIONS, Parts, read_manifest
from salience.server.problems import Refused
from salience.server.schemas import Report, RunFolder

DEEP, MANY = 4, 2000
"""How deep folders are looked through, and how many of them."""

OPENED = 16
"""The runs that are kept open."""


class Folders:
    """Named folders, each known by its own name, and what lies below them."""

    def __init__(self, folders: Sequence[str | Path]) -> None:
        given = [Path(folder).resolve() for folder in folders]
        if missing := [folder for folder in given if not folder.is_dir()]:
            raise BadInput(f"{missing[0]} is not a folder; name folders with runs or reports")
        self.roots = {folder.name: folder for folder in given}
        if len(self.roots) < len(given):
            raise BadInput("two folders have the same name; name the folder that holds both")
        self._browsers: dict[Path, Browser] = {}
        self._lock = Lock()

    def place(self, name: str) -> Path:
        """The path of a name such as ``out/run``; refused if it leads out of its folder, by dots or by a link."""
        first, *rest = name.split("/")
        if first not in self.roots or "\0" in name or any(part in ("", ".", "..") for part in rest):
            raise Refused(404, f"there is no {name!r} below the folders of this server")
        root = self.roots[first]
        path = root.joinpath(*rest)
        if not path.exists() or not path.resolve().is_relative_to(root):
            raise Refused(404, f"there is no {name!r} below the folders of this server")
        return path

    def _walk(self) -> Iterator[tuple[str, Path, list[str]]]:
        """The folders below the roots, each with its name and its files; links to folders are not followed."""
        seen = 0
        for name, root in self.roots.items():
            for at, below, names in os.walk(root):
                path, seen = Path(at), seen + 1
                parts = path.relative_to(root).parts
                below[:] = sorted(b for b in below if not b.startswith(".")) if len(parts) < DEEP else []
                if seen > MANY:
                    return
                yield "/".join((name, *parts)), path, sorted(names)

    def runs(self) -> list[RunFolder]:
        """The run folders, of explanations and of answers."""
        return [run for name, path, names in self._walk() if "manifest.json" in names and (run := _run(name, path))]

    def reports(self) -> list[Report]:
        """The saved pages."""
        return [
            Report(name=f"{folder}/{name}", title=_title(path / name))
            for folder, path, names in self._walk()
            for name in names
            if name.endswith(".html") and (path / name).resolve().is_relative_to(self.roots[folder.split("/")[0]])
        ]

    def report(self, name: str) -> bytes:
        """The content of a saved page."""
        path = self.place(name)
        if path.suffix != ".html" or not path.is_file():
            raise Refused(404, f"{name!r} is not a saved page")
        return path.read_bytes()

    def browser(self, name: str) -> Browser:
        """A run of explanations, which is kept open."""
        path = self.place(name)
        with self._lock:
            if path not in self._browsers:
                opened = Browser(path)
                while len(self._browsers) >= OPENED:
                    self._browsers.pop(next(iter(self._browsers)))
                self._browsers[path] = opened
            return self._browsers[path]

    def evaluation(self, name: str) -> Faithfulness | None:
        """The evaluation of a run, from a folder in it or beside it."""
        path, root = self.place(name), self.roots[name.split("/")[0]]
        near = [path, *([path.parent] if path != root else [])]
        folders = [one for place in near for one in sorted(place.iterdir()) if one.is_dir() and not one.is_symlink()]
        return find_evaluation(self.browser(name).run, folders)

    def page(self, name: str, query: Query) -> Page:
        """A page of the texts of a run."""
        return self.browser(name).page(query, self.evaluation(name) if query.faithful else None)

    def answers(self, name: str) -> AnswerRun:
        """A run of explained answers."""
        return open_answers(self.place(name))


def _run(name: str, path: Path) -> RunFolder | None:
    """What a run folder holds; None for a folder of something else."""
    try:
        manifest = read_manifest(path)
    except BadInput:
        return None
    holds = manifest.get("holds", EXPLANATIONS)
    if holds not in (EXPLANATIONS, ANSWERS):
        return None
    return RunFolder(
        name=name,
        holds=holds,
        model=manifest["model"]["name"],
        texts=Parts(path).texts(),
        methods=list(manifest["methods"]),
        finished=manifest.get("finished") is not None,
    )


HEAD = 4096


def _title(path: Path) -> str:
    """The title of a page, or the name of its file."""
    with path.open("rb") as file:
        head = file.read(HEAD).decode("utf-8", "replace")
    _, tag, rest = head.partition("<title>")
    return unescape(rest.partition("</title>")[0])[:200] if tag else path.name
