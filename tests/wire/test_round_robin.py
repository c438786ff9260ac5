"""Round robin: every owner has its turn, and its own members keep their order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baton_wire.round_robin import RoundRobin


@given(st.lists(st.sampled_from("abbbbcc"), max_size=40))
def test_every_owner_has_its_turn_and_its_own_order(sources: list[str]) -> None:
    turns: RoundRobin[int] = RoundRobin()
    for member, source in enumerate(sources):
        turns.add(source, member)
    assert len(turns) == len(sources)
    taken = [taken_member for _ in sources if (taken_member := turns.take()) is not None]
    assert turns.take() is None
    assert len(turns) == 0
    for source in set(sources):
        own = [member for member in taken if sources[member] == source]
        assert own == sorted(own)
        first_turns = taken[: len(set(sources))]
        assert [sources[member] for member in first_turns].count(source) == 1
