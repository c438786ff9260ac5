"""What a Seal says of a stream's checksums: all of them, or digests of stretches where these are too many. Pure.

A prompt of a million tokens has some ten million pieces, 84 MB of checksums. Both sides hold theirs and compare digests
then: 8 bytes of BLAKE2b for each 64 KiB of checksums, 8,192 pieces.
"""

from __future__ import annotations

import hashlib
from typing import Final

from baton_kv_transfer.layout import CHECKSUM_BYTES, StreamLayout
from baton_wire.messages.pair_link import MAX_CHECKSUM_BYTES

STRETCH_BYTES: Final = 64 << 10
STRETCH_PIECES: Final = STRETCH_BYTES // CHECKSUM_BYTES


def are_digests(layout: StreamLayout) -> bool:
    """Whether a Seal has digests of this stream's checksums."""
    return layout.checksum_bytes > MAX_CHECKSUM_BYTES


def sealed_checksums(layout: StreamLayout, checksums: bytes) -> bytes:
    """What the Seal says; `checksums` of all pieces in stream order."""
    if not are_digests(layout):
        return checksums
    view = memoryview(checksums)
    stretches = (view[start : start + STRETCH_BYTES] for start in range(0, len(view), STRETCH_BYTES))
    return b"".join(hashlib.blake2b(stretch, digest_size=CHECKSUM_BYTES).digest() for stretch in stretches)


def sealed_bytes(layout: StreamLayout) -> int:
    """How many bytes that are."""
    if not are_digests(layout):
        return layout.checksum_bytes
    return -(-layout.checksum_bytes // STRETCH_BYTES) * CHECKSUM_BYTES
