"""The checksums in a Seal, and the checks before a sealed hand-over is admitted. Pure.

A Seal has all checksums of a stream, or digests of stretches where the checksums are too many.

A prompt of a million tokens has some ten million pieces, 84 MB of checksums. Both sides hold theirs and compare digests
then: 8 bytes of BLAKE2b for each 64 KiB of checksums, 8,192 pieces.
"""

from __future__ import annotations

import hashlib
from typing import Final

from baton_kv_transfer.handover import Verify
from baton_kv_transfer.layout import CHECKSUM_BYTES, StreamLayout
from baton_wire.messages.pair_link import MAX_CHECKSUM_BYTES, Seal
from baton_wire.messages.values import Reason

STRETCH_BYTES: Final = 64 << 10
STRETCH_PIECES: Final = STRETCH_BYTES // CHECKSUM_BYTES


def are_digests(layout: StreamLayout) -> bool:
    """True if a Seal has digests of this stream's checksums."""
    return layout.checksum_bytes > MAX_CHECKSUM_BYTES


def sealed_checksums(layout: StreamLayout, checksums: bytes) -> bytes:
    """The checksums or digests for a Seal, from the checksums of all pieces in stream order."""
    if not are_digests(layout):
        return checksums
    view = memoryview(checksums)
    stretches = (view[start : start + STRETCH_BYTES] for start in range(0, len(view), STRETCH_BYTES))
    return b"".join(hashlib.blake2b(stretch, digest_size=CHECKSUM_BYTES).digest() for stretch in stretches)


def sealed_bytes(layout: StreamLayout) -> int:
    """Length of `sealed_checksums` in bytes."""
    if not are_digests(layout):
        return layout.checksum_bytes
    return -(-layout.checksum_bytes // STRETCH_BYTES) * CHECKSUM_BYTES


def stream_fault(layout: StreamLayout, landing_bytes: int, verify: Verify) -> str | None:
    """The reason why a stream can never be handed over here; None when it can."""
    if layout.stream_bytes > landing_bytes:
        return f"{layout.stream_bytes} bytes, the landing region has {landing_bytes}"
    if verify is Verify.FULL and sealed_bytes(layout) > MAX_CHECKSUM_BYTES:
        return (
            f"{layout.pieces} pieces, a seal carries {MAX_CHECKSUM_BYTES // CHECKSUM_BYTES} digests of their checksums"
        )
    return None


def seal_fault(
    layout: StreamLayout, choices: frozenset[int], seal: Seal, gap: tuple[int, int] | None, verify: Verify
) -> tuple[Reason, str] | None:
    """The reason to refuse this Seal; None: admit it. `gap`: the first stream bytes that never came; None: all came."""
    named = [first.choice for first in seal.first_tokens]
    if len(set(named)) != len(named) or set(named) != choices:
        return Reason.BAD_REQUEST, f"first tokens for choices {sorted(named)}, expected {sorted(choices)}"
    if gap is not None:
        return Reason.KV_CORRUPT, f"stream bytes [{gap[0]}, {gap[1]}) never came"
    if verify is Verify.FULL and len(seal.checksums) != sealed_bytes(layout):
        return Reason.KV_CORRUPT, f"{len(seal.checksums)} bytes of checksums, expected {sealed_bytes(layout)}"
    return None


def first_bad_piece(layout: StreamLayout, sealed: bytes, landed: bytes) -> str | None:
    """The name of the first piece, or stretch of pieces, whose checksums differ; None when all agree.

    `sealed`: the checksums of the Seal, `landed`: the checksums of all pieces.
    """
    if len(landed) != layout.checksum_bytes:
        return f"checksums of {len(landed) // CHECKSUM_BYTES} pieces, expected {layout.pieces}"
    landed = sealed_checksums(layout, landed)
    if sealed == landed:
        return None
    size = CHECKSUM_BYTES
    index = next(
        i for i in range(len(sealed) // size) if sealed[i * size : (i + 1) * size] != landed[i * size : (i + 1) * size]
    )
    if are_digests(layout):
        first, last = (
            layout.piece_at(at) for at in (index * STRETCH_PIECES, min((index + 1) * STRETCH_PIECES, layout.pieces) - 1)
        )
        return f"a checksum between unit {first[0]}, layer {first[1]} and unit {last[0]}, layer {last[1]} differs"
    unit, layer, value = layout.piece_at(index)
    return f"checksum of unit {unit}, layer {layer}, {'KV'[value]} differs"
