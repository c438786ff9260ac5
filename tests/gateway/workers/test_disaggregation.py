"""Routing computes a prompt where it is decoded when it may and `prompt_placement` says so."""

from __future__ import annotations

import msgspec
import pytest

from baton_gateway.workers.route import Route, RoutePolicy, RouteQuery, pick, revisions
from baton_gateway.workers.worker_view import WorkerView
from baton_wire.messages.values import Address, PairFingerprint, Role
from baton_wire.rules.prompt_placement import LatencyTargets

TARGETS = LatencyTargets(ttft_s=0.5, tpot_s=0.05)


def view(role: Role, **changes: object) -> WorkerView:
    print_ = PairFingerprint(1, "a" * 64, "float32", "float32", 2, 2, 8, "b" * 64, "c" * 64)
    whole = WorkerView(
        epoch=role.value.encode(),
        role=role,
        served_name="m",
        fingerprint=print_,
        pair_address=Address("h", 1) if role is Role.DECODE else None,
        max_context_tokens=20_000,
        max_choices=8,
        block_tokens=16,
        blocks_total=10_000,
        blocks_free=10_000,
        token_s=1e-4,
        more_token_s=1e-4,
        step_s=0.01,
        load_sequences=4,
        max_sequences=64,
        rows_s=0.01,
        piece_token_s=1e-4,
    )
    return msgspec.structs.replace(whole, **changes)


def route(prefill: WorkerView, decode: WorkerView, policy: RoutePolicy) -> Route:
    chosen = pick(RouteQuery(prefill.fingerprint, 1_000, 1_100, 1, frozenset()), [prefill, decode], policy)
    assert isinstance(chosen, Route)
    return chosen


def test_routing_follows_only_when_it_may() -> None:
    busy, decode = view(Role.PREFILL, load_tokens=20_000), view(Role.DECODE)
    assert route(busy, decode, RoutePolicy()).prefill is not None, "always"
    assert route(busy, decode, RoutePolicy(targets=TARGETS)).prefill is None


def test_kv_that_a_decode_worker_receives_keeps_no_prompt_away() -> None:
    busy, policy = view(Role.PREFILL, load_tokens=20_000), RoutePolicy(targets=TARGETS)
    assert route(busy, view(Role.DECODE, load_tokens=50_000), policy).prefill is None
    assert route(busy, view(Role.DECODE, load_tokens=50_000, prompt_tokens=50_000), policy).prefill is not None


def test_a_full_decode_worker_leaves_the_answer_to_a_prefill_worker_that_keeps_some() -> None:
    keeps, policy = view(Role.PREFILL, keeps_answers=True), RoutePolicy(targets=TARGETS)
    full, room = view(Role.DECODE, rows_s=0.049, least_rows_s=0.01), view(Role.DECODE)
    local = route(keeps, full, policy)
    assert (local.prefill, local.decode, local.is_prefill_local, local.is_decode_local) == (
        None,
        keeps.epoch,
        True,
        False,
    )
    assert route(keeps, room, policy).decode == room.epoch
    assert route(view(Role.PREFILL), full, policy).decode == full.epoch, "it says that it keeps none"
    assert route(keeps, full, RoutePolicy()).decode == full.epoch, "always"
    short = view(Role.PREFILL, keeps_answers=True, max_context_tokens=1_050)
    assert route(short, full, policy).decode == full.epoch, "the answer does not fit there"


def test_a_decode_worker_without_a_slot_leaves_the_answer_to_a_prefill_worker_whatever_its_steps_take() -> None:
    keeps, policy = view(Role.PREFILL, keeps_answers=True), RoutePolicy(targets=TARGETS)
    assert route(keeps, view(Role.DECODE, load_sequences=63), policy).decode != keeps.epoch
    assert route(keeps, view(Role.DECODE, load_sequences=64), policy).is_prefill_local
    assert not route(view(Role.PREFILL), view(Role.DECODE, load_sequences=64), policy).is_prefill_local
    full = view(Role.DECODE, load_sequences=64)
    assert route(msgspec.structs.replace(keeps, rows=40, load_sequences=55), full, policy).is_prefill_local, (
        "it has many answers already"
    )
    assert not route(msgspec.structs.replace(keeps, load_sequences=56), full, policy).is_prefill_local, (
        "prompts need the slots that are left"
    )


@pytest.mark.parametrize(
    ("rows", "blocks_free", "keeps"), [(31, 10_000, True), (32, 10_000, False), (4, 69, True), (4, 68, False)]
)
def test_answers_leave_room_for_the_prompts_of_others(rows: int, blocks_free: int, keeps: bool) -> None:
    changes: dict[str, object] = {"keeps_answers": True, "rows_s": 0.01}
    prefill = view(Role.PREFILL, rows=rows, blocks_free=blocks_free, **changes)
    full = view(Role.DECODE, rows_s=0.049, least_rows_s=0.01)
    assert route(prefill, full, RoutePolicy(targets=TARGETS)).is_prefill_local is keeps
    gone = view(Role.DECODE, is_suspect=True)
    assert route(prefill, gone, RoutePolicy(targets=TARGETS)).decode == prefill.epoch, "no other worker can"


def test_a_prefill_worker_that_keeps_answers_serves_without_decode_workers() -> None:
    keeps, gone = view(Role.PREFILL, keeps_answers=True), view(Role.DECODE, is_suspect=True)
    assert route(keeps, gone, RoutePolicy()) == Route(None, keeps.epoch, None, missing_tokens=1_000)
    assert revisions([keeps, gone], "m", RoutePolicy()) == {keeps.fingerprint: 1}
    assert revisions([view(Role.PREFILL), gone], "m", RoutePolicy()) == {}
