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


def tokens(groups: list[list[int]]) -> int:
    """What passes over groups of texts of these lengths cost."""
    return sum(OVERHEAD + len(group) * max(group) for group in groups)


def cheapest(lengths: tuple[int, ...]) -> int:
    """The same for the best of all ways to divide sorted lengths, tried one after the other."""
    ways = range(2 ** max(0, len(lengths) - 1))
    cuts = ([0, *(i + 1 for i in range(len(lengths) - 1) if way >> i & 1), len(lengths)] for way in ways)
    return min(tokens([[*lengths[a:b]] for a, b in pairwise(cut)]) for cut in cuts) if lengths else 0


@given(st.lists(st.integers(1, 60), max_size=9))
def test_no_other_packs_cost_fewer_tokens_if_everything_fits(lengths: list[int]):
    groups = [[lengths[i] for i in group] for group in pack(lengths, 1000)]
    assert tokens(groups) == cheapest(tuple(sorted(lengths, reverse=True)))


@given(LENGTHS, st.integers(1, 2000))
def test_a_pack_ends_where_it_is_full_or_where_shorter_texts_follow(lengths: list[int], budget: int):
    groups = [[lengths[i] for i in group] for group in pack(lengths, budget)]
    for group, following in pairwise(groups):
        assert (len(group) + 1) * max(group) > budget or following[0] < group[-1], "a pack ended too early"
    for group in groups:  # a pass of its own for the shorter texts would not be cheaper
        assert all(group[i] * (len(group) - i) + OVERHEAD >= (len(group) - i) * group[0] for i in drops(group))


def drops(group: list[int]) -> list[int]:
    return [i for i in range(1, len(group)) if group[i] < group[i - 1]]


def test_texts_of_equal_length_fill_their_packs():
    assert [len(group) for group in pack([7] * 20, budget=50)] == [7, 7, 6]


def test_padding_may_be_allowed_where_few_packs_matter_more():
    lengths = [20, 3, 2, 12, 20]
    assert pack(lengths, 1000, overhead=1000) == [[0, 4, 3, 1, 2]]
    assert len(pack(lengths, 1000, overhead=1)) > 1
    assert [items for items, _ in Executor(1000).run(lengths, len, overhead=1000)] == [[0, 4, 3, 1, 2]]


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


def test_what_is_kept_lives_as_long_as_the_outermost_run():
    executor, computed = Executor(10), list[int]()

    def kept(_: object = None) -> int:
        return executor.kept("key", lambda: computed.append(1) or len(computed))

    def nested(_: list[int]) -> int:
        list(executor.run([10, 10], kept))
        return kept()

    assert [n for _, n in executor.run([10] * 3, nested)] == [1, 1, 1]
    assert [n for _, n in executor.run([10] * 3, kept)] == [2, 2, 2]
    assert [kept(), kept()] == [3, 4], "there is no run that would forget it"
    unfinished = executor.run([10] * 3, kept)
    next(unfinished)
    unfinished.close()
    assert kept() == 6


def test_a_copy_has_its_own_lock():
    executor = Executor(7)
    for twin in (copy.deepcopy(executor), pickle.loads(pickle.dumps(executor))):
        assert twin.budget == 7
        assert twin.lock is not executor.lock
