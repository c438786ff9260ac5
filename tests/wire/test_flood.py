"""The limit on events that a peer may cause a few times."""

from __future__ import annotations

import pytest

from baton_wire.errors import BadMessageError
from baton_wire.messages.flood import Flood


def test_a_few_within_the_time_are_taken_and_one_more_is_not() -> None:
    flood = Flood("states", 3, 1.0)
    for now in (0.0, 0.5, 0.9):
        flood.met(now)
    with pytest.raises(BadMessageError, match="more than 3 states within 1 s, the last one: x"):
        flood.met(0.99, "x")


def test_as_many_over_a_longer_time_are_taken_without_end() -> None:
    flood = Flood("states", 3, 1.0)
    for number in range(100):
        flood.met(number * 0.34)
