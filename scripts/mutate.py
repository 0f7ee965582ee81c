"""Change the code in one place at a time, and see whether the tests notice. Called by scripts/mutate.

cosmic-ray finds the places and makes the changes. A change is tested in a copy of the repository by a forked process,
which has all libraries imported already: starting them anew would take most of the time.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

TESTS = {
    "core/stats.py": ["tests/core/test_stats.py"],
    "core/ranking.py": ["tests/core/test_ranking.py"],
    "evaluation/table.py": ["tests/evaluation/test_advice.py"],
    "evaluation/advice.py": ["tests/evaluation/test_advice.py"],
    "metrics/robustness.py": ["tests/metrics/test_robustness.py"],
    "metrics": ["tests/metrics", "-k", "not other_texts"],
    "methods/attention.py": ["tests/methods/test_attention.py"],
    "methods/control.py": ["tests/methods/test_control.py"],
    "methods/decoding.py": ["tests/methods/test_layers.py"],
    "methods/games.py": ["tests/methods/test_shapley.py"],
    "methods/gradient.py": ["tests/methods/test_gradient.py"],
    "methods/layers.py": ["tests/methods/test_layers.py"],
    "methods/path.py": ["tests/methods/test_path.py"],
    "methods/perturbation.py": ["tests/methods/test_perturbation.py"],
    "methods/propagation.py": ["tests/methods/test_propagation.py"],
    "methods/quadrature.py": ["tests/methods/test_path.py"],
    "methods/recurrent.py": ["tests/methods/test_propagation.py"],
    "methods/rules.py": ["tests/methods/test_propagation.py"],
    "methods/shapley.py": ["tests/methods/test_shapley.py", "tests/methods/test_perturbation.py"],
    "methods/trees.py": ["tests/methods/test_shapley.py"],
    "training/objectives.py": ["tests/training/test_terms.py", "tests/training/test_objectives.py"],
}
"""What pytest is given for each file or folder in src/salience. The tests are run in this order, up to the first that
fails. A file's own tests must notice its changes: all tests together would take minutes for each survivor."""

IGNORED = ("BitOr", "Is_", "IsNot")
"""Operators that are mostly part of types, whose change says nothing, or that the type checker watches."""

IMPORTED = "imported.txt"
"""Where a process that tests lists the modules that it has imported, and their files."""

LEAST = 0.9
"""The share of changes that must be noticed."""


@dataclass(frozen=True)
class Change:
    file: Path
    operator: str
    occurrence: int
    line: int

    def made(self) -> str | None:
        return mutate_code(self.file.read_text("utf-8"), get_operator(self.operator)(), self.occurrence)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--sample", type=int, default=100, help="changes per file; 0 for all of them")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    options = parser.parse_args()
    root = Path.cwd()
    ended = list[bool]()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("src", "tests", "pyproject.toml"):
            (shutil.copytree if (root / name).is_dir() else shutil.copy)(root / name, copy / name)
        for file in options.files or [f for name in TESTS for f in files_of(root / "src/salience" / name)]:
            ended += examined(copy, file.resolve().relative_to(root), options.sample, options.seed)
    share = sum(ended) / max(1, len(ended))
    print(f"{sum(ended)} of {len(ended)} changes were noticed ({share:.0%})")
    sys.exit(share < LEAST)


def preload(copy: Path) -> None:
    """Import the libraries that the tests have imported, and nothing of the package itself."""
    libraries = sysconfig.get_path("purelib"), *Path(sysconfig.get_path("purelib"), "salience.pth").read_text().split()
    for line in (copy / IMPORTED).read_text().splitlines():
        name, _, file = line.partition(" ")
        if file.startswith(libraries) and not name.startswith(
            ("pytest", "_pytest", "xdist", "hypothesis", "jaxtyping")
        ):
            with suppress(Exception):
                import_module(name)


def files_of(path: Path) -> list[Path]:
    return sorted(f for f in path.rglob("*.py") if f.name != "__init__.py") if path.is_dir() else [path]


def examined(copy: Path, file: Path, sample: int, seed: int) -> list[bool]:
    """Whether each change of a file is noticed. Those that are not are printed."""
    tests, changes = tests_of(file), list(changes_of(file))
    chosen = random.Random(seed).sample(changes, min(sample or len(changes), len(changes)))
    start = time.monotonic()
    if noticed(copy, tests, 3600):
        sys.exit(f"{file}: the tests fail without any change; run {' '.join(tests)}")
    limit = 30 + 5 * (time.monotonic() - start)
    preload(copy)
    print(f"{file}: {len(chosen)} of {len(changes)} changes", flush=True)
    results = list[bool]()
    for change in sorted(chosen, key=lambda c: (c.line, c.operator, c.occurrence)):
        before, after = file.read_text("utf-8"), change.made()
        if after is None or after == before:
            continue
        (copy / file).write_text(after, "utf-8")
        results.append(noticed(copy, tests, limit))
        (copy / file).write_text(before, "utf-8")
        if not results[-1]:
            print(survivor(change, before, after), flush=True)
    print(f"{file}: {sum(results)} of {len(results)} noticed", flush=True)
    return results


def tests_of(file: Path) -> list[str]:
    for name, tests in TESTS.items():
        if file.is_relative_to(Path("src/salience") / name):
            return tests
    raise SystemExit(f"{file} has no tests in scripts/mutate.py; it knows those of {', '.join(TESTS)}")


def changes_of(file: Path) -> Iterator[Change]:
    tree = get_ast_from_path(file)
    for name in operator_names():
        if any(part in name for part in IGNORED) or get_operator(name).arguments():
            continue
        operator = get_operator(name)()
        places = (start for node in ast_nodes(tree) for start, _ in operator.mutation_positions(node))
        for occurrence, (line, _) in enumerate(places):
            yield Change(file, name, occurrence, line)


def survivor(change: Change, before: str, after: str) -> str:
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    old, new = next(((a.strip(), b.strip()) for a, b in pairs if a != b), ("", ""))
    return f"  survived, line {change.line}: {old}\n      {change.operator.split('/')[-1]}: {new}"


def noticed(copy: Path, tests: Sequence[str], limit: float) -> bool:
    """Whether a test fails, or takes too long, in a forked process."""
    child = os.fork()
    if not child:
        os.setpgrp()
        _run(copy, tests)
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status != 0
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def _run(copy: Path, tests: Sequence[str]) -> None:
    """In the child: run the tests on the copy, and exit with what pytest returns."""
    import pytest

    code = 1
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        os.chdir(copy)
        sys.path.insert(0, str(copy / "src"))
        sys.dont_write_bytecode = True
        imported_before = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *imported_before, *tests]))
        modules = [f"{name} {getattr(module, '__file__', '')}" for name, module in sys.modules.items()]
        (copy / IMPORTED).write_text("\n".join(modules))
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
