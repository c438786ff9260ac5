"""Filter, score, pick: which workers take a run."""

from __future__ import annotations

from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from baton_gateway.errors import Problem
from baton_gateway.requests.routing import Routing
from baton_gateway.workers.pool_load import num_prefill
from baton_gateway.workers.route import MoveReason, Route, RoutePolicy, RouteQuery, pick, revisions
from baton_gateway.workers.worker_view import WorkerView
from baton_wire.messages.values import Address, PairFingerprint, Role, pack_ids
from baton_wire.rules.prefix_digests import PromptPlaces

PRINT = PairFingerprint(1, "a" * 64, "float32", "float32", 2, 2, 8, "b" * 64, "c" * 64)
OTHER = PairFingerprint(1, "d" * 64, "float32", "float32", 2, 2, 8, "b" * 64, "c" * 64)
POLICY = RoutePolicy()


def worker(name: str, **changes: object) -> WorkerView:
    """P… is a prefill worker, D… a decode worker; idle, empty, fitting."""
    role = Role.PREFILL if name.startswith("P") else Role.DECODE
    view = WorkerView(
        epoch=name.encode(),
        role=role,
        served_name="m",
        fingerprint=PRINT,
        pair_address=Address("h", 1) if role is Role.DECODE else None,
        max_context_tokens=1_000,
        max_choices=8,
        block_tokens=16,
        blocks_total=100,
        blocks_free=100,
        max_sequences=64,
        seed=int.from_bytes(name.encode(), "little"),
    )
    return msgspec.structs.replace(view, **changes)


def query(tokens: int = 100, **changes: object) -> RouteQuery:
    return msgspec.structs.replace(RouteQuery(PRINT, tokens, tokens + 50, 1, frozenset()), **changes)


def choose(
    *workers: WorkerView,
    asked: RouteQuery | None = None,
    policy: RoutePolicy = POLICY,
) -> str:
    """`P D` of the chosen pair, or the problem's code."""
    route = pick(asked or query(), workers, policy)
    if isinstance(route, Problem):
        return str(route.code)
    return f"{route.prefill.decode() if route.prefill else '-'} {route.decode.decode()}"


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        ([worker("P1"), worker("D1")], "P1 D1"),
        ([worker("P1")], "no_routable_workers"),
        ([worker("D1")], "no_routable_workers"),
        ([], "no_routable_workers"),
        ([worker("P1", fingerprint=OTHER), worker("D1")], "no_routable_workers"),
        ([worker("P1", fingerprint=OTHER), worker("P2"), worker("D1", fingerprint=OTHER), worker("D2")], "P2 D2"),
        ([worker("P1", is_draining=True), worker("P2"), worker("D1", is_suspect=True), worker("D2")], "P2 D2"),
        ([worker("P1", is_suspect=True), worker("D1")], "no_routable_workers"),
        ([worker("P1", max_context_tokens=90), worker("P2"), worker("D1")], "P2 D1"),
        ([worker("P1"), worker("D1", max_context_tokens=120), worker("D2")], "P1 D2"),
        ([worker("P1", max_context_tokens=90), worker("D1")], "context_length_exceeded"),
        ([worker("P1"), worker("D1", blocks_total=6)], "context_length_exceeded"),
        ([worker("P1", load_tokens=5), worker("P2"), worker("D1", load_sequences=1), worker("D2")], "P2 D2"),
        ([worker("P1"), worker("D1", blocks_free=2), worker("D2", load_sequences=9)], "P1 D2"),
        ([worker("P1"), worker("D1", blocks_free=None), worker("D2", load_sequences=1)], "P1 D1"),
        ([worker("P1"), worker("D1", load_sequences=50, blocks_free=0)], "P1 D1"),
    ],
)  # fmt: skip
def test_the_pair_is_the_least_loaded_that_fits(workers: list[WorkerView], expected: str) -> None:
    assert choose(*workers) == expected


def test_a_route_says_how_long_its_prompt_takes_without_what_is_cached() -> None:
    workers = (worker("P1", token_s=0.01), worker("D1"))
    routes = [pick(query(cached=cached), workers, POLICY) for cached in ({}, {b"P1": 64})]
    new = (worker("P1", load_tokens=9, token_s=0.02), worker("P2"), worker("D1", token_s=9.0))
    routes.append(pick(query(), new, POLICY))
    assert [route.own_s for route in routes if isinstance(route, Route)] == pytest.approx([1.0, 0.36, 2.0])


