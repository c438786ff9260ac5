"""The series that Prometheus records of the processes' real registries, with the labels that its targets add."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from baton_control.names import Key
from baton_operator import metrics as operator_metrics
from baton_operator.metrics import CONDITIONS
from baton_operator.schema.status import Condition, DeploymentStatus
from baton_testing.registries import gateway_registry, sizing_registry, tenants_registry, worker_registry
from baton_wire.messages.values import POOL_ROLES

CHAT = Key("default", "chat")
SINCE = "2026-01-01T00:00:00Z"
READY = Condition.model_validate(
    {"type": "Ready", "status": "True", "reason": "Serving", "message": "x", "lastTransitionTime": SINCE}
)
POD = {"namespace": CHAT.namespace, "deployment": CHAT.name}
TARGET_LABELS = frozenset({"namespace", "deployment", "pod", "instance", "job", "container", "endpoint"})
SELECTOR = re.compile(r"\b((?:baton|process)_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')


@dataclass(frozen=True, slots=True)
class Series:
    """One series: its name, labels, type, and its rank among its histogram's buckets (1 for others)."""

    name: str
    labels: Mapping[str, str]
    kind: str
    rank: int = 1

    def __str__(self) -> str:
        return self.name + "{" + ",".join(f'{name}="{value}"' for name, value in sorted(self.labels.items())) + "}"

    @property
    def values(self) -> str:
        """Half an hour of values every 30 s, as promtool writes them: counters grow and gauges stay."""
        return "1x60" if self.kind == "gauge" else f"{self.rank}+{self.rank}x60"


def families() -> dict[str, frozenset[str]]:
    """The labels of each series name that a process exports, with those of its target."""
    names: dict[str, frozenset[str]] = {}
    for _, registry in _registries():
        for collector in registry._collector_to_names:
            for family in collector.collect():
                labels = frozenset(label for sample in family.samples for label in sample.labels) - {"le"}
                for source in (collector, family):
                    labels |= frozenset(getattr(source, "_labelnames", ()))
                for name, more in _series_names(family):
                    names[name] = names.get(name, frozenset()) | labels | more | TARGET_LABELS
    return names


def recorded() -> list[Series]:
    """Series of one gateway, a worker of each pool, and the operator, under load."""
    found: list[Series] = []
    for place, registry in _registries():
        for family in registry.collect():
            ranks: dict[tuple[tuple[str, str], ...], int] = {}
            for sample in family.samples:
                plain = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
                ranks[plain] = ranks.get(plain, 0) + 1
                labels = {"instance": f"{place.get('pod', 'operator')}:8000", "job": "baton", **place, **sample.labels}
                found.append(Series(sample.name, labels, family.type, ranks[plain]))
    return found


def _registries() -> Iterator[tuple[dict[str, str], CollectorRegistry]]:
    """Each process's registry, with the labels of its target."""
    yield {**POD, "pod": "chat-gateway-0"}, gateway_registry()
    for role in POOL_ROLES:
        yield {**POD, "pod": f"chat-{role}-0"}, worker_registry(role)
    yield {}, sizing_registry()
    yield {}, tenants_registry()
    operator_metrics.pass_ended("Done", 0.1, 0)
    operator_metrics.is_active(True)
    CONDITIONS.saw(CHAT, DeploymentStatus(summary="Serving", conditions=(READY,)))
    CONDITIONS.saw_bounds(CHAT, dict.fromkeys(POOL_ROLES, 3))
    yield {}, operator_metrics.REGISTRY
    CONDITIONS.forget(CHAT)


def _series_names(family: Metric) -> Iterator[tuple[str, frozenset[str]]]:
    """The names of a family's series, each with the labels that only it has."""
    match family.type:
        case "counter":
            yield f"{family.name}_total", frozenset()
        case "histogram":
            yield f"{family.name}_bucket", frozenset({"le"})
            yield f"{family.name}_sum", frozenset()
            yield f"{family.name}_count", frozenset()
        case _:
            yield family.name, frozenset()


def problems(expression: str, names: Mapping[str, frozenset[str]]) -> list[str]:
    """What a query asks for that no process exports: unknown series and unknown labels."""
    found: list[str] = []
    known: frozenset[str] = frozenset()
    for name, matchers in SELECTOR.findall(expression):
        if name not in names:
            found.append(f"no series {name}")
            continue
        known |= names[name]
        found += [f"{name} has no label {label}" for label in MATCHER.findall(matchers) if label not in names[name]]
    if not SELECTOR.search(expression):
        found.append("no series of Baton")
    for labels in re.findall(r"\b(?:by|on|ignoring|without) \(([^)]*)\)", expression):
        grouped = {label.strip() for label in labels.split(",") if label.strip()}
        found += [f"no label {label}" for label in sorted(grouped - known)]
    return found
