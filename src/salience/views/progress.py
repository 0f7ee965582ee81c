"""A long run made visible: a bar for people, lines for a log, JSON for programs."""

import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Protocol

LOG_EVERY = 30.0
JSON_EVERY = 1.0


class Progress(Protocol):
    """What a run tells of itself."""

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

    columns = (BarColumn(bar_width=12), TextColumn("{task.fields[said]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=None, said="loading the model")

        def report(p: Progress) -> None:
            said = f"{p.texts:,} of {p.of:,} · {_rates(p)}"
            shown.update(task, completed=p.texts + p.rejected, total=p.of, said=said)

        yield report


@contextmanager
def lines(every: float = LOG_EVERY) -> Generator[Report]:
    """A line on standard error now and then."""
    yield _sometimes(every, lambda p: print(f"explained {p.texts:,} of {p.of:,} · {_rates(p)}", file=sys.stderr))


@contextmanager
def events(every: float = JSON_EVERY) -> Generator[Report]:
    """A JSON object on standard output now and then."""

    def say(p: Progress) -> None:
        print(json.dumps({"event": "progress", **p.to_dict()}), flush=True)

    yield _sometimes(every, say)


@contextmanager
def silence() -> Generator[Report]:
    yield lambda _: None


class Stages(Protocol):
    """Work of several kinds, one after the other."""

    def stage(self, what: str) -> None: ...
    def step(self, step: Any) -> None: ...
    def explained(self, progress: Progress) -> None: ...
    def say(self, line: str) -> None: ...


@contextmanager
def stages(person: bool) -> Generator[Stages]:
    """What is going on, on standard error: a bar under lines for a person, lines alone for a log."""
    if not person:
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(bar_width=12), TextColumn("{task.fields[said]}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as shown:
        yield _Bars(shown)


@contextmanager
def quietly() -> Generator[Stages]:
    """Nothing at all."""
    yield _Nothing()


class _Nothing:
    def stage(self, what: str) -> None: ...
    def step(self, step: Any) -> None: ...
    def explained(self, progress: Progress) -> None: ...
    def say(self, line: str) -> None: ...


class _Lines(_Nothing):
    def stage(self, what: str) -> None:
        print(what, file=sys.stderr)

    def say(self, line: str) -> None:
        print(line, file=sys.stderr)


class _Bars:
    def __init__(self, shown: Any) -> None:
        self._shown, self._what = shown, ""
        self._task = shown.add_task("", total=None, said="loading")

    def stage(self, what: str) -> None:
        self._what = what
        self._shown.reset(self._task, total=None, said=what)

    def step(self, step: Any) -> None:
        penalty = f" · λ {step.weight:.3g}" if step.weight else ""
        said = f"{self._what} · epoch {step.epoch} · loss {step.loss:.3f}{penalty}"
        self._shown.update(self._task, completed=step.step, total=step.of, said=said)

    def explained(self, progress: Progress) -> None:
        said = f"{self._what} · {_rates(progress)}"
        self._shown.update(self._task, completed=progress.texts, total=progress.of, said=said)

    def say(self, line: str) -> None:
        self._shown.console.print(line, highlight=False)


@contextmanager
def counted(what: str, *, quiet: bool) -> Generator[Callable[[int, int], None] | None]:
    """Work that is told by (done, of how many): a bar for a person, a line now and then for a log."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield _counted_lines(what)
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def _counted_lines(what: str) -> Callable[[int, int], None]:
    last = monotonic()

    def report(done: int, of: int) -> None:
        nonlocal last
        if monotonic() - last >= LOG_EVERY:
            last = monotonic()
            print(f"{what}: {done / of:.0%}", file=sys.stderr)

    return report


def _sometimes(every: float, say: Report) -> Report:
    last = monotonic()

    def report(p: Progress) -> None:
        nonlocal last
        if monotonic() - last >= every:
            last = monotonic()
            say(p)

    return report


def _rates(p: Progress) -> str:
    left = "" if p.remaining is None else f" · {duration(p.remaining)} left"
    bad = f" · {p.rejected:,} rejected" if p.rejected else ""
    rates = f"{p.texts_per_second:,.1f} texts/s · {p.tokens_per_second:,.0f} tokens/s"
    return f"{rates}{left} · {p.memory / 1e9:.1f} GB{bad}"


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(4), duration(200), duration(9000)
    ('4 s', '3 min 20 s', '2 h 30 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
