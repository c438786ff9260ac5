"""Which captured shape serves which step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_engine.running.step_shapes import (
    CHUNKS,
    LARGEST_ROWS,
    PART_BYTES,
    PROMPT_ROWS,
    StepShape,
    StepShapes,
    part_ends,
)

ROWS_ALLOWED = 64
"""Padding up to here costs a tile of every product; above it at most one more where shapes are wider apart."""


@pytest.mark.parametrize(
    ("decode_rows", "counts", "shape"),
    [
        (64, [64], StepShape(128, 64)),
        (64, [65], StepShape(192, 64)),
        (65, [63], StepShape(128, 128)),
        (1, [1], StepShape(16, 4)),
        (0, [1024], StepShape(1024, 4)),
        (0, [1025], None),
        (64, [500, 12], StepShape(576, 64)),
        (257, [1], None),
        (2, [1] * CHUNKS, StepShape(32, 4)),
        (2, [1] * (CHUNKS + 1), None),
    ],
)
def test_the_least_shape_is_chosen(decode_rows: int, counts: list[int], shape: StepShape | None) -> None:
    assert StepShapes(256, decodes=True).least(decode_rows, counts) == shape


def test_a_worker_without_decode_rows_has_shapes_without_them() -> None:
    shapes = StepShapes(256, decodes=False)
    assert shapes.least(0, [100]) == StepShape(128, 0)
    assert shapes.least(1, [100]) is None
    assert {shape.decode_rows for shape in shapes.all} == {0}


def test_a_worker_that_does_both_has_the_shapes_of_both() -> None:
    both = StepShapes(256, decodes=True, hands_over=True)
    alone, mixed = StepShapes(256, decodes=False), StepShapes(256, decodes=True)
    assert set(both.all) == {*alone.all, *mixed.all}
    assert both.least(0, [3_000]) == alone.least(0, [3_000])
    assert both.least(5, [100]) == mixed.least(5, [100])


@given(st.integers(1, 600), st.integers(0, 600), st.lists(st.integers(1, 400), min_size=1, max_size=CHUNKS + 2))
def test_a_shape_holds_its_step_and_is_captured(slots: int, decode_rows: int, counts: list[int]) -> None:
    shapes = StepShapes(slots, decodes=True)
    shape = shapes.least(min(decode_rows, slots), counts)
    rows = min(decode_rows, slots) + sum(counts)
    if shape is None:
        assert rows > LARGEST_ROWS or len(counts) > CHUNKS
        return
    assert shape in shapes.all
    assert rows <= shape.rows
    assert min(decode_rows, slots) <= shape.decode_rows <= shape.rows
    assert shape.decode_rows % 2 == 0, "numbers of a step lie at multiples of 16 bytes"
    assert shape.rows - rows < max(ROWS_ALLOWED, shape.rows // 4)


def test_the_shapes_of_a_decode_worker_are_few() -> None:
    """Each costs some 40 ms before the worker is ready."""
    assert len(StepShapes(256, decodes=True).all) <= 60


def test_a_prefill_worker_pads_no_long_step_by_more_than_a_sixth() -> None:
    """Small ones are bound by reading weights."""
    shapes = StepShapes(256, decodes=False)
    assert len(shapes.all) <= 32
    for tokens in range(512, PROMPT_ROWS[-1] + 1):
        shape = shapes.least(0, [tokens])
        assert shape is not None
        assert shape.decode_rows == 0
        assert shape.rows - tokens <= max(128, tokens // 6)
    assert shapes.least(0, [PROMPT_ROWS[-1] + 1]) is None


def test_a_prefill_workers_graphs_end_where_enough_kv_stands() -> None:
    token_bytes = 4096
    assert part_ends(64, 32, token_bytes) == (32,)
    assert part_ends(512, 32, token_bytes) == (16, 32)
    assert part_ends(1024, 32, token_bytes) == (8, 16, 24, 32)
    assert part_ends(1024, 3, PART_BYTES) == (1, 2, 3)
