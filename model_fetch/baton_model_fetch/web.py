"""HTTP for fetching: allowed hosts, a deadline on every wait, status codes turned into our errors.

Hosts that the credentials name may have any address, as they are configured. All others, wherever a source or a
redirect points, are asked over https, at public addresses, and without any secret. A proxy that the environment names
resolves names itself: what is inside by its name is refused before the proxy is asked.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from baton_model_fetch.addresses import PrivateAddressError, is_inside, public_socket
from baton_model_fetch.errors import Damaged, FetchError, Interrupted, SourceRefused

CONNECT_S, READ_S = 20.0, 60.0
MAX_REPLY_BYTES = 32 << 20
MAX_REDIRECTS = 5
MAX_REASON_BYTES, MAX_REASON = 4096, 160
_CODE = re.compile(r'<Code>([^<]{1,80})</Code>|"(?:code|error)"\s*:\s*"([^"]{1,160})"')
_MESSAGE = re.compile(r'<Message>([^<]{1,200})</Message>|"message"\s*:\s*"([^"]{1,200})"')
_RETRIED = {408, 425, 429, 500, 502, 503, 504}
_WORDS = {401: "credentials are missing or not accepted", 403: "no access", 404: "not found", 410: "gone"}
_NAME_IT = "name its host in the credentials' hosts"
_PROXY_REFUSALS = {401, 403, 405, 407}
_REDIRECTS = {301, 302, 303, 307, 308}
_FOR_ANY_HOST = {"accept", "accept-encoding", "range"}
"""Headers that are also sent to another server than the first one."""


@dataclass(frozen=True, slots=True)
class SourceSession:
    """HTTP clients for servers that are trusted and for others. Every request goes through `opened`."""

    own: frozenset[str]
    """Hosts that the credentials name."""
    trusting: aiohttp.ClientSession
    """Dials any address, also that of a proxy which the environment names."""
    wary: aiohttp.ClientSession
    """Dials public addresses alone."""

    def of(self, url: URL) -> aiohttp.ClientSession:
        """The session for one hop. Raises SourceRefused for what may not be asked at all."""
        host = url.host or ""
        if host in self.own:
            return self.trusting
        if url.scheme != "https":
            raise SourceRefused(f"{place(str(url))}: not asked without TLS: the credentials do not name its host")
        if "https" not in getproxies() or proxy_bypass(host):
            return self.wary
        if is_inside(host):
            raise SourceRefused(f"{place(str(url))}: {host} is not a public address: {_NAME_IT}")
        return self.trusting


@contextlib.asynccontextmanager
async def session(own: Collection[str] = ()) -> AsyncIterator[SourceSession]:
    """A session that trusts the image's certificates; `own`: hosts that may have any address."""
    times = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=READ_S)
    public = aiohttp.TCPConnector(socket_factory=public_socket)
    async with (
        aiohttp.ClientSession(timeout=times, auto_decompress=False, trust_env=True) as trusting,
        aiohttp.ClientSession(timeout=times, auto_decompress=False, connector=public) as wary,
    ):
        yield SourceSession(frozenset(own), trusting, wary)


@contextlib.asynccontextmanager
async def opened(
    session: SourceSession, url: str, headers: Mapping[str, str], *, allow: frozenset[int] = frozenset()
) -> AsyncIterator[aiohttp.ClientResponse]:
    """A GET whose status is 2xx or allowed, after at most 5 redirects. Raises SourceRefused, Interrupted."""
    at, sent = URL(url), dict(headers)
    try:
        for _ in range(1 + MAX_REDIRECTS):
            async with session.of(at).get(at, headers=sent, allow_redirects=False) as reply:
                target = reply.headers.get("Location") if reply.status in _REDIRECTS else None
                if target is None:
                    if reply.status not in allow:
                        check(reply.status, str(at), await _reason(reply) if reply.status >= 400 else "")
                    yield reply
                    return
            before, at = at, _joined(at, target)
            if at.origin() != before.origin():
                sent = {name: value for name, value in sent.items() if name.lower() in _FOR_ANY_HOST}
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:  # the volume's
            raise
        raise _explain(error, str(at)) from error
    raise SourceRefused(f"{place(url)}: over {MAX_REDIRECTS} redirects")


