"""The description of a decode worker's landing region with which a prefill worker writes into it; part of its hello.

NIXL's metadata is opaque, and one altered byte of it can spoil the peer's name in the agent that loads it. So it comes
with a digest and with the epoch of the process that it describes; both are checked before NIXL sees anything.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

from msgspec import Meta, Struct

from baton_wire.errors import BadMessageError
from baton_wire.messages.codec import decode, encode
from baton_wire.messages.values import Epoch

VERSION = 1
AddressNumber = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
ByteCount = Annotated[int, Meta(ge=0, lt=1 << 48)]


class UcxDescriptor(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    epoch: Epoch
    agent: Annotated[str, Meta(min_length=1, max_length=64)]
    address: AddressNumber
    length: ByteCount
    device: Annotated[int, Meta(ge=-1, lt=1_024)]
    """GPU of the landing region; -1: host memory."""
    probe_address: AddressNumber
    """Unused bytes, for measuring."""
    probe_length: ByteCount
    metadata: Annotated[bytes, Meta(min_length=1, max_length=60_000)]
    digest: Annotated[bytes, Meta(min_length=32, max_length=32)]


def digest(metadata: bytes) -> bytes:
    return hashlib.sha256(metadata).digest()


def pack(descriptor: UcxDescriptor) -> bytes:
    return encode(descriptor)


def unpack(data: bytes, epoch: bytes, landing_bytes: int) -> UcxDescriptor:
    """Decode and check against the hello that it came in. Raises BadMessageError naming the field."""
    descriptor: UcxDescriptor = decode(data, UcxDescriptor)
    if descriptor.version != VERSION:
        raise BadMessageError(f"descriptor.version: {descriptor.version} there, {VERSION} here")
    if descriptor.epoch != epoch:
        raise BadMessageError(f"descriptor.epoch: {descriptor.epoch.hex()[:8]}, the peer is {epoch.hex()[:8]}")
    if descriptor.digest != digest(descriptor.metadata):
        raise BadMessageError("descriptor.metadata: does not match its digest")
    if descriptor.length < landing_bytes:
        raise BadMessageError(f"descriptor.length: {descriptor.length} for a landing region of {landing_bytes} bytes")
    return descriptor
