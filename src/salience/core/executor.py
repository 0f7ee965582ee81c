"""The executor: packs work into passes, retries when memory runs out, and returns results in order.

Methods, metrics, monitors and training all run a model on many texts, or on many changed copies of a few. Each item has
a cost in tokens. The executor packs items of similar cost up to its budget, lowers the budget when memory runs out, and
holds the lock that lets one pass run at a time. Every model has its own executor.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate, chain, pairwise, takewhile
from math import inf
from threading import Lock, RLock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psutil
import torch

from salience.errors import BadModel

Result = TypeVar("Result")
Report = Callable[[int, int], None]
"""Called with the number of items done and the total."""

OVERHEAD = 48
"""The fixed cost of a pass, in tokens: items share a pass where that saves more than the padding it takes.

On a CPU, an encoder of 6 layers and 384 units takes as long to start a pass as to read 40 tokens in one thread.
"""

HELD = 8
"""A pass may hold this many times the budget in tokens whose states are already computed."""

FASTEST = {"cpu": 1024}
"""Tokens beyond which a larger pass is no faster: on a CPU, the states of a pass should fit the cache."""

FASTEST_ELSEWHERE = 16384
"""The same for accelerators."""

OUT_OF_MEMORY = ("allocate memory", "out of memory", "could not create a primitive")
"""Messages of out-of-memory errors on a CPU, for which torch has no exception of its own."""


_locks: "WeakKeyDictionary[Any, Any]" = WeakKeyDictionary()
_adding = Lock()


def lock_of(shared: object) -> Any:
    """Return the one reentrant lock of a module or tokenizer, for everyone who uses it.

    Hooks and flags belong to a module, so two adapters of it must take turns. The lock cannot be kept in the module,
    which belongs to the user.
    """
    with _adding:
        return _locks.setdefault(shared, RLock())


_watcher: ContextVar[Report | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Report) -> Generator[None]:
    """Call ``watcher`` before every pass of this thread, with the items done and the total of the work it belongs to.

    Work within other work has numbers of its own. If the watcher raises, the work ends there, and the model is left as
    after any other error: that is how a server cancels it.
    """
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


class Executor:
    """Runs the passes of one model, within a budget of tokens per pass and one at a time.

    Executors of the same ``module`` share its lock.

    >>> executor = Executor(budget=18)
    >>> for items, _ in executor.run([3, 9, 2, 8], len):
    ...     print(items)
    [1, 3]
    [0, 2]
    """

    def __init__(self, budget: int, module: torch.nn.Module | None = None) -> None:
        self.budget, self.module = budget, module
        self.lock = RLock() if module is None else lock_of(module)
        self._runs, self._kept, self._keeping = 0, dict[Any, Any](), RLock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles get a lock of their own, or that of the copied module."""
        return Executor, (self.budget, self.module)

    def __repr__(self) -> str:
        return f"Executor(budget={self.budget})"

    def run(
        self,
        costs: Sequence[int],
        work: Callable[[list[int]], Result],
        *,
        held: Sequence[int] | None = None,
        alone: bool = False,
        overhead: int = OVERHEAD,
        report: Report | None = None,
    ) -> Iterator[tuple[list[int], Result]]:
        """Call ``work`` with the indices of items that fit into one pass, costliest first, until all are done.

        Yields the indices of each pack with the result of ``work``. When memory runs out, the budget becomes half of
        what did not fit, and the remaining items are packed again. ``held`` is the number of tokens that each item
        occupies in memory, where that is more than its cost. With ``alone`` every item is a pack of its own.
        ``overhead`` is the fixed cost of a pass, in tokens: with a larger one, packs are fewer and have more padding.
        """
        with self._running():
            waiting, done, watcher = self._packs(range(len(costs)), costs, held, alone, overhead), 0, _watcher.get()
            while waiting:
                items = waiting.popleft()
                if watcher is not None:
                    watcher(done, len(costs))
                try:
                    result = work(items)
                except (RuntimeError, MemoryError) as error:
                    self._shrink([costs[i] for i in items], error)
                    remaining = [*items, *chain.from_iterable(waiting)]
                    waiting = self._packs(remaining, costs, held, alone, overhead)
                    continue
                done += len(items)
                yield items, result
                if report is not None:
                    report(done, len(costs))

    @contextmanager
    def _running(self) -> Generator[None]:
        with self._keeping:
            self._runs += 1
        try:
            yield
        finally:
            with self._keeping:
                self._runs -= 1
                if not self._runs:
                    self._kept.clear()

    def kept(self, key: object, value: Callable[[], Result]) -> Result:
        """Return a value that is computed once for all passes of a run, and forgotten when the run ends."""
        with self._keeping:
            if not self._runs:
                return value()
            if key not in self._kept:
                self._kept[key] = value()
            return self._kept[key]

    def collect(
        self,
        costs: Sequence[int],
        work: Callable[[list[int]], Sequence[Result]],
        *,
        overhead: int = OVERHEAD,
        report: Report | None = None,
    ) -> list[Result]:
        """Return one result per item, in the order of the items; ``work`` returns the results of its pack."""
        results: dict[int, Result] = {}
        for items, pack_results in self.run(costs, work, overhead=overhead, report=report):
            results |= zip(items, pack_results, strict=True)
        return [results[i] for i in range(len(costs))]

    def _packs(
        self, items: Sequence[int], costs: Sequence[int], held: Sequence[int] | None, alone: bool, overhead: int
    ) -> deque[list[int]]:
        if alone:
            return deque([i] for i in items)
        own = None if held is None else [held[i] for i in items]
        packs = pack([costs[i] for i in items], self.budget, own, overhead)
        return deque([items[i] for i in group] for group in packs)

    def _shrink(self, costs: Sequence[int], error: BaseException) -> None:
        """Set the budget to half of what did not fit."""
        if not out_of_memory(error):
            raise error
        largest = max(costs)
        if len(costs) == 1:
            raise BadModel(
                f"out of memory: one pass over a text of {largest} tokens does not fit. Free some memory, shorten the "
                "text, or load the model in half precision (dtype='bfloat16')."
            ) from error
        self.budget = max(largest, min(self.budget, len(costs) * largest) // 2)


def pack(
    costs: Sequence[int], budget: int, held: Sequence[int] | None = None, overhead: int = OVERHEAD
) -> list[list[int]]:
    """Group items, costliest first, so that padded tokens and ``overhead`` per group are fewest in all.

    A group of several items takes items × the largest cost, at most the budget; the tokens that it holds may be up to
    ``HELD`` times that. A group ends only where the cost of the next item is lower, or where it is full.

    >>> pack([3, 9, 2, 8], budget=18)
    [[1, 3], [0, 2]]
    """
    order = sorted(range(len(costs)), key=lambda i: -costs[i])
    widths = [costs[i] for i in order]
    drops = [i for i, (one, following) in enumerate(pairwise(widths), 1) if following < one]
    fewest, begin = {0: 0}, {0: 0}  # the tokens of the first i items, and where the last of their groups begins
    for start, width in enumerate(widths):
        if start not in fewest:
            continue
        full = min(len(order), start + max(1, budget // max(1, width)))
        if held is not None:
            full = start + _fitting([held[i] for i in order[start:full]], HELD * budget)
        for end in (*drops[bisect_right(drops, start) : bisect_left(drops, full)], full):
            tokens = fewest[start] + overhead + (end - start) * width
            if tokens < fewest.get(end, inf):
                fewest[end], begin[end] = tokens, start
    groups, end = deque[list[int]](), len(order)
    while end:
        groups.appendleft(order[begin[end] : end])
        end = begin[end]
    return list(groups)


def _fitting(held: Sequence[int], most: int) -> int:
    """How many of the first items hold at most so many tokens together, each as many as the largest; at least one."""
    largest = accumulate(held, max)
    return max(1, sum(1 for _ in takewhile(lambda pair: pair[0] * pair[1] <= most, enumerate(largest, 1))))


def fitting_budget(bytes_per_token: int, device: torch.device) -> int:
    """Return how many tokens one pass should hold: the fastest size, or what fits half of the free memory."""
    return max(1, min(FASTEST.get(device.type, FASTEST_ELSEWHERE), free_memory(device) // 2 // bytes_per_token))


def free_memory(device: torch.device) -> int:
    """Return how many bytes are free on a device."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available


def out_of_memory(error: BaseException) -> bool:
    """Whether the error means that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)
