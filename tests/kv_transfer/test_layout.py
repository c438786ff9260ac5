"""Arithmetic of the hand-over's byte stream."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_kv_transfer.layout import (
    Extent,
    StreamLayout,
    joined,
    landing_extents,
    layer_groups,
    negotiated_unit,
    source_extents,
    stream_offset,
)
from baton_wire.errors import UnfitPairError
from baton_wire.kv_shape import KvGeometry, KvGroup, PoolPart, Units
from baton_wire.messages.pair_link import Span

LLAMA_8B = KvGeometry(layers=32, kv_heads=8, head_dim=128, element_bytes=2, block_tokens=64)


def test_a_block_of_llama_8b_has_the_published_size() -> None:
    assert LLAMA_8B.token_bytes == 131_072
    assert LLAMA_8B.block_bytes == 8 << 20


@pytest.mark.parametrize("field", ["layers", "kv_heads", "head_dim", "element_bytes", "block_tokens"])
def test_a_geometry_names_its_bad_field(field: str) -> None:
    values: dict[str, Any] = {
        "layers": 1,
        "kv_heads": 1,
        "head_dim": 1,
        "element_bytes": 1,
        "block_tokens": 1,
        field: 0,
    }
    with pytest.raises(ValueError, match=f"{field}: 0 is not positive"):
        KvGeometry(**values)


def test_half_the_layers_with_a_window_halve_what_is_kept_and_moved() -> None:
    groups = KvGroup(None, tuple(range(1, 24, 2))), KvGroup(128, tuple(range(0, 24, 2)))
    whole, halves = KvGeometry(24, 8, 64, 2, 64), KvGeometry(12, 8, 64, 2, 64, groups)
    tokens = 32_768
    kept_bytes = halves.blocks_held(tokens) * halves.block_bytes
    assert whole.blocks_held(tokens) * whole.block_bytes >= 1.8 * kept_bytes
    layout = StreamLayout(halves, 64, 0, tokens, groups=8)
    assert layout.stream_bytes == kept_bytes
    assert StreamLayout(whole, 64, 0, tokens).stream_bytes >= 1.8 * layout.stream_bytes


@given(st.integers(1, 90), st.integers(0, 5), st.sampled_from([1, 2, 4]), st.integers(1, 40))
def test_with_windows_a_stream_is_its_layer_groups_one_after_the_other(
    tokens: int, cached: int, parts: int, window: int
) -> None:
    groups = KvGroup(None, (0, 3, 5, 7)), KvGroup(window, (1, 2, 4, 6)), KvGroup(window, (8, 9))
    geometry = KvGeometry(4, 2, 8, 4, 8, groups)
    start = min(cached, tokens // 8) * 8
    layout = StreamLayout(geometry, 8, start, tokens, groups=3 * parts)
    end, pieces = 0, 0
    for group in range(layout.groups):
        extent = layout.extent(group, layout.group_first_unit(group), layout.end_unit)
        assert extent.offset == end
        end = extent.end
        own = groups[layout.kv_group(group)]
        first = layout.group_first_unit(group)
        assert first == max(start // 8, 0 if own.window is None else max(0, tokens - window + 1) // 8)
        assert layout.end_layer(group) == max(own.layers[: layout.part(group).end_layer]) + 1
        for unit in range(first, layout.end_unit):
            for layer in range(layout.part(group).first_layer, layout.part(group).end_layer):
                named = own.layers[layer] if layer < len(own.layers) else geometry.model_layers
                assert layout.piece_at(pieces) == (unit, named, 0)
                assert layout.piece_at(pieces + 1) == (unit, named, 1)
                pieces += 2
    assert (end, pieces) == (layout.stream_bytes, layout.pieces)


def test_windows_move_in_whole_blocks() -> None:
    geometry = KvGeometry(1, 1, 8, 4, 8, (KvGroup(3, (0,)),))
    with pytest.raises(ValueError, match="unit_tokens: 4; with windows only whole blocks of 8 move"):
        StreamLayout(geometry, 4, 0, 16)


@pytest.mark.parametrize(("own", "peer", "unit"), [(64, 64, 64), (64, 16, 16), (16, 64, 16), (1, 7, 1)])
def test_the_unit_is_the_smaller_block(own: int, peer: int, unit: int) -> None:
    assert negotiated_unit(own, peer) == unit


@pytest.mark.parametrize(("own", "peer"), [(6, 4), (4, 6), (64, 48)])
def test_blocks_that_do_not_divide_are_unfit(own: int, peer: int) -> None:
    with pytest.raises(UnfitPairError, match=f"block_tokens: {own} here and {peer} there"):
        negotiated_unit(own, peer)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"unit_tokens": 48}, "unit_tokens: 48"),
        ({"unit_tokens": 0}, "unit_tokens: 0"),
        ({"start_tokens": 8}, "start_tokens: 8"),
        ({"start_tokens": -16}, "start_tokens: -16"),
        ({"end_tokens": 15}, "end_tokens: 15"),
        ({"groups": 3}, "groups: 3"),
    ],
)
def test_an_impossible_stream_names_its_bad_field(changes: dict[str, int], named: str) -> None:
    values = {"unit_tokens": 16, "start_tokens": 16, "end_tokens": 100, **changes}
    with pytest.raises(ValueError, match=named):
        StreamLayout(LLAMA_8B, **values)


def test_the_last_unit_is_sent_whole_and_only_at_the_end() -> None:
    layout = StreamLayout(LLAMA_8B, 16, 32, 100)
    assert (layout.first_unit, layout.end_unit, layout.units) == (2, 7, 5)
    assert layout.stream_bytes == 5 * 16 * LLAMA_8B.token_bytes
    assert [layout.whole_units(tokens) for tokens in (0, 31, 47, 48, 99, 100)] == [2, 2, 2, 3, 6, 7]


def test_checksums_are_eight_bytes_per_unit_layer_and_k_or_v() -> None:
    layout = StreamLayout(LLAMA_8B, 64, 0, 65)
    assert layout.pieces == 2 * 32 * 2
    assert layout.checksum_bytes == 8 * layout.pieces
    assert layout.piece_at(0) == (0, 0, 0)
    assert layout.piece_at(64 + 5) == (1, 2, 1)


def test_units_of_a_layer_group_are_one_extent() -> None:
    layout = StreamLayout(LLAMA_8B, 64, 64, 256, groups=4)
    eighth = layout.grain_bytes // 4
    assert [layout.extent(group, 2, 4) for group in (0, 1)] == [
        Extent(eighth, 2 * eighth),
        Extent(4 * eighth, 2 * eighth),
    ]
    assert layout.part(1) == PoolPart(8, 16, 0, 8)
    assert layout.extent(3, 2, 2).length == 0


@pytest.mark.parametrize(("first", "end"), [(0, 2), (1, 5), (3, 2)])
def test_units_outside_the_stream_are_refused(first: int, end: int) -> None:
    with pytest.raises(ValueError, match="are not in"):
        StreamLayout(LLAMA_8B, 64, 64, 256).extent(0, first, end)


@pytest.mark.parametrize("group", [-1, 4])
def test_groups_outside_the_stream_are_refused(group: int) -> None:
    with pytest.raises(ValueError, match="group"):
        StreamLayout(LLAMA_8B, 64, 64, 256, groups=4).extent(group, 1, 2)


@pytest.mark.parametrize(
    ("stream_bytes", "groups"), [(0, 1), (1 << 20, 1), (2 << 20, 2), (7 << 20, 4), (8 << 20, 8), (1 << 40, 16)]
)
def test_a_stream_has_as_many_groups_as_are_worth_their_calls(stream_bytes: int, groups: int) -> None:
    assert layer_groups(LLAMA_8B, stream_bytes, 1 << 20, 16) == groups


def test_groups_have_equally_many_layers() -> None:
    shape = KvGeometry(layers=28, kv_heads=1, head_dim=1, element_bytes=2, block_tokens=16)
    assert layer_groups(shape, 1 << 30, 1, 16) == 14


def test_a_short_block_table_is_refused() -> None:
    with pytest.raises(ValueError, match="blocks: 2 given, unit 2 needs 3"):
        source_extents(LLAMA_8B, Units((4, 5), 64, 0, 3, LLAMA_8B.whole))


def test_neighbouring_blocks_become_one_extent() -> None:
    size = LLAMA_8B.block_bytes
    units = Units((9, 4, 5, 6, 2), 64, 1, 5, LLAMA_8B.whole)
    assert source_extents(LLAMA_8B, units) == [Extent(4 * size, 3 * size), Extent(2 * size, size)]


def test_bytes_past_the_spans_are_refused() -> None:
    with pytest.raises(ValueError, match="run past their end"):
        landing_extents((Span(offset=0, length=10),), Extent(5, 6))


geometries = st.builds(
    KvGeometry,
    layers=st.integers(1, 5),
    kv_heads=st.sampled_from([1, 2, 4, 8]),
    head_dim=st.integers(1, 9),
    element_bytes=st.sampled_from([1, 2, 4]),
    block_tokens=st.sampled_from([1, 2, 4, 8, 16]),
)


@given(geometries, st.data())
def test_the_pieces_of_all_groups_tile_the_stream(geometry: KvGeometry, data: st.DataObject) -> None:
    unit = data.draw(st.sampled_from([unit for unit in (1, 2, 4, 8, 16) if geometry.block_tokens % unit == 0]))
    groups = data.draw(st.sampled_from([g for g in range(1, 6) if geometry.layers % g == 0]))
    start = data.draw(st.integers(0, 6)) * unit
    layout = StreamLayout(geometry, unit, start, start + data.draw(st.integers(0, 40)), groups)
    at, seen = 0, []
    for group in range(groups):
        for number in range(layout.first_unit, layout.end_unit):
            extent = layout.extent(group, number, number + 1)
            assert extent == Extent(at, layout.group_unit_bytes)
            at = extent.end
            part = layout.part(group)
            seen += [(number, layer, side) for layer in range(part.first_layer, part.end_layer) for side in (0, 1)]
    assert at == layout.stream_bytes
    assert [layout.piece_at(index) for index in range(layout.pieces)] == seen
    assert len(set(seen)) == layout.pieces


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.data())
def test_landing_extents_are_the_stream_in_order(lengths: list[int], data: st.DataObject) -> None:
    spans, offset = [], 7
    for length in lengths:
        spans.append(Span(offset=offset, length=length))
        offset += length + 3
    order = data.draw(st.permutations(spans))
    landing = [byte for span in order for byte in range(span.offset, span.offset + span.length)]
    start = data.draw(st.integers(0, len(landing)))
    length = data.draw(st.integers(0, len(landing) - start))
    extents = landing_extents(order, Extent(start, length))
    assert [byte for e in extents for byte in range(e.offset, e.end)] == landing[start : start + length]
    position = start
    for extent in extents:
        assert stream_offset(order, extent) == position
        position += extent.length


@given(st.lists(st.integers(0, 30), max_size=12))
def test_joined_extents_cover_the_same_bytes(blocks: list[int]) -> None:
    extents = [Extent(block * 4, 4) for block in blocks]
    covered = [byte for e in joined(extents) for byte in range(e.offset, e.end)]
    assert covered == [byte for e in extents for byte in range(e.offset, e.end)]
