"""Two operators on a real control plane: of one class the second stays out; of two classes each has its own."""

from __future__ import annotations

import asyncio

from baton_operator import metrics
from baton_operator.kube.kinds import DEPLOYMENTS, EVENTS, WORKERS
from baton_operator.objects.cluster import Platform
from baton_operator.objects.metadata import TEMPLATE_LABEL
from baton_testing.kube.stage import DIGEST, PLATFORM, Stage

OTHER = Platform(DIGEST + "e" * 64, DIGEST + "f" * 64)


async def test_the_second_operator_of_a_class_says_so_and_writes_nothing_else(stage: Stage) -> None:
    async with stage.operator(identity="one/baton-operator"):
        stage.apply()
        await stage.serves()
        before = stage.workers()
        async with stage.operator(OTHER, by_kopf=False, identity="two/baton-operator", with_kubelet=False):
            await stage.until(
                "an Event", lambda: "ClaimedElsewhere" in {event["reason"] for event in stage.all(EVENTS)}
            )
            stage.apply(decode__resources={"memory": "2Gi"})
            await stage.until("rolled", lambda: set(stage.workers()) != before.keys())
            await stage.serves()
            assert stage.writes().keys() <= {("patch", "events"), ("create", "leases")}, "of the second one"
            images = {
                container["image"]
                for worker_set in stage.all(WORKERS)
                if TEMPLATE_LABEL in worker_set["metadata"]["labels"]
                for container in worker_set["spec"]["template"]["spec"]["containers"]
            }
            assert images == {PLATFORM.worker_image}
            line = f'namespace_claimed_elsewhere{{holder="one/baton-operator",namespace="{stage.space}"}} 1.0'
            assert line in metrics.text().decode()


async def test_a_class_works_on_its_own_alone_and_hands_over_without_a_restart(stage: Stage) -> None:
    async with (
        stage.operator(identity="one/baton-operator-gold", operator_class="gold"),
        stage.operator(by_kopf=False, identity="two/baton-operator", with_kubelet=False),
    ):
        stage.apply(operatorClass="silver")
        await asyncio.sleep(4.0)
        assert "status" not in stage.read(DEPLOYMENTS, "chat"), "a class without an operator"
        stage.apply(operatorClass="gold")
        await stage.serves()
        before = stage.workers()
        stage.apply()
        await stage.serves()
        stage.apply(operatorClass="gold")
        await stage.serves()
        assert stage.workers() == before