def test_who_failed_the_run_is_taken_only_when_there_is_no_other() -> None:
    asked = query(avoid=frozenset({b"P1", b"D1"}))
    assert choose(worker("P1"), worker("P2", load_tokens=900), worker("D1"), asked=asked) == "P2 D1"


def test_more_choices_than_a_worker_takes_go_elsewhere() -> None:
    workers = [worker("P1"), worker("D1", max_choices=2), worker("D2", load_sequences=5)]
    assert choose(*workers, asked=query(choices=4)) == "P1 D2"


@pytest.mark.parametrize(
    ("policy", "workers", "expected"),
    [
        (RoutePolicy(decode_locally=True), ["P1", "D1"], "P1 D1"),
        (RoutePolicy(decode_locally=True), ["D1"], "- D1"),
        (RoutePolicy(decode_locally=True), ["P1"], "no_routable_workers"),
        (RoutePolicy(disaggregate=False), ["P1", "D1"], "- D1"),
    ],
)
def test_decode_workers_prefill_by_policy(policy: RoutePolicy, workers: list[str], expected: str) -> None:
    assert choose(*map(worker, workers), policy=policy) == expected


def test_equal_workers_are_told_apart_by_the_prompt_and_all_gateways_do_it_alike() -> None:
    workers = [worker(name) for name in ("P1", "P2", "P3", "P4", "D1", "D2")]
    chosen = [choose(*workers, asked=query(tie=tie)) for tie in range(4_000)]
    assert chosen == [choose(*workers[::-1], asked=query(tie=tie)) for tie in range(4_000)]
    counts = Counter(choice.split()[0] for choice in chosen)
    assert set(counts) == {"P1", "P2", "P3", "P4"}
    assert all(800 < count < 1_200 for count in counts.values()), counts
    gone = [choose(*workers[1:], asked=query(tie=tie)) for tie in range(4_000)]
    assert all(one == other for one, other in zip(chosen, gone, strict=True) if "P1" not in one)


def test_a_prompt_goes_back_to_who_holds_its_beginning_unless_that_one_is_busy() -> None:
    asked = query(500, cached={b"P2": 384, b"D2": 384})
    idle = [worker("P1"), worker("P2"), worker("D1"), worker("D2")]
    assert choose(*idle, asked=asked) == "P2 D2"
    busy = [worker("P1"), worker("P2", load_tokens=1_200), worker("D1"), worker("D2", load_sequences=19)]
    assert choose(*busy, asked=asked) == "P1 D1"


def test_sessions_with_a_common_beginning_never_tie_with_each_other() -> None:
    """Each goes to where its whole context is, although all workers have the beginning."""
    workers = [worker(name, max_context_tokens=99_999, blocks_total=9_999) for name in ("P1", "P2", "P3", "D1", "D2")]
    head = dict.fromkeys([b"P1", b"P2", b"P3", b"D1", b"D2"], 8_192)
    for prefill, decode in ((b"P1", b"D2"), (b"P3", b"D1")):
        asked = query(20_000, cached=head | {prefill: 19_584, decode: 19_584})
        assert choose(*workers, asked=asked) == f"{prefill.decode()} {decode.decode()}"


def test_a_session_stays_until_its_wait_is_longer_than_computing_it_elsewhere() -> None:
    large: dict[str, object] = {"max_context_tokens": 99_999, "blocks_total": 9_999, "blocks_free": 9_999}
    asked = query(64_000, cached={b"P1": 58_000})
    for queued, chosen, moved in ((173_999, "P1", None), (174_001, "P2", MoveReason.BUSY)):
        workers = [worker("P1", load_tokens=queued, **large), worker("P2", **large), worker("D1", **large)]
        route = pick(asked, workers, POLICY)
        assert isinstance(route, Route)
        assert (route.prefill, route.moved) == (chosen.encode(), moved)
        assert route.best_cached_tokens == 58_000


