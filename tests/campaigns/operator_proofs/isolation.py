"""The cost of trouble in some namespaces to the others: deployments are created at a steady rate, calm and trouble in
turn.

The operator reaches the API server through a relay. In a troubled part the relay refuses everything in one namespace
(its rights are revoked), lets nothing of another one through (it hangs), and a third is deleted. Each troubled
namespace has deployments. The time until all objects of the others' deployments exist is compared with the calm parts.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from bench.machine import this_machine
from bench.results import Cell, percentile, publish

from baton_operator.kube.http_client import HttpKubeApi
from baton_operator.kube.kinds import DEPLOYMENTS
from baton_operator.kube.kube_api import KubeApi
from baton_operator.kube.kubeconfig import KubeConnection, load
from baton_operator.kube.object_fields import metadata_of, uid_of
from campaigns.operator_proofs.scale import (
    Seen,
    api_server,
    create,
    operator,
    quiet,
    until_up,
    watching,
)

TROUBLED_EACH = 3
"""Deployments of a namespace that gets into trouble."""
ROUNDS = 4
ORDER = ("calm", "trouble", "trouble", "calm")
"""Deployments stay, and each part is a little slower than the one before: so neither kind comes first always."""
_DROPPED = ("Host", "Content-Length", "Transfer-Encoding", "Connection")


class Relay:
    """Passes HTTP on to the API server, but for some namespaces."""

    def __init__(self, session: aiohttp.ClientSession, connection: KubeConnection) -> None:
        self._session, self._connection = session, connection
        self.refused: set[str] = set()
        self.hanging: dict[str, asyncio.Event] = {}
        """By namespace: set once it answers again."""
        self._streams: dict[str, set[asyncio.Task[object]]] = {}

    def cut(self, namespace: str) -> None:
        """End what is open in a namespace."""
        for task in self._streams.pop(namespace, set()):
            task.cancel()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One call."""
        namespace = _namespace_of(request.path)
        if namespace in self.refused:
            return _forbidden(namespace)
        await self._while_hanging(namespace)
        body, url = await request.read() or None, f"{self._connection.server}{request.rel_url}"
        headers = {name: value for name, value in request.headers.items() if name not in _DROPPED}
        if (token := self._connection.token()) is not None:
            headers["Authorization"] = f"Bearer {token}"
        async with self._session.request(request.method, url, data=body, headers=headers) as answer:
            if "watch" not in request.query:
                kind = answer.headers.get("Content-Type", "application/json")
                return web.Response(status=answer.status, body=await answer.read(), headers={"Content-Type": kind})
            response = web.StreamResponse(status=answer.status)
            await response.prepare(request)
            task: asyncio.Task[object] | None = asyncio.current_task()
            assert task is not None
            self._streams.setdefault(namespace, set()).add(task)
            try:
                with contextlib.suppress(ConnectionResetError):  # the operator ended it
                    async for chunk in answer.content.iter_any():
                        await self._while_hanging(namespace)
                        await response.write(chunk)
            finally:
                self._streams.get(namespace, set()).discard(task)
            return response

    async def _while_hanging(self, namespace: str) -> None:
        if (over := self.hanging.get(namespace)) is not None:
            await over.wait()


def _namespace_of(path: str) -> str:
    parts = path.split("/")
    return parts[parts.index("namespaces") + 1] if "namespaces" in parts[:-1] else ""


def _forbidden(namespace: str) -> web.Response:
    status_body = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": f"not allowed in {namespace}"}
    return web.json_response(status_body, status=403)


@contextlib.asynccontextmanager
async def _relay(folder: Path) -> AsyncIterator[Relay]:
    """Between a kubeconfig of its own, in KUBECONFIG while this lasts, and the API server."""
    connection = load()
    connector = aiohttp.TCPConnector(ssl=connection.ssl or True, limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
        relay = Relay(session, connection)
        runner = web.ServerRunner(web.Server(relay.handle))  # type: ignore[arg-type]
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        before, path = os.environ["KUBECONFIG"], folder / "relayed"
        path.write_text(json.dumps(_kubeconfig(f"http://{host}:{port}")))
        os.environ["KUBECONFIG"] = str(path)
        try:
            yield relay
        finally:
            os.environ["KUBECONFIG"] = before
            await runner.cleanup()


def _kubeconfig(server: str) -> dict[str, object]:
    assert urlsplit(server).hostname == "127.0.0.1"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "relayed", "cluster": {"server": server}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "relayed", "context": {"cluster": "relayed", "user": "nobody"}}],
        "current-context": "relayed",
    }


