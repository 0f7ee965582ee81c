"""Progress of long runs: a bar in a terminal, lines in a log, JSON for programs."""

import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from time import monotonic
from typing import Any, Protocol

from salience.core.characters import visible
from salience.core.shares import percent

LOG_EVERY = 30.0
JSON_EVERY = 1.0


class Progress(Protocol):
    """The progress of a run."""

    @property
    def texts(self) -> int: ...
    @property
    def of(self) -> int: ...
    @property
    def rejected(self) -> int: ...
    @property
    def memory(self) -> int: ...
    @property
    def texts_per_second(self) -> float: ...
    @property
    def tokens_per_second(self) -> float: ...
    @property
    def remaining(self) -> float | None: ...
    def to_dict(self) -> dict[str, Any]: ...


Report = Callable[[Progress], None]


@contextmanager
def bar() -> Generator[Report]:
    """A bar on standard error with rates, the time left and memory."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(bar_width=12), TextColumn("{task.fields[message]}", markup=False))
    with Bar(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=None, message="loading the model")

        def report(p: Progress) -> None:
            message = f"{p.texts:,} of {p.of:,} · {_rates(p)}"
            shown.update(task, completed=p.texts + p.rejected, total=p.of, message=message)

        yield report


@contextmanager
def lines(what: str = "explained", every: float = LOG_EVERY) -> Generator[Report]:
    """A line on standard error at intervals."""
    yield _throttled(every, lambda p: print(f"{what} {p.texts:,} of {p.of:,} · {_rates(p)}", file=sys.stderr))


@contextmanager
def events(every: float = JSON_EVERY) -> Generator[Report]:
    """A JSON object on standard output at intervals."""

    def say(p: Progress) -> None:
        print(json.dumps({"event": "progress", **p.to_dict()}), flush=True)

    yield _throttled(every, say)


@contextmanager
def silence() -> Generator[Report]:
    """No progress at all."""
    yield lambda _: None


class Stages(Protocol):
    """Progress of work in several stages."""

    def stage(self, what: str) -> None: ...
    def step(self, step: Any) -> None: ...
    def explained(self, progress: Progress) -> None: ...
    def say(self, line: str) -> None: ...


@contextmanager
def stages(interactive: bool, every: float = LOG_EVERY) -> Generator[Stages]:
    """Progress on standard error: lines with a bar below them in a terminal, lines at intervals in a log."""
    if not interactive:
        yield _Lines(every)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(bar_width=12), TextColumn("{task.fields[message]}", markup=False))
    with Bar(*columns, console=Console(stderr=True), transient=True) as shown:
        yield _Bars(shown)


@contextmanager
def quietly() -> Generator[Stages]:
    """No progress at all."""
    yield _Silent()


class _Silent:
    def stage(self, what: str) -> None: ...
    def step(self, step: Any) -> None: ...
    def explained(self, progress: Progress) -> None: ...
    def say(self, line: str) -> None: ...


class _Lines(_Silent):
    def __init__(self, every: float) -> None:
        self._what, self._every, self._last = "", every, monotonic()

    def stage(self, what: str) -> None:
        self._what = what
        self.say(what)

    def step(self, step: Any) -> None:
        self._at_intervals(f"{self._what}: step {step.step:,} of {step.of:,} · loss {step.loss:.3f}")

    def explained(self, progress: Progress) -> None:
        self._at_intervals(f"{self._what}: {progress.texts:,} of {progress.of:,} · {_rates(progress)}")

    def _at_intervals(self, line: str) -> None:
        if monotonic() - self._last >= self._every:
            self._last = monotonic()
            self.say(line)

    def say(self, line: str) -> None:
        print(visible(line), file=sys.stderr)


class _Bars:
    def __init__(self, shown: Any) -> None:
        self._shown, self._what = shown, ""
        self._task = shown.add_task("", total=None, message="loading")

    def stage(self, what: str) -> None:
        self._what = visible(what)
        self._shown.reset(self._task, total=None, message=self._what)

    def step(self, step: Any) -> None:
        message = f"{self._what} · epoch {step.epoch} · loss {step.loss:.3f}"
        self._shown.update(self._task, completed=step.step, total=step.of, message=message)

    def explained(self, progress: Progress) -> None:
        message = f"{self._what} · {_rates(progress)}"
        self._shown.update(self._task, completed=progress.texts, total=progress.of, message=message)

    def say(self, line: str) -> None:
        self._shown.console.print(visible(line), highlight=False, markup=False)


@contextmanager
def counted(what: str, *, quiet: bool) -> Generator[Callable[[int, int], None] | None]:
    """Progress reported as (done, total): a bar in a terminal, a line at intervals in a log."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield _counted_lines(what)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(visible(what)), total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


@contextmanager
def named(*, quiet: bool) -> Generator[Callable[[str], Callable[[int, int], None] | None]]:
    """Progress of several pieces of work, each reported by name as (done, total): one bar, or lines in a log."""
    if quiet:
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        yield cache(_counted_lines)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def start(what: str) -> Callable[[int, int], None]:
            text = escape(visible(what))
            return lambda done, of: bar.update(task, description=text, completed=done, total=of)

        yield start


def _counted_lines(what: str) -> Callable[[int, int], None]:
    last = monotonic()

    def report(done: int, of: int) -> None:
        nonlocal last
        if monotonic() - last >= LOG_EVERY:
            last = monotonic()
            print(visible(f"{what}: {percent(done / of)}"), file=sys.stderr)

    return report


def _throttled(every: float, say: Report) -> Report:
    last = monotonic()

    def report(p: Progress) -> None:
        nonlocal last
        if monotonic() - last >= every:
            last = monotonic()
            say(p)

    return report


def _rates(p: Progress) -> str:
    """Rates, the time left and memory. There is no rate yet while the first batch is the only one finished."""
    memory = f"{p.memory / 1e9:.1f} GB" + (f" · {p.rejected:,} rejected" if p.rejected else "")
    if p.remaining is None:
        return memory
    rates = f"{p.texts_per_second:,.1f} texts/s · {p.tokens_per_second:,.0f} tokens/s"
    return f"{rates} · {duration(p.remaining)} left · {memory}"


def duration(seconds: float) -> str:
    """A duration in words.

    >>> duration(4), duration(200), duration(9000)
    ('4 s', '3 min 20 s', '2 h 30 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def size(bytes_: int) -> str:
    """A size in words.

    >>> size(21_300), size(3_800_000), size(12_340_000_000)
    ('22 KB', '3.8 MB', '12.3 GB')
    """
    if bytes_ < 1e6:
        return f"{-(-bytes_ // 1000)} KB"
    return f"{bytes_ / 1e6:.1f} MB" if bytes_ < 1e9 else f"{bytes_ / 1e9:.1f} GB"
