"""The merged reports of several gateways: unknown while one is silent, zero only when all have proven it."""

from __future__ import annotations

from msgspec.structs import replace

from baton_control.names import Key
from baton_control.sizing.inputs.observations import Arrivals, Known, ProvenZero, Unknown
from baton_control.telemetry.pairs import PAIR_MEMORY_S, Pairs
from baton_control.telemetry.store import (
    FRESH_S,
    OTHER_VERSION_S,
    SETTLED_S,
    UNLINKED_S,
    FlexibleWorker,
    TelemetryStore,
)
from baton_gateway.settings import parse_settings
from baton_operator.gateway_telemetry import GatewayTelemetry
from baton_operator.schema.status import LaneStatus
from baton_testing.kube.manifests import deployment
from baton_wire.messages.measures import (
    NUM_WINDOWS,
    ArrivalCounts,
    Backlog,
    ContextCounts,
    Lanes,
    RequestLengths,
    Served,
    SketchData,
    StepTiming,
    WorkerCondition,
)
from baton_wire.messages.measures import WorkerMeasures as Measures
from baton_wire.messages.operator_link import GatewayHello, Summary
from baton_wire.messages.values import POOL_ROLES, Address, Role

ONE, TWO = b"1" * 16, b"2" * 16
EMPTY = SketchData()


def worker(epoch: bytes, role: Role, **changes: object) -> Measures:
    whole = Measures(
        role=role,
        epoch=epoch.ljust(16, b"\0"),
        template_hash="t1",
        address=Address("127.0.0.1", 1 + epoch[0]),
        condition=WorkerCondition.LIVE,
        has_partner=True,
        running=0,
        waiting=0,
        waiting_tokens=0,
        block_tokens=16,
        blocks_total=100,
        blocks_free=90,
        kv_bytes=0,
        startup_s=7.0,
    )
    return replace(whole, **changes)


PAIR = (worker(b"P", Role.PREFILL), worker(b"D", Role.DECODE))


def summary(number: int, count: int = 0, seconds: float = 5.0, **changes: object) -> Summary:
    sample = (RequestLengths(1000, 100, 200),) * min(count, 3)
    whole = Summary(
        number=number,
        at_s=1e9,
        seconds=seconds,
        arrived=ArrivalCounts(count, 0, 0, EMPTY, EMPTY, EMPTY, sample),
        served=Served(EMPTY, EMPTY, 0),
        backlog=Backlog(0, 0, 0.0, 0),
        workers=PAIR,
        workers_left_out=0,
        config_hash="applied",
    )
    return replace(whole, **changes)


def linked(*epochs: bytes, processes: int = 1) -> TelemetryStore:
    store = TelemetryStore()
    for epoch in epochs:
        store.linked(epoch, GatewayHello(f"gateway-{epoch[:1].decode()}", processes), 0.0)
    return store


def test_arrivals_of_all_gateways_add_up_over_several_summaries() -> None:
    store = linked(ONE, TWO)
    for number, now in ((1, 5.0), (2, 10.0)):
        store.add_summary(ONE, summary(number, 20), now)
        store.add_summary(TWO, summary(number, 30), now)
    reading = store.take_arrivals(10.0, 2)
    assert isinstance(reading, Arrivals)
    assert (reading.count, reading.seconds, reading.per_s) == (100, 10.0, 10.0)
    assert reading.sample[0].cached_tokens == 200
    store.add_summary(ONE, summary(3), 15.0)
    store.add_summary(TWO, summary(3), 15.0)
    assert isinstance(store.take_arrivals(15.0, 2), ProvenZero)


def test_nothing_is_known_while_a_gateway_is_missing_or_silent() -> None:
    assert isinstance(TelemetryStore().take_arrivals(0.0, 1), Unknown)
    store = linked(ONE)
    store.add_summary(ONE, summary(1, 20), 5.0)
    assert isinstance(store.take_arrivals(5.0, 2), Unknown), "two should report"
    assert store.routable(5.0, 2) is None
    store.add_summary(ONE, summary(2, 20), 10.0)
    assert isinstance(store.take_arrivals(10.0 + FRESH_S + 1, 1), Unknown)
    assert store.routable(10.0 + FRESH_S + 1, 1) is None
    assert isinstance(store.queued_tokens(10.0 + FRESH_S + 1, 1), Unknown)