def _explain(error: TimeoutError | aiohttp.ClientError | OSError, url: str) -> FetchError:
    """The error of a request as one of ours. A certificate and a proxy's refusal stay what they are in another try."""
    where = place(url)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        why = getattr(error.certificate_error, "verify_message", "") or str(error.certificate_error)
        trust = "for a private authority, its certificate has to be in fetch.caBundle of the chart (SSL_CERT_FILE)"
        return SourceRefused(f"{where}: certificate verify failed: {why}: {trust}")
    if isinstance(error, aiohttp.ClientHttpProxyError):
        text = f"{where}: the proxy answers HTTP {error.status}"
        refused = error.status in _PROXY_REFUSALS
        return SourceRefused(f"{text}: it refuses this host or wants a login") if refused else Interrupted(text)
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return Interrupted(f"{where}: the proxy {error.host}:{error.port} cannot be reached: {error.os_error}")
    if isinstance(error, aiohttp.ClientConnectorError) and _is_private(error.os_error):
        return SourceRefused(f"{where}: {error.os_error.strerror or error.os_error}: {_NAME_IT}")
    if isinstance(error, aiohttp.InvalidURL):
        return SourceRefused(f"{where}: not an address that can be asked")
    return Interrupted(f"{where}: {type(error).__name__}: {error}")


def _joined(at: URL, target: str) -> URL:
    try:
        following = at.join(URL(target))
        following.origin()
    except ValueError as error:
        raise SourceRefused(f"{place(str(at))}: redirects to nowhere") from error
    return following


def _is_private(error: OSError) -> bool:
    return isinstance(error, PrivateAddressError) or "is not a public address" in str(error)


async def text(session: SourceSession, url: str, headers: Mapping[str, str]) -> tuple[bytes, Mapping[str, str]]:
    """A small reply and its headers. Raises SourceRefused, Interrupted, Damaged for one over 32 MiB."""
    async with opened(session, url, {"Accept-Encoding": "identity", **headers}) as reply:
        body = await reply.content.read(MAX_REPLY_BYTES)
        while len(body) < MAX_REPLY_BYTES and (more := await reply.content.read(MAX_REPLY_BYTES)):
            body += more
        if len(body) >= MAX_REPLY_BYTES:
            raise Damaged(f"{place(url)}: the reply is over {MAX_REPLY_BYTES >> 20} MiB")
        return body, reply.headers


def check(status: int, url: str, reason: str = "") -> None:
    """Raises SourceRefused or Interrupted for a status that is not 2xx. `reason`: the server's own."""
    if 200 <= status < 300:
        return
    why = f" ({reason})" if reason else ""
    if status in _RETRIED:
        raise Interrupted(f"{place(url)}: HTTP {status}{why}")
    raise SourceRefused(f"{place(url)}: HTTP {status}: {_WORDS.get(status, 'refused')}{why}")


async def _reason(reply: aiohttp.ClientResponse) -> str:
    """The code and the message with which a hub, a bucket or a registry explains a refusal; empty: none. It names what
    a status cannot: an expired token, a wrong clock, a model that has to be asked for."""
    parts = [reply.headers.get(name, "") for name in ("X-Error-Code", "X-Error-Message")]
    if not any(parts):
        body = (await reply.content.read(MAX_REASON_BYTES)).decode("utf-8", "replace")
        parts = [match[1] or match[2] if (match := pattern.search(body)) else "" for pattern in (_CODE, _MESSAGE)]
    words = " ".join(": ".join(part for part in parts if part).split())
    return "".join(letter for letter in words if letter.isprintable())[:MAX_REASON]


def place(url: str) -> str:
    """A URL without its query, which may carry signatures."""
    return url.partition("?")[0]
