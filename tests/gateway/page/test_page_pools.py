"""The pools on the page: how many workers each is to have, next to those that are linked and live."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from baton_gateway.page.page_document import PageInputs, limited_by, page_document
from baton_gateway.page.page_part import PagePart, PageWorker
from baton_gateway.records.record_builder import build_record
from baton_gateway.records.trail import Moment, Trail, TrailFacts, keep
from baton_testing.gateway.page_data import EVERYTHING
from baton_wire.sketch import Sketch


def pools(wanted: Mapping[str, int] | None, *workers: tuple[str, str]) -> dict[str, Any]:
    """The pools of the document by role, for linked workers by role and state."""
    linked = tuple(
        PageWorker(f"worker-{number}", role, f"127.0.0.1:{number}", "tiny", state, 64)
        for number, (role, state) in enumerate(workers)
    )
    nothing = Sketch().data()
    history = msgspec.json.encode({"entries": [], "reasons": {}} | ({} if wanted is None else {"wanted": wanted}))
    part = PagePart(1, 0, 0, {}, ("tiny",), linked, (), nothing, nothing, 0.5, 0.03, history=history)
    document = page_document(PageInputs(EVERYTHING, 1e9, 1e4, [part], [], [], []))
    return {pool["role"]: pool for pool in document["pools"]}


def test_a_worker_that_hangs_is_missing_from_its_pool() -> None:
    found = pools({"prefill": 2, "decode": 2}, ("prefill", "live"), ("prefill", "live"), ("decode", "live"))
    assert {role: (pool["live"], pool["wanted"], pool["missing"]) for role, pool in found.items()} == {
        "prefill": (2, 2, 0),
        "decode": (1, 2, 1),
    }


def test_a_linked_worker_that_does_not_answer_is_missing_too() -> None:
    decode = pools({"decode": 2}, ("decode", "live"), ("decode", "suspect"))["decode"]
    assert (decode["workers"], decode["live"], decode["missing"]) == (2, 1, 1)


def test_a_pool_of_which_no_worker_is_linked_is_shown_with_its_size() -> None:
    decode = pools({"prefill": 1, "decode": 4}, ("prefill", "live"))["decode"]
    assert (decode["workers"], decode["wanted"], decode["missing"], decode["running"]) == (0, 4, 4, None)


def test_a_pool_that_is_to_have_no_worker_is_not_shown() -> None:
    assert pools({"prefill": 1, "decode": 0}, ("prefill", "live")).keys() == {"prefill"}


def test_without_announced_sizes_it_is_not_known_what_is_missing() -> None:
    sizes: tuple[dict[str, int] | None, ...] = (None, {})
    for wanted in sizes:
        prefill = pools(wanted, ("prefill", "live"))["prefill"]
        assert (prefill["wanted"], prefill["missing"]) == (None, None)


def test_requests_that_are_held_for_a_busy_prefill_pool_name_that_pool() -> None:
    """Found: with all workers alive the page showed "Missing or lost workers", and never a pool's name."""
    trail = Trail(10.0, 0.1)
    for at_s, moment in ((10.01, Moment.OFFERED), (10.02, Moment.ADMITTED), (10.03, Moment.PREPARED)):
        trail.mark(at_s, moment)
    trail.mark(10.03, Moment.HELD, b"r" * 16)
    trail.mark(14.0, Moment.ENDED, text="failed")
    record = build_record(keep(trail, TrailFacts("id-1", "team", "m", "failed", "deadline_exceeded", 1e9)))
    limit = limited_by([record], 1e9 + 60.0)
    assert limit is not None
    assert (limit["place"], limit["part"], limit["requests"]) == ("prefill", "held", 1)
