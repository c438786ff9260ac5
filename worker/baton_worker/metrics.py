"""Metrics of a worker. Label sets are closed: role, block state, direction, outcome. Names are documented in
docs/metrics.md.

Values that the engine thread owns (blocks, batch, queue) are read from its snapshot when scraped; counters and
histograms are fed by the io thread from events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from baton_kv_transfer.wire.values import Reason, Role
from baton_worker.engine_thread import EngineSnapshot

STEP_BUCKETS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0)
HANDOVER_BUCKETS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 5.0)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class _Snapshot(Collector):
    """Gauges straight from the engine's snapshot."""

    def __init__(self, role: Role, snapshot: Callable[[], EngineSnapshot]) -> None:
        self._role = role.value
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        stats = self._snapshot().stats
        blocks = GaugeMetricFamily("baton_kv_blocks", "KV blocks by state", labels=["role", "state"])
        for state, count in (
            ("free", stats.blocks_free),
            ("cached", stats.blocks_cached),
            ("reserved", stats.blocks_reserved),
            ("in_use", stats.blocks_in_use),
        ):
            blocks.add_metric([self._role, state], count)
        yield blocks
        sequences = GaugeMetricFamily("baton_sequences", "Sequences by state", labels=["role", "state"])
        sequences.add_metric([self._role, "running"], stats.running)
        sequences.add_metric([self._role, "waiting"], stats.waiting)
        yield sequences


class WorkerMetrics:
    """Counters and histograms of one worker process, in a registry of their own."""

    def __init__(self, role: Role, snapshot: Callable[[], EngineSnapshot]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Snapshot(role, snapshot))
        name = role.value

        def counter(metric: str, text: str, *labels: str) -> Counter:
            return Counter(metric, text, ["role", *labels], registry=self.registry)

        def histogram(metric: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            family = Histogram(metric, text, ["role"], buckets=buckets, registry=self.registry)
            child: Histogram = family.labels(name)
            return child

        tokens = counter("baton_tokens", "Prompt tokens accepted and tokens drawn", "kind")
        self.prompt_tokens = tokens.labels(name, "prompt")
        self.drawn_tokens = tokens.labels(name, "drawn")
        prefix = counter("baton_prefix_tokens", "Prompt tokens by whether their KV was cached", "found")
        self.prefix_hit_tokens = prefix.labels(name, "hit")
        self.prefix_miss_tokens = prefix.labels(name, "miss")
        ended = counter("baton_legs", "Request legs by how they ended on this worker", "outcome")
        self.legs_finished = ended.labels(name, Reason.FINISHED.value)
        self.legs_failed: dict[Reason, Counter] = {reason: ended.labels(name, reason.value) for reason in Reason}
        moved = counter("baton_kv_bytes", "KV bytes moved between workers", "direction")
        self.kv_bytes_sent = moved.labels(name, "sent")
        self.kv_bytes_received = moved.labels(name, "received")
        self.step_s = histogram("baton_step_seconds", "Duration of an engine step", STEP_BUCKETS)
        self.batch = histogram("baton_batch_size", "Sequences in an engine step", tuple(map(float, BATCH_BUCKETS)))
        self.handover_s = histogram(
            "baton_handover_seconds",
            "Hand-over: prefill complete to verified (prefill), grant to verified (decode)",
            HANDOVER_BUCKETS,
        )

    def render(self) -> bytes:
        """The text exposition."""
        return generate_latest(self.registry)
