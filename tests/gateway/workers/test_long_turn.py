"""A turn with a long context meets what the rows of a worker read, not only what they hold."""

from __future__ import annotations

import msgspec
import pytest

from baton_gateway.workers.long_turn import LongTurn
from baton_gateway.workers.worker_view import WorkerView
from baton_wire.messages.values import Address, PairFingerprint, Role

KV_S, FIXED_S = 30e-9, 0.004
TURN = LongTurn(26_000, 1_700, 1_700, 0, may_be_kept=True)


def view(role: Role, **changes: object) -> WorkerView:
    """A worker that holds 100,000 tokens of KV."""
    print_ = PairFingerprint(1, "a" * 64, "float32", "float32", 2, 2, 8, "b" * 64, "c" * 64)
    whole = WorkerView(
        role.value.encode(), role, "m", print_, Address("h", 1), 131_072, 8, 100, 10_000, 9_000, max_sequences=64
    )
    known = {"token_s": 2e-5, "more_token_s": 2e-5, "kv_token_s": KV_S, "fixed_s": FIXED_S}
    return msgspec.structs.replace(whole, **{**known, **changes})


def test_a_worker_whose_rows_share_a_common_beginning_is_as_slow_as_its_steps_show() -> None:
    """20 rows read 10,000 tokens each, most of which are held once: steps take 10 ms, and held KV would take 3."""
    alone, shared = view(Role.DECODE, rows=20, rows_s=0.007), view(Role.DECODE, rows=20, rows_s=0.010)
    for decode, rows_s in ((alone, 0.007), (shared, 0.010)):
        sides = TURN.sides(view(Role.PREFILL), decode)
        assert sides is not None
        assert sides[1].rows_s == pytest.approx(rows_s)


def test_contexts_whose_kv_is_on_its_way_count_before_any_step_reads_them() -> None:
    for decode in (view(Role.DECODE, rows=2, rows_s=0.0045), view(Role.DECODE, rows=0, rows_s=0.02)):
        sides = TURN.sides(view(Role.PREFILL), decode)
        assert sides is not None
        assert sides[1].rows_s == pytest.approx(FIXED_S + 100_000 * KV_S), "rows that are gone read nothing"


def test_a_turn_whose_costs_are_unknown_has_no_sides() -> None:
    assert TURN.own_s(view(Role.PREFILL, kv_token_s=None), view(Role.DECODE, kv_token_s=None)) is None
    assert TURN.sides(view(Role.PREFILL, more_token_s=None), view(Role.DECODE)) is None
