"""A worker reports to its gateways whose turn it is, and urgent changes at once, not a tenth of a second later."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_wire.messages import codec
from baton_wire.messages.gateway_link import HeldTurn, ToGateway, WorkerState
from baton_wire.rules.gateway_rounds import HeldRank, Urgency
from baton_worker.serving import gateway_links
from baton_worker.serving.gateway_links import CameSince, GatewayLink, GatewayLinks

LATE = Urgency(HeldRank.LATE)
STATE = WorkerState(False, 0, 0, 0, 9, 9, 1, 0.01)


class Idle:
    """A service whose state never changes."""

    def state(self) -> WorkerState:
        return STATE


def two_links() -> tuple[GatewayLinks, GatewayLink, GatewayLink]:
    nothing = cast(Any, None)
    links = GatewayLinks(nothing, b"", nothing, cast(Any, Idle()), nothing)
    one, other = (GatewayLink(bytes([place]) * 16, nothing) for place in (1, 2))
    links._links |= {one, other}
    return links, one, other


def states(link: GatewayLink) -> list[WorkerState]:
    messages = [codec.decode(frame, ToGateway) for frame in link._frames]
    return [message for message in messages if isinstance(message, WorkerState)]


def turns_of(link: GatewayLink) -> list[HeldTurn | None]:
    return [state.turn for state in states(link)]


def shared_by(link: GatewayLink) -> list[int]:
    return [state.gateways for state in states(link)]


async def test_gateways_hear_at_once_whose_turn_it_is_and_the_state_alone_once() -> None:
    links, one, other = two_links()
    reporting = asyncio.create_task(links.report_state())
    await asyncio.sleep(0)
    links._note_holding(one, LATE)
    while len(turns_of(one)) < 2:  # noqa: ASYNC110 - without it, it would get nothing until its state changes
        await asyncio.sleep(0.001)
    links._note_holding(other, Urgency(HeldRank.IN_TIME, 5.0))
    links._note_holding(other, Urgency(HeldRank.IN_TIME, 5.0))
    while len(turns_of(one)) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    reporting.cancel()
    assert turns_of(one) == [None, HeldTurn(0, 1), HeldTurn(None, 1)]
    assert turns_of(other) == [None, HeldTurn(None, 1), HeldTurn(0, 1)]


@given(st.integers(0, 100_000), st.lists(st.integers(1, 5_000), min_size=1))
def test_an_eighth_of_what_there_is_is_much(there: int, coming: list[int]) -> None:
    came = CameSince()
    came.reported(there)
    so_far = 0
    for tokens in coming:
        so_far += tokens
        assert came.is_much(tokens) == (8 * so_far >= there + so_far)
    assert not came.is_much(0), "nothing came"


def test_what_was_told_is_not_told_again() -> None:
    came = CameSince()
    came.reported(1_000)
    assert came.is_much(200)
    came.reported(1_200)
    assert not came.is_much(100)
    assert came.is_much(100)


async def test_each_gateway_hears_how_many_share_the_worker() -> None:
    links, one, other = two_links()
    reporting = asyncio.create_task(links.report_state())
    await asyncio.sleep(0)
    links._links.discard(other)
    links._note_holding(one, LATE)
    while len(shared_by(one)) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    reporting.cancel()
    assert (shared_by(one), shared_by(other)) == ([2, 1], [2])


@pytest.mark.parametrize("are_two", [True, False])
async def test_gateways_hear_of_room_soon_while_one_holds_prompts(
    are_two: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway does not know what another one's prompts still need. What it sent by itself it knows."""
    monkeypatch.setattr(gateway_links, "REPORT_S", 3_600.0)
    links, one, other = two_links()
    steps = itertools.count(1)
    monkeypatch.setattr(Idle, "state", lambda self: WorkerState(False, 0, 0, 0, 9, 9, next(steps), 0.01))
    if not are_two:
        links._links.discard(other)
    links._note_holding(one, LATE)
    reporting = asyncio.create_task(links.report_state())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(30.0 if are_two else 0.1):
            while len(states(one)) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    reporting.cancel()
    assert len(states(one)) == (3 if are_two else 1)
    assert len(states(other)) == (3 if are_two else 0)
