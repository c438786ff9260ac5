"""Sends spans to a collector with OTLP over HTTP. The one module that imports OpenTelemetry, the extra `otel`: it is
imported only where traces are wanted.
"""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from baton_gateway.records.trail import KeptTrail
from baton_gateway.tracing.trace_builder import TracedService, TraceSpan, build_trace

TIMEOUT_S = 5.0
"""For one export with its retries."""
SCOPE = "baton"


class OtlpSender:
    """The connection to one collector. Headers, certificates and proxies come from the variables of OpenTelemetry."""

    def __init__(self, endpoint: str, instance: str, version: str, *, is_gen_ai: bool) -> None:
        """`instance`: this gateway process; `is_gen_ai`: the conventions of generative AI apply."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # problems are counted, and logged once a second
        self._endpoint, self._instance, self._version, self._is_gen_ai = endpoint, instance, version, is_gen_ai
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=TIMEOUT_S, compression=Compression.Gzip)
        self._scope = InstrumentationScope(SCOPE, version)
        self._dice = random.SystemRandom()
        self._resource = functools.lru_cache(1_024)(self._new_resource)

    def send(self, trails: Sequence[KeptTrail]) -> str:
        """Export the traces of requests; returns the problem, empty: none."""
        spans = [self._readable(trail.facts.trace_id, span) for trail in trails for span in self._build(trail)]
        is_done = self._exporter.export(spans) is SpanExportResult.SUCCESS
        return "" if is_done else f"{self._endpoint} does not take them"

    def close(self) -> None:
        """End an export that is being retried, and the connection."""
        self._exporter.shutdown()

    def _build(self, trail: KeptTrail) -> list[TraceSpan]:
        return build_trace(trail, lambda: self._dice.randrange(1, 1 << 64), is_gen_ai=self._is_gen_ai)

    def _readable(self, trace_id: str, span: TraceSpan) -> ReadableSpan:
        return ReadableSpan(
            span.name,
            _context(trace_id, span.span_id),
            None if span.parent_id is None else _context(trace_id, span.parent_id),
            self._resource(span.service, span.instance),
            span.attributes,
            kind=SpanKind.SERVER if span.is_entry else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=self._scope,
        )

    def _new_resource(self, service: TracedService, instance: str) -> Resource:
        return Resource(
            {
                "service.name": service.value,
                "service.version": self._version,
                "service.instance.id": instance or self._instance,
            }
        )


def _context(trace_id: str, span_id: int) -> SpanContext:
    return SpanContext(int(trace_id, 16), span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