@pytest.mark.parametrize(
    ("home", "avoid", "reason"),
    [
        ({"is_draining": True}, False, MoveReason.LEAVING),
        ({"is_suspect": True}, False, MoveReason.LEAVING),
        ({"is_stuck": True}, False, MoveReason.FAILED),
        ({}, True, MoveReason.FAILED),
        ({"blocks_free": 1}, False, MoveReason.FULL),
        ({"load_tokens": 15_000}, False, MoveReason.BUSY),
        ({}, False, None),
    ],
)
def test_a_move_has_a_reason(home: dict[str, object], avoid: bool, reason: MoveReason | None) -> None:
    large: dict[str, object] = {"max_context_tokens": 9_999, "blocks_total": 999, "blocks_free": 999}
    asked = query(5_000, cached={b"P1": 4_800}, avoid=frozenset({b"P1"}) if avoid else frozenset())
    route = pick(asked, [worker("P1", **{**large, **home}), worker("P2", **large), worker("D1", **large)], POLICY)
    assert isinstance(route, Route)
    assert route.moved is reason
    assert (route.prefill == b"P1") is (reason is None)


def test_a_new_session_that_leaves_only_its_common_beginning_has_not_moved() -> None:
    large: dict[str, object] = {"max_context_tokens": 99_999, "blocks_total": 9_999, "blocks_free": 9_999}
    workers = [worker("P1", load_tokens=25_000, **large), worker("P2", **large), worker("D1", **large)]
    route = pick(query(20_000, cached={b"P1": 8_192}), workers, POLICY)
    assert isinstance(route, Route)
    assert (route.prefill, route.moved) == (b"P2", None)


def test_a_prompt_waits_for_no_slot_where_its_beginning_is_while_another_worker_has_one() -> None:
    cached = {b"P1": 896, b"D1": 896}
    asked, idle = query(900, cached=cached), worker("D2", load_sequences=3)
    for running, expected in ((3, "P1 D1"), (4, "P1 D2")):
        busy = worker("D1", load_sequences=running, max_sequences=4)
        assert choose(worker("P1"), busy, idle, asked=asked) == expected
    for choices, expected in ((2, "P1 D1"), (3, "P1 D2")):
        busy, wide = worker("D1", load_sequences=2, max_sequences=4), query(900, cached=cached, choices=choices)
        assert choose(worker("P1"), busy, idle, asked=wide) == expected
    full = [worker(name, load_sequences=4, max_sequences=4) for name in ("D1", "D2")]
    assert choose(worker("P1"), *full, asked=asked) == "P1 D1", "all are full"


def test_a_route_says_what_of_its_prompt_is_missing_where_it_is_computed_and_received() -> None:
    """Else a worker that has the prompt seems to have all of it in line until it reports again."""
    asked = query(700, cached={b"P1": 640, b"D1": 320})
    pair = [worker("P1"), worker("D1")]
    handed_over = pick(asked, pair, POLICY)
    local = pick(asked, pair, RoutePolicy(disaggregate=False))
    alone = pick(asked, [worker("P1", keeps_answers=True)], POLICY)
    routes = [route for route in (handed_over, local, alone) if isinstance(route, Route)]
    assert [route.missing_tokens for route in routes] == [700 - 640, 700 - 320, 700 - 640]
    assert [route.received_tokens for route in routes] == [700 - 320, None, None]


def test_more_cached_tokens_than_the_prompt_has_are_not_believed() -> None:
    route = pick(query(100, cached={b"P1": 10**9, b"D1": 10**9}), [worker("P1"), worker("D1")], POLICY)
    assert isinstance(route, Route)
    assert (route.missing_tokens, route.received_tokens, route.best_cached_tokens) == (1, 1, 100)


def test_revisions_are_counted_by_their_decode_workers() -> None:
    workers = [
        worker("P1"), worker("D1"), worker("D2"), worker("D3", is_draining=True),
        worker("P2", fingerprint=OTHER), worker("D4", served_name="n"),
    ]  # fmt: skip
    assert revisions(workers, "m", POLICY) == {PRINT: 2}
    assert revisions(workers, "n", POLICY) == {}
    assert revisions(workers, "x", POLICY) == {}
    assert revisions([worker("D1")], "m", POLICY) == {}
    assert revisions([worker("D1")], "m", RoutePolicy(decode_locally=True)) == {PRINT: 1}


