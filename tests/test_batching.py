from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from salience.batching import OPENING, chunks, pack, runs

LENGTHS = st.lists(st.integers(1, 60), max_size=40)


@given(LENGTHS, st.integers(1, 200))
def test_every_row_is_packed_once_and_batches_fit(lengths: list[int], budget: int):
    groups = pack(lengths, budget)
    assert sorted(i for g in groups for i in g) == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[i] for i in group) <= budget


@given(LENGTHS)
def test_rows_are_sorted_so_that_padding_stays_small(lengths: list[int]):
    order = [lengths[i] for g in pack(lengths, 100) for i in g]
    assert order == sorted(lengths, reverse=True)


@given(st.integers(0, 50), st.integers(1, 20), st.integers(1, 100))
def test_chunks_cover_all_rows_within_the_budget(rows: int, width: int, budget: int):
    parts = list(chunks(rows, width, budget))
    assert [i for p in parts for i in range(p.start, p.stop)] == list(range(rows))
    assert all(p.stop - p.start == 1 or (p.stop - p.start) * width <= budget for p in parts)


@given(LENGTHS, st.integers(1, 2000))
def test_runs_cover_all_rows_in_order_within_the_budget_and_with_little_padding(lengths: list[int], budget: int):
    parts = [lengths[part] for part in runs(lengths, budget)]
    assert [n for part in parts for n in part] == lengths
    for part in parts:
        held = len(part) * max(part)
        assert len(part) == 1 or (held <= budget and held - sum(part) <= OPENING)
    for part, following in pairwise(parts):
        more = [*part, following[0]]
        held = len(more) * max(more)
        assert held > budget or held - sum(more) > OPENING, "a run ended too early"
