"""Metrics of a worker. Label sets are closed: role, block state, direction, outcome. docs/metrics.md lists the names.

What the engine and the transfer count themselves (blocks, sequences, tokens, bytes) is read from their snapshots
when scraped; histograms and outcomes are fed as things happen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from baton_engine.grammars.row_masks import RowMasks
from baton_engine.model.step_cost import CostModel
from baton_engine.scheduling.step_load import StepLoad
from baton_kernels.ahead.kernel_folder import CompiledHere
from baton_kv_transfer.transports.bandwidth import LinkReport
from baton_wire.messages.values import WIRE_VERSION, Reason, Role
from baton_wire.rules.hardware import Peak
from baton_wire.session import AlteredFrames
from baton_worker.reporting.utilisation import Utilisation
from baton_worker.reporting.views import EngineSnapshot, TransferView
from baton_worker.reporting.vllm_names import VllmNames

DISTRIBUTION = "baton-serving"
STEP_BUCKETS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0, 4.0)
HANDOVER_BUCKETS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 5.0)
GRAMMAR_BUCKETS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0)
BATCH_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)


class _Snapshots(Collector):
    """Gauges and counters read from the latest snapshots of engine and transfer."""

    def __init__(
        self,
        role: Role,
        engine: Callable[[], EngineSnapshot],
        transfer: Callable[[], TransferView],
        from_gateways: AlteredFrames,
    ) -> None:
        self._role = role.value
        self._engine = engine
        self._transfer = transfer
        self._from_gateways = from_gateways

    def describe(self) -> Iterable[Metric]:
        """Describe nothing: the snapshots do not exist yet when this collector is registered."""
        return ()

    def collect(self) -> Iterable[Metric]:
        stats, transfer = self._engine().stats, self._transfer()
        yield self._gauges(
            "baton_kv_blocks",
            "KV blocks by state; cached ones are free to be given out",
            "state",
            free=stats.blocks_free,
            cached=stats.blocks_cached,
            reserved=stats.blocks_reserved,
            in_use=stats.blocks_in_use,
        )
        yield self._gauges(
            "baton_sequences", "Sequences by state", "state", running=stats.running, waiting=stats.waiting
        )
        hits = stats.cached_prompt_tokens
        yield self._counters(
            "baton_prefix_tokens",
            "Prompt tokens by whether their KV was in the prefix cache",
            "found",
            hit=hits,
            miss=stats.prompt_tokens - hits,
        )
        preempted = CounterMetricFamily(
            "baton_preemptions", "Sequences that gave up their blocks for older ones", labels=["role"]
        )
        preempted.add_metric([self._role], stats.preemptions)
        yield preempted
        yield self._counters(
            "baton_kv_bytes",
            "Bytes of KV moved between workers; early ones were sent before their prompt was computed to its end",
            "direction",
            sent=transfer.kv_bytes_sent,
            early=transfer.kv_bytes_early,
            received=transfer.kv_bytes_received,
        )
        yield self._counters(
            "baton_altered_frames",
            "Frames that did not arrive as they were sent; each ended its link",
            "link",
            gateway=self._from_gateways.count,
            pair=transfer.altered_frames,
        )

        rates = GaugeMetricFamily(
            "baton_kv_link_bytes_per_second",
            "Slowest measured link to a decode worker; absent while none is measured",
            labels=["role", "transport"],
        )
        for transport, rate in slowest(transfer.links).items():
            rates.add_metric([self._role, transport], rate)
        yield rates

    def _gauges(self, name: str, text: str, label: str, **values: int) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["role", label])
        for key, value in values.items():
            family.add_metric([self._role, key], value)
        return family

    def _counters(self, name: str, text: str, label: str, **values: int) -> Metric:
        family = CounterMetricFamily(name, text, labels=["role", label])
        for key, value in values.items():
            family.add_metric([self._role, key], value)
        return family


class _Kernels(Collector):
    """Kernels of a GPU by their origin: found compiled or compiled here."""

    def __init__(self, role: Role, kernels: CompiledHere) -> None:
        self._role = role.value
        self._kernels = kernels

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(
            "baton_kernels",
            "Kernels of a GPU that were found compiled, and that were compiled here",
            labels=["role", "origin"],
        )
        family.add_metric([self._role, "found"], self._kernels.found)
        family.add_metric([self._role, "compiled"], len(self._kernels.names))
        yield family


def slowest(links: Iterable[LinkReport]) -> dict[str, float]:
    """The least measured bandwidth by transport, in bytes per second."""
    rates: dict[str, float] = {}
    for link in links:
        if link.bytes_per_s is not None:
            rates[link.transport] = min(link.bytes_per_s, rates.get(link.transport, link.bytes_per_s))
    return rates


class WorkerMetrics:
    """All metrics of one worker process, in a registry of their own."""

    def __init__(self, role: Role) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        build = Gauge("baton_build_info", "1, by version", ["version", "wire"], registry=self.registry)
        build.labels(_version(), str(WIRE_VERSION)).set(1)
        self._role = role
        self.altered_frames = AlteredFrames()
        """Frames from gateways that did not arrive as they were sent."""

        def counter(metric: str, text: str, label: str) -> Counter:
            return Counter(metric, text, ["role", label], registry=self.registry)

        def histogram(metric: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            family = Histogram(metric, text, ["role"], buckets=buckets, registry=self.registry)
            child: Histogram = family.labels(role.value)
            return child

        tokens = counter("baton_tokens", "Prompt tokens accepted and tokens drawn", "kind")
        self.prompt_tokens = tokens.labels(role.value, "prompt")
        self.drawn_tokens = tokens.labels(role.value, "drawn")
        ended = counter("baton_legs", "Request legs by how they ended on this worker", "outcome")
        self.legs: dict[Reason, Counter] = {reason: ended.labels(role.value, reason.value) for reason in Reason}
        self.step_s = histogram("baton_step_seconds", "Duration of an engine step", STEP_BUCKETS)
        self.batch = histogram("baton_batch_size", "Prefill chunks and decode rows of an engine step", BATCH_BUCKETS)
        self.compile_s = histogram(
            "baton_grammar_compile_seconds", "Compiling one grammar that was not known here", GRAMMAR_BUCKETS
        )
        self.mask_s = histogram(
            "baton_grammar_mask_seconds", "Masks of all rows of a step that follow grammars", GRAMMAR_BUCKETS
        )
        self._utilisation: Utilisation | None = None
        self._startup_s = Gauge(
            "baton_startup_seconds", "Parts of the worker's start", ["role", "stage"], registry=self.registry
        )
        self.handover_s = histogram(
            "baton_handover_seconds",
            "Hand-over: all KV computed to verified (prefill), grant to verified (decode)",
            HANDOVER_BUCKETS,
        )

    def watch(self, engine: Callable[[], EngineSnapshot], transfer: Callable[[], TransferView]) -> None:
        """Read these snapshots at every scrape from now on."""
        self.registry.register(_Snapshots(self._role, engine, transfer, self.altered_frames))

    def watch_under_vllm_names(self, names: VllmNames) -> None:
        """Export the KV cache under vLLM's names from now on."""
        self.registry.register(names)

    def watch_costs(self, costs: CostModel | None, peak: Peak | None, ranks: Sequence[CostModel] = ()) -> None:
        """Export utilisation from now on: the cost of steps over the device's peak. None: not known, not exported.
        `ranks`: as for `Utilisation`."""
        self._utilisation = None if costs is None else Utilisation(self._role, costs, peak, ranks)
        if self._utilisation is not None:
            self.registry.register(self._utilisation)

    def watch_kernels(self, kernels: CompiledHere) -> None:
        """Export the numbers of kernels from now on."""
        self.registry.register(_Kernels(self._role, kernels))

    def watch_grammars(self, masks: RowMasks) -> None:
        """Measure compilations and masks from now on; both are observed in threads of the engine."""
        masks.compiler.observe_compiled = self.compile_s.observe
        masks.observe_masks = self.mask_s.observe

    def report_start(self, stages: Mapping[str, float]) -> None:
        """Export the seconds of each stage of the start."""
        for stage, seconds in stages.items():
            self._startup_s.labels(self._role.value, stage).set(seconds)

    def observe_step(self, load: StepLoad, seconds: float) -> None:
        """Observe a collected engine step."""
        self.step_s.observe(seconds)
        self.batch.observe(load.rows)
        if self._utilisation is not None:
            self._utilisation.observe_step(load, seconds)

    def observe_handover(self, seconds: float, trace_id: bytes | None = None) -> None:
        """Observe a hand-over. `trace_id`: the request's trace, the exemplar for readers that ask for OpenMetrics."""
        self.handover_s.observe(seconds, None if trace_id is None else {"trace_id": trace_id.hex()})

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Render the page in the format that an `Accept` header asks for; returns it with its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


def _version() -> str:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:  # an image may contain the packages without their metadata
        return "unknown"
