"""`kubectl baton page`: the gateway's page over all replicas, with the history that the operator keeps."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import msgspec

from baton_control.history_facts import HISTORY_ANNOTATION, StoredHistory
from baton_gateway.page.page_part import PagePart
from baton_gateway.page.replica_parts import ReplicaParts
from baton_gateway.page.static_files import PARTS
from baton_local.doctor.cluster_reading import connect
from baton_local.kubectl.cluster_page import ClusterPage, serve_page
from baton_local.kubectl.pod_access import PodAccess
from baton_testing.kube.forwarding_cluster import HISTORY, FakeCluster
from baton_wire.deployment_history import ChangeKind, DeploymentHistory, make_change


def parts_page(pid: int, running: int) -> bytes:
    part = PagePart(pid, running, 0, {}, history=json.dumps(HISTORY).encode())
    return msgspec.json.encode(ReplicaParts(1e9, 1e3, [part]))


def read_page(page: ClusterPage, *paths: str, **headers: str) -> list[tuple[int, bytes]]:
    """Serve a page, and return status and body of each path."""

    async def read(port: int) -> list[tuple[int, bytes]]:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=headers) as session:
            answers = []
            for path in paths:
                async with session.get(path) as answer:
                    answers.append((answer.status, await answer.read()))
            return answers

    async def main() -> list[tuple[int, bytes]]:
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve_page(page, 0, port.set_result))
        try:
            return await read(await port)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    return asyncio.run(main())


def test_the_page_sums_all_gateway_pods_names_silent_ones_and_has_the_operators_history(cluster: FakeCluster) -> None:
    cluster.pages[PARTS] = parts_page(1, 3)
    stored = StoredHistory(DeploymentHistory((make_change(1e9, ChangeKind.SPEC, "slo.ttft", "a to b"),)))
    annotations = {HISTORY_ANNOTATION: msgspec.json.encode(stored).decode()}
    cluster.records["chat-history"] = {"metadata": {"annotations": annotations}}
    page = ClusterPage(PodAccess(connect(None, None, 60.0), 60.0), None)
    [(status, body), (index, html), (missing, _)] = read_page(page, "/ui/data.json", "/ui/", "/ui/nothing")
    document = json.loads(body)
    assert (status, document["running"], document["silent_replicas"]) == (200, 6, [])
    assert document["history"]["entries"][0]["text"] == "a to b"
    assert document["history"]["reasons"] == HISTORY["reasons"]
    assert document["history"]["wanted"] == HISTORY["wanted"]
    assert [(pool["role"], pool["wanted"], pool["missing"]) for pool in document["pools"]] == [("decode", 2, 2)]
    assert (index, missing, document["playground"]) == (200, 404, False)
    assert b"<html" in html
    cluster.closed = {"chat-gateway-b"}
    page = ClusterPage(PodAccess(connect(None, None, 60.0), 60.0), "chat")
    [(_, body), (_, found)] = read_page(page, "/ui/data.json", "/ui/data.json?id=unknown")
    document = json.loads(body)
    assert document["running"] == 3
    assert document["silent_replicas"] == ["chat-gateway-b (port 8002: connection refused)"]
    assert json.loads(found)["found"] == []


def test_the_page_without_any_gateway_has_the_history_and_is_for_this_machine_alone(cluster: FakeCluster) -> None:
    cluster.pods = []
    page = ClusterPage(PodAccess(connect(None, None, 60.0), 60.0), "chat")
    [(status, body), (refused, _)] = read_page(page, "/ui/data.json", "/ui/data.json?key=x")
    assert (status, json.loads(body)["processes"], refused) == (200, [], 400)
    assert [answer[0] for answer in read_page(page, "/ui/data.json", Host="rebound.example")] == [403]
