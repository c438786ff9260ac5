"""An operator that has nothing to size stays small; the first decision is the same as any other."""

from __future__ import annotations

import subprocess
import sys

from baton_control.names import Key
from baton_control.sizing.decision.scaling import PoolNow, Sized, SizingRequest
from baton_control.sizing.slo_sizing import SloSizing
from baton_control.telemetry.store import TelemetryStore
from baton_operator.sizing_on_demand import SizingOnDemand
from baton_testing.kube.manifests import deployment
from baton_wire.messages.measures import ArrivalCounts, Backlog, RequestLengths, Served, SketchData
from baton_wire.messages.operator_link import GatewayHello, Summary
from baton_wire.messages.values import POOL_ROLES

KEY = Key("default", "chat")
GATEWAY = b"g" * 16
POOLS = {role: PoolNow(1, 1, None) for role in POOL_ROLES}
EMPTY = SketchData()


def test_numpy_is_not_imported_at_the_start() -> None:
    loaded = "import sys, baton_operator.__main__; print('numpy' in sys.modules, 'baton_control' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "True"]


def decisions(kind: type[SizingOnDemand] | type[SloSizing]) -> list[Sized]:
    """At rising load, with a deployment that is forgotten halfway."""
    store, clock = TelemetryStore(), [100.0]
    store.linked(GATEWAY, GatewayHello("one", 1), clock[0])
    sizing = kind(lambda key: store, lambda: clock[0])
    pool = {"min": 1, "max": 20}
    spec = deployment(prefill__replicas=pool, decode__replicas=pool)
    sizing.forget(KEY)
    sizes: list[Sized] = []
    memory: str | None = None
    for number in range(1, 9):
        clock[0] += 10.0
        arrived = ArrivalCounts(40 * number, 0, 0, EMPTY, EMPTY, EMPTY, (RequestLengths(1000, 100, 0),) * 8)
        summary = Summary(number, 1e9, 10.0, arrived, Served(EMPTY, EMPTY, 0), Backlog(0, 0, 0.0, 0), (), 0, "")
        store.add_summary(GATEWAY, summary, clock[0])
        if number == 5:
            sizing.forget(KEY)
            memory = None
        sizes.append(sizing.decide(SizingRequest(KEY, spec, POOLS, memory, 1.7e9 + clock[0])))
        memory = sizes[-1].memory
    return sizes


def test_it_decides_and_forgets_as_what_it_imports() -> None:
    sizes = decisions(SizingOnDemand)
    assert sizes == decisions(SloSizing)
    assert any(sized.inputs is not None and "arrivals_per_s" in sized.inputs for sized in sizes)