def test_a_gateway_of_two_processes_is_known_only_with_both() -> None:
    store = linked(ONE, processes=2)
    store.add_summary(ONE, summary(1, 20), 5.0)
    reading = store.take_arrivals(5.0, 1)
    assert isinstance(reading, Unknown)
    assert "1 of 2" in reading.why


def test_a_lost_summary_makes_the_interval_unknown_even_over_a_new_link() -> None:
    store = linked(ONE)
    store.add_summary(ONE, summary(1, 20), 5.0)
    store.take_arrivals(5.0, 1)
    store.gone(ONE, 5.0)
    store.linked(ONE, GatewayHello("gateway-1", 1), 6.0)
    store.add_summary(ONE, summary(3, 20), 10.0)
    reading = store.take_arrivals(10.0, 1)
    assert isinstance(reading, Unknown)
    assert "did not arrive" in reading.why
    store.add_summary(ONE, summary(4, 20), 15.0)
    assert isinstance(store.take_arrivals(15.0, 1), Arrivals)


def test_an_absurd_report_is_unknown() -> None:
    store = linked(ONE)
    store.add_summary(ONE, summary(1, 1 << 39), 5.0)
    assert isinstance(store.take_arrivals(5.0, 1), Unknown)


def test_a_gateway_that_has_just_linked_says_nothing_of_what_others_serve_until_it_has_had_the_time() -> None:
    """Seen on real Pods: in a drain the successor of a gateway reported no worker, and for 5 s the deployment said that
    none was routable while every request was answered."""
    both = {(Role.PREFILL, "t1"): 1, (Role.DECODE, "t1"): 1}
    store = linked(ONE)
    store.add_summary(ONE, summary(1), 5.0)
    store.linked(TWO, GatewayHello("gateway-2", 1), 7.0)
    store.add_summary(TWO, summary(1, workers=()), 7.0)
    assert store.routable(7.0) == both
    store.add_summary(TWO, summary(2, workers=(PAIR[0],)), 8.0)
    assert store.routable(8.0) == {(Role.PREFILL, "t1"): 1}, "it has found workers"
    store.add_summary(TWO, summary(3, workers=()), 9.0)
    assert store.routable(9.0) == {}, "and lost them"
    store.gone(TWO, 9.0)
    store.linked(TWO, GatewayHello("gateway-2", 1), 20.0)
    store.add_summary(ONE, summary(2), 20.0)
    store.add_summary(TWO, summary(4, workers=()), 20.0)
    assert store.routable(20.0) == both
    store.add_summary(TWO, summary(5, workers=()), 20.0 + SETTLED_S)
    assert store.routable(20.0 + SETTLED_S) == {}, "cut off from them: what comes to it is not served"


def test_the_only_gateway_is_believed_at_once() -> None:
    store = linked(ONE)
    store.add_summary(ONE, summary(1, workers=()), 0.5)
    assert store.routable(0.5) == {}


def test_a_worker_is_routable_when_every_gateway_has_it_live_with_a_partner() -> None:
    store = linked(ONE, TWO)
    extra = worker(b"E", Role.DECODE)
    alone = worker(b"A", Role.PREFILL, has_partner=False)
    leaving = worker(b"L", Role.DECODE, condition=WorkerCondition.DRAINING)
    store.add_summary(ONE, summary(1, workers=(*PAIR, extra, alone, leaving)), 5.0)
    store.add_summary(TWO, summary(1, workers=(*PAIR, alone)), 5.0)
    assert store.routable(5.0, 2) == {(Role.PREFILL, "t1"): 1, (Role.DECODE, "t1"): 1}


