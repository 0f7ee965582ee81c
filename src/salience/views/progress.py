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
