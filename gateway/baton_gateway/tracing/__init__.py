"""Traces of requests for OpenTelemetry, made from their records after their ends.

`trace_context` reads what a client sends, `trace_builder` turns a record into spans, `trace_exporter` queues them for a
thread, and `otlp_sender`, the one module that imports OpenTelemetry, sends them.
"""
