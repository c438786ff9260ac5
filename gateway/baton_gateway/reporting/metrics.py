"""The gateway's metrics. Label values come from closed sets only; nothing that a client sends becomes one.

Several processes on one port write to shared files (prometheus_client's multiprocess mode, switched on by an
environment variable before this is imported); a page then shows the metrics of all processes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from baton_gateway.reporting.load_series import LoadSeries
from baton_gateway.reporting.metric_files import METRICS_VARIABLE
from baton_gateway.reporting.metrics_page import metrics_page
from baton_gateway.reporting.outcome import LedgerResult, Outcome, RequestTotals, TraceResult
from baton_gateway.reporting.recent_sketch import RecentSketch
from baton_gateway.reporting.telemetry import LoadTelemetry
from baton_gateway.structured_outputs.format_compiler import CompileOutcome
from baton_gateway.workers.route import MoveReason, Route
from baton_wire.messages.values import POOL_ROLES, Reason, Role
from baton_wire.session import AlteredFrames
from baton_wire.sketch import Sketch

_TIME_BUCKETS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600)
_GAP_BUCKETS = (0.001, 0.002, 0.004, 0.008, 0.012, 0.016, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 3)
_LAG_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 3)
ROUTES = ("disaggregated", "local", "kept", "encoded")
LAG_EVERY_S = 0.02
"""A block that begins between two timers is measured shorter by at most this. A timer costs some 20 us."""
BATCH_ENDS = ("completed", "failed", "expired", "cancelled")
LINE_RESULTS = ("completed", "failed", "expired", "retried")
STATUSES = ("200", "400", "401", "404", "405", "408", "413", "415", "429", "499", "500", "502", "503", "504", "other")


@dataclass(slots=True)
class RequestTimes:
    """When things happened to one request, in seconds of the event loop's clock; `first_s` … by choice."""

    arrived_s: float
    prompt_tokens: int = 0
    """Tokens of the latest prompt that was routed."""
    has_token: bool = False
    first_s: dict[int, float] = field(default_factory=dict)
    last_s: dict[int, float] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    exemplar: dict[str, str] | None = None
    """The labels that lead from a latency to the request's trace; None: it has none."""


@dataclass(frozen=True, slots=True)
class Latency:
    """One latency that clients saw, in seconds, for `/metrics`, `/state` and the operator's summaries."""

    histogram: Histogram
    recent: Sketch
    """Since the last summary."""
    whole: Sketch = field(default_factory=Sketch)
    """Since the process started."""
    minute: RecentSketch = field(default_factory=RecentSketch)
    """In the last minute."""

    def observe(self, seconds: float, now: float, exemplar: dict[str, str] | None = None) -> None:
        """Add a latency. `exemplar`: labels that lead to one request, for readers that ask for OpenMetrics. The library
        has none where several processes share files."""
        self.histogram.observe(seconds, exemplar)
        self.recent.add(seconds)
        self.whole.add(seconds)
        self.minute.add(seconds, now)


@dataclass(slots=True)
class CacheUse:
    """How much of what was cached was found, since the process started."""

    prompt_tokens: int = 0
    """Tokens of the prompts that workers reported about."""
    cached_tokens: int = 0
    """Tokens of these prompts that their workers had cached."""
    cacheable_tokens: int = 0
    """Tokens of these prompts that some worker had cached: more than was found, where prompts went elsewhere."""
    moved: dict[MoveReason, int] = field(default_factory=lambda: dict.fromkeys(MoveReason, 0))
    """Sessions that did not go to the worker that had them cached, by reason."""


