"""Change the code in one place at a time, and see whether the tests notice. Called by scripts/mutate.

cosmic-ray finds the places, makes the changes and keeps the record. The tests are collected once. For each change, a
process is forked that replaces the code, the defaults and the constants of the loaded module by the changed ones, and
runs the tests that noticed other changes first, then the quickest, up to the first that fails. Nothing is imported
again, which would take most of the time. Changes of decorators and class bodies cannot be made in this way, and are
left out.
"""

import argparse
import gc
import hashlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FunctionType, ModuleType
from typing import Any
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
    "generation/citing.py": ["tests/generation/test_scoring.py"],
    "generation/dependence.py": ["tests/generation/test_scoring.py"],
    "generation/matrices.py": ["tests/generation/test_answers.py"],
    "generation/scoring.py": ["tests/generation/test_scoring.py"],
    "metrics": ["tests/metrics"],
    "methods/attention.py": ["tests/methods/test_attention.py"],
    "methods/control.py": ["tests/methods/test_control.py"],
    "methods/decoding.py": ["tests/methods/test_layers.py"],
    "methods/games.py": ["tests/methods/test_shapley.py"],
    "methods/gradient.py": ["tests/methods/test_gradient.py"],
    "methods/layers.py": ["tests/methods/test_layers.py"],
    "methods/path.py": ["tests/methods/test_path.py", "tests/methods/test_sinks.py"],
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
"""The tests of each file or folder in src/salience. A file's own tests must notice its changes: all tests together
would take minutes for each survivor."""

IGNORED = ("BitOr", "Is_", "IsNot", "RemoveDecorator")
"""Operators that are mostly part of types, whose change says nothing, or that the type checker watches."""

RECORD = Path("out/mutate.sqlite")
"""The record: what became of each change. `cr-report` reads it too."""

SECONDS = Path("out/mutate.json")
"""How long each test took the last time, on the processor."""

TIMED = 3
LEAST = 0.9
"""The share of changes that must be noticed."""


@dataclass(frozen=True)
class Order:
    """Which tests are run: first those that noticed a change before, then the quickest, up to some seconds.

    To time them, they are run without a change, those of unknown length last and in random order, until ``TIMED`` times
    these seconds have passed.
    """

    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    most: float = inf
    noticed: Collection[str] = ()
    timing: bool = False

    def __call__(self, tests: Sequence[pytest.Item]) -> list[pytest.Item]:
        known = [test for test in tests if test.nodeid in self.seconds]
        ordered = sorted(known, key=lambda test: (test.nodeid not in self.noticed, self.seconds[test.nodeid]))
        if self.timing:
            unknown = [test for test in tests if test.nodeid not in self.seconds]
            return [*ordered, *random.Random(0).sample(unknown, len(unknown))]
        total = accumulate(self.seconds[test.nodeid] for test in ordered)
        return [test for test, until in zip(ordered, total, strict=True) if until <= self.most]


@dataclass(frozen=True)
class Report:
    """What a run of the tests has seen."""

    failed: str = ""
    """The test that failed, or what else went wrong; empty if all is well."""

    seconds: Mapping[str, float] = field(default_factory=dict[str, float])


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
    files = list(dict.fromkeys(file.resolve().relative_to(root) for file in files))
    RECORD.parent.mkdir(exist_ok=True)
    if options.fresh:
        RECORD.unlink(missing_ok=True)
    sys.path.insert(0, str(root / "src"))
    watch = Watch(lambda items, run: [examined(file, items, run, options) for file in files])
    paths = sorted({test for file in files for test in tests_of(file)})
    quiet = ["-s", "-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=", "-m", "not slow"]
    pytest.main([*quiet, "--import-mode=importlib", *paths], plugins=[watch])
    ended = [noticed for own in watch.results for noticed in own]
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


Run = Callable[[Sequence[pytest.Item], Order, float, Callable[[], None]], Report]
"""Runs tests in a forked process, for at most some seconds, after calling a function there."""


