"""The index of announced places agrees with plain sets after any history, and stays small."""

from __future__ import annotations

import random
import sys

from baton_gateway.workers.place_index import FIRST_BUCKETS, PER_BUCKET, HolderSets, PlaceIndex


def named(*numbers: int) -> bytes:
    return b"".join(random.Random(number).randbytes(8) for number in numbers)


def measured_bytes(index: PlaceIndex) -> int:
    return sum(map(sys.getsizeof, index._buckets)) + sys.getsizeof(index._buckets)


def test_the_index_agrees_with_sets_after_any_history() -> None:
    dice, index = random.Random(3), PlaceIndex()
    held: dict[int, set[int]] = {holder: set() for holder in range(6)}
    for _ in range(3_000):
        holder = dice.randrange(6)
        places = {dice.randrange(12_000) for _ in range(dice.randint(1, 30))}
        what = dice.random()
        if what < 0.01:
            index.forget(holder)
            held[holder].clear()
        elif what < 0.35:
            assert index.drop(holder, named(*places)) == len(places & held[holder])
            held[holder] -= places
        else:
            assert index.add(holder, named(*places)) == len(places - held[holder])
            held[holder] |= places
        prompt = [dice.randrange(12_000) for _ in range(20)]
        expected = {
            holder: max(length for length, place in enumerate(prompt, 1) if place in places)
            for holder, places in held.items()
            if places & set(prompt)
        }
        assert index.longest(named(*prompt)) == expected
    assert len(index._buckets) > FIRST_BUCKETS
    assert len(index) >= len(set().union(*held.values()))


def test_what_a_lost_worker_held_is_forgotten_at_once_and_swept_out() -> None:
    index = PlaceIndex()
    index.add(0, named(*range(2_000)))
    index.add(1, named(*range(1_990, 2_010)))
    index.forget(0)
    assert index.longest(named(5)) == {}
    assert index.longest(named(1_995)) == {1: 1}
    for _ in range(FIRST_BUCKETS):
        index.drop(1, named(1))
    assert len(index) == 20
    assert len(index._sets) <= 2, "the same workers, under two numbers"


def test_a_number_that_is_used_again_inherits_nothing() -> None:
    index = PlaceIndex()
    index.add(0, named(1))
    index.add(1, named(1, 2))
    index.forget(1)
    index.add(1, named(3))
    assert index.longest(named(1, 2, 3)) == {1: 3, 0: 1}


def test_sets_are_used_again() -> None:
    sets, dice = HolderSets(), random.Random(1)
    used: list[int] = []
    for _ in range(5_000):
        if used and dice.random() < 0.5:
            sets.give_back(used.pop())
        elif dice.random() < 0.1:
            sets.forget(dice.randrange(4))
        else:
            used.append(sets.take(dice.randrange(1, 16)))
    assert len(sets) <= 64
    for number in used:
        sets.give_back(number)
    assert len(sets) == 0


def test_a_place_takes_few_bytes() -> None:
    index, dice = PlaceIndex(), random.Random(2)
    count = 60_000
    index.add(0, dice.randbytes(8 * count))
    assert len(index) == count
    assert len(index._buckets) >= count // PER_BUCKET
    assert measured_bytes(index) < 20 * count


def test_a_name_that_lies_across_two_records_is_not_mistaken() -> None:
    index = PlaceIndex()
    bucket_names = [bytes([0]) * 2 + bytes([number]) + bytes(5) for number in range(1, 6)]
    index.add(0, b"".join(bucket_names))
    assert index.longest(bytes(8)) == {}
    assert index.longest(bucket_names[2]) == {0: 1}
