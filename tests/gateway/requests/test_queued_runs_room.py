"""Runs that waited for busy workers are released as far as admission has room for them then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from baton_gateway import errors
from baton_gateway.requests.admission import Admission, AdmissionLimits
from baton_gateway.requests.held_runs import HeldRuns
from baton_gateway.requests.model_load import ModelLoad
from baton_gateway.requests.request import Stage
from baton_gateway.requests.request_events import PickRoute
from baton_gateway.requests.tenant import DEFAULT_TENANT
from baton_gateway.workers.route import Route
from baton_gateway.workers.worker_view import WorkerView
from baton_wire.messages.values import Role
from baton_wire.rules.prompt_order import BEGIN_SHARE

ROUTE = Route(b"prefill", b"decode", None)
TTFT_S = 100.0 / BEGIN_SHARE


def worker(role: Role, **more: Any) -> WorkerView:
    fields: dict[str, Any] = {"epoch": role.value.encode(), "role": role, "served_name": "m", "fingerprint": "a"}
    fields |= {"pair_address": None, "max_context_tokens": 9, "max_choices": 9, "block_tokens": 9}
    return WorkerView(**fields, blocks_total=9, blocks_free=9, token_s=0.001, **more)


def run(number: int) -> PickRoute:
    return PickRoute(bytes([number]), 0, 100, 200, 4, frozenset(), None, is_first=True)


async def test_runs_that_waited_for_busy_workers_take_no_more_room_than_admission_has() -> None:
    """They were all within their request's share when they came: none of them was at work yet."""
    prefill, decode = worker(Role.PREFILL, load_tokens=600), worker(Role.DECODE, max_sequences=1_000)
    nothing: dict[str, Any] = {"get": lambda epoch: None, "live_prefill": lambda _: [], "refresh": lambda: None}
    table = SimpleNamespace(views=lambda: [prefill, decode], **nothing)
    admission, load = Admission(AdmissionLimits(max_running=24)), ModelLoad()
    offered = admission.offer(DEFAULT_TENANT, 80, 0.0, at_once=4)
    assert not isinstance(offered, errors.Problem)
    life = SimpleNamespace(arrived_s=0.0, stage=Stage.RUNNING, sequences_at_work=0)
    large: Any = SimpleNamespace(ticket=offered[0], fingerprint="a", life=life, tenant=DEFAULT_TENANT, is_encoded=False)

    def set_at_work(sequences: int) -> None:
        life.sequences_at_work = sequences
        admission.set_running(large.ticket, sequences)

    def release(live: Any, action: PickRoute) -> Route:
        set_at_work(life.sequences_at_work + action.choices)
        return ROUTE

    router = SimpleNamespace(
        choose=lambda live, action: ROUTE,
        release=release,
        may_grow=lambda live, sequences: admission.may_grow(live.ticket, sequences),
        load_of=lambda live: load,
    )
    held = HeldRuns(cast(Any, table), cast(Any, router))
    assert all(held.holds(large, run(number), ROUTE, TTFT_S) for number in range(20))
    prefill = worker(Role.PREFILL, load_tokens=400)
    held.release_ready()
    assert (admission.num_running, len(held)) == (24, 14)
    set_at_work(16)
    held.release_ready()
    assert (admission.num_running, len(held)) == (24, 12), "as some end, others begin"
    life.stage = Stage.ENDED
    held.release_ready()
    assert len(held) == 0
