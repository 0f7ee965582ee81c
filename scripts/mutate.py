"""Change the code in one place at a time, and see whether the tests notice. Called by scripts/mutate.

cosmic-ray finds the places, makes the changes and keeps the record. A change is tested in a copy of the repository by a
forked process, which has all libraries imported already, and those modules of the package that do not depend on the
changed one: importing them anew would take most of the time. It runs the tests that noticed other changes first, then
the quickest, up to the first that fails.
"""

import argparse
import ast
import gc
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from itertools import accumulate, islice
from math import inf
from multiprocessing import get_context
from pathlib import Path
from warnings import catch_warnings

import pytest
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkItem, WorkResult

TESTS = {
    "core/stats.py": ["tests/core/test_stats.py"],
    "core/ranking.py": ["tests/core/test_ranking.py"],
    "evaluation/table.py": ["tests/evaluation/test_advice.py"],
    "evaluation/advice.py": ["tests/evaluation/test_advice.py"],
    "generation/citing.py": ["tests/generation/test_scoring.py", "-k", "cite or surrogate"],
    "generation/dependence.py": ["tests/generation/test_scoring.py", "-k", "dependence or contrast"],
    "generation/matrices.py": ["tests/generation/test_answers.py"],
    "generation/scoring.py": ["tests/generation/test_scoring.py"],
    "metrics/agreement.py": ["tests/metrics", "-k", "scipy or overlap or itself or papers"],
    "metrics/metric.py": ["tests/metrics/test_own_metric.py", "tests/metrics/test_every_metric.py"],
    "metrics/plausibility.py": ["tests/metrics", "-k", "scikit or marked or spans or itself or papers"],
    "metrics/robustness.py": ["tests/metrics", "-k", "robustness or itself or papers"],
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
    "methods/relevance.py": ["tests/methods/test_relevance.py"],
    "methods/rules.py": ["tests/methods/test_propagation.py"],
    "methods/shapley.py": ["tests/methods/test_shapley.py", "tests/methods/test_perturbation.py"],
    "methods/trees.py": ["tests/methods/test_shapley.py"],
    "training/objectives.py": ["tests/training/test_terms.py", "tests/training/test_objectives.py"],
}
"""What pytest is given for each file or folder in src/salience. The tests are run in this order, up to the first that
fails. A file's own tests must notice its changes: all tests together would take minutes for each survivor."""

IGNORED = ("BitOr", "Is_", "IsNot")
"""Operators that are mostly part of types, whose change says nothing, or that the type checker watches."""

RECORD = Path("out/mutate.sqlite")
"""The record: what became of each change. `cr-report` reads it too."""

SECONDS = Path("out/mutate.json")
"""How long each test took the last time, on the processor."""

OUTPUT = "output.txt"
REPORT = "report.json"
"""Where a process that tests says what it has seen."""

TIMED = 3

LEAST = 0.9
"""The share of changes that must be noticed."""


@dataclass(frozen=True)
class Order:
    """Which tests are run: first those that noticed a change before, then the quickest, up to some seconds.

    To time them, all are run without a change, until ``TIMED`` times these seconds have passed.
    """

    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    most: float = inf
    noticed: Collection[str] = ()

    def __call__(self, tests: Sequence[str]) -> list[str]:
        """Of the tests that have been timed, or all in random order before any has."""
        known = [test for test in tests if test in self.seconds]
        if not known:
            return random.Random(0).sample(tests, len(tests))
        ordered = sorted(known, key=lambda test: (test not in self.noticed, self.seconds[test]))
        total = accumulate(self.seconds[test] for test in ordered)
        return [test for test, until in zip(ordered, total, strict=True) if until <= self.most]