def test_while_a_gateway_of_another_release_is_there_no_count_says_which_workers_it_uses() -> None:
    store = linked(ONE)
    store.add_summary(ONE, summary(1, workers=PAIR), 5.0)
    store.refused_version("version: 11..11 here, 3..3 there", 6.0)
    assert store.routable(7.0) is None
    assert store.pairs(7.0) == Pairs(gateways=1)
    store.add_summary(ONE, summary(2, workers=PAIR), 6.0 + OTHER_VERSION_S)
    assert store.routable(6.5 + OTHER_VERSION_S) == {(Role.PREFILL, "t1"): 1, (Role.DECODE, "t1"): 1}


def test_workers_that_no_gateway_has_linked_are_known_once_each_gateway_had_a_minute_to_find_them() -> None:
    store = linked(ONE, TWO)
    for gateway in (ONE, TWO):
        store.add_summary(gateway, summary(1, workers=PAIR[:1] if gateway == ONE else PAIR), UNLINKED_S)
    assert store.linked_templates(UNLINKED_S - 1.0) is None
    assert store.linked_in_s(UNLINKED_S - 1.0) == 1.0, "a pass is due then"
    assert store.linked_in_s(UNLINKED_S + 1.0) is None
    assert store.linked_templates(UNLINKED_S + 1.0) == frozenset({(Role.PREFILL, "t1"), (Role.DECODE, "t1")})
    store.refused_version("version: 11..11 here, 3..3 there", UNLINKED_S + 2.0)
    assert store.linked_templates(UNLINKED_S + 3.0) is None


OLD, NEW = (
    tuple(worker(name, role) for name, role in zip(names, POOL_ROLES, strict=True))
    for names in ((b"p", b"d"), (b"P", b"D"))
)


def test_in_a_drain_each_gateway_has_a_pair_of_its_own_though_no_worker_is_routable_everywhere() -> None:
    store = linked(ONE, TWO)
    store.add_summary(ONE, summary(1, workers=OLD), 5.0)
    store.add_summary(TWO, summary(1, workers=NEW), 5.0)
    assert store.routable(5.0) == {}, "rollouts count what every gateway has"
    assert store.pairs(5.0) == Pairs(gateways=2)
    leaving = tuple(replace(old_worker, condition=WorkerCondition.DRAINING) for old_worker in OLD)
    store.add_summary(ONE, summary(2, workers=leaving), 6.0)
    assert store.pairs(6.0) == Pairs(gateways=2, may_lack_soon=True), "what comes there waits meanwhile"
    store.add_summary(ONE, summary(3, workers=(*leaving, *NEW)), 7.0)
    assert store.pairs(7.0) == Pairs(gateways=2)


def test_a_gateway_that_stays_without_a_pair_lacks_one_though_another_serves() -> None:
    store = linked(ONE, TWO)
    for epoch in (ONE, TWO):
        store.add_summary(epoch, summary(1), 0.0)
    for number, now in ((2, 1.0), (3, 6.0)):
        store.add_summary(ONE, summary(number), now)
        store.add_summary(TWO, summary(number, workers=(replace(PAIR[0], has_partner=False),)), now)
    lost_s = 1.0
    just_before = lost_s + PAIR_MEMORY_S - 0.1
    assert store.pairs(just_before) == Pairs(gateways=2, may_lack_soon=True)
    assert store.pairs(lost_s + PAIR_MEMORY_S) == Pairs(gateways=2, lacking=("gateway-2",))
    store.add_summary(TWO, summary(4), 12.0)
    assert store.pairs(12.0) == Pairs(gateways=2)


def test_when_the_workers_are_gone_every_gateway_lacks_a_pair_after_the_memory() -> None:
    store = linked(ONE, TWO)
    for epoch in (ONE, TWO):
        store.add_summary(epoch, summary(1), 0.0)
        store.add_summary(epoch, summary(2, workers=()), 2.0)
    assert store.pairs(2.0) == Pairs(gateways=2, may_lack_soon=True)
    assert store.pairs(2.0 + PAIR_MEMORY_S) == Pairs(gateways=2, lacking=("gateway-1", "gateway-2"))


