"""Steps on their way to the gateways: bounded, drawn evenly, each reported once."""

from __future__ import annotations

import itertools

from baton_engine.scheduling.step_load import StepLoad
from baton_wire.messages.gateway_link import MAX_STATE_TIMINGS
from baton_worker.reporting.reports import STEPS_KEPT, StepLog


def decode(rows: int) -> StepLoad:
    return StepLoad(0, 0.0, 0, rows, 100 * rows)


def test_few_steps_are_told_whole_and_once() -> None:
    log = StepLog()
    log.add(7, StepLoad(20, 200.0, 1, 0, 0), 0.003)
    log.add(8, decode(2), 0.004)
    timings = log.take()
    assert [(t.step, t.prefill_tokens, t.decode_rows, t.kv_tokens, t.seconds) for t in timings] == [
        (7, 20, 0, 0, 0.003),
        (8, 0, 2, 200, 0.004),
    ]
    assert log.take() == ()


def test_many_steps_are_thinned_evenly_and_the_oldest_forgotten() -> None:
    log = StepLog()
    for step in range(1000):
        log.add(step, decode(1), 0.001)
    steps = [timing.step for timing in log.take()]
    assert len(steps) == MAX_STATE_TIMINGS
    assert steps[0] == 1000 - STEPS_KEPT
    assert len({b - a for a, b in itertools.pairwise(steps)}) == 1


def test_steps_without_work_say_nothing() -> None:
    log = StepLog()
    log.add(1, StepLoad(0, 0.0, 0, 0, 0), 0.001)
    log.add(2, decode(1), 0.0)
    assert log.take() == ()
