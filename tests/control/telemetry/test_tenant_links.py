"""Tokens of the month and conflicts of tenants over real links: counted once, and known to every gateway process."""

from __future__ import annotations

from pathlib import Path

from baton_control.telemetry.month_counts import MonthCounts
from baton_control.telemetry.tenant_links import TenantLinks
from baton_gateway.requests.tenant import Tenant
from baton_testing.gateway.gateway_process import until
from baton_testing.sizing.telemetry_links import KEY, Gateway, keys_in, linking, operating
from baton_wire.messages.operator_link import MAX_LIMITS, MonthTotals, TenantConflict, TenantConflicts
from baton_wire.tenant_table import TenantLimits

NOW = 1_795_000_000.0
OWNER = Tenant("a", "a", limits=TenantLimits(tokens_per_month=1_000))
ONE, TWO = b"1" * 16, b"2" * 16


def spend(gateway: Gateway, tokens: float) -> None:
    gateway.months.settle(gateway.months.charge(OWNER, tokens), tokens)


async def test_what_one_process_spends_another_one_knows_and_a_restart_forgets_nothing(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    async with operating(keys) as operator:
        url, port = operator.url, operator.port
        async with linking(keys, url, epoch=ONE) as one, linking(keys, url, epoch=TWO) as two:
            await until(lambda: one.link.is_linked and two.link.is_linked)
            assert one.months.used("a") is None, "nobody knows it yet"
            operator.server.tenants.set_counts(KEY.namespace, MonthCounts("2026-11", {"a": 300}))
            await until(lambda: one.months.used("a") == two.months.used("a") == 300)
            assert one.months.check(OWNER, 10, NOW) is None
            spend(one, 200)
            await until(lambda: two.months.used("a") == 500 and not one.months.is_behind)
            charge = one.months.charge(OWNER, 100)
            await until(lambda: two.months.used("a") == 600)
            one.months.settle(charge, 50)
            await until(lambda: two.months.used("a") == one.months.used("a") == 550)
            async with operating(keys, b"p" * 16) as other:
                # The links stay with the first one: what follows is a process that saved 300 and was restarted.
                restarted = MonthCounts("2026-11", {"a": 300})
                other.server.tenants.set_counts(KEY.namespace, restarted)
                async with linking(keys, other.url, epoch=b"3" * 16) as three:
                    await until(lambda: three.months.used("a") == 300)
                    three.months._used["a"] = 550.0  # as it was given before
                    three.months._repeated.add("a")
                    await until(lambda: restarted.used == {"a": 550})
            assert port == operator.port


async def test_a_new_month_begins_on_every_link(tmp_path: Path) -> None:
    keys, counts = keys_in(tmp_path), MonthCounts("2026-11", {"a": 900})
    async with operating(keys) as operator, linking(keys, operator.url) as gateway:
        operator.server.tenants.set_counts(KEY.namespace, counts)
        await until(lambda: gateway.months.used("a") == 900)
        counts.roll(1_796_083_201.0)
        await until(lambda: (gateway.months.month, gateway.months.used("a")) == ("2026-12", 0))


async def test_conflicts_come_up_once_and_end_where_the_gateway_says_so(tmp_path: Path) -> None:
    keys, changed = keys_in(tmp_path), list[str]()
    async with operating(keys) as operator:
        operator.server.tenants.on_conflicts = changed.append
        async with linking(keys, operator.url) as gateway:
            gateway.conflicts = (TenantConflict("both", "metadata.name"),)
            await until(lambda: changed == [KEY.namespace])
            [(name, problem)] = operator.server.tenants.conflicts(KEY.namespace).items()
            assert (name, problem.path) == ("both", "metadata.name")
            assert f"LLMDeployment {KEY.name}" in problem.message
            assert operator.server.tenants.conflicts("elsewhere") == {}
            gateway.conflicts = ()
            await until(lambda: len(changed) == 2 and not operator.server.tenants.conflicts(KEY.namespace))


def test_conflicts_of_a_gateway_that_went_stay_until_another_one_speaks_or_the_deployment_goes() -> None:
    links = TenantLinks()
    first = links.join(KEY, ONE)
    links.take(KEY, first, TenantConflicts((TenantConflict("both", "metadata.name"),)))
    links.leave(KEY, first)
    assert links.conflicts(KEY.namespace).keys() == {"both"}
    links.join(KEY, TWO)
    assert links.conflicts(KEY.namespace) == {}
    links.take(KEY, first, TenantConflicts((TenantConflict("both", "metadata.name"),)))
    links.forget(KEY)
    assert links.conflicts(KEY.namespace) == {}


def test_many_totals_come_in_parts_and_none_twice() -> None:
    links, counts = TenantLinks(), MonthCounts("2026-11", {f"t{number}": 1.0 for number in range(2_500)})
    link = links.join(KEY, ONE)
    assert links.messages(KEY, link) == []
    links.set_counts(KEY.namespace, counts)
    totals = [message for message in links.messages(KEY, link) if isinstance(message, MonthTotals)]
    assert [len(message.totals) for message in totals] == [MAX_LIMITS, MAX_LIMITS, 500]
    assert [message.is_whole for message in totals] == [False, False, True]
    assert links.messages(KEY, link) == []
    counts.raise_to("t7", 5)
    [message] = links.messages(KEY, link)
    assert isinstance(message, MonthTotals)
    assert [(total.tenant, total.used) for total in message.totals] == [("t7", 5)]
