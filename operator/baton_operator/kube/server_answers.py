"""Parsers of an API server's answers: objects, parts of lists, events of watches, and typed errors."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping

import aiohttp
import msgspec

from baton_control.errors import FieldProblem
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
    WatchEvent,
)
from baton_operator.kube.object_fields import Manifest

MAX_LINE_BYTES = 8 << 20
_OWNER = re.compile(r'conflict with "([^"]*)"')


class PageMetadata(msgspec.Struct):
    next: str = msgspec.field(name="continue", default="")
    version: str = msgspec.field(name="resourceVersion", default="")


class Page(msgspec.Struct):
    """A part of a list, its objects as JSON."""

    metadata: PageMetadata
    items: list[msgspec.Raw] | None = None


_PAGES = msgspec.json.Decoder(Page)


async def lines_of(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The events of a watch, as JSON. Raises Unavailable when one is longer than MAX_LINE_BYTES."""
    rest = bytearray()
    async for chunk in content.iter_any():
        rest += chunk
        *complete, last = rest.split(b"\n")
        rest = bytearray(last)
        if len(rest) > MAX_LINE_BYTES:
            raise Unavailable(f"a watch event has more than {MAX_LINE_BYTES} bytes")
        for line in complete:
            if line.strip():
                yield bytes(line)


def watch_event(line: bytes) -> WatchEvent:
    """The event in one line of a watch. Raises the KubeError of an ERROR event, and Unavailable for anything else."""
    event = mapping_of(line)
    body, kind = event.get("object"), event.get("type")
    if not isinstance(body, dict):
        raise Unavailable("a watch brought an event without an object")
    if kind == "ERROR":
        code = body.get("code")
        raise _from_status(code if isinstance(code, int) else 500, body, None)
    if kind not in set(Change):
        raise Unavailable(f"a watch brought an event of type {kind!r}")
    return WatchEvent(Change(str(kind)), body)


def page_of(data: bytes) -> Page:
    """The part of a list in an answer. Raises Unavailable."""
    try:
        return _PAGES.decode(data)
    except msgspec.DecodeError as error:
        raise Unavailable(f"the answer is no list: {error}") from error


def mapping_of(data: bytes | msgspec.Raw) -> Manifest:
    """The object in an answer. Raises Unavailable."""
    try:
        answer = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise Unavailable(f"the answer is not JSON: {error}") from error
    if not isinstance(answer, dict):
        raise Unavailable("the answer is not an object")
    return answer


def error_of(status: int, data: bytes, headers: Mapping[str, str]) -> KubeError:
    """The typed error of an answer that is no success."""
    try:
        body = mapping_of(data)
    except Unavailable:
        body = {"message": data[:200].decode(errors="replace")}
    return _from_status(status, body, headers.get("Retry-After"))


def _from_status(code: int, body: Manifest, retry_after: str | None) -> KubeError:
    """The typed error of a metav1.Status."""
    message, reason = str(body.get("message", f"HTTP {code}")), body.get("reason")
    details = body.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    field_causes = [cause for cause in causes if isinstance(cause, dict)] if isinstance(causes, list) else []
    if code == 429 or (code == 503 and retry_after):
        return TooManyRequests(message, _seconds(retry_after))
    if code == 409 and reason != "AlreadyExists":
        owners = [match.group(1) for cause in field_causes if (match := _OWNER.search(str(cause.get("message"))))]
        return Conflict(message, tuple(dict.fromkeys(owners)))
    if code == 403:
        return Forbidden(message, is_quota="exceeded quota" in message)
    if code == 422 and any(cause.get("field") == "metadata.uid" for cause in field_causes):
        return Conflict(message)  # how servers answer an apply under the uid of a predecessor
    if code in (400, 405, 406, 413, 415, 422):
        return Invalid(
            message, tuple(FieldProblem(str(c.get("field", "")), str(c.get("message", ""))) for c in field_causes)
        )
    if code == 500 and "failed calling webhook" in message:
        return Forbidden(message)  # nothing was written, and trying again at once would not help
    if code == 500 and "failed to create typed patch object" in message:
        return Invalid(message)  # a field that this server does not know
    plain = {401: Unauthorized, 404: NotFound, 409: AlreadyExists, 410: Expired}
    return plain.get(code, Unavailable)(message)


def _seconds(retry_after: str | None) -> float:
    return float(retry_after) if retry_after is not None and retry_after.isdigit() else 1.0