def examined(file: Path, items: Sequence[pytest.Item], run: Run, options: Any) -> list[bool]:
    """Whether each change of a file is noticed. Those that are not are printed."""
    loaded, changes = Loaded.of(file), list(changes_of(file))
    chosen = chosen_of(changes, loaded, options.sample or len(changes), random.Random(options.seed))
    tests = [item for item in items if item.nodeid.startswith(tuple(tests_of(file)))]
    with use_db(RECORD) as record:
        known = dict(record.results)
        listed = {item.job_id for item in record.work_items}
        record.add_work_items(item for item in chosen if item.job_id not in listed)
        waiting = [i for i in chosen if i.job_id not in known or not known[i.job_id].is_killed]
        print(f"{file}: {len(chosen)} of {len(changes)} changes, {len(waiting)} to try", flush=True)
        for item, result in tried(loaded, tests, waiting, run, options.seconds):
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


def chosen_of(changes: Sequence[WorkItem], loaded: "Loaded", sample: int, rng: random.Random) -> list[WorkItem]:
    """A random sample: one change at each place before a second at any, and none that cannot be made.

    Otherwise half of the sample would be one arithmetic operator for another, which there are many of.
    """
    before, shuffled = Counter[tuple[int, int]](), list[tuple[int, WorkItem]]()
    for item in rng.sample(changes, len(changes)):
        place = item.mutations[0].start_pos
        shuffled.append((before[place], item))
        before[place] += 1
    turns = (item for _, item in sorted(shuffled, key=lambda pair: pair[0]))
    return list(islice((item for item in turns if loaded.can_be(changed(loaded.source, item))), sample))


def changed(source: str, item: WorkItem) -> str:
    (change,) = item.mutations
    return mutate_code(source, get_operator(change.operator_name)(), change.occurrence) or source


def tried(
    loaded: "Loaded", tests: Sequence[pytest.Item], items: Sequence[WorkItem], run: Run, most: float
) -> Iterator[tuple[WorkItem, WorkResult]]:
    """Make each change and run the tests."""
    if not items:
        return
    seconds = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
    start = time.monotonic()
    unchanged = run(tests, Order(seconds, most, timing=True), 3600, lambda: None)
    if unchanged.failed or not unchanged.seconds:
        raise SystemExit(f"Without any change, no test passes, or {unchanged.failed} fails")
    limit = 30 + 5 * (time.monotonic() - start)
    SECONDS.write_text(json.dumps({**seconds, **unchanged.seconds}))
    noticed = set[str]()
    for item in sorted(items, key=lambda i: i.mutations[0].start_pos):
        after = changed(loaded.source, item)
        report = run(tests, Order(unchanged.seconds, most, noticed), limit, lambda: loaded.become(after))  # noqa: B023
        noticed.add(report.failed)
        outcome = TestOutcome.KILLED if report.failed else TestOutcome.SURVIVED
        yield item, WorkResult(WorkerOutcome.NORMAL, report.failed, outcome, difference(item, loaded.source, after))


def difference(item: WorkItem, before: str, after: str) -> str:
    (change,) = item.mutations
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    old, new = next(((a.strip(), b.strip()) for a, b in pairs if a != b), ("", ""))
    return f"  line {change.start_pos[0]}: {old}\n      {change.operator_name.split('/')[-1]}: {new}"


# ------------------------------------------------------------------------------------------------ changes in memory


