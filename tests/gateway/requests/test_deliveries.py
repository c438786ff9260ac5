"""Arrived tokens are delivered in each tenant's own callbacks, in order, and before anything else of their request."""

from __future__ import annotations

import asyncio
import tracemalloc
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any

import pytest

from baton_gateway.requests import deliveries
from baton_gateway.requests.deliveries import ENTRY_LOGPROBS_BYTES, MAX_WAITING, PART_SIZE, ArrivedEntry, Deliveries
from baton_gateway.requests.live_request import LiveRequest
from baton_gateway.requests.tenant import Tenant
from baton_wire.fair_loop.charging import CHARGE, charged_context
from baton_wire.fair_loop.fair_queue import Account
from baton_wire.messages.codec import decode, encode
from baton_wire.messages.gateway_link import ToGateway, Tokens
from baton_wire.messages.packed_logprobs import pack_logprobs
from baton_wire.messages.values import TokenEntry, TokenLogprob

WORKER = b"w" * 16
LOGPROBS = (TokenLogprob(-0.5, tuple((rank, -0.5 - rank) for rank in range(20))),)
WEIGHT = 1 + len(pack_logprobs(LOGPROBS)) // ENTRY_LOGPROBS_BYTES


def live(ticket: int, tenant: str, context: Any = None) -> Any:
    one = SimpleNamespace(ticket=ticket, tenant=Tenant(tenant), context=context or copy_context(), num_flushes=0)

    def flush() -> None:
        one.num_flushes += 1

    one.writer = SimpleNamespace(flush=flush)
    return one


def entry(index: int, logprobs: tuple[TokenLogprob, ...] | None = None) -> TokenEntry:
    return TokenEntry(b"r" * 16, 1, 0, index, (index,), None if logprobs is None else pack_logprobs(logprobs))


class Recorded:
    """Deliveries whose order is recorded: the ticket and the indices of each."""

    def __init__(self) -> None:
        self.delivered: list[tuple[int, list[int]]] = []
        self.charged: list[str] = []
        self.failing: set[int] = set()
        """Tickets whose delivery fails."""
        self.num_open = range(1_000)
        self.deliveries = Deliveries(asyncio.get_running_loop(), self._deliver, self.num_open)

    def _deliver(self, live: LiveRequest, arrived: list[ArrivedEntry]) -> None:
        charge = CHARGE.get()
        self.charged.append("" if charge is None else charge.account.name)
        self.delivered.append((live.ticket, [entry.first_index for _, entry in arrived]))
        if live.ticket in self.failing:
            raise ValueError("deliberate")


async def test_what_came_for_a_request_meanwhile_is_delivered_together_and_in_order() -> None:
    recorded = Recorded()
    one, other = live(1, "a"), live(2, "a")
    for request, index in ((one, 0), (other, 0), (one, 1), (one, 2), (other, 1)):
        recorded.deliveries.add(request, WORKER, entry(index))
    assert recorded.delivered == []
    await asyncio.sleep(0)
    assert recorded.delivered == [(1, [0, 1, 2]), (2, [0, 1])]
    recorded.deliveries.add(one, WORKER, entry(3))
    await asyncio.sleep(0)
    assert recorded.delivered[2:] == [(1, [3])]


async def test_each_tenants_tokens_are_delivered_in_its_own_context() -> None:
    recorded = Recorded()
    lives = [
        live(number, tenant, charged_context(Account(tenant))) for number, tenant in enumerate(("a", "b", "a", "c"))
    ]
    for request in lives:
        recorded.deliveries.add(request, WORKER, entry(0))
    await asyncio.sleep(0)
    assert recorded.delivered == [(0, [0]), (2, [0]), (1, [0]), (3, [0])]
    assert recorded.charged == ["a", "a", "b", "c"]


async def test_one_tenants_tokens_are_delivered_in_turns_with_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "TURN_S", -1.0)
    recorded = Recorded()
    for ticket in range(4):
        recorded.deliveries.add(live(ticket, "many"), WORKER, entry(0))
    recorded.deliveries.add(live(9, "few"), WORKER, entry(0))
    for _ in range(4):
        await asyncio.sleep(0)
    assert [ticket for ticket, _ in recorded.delivered] == [0, 9, 1, 2, 3]


async def test_tokens_come_before_what_else_happens_to_their_request() -> None:
    recorded = Recorded()
    one, other = live(1, "a"), live(2, "a")
    recorded.deliveries.add(one, WORKER, entry(0))
    recorded.deliveries.add(other, WORKER, entry(0))
    recorded.deliveries.deliver_now([other, live(3, "b")])
    assert recorded.delivered == [(2, [0])]
    recorded.deliveries.add(other, WORKER, entry(1))
    await asyncio.sleep(0)
    assert recorded.delivered == [(2, [0]), (1, [0]), (2, [1])]