class GatewayMetrics:
    """Every series exists from the start, so that their number never changes. Names: docs/metrics.md."""

    def __init__(self, registry: CollectorRegistry, ttft_s: float | None = None, tpot_s: float | None = None) -> None:
        """`ttft_s`, `tpot_s`: targets, which become bounds of buckets, so that attainment is exact."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry
        self.rename: Callable[[bytes], bytes] | None = None
        """Adds other names to a page of metrics in plain text."""
        self._ttft_buckets, self._tpot_buckets = with_bound(_TIME_BUCKETS, ttft_s), with_bound(_GAP_BUCKETS, tpot_s)
        self.telemetry = LoadTelemetry()
        self.series = LoadSeries(ttft_s, tpot_s)
        self.cache_use = CacheUse()
        self.unserved_minute = RecentSketch()
        """A value for each request of the last minute that more workers would have served, or that failed."""
        self._make_histograms(registry)
        self._make_counters(registry)
        self._make_gauges(registry)

    def page(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics of this process, or of all that share its port, and their content type. `accept`: the header of
        the reader. Other names are added to plain text alone."""
        folder = os.environ.get(METRICS_VARIABLE)
        if self.rename is None:
            return metrics_page(self._registry, folder, accept)
        page, content_type = metrics_page(self._registry, folder)
        return self.rename(page), content_type

    # What happens -----------------------------------------------------------------------------------------------------

    def arrived(self, now: float) -> RequestTimes:
        return RequestTimes(now)

    def refused(self, now: float, *, is_demand: bool = True) -> None:
        """Admission refused a request on arrival. `is_demand`: more workers would serve it, so its tenant is not at its
        own quota.
        """
        if is_demand:
            self.telemetry.refused()
            self.unserved_minute.add(0.0, now)
        self._requests[Outcome.REFUSED].inc()
        self.series.count_end(Outcome.REFUSED, 0, 0, now)

    def unserved(self, now: float) -> None:
        """A request failed, or was refused after it had been accepted."""
        self.telemetry.unserved()
        self.unserved_minute.add(0.0, now)

    def admitted(self, times: RequestTimes, now: float) -> None:
        self._queue.observe(now - times.arrived_s)

    def routed(self, route: Route) -> None:
        self._routes[route_name(route)].inc()
        if route.moved is not None:
            self._moved[route.moved].inc()
            self.cache_use.moved[route.moved] += 1

    def retried(self, reason: Reason) -> None:
        """Another attempt begins. `reason`: why the one before ended."""
        self._retries[reason].inc()

    def leg_failed(self, reason: Reason) -> None:
        self._legs[reason].inc()

    def delivered(self, times: RequestTimes, choice: int, tokens: int, now: float) -> float:
        """Count tokens of a choice. Returns the seconds that each took since the ones before; 0: they are the first."""
        gap_s = 0.0
        last_s = times.last_s.get(choice)
        if last_s is None:
            times.first_s[choice] = now
            times.tokens[choice] = tokens
            if not times.has_token:
                times.has_token = True
                self.ttft.observe(now - times.arrived_s, now, times.exemplar)
                self.series.count_first_token(now - times.arrived_s, now)
        elif tokens:
            times.tokens[choice] += tokens
            gap_s = (now - last_s) / tokens
            self._itl.observe(gap_s)
        times.last_s[choice] = now
        return gap_s

    def ended(self, times: RequestTimes, outcome: Outcome, totals: RequestTotals, now: float) -> None:
        self._requests[outcome].inc()
        self.series.count_end(outcome, totals.prompt_tokens, totals.completion_tokens, now)
        self._prompt_tokens.inc(totals.prompt_tokens)
        self._completion_tokens.inc(totals.completion_tokens)
        if totals.cached_tokens is not None:
            self._count_cached(totals.prompt_tokens, totals.cached_tokens, totals.cacheable_tokens)
        self._migrations.inc(totals.migrations)
        self._conflicts.inc(totals.conflicts)
        if outcome is Outcome.FINISHED:
            self._e2e.observe(now - times.arrived_s)
        if outcome is Outcome.CANCELLED and not times.has_token:
            waited_s = now - times.arrived_s  # a lower bound of its wait
            self.ttft.recent.add(waited_s)
            self.ttft.minute.add(waited_s, now)
        for choice, tokens in times.tokens.items():
            self.telemetry.output(now, times.prompt_tokens, tokens)
            if tokens > 1:
                gap_s = (times.last_s[choice] - times.first_s[choice]) / (tokens - 1)
                self.tpot.observe(gap_s, now, times.exemplar)
                self.series.count_sequence(gap_s, now)

    def _count_cached(self, prompt_tokens: int, cached: int, cacheable: int) -> None:
        cacheable = max(cached, cacheable)  # a prompt that waits while its beginning is computed finds more
        self._cached_tokens.inc(cached)
        self._cacheable_tokens.inc(cacheable)
        self.cache_use.prompt_tokens += prompt_tokens
        self.cache_use.cached_tokens += cached
        self.cache_use.cacheable_tokens += cacheable

    def answered(self, status: int) -> None:
        self._statuses.get(str(status), self._statuses["other"]).inc()

    def shaped(self, how: CompileOutcome, seconds: float) -> None:
        """A request's schema or grammar was looked up or compiled."""
        self._shapes[how].inc()
        if how is not CompileOutcome.KNOWN:
            self._compile.observe(seconds)

    def stalled(self) -> None:
        self._stalled.inc()

    def traced(self, result: TraceResult, traces: int) -> None:
        """Count traces by their result, from any thread."""
        self._traces[result].inc(traces)

    def ledgered(self, result: LedgerResult, requests: int) -> None:
        """Count requests by what became of them in the ledger, from any thread."""
        self._ledger[result].inc(requests)

    def batch_ended(self, status: str) -> None:
        self._batches[status].inc()

    def batch_lines(self, result: str, lines: int = 1) -> None:
        """Count lines of batches by what became of them."""
        self._batch_lines[result].inc(lines)

    def sample_batches(self, running: int, paused: int) -> None:
        """Sampled once a second, where there are batches."""
        self._batches_running.set(running)
        self._batches_paused.set(paused)

    def lagged(self, seconds: float) -> None:
        self._lag.observe(seconds)

    def sample(self, running: int, waiting: int, linked: dict[Role, int], now: float) -> None:
        """Sampled once a second."""
        self.series.sample(running, waiting, now)
        self._running.set(running)
        self._waiting.set(waiting)
        for role in POOL_ROLES:
            self._workers[role].set(linked.get(role, 0))

    def sample_ledger(self, waiting: int, *, is_failing: bool) -> None:
        """Sampled once a second, where there is a ledger."""
        self._ledger_waiting.set(waiting)
        self._ledger_failing.set(is_failing)

    # Series -----------------------------------------------------------------------------------------------------------

    def _make_histograms(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"baton_gateway_{name}_seconds", text, registry=registry, buckets=buckets)

        ttft = histogram("ttft", "From the request's arrival to its first token", self._ttft_buckets)
        tpot = histogram("tpot", "Mean gap between a choice's tokens, gap 1-2 included", self._tpot_buckets)
        self.ttft, self.tpot = Latency(ttft, self.telemetry.ttft), Latency(tpot, self.telemetry.tpot)
        self._itl = histogram("itl", "Gap between one token and the next", self._tpot_buckets)
        self._e2e = histogram("e2e", "From arrival to the end of a finished request", _TIME_BUCKETS)
        self._queue = histogram("queue", "From arrival to admission", _TIME_BUCKETS)
        self._compile = histogram("grammar_compile", "From a new schema or grammar to its definition", _GAP_BUCKETS)
        self._lag = histogram("loop_lag", "How late timers of the event loop fire", _LAG_BUCKETS)

    def _make_counters(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"baton_gateway_{name}", text, labels, registry=registry)

        requests = counter("requests", "Generating requests by outcome", "outcome")
        self._requests = {outcome: requests.labels(outcome.value) for outcome in Outcome}
        legs = counter("leg_failures", "Parts of requests that workers gave up, by reason", "reason")
        self._legs = {reason: legs.labels(reason.value) for reason in Reason}
        routes = counter("routed", "Attempts by where they are prefilled", "route")
        self._routes = {name: routes.labels(name) for name in ROUTES}
        shapes = counter("grammars", "Requests with a schema or grammar, by how they came by it", "result")
        self._shapes = {how: shapes.labels(how.value) for how in CompileOutcome}
        statuses = counter("responses", "HTTP responses by status", "status")
        self._statuses = {status: statuses.labels(status) for status in STATUSES}
        self._prompt_tokens = counter("prompt_tokens", "Tokens of prompts")
        self._cached_tokens = counter("cached_tokens", "Tokens of prompts that their workers had cached")
        self._cacheable_tokens = counter("cacheable_tokens", "Tokens of prompts that any worker had cached")
        moved = counter("moved_sessions", "Prompts computed elsewhere than where most of them was cached", "reason")
        self._moved = {reason: moved.labels(reason.value) for reason in MoveReason}
        self._completion_tokens = counter("completion_tokens", "Generated tokens that were delivered")
        retries = counter("retries", "Attempts after the first, by why the one before ended", "reason")
        self._retries = {reason: retries.labels(reason.value) for reason in Reason}
        self._migrations = counter("migrations", "Attempts that went on from delivered tokens")
        self._conflicts = counter("token_conflicts", "Attempts in which a worker repeated a token otherwise")
        altered = counter("altered_frames", "Frames that did not arrive as they were sent; each ended its link", "link")
        self.altered_frames = {link: AlteredFrames(altered.labels(link).inc) for link in ("worker", "operator")}
        traces = counter("traces", "Sampled traces of requests, by what became of them", "result")
        self._traces = {result: traces.labels(result.value) for result in TraceResult}
        ledger = counter("ledger_requests", "Requests by what became of them in the ledger", "result")
        self._ledger = {result: ledger.labels(result.value) for result in LedgerResult}
        batches = counter("batches", "Batches that ended, by their status", "status")
        self._batches = {status: batches.labels(status) for status in BATCH_ENDS}
        lines = counter("batch_lines", "Lines of batches, by what became of them", "result")
        self._batch_lines = {result: lines.labels(result) for result in LINE_RESULTS}
        self._stalled = counter("stalled_clients", "Streams cancelled because the client did not read")

    def _make_gauges(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"baton_gateway_{name}", text, labels, registry=registry, multiprocess_mode="livesum")

        self._running = gauge("requests_running", "Requests at work")
        self._waiting = gauge("requests_waiting", "Requests waiting for their turn")
        self._ledger_waiting = gauge("ledger_waiting", "Requests in the ledger's table: open, or not written yet")
        self._ledger_failing = gauge("ledger_failing", "Gateway processes whose ledger could not be written last time")
        self._batches_running = gauge("batches_running", "Batches that gateway processes work on")
        self._batches_paused = gauge("batches_paused", "Batches that pause because their folder cannot be written")
        workers = gauge("links", "Live links to workers, counted for every gateway process", "role")
        self._workers = {role: workers.labels(role.value) for role in POOL_ROLES}


def with_bound(buckets: tuple[float, ...], target_s: float | None) -> tuple[float, ...]:
    """Return the bounds of buckets with a target among them."""
    return buckets if target_s is None else tuple(sorted({*buckets, target_s}))


def route_name(route: Route) -> str:
    """Return which of `ROUTES` the route is."""
    if route.is_encoded:
        return "encoded"
    return "kept" if route.is_prefill_local else "local" if route.is_decode_local else "disaggregated"


class LoopWatcher(Protocol):
    """Follows the timers by which a loop is watched."""

    def expect(self, due_s: float) -> None: ...

    def fired(self, at_s: float) -> None: ...


async def watch_loop_lag(observe: Callable[[float], None], watcher: LoopWatcher | None = None) -> None:
    """Observe how many seconds late each of a series of timers fires, for the life of the loop."""
    now = asyncio.get_running_loop().time
    while True:
        due_s = now() + LAG_EVERY_S
        if watcher is not None:
            watcher.expect(due_s)
        await asyncio.sleep(LAG_EVERY_S)
        at_s = now()
        observe(max(0.0, at_s - due_s))
        if watcher is not None:
            watcher.fired(at_s)
