"""A tenant: whose request it is, and its share of what tenants use together."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

import msgspec

from baton_wire.tenant_table import NO_LIMITS, PriorityClass, TenantLimits

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Digest = Annotated[str, msgspec.Meta(min_length=64, max_length=64, pattern="^[0-9a-f]+$")]
Role = Literal["tenant", "operator"]
"""`operator`: the key also shows what all tenants do. Requests are the same."""
Positive = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class FileTenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tenant as a key file names it."""

    name: Name
    key_sha256: Annotated[tuple[Digest, ...], msgspec.Meta(max_length=64)] = ()
    weight: Annotated[float, msgspec.Meta(gt=0, le=1_000)] = 1.0
    max_running: Positive | None = None
    max_queued: Positive | None = None
    role: Role = "tenant"

    def tenant(self) -> Tenant:
        """The tenant, with a prefix cache of its own if it has a key."""
        salt = self.name if self.key_sha256 else ""
        is_operator = self.role == "operator"
        return Tenant(self.name, salt, self.weight, self.max_running, self.max_queued, is_operator=is_operator)


class Tenant(msgspec.Struct, frozen=True, gc=False):
    """One tenant as requests know it."""

    name: str
    salt: str = ""
    """Separates the tenant's prefix caches from those of tenants with another one; empty for the default tenant."""
    weight: float = 1.0
    max_running: int | None = None
    """Sequences of this process at the workers."""
    max_queued: int | None = None
    limits: TenantLimits = NO_LIMITS
    """Limits over all processes."""
    models: tuple[str, ...] = ()
    """Served names that it may ask; empty: all."""
    priorities: tuple[PriorityClass, ...] = ()
    """Classes that its requests may ask for; empty: all."""
    is_operator: bool = False
    """True if its key shows the records and limits of all tenants."""

    def grant(self, asked: PriorityClass | None) -> PriorityClass:
        """The class that a request gets: the one asked for, or else the next lower one that the tenant may ask for, or
        else its lowest. None: the client asks for none, which means `Standard`."""
        wanted = PriorityClass.STANDARD if asked is None else asked
        if not self.priorities or wanted in self.priorities:
            return wanted
        classes = [priority for priority in PriorityClass if priority in self.priorities]
        rank = list(PriorityClass).index
        return max((priority for priority in classes if rank(priority) < rank(wanted)), key=rank, default=classes[0])

    def may_ask(self, model: str) -> bool:
        """Return whether the tenant may ask for a served model."""
        return not self.models or model in self.models

    @property
    def flow(self) -> bytes:
        """The id under which all requests of the tenant share one turn at the workers, from every gateway process."""
        return hashlib.sha256(f"tenant {self.name}".encode()).digest()[:16]


DEFAULT_TENANT = Tenant("default")
