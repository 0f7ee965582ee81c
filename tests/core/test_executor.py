"""The executor: every item once, within the budget, with little padding, and again when memory runs out."""

import copy
import pickle
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from salience.core.executor import HELD, OVERHEAD, Executor, pack
from salience.errors import BadModel

LENGTHS = st.lists(st.integers(1, 60), max_size=40)


@given(LENGTHS, st.integers(1, 200))
def test_every_item_is_packed_once_and_packs_fit(lengths: list[int], budget: int):
    groups = pack(lengths, budget)
    assert sorted(i for g in groups for i in g) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[i] for i in group) <= budget


@given(LENGTHS)
def test_items_are_sorted_so_that_padding_stays_small(lengths: list[int]):
    order = [lengths[i] for g in pack(lengths, 100) for i in g]
    assert order == sorted(lengths, reverse=True)


@given(LENGTHS, st.integers(1, 2000))
def test_a_pack_ends_where_it_is_full_or_padding_costs_more_than_a_pass(lengths: list[int], budget: int):
    groups = [[lengths[i] for i in group] for group in pack(lengths, budget)]
    for group in groups:
        held = len(group) * max(group)
        assert len(group) == 1 or (held <= budget and held - sum(group) <= OVERHEAD)
    for group, following in pairwise(groups):
        more = [*group, following[0]]
        held = len(more) * max(more)
        assert held > budget or held - sum(more) > OVERHEAD, "a pack ended too early"


def test_padding_may_be_allowed_where_few_packs_matter_more():
    lengths = [20, 3, 2, 12, 20]
    assert pack(lengths, 1000, padding=1000) == [[0, 4, 3, 1, 2]]
    assert len(pack(lengths, 1000)) > 1
    assert [items for items, _ in Executor(1000).run(lengths, len, padding=1000)] == [[0, 4, 3, 1, 2]]


def test_the_memory_held_by_items_is_bounded():
    groups = pack([1] * 100, budget=50, held=[200] * 100)
    assert max(map(len, groups)) == HELD * 50 // 200
    assert sum(map(len, groups)) == 100


@given(LENGTHS, st.integers(1, 200))
def test_results_come_in_the_order_of_the_items(lengths: list[int], budget: int):
    done: list[int] = []
    results = Executor(budget).collect(
        lengths, lambda items: [i * i for i in items], report=lambda n, _: done.append(n)
    )
    assert results == [i * i for i in range(len(lengths))]
    assert done == sorted(done)
    assert not done or done[-1] == len(lengths)


def scarce(room: int, lengths: list[int], packs: list[list[int]]):
    """Work that runs out of memory beyond so many tokens."""

    def work(items: list[int]) -> list[int]:
        if len(items) * max(lengths[i] for i in items) > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        packs.append(items)
        return items

    return work


@given(st.lists(st.integers(1, 16), min_size=1, max_size=30), st.integers(16, 100))
def test_memory_that_runs_out_halves_the_budget_and_loses_nothing(lengths: list[int], room: int):
    executor, packs = Executor(1000), list[list[int]]()
    assert executor.collect(lengths, scarce(room, lengths, packs)) == list(range(len(lengths)))
    assert sorted(i for items in packs for i in items) == list(range(len(lengths)))
    assert executor.budget == 1000 or executor.budget <= 240


def test_what_is_done_before_memory_runs_out_is_not_done_again():
    executor, packs = Executor(40), list[list[int]]()
    failing = iter([False, True, False, False, False])

    def work(items: list[int]) -> int:
        if next(failing):
            raise MemoryError
        packs.append(items)
        return len(items)

    assert sum(n for _, n in executor.run([10] * 8, work)) == 8
    assert packs == [[0, 1, 2, 3], [4, 5], [6, 7]]
    assert executor.budget == 20


def test_a_single_item_that_does_not_fit_is_an_error():
    with pytest.raises(BadModel, match="one pass over a text of 30 tokens does not fit"):
        Executor(100).collect([30], scarce(20, [30], []))


def test_other_errors_are_raised_unchanged():
    def broken(_: list[int]) -> None:
        raise RuntimeError("shape mismatch")

    with pytest.raises(RuntimeError, match="shape mismatch"):
        list(Executor(100).run([1], broken))


def test_items_that_must_be_alone():
    assert [items for items, _ in Executor(100).run([5, 5], len, alone=True)] == [[0], [1]]


def test_a_copy_has_its_own_lock():
    executor = Executor(7)
    for twin in (copy.deepcopy(executor), pickle.loads(pickle.dumps(executor))):
        assert twin.budget == 7
        assert twin.lock is not executor.lock
