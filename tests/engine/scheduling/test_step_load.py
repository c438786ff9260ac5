"""The load of a step for step-time models, counted by hand."""

from __future__ import annotations

import pytest

from baton_engine.scheduling.step_load import LoadMeter, WindowLoad, windowed_pairs
from baton_engine.scheduling.step_plan import OpenSlot, PrefillChunk, StepPlan
from baton_wire.messages.values import SamplingParams

SAMPLING = SamplingParams(max_tokens=9, seed=1)


def opened(slot: int, context: int) -> OpenSlot:
    return OpenSlot(slot, SAMPLING, 0, (), (), context, 1)


def test_decode_rows_read_their_context_and_the_token_they_write() -> None:
    meter = LoadMeter(4)
    first = meter.load(StepPlan(1, opens=(opened(0, 10), opened(3, 20)), decode=(0, 3)))
    assert (first.decode_rows, first.kv_tokens, first.prefill_tokens, first.rows) == (2, 11 + 21, 0, 2)
    assert meter.load(StepPlan(2, decode=(0, 3))).kv_tokens == 12 + 22


def test_a_chunk_attends_to_what_stands_and_half_of_itself() -> None:
    meter = LoadMeter(4)
    chunk = PrefillChunk(1, 100, tuple(range(50)), sample=(1, 2))
    load = meter.load(StepPlan(1, opens=(opened(1, 100),), prefill=(chunk,)))
    assert (load.prefill_tokens, load.prefill_pairs, load.prefill_chunks) == (50, 50 * (100 + 25), 1)
    assert meter.load(StepPlan(2, decode=(1, 2))).kv_tokens == 151 + 151


def test_a_slot_that_is_given_out_anew_forgets_its_context() -> None:
    meter = LoadMeter(1)
    meter.load(StepPlan(1, opens=(opened(0, 500),), decode=(0,), closes=(0,)))
    assert meter.load(StepPlan(2, opens=(opened(0, 3),), decode=(0,))).kv_tokens == 4


def test_layers_with_a_window_see_no_more_than_it() -> None:
    meter = LoadMeter(4, windows=(16, 64))
    load = meter.load(StepPlan(1, opens=(opened(0, 10), opened(3, 40)), decode=(0, 3)))
    assert load.windowed == (WindowLoad(16, 0.0, 11 + 16), WindowLoad(64, 0.0, 11 + 41))


@pytest.mark.parametrize(("tokens", "computed"), [(5, 0), (50, 0), (20, 10), (20, 100)])
def test_pairs_within_a_window_are_those_counted_one_by_one(tokens: int, computed: int) -> None:
    """Positions count from their middle, as `attended_pairs` does."""
    counted = sum(min(16.0, computed + token + 0.5) for token in range(tokens))
    assert windowed_pairs(tokens, computed, 16) == pytest.approx(counted)
