"""The operator's Prometheus metrics. Labels take values from closed sets only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from baton_control.names import Key
from baton_operator.schema.status import ConditionType, DeploymentStatus, Truth
from baton_wire.messages.values import Role

REGISTRY = CollectorRegistry()
_PASSES = Counter("baton_operator_passes", "Reconcile passes by how they ended", ["outcome"], registry=REGISTRY)
NO_FAILURES = frozenset({"Done", "Held", "ClaimedElsewhere"})
"""Outcomes of passes without a failure. Namespaces that cannot be read, or that another operator has, get no pass and
have alerts of their own."""
_SECONDS = Histogram(
    "baton_operator_pass_seconds",
    "Duration of a reconcile pass",
    registry=REGISTRY,
    buckets=(0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 120),
)
_QUEUED = Gauge("baton_operator_queue_keys", "Deployments that wait for a pass or have one now", registry=REGISTRY)
_LEADER = Gauge("baton_operator_is_active", "Whether this process holds the Lease", registry=REGISTRY)


_UNREADABLE = Gauge(
    "baton_operator_namespace_unreadable",
    "1 for each watched namespace that cannot be read (* for all): its deployments wait",
    ["namespace"],
    registry=REGISTRY,
)


def unreadable(namespaces: frozenset[str]) -> None:
    """Set the unreadable namespaces. There are few, because they come from the operator's flags."""
    _UNREADABLE.clear()
    for namespace in namespaces:
        _UNREADABLE.labels(namespace).set(1)


_CLAIMED = Gauge(
    "baton_operator_namespace_claimed_elsewhere",
    "1 for each namespace that another operator of the same class has, which holder names: this one stays out",
    ["namespace", "holder"],
    registry=REGISTRY,
)


def claimed_elsewhere(holders: Mapping[str, str]) -> None:
    """Set the holders of claimed namespaces."""
    _CLAIMED.clear()
    for namespace, holder in holders.items():
        _CLAIMED.labels(namespace, holder[:128]).set(1)


_LACKS = Gauge(
    "baton_operator_server_lacks",
    "1 for each feature of Kubernetes that Baton's objects use and this API server is too old for",
    ["feature"],
    registry=REGISTRY,
)


def server_lacks(features: Iterable[str]) -> None:
    """Set the missing features."""
    _LACKS.clear()
    for feature in features:
        _LACKS.labels(feature).set(1)


def pass_ended(outcome: str, seconds: float, queued: int) -> None:
    _PASSES.labels(outcome).inc()
    _SECONDS.observe(seconds)
    _QUEUED.set(queued)


def is_active(value: bool) -> None:
    _LEADER.set(value)


class DeploymentConditions(Collector):
    """Shows the conditions of each deployment as they were written last, and the reason in its column."""

    def __init__(self) -> None:
        self._seen: dict[Key, DeploymentStatus] = {}
        self._most: dict[Key, Mapping[Role, int]] = {}

    def saw_bounds(self, key: Key, most: Mapping[Role, int]) -> None:
        """Note the most workers that each pool may have; pools that cannot grow are left out."""
        self._most[key] = most

    def saw(self, key: Key, status: DeploymentStatus) -> None:
        self._seen[key] = status

    def forget(self, key: Key) -> None:
        """Drop the series of a deployment that is gone."""
        self._seen.pop(key, None)
        self._most.pop(key, None)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        labels = ["namespace", "deployment"]
        conditions = GaugeMetricFamily(
            "baton_deployment_condition", "1 for the status that a condition has", labels=[*labels, "type", "status"]
        )
        reasons = GaugeMetricFamily(
            "baton_deployment_reason", "1 for the worst that is true of a deployment", labels=[*labels, "reason"]
        )
        for key, status in sorted(self._seen.items()):
            for condition in status.conditions:
                if condition.type in set(ConditionType):
                    for truth in Truth:
                        place = [*key, condition.type, truth.value]
                        conditions.add_metric(place, float(condition.status == truth))
            reasons.add_metric([*key, status.summary or "Unknown"], 1.0)
        yield conditions
        yield reasons
        bounds = GaugeMetricFamily(
            "baton_pool_max_workers", "replicas.max of a pool that can grow", labels=[*labels, "role"]
        )
        for key, most in sorted(self._most.items()):
            for role, count in most.items():
                bounds.add_metric([*key, role.value], float(count))
        yield bounds


CONDITIONS = DeploymentConditions()
REGISTRY.register(CONDITIONS)


class ApiCalls(Collector):
    """Shows the calls to the API server by verb and resource. `counts` reads them where they are counted."""

    def __init__(self, counts: Callable[[], dict[tuple[str, str], int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[CounterMetricFamily]:
        family = CounterMetricFamily("baton_operator_api_calls", "Calls to the API server", labels=["verb", "resource"])
        for (verb, resource), count in sorted(self._counts().items()):
            family.add_metric([verb, resource], count)
        yield family


class AlteredGatewayFrames(Collector):
    """Shows the altered frames of gateways. `count` reads their number where they are counted."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count

    def collect(self) -> Iterable[CounterMetricFamily]:
        text = "Frames of gateways that did not arrive as they were sent; each ended its link"
        family = CounterMetricFamily("baton_operator_altered_frames", text)
        family.add_metric([], self._count())
        yield family


def text() -> bytes:
    """All metrics in the text format."""
    return generate_latest(REGISTRY)
