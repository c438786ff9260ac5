"""The wall clock that belongs to a virtual time."""

from __future__ import annotations

import datetime

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def wall(seconds: float) -> datetime.datetime:
    """The wall clock that belongs to a virtual time."""
    return START + datetime.timedelta(seconds=seconds)


def stamp(seconds: float) -> str:
    """A time of the virtual clock as Kubernetes writes it."""
    return wall(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")
