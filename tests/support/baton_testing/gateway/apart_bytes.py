"""Instants within the answer of a process apart."""

from __future__ import annotations

from collections.abc import Callable

from baton_gateway.helper_processes.helper_process import HelperProcess


def at_byte(apart: HelperProcess, number: int, act: Callable[[], object]) -> None:
    """Act when so many bytes of the answer are here."""
    process, come = apart._process, 0
    assert process is not None
    feed = process.stdout.feed_data

    def counted(data: bytes) -> None:
        nonlocal come
        feed(data)
        come += len(data)
        if come - len(data) < number <= come:
            act()

    setattr(process.stdout, "feed_data", counted)  # noqa: B010
