"""The parts of several gateway replicas in one document: summed, on one clock, and those that are silent named."""

from __future__ import annotations

from baton_gateway.page.page_document import PageInputs, page_document
from baton_gateway.page.page_part import PagePart, TenantStanding
from baton_gateway.page.replica_parts import ReplicaParts, join_parts
from baton_gateway.page.viewer import Viewer
from baton_gateway.reporting.load_series import LoadSlot


def part(slot: int, running: int) -> PagePart:
    """The part of a process that got its first tokens in one slot of its machine's clock."""
    slots = (LoadSlot(slot, first_tokens=running, first_in_time=running),)
    return PagePart(1, running, 0, {"batch": TenantStanding(running, 0)}, slots=slots)


def test_slots_of_machines_that_were_started_at_other_times_are_joined_by_the_wall_clock() -> None:
    early = ReplicaParts(at=1_000_000.0, now_s=5_000.0, parts=[part(500, 2)])
    late = ReplicaParts(at=1_000_000.4, now_s=100.4, parts=[part(10, 3)])
    parts = list(join_parts([early, late]))
    assert [slot.number for part in parts for slot in part.slots] == [500, 500]
    inputs = PageInputs(Viewer(sees_all=True), early.at, early.now_s, parts, [7], [], [], None, ["chat-gateway-c (x)"])
    document = page_document(inputs)
    assert document["running"] == 5
    assert document["tenants"][0]["running"] == 5
    [slot] = document["series"]["slots"]
    assert slot[document["series"]["fields"].index("first_tokens")] == 5
    assert document["latency"]["ttft"]["observations"] == 5
    assert (document["silent"], document["silent_replicas"]) == ([7], ["chat-gateway-c (x)"])


def test_one_replica_is_left_as_it_is() -> None:
    alone = part(500, 2)
    assert list(join_parts([ReplicaParts(1.0, 1.0, [alone])])) == [alone]
