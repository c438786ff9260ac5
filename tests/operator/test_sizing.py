"""Sizing until the real one: it holds, and says so; unknown is never zero."""

from __future__ import annotations

import pytest

from baton_operator.names import Role
from baton_operator.sizing.decide import decide
from baton_operator.sizing.decision import Known, PoolState, ProvenZero, Reading, Readings, Unknown

POOLS = {Role.PREFILL: PoolState(2, 8, 5), Role.DECODE: PoolState(3, 16, 3)}


@pytest.mark.parametrize("reading", [Known(40.0), ProvenZero(), Unknown("no gateway has reported")])
def test_pools_hold_at_their_minimum_with_the_reason(reading: Reading) -> None:
    decision = decide(POOLS, Readings(reading))
    assert decision.workers == {Role.PREFILL: 2, Role.DECODE: 3}
    assert decision.holds
    assert decision.reason.startswith("hold at replicas.min")


def test_the_reason_says_what_is_unknown() -> None:
    assert "no gateway has reported" in decide(POOLS, Readings(Unknown("no gateway has reported"))).reason
