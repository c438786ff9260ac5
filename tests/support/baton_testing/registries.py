"""Registries with every series that a process of Baton exports."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from baton_control.names import Key
from baton_control.sizing.decision.scaling import PoolNow, Sized
from baton_control.sizing.metrics import SizingMetrics
from baton_control.telemetry.limit_shares import LimitShares
from baton_control.telemetry.tenant_metrics import TenantUse
from baton_engine.model.step_cost import CostModel
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.scheduler import Scheduler
from baton_engine.scheduling.step_load import StepLoad
from baton_gateway.reporting.metrics import GatewayMetrics
from baton_gateway.reporting.metrics_page import BuildAndProcesses
from baton_kernels.ahead.kernel_folder import CompiledHere
from baton_kv_transfer.transports.bandwidth import LinkReport
from baton_wire.messages.operator_link import LimitMeasure, LimitUse
from baton_wire.messages.values import POOL_ROLES, Role
from baton_wire.rules.hardware import Peak
from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.reporting.views import EngineSnapshot, TransferView


def worker_registry(role: Role = Role.DECODE) -> CollectorRegistry:
    metrics = WorkerMetrics(role)
    costs = CostModel(1, 1, 1.0, 1, 1)
    metrics.watch_costs(costs, Peak(1.0, 1.0), [costs])
    metrics.report_start({"weights": 1.0})
    metrics.watch_kernels(CompiledHere())
    metrics.observe_step(StepLoad(0, 0.0, 0, 1, 1), 0.1)
    scheduler = Scheduler(EngineConfig(num_blocks=4, block_tokens=4, max_slots=2, max_context_tokens=8))
    snapshot = EngineSnapshot(scheduler.stats(), 0, 0.0, 0.0, 0.0, 0.0)
    link = LinkReport("127.0.0.1:9", "tcp", "tcp x1", 1e9, None)
    metrics.watch(lambda: snapshot, lambda: TransferView("tcp", 1, 2, 3, 2, 4, links=(link,)))
    return metrics.registry


def gateway_registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    GatewayMetrics(registry)
    registry.register(BuildAndProcesses())
    return registry


def sizing_registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    sized = Sized(dict.fromkeys(POOL_ROLES, 1), dict.fromkeys(POOL_ROLES, ""), holds=False)
    SizingMetrics(registry).saw(Key("default", "chat"), sized, dict.fromkeys(POOL_ROLES, PoolNow(1, None)))
    return registry


def tenants_registry() -> CollectorRegistry:
    registry, shares, process = CollectorRegistry(), LimitShares(), b"p" * 16
    shares.join(process)
    shares.report(process, [LimitUse("web", LimitMeasure.OUTPUT, 600.0, 10.0, 590.0)], 0, 1.0)
    registry.register(TenantUse(lambda: {Key("default", "chat"): shares}))
    return registry
