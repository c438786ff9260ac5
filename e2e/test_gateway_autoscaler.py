"""A real HorizontalPodAutoscaler with a metrics server sizes the gateways, and the operator does not fight it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from baton_operator.kube.http_client import HttpKubeApi
from baton_operator.kube.kinds import DEPLOYMENTS, EVENTS, WORKERS
from baton_operator.kube.kubeconfig import from_kubeconfig
from baton_operator.objects import optional
from baton_operator.passes.pool_size import SCALER
from baton_testing.kube import pod_metrics
from baton_testing.kube.stage import Stage

Json = dict[str, Any]
GATEWAY = "chat-gateway"
SCALED: Json = {"gateway__autoscaling": {"min": 1, "max": 4}}
"""At 70 % of a CPU for each, as by default."""
ONE, TWO, THREE = 300, 1300, 1900
"""Loads in thousandths of a CPU, for one, two and three Pods at 700 each."""


class Seen:
    """The numbers of gateways that were wanted, in order. A watch reports each size: looks now and then would miss one
    while this process is paused."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self.sizes = stage, list[int]()

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        async with HttpKubeApi(from_kubeconfig()) as api:
            listing = await api.list(WORKERS, self._stage.space)
            for body in listing.items:
                self._saw(body)
            task = asyncio.create_task(self._follow(api, listing.resource_version))
            try:
                yield
                assert not task.done(), "the watch has ended"
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _follow(self, api: HttpKubeApi, since: str) -> None:
        async for event in api.watch(WORKERS, self._stage.space, since, timeout_s=3_600.0):
            self._saw(event.object)

    def _saw(self, body: Json) -> None:
        if body["metadata"]["name"] == GATEWAY and body["spec"]["replicas"] not in self.sizes[-1:]:
            self.sizes.append(body["spec"]["replicas"])

    def is_at(self, wanted: int) -> bool:
        gateway = self._stage.read(WORKERS, GATEWAY)
        return bool(gateway["spec"]["replicas"] == wanted == gateway["status"].get("readyReplicas"))


def scaler_writes(stage: Stage) -> list[str]:
    """When the operator itself wrote the number, as the server has noted it."""
    entries = stage.read(WORKERS, GATEWAY)["metadata"]["managedFields"]
    return [entry["time"] for entry in entries if entry["manager"] == SCALER]


async def test_gateways_follow_their_load_and_an_edit_keeps_their_number(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optional, "SHRINK_AFTER_S", 3)  # five minutes, and one Pod a minute, otherwise
    monkeypatch.setattr(optional, "SHRINK_EVERY_S", 2)
    with pod_metrics.serving(stage.plane) as metrics:
        metrics.load = TWO
        async with stage.operator():
            stage.apply(gateway__replicas=2)
            await stage.serves()
            seen = Seen(stage)
            await stage.until("two gateways", lambda: seen.is_at(2))
            async with seen.following():
                stage.apply(**SCALED)
                await stage.until("it measures", lambda: metrics.asked >= 4)
                await stage.until("as many are ready", lambda: seen.is_at(2))
                assert seen.sizes == [2], "handed over as it was"
                handed = scaler_writes(stage)

                for load, size in ((ONE, 1), (THREE, 3)):
                    metrics.load = load
                    await stage.until(f"{size} gateways", lambda size=size: seen.is_at(size))  # type: ignore[misc]
                stage.apply(**SCALED, gateway__allowedOrigins=["https://edited.example"])
                await stage.until("the edit", lambda: "https://edited.example" in arguments(stage))
                await asyncio.sleep(8.0)  # two resyncs
                await stage.until("three are ready", lambda: seen.is_at(3))
                metrics.load = ONE
                await stage.until("one gateway", lambda: seen.is_at(1))
                await stage.serves()
                # An edit of the template keeps the number, one Pod goes at a time, and no size in between is wanted.
                await stage.until(f"all sizes seen: {seen.sizes}", lambda: seen.sizes == [2, 1, 3, 2, 1])

            assert len(handed) <= 1
            assert stage.condition("Degraded")[:2] == ("False", "AsExpected")
            reasons = [event["reason"] for event in stage.all(EVENTS) if event["involvedObject"]["name"] == "chat"]
            assert "Restored" not in reasons, "the operator took nothing back"

            stage.patch(DEPLOYMENTS, "chat", "spec.gateway", {"autoscaling": None, "replicas": 2})
            await stage.until("the spec's number again", lambda: seen.is_at(2))


def arguments(stage: Stage) -> str:
    return str(stage.read(WORKERS, GATEWAY)["spec"]["template"]["spec"]["containers"][0])
