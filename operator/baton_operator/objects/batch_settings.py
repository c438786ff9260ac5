"""The installation's part of files and batches: the claim in which gateways keep them, and the bounds of tenants.

These are settings of the installation, which provides the claim and so decides how much of it one tenant may fill.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import msgspec
from pydantic_core import PydanticCustomError

from baton_control.spec.resource_quantities import BYTES

BATCHES_PATH: Final = "/batches"
_FLAG: Final = "--batches"
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_MIB: Final = 1 << 20
_MOST_LINES, _MOST_FILES = 10_000, 100_000
_MOST_FILE_MIB, _MOST_TENANT_MIB = 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """The claim and the bounds; without a claim gateways serve no files and batches."""

    claim_name: str = ""
    """A PersistentVolumeClaim in the namespace of each LLMDeployment; empty: none."""
    namespaces: tuple[str, ...] = ()
    """The namespaces whose gateways use it; empty: all."""
    bounds: tuple[tuple[str, int], ...] = ()
    """Flags of the gateway and their values; a flag that is absent has its default."""

    def serves(self, namespace: str) -> bool:
        """Return whether gateways of a namespace serve files and batches."""
        return bool(self.claim_name) and (not self.namespaces or namespace in self.namespaces)

    def arguments(self, deployment: str) -> list[str]:
        """The gateway's flags. Each deployment has a folder of its own, because its gateways answer only batches for
        models that they serve."""
        flags = (("batch-folder", f"{BATCHES_PATH}/{deployment}"), *self.bounds)
        return [f"--{flag}={value}" for flag, value in flags]


NO_BATCHES: Final = BatchSettings()


class _Fields(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The value of the flag."""

    claim_name: str = ""
    namespaces: list[str] = msgspec.field(default_factory=list)
    concurrency: int | None = None
    max_file_size: str | int | None = None
    max_tenant_size: str | int | None = None
    max_tenant_files: int | None = None


def parse_batch_settings(text: str) -> BatchSettings:
    """The settings in JSON. Raises ValueError that names the field and what is allowed."""
    try:
        fields = msgspec.json.decode(text, type=_Fields)
    except msgspec.DecodeError as error:
        raise ValueError(f"{_FLAG}: {error}") from error
    if fields.claim_name and _NAME.fullmatch(fields.claim_name) is None:
        raise ValueError(f"{_FLAG}: claimName: {fields.claim_name!r} is no name of a PersistentVolumeClaim")
    for name in fields.namespaces:
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"{_FLAG}: namespaces: {name!r} is no name of a namespace")
    file_mib = _mib("maxFileSize", fields.max_file_size, _MOST_FILE_MIB)
    tenant_mib = _mib("maxTenantSize", fields.max_tenant_size, _MOST_TENANT_MIB)
    if file_mib is not None and tenant_mib is not None and file_mib > tenant_mib:
        message = f"{fields.max_file_size!r} is not allowed: must be at most maxTenantSize, {fields.max_tenant_size!r}"
        raise ValueError(f"{_FLAG}: maxFileSize: {message}")
    flags = {
        "batch-concurrency": _count("concurrency", fields.concurrency, _MOST_LINES),
        "batch-file-mib": file_mib,
        "batch-tenant-mib": tenant_mib,
        "batch-tenant-files": _count("maxTenantFiles", fields.max_tenant_files, _MOST_FILES),
    }
    bounds = tuple((flag, value) for flag, value in flags.items() if value is not None)
    return BatchSettings(fields.claim_name, tuple(sorted(set(fields.namespaces))), bounds)


def _count(field: str, value: int | None, most: int) -> int | None:
    if value is not None and not 1 <= value <= most:
        raise ValueError(f"{_FLAG}: {field}: {value} is not allowed: must be from 1 to {most}")
    return value


def _mib(field: str, value: str | int | None, most: int) -> int | None:
    """A size in whole MiB, rounded up."""
    if value is None:
        return None
    try:
        mib = -(-BYTES.count(BYTES.normal(value)) // _MIB)
    except PydanticCustomError:
        mib = 0
    if not 1 <= mib <= most:
        message = f"{value!r} is not allowed: must be {BYTES.text}, at most {most // (1 << 10)}Gi"
        raise ValueError(f"{_FLAG}: {field}: {message}")
    return mib
