"""The accounts of the event loop's time: one for each tenant, and those of the gateway's own services.

A connection is charged to whom its first bytes name, before it is served: its tenant by the API key, or a probe. That
is a hint for the order of work alone. The handler authenticates each request, and charges it to its tenant.
"""

from __future__ import annotations

import re
from weakref import WeakValueDictionary

from baton_gateway.requests.tenant import DEFAULT_TENANT, Tenant
from baton_gateway.tenancy.tenants import Tenants
from baton_wire.fair_loop.charging import LoopAccount
from baton_wire.fair_loop.fair_queue import Account
from baton_wire.listening.newcomers import ListenerAccounts

UNPROVEN_WEIGHT = 0.5
"""The share of connections without a known key: half of what all active tenants have together."""
LISTENER_WEIGHT = 3.0
"""The share of accepting. It costs little for a connection, and all tenants wait for it in the kernel's one queue."""
_PROBES = (b"GET /health", b"GET /ping", b"POST /health", b"POST /ping")
_KEY = re.compile(rb"\r\n(?:authorization:[ \t]*bearer[ \t]+|x-api-key:[ \t]*)([!-~]{1,512})[ \t]*\r\n", re.IGNORECASE)


class LoopAccounts:
    """The accounts of one gateway process."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self._accounts: WeakValueDictionary[str, LoopAccount] = WeakValueDictionary()
        """By holder, as long as anything of the holder's is at work."""
        self.probes: LoopAccount = Account("probes", is_service=True)
        self._unproven: LoopAccount = Account("unproven", UNPROVEN_WEIGHT, is_service=True)
        listener: LoopAccount = Account("listener", LISTENER_WEIGHT, is_service=True)
        self.listener = ListenerAccounts(listener, self.classify, self._unproven)

    def of(self, tenant: Tenant, source: str) -> LoopAccount:
        """Return the account of a request: its tenant's, or without keys its source's."""
        holder = holder_name(tenant, source)
        account = self._accounts.get(holder)
        if account is None or account.weight != tenant.weight:
            account = self._accounts[holder] = Account(holder, tenant.weight)
        return account

    def classify(self, first_bytes: bytes, source: str) -> LoopAccount:
        """Return the account that a new connection seems to belong to."""
        if first_bytes.startswith(_PROBES):
            return self.probes
        match = _KEY.search(first_bytes)
        tenant = self._tenants.find("" if match is None else match[1].decode("ascii"))
        return self._unproven if tenant is None else self.of(tenant, source)


def holder_name(tenant: Tenant, source: str) -> str:
    """Return the name of whom memory and time count for: a tenant, or without keys a source."""
    return f"address {source}" if tenant is DEFAULT_TENANT else f"tenant {tenant.name}"
