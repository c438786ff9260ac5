"""The real client against a server that answers as Kubernetes does, and as it does on a bad day."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from baton_operator.kube.http_client import HttpKubeApi, RateLimit, _Request
from baton_operator.kube.kinds import DEPLOYMENTS, LEASES, POOLS, SECRETS, SERVICES
from baton_operator.kube.kube_api import (
    AlreadyExists,
    Change,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from baton_operator.kube.kubeconfig import KubeConfigError, KubeConnection, TokenFile, in_cluster
from baton_testing.processes.certificates import ONE

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
BODY: dict[str, Any] = {"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "ns", "name": "a"}}


@contextlib.asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def api(handler: Handler, token: Callable[[], str | None] = lambda: "t") -> AsyncIterator[HttpKubeApi]:
    async with (
        serving(handler) as port,
        HttpKubeApi(KubeConnection(f"http://127.0.0.1:{port}", None, token)) as client_api,
    ):
        yield client_api


def status(code: int, reason: str, message: str = "", **details: object) -> Handler:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}

    async def answer(_: web.Request) -> web.Response:
        headers = {"Retry-After": "7"} if code == 429 else {}
        return web.json_response(body, status=code, headers=headers)

    return answer


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (410, "Expired", Expired),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
        (504, "Timeout", Unavailable),
    ],
)
async def test_every_refusal_has_its_type(code: int, reason: str, kind: type[KubeError]) -> None:
    async with api(status(code, reason, "why")) as kube:
        with pytest.raises(kind) as caught:
            await kube.get(SERVICES, "ns", "a")
        assert type(caught.value) is kind
        assert caught.value.message == "why"


async def test_refusals_carry_what_is_needed_to_act_on_them() -> None:
    cause = {"reason": "FieldManagerConflict", "message": 'conflict with "kubectl" using v1', "field": ".spec.replicas"}
    async with api(status(409, "Conflict", causes=[cause])) as kube:
        with pytest.raises(Conflict) as conflict:
            await kube.apply(SERVICES, BODY, manager="m", force=False)
    assert conflict.value.managers == ("kubectl",)
    async with api(status(403, "Forbidden", "pods is forbidden: exceeded quota: gpus")) as kube:
        with pytest.raises(Forbidden) as quota:
            await kube.create(SERVICES, BODY, manager="m")
    assert quota.value.is_quota
    async with api(status(422, "Invalid", causes=[{"field": "spec.x", "message": "too big"}])) as kube:
        with pytest.raises(Invalid) as invalid:
            await kube.apply(SERVICES, BODY, manager="m", force=True)
    assert [str(problem) for problem in invalid.value.problems] == ["spec.x: too big"]
    unknown = "failed to create typed patch object: .spec.newer: field not declared in schema"
    async with api(status(500, "", unknown)) as kube:
        with pytest.raises(Invalid):
            await kube.apply(SERVICES, BODY, manager="m", force=True)
    async with api(status(429, "TooManyRequests")) as kube:
        with pytest.raises(TooManyRequests) as many:
            await kube.get(SERVICES, "ns", "a")
    assert many.value.retry_after_s == 7.0


async def test_requests_are_those_that_kubernetes_documents() -> None:
    seen: list[tuple[str, str, dict[str, str], str, Any, str]] = []

    async def answer(request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        kind, token = request.headers.get("Content-Type", ""), request.headers.get("Authorization", "")
        seen.append((request.method, request.path, dict(request.query), kind, body, token))
        return web.json_response(BODY)

    async with api(answer) as kube:
        await kube.apply(POOLS, BODY, manager="m", force=True, subresource="status", dry_run=True)
        await kube.replace(LEASES, BODY, manager="m")
        await kube.delete(SECRETS, "ns", "a", uid="u", resource_version="5")
        await kube.create(LEASES, BODY, manager="m")
        await kube.set_managed_fields(SECRETS, "ns", "a", [{"manager": "m"}], uid="u", version="5")
    (apply, replace, delete, create, own) = seen
    assert apply[:2] == ("PATCH", "/apis/baton.dev/v1alpha1/namespaces/ns/llmpools/a/status")
    assert apply[2] == {"fieldManager": "m", "force": "true", "dryRun": "All"}
    assert (apply[3], apply[5]) == ("application/apply-patch+yaml", "Bearer t")
    assert replace[:2] == ("PUT", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/a")
    assert delete[:2] == ("DELETE", "/api/v1/namespaces/ns/secrets/a")
    assert delete[4]["preconditions"] == {"uid": "u", "resourceVersion": "5"}
    assert create[:2] == ("POST", "/apis/coordination.k8s.io/v1/namespaces/ns/leases")
    assert create[2] == {"fieldManager": "m", "fieldValidation": "Strict"}
    assert (*own[:2], own[3]) == ("PATCH", "/api/v1/namespaces/ns/secrets/a", "application/json-patch+json")
    assert own[4] == [
        {"op": "replace", "path": "/metadata/managedFields", "value": [{"manager": "m"}]},
        {"op": "replace", "path": "/metadata/uid", "value": "u"},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "5"},
    ]
    assert kube.calls == {
        ("patch", "llmpools"): 1,
        ("update", "leases"): 1,
        ("delete", "secrets"): 1,
        ("create", "leases"): 1,
        ("patch", "secrets"): 1,
    }


async def test_long_lists_come_in_pages_with_their_kind_filled_in() -> None:
    async def answer(request: web.Request) -> web.Response:
        more = "" if "continue" in request.query else "next"
        items = [{"metadata": {"name": "b" if "continue" in request.query else "a"}}]
        return web.json_response({"items": items, "metadata": {"resourceVersion": "9", "continue": more}})

    async with api(answer) as kube:
        listing = await kube.list(DEPLOYMENTS, None, "x=y")
    assert [item["metadata"] for item in listing.items] == [{"name": "a"}, {"name": "b"}]
    assert (listing.items[0]["kind"], listing.resource_version) == ("LLMDeployment", "9")
    assert listing.items[0] is not listing.items[0], "it is kept as JSON: decoded it takes ten times as much"


@pytest.mark.parametrize("page", [{"items": [], "metadata": []}, {"items": {}, "metadata": {}}, {"items": []}])
async def test_what_is_no_list_leaves_it_unknown(page: dict[str, object]) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response(page)

    async with api(answer) as kube:
        with pytest.raises(Unavailable, match="no list"):
            await kube.list(DEPLOYMENTS, None)


def watching(*chunks: bytes, then: float = 0.0) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        for chunk in chunks:
            await stream.write(chunk)
        await asyncio.sleep(then)
        return stream

    return answer


def line(change: str, **body: object) -> bytes:
    return json.dumps({"type": change, "object": body}).encode() + b"\n"


async def test_a_watch_puts_events_together_that_arrive_in_pieces() -> None:
    whole = line("ADDED", a=1) + line("BOOKMARK", metadata={"resourceVersion": "8"}) + line("DELETED", a=2)
    async with api(watching(whole[:10], whole[10:60], whole[60:])) as kube:
        events = [event async for event in kube.watch(SERVICES, "ns", "1", timeout_s=5)]
    assert [event.change for event in events] == [Change.ADDED, Change.BOOKMARK, Change.DELETED]


async def test_a_watch_says_when_its_version_is_too_old() -> None:
    gone = line("ERROR", kind="Status", code=410, reason="Expired", message="too old resource version")
    async with api(watching(line("ADDED", a=1), gone)) as kube:
        with pytest.raises(Expired):
            _ = [event async for event in kube.watch(SERVICES, "ns", "1", timeout_s=5)]


@pytest.mark.parametrize("garbage", [b"{not json\n", b"[]\n", b'{"type": "ADDED"}\n', b'{"type": "X", "object": {}}\n'])
async def test_a_watch_that_brings_garbage_is_broken_off(garbage: bytes) -> None:
    async with api(watching(garbage)) as kube:
        with pytest.raises(Unavailable):
            _ = [event async for event in kube.watch(SERVICES, "ns", "1", timeout_s=5)]


async def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with api(watching(then=60.0)) as kube:
        with pytest.raises(Unavailable, match="Timeout"):
            await kube._call(_Request("get", "GET", SERVICES, "/x", deadline_s=0.05))


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    async with HttpKubeApi(KubeConnection("http://127.0.0.1:1", None, lambda: None)) as kube:
        with pytest.raises(Unavailable):
            await kube.get(SERVICES, "ns", "a")


async def test_no_connection_outlives_the_session(tmp_path: Path) -> None:
    """A cancelled watch over TLS waits for the server's goodbye, after aiohttp has forgotten it."""
    (tmp_path / "pair").write_text("".join(ONE))
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(tmp_path / "pair")
    client.load_verify_locations(cadata=ONE[0])
    async with serving(watching(line("ADDED", a=1), then=60.0), server) as port:
        async with HttpKubeApi(KubeConnection(f"https://127.0.0.1:{port}", client, lambda: None)) as kube:
            arrived = asyncio.Event()

            async def listen() -> None:
                async for _ in kube.watch(SERVICES, "ns", "1", timeout_s=60.0):
                    arrived.set()

            listening = asyncio.create_task(listen())
            await arrived.wait()
            sockets = list(kube._sockets)
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
        assert [opened.fileno() for opened in sockets] == [-1]


