"""An API server of one namespace with a deployment, which forwards ports to made pages of gateways and workers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import yaml
from aiohttp import web

from baton_gateway.page.static_files import DATA
from baton_gateway.records.record_query import ProcessRecords, RecordsPage
from baton_gateway.reporting.state_page import ProcessReport, state_body
from baton_local.fleet.observation import Link, ObservedWorker, Transfer
from baton_wire.messages.measures import SketchData

API = "/apis/baton.dev/v1alpha1/namespaces/team-a/llmdeployments"
PODS = "/api/v1/namespaces/team-a/pods"
RECORD_PATH = "/apis/apps/v1/namespaces/team-a/controllerrevisions/"
READY = [{"type": "Ready", "status": "True"}]
DEPLOYMENT: dict[str, Any] = {
    "metadata": {"name": "chat", "namespace": "team-a"},
    "spec": {
        "model": {"servedName": "tiny"},
        "slo": {"ttft": {"target": "500ms", "percentile": 95}, "tpot": {"target": "25ms", "percentile": 95}},
        "prefill": {"replicas": {"min": 1, "max": 2}},
        "decode": {"replicas": {"min": 1, "max": 3}},
    },
    "status": {
        "summary": "Serving",
        "conditions": [*READY, {"type": "ScalingLimited", "status": "True", "message": "decode is at its maximum"}],
        "prefill": {"desired": 1, "ready": 1},
        "decode": {"desired": 3, "ready": 3},
        "slo": {"ttft": "p95 412ms/500ms"},
        "scalingDecisions": [
            {"time": "2026-11-29T10:00:00Z", "pool": "decode", "from": 2, "to": 3, "reason": "TPOT p95 40 ms"}
        ],
    },
}


def pod(name: str, role: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"baton.dev/role": role, "baton.dev/deployment": "chat"}},
        "spec": {"containers": [{"name": role}]},
        "status": {"podIP": "10.0.0.1", "conditions": READY, "containerStatuses": [{"restartCount": 1}]},
    }


GATEWAY = ProcessReport(
    1, "e", 3, 2, 1, 0, (), SketchData(), SketchData(), tenants={"batch": (2, 2)}
)  # fmt: skip
HISTORY = {
    "entries": [{"at": 1000.0, "kind": "decision", "subject": "decode", "text": "2 to 3: TPOT"}],
    "reasons": {"decode": "decode 3: at its maximum"},
    "wanted": {"decode": 2},
}
RECORDS = RecordsPage([], [ProcessRecords(pid=1, epoch="e", kept=4, fell_out=5)], [])
WORKER = ObservedWorker(64, 32, 1000, 5, 1, Transfer("tcp", 2, 4500, 0, (Link("10.0.0.9:8001", "tcp", 3e8),)))


class FakeCluster:
    """A namespace with one deployment. `closed`: Pods whose ports refuse, `stuck`: those that never answer."""

    def __init__(self) -> None:
        self.pods = [pod("chat-gateway-a", "gateway"), pod("chat-gateway-b", "gateway"), pod("chat-decode-0", "decode")]
        self.forbidden, self.closed, self.stuck = "", set[str](), set[str]()
        self.hosts, self.since = set[str](), list[tuple[str, str]]()
        """Hosts of the addresses that were asked for, and from when on logs were."""
        self.logs = {
            "chat-gateway-a": "2026-11-29T10:00:00.5Z first\n2026-11-29T10:00:02Z third\n",
            "chat-decode-0": "2026-11-29T10:00:01.123456789Z second\x1b[2J\n",
        }
        self.records: dict[str, dict[str, Any]] = {}
        """ControllerRevisions by their names."""
        self.pages = {
            "/state": state_body([GATEWAY]),
            DATA: json.dumps({"history": HISTORY}).encode(),
            "/requests": msgspec.json.encode(RECORDS),
        }

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.hosts.add(request.host)
        if request.path in self.stuck:
            await asyncio.sleep(60)
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "33+"})
        if (self.forbidden and request.path.endswith(self.forbidden)) or not request.path.startswith(
            (API, PODS, RECORD_PATH)
        ):
            return web.json_response({"kind": "Status", "message": "forbidden"}, status=403)
        if request.path.startswith(RECORD_PATH):
            record = self.records.get(request.path.removeprefix(RECORD_PATH))
            return web.json_response(record or {"kind": "Status"}, status=200 if record else 404)
        if request.path == API:
            return web.json_response({"items": [DEPLOYMENT]})
        if request.path == PODS:
            return web.json_response({"items": self.pods})
        name, _, what = request.path.removeprefix(f"{PODS}/").partition("/")
        if what == "log":
            assert request.query["timestamps"] == "true"
            assert ("sinceSeconds" in request.query) != ("sinceTime" in request.query), "the server takes one of them"
            self.since.append((name, request.query.get("sinceTime", "")))
            return web.Response(text=self.logs.get(name, ""))
        assert what == "portforward"
        assert request.headers["Authorization"] == "Bearer t"
        return await self.forward(request, name, int(request.query["ports"]))

    async def forward(self, request: web.Request, name: str, port: int) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        for channel in (0, 1):
            await socket.send_bytes(bytes([channel]) + port.to_bytes(2, "little"))
        if name in self.closed:
            await socket.send_bytes(b"\x01connection refused")
        elif name in self.stuck:
            await asyncio.sleep(60)
        else:
            line = (await socket.receive_bytes()).decode()[1:].split("\r\n")
            path = line[0].split()[1].partition("?")[0]
            body = msgspec.json.encode(WORKER) if port == 8000 else self.pages[path]
            assert f"Host: 127.0.0.1:{port}" in line, "the admin listener takes no other"
            content = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
            for start in range(0, len(content), 100):
                await socket.send_bytes(b"\x00" + content[start : start + 100])
        await socket.close()
        return socket


def write_config(folder: Path, server: dict[str, str]) -> None:
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "prod",
        "clusters": [{"name": "c", "cluster": server}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "prod", "context": {"cluster": "c", "user": "u", "namespace": "team-a"}}],
    }  # fmt: skip
    (folder / "config").write_text(yaml.safe_dump(config))
