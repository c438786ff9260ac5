"""The words of a decision: the target, what clients measured in the last minute, and why the size stays."""

from __future__ import annotations

from dataclasses import replace

from baton_control.sizing.decision.slo import size
from baton_control.sizing.inputs.memory import SizingMemory
from baton_control.sizing.inputs.mix import Mix
from baton_control.sizing.inputs.observations import Arrivals, Lateness, Measurements, ObservedPool
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_testing.sizing.builders import PerWorker, seen, spec
from baton_wire.messages.values import Role

SHAPE = RequestShape(1000, 100)
MET = Lateness(200, 2.0, 0.0208)
MISSED = Lateness(200, 80.0, 0.05)


class SlowAlone(PerWorker):
    """A sizer by which many requests are late even when they are alone."""

    def reachable_share(self, role: Role, mix: Mix) -> float:
        return 0.4


def reason(
    served: Lateness | None,
    of_spec: SizingSpec | None = None,
    sizer: PerWorker | None = None,
    decode: ObservedPool | None = None,
    per_s: float = 5.0,
) -> str:
    """Decode's reason for two workers under that load."""
    measured: Measurements = seen(Arrivals(round(per_s * 10), 10.0, (SHAPE,) * 8), (2, 2))
    measured = replace(measured, served={} if served is None else {Role.DECODE: served})
    if decode is not None:
        measured = replace(measured, decode=decode)
    decision = size(of_spec or spec(maximum=3), measured, SizingMemory(), 1000.0, sizer or PerWorker())
    return decision.pools[Role.DECODE].reason


def test_a_met_target_is_shown_with_what_was_measured() -> None:
    assert reason(MET).endswith("; TPOT p95 20.8 ms in the last minute, target 25 ms")


def test_without_requests_nothing_is_said_to_be_measured() -> None:
    assert "last minute" not in reason(None)


def test_a_miss_that_step_times_do_not_explain_says_so() -> None:
    text = reason(MISSED, per_s=1.0)
    assert "TPOT p95 50 ms in the last minute misses the target of 25 ms" in text
    assert "by its step times 2 of at most 3 workers keep the target (100 % in time)" in text


def test_a_miss_at_the_maximum_names_the_field() -> None:
    text = reason(MISSED, spec(maximum=2), PerWorker(2.0))
    assert "misses the target of 25 ms: at spec.decode.replicas.max, 2 workers" in text


def test_a_miss_that_no_number_of_workers_mends_says_so() -> None:
    text = reason(MISSED, sizer=SlowAlone(), per_s=1.0)
    assert "58 % of the requests are over it even when alone: more workers do not help" in text


def test_a_miss_while_workers_start_says_that_they_start() -> None:
    assert "1 of 2 workers does not serve: starting, or without an answer" in reason(
        MISSED, decode=ObservedPool(2, 1, 30.0), per_s=1.0
    )


def test_a_growing_pool_says_what_was_missed() -> None:
    text = reason(MISSED, per_s=14.0)
    assert text.startswith("decode 2→3: ")
    assert text.endswith("TPOT p95 50 ms in the last minute misses the target of 25 ms")


def test_requests_without_an_answer_count_as_missed() -> None:
    text = reason(Lateness(200, 80.0, 0.0208), per_s=1.0)
    assert "80 of 200 requests in the last minute missed TPOT 25 ms or got no answer" in text


def test_refusals_are_named_and_a_pool_that_keeps_its_target_is_not_blamed_for_them() -> None:
    """Found: with every answer within the target, decode's reason reported that 80 of 200 had missed it."""
    text = reason(Lateness(200, 80.0, 0.0208, 80), per_s=1.0)
    assert text.endswith(
        "80 of 200 requests in the last minute were refused or failed; "
        "of the others TPOT p95 20.8 ms keeps the target of 25 ms"
    )


def test_a_pool_at_its_maximum_that_is_large_enough_is_not_blamed_for_refusals() -> None:
    assert reason(Lateness(200, 80.0, 0.0208, 80), spec(maximum=2), per_s=1.0).endswith("the target of 25 ms")


def test_a_pool_at_its_maximum_that_is_too_small_is_named_next_to_refusals() -> None:
    text = reason(Lateness(200, 80.0, 0.0208, 80), spec(maximum=2), PerWorker(2.0))
    assert text.endswith("keeps the target of 25 ms: at spec.decode.replicas.max, 2 workers")


def test_served_requests_that_were_late_are_named_besides_refusals() -> None:
    text = reason(Lateness(200, 120.0, 0.05, 80), spec(maximum=2), PerWorker(2.0))
    assert "80 of 200 requests in the last minute were refused or failed" in text
    assert "of the others TPOT p95 50 ms misses the target of 25 ms: at spec.decode.replicas.max" in text