def test_a_gateway_that_has_just_linked_says_nothing_of_pairs_while_there_was_one_a_moment_ago() -> None:
    store = linked(ONE)
    store.add_summary(ONE, summary(1), 0.0)
    store.add_summary(ONE, summary(2), 10.0)
    store.linked(TWO, GatewayHello("gateway-2", 1), 10.0)
    assert store.routable(10.0) is None
    assert store.pairs(10.0) == Pairs(gateways=2, may_lack_soon=True), "it has had no time to tell anything"
    store.add_summary(TWO, summary(1, workers=()), 11.0)
    assert store.pairs(11.0) == Pairs(gateways=2, may_lack_soon=True)
    store.gone(ONE, 11.5)
    assert store.pairs(12.0) == Pairs(gateways=1, may_lack_soon=True), "its predecessor had one until it went"
    assert store.pairs(9.9 + PAIR_MEMORY_S) == Pairs(gateways=1, may_lack_soon=True)
    assert store.pairs(10.0 + PAIR_MEMORY_S) == Pairs(gateways=1, lacking=("gateway-2",))


def test_a_first_gateway_is_believed_at_once_that_it_has_no_pair() -> None:
    store = linked(ONE)
    assert store.pairs(0.0) is None
    store.add_summary(ONE, summary(1, workers=()), 0.5)
    assert store.pairs(0.5) == Pairs(gateways=1, lacking=("gateway-1",))


def test_pairs_are_unknown_without_a_gateway_and_while_one_is_silent_that_has_had_the_time_to_tell() -> None:
    assert TelemetryStore().pairs(0.0) is None
    store = linked(ONE, TWO)
    store.add_summary(ONE, summary(1), 0.0)
    store.add_summary(TWO, summary(1), 0.0)
    store.add_summary(ONE, summary(2), FRESH_S)
    assert store.pairs(FRESH_S) == Pairs(gateways=2)
    assert store.pairs(FRESH_S + 0.1) is None
    store = linked(ONE, TWO)
    store.add_summary(ONE, summary(1), 0.0)
    assert store.pairs(PAIR_MEMORY_S - 0.1) == Pairs(gateways=2, may_lack_soon=True)
    assert store.pairs(PAIR_MEMORY_S) is None


def test_a_gateway_of_two_processes_counts_with_both() -> None:
    hello = GatewayHello("gateway-1", 2)
    store = TelemetryStore()
    store.linked(ONE, hello, 0.0)
    store.add_summary(ONE, summary(1), 0.0)
    assert store.pairs(0.0) is None
    store.linked(TWO, hello, 1.0)
    store.add_summary(TWO, summary(1, workers=()), 1.0)
    assert store.pairs(1.0) == Pairs(gateways=1, may_lack_soon=True)
    store.add_summary(ONE, summary(2), 1.0 + PAIR_MEMORY_S)
    assert store.pairs(1.0 + PAIR_MEMORY_S) == Pairs(gateways=1, lacking=("gateway-1",)), "a half of what comes there"


def test_a_gateway_holds_requests_for_longer_than_a_lost_pair_is_remembered() -> None:
    """A loss is reported within half a second of it, so that a request which came then still waits."""
    required = ["--keys=/keys", "--prefill-discovery=file:/prefill", "--decode-discovery=file:/decode"]
    held_s = parse_settings(required).park_s  # the operator gives gateways no other
    assert held_s >= PAIR_MEMORY_S + 1.0


def test_what_waits_is_unknown_as_long_as_any_part_of_it_is() -> None:
    store = linked(ONE)
    waiting = worker(b"P", Role.PREFILL, waiting_tokens=300)
    store.add_summary(ONE, summary(1, backlog=Backlog(2, 0, 1.0, 500), workers=(waiting,)), 5.0)
    assert store.queued_tokens(5.0, 1) == Known(800.0)
    store.add_summary(ONE, summary(2, backlog=Backlog(2, 2, 1.0, None), workers=(waiting,)), 10.0)
    assert isinstance(store.queued_tokens(10.0, 1), Unknown)
    store.add_summary(ONE, summary(3, workers=(replace(waiting, waiting_tokens=None),)), 15.0)
    assert isinstance(store.queued_tokens(15.0, 1), Unknown)
    store.add_summary(ONE, summary(4), 20.0)
    assert isinstance(store.queued_tokens(20.0, 1), ProvenZero)
    assert isinstance(store.running(20.0, 1), ProvenZero)


