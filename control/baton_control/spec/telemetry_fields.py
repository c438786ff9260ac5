"""The fields of `spec.telemetry`: traces."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from baton_control.spec.base_model import Model
from baton_control.spec.quantities import OtlpUrl

DEFAULT_SAMPLE_RATIO = 0.01


class TracingSpec(Model):
    """Traces of requests."""

    endpoint: OtlpUrl
    """URL of a collector that takes OTLP over HTTP."""
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = DEFAULT_SAMPLE_RATIO
    """Share of requests to trace where clients send no `traceparent`."""


class TelemetrySpec(Model):
    """Telemetry beyond metrics."""

    tracing: TracingSpec | None = None
    """Traces of requests. Unset: none."""
