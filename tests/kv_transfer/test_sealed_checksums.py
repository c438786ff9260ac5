"""Checksums in Seals, from one piece to the longest prompt of a large model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from baton_kv_transfer.handover import Verify
from baton_kv_transfer.layout import CHECKSUM_BYTES, StreamLayout
from baton_kv_transfer.sealed_checksums import (
    STRETCH_PIECES,
    first_bad_piece,
    seal_fault,
    sealed_bytes,
    sealed_checksums,
    stream_fault,
)
from baton_testing.kv_transfer.builders import first_tokens
from baton_wire.kv_shape import KvGeometry
from baton_wire.messages.codec import decode, encode
from baton_wire.messages.pair_link import MAX_CHECKSUM_BYTES, PairMessage, Seal
from baton_wire.messages.values import MAX_CONTEXT_TOKENS

LARGE = KvGeometry(layers=80, kv_heads=8, head_dim=128, element_bytes=2, block_tokens=16)
MOST = MAX_CHECKSUM_BYTES // CHECKSUM_BYTES


def of_pieces(count: int) -> StreamLayout:
    return StreamLayout(KvGeometry(1, 1, 1, 1, 1), 1, 0, count // 2)


def test_the_longest_prompt_of_a_large_model_has_a_seal() -> None:
    layout = StreamLayout(LARGE, 16, 0, MAX_CONTEXT_TOKENS)
    assert layout.checksum_bytes == 80 << 20
    assert stream_fault(layout, layout.stream_bytes, Verify.FULL) is None
    sealed = bytes(sealed_bytes(layout))
    seal = Seal(bytes(16), 1, 1, sealed, first_tokens(0))
    assert decode(encode(seal), PairMessage) == seal
    assert seal_fault(layout, frozenset({0}), seal, None, Verify.FULL) is None


@pytest.mark.parametrize("pieces", [2, MOST - 2, MOST, MOST + 2, 2 * MOST, MOST + STRETCH_PIECES + 2])
def test_what_is_said_has_the_length_that_is_expected_and_passes(pieces: int) -> None:
    layout = of_pieces(pieces)
    checksums = bytes(range(256)) * (pieces * CHECKSUM_BYTES // 256 + 1)
    checksums = checksums[: pieces * CHECKSUM_BYTES]
    sealed = sealed_checksums(layout, checksums)
    assert len(sealed) == sealed_bytes(layout) <= MAX_CHECKSUM_BYTES
    assert first_bad_piece(layout, sealed, checksums) is None
    assert first_bad_piece(layout, sealed, checksums[:-CHECKSUM_BYTES]) is not None


@pytest.mark.parametrize("bad", [lambda pieces: 0, lambda pieces: pieces // 2, lambda pieces: pieces - 1])
@pytest.mark.parametrize("pieces", [8, MOST + 2 * STRETCH_PIECES])
def test_one_checksum_that_differs_anywhere_is_seen_and_named(pieces: int, bad: Callable[[int], int]) -> None:
    layout, landed = of_pieces(pieces), bytearray(pieces * CHECKSUM_BYTES)
    sealed = sealed_checksums(layout, bytes(landed))
    landed[bad(pieces) * CHECKSUM_BYTES] ^= 1
    fault = first_bad_piece(layout, sealed, bytes(landed))
    assert fault is not None
    assert "differs" in fault