async def _part(
    api: KubeApi, seen: Seen, spaces: tuple[str, ...], per_s: float, seconds: float, label: str
) -> list[float]:
    """Deployments created at this rate for so long: seconds until each had all its objects; infinite: never."""
    created_at, began = {}, time.monotonic()
    for number in range(round(per_s * seconds)):
        await asyncio.sleep(max(began + number / per_s - time.monotonic(), 0.0))
        name = f"{label}-{number}"
        created_at[name] = time.monotonic()
        await create(api, spaces[number % len(spaces)], name)
    await quiet(seen, 120)
    whole = max((len(seen.objects[name]) for name in created_at), default=0)
    return [
        seen.complete_at[name] - at if len(seen.objects[name]) == whole else float("inf")
        for name, at in created_at.items()
    ]


async def _isolation(namespaces: int, per_s: float, seconds: float, spaces: tuple[str, ...]) -> int:
    machine, run = this_machine(), secrets.token_hex(2)
    rows: list[dict[str, Cell]] = []
    delays_by_part: dict[str, list[float]] = {"calm": [], "trouble": []}
    others, troubled = spaces[: -3 * ROUNDS], list(spaces[-3 * ROUNDS :])
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.mkdir()
        (keys / "first").write_bytes(b"m" * 32)
        async with (
            HttpKubeApi(load(), calls_per_s=500) as api,
            watching(api) as seen,
            _relay(Path(folder)) as relay,
        ):
            with operator(spaces, keys, 500) as process:
                await until_up()
                for number in range(TROUBLED_EACH * len(troubled)):
                    await create(api, troubled[number % len(troubled)], f"t{run}-{number}")
                await quiet(seen, 120)
                for part, which in enumerate(ORDER * (ROUNDS // 2)):
                    if which == "trouble":
                        revoked, hanging, deleted = (troubled.pop() for _ in range(3))
                        relay.refused.add(revoked)
                        relay.hanging[hanging] = asyncio.Event()
                        relay.cut(revoked)
                        await _delete(api, deleted)
                    delays = await _part(api, seen, others, per_s, seconds, f"p{run}-{part}")
                    delays_by_part[which] += delays
                    if which == "trouble":
                        relay.hanging.pop(hanging).set()
                        relay.refused.discard(revoked)
                    print(f"part {part + 1} of {2 * ROUNDS}, {which}: p99 {percentile(delays, 99):.2f} s", flush=True)
                memory = process.rss_mib
    for which, delays in delays_by_part.items():
        cells: dict[str, Cell] = {"part": which, "deployments": len(delays)}
        cells |= {f"p{percent} s": round(percentile(delays, percent), 2) for percent in (50, 95, 99)}
        cells["without all objects"] = sum(delay == float("inf") for delay in delays)
        rows.append(cells)
    ratio = percentile(delays_by_part["trouble"], 99) / percentile(delays_by_part["calm"], 99)
    notes = [
        f"campaign: operator_proofs isolation --namespaces {namespaces} --per-s {per_s:g} --seconds {seconds:g}",
        f"p99 in trouble {ratio:.2f} times that in calm (goal: 1.20); the operator has {memory:.0f} MiB",
    ]
    columns = ["part", "deployments", "p50 s", "p95 s", "p99 s", "without all objects"]
    publish("operator-isolation", machine, notes, columns, rows)
    return sum(delay == float("inf") for delays in delays_by_part.values() for delay in delays)


async def _delete(api: HttpKubeApi, namespace: str) -> None:
    """As `kubectl delete namespace` and the namespace controller, which does not run here, do."""
    url = f"{api.server}/api/v1/namespaces/{namespace}"
    async with api.session(limit=1) as session, session.delete(url) as answer:
        assert answer.status in (200, 202), await answer.text()
    for deployment in (await api.list(DEPLOYMENTS, namespace)).items:
        await api.delete(DEPLOYMENTS, namespace, str(metadata_of(deployment)["name"]), uid=uid_of(deployment))


def isolation(namespaces: int, per_s: float, seconds: float) -> int:
    """Returns how many deployments of namespaces without trouble did not get their objects."""
    spaces = tuple(f"space-{number}" for number in range(namespaces + 3 * ROUNDS))
    with api_server(spaces):
        return asyncio.run(_isolation(namespaces, per_s, seconds, spaces))
