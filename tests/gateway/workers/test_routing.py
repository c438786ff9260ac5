"""Filter, score, pick: which workers take a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from baton_gateway.errors import Problem
from baton_gateway.workers.affinity import PrefixAffinity, prefix_keys
from baton_gateway.workers.route import Route, RoutePolicy, RouteQuery, pick, revisions
from baton_gateway.workers.worker_view import WorkerView
from baton_wire.messages.values import Address, PairFingerprint, Role, pack_ids

PRINT = PairFingerprint(1, "a" * 64, "float32", "float32", 2, 2, 8, "b" * 64, "c" * 64)
OTHER = PairFingerprint(1, "d" * 64, "float32", "float32", 2, 2, 8, "b" * 64, "c" * 64)
POLICY = RoutePolicy()


def keys_of(tokens: Iterable[int], salt: str) -> tuple[bytes, ...]:
    return prefix_keys(pack_ids(list(tokens)), salt)


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
    )
    return replace(view, **changes)  # type: ignore[arg-type]


def query(tokens: int = 100, **changes: object) -> RouteQuery:
    return replace(RouteQuery(PRINT, tokens, tokens + 50, 1, frozenset()), **changes)  # type: ignore[arg-type]


def choose(
    *workers: WorkerView,
    asked: RouteQuery | None = None,
    policy: RoutePolicy = POLICY,
    affinity: PrefixAffinity | None = None,
    draw: float = 0.0,
) -> str:
    """`P D` of the chosen pair, or the problem's code."""
    route = pick(asked or query(), workers, policy, affinity or PrefixAffinity(), draw)
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
    prefix, affinity, workers = (
        keys_of(range(64), ""),
        PrefixAffinity(),
        (worker("P1", token_s=0.01), worker("D1")),
    )
    affinity.record([b"P1"], prefix)
    routes = [pick(query(prefix=keys), workers, POLICY, affinity, 0.0) for keys in ((), prefix)]
    new = (worker("P1", load_tokens=9, token_s=0.02), worker("P2"), worker("D1", token_s=9.0))
    routes.append(pick(query(), new, POLICY, PrefixAffinity(), 0.0))
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


def test_ties_are_broken_by_the_draw_alone() -> None:
    workers = [worker("P1"), worker("P2"), worker("D1"), worker("D2")]
    assert [choose(*workers, draw=draw) for draw in (0.0, 0.49, 0.5, 0.999)] == ["P1 D1", "P1 D1", "P2 D2", "P2 D2"]


def test_a_prompt_goes_back_to_who_holds_its_beginning_unless_that_one_is_busy() -> None:
    prefix = keys_of(range(1_000), "")
    affinity = PrefixAffinity()
    affinity.record([b"P2", b"D2"], prefix[:6])
    asked = query(500, prefix=prefix[:7])
    idle = [worker("P1"), worker("P2"), worker("D1"), worker("D2")]
    assert choose(*idle, asked=asked, affinity=affinity) == "P2 D2"
    busy = [worker("P1"), worker("P2", load_tokens=400), worker("D1"), worker("D2", load_sequences=7)]
    assert choose(*busy, asked=asked, affinity=affinity) == "P1 D1"


def test_a_prompt_waits_for_no_slot_where_its_beginning_is_while_another_worker_has_one() -> None:
    prefix, affinity = keys_of(range(1_000), ""), PrefixAffinity()
    affinity.record([b"P1", b"D1"], prefix)
    asked, idle = query(900, prefix=prefix), worker("D2", load_sequences=3)
    for running, expected in ((3, "P1 D1"), (4, "P1 D2")):
        busy = worker("D1", load_sequences=running, max_sequences=4)
        assert choose(worker("P1"), busy, idle, asked=asked, affinity=affinity) == expected
    for choices, expected in ((2, "P1 D1"), (3, "P1 D2")):
        busy, wide = worker("D1", load_sequences=2, max_sequences=4), query(900, prefix=prefix, choices=choices)
        assert choose(worker("P1"), busy, idle, asked=wide, affinity=affinity) == expected
    full = [worker(name, load_sequences=4, max_sequences=4) for name in ("D1", "D2")]
    assert choose(worker("P1"), *full, asked=asked, affinity=affinity) == "P1 D1", "all are full"


def test_a_route_says_what_of_its_prompt_is_missing_where_it_is_computed() -> None:
    """Else a worker that has the prompt seems to have all of it in line until it reports again."""
    prefix, affinity = keys_of(range(640), ""), PrefixAffinity()
    affinity.record([b"P1", b"D1"], prefix[:5])
    affinity.record([b"P1"], prefix)
    asked = query(700, prefix=prefix)
    pair = [worker("P1"), worker("D1")]
    handed_over = pick(asked, pair, POLICY, affinity, 0.0)
    local = pick(asked, pair, RoutePolicy(disaggregate=False), affinity, 0.0)
    alone = pick(asked, [worker("P1", keeps_answers=True)], POLICY, affinity, 0.0)
    missing = [route.missing_tokens for route in (handed_over, local, alone) if isinstance(route, Route)]
    assert missing == [700 - 640, 700 - 320, 700 - 640]


def test_a_salt_separates_prefixes() -> None:
    assert keys_of(range(64), "a") != keys_of(range(64), "b")
    assert keys_of(range(64), "a") == keys_of(range(127), "a")
    assert keys_of(range(63), "a") == ()
    assert keys_of(range(128), "")[:1] == keys_of(range(64), "")
    changed = [0, 1, *range(3, 65), *range(64, 128)]
    assert not set(keys_of(changed, "")) & set(keys_of(range(128), "")), "the chain covers what went before"


def test_the_memory_of_prefixes_is_bounded_and_forgets_the_oldest() -> None:
    affinity = PrefixAffinity(capacity=3)
    keys = [bytes([number]) for number in range(5)]
    for key in keys:
        affinity.record([b"P"], [key])
    assert [affinity.known_tokens(b"P", [key]) for key in keys] == [0, 0, 64, 64, 64]
    assert affinity.known_tokens(b"Q", keys[4:]) == 0


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
    route = pick(query(), [worker("P1"), worker("D1")], POLICY, PrefixAffinity(), 0.5)
    assert route == Route(b"P1", b"D1", Address("h", 1), missing_tokens=100)


def test_a_worker_that_flipped_hands_nothing_over_to_itself() -> None:
    """The worker retains a prompt's KV from before the flip, and is a decode worker now."""
    asked = query(retained_by=b"D1")
    assert choose(worker("P1"), worker("D1"), worker("D2", load_sequences=9), asked=asked) == "D1 D2"
    assert choose(worker("P1"), worker("D1"), asked=asked) == "P1 D1"
