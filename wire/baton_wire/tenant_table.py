"""The compiled table of tenants: what gateways are given of a namespace's LLMTenants, in shards of bounded size.

A tenant's shard follows from its name, so that an edit changes one shard. Each shard has a generation of its own, and
the newer one wins wherever it comes from: a mounted file or the operator's link. A shard that is absent is unknown, not
empty. Keys are in it as SHA-256 digests alone. Rows cannot be part of a cycle, so the garbage collector need not visit
those of thousands of tenants.
"""

from __future__ import annotations

import enum
import zlib
from typing import Annotated

import msgspec
from msgspec import Meta

from baton_wire.messages.operator_link import MAX_SHARD_BYTES as MAX_SHARD_BYTES
from baton_wire.messages.values import MAX_CONTEXT_TOKENS, Digest

NUM_SHARDS = 16
"""Fixed, because Pods mount every shard by name."""
MAX_NAME_CHARS = 63
MAX_KEYS = 8
MAX_MODELS = 64
MAX_WEIGHT = 100
MAX_PER_MINUTE = 1_000_000_000
MAX_CONCURRENT = 1_000_000
MAX_PER_MONTH = 10**14

Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
PerMinute = Annotated[int, Meta(ge=1, le=MAX_PER_MINUTE)]


class PriorityClass(enum.StrEnum):
    """The class of a request, among the requests of its own tenant."""

    BATCH = "Batch"
    """Begins only where no request of another class waits for room."""
    STANDARD = "Standard"
    INTERACTIVE = "Interactive"


class TenantKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One key of a tenant."""

    sha256: Digest
    expires_s: Annotated[float, Meta(ge=0, le=1e11)] | None = None
    """Wall clock; None: never."""


class TenantLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """The limits of a tenant over all gateway processes together. None: no limit."""

    requests_per_minute: PerMinute | None = None
    input_tokens_per_minute: PerMinute | None = None
    output_tokens_per_minute: PerMinute | None = None
    max_concurrent: Annotated[int, Meta(ge=1, le=MAX_CONCURRENT)] | None = None
    """Sequences at the workers; further ones wait for their own tenant's."""
    max_context_tokens: Annotated[int, Meta(ge=1, le=MAX_CONTEXT_TOKENS)] | None = None
    """Prompt and answer of one request."""
    tokens_per_month: Annotated[int, Meta(ge=1, le=MAX_PER_MONTH)] | None = None
    """Tokens of prompts and answers in a calendar month (UTC), over all deployments of the namespace."""


NO_LIMITS = TenantLimits()


class TenantRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One tenant."""

    name: Name
    keys: Annotated[tuple[TenantKey, ...], Meta(max_length=MAX_KEYS)] = ()
    weight: Annotated[int, Meta(ge=1, le=MAX_WEIGHT)] = 1
    models: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=253)], ...], Meta(max_length=MAX_MODELS)] = ()
    """Served names that it may ask; empty: all."""
    limits: TenantLimits = NO_LIMITS
    shares_prefixes: bool = False
    """True: its cached prefixes are shared with other tenants that say so."""
    priorities: Annotated[tuple[PriorityClass, ...], Meta(max_length=len(PriorityClass))] = ()
    """Classes that its requests may ask for; empty: all."""


class TenantShard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A part of the table."""

    place: Annotated[int, Meta(ge=0, lt=NUM_SHARDS)]
    generation: Annotated[int, Meta(ge=1, le=1 << 53)]
    tenants: Annotated[tuple[TenantRow, ...], Meta(max_length=65_536)] = ()


def shard_of(name: str) -> int:
    """The place of a tenant's shard."""
    return zlib.crc32(name.encode()) % NUM_SHARDS


def encode_shard(shard: TenantShard) -> bytes:
    """A shard as files and messages hold it: JSON."""
    return msgspec.json.encode(shard)


def decode_shard(content: bytes) -> TenantShard:
    """Read a shard. Raises ValueError, which never repeats a value."""
    if len(content) > MAX_SHARD_BYTES:
        raise ValueError(f"has {len(content)} bytes, which is more than {MAX_SHARD_BYTES}")
    try:
        return msgspec.json.decode(content, type=TenantShard)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
