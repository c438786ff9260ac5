"""Requests with ids of their own, timed by their client, and the records that the gateway keeps of them."""

from __future__ import annotations

import http.client
import json
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from baton_gateway.records.parts import Part
from baton_gateway.records.record_query import RecordsPage
from baton_gateway.records.request_record import RequestRecord
from baton_testing.processes.child_process import get_text, wait_for

ANSWER_S = 120.0
RECORD_S = 10.0
"""How long after its answer a request's record is waited for."""
MODEL = "tiny"
NARROW_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class Timed:
    """One request as its client saw it."""

    id: str
    status: int
    took_ns: int
    """From before the connection was opened until the last byte was read."""


def chat_body(question: str, **fields: object) -> dict[str, Any]:
    """Return the body of a chat, greedy and streamed where `fields` say nothing else."""
    messages = [{"role": "user", "content": question}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "stream": True, "max_tokens": 24, **fields}


def ask(
    port: int,
    body: Mapping[str, Any],
    key: str | None = None,
    *,
    path: str = "/v1/chat/completions",
    pause_s: float = 0.0,
    reads_after_s: float = 0.0,
    at_first: Callable[[], object] | None = None,
) -> Timed:
    """Send one request over a connection of its own, and read its whole answer. `pause_s`: between head and body;
    `reads_after_s`: between the request and the first byte that is read; `at_first`: called after the first event."""
    name, content = f"asked-{secrets.token_hex(6)}", json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "X-Request-Id": name, "Content-Length": str(len(content))}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    began = time.perf_counter_ns()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    try:
        if reads_after_s:
            connection.sock = _narrow_socket(port)
        connection.putrequest("POST", path)
        for field, value in headers.items():
            connection.putheader(field, value)
        connection.endheaders(None if pause_s else content)
        if pause_s:
            time.sleep(pause_s)
            connection.send(content)
        time.sleep(reads_after_s)
        response = connection.getresponse()
        if at_first is not None:
            response.readline()
            at_first()
        response.read()
        return Timed(name, response.status, time.perf_counter_ns() - began)
    finally:
        connection.close()


def _narrow_socket(port: int) -> socket.socket:
    """Return a connected socket whose kernel buffers little of what its client does not read."""
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW_BYTES)
    narrow.settimeout(ANSWER_S)
    narrow.connect(("127.0.0.1", port))
    return narrow


def record_of(admin_port: int, name: str) -> RequestRecord:
    """Return the record of a request. Raises NotReadyError where the gateway has none in time."""

    def probe() -> RequestRecord | None:
        text = get_text(f"http://127.0.0.1:{admin_port}/requests?id={name}")
        page = msgspec.json.decode(text, type=RecordsPage)
        return page.records[0] if page.records else None

    return wait_for(probe, f"the record of {name}", RECORD_S)


def unexplained_ns(timed: Timed, record: RequestRecord) -> int:
    """Return the nanoseconds of a client's time that no process accounts for: those between gateway and workers, and
    those between client and gateway."""
    links = sum(span.duration_ns for span in record.spans if span.part == Part.LINKS)
    return timed.took_ns - record.duration_ns + links
