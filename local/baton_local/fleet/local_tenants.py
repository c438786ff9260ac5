"""The LLMTenants in the file of a running deployment: compiled as on a cluster, and again whenever the file changes.

What they used of their tokens of the month is saved next to the table, for the next run too.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from baton_control.errors import FieldProblem, ManifestError
from baton_control.spec.manifest import read_tenants
from baton_control.spec.tenant_fields import LLMTenant
from baton_control.telemetry.month_counts import MonthCounts, read_counts
from baton_control.tenant_compiler import TenantSource, compile_tenants
from baton_gateway.requests.tenant import Tenant
from baton_local.fleet.run_dir import write_private
from baton_wire.tenant_table import NUM_SHARDS, TenantShard, encode_shard
from baton_wire.tenant_usage import UsageShard, decode_usage, encode_usage, usage_file

LOOK_S = 1.0
SAVE_S = 10.0
"""The time between two writes of what was used. The gateway knows it meanwhile."""
FileVersion = tuple[int, int, int]


def check_tenants(tenants: tuple[LLMTenant, ...], namespace: str) -> None:
    """Raises ManifestError for tenants that a cluster would refuse."""
    compiled = compile_tenants(namespace, _sources(tenants), {}, 0.0)
    if compiled.problems:
        raise ManifestError(tuple(compiled.problems.values()))


def check_key_files(tenants: tuple[LLMTenant, ...], by_digest: Mapping[str, Tenant]) -> None:
    """Check the tenants against the keys of a key file, which keeps a name or a key that is in both. Raises
    ManifestError for those that it would keep out."""
    names = {tenant.name for tenant in by_digest.values()}
    problems = []
    for tenant in tenants:
        name = tenant.metadata.name
        if name in names:
            problems.append(FieldProblem("metadata.name", f"{name} is not allowed: the API keys' file has this tenant"))
        for place, key in enumerate(tenant.spec.api_keys):
            if key.sha256 in by_digest:
                message = f"not allowed: the API keys' file has this key of LLMTenant {name}"
                problems.append(FieldProblem(f"spec.apiKeys[{place}].sha256", message))
    if problems:
        raise ManifestError(tuple(problems))


class LocalTenants:
    """The table in a folder that the gateway reads. `say` gets a line when an edited file changes nothing. `by_digest`:
    the tenants of the key file, if there is one."""

    def __init__(
        self,
        manifest: Path,
        folder: Path,
        namespace: str,
        say: Callable[[str], None],
        by_digest: Mapping[str, Tenant] = MappingProxyType({}),
    ) -> None:
        """Raises ManifestError, OSError."""
        self._manifest, self._folder, self._namespace, self._say = manifest, folder, namespace, say
        self._by_digest = by_digest
        self._shards: dict[int, TenantShard] = {}
        self._looked_s = time.monotonic()
        self._version = _version(manifest)
        folder.mkdir(mode=0o700, exist_ok=True)
        for former in folder.glob("*.json"):
            former.unlink()
        self._saved = _read_usage(folder)
        self.counts: MonthCounts = read_counts(self._saved, time.time())
        """The tokens that the tenants used this month."""
        self.problem = ""
        """Why the latest edit of the file is not in force; empty: it is."""
        self._saved_s = self._looked_s
        self.save()
        self._write(read_tenants(manifest))

    def save(self) -> None:
        """Write what was used since the last time; a failure is reported."""
        try:
            for place, usage in self.counts.shards().items():
                if usage != self._saved.get(place):
                    write_private(self._folder / usage_file(place), encode_usage(usage).decode())
                    self._saved[place] = usage
        except OSError as error:
            self._say(f"what tenants used this month is not saved: {error}")

    def refresh(self, now: float) -> None:
        """Compile the table again if the file changed. A broken file changes nothing, and is reported once."""
        if now - self._looked_s < LOOK_S:
            return
        self._looked_s = now
        self.counts.roll(time.time())
        if now - self._saved_s >= SAVE_S:
            self._saved_s = now
            self.save()
        version = _version(self._manifest)
        if version is None or version == self._version:
            return
        self._version = version
        try:
            self._write(read_tenants(self._manifest))
            self.problem = ""
        except (ManifestError, OSError) as error:
            self.problem = f"tenants stay as they were: {error}"
            self._say(self.problem)

    def _write(self, tenants: tuple[LLMTenant, ...]) -> None:
        check_tenants(tenants, self._namespace)
        check_key_files(tenants, self._by_digest)
        shards = compile_tenants(self._namespace, _sources(tenants), self._shards, time.time()).shards
        for place, shard in shards.items():
            if shard is not self._shards.get(place):
                write_private(self._folder / f"tenants-{place}.json", encode_shard(shard).decode())
        self._shards = dict(shards)


def _read_usage(folder: Path) -> dict[int, UsageShard]:
    """The counts that the last run saved; broken ones are left out."""
    saved = {}
    for place in range(NUM_SHARDS):
        with contextlib.suppress(OSError, ValueError):
            saved[place] = decode_usage((folder / usage_file(place)).read_bytes())
    return saved


def _sources(tenants: tuple[LLMTenant, ...]) -> list[TenantSource]:
    """The tenants in the order of the file: the first one keeps a key, or a name."""
    return [TenantSource(tenant, f"{place:04}") for place, tenant in enumerate(tenants)]


def _version(path: Path) -> FileVersion | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
