"""A tenant: whose request it is, and its share of what tenants use together."""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Digest = Annotated[str, msgspec.Meta(min_length=64, max_length=64, pattern="^[0-9a-f]+$")]
Positive = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class Tenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tenant as its file names it. Its prefix cache is its own."""

    name: Name
    key_sha256: Annotated[tuple[Digest, ...], msgspec.Meta(max_length=64)] = ()
    weight: Annotated[float, msgspec.Meta(gt=0, le=1_000)] = 1.0
    max_running: Positive | None = None
    max_queued: Positive | None = None

    @property
    def salt(self) -> str:
        """Separates this tenant's prefix caches from every other's; empty for the default tenant."""
        return self.name if self.key_sha256 else ""

    @property
    def flow(self) -> bytes:
        """The id under which all requests of the tenant share one turn at the workers, from every gateway process."""
        return hashlib.sha256(f"tenant {self.name}".encode()).digest()[:16]


DEFAULT_TENANT = Tenant("default")
