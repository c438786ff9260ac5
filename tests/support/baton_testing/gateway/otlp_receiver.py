"""A collector on loopback that takes OTLP over HTTP and decodes it with the protocol's own schema."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PATH = "/v1/traces"


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it arrived, with its resource."""

    name: str
    service: str
    instance: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    is_error: bool


@dataclass
class OtlpReceiver:
    """All that arrived. `status`: how it answers."""

    port: int = 0
    status: int = 200
    spans: list[ReceivedSpan] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    requests: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    async def handle(self, request: web.Request) -> web.Response:
        self.requests += 1
        body = await request.read()  # aiohttp inflates it
        if body.startswith(b"\x1f\x8b"):
            body = gzip.decompress(body)
        if self.status == 200:
            self.bodies.append(body)
            self.spans.extend(decode(body))
        return web.Response(status=self.status, content_type="application/x-protobuf")


def decode(body: bytes) -> Iterator[ReceivedSpan]:
    message = ExportTraceServiceRequest.FromString(body)
    for group in message.resource_spans:
        resource = {entry.key: entry.value.string_value for entry in group.resource.attributes}
        for scope in group.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    *(span.name, resource["service.name"], resource["service.instance.id"]),
                    *(span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), span.kind),
                    *(span.start_time_unix_nano, span.end_time_unix_nano),
                    {entry.key: _value(entry.value) for entry in span.attributes},
                    span.status.code == 2,
                )


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(entry) for entry in value.array_value.values]
    return getattr(value, kind)


@asynccontextmanager
async def otlp_receiver() -> AsyncIterator[OtlpReceiver]:
    """A collector that listens while the context is entered."""
    receiver = OtlpReceiver()
    app = web.Application()
    app.router.add_post(PATH, receiver.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        receiver.port = runner.addresses[0][1]
        yield receiver
    finally:
        await runner.cleanup()
