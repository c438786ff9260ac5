"""Compiles the LLMTenants of a namespace into the shards that gateways mount, and says which are refused and why. Pure.

A shard whose tenants did not change keeps its generation and its bytes, so that an edit of one tenant moves one shard,
however many tenants there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from baton_control.errors import FieldProblem
from baton_control.spec.tenant_fields import LLMTenant, PromptCache, seconds_of
from baton_wire.tenant_table import (
    MAX_SHARD_BYTES,
    TenantKey,
    TenantLimits,
    TenantRow,
    TenantShard,
    encode_shard,
    shard_of,
)


@dataclass(frozen=True, slots=True)
class TenantSource:
    """An LLMTenant as the server has it."""

    tenant: LLMTenant
    created: str = ""
    """Its creation time: of two tenants with one key, the older one keeps it."""


@dataclass(frozen=True, slots=True)
class CompiledTenants:
    """The outcome."""

    shards: Mapping[int, TenantShard]
    """By place; places that never had a tenant are left out."""
    problems: Mapping[str, FieldProblem]
    """Why a tenant is left out, by its name."""


def compile_tenants(
    namespace: str, sources: Sequence[TenantSource], before: Mapping[int, TenantShard], now_s: float
) -> CompiledTenants:
    """The shards of a namespace. `before`: the shards that were written last; `now_s`: the wall clock, from which the
    first generation is made. A generation never goes back, also where the clock does.
    """
    problems: dict[str, FieldProblem] = {}
    owners: dict[str, str] = {}
    names: set[str] = set()
    rows: dict[int, list[TenantRow]] = {place: [] for place in before}
    sizes: dict[int, int] = {}
    for source in sorted(sources, key=lambda source: (source.created, source.tenant.metadata.name)):
        tenant = source.tenant
        name = tenant.metadata.name
        problem = _foreign(tenant, namespace) or _taken(tenant, owners)
        if name in names:
            problem = FieldProblem("metadata.name", f"{name} is not allowed: another LLMTenant has this name")
        row = tenant_row(tenant)
        place, size = shard_of(name), len(encode_shard(TenantShard(0, 1, (row,))))
        if problem is None and sizes.get(place, 0) + size > MAX_SHARD_BYTES - (1 << 10):
            problem = FieldProblem("metadata.name", "the namespace has too many tenants: the table is full")
        if problem is not None:
            problems.setdefault(name, problem)
            continue
        names.add(name)
        owners |= {key.sha256: name for key in row.keys}
        sizes[place] = sizes.get(place, 0) + size
        rows.setdefault(place, []).append(row)
    shards = {place: _shard(place, tuple(tenants), before.get(place), now_s) for place, tenants in sorted(rows.items())}
    return CompiledTenants(shards, problems)


def tenant_row(tenant: LLMTenant) -> TenantRow:
    """A tenant as gateways read it."""
    spec, limits = tenant.spec, tenant.spec.limits
    return TenantRow(
        tenant.metadata.name,
        tuple(TenantKey(key.sha256, None if key.expires is None else seconds_of(key.expires)) for key in spec.api_keys),
        spec.weight,
        tuple(spec.models),
        TenantLimits(
            limits.requests_per_minute,
            limits.input_tokens_per_minute,
            limits.output_tokens_per_minute,
            limits.max_concurrent,
            limits.max_context_tokens,
            limits.tokens_per_month,
        ),
        spec.prompt_cache is PromptCache.SHARED,
        tuple(spec.priorities),
    )


def _foreign(tenant: LLMTenant, namespace: str) -> FieldProblem | None:
    if tenant.metadata.namespace == namespace:
        return None
    message = f"{tenant.metadata.namespace} is not allowed: must be {namespace}, the namespace of the gateways"
    return FieldProblem("metadata.namespace", message)


def _taken(tenant: LLMTenant, owners: Mapping[str, str]) -> FieldProblem | None:
    """The problem of a key that an older tenant has. The key itself is in no message."""
    for place, key in enumerate(tenant.spec.api_keys):
        owner = owners.get(key.sha256)
        if owner is not None:
            return FieldProblem(f"spec.apiKeys[{place}].sha256", f"not allowed: LLMTenant {owner} has this key")
    return None


def _shard(place: int, rows: tuple[TenantRow, ...], before: TenantShard | None, now_s: float) -> TenantShard:
    rows = tuple(sorted(rows, key=lambda row: row.name))
    if before is not None and before.tenants == rows:
        return before
    least = 0 if before is None else before.generation
    return TenantShard(place, max(least + 1, int(now_s)), rows)
