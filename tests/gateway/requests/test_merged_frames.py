"""A gateway that falls behind writes less often: tokens of several frames leave together, once nothing else waits."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any, cast

import pytest

from baton_gateway.requests.admission import Admission
from baton_gateway.requests.relay import Relay
from baton_gateway.requests.request_events import Deliver
from baton_gateway.requests.tenant import DEFAULT_TENANT
from baton_gateway.workers.linked_workers import WorkerTable
from baton_testing.simulation.gateway import LIMITS, METRICS, RULES
from baton_wire.messages.gateway_link import Tokens
from baton_wire.messages.values import TokenEntry

RUN, WORKER = b"r" * 16, b"w" * 16


class RecordingWriter:
    """A writer that records its increments."""

    def __init__(self) -> None:
        self.pending: list[int] = []
        self.chunks: list[list[int]] = []

    def flush(self) -> None:
        self.chunks.append(self.pending)
        self.pending = []


def frame(first: int, *ids: int) -> Tokens:
    return Tokens(first, (TokenEntry(RUN, 0, 0, first, ids, None, None, 0),))


async def test_frames_that_came_together_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    relay = Relay(WorkerTable(), Admission(LIMITS), cast(Any, None), METRICS, RULES)
    writer = RecordingWriter()

    def arrived(event: Any, now: float) -> list[Deliver]:
        return [Deliver(0, event.entry.ids, None, None, event.entry.first_index == 0)]

    life = SimpleNamespace(handle=arrived, lost_attempts=[])
    live: Any = SimpleNamespace(
        ticket=7, life=life, writer=writer, tenant=DEFAULT_TENANT, context=copy_context(), trail=None
    )
    monkeypatch.setattr(relay, "_deliver", lambda live, action, now: writer.pending.extend(action.ids))
    relay._by_run[RUN] = relay._by_ticket[live.ticket] = live

    relay.tokens(WORKER, frame(0, 50))
    relay.tokens(WORKER, frame(1, 51, 52))
    assert writer.chunks == [], "others of the same moment may come yet"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert writer.chunks == [[50, 51, 52]]

    relay.tokens(WORKER, frame(3, 53))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert writer.chunks == [[50, 51, 52], [53]]

    relay.tokens(WORKER, frame(4, 54))
    del relay._by_ticket[live.ticket]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert writer.chunks == [[50, 51, 52], [53]], "the end of an answer writes the rest"
