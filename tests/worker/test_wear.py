"""A worker that should make room for a fresh process drains: a decode worker whose quarantine stays full."""

from __future__ import annotations

import asyncio

import pytest

from baton_kv_transfer.decode.machine import DecodeHandovers
from baton_kv_transfer.handover import HandoverKey, Reservation
from baton_kv_transfer.landing import full_quarantine
from baton_testing.kv_transfer.builders import GEOMETRY
from baton_testing.kv_transfer.decode_machine import BLOCKS, CONFIG, P1, TOKENS, UNIT
from baton_worker.serving import lifecycle
from baton_worker.serving.process import Stop


def test_a_reason_counts_only_when_it_lasts() -> None:
    wear = lifecycle.RestartReason(0.0)
    assert not wear.is_over("full", lifecycle.WORN_S - 0.1)
    assert not wear.is_over(None, lifecycle.WORN_S + 1.0)
    assert not wear.is_over("full", 2 * lifecycle.WORN_S)
    assert wear.is_over("full", 2 * lifecycle.WORN_S + 1.0)


def test_a_quarantine_is_full_beyond_its_share_and_not_when_it_was_emptied() -> None:
    decode = DecodeHandovers(GEOMETRY, 16 * UNIT, CONFIG, one_sided=True)
    decode.link_up(P1, 4, 0.0, link=1)
    for number in (1, 2):
        assert full_quarantine(decode.stats().landing) is None
        decode.expected(HandoverKey(bytes([number]) * 16, 1), P1, Reservation(TOKENS, 0, BLOCKS, (0,), 100.0), 0.0)
        decode.link_down(P1, "cut", 1.0)
        decode.link_up(P1, 4, 1.0, link=1 + number)
    assert full_quarantine(decode.stats().landing) == f"{8 * UNIT:,} of {16 * UNIT:,} landing bytes are quarantined"
    decode.writes_ended(1, 2.0)
    assert full_quarantine(decode.stats().landing) is None


def test_a_worker_that_stays_worn_asks_itself_for_a_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "WORN_S", 0.0)
    stop = Stop()
    asyncio.run(asyncio.wait_for(lifecycle.wears_out(lambda: "full", stop), 10.0))
    assert stop.draining.is_set()
    assert not stop.now.is_set()


class Enough(Exception):
    """It was looked at often enough."""


def test_a_fresh_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "WEAR_POLL_S", 0.0)
    looks: list[None] = []
    stop = Stop()

    def fresh() -> None:
        looks.append(None)
        if len(looks) == 100:
            raise Enough

    with pytest.raises(Enough):
        asyncio.run(asyncio.wait_for(lifecycle.wears_out(fresh, stop), 10.0))
    assert not stop.draining.is_set()
