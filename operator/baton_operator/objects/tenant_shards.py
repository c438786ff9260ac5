"""The ConfigMaps with the compiled table of a namespace's LLMTenants and with what they used of their tokens of the
month, and the volume in which gateways mount them.

Every shard has a fixed name and is optional in the volume. So a tenant that comes or goes changes no Pod template.
"""

from __future__ import annotations

from baton_operator.kube.labels import FIELD_MANAGER
from baton_operator.kube.object_fields import Manifest, mapping, metadata_of
from baton_wire.tenant_table import NUM_SHARDS, TenantShard, decode_shard, encode_shard
from baton_wire.tenant_usage import UsageShard, decode_usage, encode_usage, usage_file

SHARD_LABEL = "baton.dev/tenants"
"""On the ConfigMaps of shards: their place."""
_KEY = "tenants-{}.json"


def shard_name(place: int) -> str:
    """The name of a shard's ConfigMap."""
    return f"baton-tenants-{place}"


def shard_map(namespace: str, shard: TenantShard, usage: UsageShard | None = None) -> Manifest:
    """The ConfigMap of a shard. `usage`: of its tenants; None: none of them has a limit by the month."""
    metadata = {
        "name": shard_name(shard.place),
        "namespace": namespace,
        "labels": {"app.kubernetes.io/managed-by": FIELD_MANAGER, SHARD_LABEL: str(shard.place)},
    }
    data = {_KEY.format(shard.place): encode_shard(shard).decode()}
    if usage is not None:
        data[usage_file(shard.place)] = encode_usage(usage).decode()
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def read_shard(manifest: Manifest) -> TenantShard | None:
    """The shard in a ConfigMap; None: it holds none that can be read."""
    content = mapping(manifest.get("data")).get(_KEY.format(_place(manifest)))
    try:
        return decode_shard(content.encode()) if isinstance(content, str) else None
    except ValueError:
        return None


def read_usage(manifest: Manifest) -> UsageShard | None:
    """Read what the tenants of a shard used, in its ConfigMap; None: it holds no such count that can be read."""
    place = _place(manifest)
    content = mapping(manifest.get("data")).get(usage_file(int(place))) if place.isdecimal() else None
    try:
        return decode_usage(content.encode()) if isinstance(content, str) else None
    except ValueError:
        return None


def _place(manifest: Manifest) -> str:
    return str(mapping(metadata_of(manifest).get("labels")).get(SHARD_LABEL))


def tenants_volume() -> Manifest:
    """The volume of all shards, also of those that do not exist yet."""
    sources = [{"configMap": {"name": shard_name(place), "optional": True}} for place in range(NUM_SHARDS)]
    return {"name": "tenants", "projected": {"sources": sources}}
