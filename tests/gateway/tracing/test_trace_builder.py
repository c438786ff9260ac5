"""Spans of a trace: one tree whose leaves tile the request's time, workers' stays apart, and no content."""

from __future__ import annotations

import itertools
import random

import pytest

from baton_gateway.records.record_builder import build_record
from baton_gateway.records.trail import KeptTrail, Moment, Trail, TrailFacts, keep
from baton_gateway.requests.tenant import Tenant
from baton_gateway.tracing.trace_builder import TracedService, TraceSpan, build_trace, wants_gen_ai
from baton_gateway.tracing.trace_context import choose_trace
from baton_testing.gateway.virtual_pool import Client, VirtualPool
from baton_wire.messages.values import LegTimes

P, D, D2, RUN = b"\x01" * 16, b"\x02" * 16, b"\x03" * 16, b"\x09" * 16
FACTS = TrailFacts(
    *("req-1", "acme", "tiny", "finished", "", 1_000.0, 7, 5, 2, 0.4, 0.01),
    trace_id="ab" * 16,
    parent_id="00f067aa0ba902b7",
    is_sampled=True,
    operation="chat",
)


def spans_of(trail: KeptTrail, *, is_gen_ai: bool = False) -> list[TraceSpan]:
    ids = itertools.count(1)
    return build_trace(trail, lambda: next(ids), is_gen_ai=is_gen_ai)


def handed_over(*, loses: bool = False) -> KeptTrail:
    """A request that is prefilled, handed over and decoded; `loses`: its first decode worker is lost meanwhile."""
    trail = Trail(50.0)
    trail.mark(50.1, Moment.OFFERED)
    trail.mark(50.2, Moment.ADMITTED)
    trail.mark(50.3, Moment.PREPARED)
    trail.routed(50.3, RUN, 1, P, D, "disaggregated")
    trail.arrived(50.5, RUN, P, LegTimes(sent_s=0.18, began_s=0.05, computed_s=0.15, chunks=2))
    trail.arrived(50.6, RUN, D, LegTimes(sent_s=0.28, reserved_s=0.01, landed_s=0.25))
    if loses:
        trail.failed(50.7, RUN, 1, D, "worker_lost")
        trail.routed(50.8, RUN, 2, None, D2, "local")
        trail.arrived(50.9, RUN, D2, LegTimes(sent_s=0.08, began_s=0.01, computed_s=0.07))
    trail.mark(51.0, Moment.ENDED, text="finished")
    trail.mark(51.1, Moment.CLOSED)
    return keep(trail, FACTS)


def shape(spans: list[TraceSpan]) -> list[tuple[str, str]]:
    names = {span.span_id: span.name for span in spans}
    return [(names.get(span.parent_id or 0, ""), span.name) for span in spans]


def check_tree(spans: list[TraceSpan], trail: KeptTrail) -> None:
    """The leaves tile the request's time; each span lies within the one above it."""
    record, root = build_record(trail), spans[0]
    assert root.end_ns - root.start_ns == record.duration_ns
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    parents = {span.parent_id for span in spans[1:]}
    leaves = [span for span in spans[1:] if span.span_id not in parents]
    assert [(leaf.name.removeprefix("baton."), leaf.end_ns - leaf.start_ns) for leaf in leaves] == [
        (part.part, part.duration_ns) for part in record.spans
    ]
    for before, after in itertools.pairwise(leaves):
        assert before.end_ns == after.start_ns
    for span in spans[1:]:
        above = by_id[span.parent_id or 0]
        assert above.start_ns <= span.start_ns <= span.end_ns <= above.end_ns
        assert span.service is above.service or span.is_entry


def test_a_handed_over_request_has_a_stay_at_each_worker() -> None:
    trail = handed_over()
    spans = spans_of(trail)
    check_tree(spans, trail)
    root, prefill, decode = (span for span in spans if span.is_entry)
    assert (root.name, root.service, root.parent_id) == ("baton.request", TracedService.GATEWAY, 0x00F067AA0BA902B7)
    assert (prefill.name, prefill.service, prefill.instance) == (
        "baton.prefill_worker",
        TracedService.PREFILL,
        "01010101",
    )
    assert (decode.name, decode.service, decode.instance) == ("baton.decode_worker", TracedService.DECODE, "02020202")
    assert prefill.attributes["baton.chunks"] == 2
    inside = [name for above, name in shape(spans) if above == "baton.decode_worker"]
    assert inside[-1] == "baton.decoding"
    assert "baton.transfer" in inside
    assert ("baton.request", "baton.sending") in shape(spans)
    assert (root.start_ns, root.error) == (1_000 * 10**9, "")


def test_a_lost_attempt_is_an_error_of_the_worker_that_is_blamed() -> None:
    trail = handed_over(loses=True)
    spans = spans_of(trail)
    check_tree(spans, trail)
    [lost] = [span for span in spans if span.error]
    assert (lost.name, lost.instance, lost.error) == ("baton.decode_worker", "02020202", "worker_lost")
    stays = [(span.name, span.instance) for span in spans if span.is_entry][1:]
    assert stays[0] == ("baton.prefill_worker", "01010101")
    assert stays[-1] == ("baton.decode_worker", "03030303"), "it also computed the prompt again"


@pytest.mark.parametrize(("outcome", "error"), [("failed", "worker_lost"), ("refused", "queue_full")])
def test_a_request_without_an_answer_is_an_error(outcome: str, error: str) -> None:
    trail = Trail(0.0)
    trail.mark(1.0, Moment.ENDED, text=outcome)
    [root, *_] = spans_of(keep(trail, TrailFacts("r", "t", "", outcome, error, 0.0)), is_gen_ai=True)
    assert (root.error, root.attributes["error.type"]) == (error, error)


def test_conventions_of_generative_ai_come_only_when_asked_for() -> None:
    plain, opted_in = (spans_of(handed_over(), is_gen_ai=is_gen_ai)[0] for is_gen_ai in (False, True))
    assert not [name for name in plain.attributes if name.startswith("gen_ai.")]
    assert opted_in.name == "chat tiny"
    assert {name: value for name, value in opted_in.attributes.items() if name.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "baton",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.response.time_to_first_chunk": 0.4,
    }
    assert opted_in.attributes.items() >= plain.attributes.items()


@pytest.mark.parametrize(
    ("variable", "wants"),
    [
        ("", False),
        ("http", False),
        ("gen_ai_latest_experimental", True),
        ("http/dup, gen_ai_latest_experimental", True),
        ("gen_ai_latest_experimental_2", False),
    ],
)
def test_the_variable_is_a_list(variable: str, wants: bool) -> None:
    assert wants_gen_ai(variable) == wants


def test_traces_of_random_requests_are_trees_whose_leaves_tile_the_time() -> None:
    pool, trails, dice = VirtualPool(slots=8), list[KeptTrail](), random.Random(7)

    def closed(client: Client) -> None:
        if client.live is not None:  # else it was refused on arrival
            with pool.loop.entered():
                client.live.trace = choose_trace([], 1.0, dice.randbytes(16))
                pool.relay.closed(client.live)

    pool.relay.trace = trails.append
    tenants = [Tenant("a"), Tenant("b", max_running=2)]
    for place in range(200):
        arguments = (dice.choice(tenants), dice.randrange(1, 800), dice.randrange(1, 12))
        pool.heap.after(place * 0.1, lambda arguments=arguments: pool.ask(*arguments, on_end=closed))  # type: ignore[misc, arg-type]
    pool.run(500.0)
    pool.close()
    assert len(trails) > 150
    for trail in trails:
        check_tree(spans_of(trail), trail)
