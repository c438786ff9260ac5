"""KV that travels layer group by layer group, while later layers and chunks are still computed."""

from __future__ import annotations

from dataclasses import replace

from baton_kv_transfer.decode.records import Scatter
from baton_kv_transfer.handover import SendTo
from baton_kv_transfer.layout import Extent
from baton_kv_transfer.prefill.records import PrefillAction, Put
from baton_testing.kv_transfer import decode_machine
from baton_testing.kv_transfer.decode_machine import Decode
from baton_testing.kv_transfer.prefill_machine import CONFIG, D1, FIRST, KEY, UNIT, Prefill, grant
from baton_wire.kv_shape import PoolPart, Units
from baton_wire.messages.pair_link import Seal, Standing

HALF = UNIT // 2
"""Bytes of one unit in one of the two layers."""
FIRST_LAYER, SECOND_LAYER = PoolPart(0, 1, 0, 2), PoolPart(1, 2, 0, 2)


def places(actions: list[PrefillAction]) -> list[tuple[int, int, int]]:
    """(first layer, first unit, end unit) of each put."""
    return [(a.units.part.first_layer, a.units.first, a.units.end) for a in actions if isinstance(a, Put)]


def granted() -> Prefill:
    p = Prefill()
    p.link()
    p.open()
    p.hear(grant(groups=2))
    return p


def test_a_layer_is_put_while_the_next_is_computed() -> None:
    p = granted()
    (put,) = p.compute_layers(9, 1)
    assert isinstance(put, Put)
    assert put.units == Units(put.units.blocks, 4, 0, 2, FIRST_LAYER)
    assert put.landing == (Extent(1_000, 2 * HALF),)
    assert places(p.compute(9)) == [(1, 0, 2)]
    assert places(p.compute_layers(14, 1)) == [(0, 2, 4)]
    assert places(p.compute(14)) == [(1, 2, 4)]
    last = p.puts[4]
    assert last.landing == (Extent(1_000 + 6 * HALF, 2 * HALF),)


def test_no_byte_is_put_twice_however_the_word_comes() -> None:
    p = granted()
    for tokens, layers in ((9, 1), (9, 1), (9, 2), (5, 2), (14, 1)):
        p.compute_layers(tokens, layers)
    p.compute(9)
    p.compute(14)
    p.compute_layers(14, 1)
    bytes_put = [byte for put in p.puts.values() for e in put.landing for byte in range(e.offset, e.end)]
    assert sorted(bytes_put) == list(range(1_000, 1_000 + 4 * UNIT))


def test_what_stands_when_the_grant_comes_goes_at_once_by_layer() -> None:
    p = Prefill()
    p.link()
    p.open()
    p.compute(5)
    p.compute_layers(14, 1)
    actions = p.hear(grant(groups=2))
    assert places(actions) == [(0, 0, 4), (1, 0, 1)]


def test_the_seal_lists_checksums_in_stream_order_and_comes_after_every_layer() -> None:
    p = granted()
    p.compute_layers(14, 1)
    p.compute()
    p.draw()
    assert p.machine.put_done(KEY, 2, b"second layer", 1.0) == []
    (seal,) = p.machine.put_done(KEY, 1, b"first layer, ", 1.0)
    assert seal.message.checksums == b"first layer, second layer"  # type: ignore[union-attr]
    assert seal.message.first_tokens == FIRST  # type: ignore[union-attr]


def test_groups_are_told_of_once_all_their_puts_are_done_and_a_portion_is_left() -> None:
    p = Prefill(replace(CONFIG, max_put_bytes=UNIT, portion_bytes=4 * HALF))
    p.link()
    p.open()
    p.hear(grant(groups=2))
    p.compute_layers(14, 1)
    p.compute()
    assert p.put_done(1) == []
    assert p.put_done(3) == []
    assert p.put_done(2) == [SendTo(D1, Standing(request=KEY.request, attempt=1, transfer=7, groups=1))]
    p.draw()
    (last,) = p.put_done(4)
    assert isinstance(last.message, Seal)  # type: ignore[union-attr]


def test_bytes_that_stood_before_the_first_token_are_counted() -> None:
    p = granted()
    p.compute_layers(14, 1)
    p.put_done(1)
    p.compute()
    p.draw()
    p.put_done(2)
    assert p.machine.stats().overlapped_bytes == 4 * HALF


def test_a_decode_worker_scatters_the_layers_that_stand() -> None:
    d = Decode(replace(decode_machine.CONFIG, group_bytes=HALF, max_put_bytes=CONFIG.max_put_bytes))
    d.link()
    d.expect()
    transfer = d.grants[-1]
    assert transfer.groups == 2
    (scatter,) = d.land_bytes(4 * HALF, HALF)  # the second layer's first unit
    assert isinstance(scatter, Scatter)
    assert (scatter.units.part, scatter.units.first, scatter.units.end) == (SECOND_LAYER, 0, 1)
    assert d.land_bytes(HALF, HALF) == []  # the first layer's second unit: its first is missing
    assert d.machine.scattered(KEY, 0, b"", 0.0) == []
    (scatter,) = d.land_bytes(0, HALF)
    assert isinstance(scatter, Scatter)
    assert (scatter.units.part, scatter.units.first, scatter.units.end) == (FIRST_LAYER, 0, 2)
