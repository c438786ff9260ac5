"""One line a request, without content: who asked what, how it ended, how long it took. Never more than a set rate.

A line is a JSON object, so that programs read it. Nothing that a client wrote stands in it but its request id, which
is checked, and names that are known here: paths that are served, models that are served, tenants.
"""

from __future__ import annotations

import logging
import re
import secrets
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from baton_gateway.requests.live_request import LiveRequest

_log = logging.getLogger("baton.gateway.access")
_encode = msgspec.json.Encoder().encode

ID_HEADER = "X-Request-Id"
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
LINES_PER_S = 100
BURST = 400
"""Lines that may come at once; more are counted, and the next line says how many were left out."""


def request_id(sent: str | None) -> str:
    """The client's own id, if it is short and plain; otherwise a new one."""
    return sent if sent is not None and _ID.fullmatch(sent) else f"req-{secrets.token_hex(12)}"


@dataclass(slots=True)
class Exchange:
    """One HTTP request while it is answered."""

    id: str
    began_s: float
    """On the event loop's clock."""
    headers: dict[str, str]
    """Of every answer to it."""
    path: str = "other"
    """A path that is served."""
    is_probe: bool = False
    """Health and metrics: asked all the time, and not worth a line."""
    tenant: str | None = None
    live: LiveRequest | None = None


EXCHANGE = web.RequestKey("exchange", Exchange)


@dataclass(slots=True)
class LineAllowance:
    """How many lines may be written: `BURST`, filled again at `LINES_PER_S`."""

    left: float = float(BURST)
    filled_s: float = 0.0
    left_out: int = 0

    def take(self, now: float) -> int | None:
        """None: not this line. Otherwise how many were left out before it."""
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
    """Of one process."""

    allowance: LineAllowance = field(default_factory=LineAllowance)

    def answered(self, exchange: Exchange, method: str, status: int, now: float) -> None:
        """Write its line, unless it is a probe or there are too many."""
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
        if exchange.live is not None:
            line |= _generated(exchange.live)
        _log.info("%s", _encode(line | ({"left_out": left_out} if left_out else {})).decode())


def _generated(live: LiveRequest) -> dict[str, Any]:
    options, life = live.request.options, live.life
    first_s = min(live.times.first_s.values(), default=None)
    return {
        "model": None if live.fingerprint is None else options.model,
        "stream": options.stream,
        "prompt_tokens": life.prompt_tokens(),
        "completion_tokens": life.completion_tokens(),
        "attempts": life.attempts,
        "ttft_s": None if first_s is None else round(first_s - live.times.arrived_s, 4),
    }
