"""Digest and comparison of pair fingerprints, which decide whether two workers may exchange KV.

What may differ and is negotiated (block size, tensor parallelism) is not part of the fingerprint; see `layout`.
"""

from __future__ import annotations

import hashlib

import msgspec

from baton_wire.errors import UnfitPairError
from baton_wire.messages.values import PairFingerprint


def digest(fingerprint: PairFingerprint) -> str:
    """SHA-256 (hex) of the fingerprint's fields in order: equal digests are equal fingerprints."""
    return hashlib.sha256(msgspec.json.encode(fingerprint)).hexdigest()


def first_difference(own: PairFingerprint, peer: PairFingerprint) -> str | None:
    """The first field that differs, with both values; None when the two fit."""
    for field in PairFingerprint.__struct_fields__:
        mine, theirs = getattr(own, field), getattr(peer, field)
        if mine != theirs:
            return f"{field}: {mine} here, {theirs} there"
    return None


def require_fit(own: PairFingerprint, peer: PairFingerprint) -> None:
    """Raises UnfitPairError naming the first differing field and both values."""
    difference = first_difference(own, peer)
    if difference is not None:
        raise UnfitPairError(difference)
