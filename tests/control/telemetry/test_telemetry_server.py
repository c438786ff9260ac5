"""The link between a gateway and whoever sizes the pools, over real sockets: keys, wakes, standbys, restarts."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from baton_control.sizing.inputs.observations import Arrivals, Unknown
from baton_control.telemetry import telemetry_server
from baton_control.telemetry.store import OTHER_VERSION_S
from baton_gateway.reporting import operator_link
from baton_gateway.reporting.operator_link import OperatorLink, OperatorTimes
from baton_testing.gateway.gateway_process import until
from baton_testing.sizing.telemetry_links import (
    KEY,
    UPGRADE,
    WORKER,
    arrivals,
    keys_in,
    linking,
    operating,
)
from baton_wire.deployment_history import ChangeKind, DeploymentHistory, decode_history, make_change
from baton_wire.liveness import LivenessConfig
from baton_wire.messages.measures import WorkerCondition
from baton_wire.messages.operator_link import FlipOrder, LimitMeasure, LimitUse, Summary
from baton_wire.messages.values import WIRE_VERSION, Address, Role
from baton_wire.session import SignedFrames
from baton_wire.tenant_table import TenantRow, TenantShard, decode_shard


async def test_what_a_gateway_counts_arrives_and_the_model_is_named(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    async with operating(keys) as operator, linking(keys, operator.url) as gateway:
        for _ in range(7):
            gateway.telemetry.offered(waits=False)
        await until(arrivals(operator))
        reading = operator.server.store(KEY).take_arrivals(time.monotonic(), 1)
        assert isinstance(reading, Arrivals)
        assert reading.count == 7
        assert operator.server.store(KEY).model_config == b'{"vocab_size": 9}'


async def test_a_wake_does_not_wait_for_the_next_summary(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    async with operating(keys) as operator, linking(keys, operator.url) as gateway:
        await until(lambda: gateway.link.is_linked)
        gateway.parked = 3
        gateway.link.wake()
        await until(lambda: operator.server.store(KEY).parked == 3)
        assert operator.woken == [KEY] * len(operator.woken)


async def test_workers_that_become_or_cease_to_be_routable_are_a_reason_for_a_pass(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    async with operating(keys) as operator, linking(keys, operator.url) as gateway:
        await until(lambda: len(operator.woken) == 1)  # the first summary: until then nothing was known
        for number, condition in ((2, WorkerCondition.LIVE), (3, WorkerCondition.DRAINING)):
            gateway.workers = (replace(WORKER, condition=condition),)
            await until(lambda number=number: len(operator.woken) == number)  # type: ignore[misc]
        take = operator.server.store(KEY).take_arrivals
        await until(arrivals(operator))
        take(time.monotonic(), 1)
        await until(arrivals(operator))  # one more summary, of the same workers
        assert len(operator.woken) == 3
    await until(lambda: len(operator.woken) == 4)  # the link is gone, and with it what is known


async def test_orders_are_told_at_once_and_again_until_they_are_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, order = keys_in(tmp_path), FlipOrder(b"w" * 16, 3, Role.PREFILL)
    monkeypatch.setattr(telemetry_server, "HEARTBEAT_S", 600.0)
    async with operating(keys) as operator, linking(keys, operator.url) as gateway:
        await until(lambda: gateway.link.is_linked)
        operator.server.order(KEY, (order,))
        await until(lambda: gateway.orders == [order])  # it does not wait for a heartbeat
    monkeypatch.setattr(telemetry_server, "HEARTBEAT_S", 0.05)
    async with operating(keys) as operator, linking(keys, operator.url) as gateway:
        await until(lambda: gateway.link.is_linked)
        operator.server.order(KEY, (order,))
        operator.server.order(KEY, (order,))  # no other than before
        await until(lambda: len(gateway.orders) >= 3)
        operator.server.order(KEY, ())
        await asyncio.sleep(0.5)
        count = len(gateway.orders)
        await asyncio.sleep(0.3)
        assert len(gateway.orders) == count
    operator.server.order(KEY, (order,))
    async with operating(keys) as operator:
        operator.server.order(KEY, (order,))
        async with linking(keys, operator.url) as gateway:  # one that links later
            await until(lambda: gateway.orders == [order] * len(gateway.orders) != [])


async def test_a_standby_orders_nothing(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    async with operating(keys) as operator, linking(keys, operator.url) as gateway:
        await until(lambda: gateway.link.is_linked)
        operator.is_standby = True
        operator.server.order(KEY, (FlipOrder(b"w" * 16, 3, Role.PREFILL),))
        await until(lambda: not gateway.link.is_linked)
        assert gateway.orders == []


async def test_a_flip_that_was_carried_out_is_told_before_the_next_summary_is_due(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    async with operating(keys) as operator, linking(keys, operator.url, OperatorTimes(summary_s=60.0)) as gateway:
        store = operator.server.store(KEY)
        await until(lambda: store.has_links and store._gateways[b"g" * 16].last is not None)
        assert store.flips() == {}
        gateway.workers = (replace(WORKER, flips=True, flip=4), replace(WORKER, epoch=b"x" * 16))
        gateway.link.report_now()
        await until(lambda: store.flips() == {WORKER.epoch: 4})
        gateway.parked = 2
        gateway.link.wake()  # wakes go on behind it
        await until(lambda: store.parked == 2)


async def test_a_gateway_without_the_key_is_not_heard(tmp_path: Path) -> None:
    keys, others = keys_in(tmp_path), keys_in(tmp_path, "others")
    async with operating(keys) as operator, linking(others, operator.url) as gateway:
        gateway.telemetry.offered(waits=False)
        await asyncio.sleep(0.3)
        assert not gateway.link.is_linked
        assert not operator.server.store(KEY).has_links


async def test_a_gateway_of_another_wire_version_is_known_by_its_key_and_a_reason_for_one_pass(tmp_path: Path) -> None:
    keys, others = keys_in(tmp_path), keys_in(tmp_path, "others")
    async with operating(keys) as operator:
        ours = operator.server._party
        operator.server._party = dataclasses.replace(ours, min_version=WIRE_VERSION + 1, max_version=WIRE_VERSION + 1)
        store = operator.server.store(KEY)
        async with linking(others, operator.url):
            await asyncio.sleep(0.3)
            assert store.other_version(time.monotonic()) is None, "it has not proven the key"
        async with linking(keys, operator.url):
            await until(lambda: store.other_version(time.monotonic()) is not None)
            await asyncio.sleep(0.3)  # it dials again
        both = f"{WIRE_VERSION + 1}..{WIRE_VERSION + 1} here, {WIRE_VERSION}..{WIRE_VERSION} there"
        assert store.other_version(time.monotonic()) == f"version: {both}"
        assert operator.woken == [KEY]
        assert store.routable(time.monotonic()) is None
        assert store.other_version(time.monotonic() + OTHER_VERSION_S) is None


async def test_nothing_is_lost_while_the_operator_is_away(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    async with operating(keys) as operator, linking(keys, operator.url) as gateway:
        await until(lambda: gateway.link.is_linked)
        port = operator.port
        await until(arrivals(operator))
        operator.server.store(KEY).take_arrivals(time.monotonic(), 1)
    async with linking(keys, operator.url) as gateway:
        for _ in range(40):
            gateway.telemetry.offered(waits=True)
        await asyncio.sleep(0.1)
        async with operating(keys, b"p" * 16, port) as again:
            await until(arrivals(again))
            reading = again.server.store(KEY).take_arrivals(time.monotonic(), 1)
            assert isinstance(reading, Arrivals)
            assert reading.count == 40


async def test_a_standby_sends_gateways_to_the_holder_also_when_it_becomes_one(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    async with operating(keys) as standby, operating(keys, b"h" * 16) as holder:
        standby.is_standby, standby.holder = True, Address("127.0.0.1", holder.port)
        async with linking(keys, standby.url) as gateway:
            await until(lambda: holder.server.store(KEY).has_links)
            assert not standby.server.store(KEY).has_links
            assert gateway.link.is_linked


async def test_a_deployment_that_does_not_exist_has_no_link(tmp_path: Path) -> None:
    keys = keys_in(tmp_path)
    async with operating(keys) as operator, linking(keys, operator.url.replace("chat", "other")) as gateway:
        await asyncio.sleep(0.2)
        assert not gateway.link.is_linked


SHORT = LivenessConfig(suspect_s=0.3, dead_s=0.6)


@pytest.mark.parametrize(("heartbeat_s", "is_kept"), [(0.05, True), (99.0, False)])
async def test_a_gateway_is_given_up_that_says_nothing_for_too_long(
    heartbeat_s: float, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telemetry_server, "SILENCE", SHORT)
    keys = keys_in(tmp_path)
    async with (
        operating(keys) as operator,
        linking(keys, operator.url, OperatorTimes(summary_s=99.0, heartbeat_s=heartbeat_s)),
    ):
        if is_kept:
            await asyncio.sleep(3 * SHORT.dead_s)
            assert "it was silent for too long" not in caplog.text
        else:
            await until(lambda: "it was silent for too long" in caplog.text)


@pytest.mark.parametrize(("heartbeat_s", "is_kept"), [(0.05, True), (99.0, False)])
async def test_an_operator_is_dialled_again_that_says_nothing_for_too_long(
    heartbeat_s: float, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(operator_link, "SILENCE", SHORT)
    monkeypatch.setattr(telemetry_server, "HEARTBEAT_S", heartbeat_s)
    caplog.set_level("INFO")
    keys = keys_in(tmp_path)
    async with operating(keys) as operator, linking(keys, operator.url):
        if is_kept:
            await asyncio.sleep(3 * SHORT.dead_s)
            assert caplog.text.count("gateway one of team/chat is linked") == 1
        else:
            await until(lambda: caplog.text.count("gateway one of team/chat is linked") > 1)


async def test_a_gateway_that_reports_and_takes_nothing_loses_its_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry_server, "SEND_S", 0.05)
    monkeypatch.setattr(operator_link, "SILENCE", LivenessConfig(suspect_s=300.0, dead_s=600.0))
    send, is_stuck = SignedFrames.send, asyncio.Event()

    class Stuck(SignedFrames):
        async def send(self, frame: bytes) -> None:
            if is_stuck.is_set():
                await asyncio.Event().wait()
            await send(self, frame)

    monkeypatch.setattr(telemetry_server, "SignedFrames", Stuck)
    keys, times = keys_in(tmp_path), OperatorTimes(heartbeat_s=0.05, first_retry_s=600.0)
    async with operating(keys) as operator, linking(keys, operator.url, times) as gateway:
        await until(lambda: gateway.link.is_linked and operator.server.store(KEY).has_links)
        is_stuck.set()
        operator.server.set_tenants(KEY.namespace, {1: TenantShard(1, 5)})
        await until(lambda: not operator.server.store(KEY).has_links, timeout_s=10.0)


async def test_who_proves_the_key_and_says_no_hello_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telemetry_server, "HANDSHAKE_S", 0.2)
    monkeypatch.setattr(OperatorLink, "_send", _say_nothing)
    keys = keys_in(tmp_path)
    async with operating(keys) as operator, linking(keys, operator.url, OperatorTimes(summary_s=99.0)):
        await until(lambda: "it was silent for too long" in caplog.text)


async def _say_nothing(*_: object) -> None:
    pass


async def test_a_farewell_that_never_comes_is_not_waited_for(tmp_path: Path) -> None:
    """Found by flipped bits: the library waits for 10 s, and a peer behind an altered frame may never be heard."""
    keys = keys_in(tmp_path)
    async with operating(keys) as operator:
        reader, writer = await asyncio.open_connection("127.0.0.1", operator.port)
        writer.write(UPGRADE)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x82\xfe\x00\x80\x00\x00\x00\x00" + bytes(128))  # no PROOF: refused, and then nothing is said
        async with asyncio.timeout(9.0):
            await reader.read(-1)
        writer.close()
        await writer.wait_closed()


async def test_two_summaries_before_their_time_are_a_moment_apart(tmp_path: Path) -> None:
    """Workers that come one after the other are reported together; the last of them is not left out."""
    keys = keys_in(tmp_path)
    times = OperatorTimes(summary_s=60.0, soonest_s=0.3)
    async with operating(keys) as operator, linking(keys, operator.url, times) as gateway:
        store = operator.server.store(KEY)
        await until(lambda: store.has_links and store._gateways[b"g" * 16].last is not None)
        began = time.monotonic()
        for count in range(1, 41):
            gateway.workers = tuple(replace(WORKER, epoch=bytes([number]) * 16) for number in range(count))
            gateway.link.report_now()
            await asyncio.sleep(0.005)

        def last() -> Summary:
            summary = store._gateways[b"g" * 16].last
            assert summary is not None
            return summary

        await until(lambda: len(last().workers) == 40)
        assert last().number <= 3 + (time.monotonic() - began) / times.soonest_s


async def test_what_does_not_fit_is_left_out_on_either_end_and_the_link_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A summary with a worker whose address no message has room for, and an order whose number is none."""
    keys = keys_in(tmp_path)
    monkeypatch.setattr(telemetry_server, "HEARTBEAT_S", 0.01)
    async with operating(keys) as operator, linking(keys, operator.url) as gateway:
        await until(arrivals(operator))
        store = operator.server.store(KEY)
        (before,) = store._gateways.values()
        gateway.workers = (replace(WORKER, template_hash="x" * 65),)
        operator.server.order(KEY, (FlipOrder(b"w" * 16, (1 << 40) + 1, Role.PREFILL),))
        await until(lambda: "a message to the operator is not sent" in caplog.text)
        await until(lambda: "a flip order cannot be sent" in caplog.text)
        gateway.workers = (WORKER,)
        number = gateway.telemetry._number
        await until(lambda: before.last is not None and before.last.number > number)
        assert list(store._gateways.values()) == [before]
        reading = store.take_arrivals(time.monotonic(), 1)
        assert isinstance(reading, Unknown)  # what was left out is not zero
        assert gateway.orders == []


