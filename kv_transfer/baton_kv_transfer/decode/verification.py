"""Whether a hand-over is possible at all, and whether a sealed one may be admitted. Pure."""

from __future__ import annotations

from baton_kv_transfer.handover import Verify
from baton_kv_transfer.layout import CHECKSUM_BYTES, StreamLayout
from baton_kv_transfer.sealed_checksums import STRETCH_PIECES, are_digests, sealed_bytes, sealed_checksums
from baton_wire.messages.pair_link import MAX_CHECKSUM_BYTES, Seal
from baton_wire.messages.values import Reason


def stream_fault(layout: StreamLayout, landing_bytes: int, verify: Verify) -> str | None:
    """Why a stream can never be handed over here, if so."""
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
    """Why this Seal is refused, if it is. `gap`: the first stream bytes that never came, None when all did."""
    named = [first.choice for first in seal.first_tokens]
    if len(set(named)) != len(named) or set(named) != choices:
        return Reason.BAD_REQUEST, f"first tokens for choices {sorted(named)}, expected {sorted(choices)}"
    if gap is not None:
        return Reason.KV_CORRUPT, f"stream bytes [{gap[0]}, {gap[1]}) never came"
    if verify is Verify.FULL and len(seal.checksums) != sealed_bytes(layout):
        return Reason.KV_CORRUPT, f"{len(seal.checksums)} bytes of checksums, expected {sealed_bytes(layout)}"
    return None


def first_bad_piece(layout: StreamLayout, sealed: bytes, landed: bytes) -> str | None:
    """Name the first piece, or stretch of pieces, whose checksums differ; None when all agree. `sealed`: what the Seal
    says of them, `landed`: the checksums of all pieces."""
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
