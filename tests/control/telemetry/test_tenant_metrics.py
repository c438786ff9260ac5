"""What the operator's page shows of tenants: what they ask of their limits, and nothing of tenants without one."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from baton_control.names import Key
from baton_control.telemetry.limit_shares import FORGET_S, MAX_WANTED, OTHERS, LimitShares
from baton_control.telemetry.tenant_metrics import MAX_NAMED, TenantUse
from baton_wire.messages.operator_link import LimitMeasure, LimitUse

CHAT = Key("team", "chat")
PROCESSES = (b"a" * 16, b"b" * 16)


def value(registry: CollectorRegistry, name: str, tenant: str, measure: LimitMeasure) -> float | None:
    labels = {"namespace": "team", "deployment": "chat", "tenant": tenant, "measure": measure.value}
    return registry.get_sample_value(name, labels)


def test_what_all_processes_ask_of_a_limit_is_added_and_never_falls() -> None:
    registry, shares = CollectorRegistry(), LimitShares()
    registry.register(TenantUse(lambda: {CHAT: shares}))
    assert [sample for family in registry.collect() for sample in family.samples] == []
    for now, process in enumerate(PROCESSES, start=1):
        shares.join(process)
        uses = [
            LimitUse("web", LimitMeasure.OUTPUT, 600.0, 100.0, 200.0),
            LimitUse("web", LimitMeasure.CONCURRENT, 8.0, 5.0, 3.0),
        ]
        shares.report(process, uses, 0, float(now))
    assert value(registry, "baton_tenant_wanted_total", "web", LimitMeasure.OUTPUT) == 200.0
    assert value(registry, "baton_tenant_limit", "web", LimitMeasure.OUTPUT) == 600.0
    assert value(registry, "baton_tenant_wanted_total", "web", LimitMeasure.CONCURRENT) is None, "not by the minute"
    shares.leave(PROCESSES[0])
    shares.divide(10 * FORGET_S)
    assert value(registry, "baton_tenant_wanted_total", "web", LimitMeasure.OUTPUT) == 200.0
    assert value(registry, "baton_tenant_limit", "web", LimitMeasure.OUTPUT) is None


def test_the_page_stays_small_with_a_hundred_thousand_names_and_no_use_is_lost() -> None:
    registry, shares = CollectorRegistry(), LimitShares()
    registry.register(TenantUse(lambda: {CHAT: shares}))
    shares.join(PROCESSES[0])
    for number in range(100_000):
        use = LimitUse(f"team-{number:057}", LimitMeasure.REQUESTS, 60.0, 2.0, 1.0)
        shares.report(PROCESSES[0], (use,), 0, 1.0)
        if number == 10:
            list(registry.collect())
    page = generate_latest(registry)
    assert len(page) <= 1 << 20
    assert len(shares.wanted) <= MAX_WANTED + 1
    sums = [sample.value for family in registry.collect() for sample in family.samples if "wanted" in sample.name]
    assert sum(sums) == 200_000.0
    series = [line.split("} ")[0] for line in page.decode().splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series)), "a page with a series twice is refused as a whole"
    assert value(registry, "baton_tenant_wanted_total", f"team-{7:057}", LimitMeasure.REQUESTS) == 2.0


def test_limits_of_a_deployment_that_is_gone_leave_their_series_to_later_ones() -> None:
    """Found: an operator that ran long enough named no further tenant."""
    registry = CollectorRegistry()
    by_deployment = {Key("team", "former"): LimitShares()}
    registry.register(TenantUse(lambda: by_deployment))
    for key, names in ((Key("team", "former"), range(MAX_NAMED)), (CHAT, range(2))):
        shares = by_deployment.setdefault(key, LimitShares())
        shares.join(PROCESSES[0])
        uses = [LimitUse(f"team-{number}", LimitMeasure.REQUESTS, 60.0, 2.0, 1.0) for number in names]
        shares.report(PROCESSES[0], uses, 0, 1.0)
        list(registry.collect())
    assert value(registry, "baton_tenant_wanted_total", "team-1", LimitMeasure.REQUESTS) is None
    del by_deployment[Key("team", "former")]
    late = LimitUse("late", LimitMeasure.REQUESTS, 60.0, 2.0, 3.0)
    by_deployment[CHAT].report(PROCESSES[0], (late,), 0, 1.0)
    assert value(registry, "baton_tenant_wanted_total", "late", LimitMeasure.REQUESTS) is not None
    assert value(registry, "baton_tenant_limit", "late", LimitMeasure.REQUESTS) == 60.0
    assert value(registry, "baton_tenant_wanted_total", "team-1", LimitMeasure.REQUESTS) is None, "it never moves"
    assert value(registry, "baton_tenant_wanted_total", OTHERS, LimitMeasure.REQUESTS) is not None
