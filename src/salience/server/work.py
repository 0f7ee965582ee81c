"""Work in threads: bounded for each model, ended when it takes too long or when nobody waits for it any more."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import Any, TypeVar

from starlette.requests import Request

from salience.core.executor import watching
from salience.server.limits import Limits
from salience.server.problems import Refused

Result = TypeVar("Result")

POLL = 0.25
"""Seconds between two looks at whether the client is still there."""


class Cancelled(Exception):
    """Work that was ended before it was done."""


class Line:
    """The threads of one model, and how many requests wait for them."""

    def __init__(self, name: str, limits: Limits) -> None:
        self.name, self.limits, self.present = name, limits, 0
        self._threads: ThreadPoolExecutor | None = None

    @property
    def threads(self) -> ThreadPoolExecutor:
        """The threads, started when they are first needed: an application may be stopped and started again."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.limits.workers, f"salience {self.name}")
        return self._threads

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._threads = None

    def enter(self) -> None:
        if self.present >= self.limits.workers + self.limits.waiting:
            raise Refused(503, f"{self.present} requests wait for {self.name} already; try again in a moment")
        self.present += 1

    def leave(self, _: object = None) -> None:
        self.present -= 1


@dataclass(frozen=True, slots=True)
class Work:
    """Runs functions in the threads of models."""

    lines: Mapping[str, Line]
    limits: Limits

    @classmethod
    def of(cls, names: list[str], limits: Limits) -> "Work":
        return cls({name: Line(name, limits) for name in names}, limits)

    async def run(self, request: Request, name: str, work: Callable[[], Result]) -> Result:
        """Run a function in a thread of a model, and end it if the client goes away or it takes too long."""
        line, stop, begin = self.lines[name], Event(), monotonic()
        line.enter()
        future = asyncio.get_running_loop().run_in_executor(line.threads, stoppable(work, stop))
        future.add_done_callback(line.leave)
        try:
            while not (await asyncio.wait({future}, timeout=POLL))[0]:
                if monotonic() - begin > self.limits.seconds:
                    raise Refused(504, f"it took longer than {self.limits.seconds:g} s; run it in the background")
                if await request.is_disconnected():
                    raise Refused(499, "the client went away")
        finally:
            stop.set()
            future.add_done_callback(_read)
        return future.result()

    def close(self) -> None:
        for line in self.lines.values():
            line.close()


def _read(future: "asyncio.Future[Any]") -> None:
    """Read the error of abandoned work, which asyncio would report otherwise."""
    if not future.cancelled():
        future.exception()


def stoppable(work: Callable[[], Result], stop: Event) -> Callable[[], Result]:
    """The same work; it ends before its next pass once ``stop`` is set."""

    def watch(_done: int, _total: int) -> None:
        if stop.is_set():
            raise Cancelled

    def run() -> Result:
        with watching(watch):
            watch(0, 0)
            return work()

    return run
