"""The endpoints of files and batches, with OpenAI's objects. A tenant sees its own alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar, TypeVarTuple
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web

from baton_gateway.batches.batch_desk import BatchDesk
from baton_gateway.batches.batch_record import KEPT_S, WINDOW, batch_object
from baton_gateway.batches.batch_store import BatchPlan, page_of
from baton_gateway.batches.file_store import Upload
from baton_gateway.batches.lines import URLS
from baton_gateway.batches.refusals import storage_full, too_many_uploads
from baton_gateway.errors import RefusedError, invalid, out_of_memory, shutting_down
from baton_gateway.helper_processes.tenant_threads import TenantThreads
from baton_gateway.http_api.access_log import EXCHANGE
from baton_gateway.http_api.endpoints import HttpEndpoint
from baton_gateway.http_api.lookups import JSON, SERVER
from baton_gateway.http_api.request_body import RequestBody
from baton_gateway.http_api.upload_body import LEAST_KEPT_S, MOST_KEPT_S, WriteBytes, read_upload
from baton_gateway.openai_api.openai_fields import Fields, UnknownFields, wrong_type
from baton_gateway.openai_api.streaming_writer import STALL_S
from baton_gateway.requests.tenant import Tenant
from baton_gateway.workers.linked_workers import WorkerTable

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
FILES: Final = "/v1/files"
BATCHES: Final = "/v1/batches"
MAX_UPLOADS: Final = 4
"""Uploads of one tenant at the same time, per process."""
DISK_THREADS, DISK_THREADS_OF_TENANT = 8, 2
MAX_METADATA, MAX_KEY_CHARS, MAX_VALUE_CHARS = 16, 64, 512
PIECE_BYTES: Final = 256 << 10
DOWNLOAD_BYTES: Final = 2 * PIECE_BYTES
"""Memory of a download whose client reads slowly: one piece, and what its connection holds."""
_encode = msgspec.json.Encoder().encode


class BatchApi:
    """The handlers of one process."""

    def __init__(
        self,
        desk: BatchDesk,
        table: WorkerTable,
        open_body: Callable[[web.BaseRequest, Tenant], RequestBody],
        unknown_fields: Callable[[], UnknownFields],
        is_draining: Callable[[], bool],
    ) -> None:
        self._desk, self._table, self._open_body = desk, table, open_body
        self._unknown_fields, self._is_draining = unknown_fields, is_draining
        self._uploads: Counter[str] = Counter()
        self._threads = TenantThreads("files", DISK_THREADS, DISK_THREADS_OF_TENANT)

    def endpoints(self) -> dict[str, HttpEndpoint]:
        """The paths with their endpoints; `{id}` stands for one segment."""
        return {
            FILES: HttpEndpoint(("GET", "POST"), self._by_method(self._list_files, self._upload)),
            f"{FILES}/{{id}}": HttpEndpoint(("GET", "DELETE"), self._by_method(self._file, self._delete)),
            f"{FILES}/{{id}}/content": HttpEndpoint(("GET",), self._content),
            BATCHES: HttpEndpoint(("GET", "POST"), self._by_method(self._list_batches, self._create)),
            f"{BATCHES}/{{id}}": HttpEndpoint(("GET",), self._batch),
            f"{BATCHES}/{{id}}/cancel": HttpEndpoint(("POST",), self._cancel),
        }

    def _by_method(
        self,
        get: Callable[[web.BaseRequest, Tenant], Awaitable[web.StreamResponse]],
        other: Callable[[web.BaseRequest, Tenant], Awaitable[web.StreamResponse]],
    ) -> Callable[[web.BaseRequest, Tenant], Awaitable[web.StreamResponse]]:
        async def handle(request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
            return await (get if request.method == "GET" else other)(request, tenant)

        return handle

    # Files ------------------------------------------------------------------------------------------------------------

    async def _upload(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        if self._is_draining():
            raise RefusedError(shutting_down())
        if self._uploads[tenant.name] >= MAX_UPLOADS:
            raise RefusedError(too_many_uploads(MAX_UPLOADS))
        self._uploads[tenant.name] += 1
        files = self._desk.files
        try:
            with self._open_body(request, tenant) as body:
                upload = await self._disk(tenant, files.open_upload, tenant.name, undo=Upload.close)
                try:
                    with _disk_errors():
                        form = await read_upload(request, upload, self._writer(tenant, upload), body.charged.take)
                    purpose, kept_s, name = form.purpose(), form.kept_s(), form.end()
                    file = await self._disk(tenant, upload.finish, name, purpose, kept_s, files.bounds)
                finally:
                    await self._threads.free(upload.close)
        finally:
            self._uploads[tenant.name] -= 1
            self._uploads += Counter()
        return _json(file.shown())

    def _writer(self, tenant: Tenant, upload: Upload) -> WriteBytes:
        async def write(content: bytes) -> None:
            await self._threads.run(tenant.name, upload.write, content)

        return write

    async def _list_files(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        query = Query(request)
        purpose = query.text("purpose")
        after, limit, order = query.text("after"), query.limit(10_000, 10_000), query.order()
        query.end()

        def page() -> dict[str, Any]:
            files = self._desk.files.list_all(tenant.name)
            shown = [file.shown() for file in files if purpose in (None, file.purpose)]
            return page_of(shown if order == "desc" else shown[::-1], after, limit)

        return _json(await self._disk(tenant, page))

    async def _file(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        file = await self._disk(tenant, self._desk.files.find, tenant.name, _id(request))
        return _json(file.shown())

    async def _delete(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        file_id = _id(request)
        await self._disk(tenant, self._desk.store.delete_file, tenant.name, file_id)
        return _json({"id": file_id, "object": "file", "deleted": True})

    async def _content(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        with self._open_body(request, tenant) as body:
            if not body.charged.take(DOWNLOAD_BYTES):
                raise RefusedError(out_of_memory())
            open_content = self._desk.files.open_content
            descriptor = await self._disk(tenant, open_content, tenant.name, _id(request), undo=os.close)
            try:
                return await self._send_content(request, tenant, descriptor)
            finally:
                await self._threads.free(partial(os.close, descriptor))

    async def _send_content(self, request: web.BaseRequest, tenant: Tenant, descriptor: int) -> web.StreamResponse:
        try:
            size = os.fstat(descriptor).st_size
            headers = {"Content-Type": "application/jsonl", "Content-Length": str(size), **SERVER}
            response = web.StreamResponse(headers=headers | request[EXCHANGE].headers)
            await response.prepare(request)
            sent = 0
            while sent < size:
                piece = await self._disk(tenant, os.pread, descriptor, min(PIECE_BYTES, size - sent), sent)
                if not piece:
                    raise ConnectionResetError("the file is shorter than it was")
                sent += len(piece)
                async with asyncio.timeout(STALL_S):
                    await response.write(piece)
            async with asyncio.timeout(STALL_S):
                await response.write_eof()
            return response
        except TimeoutError as error:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the client does not read") from error

    # Batches ----------------------------------------------------------------------------------------------------------

    async def _create(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        if self._is_draining():
            raise RefusedError(shutting_down())
        with self._open_body(request, tenant) as body:
            raw = await body.read_object(self._table.body_limits)
            plan, ignored = parse_batch(raw, self._unknown_fields())
            request[EXCHANGE].name_ignored(ignored)
            record = await self._disk(tenant, self._desk.store.create, tenant.name, plan)
        self._desk.wake.set()
        record, wish = await self._disk(tenant, self._desk.store.find, tenant.name, record.id)
        return _json(batch_object(record, wish))

    async def _list_batches(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        query = Query(request)
        after, limit = query.text("after"), query.limit(20, 100)
        query.end()

        def page() -> dict[str, Any]:
            batches = self._desk.store.list_all(tenant.name)
            return page_of([batch_object(record, wish) for record, wish in batches], after, limit)

        return _json(await self._disk(tenant, page))

    async def _batch(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        record, wish = await self._disk(tenant, self._desk.store.find, tenant.name, _id(request))
        return _json(batch_object(record, wish))

    async def _cancel(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        record, wish = await self._disk(tenant, self._desk.store.cancel, tenant.name, _id(request))
        return _json(batch_object(record, wish))

    async def _disk(
        self, tenant: Tenant, work: Callable[[*Ts], T], *arguments: *Ts, undo: Callable[[T], object] | None = None
    ) -> T:
        """Do work that waits for the disk in a thread. `undo`: as `TenantThreads.run` has it. Raises RefusedError where
        the disk fails."""
        with _disk_errors():
            return await self._threads.run(tenant.name, work, *arguments, undo=undo)


@contextlib.contextmanager
def _disk_errors() -> Any:
    """Errors of the disk become what clients are refused with; those of connections stay."""
    try:
        yield
    except (ConnectionError, TimeoutError):
        raise
    except OSError as error:
        raise RefusedError(storage_full()) from error


def parse_batch(raw: dict[str, Any], unknown: UnknownFields) -> tuple[BatchPlan, tuple[str, ...]]:
    """Parse the body of a new batch; returns also the names of fields that were ignored. Raises RefusedError."""
    fields = Fields(raw)
    endpoint, file_id = fields.require("endpoint"), fields.require("input_file_id")
    if endpoint not in URLS:
        raise invalid("endpoint", f"'endpoint' must be one of {', '.join(URLS)}.")
    if not isinstance(file_id, str):
        raise wrong_type("input_file_id", "a string")
    if fields.require("completion_window") != WINDOW:
        raise invalid("completion_window", f"'completion_window' must be {WINDOW}.")
    metadata, kept_s = _metadata(fields.take("metadata")), _output_kept_s(fields.take("output_expires_after"))
    return BatchPlan(endpoint, file_id, metadata, kept_s), fields.end(unknown)


def _output_kept_s(value: Any) -> int:
    """How long files of answers are kept. Raises RefusedError."""
    if value is None:
        return KEPT_S
    if not isinstance(value, dict):
        raise wrong_type("output_expires_after", "an object")
    fields = Fields(value, "output_expires_after.")
    if fields.require("anchor") != "created_at":
        raise invalid("output_expires_after.anchor", "'output_expires_after.anchor' must be created_at.")
    seconds = fields.require("seconds")
    if not isinstance(seconds, int) or isinstance(seconds, bool) or not LEAST_KEPT_S <= seconds <= MOST_KEPT_S:
        message = f"'output_expires_after.seconds' must be between {LEAST_KEPT_S} and {MOST_KEPT_S}."
        raise invalid("output_expires_after.seconds", message, "out_of_range")
    fields.end(UnknownFields.REFUSE)
    return seconds


def _metadata(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise wrong_type("metadata", "an object of strings")
    if len(value) > MAX_METADATA:
        raise invalid("metadata", f"'metadata' has {len(value)} keys; at most {MAX_METADATA} are allowed.", "too_long")
    for key, text in value.items():
        if len(key) > MAX_KEY_CHARS:
            raise invalid("metadata", f"'metadata' has a key of more than {MAX_KEY_CHARS} characters.", "too_long")
        if not isinstance(text, str):
            raise wrong_type(f"metadata.{key}", "a string")
        if len(text) > MAX_VALUE_CHARS:
            message = f"'metadata.{key}' has more than {MAX_VALUE_CHARS} characters."
            raise invalid(f"metadata.{key}", message, "too_long")
    return value


class Query:
    """The query of a list."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._left = dict(parse_qsl(request.raw_path.partition("?")[2], keep_blank_values=True, max_num_fields=16))

    def text(self, name: str) -> str | None:
        return self._left.pop(name, None)

    def limit(self, default: int, most: int) -> int:
        """Raises RefusedError."""
        text = self._left.pop("limit", str(default))
        if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= most):
            raise invalid("limit", f"'limit' must be between 1 and {most}.", "out_of_range")
        return int(text)

    def order(self) -> str:
        """Raises RefusedError."""
        order = self._left.pop("order", "desc")
        if order not in ("asc", "desc"):
            raise invalid("order", "'order' must be asc or desc.")
        return order

    def end(self) -> None:
        """Raises RefusedError for a parameter that was not read."""
        if self._left:
            name = next(iter(self._left))[:64]
            raise invalid(name, f"Unknown parameter '{name}'.", "unknown_parameter")


def pattern_of(path: str) -> str | None:
    """The path with `{id}` for the id of a file or a batch; None: it has no id.

    >>> pattern_of("/v1/files/file-1/content")
    '/v1/files/{id}/content'
    """
    for root in (FILES, BATCHES):
        if path.startswith(root + "/"):
            name, slash, rest = path[len(root) + 1 :].partition("/")
            return f"{root}/{{id}}{slash}{rest}" if name else None
    return None


def _id(request: web.BaseRequest) -> str:
    """The id in the path of a request."""
    return request.raw_path.partition("?")[0].split("/")[3]


def _json(content: dict[str, Any]) -> web.Response:
    return web.Response(body=_encode(content), headers=JSON)
