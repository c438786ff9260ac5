"""Access to objects, logs and processes' pages from outside of a cluster: with deadlines and the caller's rights.

Pages come over `portforward`, which ends at the Pod's loopback: the API server's proxy would reach neither a listener
there nor a Pod whose NetworkPolicy is Baton's.
"""

from __future__ import annotations

import asyncio
import http.client
import io
import struct
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import msgspec

from baton_local.doctor.cluster_reading import GROUP, VERSION, ClusterAnswer, ClusterCall, ClusterRefusal
from baton_local.doctor.deadline import read_within

HTTP_PORT, ADMIN_PORT = 8000, 8002
"""Where workers have `/state`, and gateways their admin listener on loopback."""
SUBPROTOCOL = "v4.channel.k8s.io"
DATA_CHANNEL, ERROR_CHANNEL = 0, 1
MAX_PAGE_BYTES = 64 << 20
MAX_HEAD_BYTES = 64 << 10
MAX_LOG_BYTES = 8 << 20
"""Bytes of one Pod's log in one call."""
MAX_CALLS = 16
"""Calls at once."""
Json = dict[str, Any]
Headers = dict[str, str]


class PodAccess:
    """The calls to a cluster that commands make. `limit_s`: the deadline of each."""

    def __init__(self, call: ClusterCall, limit_s: float) -> None:
        self._call, self._limit_s = call, limit_s
        self.namespace = call.namespace

    def deployments(self) -> list[Json]:
        """List the namespace's LLMDeployments. Raises ClusterRefusal."""
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{quote(self.namespace)}/llmdeployments"
        return self._items(path, "list", f"llmdeployments.{GROUP}")

    def pods(self, selector: str) -> list[Json]:
        """List the namespace's Pods with these labels. Raises ClusterRefusal."""
        query = urlencode({"labelSelector": selector})
        return self._items(f"/api/v1/namespaces/{quote(self.namespace)}/pods?{query}", "list", "pods")

    def record(self, name: str) -> Json | None:
        """Read a ControllerRevision of the namespace; None: there is none, or it may not be read."""
        path = f"/apis/apps/v1/namespaces/{quote(self.namespace)}/controllerrevisions/{quote(name)}"
        try:
            return self._read(path, "get", "controllerrevisions.apps").body
        except ClusterRefusal as error:
            if error.status in (http.client.FORBIDDEN, http.client.NOT_FOUND):
                return None
            raise

    def _items(self, path: str, verb: str, resource: str) -> list[Json]:
        return list(self._read(path, verb, resource).body.get("items") or [])

    def _read(self, path: str, verb: str, resource: str) -> ClusterAnswer:
        def read() -> ClusterAnswer | ClusterRefusal:
            try:
                return self._call.ask("GET", path, None)
            except ClusterRefusal as error:
                return error

        late = ClusterRefusal(f"{self._server}: no answer within {self._limit_s:g} s")
        answer = read_within({"items": read}, self._limit_s).get("items", late)
        if isinstance(answer, ClusterRefusal):
            raise explain_refusal(answer.status, str(answer), verb, resource, self.namespace) from answer
        assert isinstance(answer, ClusterAnswer)
        return answer

    def pages(self, asked: Sequence[tuple[str, int, str]]) -> list[bytes | str]:
        """Read a page of each Pod, by its name, port and path. Text instead of bytes says why a Pod has none."""
        headers = self._headers()
        return asyncio.run(self._all([self._page(headers, pod, port, path) for pod, port, path in asked]))

    def logs(self, asked: Sequence[tuple[str, Mapping[str, str]]]) -> list[bytes | str]:
        """Read the log of each Pod, by its name and the query. Text instead of bytes says why there is none."""
        headers = self._headers()
        return asyncio.run(self._all([self._log(headers, pod, query) for pod, query in asked]))

    async def _all(self, readers: Sequence[Any]) -> list[bytes | str]:
        permits = asyncio.Semaphore(MAX_CALLS)

        async def read(reader: Any) -> bytes | str:
            async with permits:
                try:
                    async with asyncio.timeout(self._limit_s):
                        content: bytes = await reader
                        return content
                except TimeoutError:
                    return f"no answer within {self._limit_s:g} s"
                except (ClusterRefusal, aiohttp.ClientError, OSError, http.client.HTTPException, ValueError) as error:
                    return str(error) or type(error).__name__

        return list(await asyncio.gather(*map(read, readers)))

    async def _log(self, headers: Headers, pod: str, query: Mapping[str, str]) -> bytes:
        url = f"{self._server}{self._pod_path(pod)}/log?{urlencode({**query, 'limitBytes': str(MAX_LOG_BYTES)})}"
        async with _session(headers) as session, session.get(url, ssl=self._ssl, proxy=self._proxy) as response:
            body = await _read_all(response)
            if response.status != 200:
                raise explain_refusal(response.status, _reason(body), "get", "pods/log", self.namespace)
            return body

    async def _page(self, headers: Headers, pod: str, port: int, path: str) -> bytes:
        url = f"{self._server}{self._pod_path(pod)}/portforward?ports={port}"
        async with _session(headers) as session:
            try:
                forwarded = await session.ws_connect(
                    url, protocols=(SUBPROTOCOL,), ssl=self._ssl, proxy=self._proxy, max_msg_size=MAX_PAGE_BYTES
                )
            except aiohttp.WSServerHandshakeError as error:
                text = error.message
                raise explain_refusal(error.status, text, "get", "pods/portforward", self.namespace) from error
            async with forwarded:
                return await _exchange(forwarded, port, path)

    def _headers(self) -> Headers:
        """Return the headers of calls. Raises ClusterRefusal if an exec plugin does not renew its token in time."""
        facts = read_within({"token": self._call.connection.token}, self._limit_s)
        if "token" not in facts:
            raise ClusterRefusal(f"no credentials within {self._limit_s:g} s from the kubeconfig's exec plugin")
        return {"Authorization": f"Bearer {facts['token']}"} if facts["token"] else {}

    @property
    def _server(self) -> str:
        return self._call.connection.server.rstrip("/")

    @property
    def _ssl(self) -> Any:
        return self._call.connection.ssl or True

    @property
    def _proxy(self) -> str | None:
        return self._call.connection.proxy

    def _pod_path(self, pod: str) -> str:
        return f"/api/v1/namespaces/{quote(self.namespace)}/pods/{quote(pod)}"


