"""The LLMTenants in the file of a running deployment: compiled as on a cluster, and again whenever the file changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from baton_control.errors import ManifestError
from baton_control.spec.manifest import read_tenants
from baton_control.spec.tenant_fields import LLMTenant
from baton_control.tenant_compiler import TenantSource, compile_tenants
from baton_local.fleet.run_dir import write_private
from baton_wire.tenant_table import TenantShard, encode_shard

LOOK_S = 1.0
FileVersion = tuple[int, int, int]


def check_tenants(tenants: tuple[LLMTenant, ...], namespace: str) -> None:
    """Raises ManifestError for tenants that a cluster would refuse."""
    compiled = compile_tenants(namespace, _sources(tenants), {}, 0.0)
    if compiled.problems:
        raise ManifestError(tuple(compiled.problems.values()))


class LocalTenants:
    """The table in a folder that the gateway reads. `say` gets a line when an edited file changes nothing."""

    def __init__(self, manifest: Path, folder: Path, namespace: str, say: Callable[[str], None]) -> None:
        """Raises ManifestError, OSError."""
        self._manifest, self._folder, self._namespace, self._say = manifest, folder, namespace, say
        self._shards: dict[int, TenantShard] = {}
        self._looked_s = time.monotonic()
        self._version = _version(manifest)
        folder.mkdir(mode=0o700, exist_ok=True)
        for former in folder.glob("*.json"):
            former.unlink()
        self._write(read_tenants(manifest))

    def refresh(self, now: float) -> None:
        """Compile the table again if the file changed. A broken file changes nothing, and is reported once."""
        if now - self._looked_s < LOOK_S:
            return
        self._looked_s = now
        version = _version(self._manifest)
        if version is None or version == self._version:
            return
        self._version = version
        try:
            self._write(read_tenants(self._manifest))
        except (ManifestError, OSError) as error:
            self._say(f"tenants stay as they were: {error}")

    def _write(self, tenants: tuple[LLMTenant, ...]) -> None:
        check_tenants(tenants, self._namespace)
        shards = compile_tenants(self._namespace, _sources(tenants), self._shards, time.time()).shards
        for place, shard in shards.items():
            if shard is not self._shards.get(place):
                write_private(self._folder / f"tenants-{place}.json", encode_shard(shard).decode())
        self._shards = dict(shards)


def _sources(tenants: tuple[LLMTenant, ...]) -> list[TenantSource]:
    """The tenants in the order of the file: the first one keeps a key, or a name."""
    return [TenantSource(tenant, f"{place:04}") for place, tenant in enumerate(tenants)]


def _version(path: Path) -> FileVersion | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