async def test_tokens_that_are_delivered_before_their_turn_are_written_out_too() -> None:
    recorded = Recorded()
    one, other = live(1, "a"), live(2, "a")
    recorded.deliveries.add(one, WORKER, entry(0))
    recorded.deliveries.add(other, WORKER, entry(0))
    recorded.deliveries.deliver_now([other])
    for _ in range(3):
        await asyncio.sleep(0)
    assert (one.num_flushes, other.num_flushes) == (1, 1)


async def test_a_delivery_that_fails_holds_up_no_other_request_of_its_tenant() -> None:
    recorded = Recorded()
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    recorded.failing = {1}
    lives = [live(number, "a") for number in range(3)]
    for request in lives:
        recorded.deliveries.add(request, WORKER, entry(0))
    for _ in range(3):
        await asyncio.sleep(0)
    assert [str(error["exception"]) for error in errors] == ["deliberate"]
    recorded.deliveries.add(lives[0], WORKER, entry(1))
    for _ in range(3):
        await asyncio.sleep(0)
    assert recorded.delivered == [(0, [0]), (1, [0]), (2, [0]), (0, [1])]


async def test_an_answer_that_cannot_be_written_holds_up_no_other() -> None:
    recorded = Recorded()
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    lives = [live(number, "a") for number in range(3)]

    def fail() -> None:
        raise ValueError("deliberate")

    lives[1].writer.flush = fail
    for request in lives:
        recorded.deliveries.add(request, WORKER, entry(0))
    for _ in range(4):
        await asyncio.sleep(0)
    assert [str(error["exception"]) for error in errors] == ["deliberate"]
    assert [request.num_flushes for request in lives] == [1, 0, 1]


async def test_without_keys_sources_are_delivered_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "TURN_S", -1.0)
    recorded = Recorded()
    many, few = (charged_context(Account(f"address {source}")) for source in ("10.0.0.1", "10.0.0.2"))
    for ticket in range(4):
        recorded.deliveries.add(live(ticket, "default", many), WORKER, entry(0))
    recorded.deliveries.add(live(9, "default", few), WORKER, entry(0))
    for _ in range(4):
        await asyncio.sleep(0)
    assert [ticket for ticket, _ in recorded.delivered] == [0, 9, 1, 2, 3]


async def test_log_probabilities_that_wait_take_little_memory() -> None:
    """As values, 20 alternatives of a token took 2.2 kB. What waits for a tenant at its worst is the peak of a
    gateway's memory, and Python returns little of a peak to the system."""
    recorded, one = Recorded(), live(1, "a")
    frame = encode(Tokens(1, tuple(entry(1_000 + index, LOGPROBS) for index in range(500))))
    tracemalloc.start()
    try:
        for arrived in decode(frame, ToGateway).entries:
            recorded.deliveries.add(one, WORKER, arrived)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size / 500 < 800
    recorded.deliveries.deliver_now([one])


async def test_links_are_not_read_while_too_many_tokens_wait() -> None:
    recorded = Recorded()
    one = live(1, "a")
    for index in range(MAX_WAITING // WEIGHT):
        recorded.deliveries.add(one, WORKER, entry(index, LOGPROBS))
    assert not recorded.deliveries.is_behind
    recorded.deliveries.add(one, WORKER, entry(0, LOGPROBS))
    assert recorded.deliveries.is_behind
    await asyncio.sleep(0)
    assert not recorded.deliveries.is_behind


async def test_one_request_with_much_is_delivered_in_parts_between_which_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step of 1,024 choices with log probabilities took 100 ms of the loop at once."""
    monkeypatch.setattr(deliveries, "TURN_S", -1.0)
    recorded = Recorded()
    large, small, other = live(1, "many"), live(2, "many"), live(3, "few")
    for index in range(3 * PART_SIZE // WEIGHT):
        recorded.deliveries.add(large, WORKER, entry(index, LOGPROBS))
    recorded.deliveries.add(small, WORKER, entry(0))
    recorded.deliveries.add(other, WORKER, entry(0))
    await asyncio.sleep(0)
    recorded.deliveries.add(large, WORKER, entry(1_000))
    for _ in range(6):
        await asyncio.sleep(0)
    assert [ticket for ticket, _ in recorded.delivered] == [1, 3, 2, 1, 1, 1]
    indices = [index for ticket, part in recorded.delivered for index in part if ticket == 1]
    assert indices == [*range(3 * PART_SIZE // WEIGHT), 1_000]
    assert large.num_flushes >= 3
    recorded.deliveries.add(large, WORKER, entry(1_001))
    await asyncio.sleep(0)
    assert recorded.delivered[-1] == (1, [1_001])


async def test_what_was_delivered_in_part_is_delivered_whole_before_something_else() -> None:
    recorded = Recorded()
    large = live(1, "many")
    for index in range(2 * PART_SIZE):
        recorded.deliveries.add(large, WORKER, entry(index))
    recorded.deliveries._deliver_part(large, deliveries._Line(recorded.deliveries._lines["many"].flushes))
    recorded.deliveries.deliver_now([large])
    assert [len(part) for _, part in recorded.delivered] == [PART_SIZE, PART_SIZE]