def test_a_step_that_two_gateways_told_of_counts_once_and_start_ups_once_a_worker() -> None:
    store = linked(ONE, TWO)
    measured = worker(b"P", Role.PREFILL, timings=(StepTiming(4, 100, 5e3, 0, 0, 0.01),))
    for number in (1, 2):
        for epoch in (ONE, TWO):
            store.add_summary(epoch, summary(number, workers=(measured,)), 5.0 * number)
    assert [(seen.role, seen.timing.step) for seen in store.take_steps()] == [(Role.PREFILL, 4)]
    assert store.take_steps() == []
    assert store.startup_s(Role.PREFILL) == 7.0
    assert store.startup_s(Role.DECODE) is None


def test_requests_that_were_not_served_missed_their_target() -> None:
    store = linked(ONE)
    fast = SketchData(total=3.0, bins=((-100, 30),))
    store.add_summary(ONE, summary(1, served=Served(fast, fast, 10)), 5.0)
    share, count = store.latencies(5.0).share_met(Role.PREFILL, 1.0) or (0.0, 0)
    assert (round(share, 3), count) == (0.75, 40)
    assert store.latencies(500.0).share_met(Role.PREFILL, 1.0) is None, "that was long ago"


def test_the_slowest_measured_way_of_all_workers_counts_and_unmeasured_ones_do_not() -> None:
    fast, slow = Lanes(2, 0, "cuda_ipc/cuda", 3e11), Lanes(3, 1, "tcp x1", 9e8)
    crews = (PAIR, (replace(PAIR[0], lanes=fast), worker(b"Q", Role.PREFILL, lanes=slow), PAIR[1]))
    seen = []
    for crew in crews:
        store = linked(ONE)
        store.add_summary(ONE, summary(1, workers=crew), 1.0)
        seen.append(store.lanes())
    assert seen == [None, Lanes(5, 1, "tcp x1", 9e8)]


def test_the_operator_hears_lane_rate_and_verdict() -> None:
    store = linked(ONE)
    telemetry = GatewayTelemetry(lambda key: store, lambda: 1.0)
    heard = telemetry.report(Key("team-a", "chat"), "uid", deployment())
    assert heard is not None
    assert (heard.lane, heard.transport_verified) == (None, None)
    slow = worker(b"Q", Role.PREFILL, lanes=Lanes(3, 1, "tcp x1", 9.04e8))
    store.add_summary(ONE, summary(1, workers=(slow, *PAIR)), 1.0)
    heard = telemetry.report(Key("team-a", "chat"), "uid", deployment())
    assert heard is not None
    assert heard.lane == LaneStatus(lane="tcp x1", bandwidth="0.9 GB/s")
    assert heard.transport_verified is False
    assert heard.transport_message == "3 measured, 1 below kvTransfer.minBandwidth; the slowest: tcp x1, 0.9 GB/s"


def test_what_a_flexible_worker_is_comes_from_the_gateway_that_heard_of_its_latest_flip() -> None:
    store = linked(ONE, TWO)
    assert store.flexible_workers() == ()
    before = worker(b"F", Role.PREFILL, flips=True, flip=3)
    after = replace(before, role=Role.DECODE, flip=4)
    store.add_summary(ONE, summary(1, workers=(after, *PAIR)), 1.0)
    store.add_summary(TWO, summary(1, workers=(before, *PAIR)), 1.0)
    assert store.flexible_workers() == (FlexibleWorker("127.0.0.1", after.epoch, Role.DECODE, 4),)
    store.add_summary(TWO, summary(2, workers=PAIR), 2.0)
    assert store.flexible_workers() == (FlexibleWorker("127.0.0.1", after.epoch, Role.DECODE, 4, is_routable=False),)
    store.add_summary(TWO, summary(3, workers=(before, *PAIR)), 3.0)
    heard = GatewayTelemetry(lambda key: store, lambda: 1.0).report(Key("team-a", "chat"), "uid", deployment())
    assert heard is not None
    assert heard.flexible == store.flexible_workers()