# Tenants --------------------------------------------------------------------------------------------------------------


async def test_an_edited_table_is_pushed_at_once_and_whole_to_a_gateway_that_links_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry_server, "HEARTBEAT_S", 600.0)
    keys, one, other = keys_in(tmp_path), TenantShard(1, 5, (TenantRow("a"),)), TenantShard(2, 5, (TenantRow("b"),))
    async with operating(keys) as operator, linking(keys, operator.url) as gateway:
        await until(lambda: gateway.link.is_linked)
        operator.server.set_tenants(KEY.namespace, {1: one, 2: other})
        await until(lambda: len(gateway.shards) == 2)  # no heartbeat comes
        newer = TenantShard(1, 6)
        operator.server.set_tenants(KEY.namespace, {1: newer, 2: other})
        await until(lambda: len(gateway.shards) == 3)
        assert decode_shard(gateway.shards[-1]) == newer
        operator.server.set_tenants("elsewhere", {3: TenantShard(3, 1)})
        async with linking(keys, operator.url, epoch=b"h" * 16) as late:
            await until(lambda: len(late.shards) == 2)
            assert [decode_shard(content) for content in late.shards] == [newer, other]
        assert len(gateway.shards) == 3


async def test_limits_are_divided_by_what_processes_report_and_equally_before(tmp_path: Path) -> None:
    keys, times = keys_in(tmp_path), OperatorTimes(summary_s=5, heartbeat_s=0.05, first_retry_s=0.01)
    async with (
        operating(keys) as operator,
        linking(keys, operator.url, times) as busy,
        linking(keys, operator.url, times, b"h" * 16) as idle,
    ):
        await until(lambda: all(link.limit_orders and link.limit_orders[-1].processes == 2 for link in (busy, idle)))
        busy.uses = (LimitUse("a", LimitMeasure.REQUESTS, 60, 10, 0),)
        await until(lambda: any(order.shares for order in busy.limit_orders))
        await until(lambda: any(order.shares for order in idle.limit_orders))
        shares = [next(order for order in link.limit_orders if order.shares).shares[0].share for link in (busy, idle)]
        assert shares == pytest.approx([0.99, 0.01])


async def test_the_history_is_sent_when_a_link_begins_and_after_a_change_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry_server, "HEARTBEAT_S", 0.01)
    keys = keys_in(tmp_path)
    first = DeploymentHistory((make_change(5.0, ChangeKind.VERSION, "baton", "began with 0.2.0"),))
    second = first.with_changes([make_change(6.0, ChangeKind.DECISION, "decode", "1 to 2: more load")])
    async with operating(keys) as operator:
        operator.server.set_history(KEY, first)
        async with linking(keys, operator.url) as gateway:
            await until(lambda: len(gateway.histories) == 1)
            await asyncio.sleep(0.05)
            operator.server.set_history(KEY, second)
            await until(lambda: len(gateway.histories) == 2)
            assert list(map(decode_history, gateway.histories)) == [first, second]
        operator.server.forget(KEY)
        async with linking(keys, operator.url) as gateway:
            await until(lambda: gateway.link.is_linked)
            await asyncio.sleep(0.05)
            assert gateway.histories == []
