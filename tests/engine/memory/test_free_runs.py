"""Free blocks as runs of neighbours."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from baton_engine.memory.free_runs import FreeRuns


def test_a_fresh_pool_gives_neighbours() -> None:
    runs = FreeRuns(10)
    assert runs.take(4) == [0, 1, 2, 3]
    assert runs.take(3) == [4, 5, 6]
    assert runs.count == 3


def test_a_growing_sequence_gets_the_block_next_to_its_last() -> None:
    runs = FreeRuns(10)
    assert runs.take(2) == [0, 1]
    assert runs.take(1, near=2) == [2]


def test_a_lone_block_comes_from_the_smallest_run() -> None:
    runs = FreeRuns(10)
    runs.take(10)
    for block in (7, 1, 2, 3):
        runs.add((block,))
    assert runs.take(1) == [7]


def test_a_run_that_fits_is_preferred_to_pieces() -> None:
    runs = FreeRuns(20)
    runs.take(20)
    for block in (0, 2, 4, 10, 11, 12, 13):
        runs.add((block,))
    assert runs.take(4) == [10, 11, 12, 13]


def test_pieces_are_joined_when_no_run_is_long_enough() -> None:
    runs = FreeRuns(8)
    runs.take(8)
    for block in (0, 2, 3, 6):
        runs.add((block,))
    assert sorted(runs.take(4)) == [0, 2, 3, 6]
    assert runs.count == 0


def test_neighbours_that_come_back_in_any_order_are_one_run_again() -> None:
    runs = FreeRuns(6)
    runs.take(6)
    for block in (4, 0, 2, 5, 1, 3):
        runs.add((block,))
    assert runs.take(6) == [0, 1, 2, 3, 4, 5]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(1, 40), st.lists(st.tuples(st.booleans(), st.integers(1, 12), st.integers(0, 60)), max_size=60))
def test_every_block_is_either_free_once_or_taken_once(num_blocks: int, moves: list[tuple[bool, int, int]]) -> None:
    runs = FreeRuns(num_blocks)
    taken: list[int] = []
    for takes, count, place in moves:
        if takes and count <= runs.count:
            taken += runs.take(count, near=place)
        elif not takes and taken:
            runs.add([taken.pop(place % len(taken)) for _ in range(min(count, len(taken)))])
        assert len(set(taken)) == len(taken)
        assert runs.count == num_blocks - len(taken)
        assert runs.blocks() == set(range(num_blocks)) - set(taken)
