"""Long prompts in the way of a short one, found in other records."""

from __future__ import annotations

import pytest

from baton_gateway.records.record_builder import build_record
from baton_gateway.records.request_record import RequestRecord
from baton_gateway.records.trail import Moment, Trail, TrailFacts, keep
from baton_local.explain.neighbours import asks_for_neighbours, long_prompts, neighbours_text
from baton_wire.messages.values import LegTimes

RUN, P, Q, D = b"r" * 16, b"p" * 16, b"q" * 16, b"d" * 16


def record(id_: str, tokens: int, at_s: float, prefill_s: float, worker: bytes = P) -> RequestRecord:
    """A request that began at a wall clock, and whose prompt its worker computed for some seconds."""
    trail = Trail(0.0, 0.1)
    for moment in (Moment.OFFERED, Moment.ADMITTED, Moment.PREPARED):
        trail.mark(0.0, moment)
    trail.routed(0.0, RUN, 1, worker, D, "disaggregated")
    trail.arrived(prefill_s, RUN, worker, LegTimes(prefill_s, began_s=0.0, computed_s=prefill_s, chunks=1))
    trail.mark(prefill_s + 0.1, Moment.ENDED, text="finished")
    return build_record(keep(trail, TrailFacts(id_, "team", "m", "finished", "", at_s, tokens, 1)))


SHORT = record("short", 40, 1_000.0, 0.9)


@pytest.mark.parametrize(
    ("other", "is_named"),
    [
        (record("before", 16_000, 999.5, 1.0), True),
        (record("over", 16_000, 990.0, 5.0), False),
        (record("later", 16_000, 1_002.0, 1.0), False),
        (record("elsewhere", 16_000, 999.5, 1.0, Q), False),
        (record("as short", 60, 999.5, 1.0), False),
    ],
)
def test_only_longer_prompts_at_the_same_worker_and_time_are_named(other: RequestRecord, is_named: bool) -> None:
    """Found: a short request took a second for its prefill, and nothing named the prompt that it shared steps with."""
    assert asks_for_neighbours(SHORT)
    assert long_prompts(SHORT, [SHORT, other]) == ([other] if is_named else [])


def test_the_prompts_that_took_longest_come_first_and_few_are_named() -> None:
    others = [record(f"long-{number}", 1_000 + number, 1_000.0, 0.1 * number) for number in range(1, 6)]
    named = long_prompts(SHORT, others)
    assert [other.id for other in named] == ["long-5", "long-4", "long-3"]
    text = neighbours_text(named)
    assert text.startswith("Meanwhile the same worker computed longer prompts: 1,005 tokens (long-5), ")
    assert neighbours_text([]) == ""
