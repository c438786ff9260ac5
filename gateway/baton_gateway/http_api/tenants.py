"""Who asks: API keys to tenants. Keys are kept as SHA-256 digests only; without a key file everyone is the default
tenant.

The file is JSON: {"tenants": [{"name": "a", "key_sha256": ["…"], "weight": 2, "max_running": 64, "max_queued": 256}]}.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import msgspec

from baton_gateway.errors import INVALID, Problem, RefusedError

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


class TenantFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenants: Annotated[tuple[Tenant, ...], msgspec.Meta(min_length=1, max_length=10_000)]


DEFAULT_TENANT = Tenant("default")
_UNAUTHORIZED = Problem(401, INVALID, "The API key is missing or unknown.", None, "invalid_api_key")


class Tenants:
    """Keys to tenants, as of the file's last good content."""

    def __init__(self, path: Path | None = None) -> None:
        """Raises ValueError naming the file and field when the file does not fit."""
        self._path = path
        self._seen = None if path is None else _look(path)
        self._by_digest: dict[str, Tenant] | None = None if path is None else _read(path)

    def refresh(self) -> None:
        """Read the file again if it changed. Raises ValueError as above, once for each content; the old one stays
        valid.
        """
        if self._path is None or (seen := _look(self._path)) == self._seen:
            return
        self._seen = seen
        self._by_digest = _read(self._path)

    def of(self, authorization: str | None) -> Tenant:
        """The tenant of an `Authorization` header. Raises RefusedError (401)."""
        if self._by_digest is None:
            return DEFAULT_TENANT
        scheme, _, key = (authorization or "").partition(" ")
        digest = hashlib.sha256(key.strip().encode(errors="surrogateescape")).hexdigest()
        tenant = self._by_digest.get(digest) if scheme.lower() == "bearer" else None
        if tenant is None:
            raise RefusedError(_UNAUTHORIZED)
        return tenant


def _look(path: Path) -> tuple[int, int, int] | None:
    """What changes with the file; None when it cannot be seen."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(path: Path) -> dict[str, Tenant]:
    try:
        content = msgspec.json.decode(path.read_bytes(), type=TenantFile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    by_digest: dict[str, Tenant] = {}
    for place, tenant in enumerate(content.tenants):
        for digest in tenant.key_sha256:
            if digest in by_digest:
                raise ValueError(f"{path}: tenants[{place}].key_sha256: a key of two tenants")
            by_digest[digest] = tenant
    return by_digest
