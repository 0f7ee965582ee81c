"""Work in threads: bounded for each model, ended when it takes too long or when nobody waits for it any more."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event, Lock
from time import monotonic
from typing import Any, TypeVar

from starlette.requests import Request

from salience.core.executor import watching
from salience.server.limits import Limits
from salience.server.problems import Refused

Item = TypeVar("Item")
Result = TypeVar("Result")

POLL = 0.25
"""Seconds between two looks at whether the client is still there."""


class Cancelled(Exception):
    """Work that was ended before it was done."""


@dataclass(frozen=True, slots=True)
class _Place:
    """What one of several requests asks, that can be worked on together."""

    item: Any
    stop: Event
    result: "Future[Any]" = field(default_factory=Future[Any])


class Line:
    """The threads of one model, and how many requests wait for them."""

    def __init__(self, name: str, limits: Limits) -> None:
        self.name, self.limits, self.present = name, limits, 0
        self._threads: ThreadPoolExecutor | None = None
        self._groups: dict[Any, list[_Place]] = {}
        self._grouping = Lock()

    def join(self, key: object, place: _Place) -> None:
        """Wait with the other requests of the same kind."""
        with self._grouping:
            self._groups.setdefault(key, []).append(place)

    def take(self, key: object) -> list[_Place]:
        """Some of the requests of one kind that wait, the earliest first; none if another thread took them."""
        with self._grouping:
            waiting = self._groups.pop(key, [])
            if rest := waiting[self.limits.together :]:
                self._groups[key] = rest
            return waiting[: self.limits.together]

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
        line, stop = self.lines[name], Event()
        line.enter()
        future = asyncio.get_running_loop().run_in_executor(line.threads, stoppable(work, stop.is_set))
        future.add_done_callback(line.leave)
        return await self._followed(request, future, stop)

    async def run_together(
        self, request: Request, name: str, key: object, item: Item, work: Callable[[list[Item]], list[Result]]
    ) -> Result:
        """The same for a function of several items: requests of the same ``key`` that wait are worked on at once."""
        line, place = self.lines[name], _Place(item, Event())
        line.enter()
        line.join(key, place)
        line.threads.submit(_work_on, line, key, work)
        future = asyncio.wrap_future(place.result)
        future.add_done_callback(line.leave)
        return await self._followed(request, future, place.stop)

    async def _followed(self, request: Request, future: "asyncio.Future[Result]", stop: Event) -> Result:
        begin = monotonic()
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


def _work_on(line: Line, key: object, work: Callable[[list[Any]], list[Any]]) -> None:
    """Work on the requests of one kind that wait. If that fails, each is worked on alone, and has its own error."""
    places = [place for place in line.take(key) if place.result.set_running_or_notify_cancel()]
    if not places:
        return
    try:
        results = stoppable(lambda: work([place.item for place in places]), lambda: _all_gone(places))()
    except Exception as error:
        for place in places:
            _alone(place, work, error if len(places) == 1 else None)
        return
    for place, result in zip(places, results, strict=True):
        place.result.set_result(result)


def _all_gone(places: Sequence[_Place]) -> bool:
    return all(place.stop.is_set() for place in places)


def _alone(place: _Place, work: Callable[[list[Any]], list[Any]], error: Exception | None) -> None:
    try:
        if error is not None:
            raise error
        place.result.set_result(stoppable(lambda: work([place.item]), place.stop.is_set)()[0])
    except Exception as own:
        place.result.set_exception(own)


def stoppable(work: Callable[[], Result], stopped: Callable[[], bool]) -> Callable[[], Result]:
    """The same work; it ends before its next pass once it is stopped."""

    def watch(_done: int, _total: int) -> None:
        if stopped():
            raise Cancelled

    def run() -> Result:
        with watching(watch):
            watch(0, 0)
            return work()

    return run