def test_more_waiting_tokens_than_came_are_unknown_and_move_no_pool() -> None:
    """A worker that holds a valid key, and lies: it must not scale its pool to the most."""
    store = TelemetryStore()
    store.linked(ONE, GatewayHello("g1", 1), 0.0)
    came = SketchData(total=5_000_000.0)
    whole = summary(1)
    arrived = replace(whole.arrived, prompt_tokens=came)
    for waiting, is_known in ((9_000_000, True), (1 << 40, False)):
        workers = (worker(b"P", Role.PREFILL, waiting_tokens=waiting), PAIR[1])
        store.add_summary(ONE, replace(whole, arrived=arrived, workers=workers), 1.0)
        assert isinstance(store.queued_tokens(1.0, 1), Known) is is_known
        arrived = replace(whole.arrived, prompt_tokens=EMPTY)
    workers = (worker(b"P", Role.PREFILL, waiting_tokens=9_000_000), PAIR[1])
    store.add_summary(ONE, replace(whole, workers=workers), 700.0)
    assert isinstance(store.queued_tokens(700.0, 1), Unknown), "what came so long ago does not wait any more"


def test_a_start_that_took_longer_than_a_day_is_not_believed() -> None:
    store = TelemetryStore()
    store.linked(ONE, GatewayHello("g1", 1), 0.0)
    for number, startup_s in enumerate((1e7, 0.0, 9.0), 1):
        liar = worker(bytes([number]), Role.PREFILL, startup_s=startup_s)
        store.add_summary(ONE, summary(number, workers=(liar,)), float(number))
    assert store.startup_s(Role.PREFILL) == 9.0


def test_contexts_of_all_gateways_add_up_while_every_one_reports() -> None:
    def counts(prompts: int, live: int) -> ContextCounts:
        return ContextCounts(prompts, 0, prompts, 0, (prompts,) * NUM_WINDOWS, (live,) * NUM_WINDOWS)

    store = linked(ONE, TWO)
    assert store.contexts(0.0, 2) is None
    store.add_summary(ONE, summary(1, contexts=counts(100, 7)), 5.0)
    store.add_summary(TWO, summary(1, contexts=counts(200, 9)), 5.0)
    store.add_summary(ONE, summary(2, contexts=counts(300, 8)), 10.0)
    use = store.contexts(10.0, 2)
    assert use is not None
    assert (use.prompt_tokens, use.live[0]) == (600, 8 + 9)
    assert store.contexts(10.0, 3) is None, "a third one is silent"
    store.add_summary(TWO, summary(2), 10.0)
    assert store.contexts(10.0, 2) is None, "one does not count them"
    for number in range(3, 60):
        store.add_summary(ONE, summary(number, contexts=counts(0, 1)), 5.0 * number)
        store.add_summary(TWO, summary(number, contexts=counts(0, 1)), 5.0 * number)
    use = store.contexts(295.0, 2)
    assert use is not None
    assert (use.prompt_tokens, use.live[0]) == (0, 2), "the first minutes are forgotten"


def test_a_deployment_that_only_embeds_is_judged_by_ttft_alone() -> None:
    store, fast, nothing = linked(ONE), SketchData(total=3.0, bins=((-100, 30),)), SketchData(total=0.0, bins=())
    store.add_summary(ONE, summary(1, served=Served(fast, nothing, 0)), 1.0)
    telemetry, key = GatewayTelemetry(lambda key: store, lambda: 1.0), Key("team-a", "chat")
    judged = [telemetry.report(key, "uid", one) for one in (deployment(model__tasks=["Embed"]), deployment())]
    assert [None if report is None else report.slo_met for report in judged] == [True, None]