def test_a_route_is_plain_data() -> None:
    route = pick(query(), [worker("P1"), worker("D1")], POLICY)
    assert route == Route(b"P1", b"D1", Address("h", 1), missing_tokens=100, received_tokens=100)


def test_a_worker_that_flipped_hands_nothing_over_to_itself() -> None:
    """The worker retains a prompt's KV from before the flip, and is a decode worker now."""
    asked = query(retained_by=b"D1")
    assert choose(worker("P1"), worker("D1"), worker("D2", load_sequences=9), asked=asked) == "D1 D2"
    assert choose(worker("P1"), worker("D1"), asked=asked) == "P1 D1"


def test_sessions_with_a_common_beginning_do_not_all_decode_at_one_worker() -> None:
    """Each step of a decode worker reads the KV of all its sequences: that costs more than receiving a beginning."""
    large: dict[str, object] = {"max_context_tokens": 99_999, "blocks_total": 50_000}
    asked = query(30_000, cached={b"D1": 12_000})
    for held_blocks, decode in ((2_200, "D1"), (2_300, "D2")):
        busy = worker("D1", blocks_free=50_000 - held_blocks, **large)
        workers = [worker("P1", blocks_free=50_000, **large), busy, worker("D2", blocks_free=50_000, **large)]
        assert choose(*workers, asked=asked) == f"P1 {decode}"


def test_a_prompt_that_fills_every_block_of_a_worker_is_sent_there() -> None:
    pair = [worker("P1", blocks_total=7, blocks_free=7), worker("D1", blocks_total=7, blocks_free=7)]
    assert choose(*pair, asked=query(7 * 16, total_tokens=7 * 16)) == "P1 D1"
    assert choose(*pair, asked=query(7 * 16 + 1, total_tokens=7 * 16 + 1)) == "context_length_exceeded"


def test_only_a_models_own_prefill_workers_are_counted() -> None:
    pool = [worker("P1"), worker("P2", gateways=2), worker("P3", served_name="other"), worker("D1")]
    assert num_prefill(pool, "m") == 1.5, "one, and half of one that two gateways share"


def test_a_revision_that_is_still_served_is_not_superseded_by_a_newer_one() -> None:
    def is_superseded(*pool: WorkerView) -> bool:
        routing = Routing(cast(Any, SimpleNamespace(views=lambda: pool)), Random(1))
        request = SimpleNamespace(options=SimpleNamespace(model="m"))
        live = SimpleNamespace(fingerprint=PRINT, request=request, is_encoded=False)
        return routing.is_superseded(cast(Any, live), POLICY)

    old = worker("P1"), worker("D1")
    new = worker("P2", fingerprint=OTHER), worker("D2", fingerprint=OTHER)
    assert not is_superseded(*old, *new)
    assert is_superseded(*new)
    assert is_superseded(old[0], *new), "its last decode worker is gone"
    assert not is_superseded(), "no other revision can be served"


def test_processes_send_first_prompts_with_a_common_beginning_to_one_worker_and_others_to_any() -> None:
    """Each process knows nothing but the prompt: no worker has announced anything."""
    pool = [
        worker(name, max_context_tokens=99_999, blocks_total=9_000, blocks_free=9_000) for name in ("P1", "P2", "D1")
    ]
    table = SimpleNamespace(
        views=lambda: pool,
        block_sizes=lambda fingerprint: [16],
        cached=SimpleNamespace(longest=lambda names: {}),
    )

    def prefill_of(ids: list[int]) -> str:
        live = SimpleNamespace(
            fingerprint=PRINT,
            is_encoded=False,
            session=None,
            cached={},
            places=[PromptPlaces(pack_ids(tuple(ids)), "")],
        )
        action = SimpleNamespace(
            prompt=0,
            tokens=len(ids),
            total_tokens=len(ids) + 5,
            choices=1,
            avoid=frozenset(),
            retained_by=None,
        )
        route = Routing(cast(Any, table), Random(1)).choose(cast(Any, live), cast(Any, action), POLICY, 0.0)
        assert isinstance(route, Route)
        assert route.prefill is not None
        return route.prefill.decode()

    head = list(range(1_200))
    assert len({prefill_of([*head, *range(number, number + 300)]) for number in range(12)}) == 1
    assert len({prefill_of(list(range(number, number + 1_500))) for number in range(12)}) == 2
