"""Lookups: models, version, health, metrics. None of them starts work.

`/health`, `/ping`, `/version` and a model's `max_model_len` are vLLM's: clients and scripts ask for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import resources
from typing import Any

import msgspec
from aiohttp import web

from baton_gateway import errors
from baton_gateway.errors import RefusedError
from baton_gateway.helper_processes.process_lane import NOT_READY_S, WEDGED_S, HealthProblem, longest_lasting
from baton_gateway.http_api.front_page import HEADERS as FRONT_HEADERS
from baton_gateway.http_api.front_page import as_html, as_text
from baton_gateway.http_api.model_names import ModelNames
from baton_gateway.reporting.metrics import GatewayMetrics
from baton_gateway.reporting.metrics_page import own_version
from baton_gateway.requests.tenant import Tenant
from baton_gateway.workers.linked_workers import WorkerTable
from baton_gateway.workers.route import RoutePolicy, encoding_revisions, revisions
from baton_gateway.workers.start_up import explain_missing

MODELS = "/v1/models"
SERVER = {"Server": "baton"}
JSON = {"Content-Type": "application/json", **SERVER}
_encode = msgspec.json.Encoder().encode


class Lookups:
    """Handlers of paths that this process answers from its own state."""

    def __init__(
        self,
        table: WorkerTable,
        names: ModelNames,
        policy: RoutePolicy,
        metrics: GatewayMetrics,
        health_problems: Callable[[], list[HealthProblem]],
    ) -> None:
        self.policy = policy
        self.is_draining = False
        self._table = table
        self._names = names
        self._metrics = metrics
        self._health_problems = health_problems
        self._started = int(time.time())
        self._openapi = resources.files(__package__).joinpath("openapi.json").read_bytes()
        self._version = _encode({"version": own_version()})

    async def models(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        known = self._names.list_names().items()
        entries = [self._entry(name, served) for name, served in known if tenant.may_ask(served)]
        return _json({"object": "list", "data": entries})

    async def model(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        """Describe one model. Raises RefusedError if no worker serves it."""
        name = request.raw_path.partition("?")[0][len(MODELS) + 1 :]
        known = {name: served for name, served in self._names.list_names().items() if tenant.may_ask(served)}
        if name not in known:
            raise RefusedError(errors.model_not_found(name, list(known)))
        return _json(self._entry(name, known[name]))

    async def version(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        return web.Response(body=self._version, headers=JSON)

    async def openapi(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        """Return the document that `scripts/openapi.py` generates from the parsers."""
        return web.Response(body=self._openapi, headers=JSON)

    async def live(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        """Answer whether to keep this process: a helper process may be down for a while, but not for long."""
        problem = longest_lasting(self._health_problems(), WEDGED_S)
        return _text(200, "ok") if problem is None else _text(503, str(problem))

    async def ready(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        """Answer whether this process can answer requests, if only with 503. Workers do not matter."""
        if self.is_draining:
            return _text(503, "draining")
        problem = longest_lasting(self._health_problems(), NOT_READY_S)
        return _text(200, "ok") if problem is None else _text(503, str(problem))

    async def routable(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        """Answer whether a request that came now would be served at once."""
        if (problem := longest_lasting(self._health_problems(), NOT_READY_S)) is not None:
            return _text(503, str(problem))
        views = self._table.views()
        names = self._table.served_names()
        is_routable = any(revisions(views, name, self.policy) or encoding_revisions(views, name) for name in names)
        if is_routable and not self.is_draining:
            return _text(200, "ok")
        if not self._table.has_served:
            return _text(503, explain_missing(self._table).message)
        return _text(503, "no fitting pair of workers is linked")

    async def front(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        """Say what this server is, to a browser or a terminal."""
        is_browser = "text/html" in request.headers.get("Accept", "")
        text, kind = (as_html(), "text/html") if is_browser else (as_text(), "text/plain")
        return web.Response(text=text, content_type=kind, charset="utf-8", headers=SERVER | FRONT_HEADERS)

    async def metrics(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        body, content_type = self._metrics.page(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type, **SERVER})

    def _entry(self, name: str, served: str) -> dict[str, Any]:
        """Return one model in the form of OpenAI's and vLLM's lists.

        `root` is the served name behind an alias, `parent` would be the base of an adapter, and `max_model_len` is the
        longest context that a pair of workers takes.
        """
        entry = {"id": name, "object": "model", "created": self._started, "owned_by": "baton"}
        return entry | {"root": served, "parent": None, "max_model_len": self._table.max_context_tokens(served)}


def _json(content: dict[str, Any]) -> web.Response:
    return web.Response(body=_encode(content), headers=JSON)


def _text(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n", headers=SERVER)
