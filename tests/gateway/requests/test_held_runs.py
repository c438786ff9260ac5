"""Prompts wait at the gateway while every prefill worker is busy, and go to the first worker with room: prompts whose
target is nearest first, late ones last.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import msgspec
import pytest

from baton_gateway import errors
from baton_gateway.requests.held_runs import DECODE_BUSY, PREFILL_BUSY, SWEEP_S, HeldRuns
from baton_gateway.requests.model_load import ModelLoad
from baton_gateway.requests.request import Stage
from baton_gateway.requests.request_events import PickRoute
from baton_gateway.requests.tenant import DEFAULT_TENANT
from baton_gateway.workers.pool_load import UNMEASURED_TOKENS, is_backed_up
from baton_gateway.workers.route import Route
from baton_gateway.workers.worker_view import WorkerView
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import RunningGateway, running_gateway, until
from baton_wire.fair_loop.charging import CHARGE, charged_context
from baton_wire.fair_loop.fair_queue import Account
from baton_wire.messages.measures import StepTiming
from baton_wire.messages.values import Role
from baton_wire.rules.prompt_order import BEGIN_SHARE

TOKEN_S = 0.001
TTFT_S = 100.0 / BEGIN_SHARE
BUSY, FREE = 600, 400
"""Tokens: more and less than half a second."""
ROUTE = Route(b"prefill", b"decode", None)
LOCAL = Route(None, b"decode", None)
KEPT = Route(None, b"prefill", None, is_prefill_local=True)


def view(load: int, revision: str = "a", token_s: float | None = TOKEN_S, **more: Any) -> WorkerView:
    fields: dict[str, Any] = {"epoch": b"prefill", "role": Role.PREFILL} | more
    more = {}
    fields |= {"served_name": "m", "fingerprint": revision}
    fields |= {"pair_address": None, "max_context_tokens": 9, "max_choices": 9, "block_tokens": 9}
    return WorkerView(**fields, blocks_total=9, blocks_free=9, load_tokens=load, token_s=token_s, **more)


def run(number: int, is_first: bool = True) -> PickRoute:
    return PickRoute(bytes([number]), 0, 100, 200, 1, frozenset(), None, is_first)


class Gate:
    """Held runs over workers that the test sets; `gone` has those that were let go, each of which makes one busy."""

    def __init__(self, *views: WorkerView) -> None:
        self.pool, self.gone = list(views), list[int]()
        self.route = ROUTE
        self.own_s: dict[int, float] = {}
        """Durations of runs, where routes are chosen again."""
        self.announced: list[int | None] = []
        """Ranks of held prompts, as announced to the worker."""
        self.turn_in_s: float | None = 0.0
        self.turn_giver = SimpleNamespace(
            token_s=TOKEN_S,
            view=lambda: next(worker for worker in self.pool if worker.epoch == b"prefill"),
            turn_in_s=lambda workers: self.turn_in_s,
            turn_taken_s=0.0,
            hello=SimpleNamespace(epoch=b"prefill"),
            send=lambda message: self.announced.append(message.rank),
        )
        self.load = ModelLoad()
        self.charged: list[str] = []
        """The accounts that releases were charged to."""
        self.held = HeldRuns(cast(Any, self), self)

    def get(self, epoch: bytes) -> Any:
        chosen = next((worker for worker in self.pool if worker.epoch == epoch), None)
        return chosen and self.turn_giver

    def live_prefill(self, fingerprint: Any) -> list[Any]:
        return [self.turn_giver]

    def views(self) -> list[WorkerView]:
        return self.pool

    def refresh(self) -> None:
        """Views are as the test sets them."""

    def choose(self, live: Any, action: PickRoute) -> Any:
        own_s = self.own_s.get(action.run[0])
        return self.route if own_s is None else msgspec.structs.replace(self.route, own_s=own_s)

    def may_grow(self, live: Any, sequences: int) -> bool:
        return True

    def load_of(self, live: Any) -> ModelLoad:
        return self.load

    def release(self, live: Any, action: PickRoute) -> Route:
        self.gone.append(action.run[0])
        charge = CHARGE.get()
        self.charged.append("process" if charge is None else charge.account.name)
        busy = view(BUSY, live.fingerprint, gateways=self.pool[0].gateways)
        self.pool = [busy, *(v for v in self.pool if v.fingerprint != live.fingerprint)]
        return self.route

    def holds(
        self,
        action: PickRoute,
        revision: str = "a",
        route: Any = ROUTE,
        age_s: float = 0.0,
        stage: Stage = Stage.RUNNING,
    ) -> str:
        life = SimpleNamespace(arrived_s=asyncio.get_running_loop().time() - age_s, stage=stage, sequences_at_work=0)
        live: Any = SimpleNamespace(fingerprint=revision, life=life, tenant=DEFAULT_TENANT, is_encoded=False)
        return self.held.holds(live, action, route, TTFT_S)

    def free_one_at_a_time(self, times: int) -> list[int]:
        for _ in range(times):
            self.pool = [view(FREE, gateways=self.pool[0].gateways)]
            self.held.release_ready()
        return self.gone


async def test_the_clock_releases_runs_of_all_tenants_in_the_time_of_the_process() -> None:
    """Otherwise the runs of all would wait for the turn of the tenant that has the most to do."""
    gate = Gate(view(BUSY))
    assert charged_context(Account("many")).run(gate.holds, run(1))
    gate.pool = [view(FREE)]
    async with asyncio.timeout(30.0):
        await until(lambda: bool(gate.gone))
    assert gate.charged == ["process"]


def test_work_beside_rows_takes_longer() -> None:
    """A prefill worker that also decodes computes pieces between the steps of its rows."""
    rows = {"rows": 4, "rows_s": 0.02, "more_token_s": TOKEN_S, "piece_token_s": TOKEN_S, "load_tokens": FREE}
    worker = msgspec.structs.replace(view(FREE), **cast(Any, rows))
    assert not is_backed_up([worker], cast(Any, "a"), TTFT_S), "without a target between tokens"
    assert not is_backed_up([worker], cast(Any, "a"), TTFT_S, 10.0), "all in one step"
    assert is_backed_up([worker], cast(Any, "a"), TTFT_S, 0.1), "seven steps more"


def test_a_pool_is_backed_up_when_each_of_its_workers_is() -> None:
    def backed_up(*views: WorkerView) -> bool:
        return is_backed_up(views, cast(Any, "a"), TTFT_S)

    assert backed_up(view(BUSY), view(BUSY))
    assert not backed_up(view(BUSY), view(FREE))
    assert not backed_up(view(BUSY, token_s=None)), "unknown how long that takes"
    assert backed_up(view(BUSY), view(BUSY, token_s=None)), "a new worker is taken to be as fast as the others"
    assert not backed_up(view(BUSY), view(FREE, token_s=None))
    assert backed_up(view(BUSY), view(0, is_draining=True), view(0, is_suspect=True), view(0, "b"))
    assert not backed_up(), "nothing to wait for"


async def test_a_request_of_many_runs_is_let_out_piece_by_piece_as_far_as_it_leaves_slots_free() -> None:
    decode = view(0, role=Role.DECODE, max_sequences=40)
    nothing: dict[str, Any] = {"get": lambda epoch: None, "live_prefill": lambda _: [], "refresh": lambda: None}
    table = SimpleNamespace(views=lambda: [decode], **nothing)
    large = SimpleNamespace(
        ticket=1,
        fingerprint="a",
        life=SimpleNamespace(arrived_s=0.0, stage=Stage.RUNNING, sequences_at_work=0),
        tenant=DEFAULT_TENANT,
        is_encoded=False,
    )
    gone: list[int] = []

    def run_it(live: Any, action: PickRoute) -> Route:
        nonlocal decode
        gone.append(action.run[0])
        live.life.sequences_at_work += action.choices
        decode = msgspec.structs.replace(decode, load_sequences=decode.load_sequences + action.choices)
        return ROUTE

    line = ModelLoad()
    router = SimpleNamespace(
        choose=lambda live, action: ROUTE, release=run_it, may_grow=lambda live, n: True, load_of=lambda live: line
    )
    held = HeldRuns(cast(Any, table), cast(Any, router))
    for number in range(20):
        action = msgspec.structs.replace(run(number), choices=4)
        if not held.holds(cast(Any, large), action, ROUTE, TTFT_S):
            run_it(large, action)
    assert gone == list(range(8)), "32 of 40 slots: four times what it leaves"
    assert len(held) == 12
    assert [action.run[0] for _, action in held] == list(range(8, 20)), "what waits is counted for the model's load"
    small = SimpleNamespace(
        ticket=2,
        fingerprint="a",
        life=SimpleNamespace(arrived_s=0.0, stage=Stage.RUNNING, sequences_at_work=0),
        tenant=DEFAULT_TENANT,
        is_encoded=False,
    )
    assert not held.holds(cast(Any, small), run(99), ROUTE, TTFT_S)
    large.life.sequences_at_work -= 8
    decode = msgspec.structs.replace(decode, load_sequences=decode.load_sequences - 8)
    held.release_ready()
    assert gone == list(range(10)), "as some end, others begin"
    large.life.stage = Stage.ENDED
    held.release_ready()
    assert len(held) == 0


async def test_a_held_run_says_what_it_waits_for() -> None:
    assert Gate(view(BUSY)).holds(run(1)) == PREFILL_BUSY
    assert Gate(view(FREE)).holds(run(1)) == ""
    full = view(0, epoch=b"decode", role=Role.DECODE, running=10, waiting=100, step_s=0.05)
    assert Gate(view(FREE), full).holds(run(1)) == DECODE_BUSY


async def test_runs_go_in_order_one_for_each_room() -> None:
    gate = Gate(view(BUSY))
    assert gate.holds(run(1))
    assert gate.holds(run(2))
    gate.held.release_ready()
    assert gate.gone == []
    gate.pool = [view(FREE)]
    assert gate.holds(run(3)), "others came first"
    gate.held.release_ready()
    assert gate.gone == [1], "it made the worker busy"
    gate.pool = [view(FREE)]
    gate.held.release_ready()
    gate.pool = [view(FREE)]
    gate.held.release_ready()
    assert (gate.gone, len(gate.held)) == ([1, 2, 3], 0)
    gate.pool = [view(FREE)]
    assert not gate.holds(run(4))


async def test_the_nearest_target_goes_first_and_late_runs_last() -> None:
    gate = Gate(view(BUSY))
    for number, age_s, own_s in ((1, 130, 1), (2, 120, 1), (3, 0, 10), (4, 10, 1), (5, 0, 50), (6, 60, 101), (7, 0, 0)):
        assert gate.holds(run(number), route=Route(b"prefill", b"decode", None, own_s=own_s), age_s=age_s)
    assert gate.free_one_at_a_time(7) == [5, 4, 3, 7, 6, 1, 2], "the sixth is so long that it would make others late"


async def test_a_burst_before_any_prompt_was_measured_waits_for_the_first_report() -> None:
    cold = view(0, token_s=None)
    gate = Gate(cold)
    assert not gate.holds(run(1), route=Route(b"prefill", b"decode", None, own_s=0.0))
    gate.pool = [view(UNMEASURED_TOKENS + 1, token_s=None)]
    for number, age_s in ((2, 0.2), (3, 0.1), (4, 0.0)):
        assert gate.holds(run(number), route=Route(b"prefill", b"decode", None, own_s=0.0), age_s=age_s)
    gate.held.release_ready()
    assert gate.gone == [], "unknown is not idle"
    gate.own_s = {2: 80.0, 3: 60.0, 4: 1.0}
    assert gate.free_one_at_a_time(3) == [3, 4, 2], "the durations count once they are known: the longest is deferred"


@pytest.mark.parametrize(("gateways", "order"), [(1, [1, 2, 3]), (2, [2, 3, 1])])
async def test_a_gateway_reckons_with_its_part_of_the_workers(gateways: int, order: list[int]) -> None:
    gate = Gate(view(BUSY, gateways=gateways))
    by_s = BEGIN_SHARE * TTFT_S
    for number, own_s, left_s in ((1, 30, 10), (2, 10, 45), (3, 10, 50)):
        assert gate.holds(
            run(number), route=Route(b"prefill", b"decode", None, own_s=own_s), age_s=by_s - own_s - left_s
        )
    assert gate.free_one_at_a_time(3) == order


async def test_late_runs_whose_requests_ended_are_not_kept() -> None:
    gate = Gate(view(BUSY))
    for number, stage in ((1, Stage.RUNNING), (2, Stage.ENDED), (3, Stage.RUNNING)):
        assert gate.holds(run(number), age_s=200, stage=stage)
    assert gate.free_one_at_a_time(1) == [1], "all are found to be late"
    gate.pool = [view(BUSY)]
    await until(lambda: len(gate.held) == 1)
    assert gate.free_one_at_a_time(1) == [1, 3]


async def test_late_runs_whose_requests_ended_are_dropped_once_a_second_at_most() -> None:
    loop = asyncio.get_running_loop()
    gate = Gate(view(BUSY))
    gate.held._swept_s = loop.time() + 60.0
    for number in (1, 2):
        assert gate.holds(run(number), age_s=200, stage=Stage.ENDED)
    gate.free_one_at_a_time(1)  # finds them to be late
    gate.pool = [view(BUSY)]
    gate.held.release_ready()
    assert len(gate.held) == 1, "a sweep goes through the whole queue"
    gate.held._swept_s = loop.time() - SWEEP_S
    gate.held.release_ready()
    assert len(gate.held) == 0


async def test_only_what_is_new_and_goes_to_a_prefill_worker_waits() -> None:
    gate = Gate(view(BUSY))
    assert not gate.holds(run(1, is_first=False)), "its client has waited already"
    assert not gate.holds(run(1), route=LOCAL), "computed where it is decoded"
    assert not gate.holds(run(1), route=errors.no_workers())
    assert gate.holds(run(1), route=KEPT), "it is in line with what is handed over"


async def test_answers_that_are_kept_do_not_wait_for_full_decode_workers() -> None:
    full = view(0, epoch=b"decode", role=Role.DECODE, running=10, waiting=100, step_s=0.05)
    gate = Gate(view(FREE), full)
    gate.load.record_output(100.0)
    assert not gate.holds(run(1), route=KEPT)
    assert gate.holds(run(2), route=ROUTE), "its answer has no slot"
    gate.held.release_ready()
    assert gate.gone == []
    gate.route = LOCAL
    gate.held.release_ready()
    assert gate.gone == [], "nor has it with its prompt computed there"
    gate.route = KEPT
    gate.held.release_ready()
    assert gate.gone == [2]


async def test_a_run_goes_while_all_are_busy_once_a_decode_worker_would_compute_it() -> None:
    gate = Gate(view(BUSY))
    assert gate.holds(run(1))
    gate.held.release_ready()
    assert gate.gone == []
    gate.route = LOCAL
    gate.held.release_ready()
    assert gate.gone == [1]


def test_how_much_may_wait_at_a_worker_follows_the_target() -> None:
    def is_held(tokens: int, ttft_s: float) -> bool:
        return is_backed_up([view(tokens)], cast(Any, "a"), ttft_s)

    assert (is_held(160, 0.5), is_held(140, 0.5)) == (True, False), "0.15 of 0.5 s"
    assert (is_held(110, 0.01), is_held(90, 0.01)) == (True, False), "less is over before the next report"
    assert (is_held(510, 30.0), is_held(490, 30.0)) == (True, False)


async def test_revisions_do_not_wait_for_each_other() -> None:
    gate = Gate(view(BUSY), view(FREE, "b"))
    assert gate.holds(run(1))
    assert not gate.holds(run(2), "b")


async def test_time_alone_lets_a_run_go() -> None:
    gate = Gate(view(BUSY))
    assert gate.holds(run(1))
    gate.pool = [view(FREE)]  # what a worker computes shrinks by the clock, without a report
    await until(lambda: gate.gone == [1])
    assert len(gate.held) == 0


async def test_a_client_that_waits_is_told_when_its_deadline_has_passed(pool: FakePool) -> None:
    async with running_gateway(pool, "--max-request-duration-s=1") as gateway, aiohttp.ClientSession() as http:
        await busy(gateway)
        body = {"model": "tiny", "prompt": "x", "max_tokens": 2}
        async with http.post(gateway.url("/v1/completions"), json=body) as answer:
            assert answer.status == 504
        assert gateway.pool.prefill[0].received == []


async def busy(gateway: RunningGateway) -> None:
    """Let the prefill worker report that it is busy, and how fast it is."""
    worker = gateway.pool.prefill[0]
    worker.timings = (StepTiming(1, 1000, 5e5, 0, 0, 1000 * TOKEN_S),)
    worker.waiting_tokens = BUSY
    await worker.report()
    await until(lambda: any(view.load_tokens == BUSY for view in gateway.server.table.views()))


async def test_clients_wait_while_the_pool_is_busy_and_are_answered_when_it_reports_room(
    gateway: RunningGateway,
) -> None:
    worker = gateway.pool.prefill[0]
    await busy(gateway)
    body = {"model": "tiny", "prompt": "x", "max_tokens": 2}
    async with aiohttp.ClientSession() as http:
        asking = [asyncio.create_task(http.post(gateway.url("/v1/completions"), json=body)) for _ in range(3)]
        await until(lambda: len(gateway.server.relay.held) == 3)
        assert worker.received == []
        assert gateway.server.relay.backlog().waiting == 3
        asking[1].cancel()
        await until(lambda: gateway.server.relay.num_live == 2)
        worker.waiting_tokens, worker.timings = 0, ()
        await worker.report()
        assert [(await asked).status for asked in (asking[0], asking[2])] == [200, 200]
    assert len([message for message in worker.received if type(message).__name__ == "Prefill"]) == 2


async def test_other_gateways_send_first_what_is_more_urgent() -> None:
    gate = Gate(view(BUSY))
    assert gate.holds(run(1))
    assert gate.announced == [0], "in time"
    gate.turn_in_s = None
    assert gate.free_one_at_a_time(2) == []
    gate.turn_in_s = 0.002
    assert gate.free_one_at_a_time(1) == [], "in 2 ms"
    gate.turn_in_s = 0.0
    assert gate.free_one_at_a_time(1) == [1]
    assert gate.announced == [0, None], "said once each"


async def test_what_arrives_waits_for_what_others_hold() -> None:
    gate = Gate(view(FREE))
    gate.turn_in_s = None
    assert gate.holds(run(1)), "others hold prompts"
    assert not gate.holds(run(2), route=LOCAL), "which go elsewhere"
    gate.turn_in_s = 0.0
    gate.held.release_ready()
    assert gate.gone == [1]
    assert not gate.holds(run(3), "b", route=ROUTE), "no worker keeps turns for this revision"


@pytest.mark.parametrize(("route", "is_theirs"), [(ROUTE, True), (KEPT, True), (LOCAL, False)])
async def test_a_turn_is_for_what_prefill_workers_compute(route: Route, is_theirs: bool) -> None:
    gate = Gate(view(BUSY))
    assert gate.holds(run(1), route=msgspec.structs.replace(ROUTE, own_s=0.1))
    gate.route = route
    assert gate.free_one_at_a_time(1) == [1]
    assert (gate.turn_giver.turn_taken_s > 0) == is_theirs
    assert gate.announced == [0, None], "either way the next one is announced"


async def test_late_prompts_are_told_as_late() -> None:
    gate = Gate(view(BUSY))
    assert gate.holds(run(1), age_s=TTFT_S)
    gate.held.release_ready()
    assert gate.announced == [0, 2]
