"""The handlers of `/ui/`: the page's files for everybody, and its data for those who may see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from baton_gateway.http_api.access_log import EXCHANGE
from baton_gateway.http_api.lookups import SERVER
from baton_gateway.http_api.record_lookup import invalid_query
from baton_gateway.page.page_desk import PageDesk, parse_page_query
from baton_gateway.page.static_files import DATA, HEADERS, PAGE, PARTS, static_files
from baton_gateway.page.viewer import Viewer
from baton_gateway.requests.tenant import Tenant


class PageLookup:
    """Answers for the page."""

    def __init__(self, desk: PageDesk) -> None:
        self._desk = desk

    async def file(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        """Answer with a file of the page."""
        return static_answer(request) or web.Response(status=404)

    async def data(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        """Answer with the page's data. Raises RefusedError where the query is malformed."""
        viewer = request[EXCHANGE].viewer
        assert viewer is not None, "the endpoint takes viewers"
        try:
            asked = parse_page_query(_query(request))
        except ValueError as error:
            raise invalid_query(error) from None
        return await _data_answer(self._desk, viewer, asked)


def admin_page(desk: PageDesk) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse | None]]:
    """Return the handler of the page on the admin listener, whose clients sit at this machine and see everything. It
    returns None for paths that are none of the page's."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse | None:
        path = request.raw_path.partition("?")[0]
        if path == PARTS:
            return json_answer(await desk.parts())
        if path != DATA:
            return static_answer(request)
        try:
            asked = parse_page_query(_query(request))
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        return await _data_answer(desk, Viewer(sees_all=True), asked)

    return answer


def static_answer(request: web.BaseRequest) -> web.StreamResponse | None:
    """Answer with a file of the page; None: there is no such file."""
    path = request.raw_path.partition("?")[0]
    if path == PAGE[:-1]:
        return web.Response(status=308, headers={"Location": PAGE, **SERVER, **HEADERS})
    file = static_files().get(path)
    if file is None:
        return None
    headers = {"ETag": file.etag, "Cache-Control": "no-cache", **SERVER, **HEADERS}
    if request.headers.get("If-None-Match") == file.etag:
        return web.Response(status=304, headers=headers)
    return web.Response(body=file.body, content_type=file.content_type, charset="utf-8", headers=headers)


async def _data_answer(desk: PageDesk, viewer: Viewer, asked: str | None) -> web.StreamResponse:
    return json_answer(await desk.document(viewer, asked))


def json_answer(body: bytes) -> web.StreamResponse:
    """Answer with data of the page."""
    headers = {"Content-Type": "application/json", "Cache-Control": "no-store", **SERVER, **HEADERS}
    return web.Response(body=body, headers=headers)


def _query(request: web.BaseRequest) -> str:
    return request.raw_path.partition("?")[2]
