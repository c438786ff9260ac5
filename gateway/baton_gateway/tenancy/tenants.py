"""The tenants of this process: those of key files, and those of the compiled table of LLMTenants, which
their keys or the tokens of an identity provider name.

The table starts from mounted files; newer shards come from the operator's link, and the newer generation wins. A file
that vanishes changes nothing: the last content stays valid. A name or a key that a key file has too is the key file's,
and the LLMTenant is refused.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from baton_gateway.errors import INVALID, Problem, RefusedError
from baton_gateway.requests.tenant import DEFAULT_TENANT, Tenant
from baton_gateway.tenancy.fetched_keys import FetchedKeys
from baton_gateway.tenancy.key_files import KeyFiles
from baton_gateway.tenancy.token_claims import refused
from baton_gateway.tenancy.token_verifier import TokenVerifier, looks_like_token
from baton_gateway.tenancy.trusted_identity import Headers, TrustedIdentity, unknown_tenant
from baton_wire.messages.operator_link import MAX_LIMITS, TenantConflict
from baton_wire.tenant_table import MAX_SHARD_BYTES, NUM_SHARDS, TenantRow, TenantShard, decode_shard

_log = logging.getLogger("baton.gateway.tenants")
KEYS = "spec.apiKeys"
SHARED_SALT = "*shared"
"""The salt of all tenants that share prefixes. No tenant can have this name."""
_UNAUTHORIZED = Problem(401, INVALID, "The API key is missing or unknown.", None, "invalid_api_key")
_EXPIRED = Problem(401, INVALID, "The API key has expired.", None, "invalid_api_key")
FileVersion = tuple[int, int, int]


class _KnownKey(msgspec.Struct, frozen=True, gc=False):
    tenant: Tenant
    expires_s: float | None


class Tenants:
    """The tenants by key and by name."""

    def __init__(
        self,
        key_files: Path | None = None,
        table: Path | None = None,
        share: float = 1.0,
        tokens: TokenVerifier | None = None,
        trusted: TrustedIdentity | None = None,
    ) -> None:
        """`table`: the folder of mounted shards; it may still be empty, and then no LLMTenant is known. `share`: the
        part of a tenant's concurrent sequences that this process may have. `tokens`: checks the tokens that name an
        LLMTenant; None: no token is accepted. `trusted`: who may name one in a header; None: nobody. Raises ValueError
        that names the file and field if a key file is invalid.
        """
        self._files = None if key_files is None else KeyFiles(key_files)
        self._folder = table
        self._share = share
        self._tokens, self._trusted = tokens, trusted
        self._versions: dict[str, FileVersion] = {}
        self._unread: set[str] = set()
        """Files that could not be read at the last look."""
        self._shards: list[TenantShard | None] = [None] * NUM_SHARDS
        self._by_digest: dict[str, _KnownKey] = {}
        self._by_name: dict[str, Tenant] = {}
        self._rows: dict[str, TenantRow] = {}
        self._slots: dict[str, int] = {}
        """Concurrent sequences that this process may have of a tenant, where that is not its share of them."""
        self._file_names = self._names_in_files()
        self.reported: tuple[TenantConflict, ...] = ()
        """The conflicts at the last change of the table or of key files."""
        for _ in self.read_table():
            pass

    @property
    def is_open(self) -> bool:
        """True if clients need no identity."""
        return self._files is None and self._folder is None

    @property
    def generations(self) -> tuple[int, ...]:
        """The generation of each shard; 0: unknown."""
        return tuple(0 if shard is None else shard.generation for shard in self._shards)

    def __len__(self) -> int:
        """Tenants of the table."""
        return len(self._by_name)

    def refresh(self) -> None:
        """Read the key files, and those of tokens, again if they changed. Raises ValueError; the former keys stay valid
        then."""
        if self._tokens is not None:
            self._tokens.keys.refresh()
        if self._trusted is not None:
            self._trusted.refresh()
        if self._files is not None and self._files.refresh():
            self._file_names = self._names_in_files()
            self._report_conflicts()

    def authenticate(self, authorization: str | None, now_s: float = 0.0) -> Tenant:
        """Return the tenant of an `Authorization` header. `now_s`: the wall clock. Raises RefusedError (401)."""
        if self.is_open:
            return DEFAULT_TENANT
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer":
            raise RefusedError(_UNAUTHORIZED)
        digest = hashlib.sha256(key.strip().encode(errors="surrogateescape")).hexdigest()
        tenant = None if self._files is None else self._files.by_digest.get(digest)
        if tenant is not None:
            return tenant
        known = self._by_digest.get(digest)
        if known is None and self._tokens is not None and looks_like_token(key):
            named = self.named(self._tokens.tenant_of(key.strip(), now_s))
            if named is None:
                raise refused("names no tenant of this service")
            return named
        if known is None or known.tenant.name in self._file_names:
            raise RefusedError(_UNAUTHORIZED)
        if known.expires_s is not None and now_s >= known.expires_s:
            raise RefusedError(_EXPIRED)
        return known.tenant

    def identified(self, headers: Headers, certificate: Mapping[str, Any] | None) -> Tenant | None:
        """Return the tenant that a trusted gateway names in a header; None: no header names one. `certificate`: of the
        client, verified. Raises RefusedError (401)."""
        name = None if self._trusted is None else self._trusted.tenant_of(headers, certificate)
        if name is None:
            return None
        tenant = self.named(name)
        if tenant is None:
            raise unknown_tenant()
        return tenant

    async def look_for_keys(self) -> bool:
        """Fetch the keys of tokens again because one is unknown; returns whether that was done."""
        keys = None if self._tokens is None else self._tokens.keys
        return isinstance(keys, FetchedKeys) and await keys.look_again()

    async def keep_keys(self) -> None:
        """Fetch the keys of tokens at times, where they have a URL."""
        if self._tokens is not None and isinstance(self._tokens.keys, FetchedKeys):
            await self._tokens.keys.run()

    def find(self, key: str) -> Tenant | None:
        """The tenant that a key was made for; None: there is none. This orders work, and gives access to nothing."""
        if self.is_open:
            return DEFAULT_TENANT
        digest = hashlib.sha256(key.encode()).hexdigest()
        tenant = None if self._files is None else self._files.by_digest.get(digest)
        known = self._by_digest.get(digest)
        return tenant if tenant is not None or known is None else known.tenant

    def named(self, name: str) -> Tenant | None:
        """The LLMTenant of this name; None: there is none that may be used."""
        return None if name in self._file_names else self._by_name.get(name)

    def by_name(self, name: str) -> Tenant | None:
        """The tenant of this name, for work that it left here; None: there is none at present."""
        if self.is_open:
            return DEFAULT_TENANT if name == DEFAULT_TENANT.name else None
        if name in self._file_names and self._files is not None:
            return next((tenant for tenant in self._files.by_digest.values() if tenant.name == name), None)
        return self._by_name.get(name)

    def conflicts(self) -> tuple[TenantConflict, ...]:
        """The LLMTenants that a key file keeps from being used."""
        if self._files is None:
            return ()
        both = [TenantConflict(name, "metadata.name") for name in sorted(self._file_names & self._by_name.keys())]
        taken = self._files.by_digest.keys() & self._by_digest.keys()
        names = {self._by_digest[digest].tenant.name for digest in taken} - self._file_names
        keys = [
            TenantConflict(name, f"{KEYS}[{place}].sha256")
            for name in sorted(names)
            for place, key in enumerate(self._rows[name].keys)
            if key.sha256 in taken
        ]
        return (*both, *keys)

    # The table --------------------------------------------------------------------------------------------------------

    def read_table(self) -> Iterator[str]:
        """Read the mounted shards that changed, one with each step: yields the names of their files."""
        if self._folder is None:
            return
        for path in _shard_files(self._folder):
            try:
                status = path.stat()
            except OSError:
                continue
            version = status.st_mtime_ns, status.st_size, status.st_ino
            if self._versions.get(path.name) == version:
                continue
            try:
                content = _content(path)
            except OSError as error:  # read again with the next look, and reported once
                if path.name not in self._unread:
                    _log.error("tenants stay as they were: %s: %s", path, error)
                self._unread.add(path.name)
                continue
            self._unread.discard(path.name)
            self._versions[path.name] = version
            try:
                self.apply(decode_shard(content))
            except ValueError as error:
                _log.error("tenants stay as they were: %s: %s", path, error)
            yield path.name

    def take_content(self, content: bytes) -> None:
        """Take an encoded shard that the operator pushes. Without a folder for the table no LLMTenant is let in."""
        if self._folder is None:
            return
        try:
            self.apply(decode_shard(content))
        except ValueError as error:
            _log.error("tenants stay as they were: a shard of the operator: %s", error)

    def apply(self, shard: TenantShard) -> bool:
        """Take a shard unless this process has it, or a newer one; returns whether it was taken."""
        former = self._shards[shard.place]
        if former is not None and former.generation >= shard.generation:
            return False
        self._shards[shard.place] = shard
        removed = set() if former is None else self._remove(former)
        for row in shard.tenants:
            self._by_name[row.name], self._rows[row.name] = self._tenant(row), row
            self._add_keys(row)
        if not removed <= self._by_digest.keys():  # a key may have moved to a tenant whose shard came before this one
            for row in self._rows.values():
                self._add_keys(row)
        gone = set() if former is None else {row.name for row in former.tenants}.difference(self._by_name)
        for name in gone:
            self._slots.pop(name, None)
        self._report_conflicts()
        return True

    def set_slots(self, slots: Mapping[str, int]) -> list[Tenant]:
        """Set how many concurrent sequences this process may have of these tenants; returns them as they are now."""
        self._slots |= {name: count for name, count in slots.items() if name in self._by_name}
        return self._renew(slots)

    def lift_empty_slots(self) -> list[Tenant]:
        """Let each tenant run a sequence here while no operator divides them; returns the tenants that could not."""
        return self.set_slots({name: 1 for name, count in self._slots.items() if not count})

    def set_share(self, share: float) -> list[Tenant]:
        """Set the part of concurrent sequences that this process may have of tenants without `set_slots`; returns those
        that have such a limit."""
        if share == self._share:
            return []
        self._share = share
        limited = (name for name, tenant in self._by_name.items() if tenant.limits.max_concurrent is not None)
        return self._renew([name for name in limited if name not in self._slots])

    def _report_conflicts(self) -> None:
        """Log each conflict when it begins, and keep them for the operator, which sets the LLMTenants' status. Those
        above the bound of a message are left out of both."""
        conflicts = self.conflicts()[:MAX_LIMITS]
        known = frozenset(self.reported)
        for conflict in conflicts:
            if conflict not in known:
                _log.warning("LLMTenant %s: %s is not used: a key file has the same", conflict.tenant, conflict.field)
        self.reported = conflicts

    def _add_keys(self, row: TenantRow) -> None:
        """Add a tenant's keys. A key that another tenant has stays that one's until its shard is renewed."""
        for key in row.keys:
            if key.sha256 not in self._by_digest:
                self._by_digest[key.sha256] = _KnownKey(self._by_name[row.name], key.expires_s)

    def _remove(self, shard: TenantShard) -> set[str]:
        """Remove the tenants of a shard; returns the digests of the keys that no tenant has now."""
        removed = set()
        for row in shard.tenants:
            self._by_name.pop(row.name, None)
            self._rows.pop(row.name, None)
            for key in row.keys:
                known = self._by_digest.get(key.sha256)
                if known is not None and known.tenant.name == row.name:
                    del self._by_digest[key.sha256]
                    removed.add(key.sha256)
        return removed

    def _renew(self, names: Iterable[str]) -> list[Tenant]:
        """Apply another number of concurrent sequences to tenants; returns those that are known."""
        renewed = []
        for name in names:
            former, row = self._by_name.get(name), self._rows.get(name)
            if former is None or row is None:
                continue
            tenant = self._by_name[name] = self._tenant(row)
            renewed.append(tenant)
            for key in row.keys:
                known = self._by_digest.get(key.sha256)
                if known is not None and known.tenant is former:
                    self._by_digest[key.sha256] = _KnownKey(tenant, key.expires_s)
        return renewed

    def _tenant(self, row: TenantRow) -> Tenant:
        slots = row.limits.max_concurrent
        if slots is not None:
            slots = self._slots.get(row.name, max(1, int(slots * self._share)))
        salt = SHARED_SALT if row.shares_prefixes else row.name
        return Tenant(row.name, salt, float(row.weight), slots, None, row.limits, row.models, row.priorities)

    def _names_in_files(self) -> frozenset[str]:
        return frozenset() if self._files is None else frozenset(t.name for t in self._files.by_digest.values())


def _shard_files(folder: Path) -> list[Path]:
    """The files of a folder, without the kubelet's hidden ones; none while it cannot be read."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".json" and not path.name.startswith("."))
    except OSError:
        return []


def _content(path: Path) -> bytes:
    with path.open("rb") as opened:
        return opened.read(MAX_SHARD_BYTES + 1)
