"""docs/metrics.md names every series that a process exports, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from baton_control.names import Key
from baton_control.sizing.decision.scaling import PoolNow, Sized
from baton_control.sizing.metrics import SizingMetrics
from baton_engine.model.step_cost import CostModel
from baton_engine.running.step_load import StepLoad
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.scheduler import Scheduler
from baton_gateway.reporting.metrics import GatewayMetrics
from baton_kernels.ahead.kernel_folder import CompiledHere
from baton_kv_transfer.transports.bandwidth import LinkReport
from baton_wire.messages.values import POOL_ROLES, Role
from baton_wire.rules.hardware import Peak
from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.reporting.views import EngineSnapshot, TransferView

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)


def documented(heading: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Name → (type, label names) of one section's table."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    return {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in ROW.findall(section)}


def exported(registry: CollectorRegistry) -> dict[str, tuple[str, frozenset[str]]]:
    """The same of a registry; histograms' and counters' own suffixes and labels left out."""
    families = {}
    for family in registry.collect():
        labels = frozenset(label for sample in family.samples for label in sample.labels) - {"le"}
        name = f"{family.name}_total" if family.type == "counter" else family.name
        families[name] = (family.type, labels)
    return families


def worker_registry() -> CollectorRegistry:
    metrics = WorkerMetrics(Role.DECODE)
    metrics.computes(CostModel(1, 1, 1.0, 1, 1), Peak(1.0, 1.0))
    metrics.started({"weights": 1.0})
    metrics.compiles(CompiledHere())
    metrics.stepped(StepLoad(0, 0.0, 0, 1, 1), 0.1)
    scheduler = Scheduler(EngineConfig(num_blocks=4, block_tokens=4, max_slots=2, max_context_tokens=8))
    snapshot = EngineSnapshot(scheduler.stats(), 0, 0.0, 0.0, 0.0, 0.0)
    link = LinkReport("127.0.0.1:9", "tcp", "tcp x1", 1e9, None)
    metrics.watch(lambda: snapshot, lambda: TransferView("tcp", 1, 2, 3, 2, 4, links=(link,)))
    return metrics.registry


def gateway_registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    GatewayMetrics(registry)
    return registry


def sizing_registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    sized = Sized(dict.fromkeys(POOL_ROLES, 1), dict.fromkeys(POOL_ROLES, ""), holds=False)
    SizingMetrics(registry).saw(Key("default", "chat"), sized, dict.fromkeys(POOL_ROLES, PoolNow(1, None)))
    return registry


@pytest.mark.parametrize(
    ("heading", "registry"),
    [("Workers", worker_registry()), ("Gateway", gateway_registry()), ("Sizing", sizing_registry())],
    ids=["workers", "gateway", "sizing"],
)
def test_the_page_and_the_registry_agree(heading: str, registry: CollectorRegistry) -> None:
    assert documented(heading) == exported(registry)


def test_the_number_of_a_workers_series_never_changes() -> None:
    registry = worker_registry()
    before = sum(len(family.samples) for family in registry.collect())
    assert sum(len(family.samples) for family in registry.collect()) == before