@pytest.mark.parametrize("data", [b"", b"<html>", b"[1]", b"\xff"])
async def test_an_answer_that_is_no_object_leaves_the_outcome_unknown(data: bytes) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=data)

    async with api(answer) as kube:
        with pytest.raises(Unavailable):
            await kube.create(SERVICES, BODY, manager="m")


async def test_discovery_tells_a_missing_version_from_an_unreachable_server() -> None:
    async def answer(request: web.Request) -> web.Response:
        resources = {"resources": [{"name": "poddisruptionbudgets"}, {"name": "poddisruptionbudgets/status"}]}
        return web.json_response(resources if request.path.endswith("/v1") else {"code": 404}, status=200)

    async with api(answer) as kube:
        assert "poddisruptionbudgets" in await kube.served("policy", "v1")
    async with api(status(404, "NotFound")) as kube:
        assert await kube.served("policy", "v1") == frozenset()
    async with api(status(500, "InternalError")) as kube:
        with pytest.raises(Unavailable):
            await kube.served("policy", "v1")


async def test_names_cannot_leave_their_place_in_the_path() -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.raw_path)
        return web.json_response(BODY)

    async with api(answer) as kube:
        await kube.get(SERVICES, "ns", "../secrets/x")
    assert seen == ["/api/v1/namespaces/ns/services/..%2Fsecrets%2Fx"]


async def test_calls_beyond_the_burst_wait_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        if seconds > 1e-6:
            slept.append(round(seconds, 3))

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 50.0)
    pace = RateLimit(per_s=10.0, burst=3)
    for _ in range(6):
        await pace.wait()
    assert slept == [0.1, 0.2, 0.3]


def test_a_rotated_token_is_read_again(tmp_path: Path) -> None:
    now, file = [0.0], tmp_path / "token"
    file.write_text("one\n")
    token = TokenFile(file, lambda: now[0])
    assert token() == "one"
    file.write_text("two")
    assert token() == "one"
    now[0] = 61.0
    assert token() == "two"
    file.unlink()
    now[0] = 200.0
    assert token() == "two", "the last good one, until it can be read again"


def test_outside_of_a_pod_the_account_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KubeConfigError, match="KUBERNETES_SERVICE_HOST"):
        in_cluster(tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(KubeConfigError, match="No such file"):
        in_cluster(tmp_path)
