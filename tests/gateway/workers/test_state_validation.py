"""A worker with a valid key that lies about its load: it is neither flooded nor avoided without bounds, and no pool
grows or shrinks on it.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from baton_gateway.reporting.telemetry import worker_measures
from baton_gateway.workers.state_validation import clamp_state, find_hello_fault, is_plausible_step
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import RunningGateway, until
from baton_testing.kv_transfer.builders import fingerprint
from baton_wire.messages.gateway_link import HeldTurn, Hello, WorkerState
from baton_wire.messages.measures import StepTiming
from baton_wire.messages.values import Role

HELLO = Hello(Role.DECODE, bytes(16), fingerprint(), "t", 7, "tiny", 99, 2_048, 4, 64, 16, 128, "0" * 64, 1)
STEP = StepTiming(1, 100, 5_000.0, 3, 500, 0.02)
HONEST = WorkerState(False, 64, 1_000, 2_000_000, 128, 20, 7, 0.02, startup_s=9.0, timings=(STEP,), gateways=2)
MOST = 1 << 40


def test_what_can_be_so_is_taken_as_it_is() -> None:
    for state in (HONEST, replace(HONEST, turn=HeldTurn(1, 2)), replace(HONEST, turn=HeldTurn(None, 1), timings=())):
        assert clamp_state(state, HELLO) == (state, ())


@pytest.mark.parametrize(
    ("changes", "becomes"),
    [
        ({"blocks_free": MOST}, {"blocks_free": 128}),
        ({"blocks_cached": 129}, {"blocks_cached": 128}),
        ({"running": MOST}, {"running": 64}),
        ({"waiting": MOST}, {"waiting": 1 << 21}),
        ({"waiting_tokens": MOST}, {"waiting_tokens": 2_048 << 21}),
        ({"computing_tokens": MOST}, {"computing_tokens": 1 << 21}),
        ({"step_s": 1e7}, {"step_s": 600.0}),
        ({"startup_s": 1e7}, {"startup_s": None}),
        ({"gateways": MOST}, {"gateways": 1_024}),
        ({"turn": HeldTurn(MOST, MOST)}, {"turn": None}),
        ({"turn": HeldTurn(3, 2)}, {"turn": None}),
        ({"timings": (STEP, replace(STEP, seconds=0.0), replace(STEP, seconds=1e7))}, {"timings": (STEP,)}),
        ({"timings": (replace(STEP, prefill_tokens=MOST), replace(STEP, decode_rows=MOST))}, {"timings": ()}),
    ],
    ids=lambda value: next(iter(value)),
)
def test_what_cannot_be_so_is_brought_within_bounds_and_named(changes: Any, becomes: Any) -> None:
    state, doubts = clamp_state(replace(HONEST, **changes), HELLO)
    assert state == replace(HONEST, **becomes)
    (doubt,) = doubts
    assert doubt.startswith(next(iter(changes)))


def test_a_step_has_something_in_it_and_takes_a_time() -> None:
    assert is_plausible_step(STEP)
    assert not is_plausible_step(replace(STEP, prefill_tokens=0, decode_rows=0))


def test_a_pool_that_holds_no_context_is_no_workers() -> None:
    assert find_hello_fault(HELLO) is None
    assert "blocks_total" in (find_hello_fault(replace(HELLO, blocks_total=0)) or "")


async def test_an_implausible_load_is_unknown_to_the_process_that_sizes_the_pools(
    gateway: RunningGateway, pool: FakePool, caplog: pytest.LogCaptureFixture
) -> None:
    liar = pool.decode[0]
    (worker,) = (linked for linked in gateway.server.table.all() if linked.hello.epoch == liar.epoch)
    lie = replace(liar.state(), running=MOST, waiting=MOST, waiting_tokens=MOST, blocks_free=MOST)
    for link in list(liar._links):
        await liar.send(link, lie)
    await until(lambda: worker.has_implausible_load)
    every = worker_measures(list(gateway.server.table.all()))
    (measures,) = (measured for measured in every if measured.epoch == liar.epoch)
    assert (measures.running, measures.waiting, measures.waiting_tokens, measures.blocks_free) == (None,) * 4
    view = worker.view()
    assert (view.running, view.blocks_free) == (liar.max_sequences, liar.blocks_total)
    assert "a worker's state is implausible" in caplog.text
    await liar.report()
    await until(lambda: not worker.has_implausible_load)