@dataclass(frozen=True)
class Report:
    """What a run of the tests has seen."""

    failed: str = ""
    """The test that failed, or what else went wrong; empty if all is well."""

    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    modules: Sequence[tuple[str, str, bool]] = ()
    """Name and file of each imported module, and whether its types were checked."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--sample", type=int, default=100, help="changes per file; 0 for all of them")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample")
    parser.add_argument("--seconds", type=float, default=60, help="the most that the tests of one change may take")
    parser.add_argument("--fresh", action="store_true", help="also try again what was noticed the last time")
    options = parser.parse_args()
    root = Path.cwd()
    files = options.files or [f for name in TESTS for f in files_of(root / "src/salience" / name)]
    files = [file.resolve().relative_to(root) for file in files]
    RECORD.parent.mkdir(exist_ok=True)
    if options.fresh:
        RECORD.unlink(missing_ok=True)
    ended = list[bool]()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("src", "tests", "pyproject.toml"):
            (shutil.copytree if (root / name).is_dir() else shutil.copy)(root / name, copy / name)
        paths = sorted({test for file in files for test in tests_of(file) if test.startswith("tests")})
        preload(passed(copy, ["--collect-only", *paths]))
        for file in files:
            with ProcessPoolExecutor(1, get_context("fork")) as process:
                ended += process.submit(examined, copy, file, options.sample, options.seed, options.seconds).result()
    share = sum(ended) / max(1, len(ended))
    print(f"{sum(ended)} of {len(ended)} changes were noticed ({share:.0%})")
    sys.exit(share < LEAST)


def files_of(path: Path) -> list[Path]:
    return sorted(f for f in path.rglob("*.py") if f.name != "__init__.py") if path.is_dir() else [path]


def tests_of(file: Path) -> list[str]:
    for name, tests in TESTS.items():
        if file.is_relative_to(Path("src/salience") / name):
            return tests
    raise SystemExit(f"{file} has no tests in scripts/mutate.py; it knows those of {', '.join(TESTS)}")


def examined(copy: Path, file: Path, sample: int, seed: int, most: float) -> list[bool]:
    """Whether each change of a file is noticed. Those that are not are printed."""
    changes = list(changes_of(file))
    chosen = chosen_of(changes, file.read_text("utf-8"), sample or len(changes), random.Random(seed))
    with use_db(RECORD) as record:
        known = dict(record.results)
        listed = {item.job_id for item in record.work_items}
        record.add_work_items(item for item in chosen if item.job_id not in listed)
        waiting = [i for i in chosen if i.job_id not in known or not known[i.job_id].is_killed]
        print(f"{file}: {len(chosen)} of {len(changes)} changes, {len(waiting)} to try", flush=True)
        if waiting:
            for item, result in tried(copy, file, tests_of(file), waiting, most):
                record.set_result(item.job_id, result)
                if not result.is_killed:
                    print(result.diff, flush=True)
        known = dict(record.results)
    ended = [known[item.job_id].is_killed for item in chosen]
    print(f"{file}: {sum(ended)} of {len(ended)} noticed", flush=True)
    return ended


def changes_of(file: Path) -> Iterator[WorkItem]:
    tree, source = get_ast_from_path(file), file.read_text("utf-8")
    for name in operator_names():
        if any(part in name for part in IGNORED) or get_operator(name).arguments():
            continue
        operator = get_operator(name)()
        places = (place for node in ast_nodes(tree) for place in operator.mutation_positions(node))
        for occurrence, (start, end) in enumerate(places):
            key = hashlib.sha256(f"{file} {name} {occurrence}\n{source}".encode()).hexdigest()
            yield WorkItem.single(key, MutationSpec(file, name, occurrence, start, end))


def chosen_of(changes: Sequence[WorkItem], source: str, sample: int, rng: random.Random) -> list[WorkItem]:
    """A random sample: one change at each place before a second at any, and none that Python cannot compile.

    Otherwise half of the sample would be one arithmetic operator for another, which there are many of.
    """
    before, shuffled = Counter[tuple[int, int]](), list[tuple[int, WorkItem]]()
    for item in rng.sample(changes, len(changes)):
        place = item.mutations[0].start_pos
        shuffled.append((before[place], item))
        before[place] += 1
    turns = (item for _, item in sorted(shuffled, key=lambda pair: pair[0]))
    return list(
        islice((item for item in turns if (after := changed(source, item)) != source and compiles(after)), sample)
    )


def changed(source: str, item: WorkItem) -> str:
    (change,) = item.mutations
    return mutate_code(source, get_operator(change.operator_name)(), change.occurrence) or source


def compiles(source: str) -> bool:
    try:
        with catch_warnings(action="ignore"):
            compile(source, "changed", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def tried(
    copy: Path, file: Path, tests: Sequence[str], items: Sequence[WorkItem], most: float
) -> Iterator[tuple[WorkItem, WorkResult]]:
    """Make each change in the copy and run the tests."""
    before = file.read_text("utf-8")
    preload_package(copy, file, passed(copy, ["--collect-only", *tests]))
    seconds = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
    start = time.monotonic()
    unchanged = passed(copy, tests, Order(seconds, most))
    limit = 30 + 5 * (time.monotonic() - start)
    seconds |= unchanged.seconds
    SECONDS.write_text(json.dumps(seconds))
    preload(unchanged)
    gc.freeze()
    noticed = set[str]()
    for item in sorted(items, key=lambda i: i.mutations[0].start_pos):
        after = changed(before, item)
        (copy / file).write_text(after, "utf-8")
        report = run(copy, tests, limit, Order(unchanged.seconds, most, noticed))
        (copy / file).write_text(before, "utf-8")
        noticed.add(report.failed)
        outcome = TestOutcome.KILLED if report.failed else TestOutcome.SURVIVED
        yield item, WorkResult(WorkerOutcome.NORMAL, report.failed, outcome, difference(item, before, after))


def difference(item: WorkItem, before: str, after: str) -> str:
    (change,) = item.mutations
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    old, new = next(((a.strip(), b.strip()) for a, b in pairs if a != b), ("", ""))
    return f"  line {change.start_pos[0]}: {old}\n      {change.operator_name.split('/')[-1]}: {new}"


def preload(report: Report) -> None:
    """Import the libraries that the tests have imported."""
    libraries = sysconfig.get_path("purelib"), *Path(sysconfig.get_path("purelib"), "salience.pth").read_text().split()
    for name, file, _ in report.modules:
        if file.startswith(libraries):
            with suppress(Exception):
                import_module(name)


def preload_package(copy: Path, file: Path, report: Report) -> None:
    """Import the modules of the package that do not depend on a file, their types checked as in the tests."""
    from jaxtyping import install_import_hook

    sys.path.insert(0, str(copy / "src"))
    excluded = dependents(copy / "src", module_of(file.relative_to("src")))
    own = [(name, checked) for name, path, checked in report.modules if path.startswith(str(copy / "src"))]
    with install_import_hook("salience", "beartype.beartype"):
        for name in (name for name, checked in own if checked and name not in excluded):
            import_module(name)
    for name in (name for name, _ in own if name not in excluded):
        import_module(name)
    assert excluded.isdisjoint(sys.modules), "a module that would not be changed"
    for compiled in (copy / file).parent.glob(f"__pycache__/{file.stem}.*"):
        compiled.unlink()


def dependents(source: Path, changed: str) -> set[str]:
    """A module, and all that import it when they are imported, directly or not."""
    imports = {module_of(f.relative_to(source)): imports_of(f) for f in source.rglob("*.py")}
    result, size = {changed}, 0
    while size < len(result):
        size = len(result)
        result |= {name for name, used in imports.items() if (used | {name.rpartition(".")[0]}) & result}
    return result


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imports_of(path: Path) -> set[str]:
    """What a module imports when it is imported; not what functions import, nor type checkers."""
    nodes = ast.parse(path.read_text("utf-8")).body
    whole = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    parts = [(n.module, alias.name) for n in nodes if isinstance(n, ast.ImportFrom) for alias in n.names]
    return whole | {str(module) for module, _ in parts} | {f"{module}.{name}" for module, name in parts}


def passed(copy: Path, tests: Sequence[str], order: Order | None = None) -> Report:
    """What a run of the tests sees without any change."""
    report = run(copy, tests, 3600, order)
    if report.failed:
        sys.exit(f"Without any change, {report.failed} fails:\n{(copy / OUTPUT).read_text()}")
    return report


def run(copy: Path, tests: Sequence[str], limit: float, order: Order | None) -> Report:
    """What a forked process sees that runs the tests up to the first that fails."""
    (copy / REPORT).unlink(missing_ok=True)
    child = os.fork()
    if not child:
        os.setpgrp()
        _run(copy, tests, order)
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return Report(f"status {status}") if status else Report(**json.loads((copy / REPORT).read_text()))
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return Report(f"more than {limit:.0f} seconds")


class Watch:
    """A plugin of pytest: puts the tests in order, and keeps how long each took and which one failed."""

    def __init__(self, order: Order):
        self.order = order
        self.seconds = dict[str, float]()
        self.failed = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        by_name = {item.nodeid: item for item in items}
        items[:] = [by_name[name] for name in self.order(list(by_name))]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.failed = self.failed or (report.nodeid or "collection" if report.failed else "")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        start = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.process_time() - start
            if not self.order.seconds and sum(self.seconds.values()) > TIMED * self.order.most:
                item.session.shouldstop = "the other tests would take too long"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or (report.nodeid if report.failed else "")


def _run(copy: Path, tests: Sequence[str], order: Order | None) -> None:
    """In the child: run the tests on the copy, write the report and exit."""
    code, watch = 1, Watch(order or Order())
    try:
        with (copy / OUTPUT).open("w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.chdir(copy)
        sys.path.insert(0, str(copy / "src"))
        # Of a changed file, nothing compiled may stay.
        sys.dont_write_bytecode = order is not None
        quiet = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        ended = int(pytest.main([*quiet, *tests], plugins=[watch]))
        if ended not in (pytest.ExitCode.OK, pytest.ExitCode.INTERRUPTED) and not watch.failed:
            watch.failed = f"pytest returned {ended}"
        modules = [(name, getattr(m, "__file__", None) or "", checked(m)) for name, m in list(sys.modules.items())]
        report = Report(watch.failed, watch.seconds, modules)
        (copy / REPORT).write_text(json.dumps(asdict(report)))
        code = 0
    finally:
        os._exit(code)


def checked(module: object) -> bool:
    """Whether the types of a module are checked when its functions are called."""
    return "Jaxtyping" in type(getattr(module, "__loader__", None)).__name__


if __name__ == "__main__":
    main()
