"""Finds out who asks for records and for the page: the installation's operator, a tenant, or somebody at this machine.

The operator has a token that follows from a link key, or a key with the role `operator`; it sees everything. A tenant's
key sees its own. Where clients need no key, the page is for this machine alone, if the gateway listens on loopback.
"""

from __future__ import annotations

from aiohttp import web

from baton_gateway.errors import INVALID, Problem, RefusedError
from baton_gateway.page.viewer import Viewer, sits_here
from baton_gateway.requests.tenant import Tenant
from baton_gateway.tenancy.tenants import Tenants
from baton_wire.errors import AuthenticationError
from baton_wire.keys import KeyDirectory, is_operator_token

_OPERATOR_ONLY = Problem(
    403,
    INVALID,
    "Records of requests are for the operator of this installation, because its clients have no keys.",
    None,
    "operator_only",
)


class Viewers:
    """Identifies viewers. `is_local`: the gateway listens on loopback alone."""

    def __init__(self, tenants: Tenants, keys: KeyDirectory, *, is_local: bool) -> None:
        self._tenants, self._keys, self._is_local = tenants, keys, is_local

    def identify(
        self,
        request: web.BaseRequest,
        credentials: str | None,
        now_s: float,
        *,
        may_sit_here: bool,
        given: Tenant | None = None,
    ) -> Viewer:
        """Return who asks. `credentials`: as in an `Authorization` header. `may_sit_here`: programs on this machine
        need none, where clients need none either. `given`: the tenant that a trusted gateway names. Raises
        RefusedError."""
        if given is not None:
            return Viewer(False, given, may_generate=True)
        if self._is_token(credentials):
            return Viewer(sees_all=True)
        if not self._tenants.is_open:
            tenant = self._tenants.authenticate(credentials, now_s)
            return Viewer(tenant.is_operator, tenant, may_generate=True)
        if may_sit_here and self._is_local and sits_here(request.remote, request.headers):
            return Viewer(sees_all=True, may_generate=True)
        raise RefusedError(_OPERATOR_ONLY)

    def _is_token(self, authorization: str | None) -> bool:
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return False
        try:
            return is_operator_token(token.strip(), self._keys.current())
        except AuthenticationError:
            return False
