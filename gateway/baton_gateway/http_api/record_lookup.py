"""The handler of `/requests`: where requests lost their time, for the operator of the installation and for tenants.

A tenant's key sees its own records, whatever its query says. The admin listener shows all of them on loopback.
"""

from __future__ import annotations

from aiohttp import web

from baton_gateway.errors import INVALID, Problem, RefusedError
from baton_gateway.http_api.access_log import EXCHANGE
from baton_gateway.http_api.lookups import JSON
from baton_gateway.records.record_desk import RecordDesk, encode_page
from baton_gateway.records.record_query import RecordQuery, for_tenant, parse_query
from baton_gateway.requests.tenant import Tenant

RECORDS = "/requests"


class RecordLookup:
    """Answers queries for records over HTTP."""

    def __init__(self, desk: RecordDesk) -> None:
        self._desk = desk

    async def records(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        """Answer the query of the URL. Raises RefusedError where it is malformed."""
        try:
            query = parse_query(request.raw_path.partition("?")[2])
        except ValueError as error:
            raise invalid_query(error) from None
        viewer = request[EXCHANGE].viewer
        assert viewer is not None, "the endpoint takes viewers"
        if viewer.sees_all:
            page = await self._desk.ask(query)
        else:
            own = RecordQuery(query.id, viewer.tenant.name, query.missed, query.slowest)
            page = for_tenant(await self._desk.ask(own))
        return web.Response(body=encode_page(page), headers=JSON | {"Cache-Control": "no-store"})


def invalid_query(error: ValueError) -> RefusedError:
    """Return the refusal of a malformed query."""
    return RefusedError(Problem(400, INVALID, str(error), None, "invalid_query"))