def _session(headers: Headers) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(headers=headers, trust_env=True)


async def _read_all(response: aiohttp.ClientResponse) -> bytes:
    """Read a body up to the most bytes of a log."""
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size >= MAX_LOG_BYTES:
            break
    return b"".join(parts)[:MAX_LOG_BYTES]


async def _exchange(forwarded: aiohttp.ClientWebSocketResponse, port: int, path: str) -> bytes:
    """Ask for a page over a forwarded port. Raises ClusterRefusal."""
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
    await forwarded.send_bytes(bytes([DATA_CHANNEL]) + request.encode("ascii"))
    answer, begun = bytearray(), set[int]()
    while not is_whole(answer):
        message = await forwarded.receive()
        if message.type is not aiohttp.WSMsgType.BINARY:
            break
        channel, content = message.data[0] if message.data else -1, message.data[1:]
        if channel not in begun:  # the first frame of each channel has the port
            begun.add(channel)
            if content == struct.pack("<H", port):
                continue
        if channel == ERROR_CHANNEL and content:
            raise ClusterRefusal(f"port {port}: {content.decode(errors='replace').strip()}")
        if channel == DATA_CHANNEL:
            answer += content
        if len(answer) > MAX_PAGE_BYTES:
            raise ClusterRefusal(f"port {port}: a page of more than {MAX_PAGE_BYTES} bytes")
    return parse_answer(bytes(answer), port)


def is_whole(answer: bytes | bytearray) -> bool:
    """Return whether an HTTP answer has all the bytes that its head announces; without a length only the end shows.

    >>> is_whole(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")
    True
    """
    head, separator, _ = bytes(answer[:MAX_HEAD_BYTES]).partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n") if separator else ():
        name, _, value = line.partition(b":")
        if name == b"content-length" and value.strip().isdigit():
            return len(answer) - len(head) - len(separator) >= int(value)
    return False


class _Received:
    """The bytes of an answer, as `http.client` reads a socket."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._content)


def parse_answer(content: bytes, port: int) -> bytes:
    """Return the body of an HTTP answer. Raises ClusterRefusal for an error or a part of an answer."""
    if not content:
        raise ClusterRefusal(f"port {port}: the connection ended without an answer")
    response = http.client.HTTPResponse(_Received(content))  # type: ignore[arg-type]
    try:
        response.begin()
        body = response.read()
    except http.client.HTTPException as error:
        raise ClusterRefusal(f"port {port}: the answer broke off: {error!r}") from error
    if response.status != http.client.OK:
        raise ClusterRefusal(f"port {port}: status {response.status}: {body[:200].decode(errors='replace').strip()}")
    return body


def explain_refusal(status: int, text: str, verb: str, resource: str, namespace: str) -> ClusterRefusal:
    """Return the error for a refused call, which names the right that is missing."""
    if status == http.client.FORBIDDEN:
        return ClusterRefusal(
            f"this kubeconfig may not {verb} {resource} in the namespace {namespace}: "
            f"a Role needs the verb {verb} on {resource}",
            status,
        )
    if status == http.client.UNAUTHORIZED:
        return ClusterRefusal("the server does not accept the credentials of this kubeconfig", status)
    return ClusterRefusal(text if not status else f"{verb} {resource}: {text}", status)


def _reason(body: bytes) -> str:
    """Return the message of a Status object."""
    try:
        return str(msgspec.json.decode(body, type=dict[str, Any])["message"])
    except (msgspec.DecodeError, KeyError):
        return body[:200].decode(errors="replace")