@dataclass(frozen=True)
class Loaded:
    """A module of the package, with its source and all functions that were made from it, by name."""

    module: ModuleType
    source: str
    functions: Mapping[str, Sequence[FunctionType]]

    @classmethod
    def of(cls, file: Path) -> "Loaded":
        path = str(file.resolve())
        module = next((m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == path), None)
        if module is None:
            raise SystemExit(f"the tests of {file} do not import it")
        return cls(module, file.read_text("utf-8"), functions_of(lambda f: f.__code__.co_filename == path))

    def can_be(self, source: str) -> bool:
        """Whether a change is one, compiles, and lies in a function or a constant."""
        try:
            return bool(self._codes(source) or self._defaults(source) or self._constants(source))
        except Exception:  # any test would notice that it cannot be imported
            return False

    def become(self, source: str) -> None:
        """Change a function, its defaults or a constant of the module, wherever they have been imported."""
        if changed_codes := self._codes(source):
            for name, code in changed_codes.items():
                for function in self.functions[name]:
                    function.__code__ = code
            return
        for name, (positional, named) in self._defaults(source).items():
            for function in self.functions[name]:
                function.__defaults__, function.__kwdefaults__ = positional, named
        for name, value in self._constants(source).items():
            old = vars(self.module)[name]
            for module in list(sys.modules.values()):
                if module.__name__.startswith("salience") and vars(module).get(name) is old:
                    setattr(module, name, value)

    def _codes(self, source: str) -> dict[str, CodeType]:
        """The code of functions that differs."""
        before, after = codes(self.source), codes(source)
        return {name: code for name, code in after.items() if name in self.functions and code != before[name]}

    def _defaults(self, source: str) -> dict[str, tuple[Any, Any]]:
        """The defaults of functions that differ."""
        old, new = self._executed(self.source), self._executed(source)
        before, after = (
            {
                name: (own[0].__defaults__, own[0].__kwdefaults__)
                for name, own in functions_of(lambda f: f.__globals__ is space).items()  # noqa: B023
            }
            for space in (old, new)
        )
        return {name: own for name, own in after.items() if name in self.functions and repr(own) != repr(before[name])}

    def _constants(self, source: str) -> dict[str, Any]:
        """The constants that differ."""
        old, new = self._executed(self.source), self._executed(source)
        plain = (int, float, str, tuple, frozenset, list, dict)
        return {k: v for k, v in new.items() if k in old and isinstance(v, plain) and repr(v) != repr(old[k])}

    def _executed(self, source: str) -> dict[str, Any]:
        space = dict[str, Any](__name__=self.module.__name__, __file__=self.module.__file__)
        exec(_compiled(source), space)
        return space


def codes(source: str) -> dict[str, CodeType]:
    """All code of functions by name; of several with one name, none."""
    waiting, found = [_compiled(source)], list[CodeType]()
    while waiting:
        inner = [c for c in waiting.pop().co_consts if isinstance(c, CodeType)]
        waiting += inner
        found += inner
    count = Counter(code.co_qualname for code in found)
    return {code.co_qualname: code for code in found if count[code.co_qualname] == 1}


def _compiled(source: str) -> CodeType:
    with catch_warnings(action="ignore"):
        return compile(source, "changed", "exec")


def functions_of(chosen: Callable[[FunctionType], bool]) -> dict[str, list[FunctionType]]:
    """All functions in memory that are chosen, by name."""
    found = dict[str, list[FunctionType]]()
    for one in gc.get_objects():
        if type(one) is FunctionType and chosen(one):
            found.setdefault(one.__code__.co_qualname, []).append(one)
    return found


# ------------------------------------------------------------------------------------------------------- the tests


class Watch:
    """A plugin of pytest that runs the tests in forked processes, and keeps how long each took and which one failed."""

    def __init__(self, work: Callable[[Sequence[pytest.Item], Run], list[list[bool]]]):
        self.work, self.results = work, list[list[bool]]()
        self.seconds, self.failed = dict[str, float](), ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            sys.exit("the tests cannot be collected")
        self.results = self.work(session.items, self.run)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or (report.nodeid if report.failed else "")

    def run(self, tests: Sequence[pytest.Item], order: Order, limit: float, prepare: Callable[[], None]) -> Report:
        with TemporaryDirectory() as folder:
            report, child = Path(folder, "report.json"), os.fork()
            if not child:
                os.setpgrp()
                self._in_child(order(tests), order, prepare, report)
            end = time.monotonic() + limit
            while time.monotonic() < end:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    return Report(f"status {status}") if status else Report(**json.loads(report.read_text()))
                time.sleep(0.05)
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return Report(f"more than {limit:.0f} seconds")

    def _in_child(self, tests: Sequence[pytest.Item], order: Order, prepare: Callable[[], None], file: Path) -> None:
        code = 1
        try:
            for output in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), output)
            prepare()
            for test, following in zip(tests, [*tests[1:], None], strict=True):
                start = time.process_time()
                test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
                if self.failed and not order.timing:
                    break
                if not self.failed:
                    self.seconds[test.nodeid] = time.process_time() - start
                self.failed = ""  # a test that fails without any change, such as for want of a package, is left out
                if order.timing and sum(self.seconds.values()) > TIMED * order.most:
                    break
            file.write_text(json.dumps({"failed": self.failed, "seconds": self.seconds}))
            code = 0
        finally:
            os._exit(code)


if __name__ == "__main__":
    main()
