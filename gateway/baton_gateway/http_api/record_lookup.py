"""The handler of `/requests`: where requests lost their time, for the operator of the installation and for tenants.

The operator proves itself with a token that follows from a link key, and sees all records. A tenant's key sees its own.
Where clients need no key, only the operator sees any here; the admin listener shows all of them on loopback.
"""

from __future__ import annotations

from aiohttp import web

from baton_gateway.errors import INVALID, Problem, RefusedError
from baton_gateway.http_api.access_log import EXCHANGE
from baton_gateway.http_api.lookups import JSON
from baton_gateway.records.record_desk import RecordDesk, encode_page
from baton_gateway.records.record_query import RecordQuery, for_tenant, parse_query
from baton_gateway.requests.tenant import DEFAULT_TENANT, Tenant
from baton_gateway.tenancy.tenants import Tenants
from baton_wire.errors import AuthenticationError
from baton_wire.keys import KeyDirectory, is_operator_token

RECORDS = "/requests"
_OPERATOR_ONLY = Problem(
    403,
    INVALID,
    "Records of requests are for the operator of this installation, because its clients have no keys.",
    None,
    "operator_only",
)


class RecordLookup:
    """Answers queries for records over HTTP."""

    def __init__(self, desk: RecordDesk, tenants: Tenants, keys: KeyDirectory) -> None:
        self._desk = desk
        self._tenants = tenants
        self._keys = keys

    def is_operator(self, authorization: str | None) -> bool:
        """Return whether an `Authorization` header is that of the installation's operator."""
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return False
        try:
            return is_operator_token(token.strip(), self._keys.current())
        except AuthenticationError:
            return False

    def authenticate(self, authorization: str | None, now_s: float) -> Tenant:
        """Return the tenant whose records may be seen. `now_s`: the wall clock. Raises RefusedError."""
        if self._tenants.is_open:
            raise RefusedError(_OPERATOR_ONLY)
        return self._tenants.authenticate(authorization, now_s)

    async def records(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        """Answer the query of the URL. Raises RefusedError where it is malformed."""
        try:
            query = parse_query(request.raw_path.partition("?")[2])
        except ValueError as error:
            raise RefusedError(Problem(400, INVALID, str(error), None, "invalid_query")) from None
        if request[EXCHANGE].is_operator:
            page = await self._desk.ask(query)
        else:
            own = RecordQuery(query.id, tenant.name, query.missed, query.slowest)
            page = for_tenant(await self._desk.ask(own))
        return web.Response(body=encode_page(page), headers=JSON | {"Cache-Control": "no-store"})


OPERATOR = DEFAULT_TENANT
"""A stand-in for a tenant where the operator asks: such a call generates nothing."""
