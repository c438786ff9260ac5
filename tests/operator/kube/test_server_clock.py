"""The time that objects are compared with: the API server's, whatever happens to this machine's clock."""

from __future__ import annotations

import datetime
from email.utils import format_datetime

import pytest

from baton_operator.kube.server_clock import ServerClock

BEGAN = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)


class Times:
    """A machine's two clocks, of which one can be set."""

    def __init__(self) -> None:
        self.monotonic_s = 50.0
        self.set_by_s = 0.0

    def wall(self) -> datetime.datetime:
        return BEGAN + datetime.timedelta(seconds=self.monotonic_s - 50.0 + self.set_by_s)


def http_date(moment: datetime.datetime) -> str:
    return format_datetime(moment, usegmt=True)


def seconds(clock: ServerClock) -> float:
    return (clock.now() - BEGAN).total_seconds()


@pytest.mark.parametrize("step_s", [3_600.0, -3_600.0])
@pytest.mark.parametrize("ahead_s", [0.0, 900.0])
def test_nothing_becomes_older_or_younger_when_somebody_sets_the_clock(step_s: float, ahead_s: float) -> None:
    times = Times()
    clock = ServerClock(times.wall, lambda: times.monotonic_s)
    server = BEGAN + datetime.timedelta(seconds=ahead_s)
    clock.read_date(http_date(server))
    times.monotonic_s += 10.0
    times.set_by_s = step_s
    assert seconds(clock) == ahead_s + 10.0
    clock.read_date(http_date(server + datetime.timedelta(seconds=10.0)))
    assert seconds(clock) == ahead_s + 10.0
    times.monotonic_s += 5.0
    assert seconds(clock) == ahead_s + 15.0


def test_a_server_whose_clock_is_set_is_followed() -> None:
    times = Times()
    clock = ServerClock(times.wall, lambda: times.monotonic_s)
    clock.read_date(http_date(BEGAN))
    times.monotonic_s += 1.0
    clock.read_date(http_date(BEGAN + datetime.timedelta(hours=1)))
    assert seconds(clock) == 3_600.0
