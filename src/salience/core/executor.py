"""The executor: packs work into passes, retries when memory runs out, and returns results in order.

Methods, metrics, monitors and training all run a model on many texts, or on many changed copies of a few. Each item has
a cost in tokens. The executor packs items of similar cost up to its budget, lowers the budget when memory runs out, and
holds the lock that lets one pass run at a time. Every model has its own executor.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from threading import Lock, RLock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psutil
import torch

from salience.errors import BadModel

Result = TypeVar("Result")
Report = Callable[[int, int], None]
"""Called with the number of items done and the total."""

OVERHEAD = 24
"""The fixed cost of a pass, in tokens: items share a pass while its padding is below this."""

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
        report: Report | None = None,
    ) -> Iterator[tuple[list[int], Result]]:
        """Call ``work`` with the indices of items that fit into one pass, costliest first, until all are done.

        Yields the indices of each pack with the result of ``work``. When memory runs out, the budget becomes half of
        what did not fit, and the remaining items are packed again. ``held`` is the number of tokens that each item
        occupies in memory, where that is more than its cost. With ``alone`` every item is a pack of its own.
        """
        waiting, done = self._packs(range(len(costs)), costs, held, alone), 0
        while waiting:
            items = waiting.popleft()
            try:
                result = work(items)
            except (RuntimeError, MemoryError) as error:
                self._shrink([costs[i] for i in items], error)
                remaining = [*items, *chain.from_iterable(waiting)]
                waiting = self._packs(remaining, costs, held, alone)
                continue
            done += len(items)
            yield items, result
            if report is not None:
                report(done, len(costs))

    def collect(
        self, costs: Sequence[int], work: Callable[[list[int]], Sequence[Result]], *, report: Report | None = None
    ) -> list[Result]:
        """Return one result per item, in the order of the items; ``work`` returns the results of its pack."""
        results: dict[int, Result] = {}
        for items, pack_results in self.run(costs, work, report=report):
            results |= zip(items, pack_results, strict=True)
        return [results[i] for i in range(len(costs))]

    def _packs(
        self, items: Sequence[int], costs: Sequence[int], held: Sequence[int] | None, alone: bool
    ) -> deque[list[int]]:
        if alone:
            return deque([i] for i in items)
        own = None if held is None else [held[i] for i in items]
        return deque([items[i] for i in group] for group in pack([costs[i] for i in items], self.budget, own))

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


def pack(costs: Sequence[int], budget: int, held: Sequence[int] | None = None) -> list[list[int]]:
    """Group items so that items × the largest cost stays within the budget, with little padding.

    Groups are in descending order of cost. The tokens held by a group may be up to ``HELD`` times the budget.

    >>> pack([3, 9, 2, 8], budget=18)
    [[1, 3], [0, 2]]
    """
    groups: list[list[int]] = []
    group: list[int] = []
    width = useful = longest = 0
    for item in sorted(range(len(costs)), key=lambda i: -costs[i]):
        cost, own = costs[item], costs[item] if held is None else held[item]
        total, longest = (len(group) + 1) * width, max(longest, own)
        full = total > budget or total - useful - cost > OVERHEAD or (len(group) + 1) * longest > HELD * budget
        if group and full:
            groups.append(group)
            group, useful, longest = [], 0, own
        width = width if group else cost
        group.append(item)
        useful += cost
    return [*groups, group] if group else []


def fitting_budget(bytes_per_token: int, device: torch.device) -> int:
    """Return how many tokens one pass should hold: the fastest size, or what fits half of the free memory."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    return max(1, min(FASTEST.get(device.type, FASTEST_ELSEWHERE), free // 2 // bytes_per_token))


def out_of_memory(error: BaseException) -> bool:
    """Whether the error means that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)
