"""`kubectl baton page`: the gateway's page over all replicas of a deployment, on this machine's loopback.

The files and the document are the gateway's own. The parts come from every gateway Pod over forwarded ports, and the
history from the operator's object, so that the page is there also while no gateway runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec
from aiohttp import web

from baton_gateway.http_api.page_lookup import json_answer, static_answer
from baton_gateway.page.page_desk import AnswerCache, parse_page_query
from baton_gateway.page.page_document import MAX_SHOWN, PageInputs, page_document
from baton_gateway.page.replica_parts import ReplicaParts, join_parts
from baton_gateway.page.static_files import DATA, PAGE, PARTS
from baton_gateway.page.viewer import Viewer, sits_here
from baton_gateway.records.record_query import RecordQuery, RecordsPage, merge_pages
from baton_gateway.records.request_record import RequestRecord
from baton_local.errors import LocalError
from baton_local.explain.record_sources import query_path
from baton_local.kubectl.cluster_source import (
    GatewayAnswers,
    ask_gateway_pods,
    choose_deployment,
    pods_of,
    stored_history,
)
from baton_local.kubectl.pod_access import PodAccess
from baton_wire.deployment_history import DeploymentHistory, encode_history

KEPT_S, RECORDS_KEPT_S = 2.0, 10.0
"""How long answers are kept: each is a forwarded port to every gateway Pod."""
T = TypeVar("T")


@dataclass(slots=True)
class ClusterPage:
    """The page of one deployment. `name`: None: the only one of the namespace."""

    access: PodAccess
    name: str | None
    _inputs: AnswerCache[PageInputs] = field(default_factory=lambda: AnswerCache(KEPT_S))
    _records: AnswerCache[list[RequestRecord]] = field(default_factory=lambda: AnswerCache(RECORDS_KEPT_S))

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request of a browser on this machine."""
        if request.method != "GET" or not sits_here(request.remote, request.headers):
            return web.Response(status=403, text="this page is for a browser on this machine\n")
        path, _, query = request.raw_path.partition("?")
        if path == "/":
            return web.Response(status=307, headers={"Location": PAGE})
        if path != DATA:
            return static_answer(request) or web.Response(status=404)
        try:
            asked = parse_page_query(query)
            return json_answer(await self.document(asked))
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
        except (LocalError, OSError) as error:
            return web.Response(status=502, text=f"{error}\n")

    async def document(self, asked: str | None) -> bytes:
        """Return the page's data as JSON. `asked`: the id of a request that is to be found; None: none is."""
        inputs = await self._inputs.get((), lambda: asyncio.create_task(self._gather()))
        if asked is not None:
            inputs = replace(inputs, matches=await self._find(RecordQuery(asked)))
        return msgspec.json.encode(page_document(inputs))

    async def _gather(self) -> PageInputs:
        answers, history, slowest, missed = await asyncio.gather(
            asyncio.to_thread(self._ask, PARTS),
            asyncio.to_thread(self._history),
            self._kept_records(RecordQuery(slowest=MAX_SHOWN)),
            self._kept_records(RecordQuery(missed=True)),
        )
        return page_inputs(answers, history, slowest, missed, time.time())

    async def _kept_records(self, query: RecordQuery) -> list[RequestRecord]:
        key = (query.slowest, query.missed)
        return await self._records.get(key, lambda: asyncio.create_task(self._find(query)))

    async def _find(self, query: RecordQuery) -> list[RequestRecord]:
        answers = await asyncio.to_thread(self._ask, query_path(query))
        pages = [_decode(body, RecordsPage) for body in answers.pages]
        return merge_pages(query, [page for page in pages if page is not None]).records

    def _ask(self, path: str) -> GatewayAnswers:
        deployment = choose_deployment(self.access, self.name)
        return ask_gateway_pods(self.access, deployment, pods_of(self.access, deployment), path)

    def _history(self) -> DeploymentHistory | None:
        return stored_history(self.access, choose_deployment(self.access, self.name))


def page_inputs(
    answers: GatewayAnswers,
    history: DeploymentHistory | None,
    slowest: Sequence[RequestRecord],
    missed: Sequence[RequestRecord],
    wall_s: float,
) -> PageInputs:
    """Return what the document is made of. `answers`: the replicas' parts. `history`: None: gateways have one."""
    replicas = [_decode(body, ReplicaParts) for body in answers.pages]
    known = [replica for replica in replicas if replica is not None]
    silent = [*answers.silent, *(["a gateway Pod of another version"] * (len(replicas) - len(known)))]
    parts = list(join_parts(known))
    announced = (_decode(part.history, DeploymentHistory) for part in parts if part.history)
    present = next((announcement for announcement in announced if announcement is not None), DeploymentHistory())
    return PageInputs(
        viewer=Viewer(sees_all=True),
        wall_s=known[0].at if known else wall_s,
        now_s=known[0].now_s if known else wall_s,
        parts=parts,
        silent=[pid for replica in known for pid in replica.silent],
        slowest=slowest,
        missed=missed,
        silent_replicas=silent,
        history=b"" if history is None else encode_history(history.with_reasons(present.reasons, present.wanted)),
    )


def _decode(body: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError:
        return None


def run_cluster_page(page: ClusterPage, port: int, ready: Callable[[int], None]) -> None:
    """Serve the page until Ctrl-C."""
    asyncio.run(serve_page(page, port, ready))


async def serve_page(page: ClusterPage, port: int, ready: Callable[[int], None]) -> None:
    """Serve the page on loopback until cancelled. `ready` gets the port. Raises OSError for a port that is taken."""
    runner = web.ServerRunner(web.Server(page.answer))
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        ready(int(runner.addresses[0][1]))
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
