"""The access log: one line for each request, without content, at a bounded rate.

A line is a JSON object with tenant, path, status and duration. The only text of a client's in it is the request id,
which is checked. All other names are known here: served paths, served models, tenants.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from baton_gateway.page.viewer import Viewer
from baton_gateway.records.record_builder import worker_name
from baton_gateway.records.trail import Mark, Moment, Trail
from baton_gateway.requests.live_request import LiveRequest
from baton_gateway.tracing.trace_context import TraceContext

_log = logging.getLogger("baton.gateway.access")
_encode = msgspec.json.Encoder().encode

ID_HEADER = "X-Request-Id"
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
LINES_PER_S = 100
IGNORED_HEADER = "X-Baton-Ignored"
"""Names what has no effect: unknown fields, hosted tools, keywords of schemas."""
BURST = 400
"""Lines that may come at once. Further lines are counted, and the next line reports how many were left out."""


def choose_request_id(sent: str | None) -> str:
    """Return the client's own id if it is short and plain, otherwise a new one."""
    return sent if sent is not None and _ID.fullmatch(sent) else f"req-{secrets.token_hex(12)}"


@dataclass(slots=True)
class Exchange:
    """One HTTP request and its answer."""

    id: str
    began_s: float
    """The start, on the event loop's clock."""
    headers: dict[str, str]
    """Headers of every answer to the request."""
    path: str = "other"
    """The served path."""
    is_probe: bool = False
    """True for health and metrics, which are requested all the time and not logged."""
    tenant: str | None = None
    viewer: Viewer | None = None
    """The viewer of records or of the page; None: the request is for something else."""
    trace: TraceContext | None = None
    """The trace that it belongs to; None: traces are not exported."""
    live: LiveRequest | None = None
    session: int | None = None
    """A number of the session that the client named."""
    refusal: str = ""
    """The code of the error that the client got instead of an answer; empty: none."""

    @property
    def code(self) -> str:
        """Why the request has no whole answer, as a code; empty: it has one, or its client left."""
        return self.refusal or ("" if self.live is None else self.live.end_code)

    def begin(self, live: LiveRequest) -> LiveRequest:
        """Take the generating request that has begun, and put it into the exchange's trace."""
        self.live = live
        live.trace = self.trace
        if self.trace is not None and self.trace.is_sampled:
            live.times.exemplar = self.trace.exemplar
            live.life.trace_id = bytes.fromhex(self.trace.trace_id)
        return live

    def name_ignored(self, ignored: Sequence[str]) -> None:
        """Name what has no effect in a header of the answer."""
        if ignored:
            before = self.headers.get(IGNORED_HEADER)
            self.headers[IGNORED_HEADER] = ", ".join((*([before] if before else []), *ignored))


EXCHANGE = web.RequestKey("exchange", Exchange)


@dataclass(slots=True)
class LineAllowance:
    """A token bucket of lines: `BURST`, refilled at `LINES_PER_S`."""

    left: float = float(BURST)
    filled_s: float = 0.0
    left_out: int = 0

    def take(self, now: float) -> int | None:
        """Return how many lines were left out before this one; None: this one is left out too."""
        self.left = min(float(BURST), self.left + max(0.0, now - self.filled_s) * LINES_PER_S)
        self.filled_s = now
        if self.left < 1:
            self.left_out += 1
            return None
        self.left -= 1
        left_out, self.left_out = self.left_out, 0
        return left_out


@dataclass(slots=True)
class AccessLog:
    """The access log of one process."""

    allowance: LineAllowance = field(default_factory=LineAllowance)

    def log(self, exchange: Exchange, method: str, status: int, now: float) -> None:
        """Write the line of a request, unless it is a probe or there are too many."""
        if exchange.is_probe or not _log.isEnabledFor(logging.INFO):
            return
        left_out = self.allowance.take(now)
        if left_out is None:
            return
        known_method = method if method in ("GET", "POST", "OPTIONS", "HEAD", "PUT", "DELETE", "PATCH") else "other"
        line: dict[str, Any] = {
            "id": exchange.id, "method": known_method, "path": exchange.path, "status": status,
            "s": round(now - exchange.began_s, 4), "tenant": exchange.tenant,
        }  # fmt: skip
        if exchange.code:
            line["code"] = exchange.code
        if exchange.live is not None:
            line |= _generation_fields(exchange.live)
        _log.info("%s", _encode(line | ({"left_out": left_out} if left_out else {})).decode())


def _generation_fields(live: LiveRequest) -> dict[str, Any]:
    options, life = live.request.options, live.life
    first_s = min(live.times.first_s.values(), default=None)
    return {
        "model": None if live.fingerprint is None else options.model,
        "stream": options.stream,
        "prompt_tokens": life.prompt_tokens(),
        "completion_tokens": life.completion_tokens(),
        "attempts": life.attempts,
        "ttft_s": None if first_s is None else round(first_s - live.times.arrived_s, 4),
        "cached_tokens": life.cached_tokens(),
        "lost": None if live.last_lost is None else live.last_lost.value,
    } | (_trail_fields(live.trail) if live.trail is not None else {})


def _trail_fields(trail: Trail) -> dict[str, Any]:
    """Return how long it queued, its latest route with its workers, and how long the hand-over took."""
    admitted = next((mark for mark in trail.marks if mark.moment == Moment.ADMITTED), None)
    offered = next((mark for mark in trail.marks if mark.moment == Moment.OFFERED), None)
    routed = next((mark for mark in reversed(trail.marks) if mark.moment == Moment.ROUTED), None)
    fields: dict[str, Any] = {
        "queue_s": None if admitted is None or offered is None else round(admitted.at_s - offered.at_s, 4)
    }
    if routed is None:
        return fields
    first_s = {
        mark.worker: mark.at_s - _after_landing_s(mark)
        for mark in trail.marks
        if mark.moment == Moment.FIRST and (mark.run, mark.attempt) == (routed.run, routed.attempt)
    }
    workers = [worker_name(epoch) for epoch in (routed.worker, routed.decode) if epoch]
    begun_s, landed_s = first_s.get(routed.worker), first_s.get(routed.decode)
    took_s = None if begun_s is None or landed_s is None else round(max(0.0, landed_s - begun_s), 4)
    return fields | {"route": routed.text, "workers": workers, "handover_s": took_s}


def _after_landing_s(mark: Mark) -> float:
    """Return how long tokens were sent after the KV had landed; 0 where none landed, or it is not known."""
    times = mark.times
    return 0.0 if times is None or times.landed_s is None else max(0.0, times.sent_s - times.landed_s)
