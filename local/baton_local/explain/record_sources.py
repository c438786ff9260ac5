"""Asks gateways for the records of requests: the admin listener of this machine, or every replica behind an address."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import msgspec

from baton_gateway.records.record_query import RecordQuery, RecordsPage, merge_pages
from baton_gateway.records.request_record import RequestRecord
from baton_local.errors import LocalError
from baton_wire.errors import AuthenticationError
from baton_wire.keys import operator_token, read_keys

ANSWER_S = 10.0
MAX_PAGE_BYTES = 64 << 20
MAX_REPLICAS = 64


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """The records that were found, and what did not answer."""

    records: list[RequestRecord]
    kept: int
    """Records that the processes keep that answered; 0: a tenant asked, who sees nothing of processes."""
    fell_out: int
    """Older records that made room for them."""
    silent: tuple[str, ...]
    """Gateways and processes that did not answer, in words."""


def token_of(keys: Path) -> str:
    """Return the operator's token from a directory of link keys. Raises LocalError."""
    try:
        return operator_token(next(iter(read_keys(keys).by_id.values())))
    except AuthenticationError as error:
        raise LocalError(f"--link-keys: {error}") from error


def query_path(query: RecordQuery) -> str:
    """Return the path of a query."""
    fields: Mapping[str, object] = {
        "id": query.id,
        "tenant": query.tenant,
        "slowest": query.slowest,
        "missed": "true" if query.missed else None,
    }
    return "/requests?" + urlencode({name: value for name, value in fields.items() if value is not None})


def ask_gateways(url: str, query: RecordQuery, token: str | None) -> FoundRecords:
    """Ask every address behind a URL, because each may be another replica. Raises LocalError where none answers."""
    is_tls, host, port = _split(url)
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise LocalError(f"--url: {host}: {error.strerror or error}") from error
    except UnicodeError as error:  # of a label that is empty or too long
        raise LocalError(f"--url: {host}: {error}") from error
    addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
    pages: list[RecordsPage] = []
    silent = [
        f"the gateway at {address}:{port} (not asked: over {MAX_REPLICAS})" for address in addresses[MAX_REPLICAS:]
    ]
    asked = addresses[:MAX_REPLICAS]
    with ThreadPoolExecutor(len(asked)) as pool:  # each that is silent takes its whole deadline
        answers = pool.map(lambda address: _ask(is_tls, host, address, port, query_path(query), token), asked)
    for address, page in zip(asked, answers, strict=True):
        if isinstance(page, str):
            silent.append(f"the gateway at {address}:{port} ({page})")
        else:
            pages.append(page)
    if not pages:
        raise LocalError(f"no gateway answered: {'; '.join(silent)}")
    return merge_answers(pages, silent, query)


def _split(url: str) -> tuple[bool, str, int]:
    """Return whether a URL is one of TLS, its host and its port. Raises LocalError."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # of brackets, or of the port
        host = None
    if host is None or parts.scheme not in ("http", "https"):
        raise LocalError(f"--url: {url!r} is not http(s)://HOST[:PORT]")
    is_tls = parts.scheme == "https"
    return is_tls, host, port or (443 if is_tls else 80)


def merge_answers(pages: list[RecordsPage], silent: list[str], query: RecordQuery) -> FoundRecords:
    """Merge the pages. A gateway with two addresses answers twice; replicas may have processes of the same pid."""
    merged = merge_pages(query, pages)
    processes = {(process.pid, process.epoch): process for process in merged.processes}.values()
    unknown = [f"gateway process {pid}" if pid else "a gateway process" for pid in merged.silent]
    kept, fell_out = sum(process.kept for process in processes), sum(process.fell_out for process in processes)
    return FoundRecords(merged.records, kept, fell_out, (*silent, *unknown))


def _ask(is_tls: bool, host: str, address: str, port: int, path: str, token: str | None) -> RecordsPage | str:
    """Ask one replica. Returns why it has no answer instead."""
    connection = http.client.HTTPConnection(address, port, timeout=ANSWER_S)
    try:
        if is_tls:
            plain = socket.create_connection((address, port), ANSWER_S)
            connection.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=host)
        headers = {"Host": f"{host}:{port}"} | ({} if token is None else {"Authorization": f"Bearer {token}"})
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        body = response.read(MAX_PAGE_BYTES)
        if response.status != http.client.OK:
            return _refusal(response.status, body)
        return msgspec.json.decode(body, type=RecordsPage)
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        return str(error) or type(error).__name__
    finally:
        connection.close()


def _refusal(status: int, body: bytes) -> str:
    try:
        return f"{status}: {msgspec.json.decode(body)['error']['message']}"
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"status {status}"
